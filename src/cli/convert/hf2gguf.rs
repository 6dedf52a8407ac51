//! `gguf-convert hf2gguf`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::convert::to_gguf::ToGguf;
use crate::cli::{Exit, Session};
use crate::convert::ModelSource;

/// Arguments of `hf2gguf`.
#[derive(Debug, Args)]
pub(super) struct Hf2gguf {
    /// Directory of the checkpoint: config.json, weights, tokenizer files; or a PyTorch file in one
    dir: PathBuf,
    /// Leave out multi-token-prediction blocks
    #[arg(long)]
    no_mtp: bool,
    #[command(flatten)]
    to_gguf: ToGguf,
}

impl Hf2gguf {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let adjust = |options: &mut crate::convert::ConvertOptions| options.no_mtp = self.no_mtp;
        // The output of a single file goes beside it.
        let dir = match self.dir.parent() {
            Some(parent) if self.dir.is_file() && parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) if self.dir.is_file() => parent,
            _ => &self.dir,
        };
        self.to_gguf.run(session, dir, adjust, |options| ModelSource::open(&self.dir, options))?;
        Ok(Exit::Done)
    }
}
