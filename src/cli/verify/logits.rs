//! `gguf-verify logits`: logits of a model after each prompt.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::verify::engine_options;
use crate::cli::verify::model::OpenedModel;
use crate::cli::verify::prompt_files::PromptFiles;
use crate::cli::{Exit, Session};
use crate::core::output::{Destination, OutputError, OutputFile, OutputKind};
use crate::job::Guard;
use crate::verify::{VerifyError, last_logits};

#[derive(Debug, Args)]
pub(super) struct LogitsArgs {
    /// GGUF file
    model: PathBuf,
    /// Prompts
    #[arg(short = 'f', long, alias = "file", value_name = "FILE", num_args = 1.., required = true)]
    prompts: Vec<PathBuf>,
    /// Read each prompt file as one text, whatever it looks like
    #[arg(long)]
    plain_text: bool,
    /// File to write [default: standard output]
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Line of the output: logits after a prompt.
#[derive(Serialize)]
struct PromptLogits<'a> {
    /// Index of the prompt, from 0.
    prompt: usize,
    /// Logits after the last token of the prompt, one for each token of the vocabulary.
    logits: &'a [f32],
}

impl LogitsArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        // Checked before the work, not after it.
        let mut guard = Guard::new(&session.progress, false);
        guard.read_all("the prompts", &self.prompts)?;
        guard.model("the model", &self.model)?;
        if let Some(path) = &self.output {
            Destination::of(path)?;
            guard.write("-o", path, OutputKind::Logits)?;
        }
        let opened = OpenedModel::open(&self.model, &session.common)?;
        opened.must_be_language_model(&self.model)?;
        guard.read_all("the model", opened.inputs())?;
        let prompts = PromptFiles::read(&self.prompts, self.plain_text)?;
        let mut lines = LogitLines::begin(self.output.as_deref(), session)?;
        let mut failed = None;
        let options = engine_options(&session.common);
        let done = opened.with(None, |model| {
            last_logits(model, prompts.sources(), &options, &session.progress, |prompt, logits| {
                lines.add(&PromptLogits { prompt, logits }).map_err(|error| {
                    failed = Some(error);
                    VerifyError::Io(std::io::Error::other("not written"))
                })
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        done?;
        lines.finish()?;
        Ok(Exit::Done)
    }
}

/// Output lines, written as they are computed.
struct LogitLines<'a> {
    session: &'a Session,
    /// File and its length so far; standard output if `None`.
    file: Option<(OutputFile, u64)>,
    buffer: Vec<u8>,
}

impl<'a> LogitLines<'a> {
    /// Number of bytes that are buffered before a write.
    const BUFFER_BYTES: usize = 1 << 20;

    fn begin(path: Option<&Path>, session: &'a Session) -> anyhow::Result<Self> {
        let file = path.map(OutputFile::create).transpose()?.map(|file| (file, 0));
        Ok(Self { session, file, buffer: Vec::new() })
    }

    fn add(&mut self, line: &PromptLogits<'_>) -> anyhow::Result<()> {
        writeln!(self.buffer, "{}", serde_json::to_value(line)?)?;
        if self.buffer.len() >= Self::BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        match &mut self.file {
            Some((file, at)) => {
                file.write_at(*at, &self.buffer).map_err(OutputError::from)?;
                *at += self.buffer.len() as u64;
            }
            None => self.session.print_part(|out| out.write_all(&self.buffer))?,
        }
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.flush()?;
        match self.file {
            Some((file, _)) => Ok(file.commit(!self.session.common.no_sync).map_err(OutputError::from)?),
            None => Ok(()),
        }
    }
}
