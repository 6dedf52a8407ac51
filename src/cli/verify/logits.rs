//! `gguf-verify logits`: what a model says after each prompt.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::guard::Guard;
use crate::cli::verify::engine_options;
use crate::cli::verify::model::OpenedModel;
use crate::cli::verify::prompt_files::PromptFiles;
use crate::cli::{Exit, Session};
use crate::core::output::{Destination, OutputFile, OutputKind};
use crate::verify::last_logits;

#[derive(Debug, Args)]
pub(super) struct LogitsArgs {
    /// GGUF file
    model: PathBuf,
    /// Prompts
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    prompts: Vec<PathBuf>,
    /// Read each prompt file as one text, whatever it looks like
    #[arg(long)]
    plain_text: bool,
    /// Where to write; standard output without it
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl LogitsArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        // Before the work, not after it.
        let mut guard = Guard::new(session, false);
        guard.read_all("the prompts", &self.prompts)?;
        guard.model("the model", &self.model)?;
        if let Some(path) = &self.output {
            Destination::of(path)?;
            guard.write("-o", path, OutputKind::Logits)?;
        }
        let opened = OpenedModel::open(&self.model, &session.common)?;
        guard.read_all("the model", opened.inputs())?;
        let prompts = PromptFiles::read(&self.prompts, self.plain_text)?;
        let mut lines: Vec<u8> = Vec::new();
        let options = engine_options(&session.common);
        opened.with(None, |model| {
            last_logits(model, prompts.sources(), &options, &session.progress, |prompt, logits| {
                let line = json!({ "prompt": prompt, "logits": logits });
                writeln!(lines, "{line}")?;
                Ok(())
            })
        })?;
        match &self.output {
            Some(path) => OutputFile::write(path, &lines, !session.common.no_sync)?,
            None => session.print(|out| out.write_all(&lines))?,
        }
        Ok(Exit::Done)
    }
}
