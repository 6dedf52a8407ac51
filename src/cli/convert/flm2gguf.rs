//! `gguf-convert flm2gguf`: converts a FastLLM file.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::convert::to_gguf::ToGguf;
use crate::cli::{Exit, Session, UsageError};
use crate::convert::{ConvertOptions, FlmOptions};
use crate::dequant::flm::FlmMeaning;
use crate::job::{JobInput, JobTypes};

/// Whose reading of value ranges counts.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Meaning {
    /// FastLLM's loader
    Reader,
    /// The program that wrote the file
    Writer,
}

/// Arguments of `flm2gguf`.
#[derive(Debug, Args)]
pub(super) struct Flm2gguf {
    /// FastLLM file
    file: PathBuf,
    /// Architecture, for files without `model_type`: a name that `archs` lists
    #[arg(long, value_name = "NAME")]
    arch: Option<String>,
    /// config.json of the original model, for numbers that the file lacks
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Merge the LoRA adapter that the file contains
    #[arg(long)]
    merge_adapters: bool,
    /// Values that the integers represent, where FastLLM reads other values than the exporter wrote
    #[arg(long, value_enum, value_name = "WHO", default_value = "reader")]
    meaning: Meaning,
    #[command(flatten)]
    pub(super) to_gguf: ToGguf,
}

impl Flm2gguf {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let options = FlmOptions {
            arch: self.arch.clone(),
            config: self.config.clone(),
            merge_adapters: self.merge_adapters,
            meaning: match self.meaning {
                Meaning::Reader => FlmMeaning::Reader,
                Meaning::Writer => FlmMeaning::Writer,
            },
        };
        let dir = self.file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let adjust = |_: &JobTypes, options: &mut ConvertOptions| {
            if options.limits.follow_links {
                let text =
                    "`--follow-links` goes with directories only: a FastLLM file carries all its texts";
                return Err(UsageError(text.to_owned()).into());
            }
            Ok(())
        };
        let input = JobInput::Flm { path: self.file.clone(), options };
        self.to_gguf.run(session, input, dir, adjust)?;
        Ok(Exit::Done)
    }
}
