//! `gguf-verify imatrix`: collects an importance matrix.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::verify::model::OpenedModel;
use crate::cli::verify::prompt_files::PromptFiles;
use crate::cli::verify::{CutArgs, engine_options, refuse_input};
use crate::cli::{Exit, Session};
use crate::core::output::Destination;
use crate::core::progress::Progress;
use crate::core::text;
use crate::gguf::WriteOptions;
use crate::verify::{ImportanceOptions, Rows, Span, collect_importance};

#[derive(Debug, Args)]
pub(super) struct ImatrixArgs {
    /// GGUF file
    model: PathBuf,
    /// Text to collect from; several files share the chunks
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    prompts: Vec<PathBuf>,
    /// Read each prompt file as one text, whatever it looks like
    #[arg(long)]
    plain_text: bool,
    /// Where to write
    #[arg(short, value_name = "FILE", required = true)]
    output: PathBuf,
    /// The format before GGUF
    #[arg(long)]
    legacy: bool,
    #[command(flatten)]
    cut: CutArgs,
}

impl ImatrixArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        Destination::of(&self.output)?;
        let opened = OpenedModel::open(&self.model, &session.common)?;
        refuse_input(&self.output, self.prompts.iter().chain(&opened.inputs()))?;
        let prompts = PromptFiles::read(&self.prompts, self.plain_text)?;
        let options = ImportanceOptions {
            engine: engine_options(&session.common),
            scoring: self.cut.scoring(Span::SecondHalf, Rows::Scored),
            files: prompts.files(),
        };
        let importance = opened
            .with(None, |model| collect_importance(model, prompts.sources(), &options, &session.progress))?;
        for warning in
            importance.warnings.iter().chain(&prompts.unreached(&importance.unreached, &importance.chunks))
        {
            session.progress.warn(warning);
        }
        let dataset = prompts.first().map(|path| path.display().to_string()).unwrap_or_default();
        let sync = !session.common.no_sync;
        let write = WriteOptions { sync, inputs: opened.inputs(), ..WriteOptions::default() };
        let sums = &importance.sums;
        if self.legacy {
            sums.write_legacy(&self.output, &dataset, &write)?;
        } else {
            sums.write(&self.output, &dataset, &write, &session.progress)?;
        }
        let size = fs_err::metadata(&self.output)?.len();
        if session.common.json {
            let perplexity = importance
                .perplexity
                .as_ref()
                .map(|p| json!({ "value": p.value, "stderr": p.stderr, "tokens": p.tokens }));
            session.print_json(&json!({
                "file": self.output.display().to_string(), "file_bytes": size, "tensors": sums.tensors.len(),
                "chunks": sums.n_chunks, "chunk_tokens": sums.chunk_size, "perplexity": perplexity,
            }))?;
        } else if !session.common.quiet {
            session.print(|out| {
                writeln!(
                    out,
                    "{}: {} tensors, {} chunks of {}, {}",
                    self.output.display(),
                    sums.tensors.len(),
                    sums.n_chunks,
                    sums.chunk_size,
                    text::bytes(size)
                )?;
                match &importance.perplexity {
                    Some(p) => writeln!(out, "perplexity {:.4} ± {:.4}", p.value, p.stderr),
                    None => Ok(()),
                }
            })?;
        }
        Ok(Exit::Done)
    }
}
