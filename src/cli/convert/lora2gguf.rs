//! `gguf-convert lora2gguf`: converts a LoRA adapter.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::arch::OutType;
use crate::cli::convert::to_gguf::KeyArgs;
use crate::cli::job::{carry_out, output_path, with_common};
use crate::cli::remote::RemoteArgs;
use crate::cli::{Exit, Session};
use crate::convert::{AdapterOptions, Codes, ConvertOptions};
use crate::core::bytes::Endian;
use crate::core::limits::Limits;
use crate::job::{Job, JobInput, JobOutput, JobTypes};

/// Types that an adapter's matrices can have.
const TYPES: [&str; 5] = ["f32", "f16", "bf16", "q8_0", JobTypes::AUTO];

/// Arguments of `lora2gguf`.
#[derive(Debug, Args)]
pub(super) struct Lora2gguf {
    /// Directory of the adapter: adapter_config.json, and adapter_model.safetensors or adapter_model.bin; or an adapter
    /// on a server (ORG/NAME, https://HOST/DIR), as its base model may be
    dir: PathBuf,
    /// Directory of the base model, of which config.json is enough; if it has weights, the adapter is checked against
    /// them [default: the one that adapter_config.json names, if it exists]
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// Type of the matrices; auto: what the adapter has
    #[arg(
        long = "type",
        visible_alias = "outtype",
        value_name = "TYPE",
        default_value = "f32",
        ignore_case = true,
        value_parser = PossibleValuesParser::new(TYPES)
    )]
    ty: String,
    /// File or directory to write [default: in the adapter's directory, named after it]
    #[arg(short, long, visible_alias = "outfile", value_name = "PATH")]
    output: Option<PathBuf>,
    /// Write the strength that the adapter was trained with where that is not lora_alpha divided by the rank (rsLoRA,
    /// alpha_pattern); llama.cpp's converter writes lora_alpha in any case
    #[arg(long)]
    scale_alpha: bool,
    #[command(flatten)]
    keys: KeyArgs,
    /// Print the plan and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Use an architecture card from a file, or all cards of a directory
    #[arg(long, value_name = "PATH")]
    card: Option<PathBuf>,
    /// Read text files also through links that lead out of their directory; the hub's cache needs no permission
    #[arg(long)]
    follow_links: bool,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Write a big-endian file
    #[arg(long)]
    bigendian: bool,
}

impl Lora2gguf {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let adapter_dir = self.remote.directory(session, &self.dir)?;
        let base = self.remote.optional(session, self.base.as_deref())?;
        self.remote.check_use([&adapter_dir].into_iter().chain(&base))?;
        let base = base.as_ref().map(|base| base.path().to_owned());
        let options = AdapterOptions { base, scale_alpha: self.scale_alpha };
        let input = JobInput::Adapter { path: adapter_dir.path().to_owned(), options };
        let file_type = OutType::from_name(&self.ty.to_ascii_lowercase());
        let types = JobTypes::Plain { file_type, codes: Codes::Card };
        let path = output_path(self.output.as_deref(), adapter_dir.output());
        let endian = if self.bigendian { Endian::Big } else { Endian::Little };
        let output = JobOutput { endian, ..JobOutput::at(path) };
        let job = Job { convert: self.keys.fill(self.options(session))?, ..Job::new(input, types, output) };
        carry_out(session, &with_common(job, &session.common), self.dry_run)?;
        Ok(Exit::Done)
    }

    fn options(&self, session: &Session) -> ConvertOptions {
        ConvertOptions {
            card: self.card.clone(),
            level: session.common.simd,
            limits: Limits { follow_links: self.follow_links, ..Limits::default() },
            ..ConvertOptions::default()
        }
    }
}
