//! `gguf-quantize recipe` and `rebuild`: how files were made of a source, and making them again.

mod print;

use std::path::PathBuf;

use clap::Args;

use crate::cli::job::failure;
use crate::cli::remote::{ModelDirectory, RemoteArgs};
use crate::cli::render::duration;
use crate::cli::{Exit, Session};
use crate::convert::ConvertOptions;
use crate::core::text::{bytes, escape};
use crate::job::recipe::{RecipeOutput, RecipeSource, find_recipe, rebuild};
use crate::job::{JobError, JobInput};

/// Model that a file was made of.
#[derive(Clone, Debug, Args)]
struct SourceArgs {
    /// Model that the file was made of: a GGUF file of higher precision, the folder of a checkpoint, the weights of an image
    /// model (.safetensors, .ckpt, .pt, .pth) or, with `--cache`, a checkpoint on a server: ORG/NAME or ORG/NAME@REVISION of
    /// the Hugging Face hub, https://HOST/DIR
    #[arg(long, value_name = "SOURCE")]
    source: PathBuf,
    /// Importance matrix that may have been used (GGUF or .dat)
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl SourceArgs {
    /// Calls `work` with the source, which is read more than once.
    fn with<R>(
        &self,
        session: &Session,
        work: impl FnOnce(&RecipeSource) -> Result<R, JobError>,
    ) -> anyhow::Result<R> {
        let model = self.remote.kept(session, "--source", Some(&self.source))?;
        self.remote.check_use(&model)?;
        let path = model.as_ref().map_or(self.source.as_path(), ModelDirectory::path).to_owned();
        let input = JobInput::of_path(path);
        let source = RecipeSource::open(input, convert_options(session), self.imatrix.clone(), session);
        work(&source.map_err(failure)?).map_err(failure)
    }
}

fn convert_options(session: &Session) -> ConvertOptions {
    ConvertOptions { level: session.common.simd, allow_nonfinite: true, ..ConvertOptions::default() }
}

fn output_options(session: &Session) -> RecipeOutput {
    RecipeOutput { sync: !session.common.no_sync, memory_bytes: session.common.memory_bytes() }
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit codes: 0 if the source explains the whole file, 1 if something in it differs (or the run failed), \
    2 wrong usage, 130 interrupted."
)]
pub(super) struct RecipeArgs {
    /// Quantized GGUF file; a part of a split model is a file of its own
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
    /// Write the recipe, from which `rebuild` makes the file again
    #[arg(short, long, value_name = "RECIPE")]
    output: Option<PathBuf>,
}

impl RecipeArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let (output, options) = (self.output.as_deref(), output_options(session));
        let report = self
            .source
            .with(session, |source| find_recipe(&self.file, source, output, &options, &session.progress))?;
        if session.common.json {
            session.print_json(&report)?;
        } else if !session.common.quiet {
            session.print(|out| print::recipe(out, &report, session.common.verbose > 0))?;
        }
        Ok(if report.is_explained { Exit::Done } else { Exit::Failed })
    }
}

#[derive(Clone, Debug, Args)]
#[command(override_usage = "gguf-quantize rebuild [OPTIONS] --source SOURCE -o FILE RECIPE")]
pub(super) struct RebuildArgs {
    /// Recipe of the file
    #[arg(value_name = "RECIPE")]
    recipe: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl RebuildArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let options = output_options(session);
        let made = self.source.with(session, |source| {
            rebuild(&self.recipe, source, &self.output, &options, &session.progress)
        })?;
        if session.common.json {
            session.print_json(&made)?;
        } else if !session.common.quiet {
            session.print(|out| {
                let name = made.file.display().to_string();
                writeln!(
                    out,
                    "{}: {}, in {}",
                    escape(&name),
                    bytes(made.file_bytes),
                    duration(made.seconds)
                )?;
                writeln!(out, "SHA-256 {}, as the original", made.sha256)
            })?;
        }
        Ok(Exit::Done)
    }
}
