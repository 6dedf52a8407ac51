//! `gguf-convert lora2gguf`: converts a LoRA adapter.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::arch::OutType;
use crate::cli::convert::to_gguf::{AUTO, ConvertJob, job_target};
use crate::cli::default_name::Unnamed;
use crate::cli::guard::Guard;
use crate::cli::remote::RemoteArgs;
use crate::cli::{Exit, Session};
use crate::convert::{AdapterConversion, AdapterOptions, ConvertOptions};
use crate::core::bytes::Endian;
use crate::core::limits::Limits;
use crate::core::output::OutputKind;
use crate::core::text::escape;
use crate::gguf::{LayoutOptions, WriteOptions, write_gguf};

/// Types that an adapter's matrices can have.
const TYPES: [&str; 5] = ["f32", "f16", "bf16", "q8_0", AUTO];

/// Arguments of `lora2gguf`.
#[derive(Debug, Args)]
pub(super) struct Lora2gguf {
    /// Directory of the adapter: adapter_config.json, and adapter_model.safetensors or adapter_model.bin; or an adapter
    /// on a server (ORG/NAME, https://HOST/DIR, s3://BUCKET/DIR), as its base model may be
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
        let started = Instant::now();
        let adapter_dir = self.remote.directory(session, &self.dir)?;
        let base = self.remote.optional(session, self.base.as_deref())?;
        self.remote.check_use([&adapter_dir].into_iter().chain(&base))?;
        let base = base.as_ref().map(|base| base.path().to_owned());
        let adapter = AdapterOptions { base: base.clone(), scale_alpha: self.scale_alpha };
        let conversion = AdapterConversion::plan(adapter_dir.path(), &adapter, &self.options(session))?;
        for warning in conversion.warnings() {
            log::warn!("{}", escape(warning));
        }
        let encoding = conversion.encoding();
        let default_name = conversion.default_file_name(&encoding);
        let target =
            job_target(self.output.as_deref().unwrap_or(adapter_dir.output()), &default_name, &encoding);
        let options = WriteOptions {
            layout: LayoutOptions {
                endian: if self.bigendian { Endian::Big } else { Endian::Little },
                ..LayoutOptions::default()
            },
            sync: !session.common.no_sync,
            memory_bytes: session.common.memory_bytes(),
            inputs: conversion.input_paths().to_vec(),
            ..WriteOptions::default()
        };
        let job = ConvertJob::plain(target, conversion.metadata(), &conversion, options, encoding);
        let mut guard = Guard::new(session, self.dry_run);
        guard.read("the adapter", adapter_dir.path())?;
        guard.read_all("the adapter", conversion.input_paths())?;
        guard.read_all("the base model", &base)?;
        guard.read_all("the card", &self.card)?;
        guard.write("the output", &job.target, OutputKind::Model)?;
        if self.output.as_deref().is_none_or(Path::is_dir) {
            let model = Unnamed { metadata: conversion.metadata(), source: &conversion };
            guard.unnamed(&job.target, model)?;
        }
        if self.dry_run {
            job.print_plan(session, |tensor| conversion.sources(tensor).map(ToOwned::to_owned).collect())?;
            return Ok(Exit::Done);
        }
        let report = write_gguf(&job.target, job.metadata, job.source, &job.options, &session.progress)?;
        job.print_report(session, &report, &[], started.elapsed().as_secs_f64())?;
        Ok(Exit::Done)
    }

    fn options(&self, session: &Session) -> ConvertOptions {
        ConvertOptions {
            file_type: OutType::from_name(&self.ty.to_ascii_lowercase()),
            card: self.card.clone(),
            level: session.common.simd,
            limits: Limits { follow_links: self.follow_links, ..Limits::default() },
            ..ConvertOptions::default()
        }
    }
}
