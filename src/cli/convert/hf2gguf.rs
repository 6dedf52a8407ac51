//! `gguf-convert hf2gguf`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::convert::to_gguf::ToGguf;
use crate::cli::{Exit, Session};
use crate::convert::ModelSource;

/// Arguments of `hf2gguf`.
#[derive(Debug, Args)]
pub(super) struct Hf2gguf {
    /// Directory of the checkpoint: config.json, weights, tokenizer files
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
        self.to_gguf.run(session, &self.dir, adjust, |options| ModelSource::open(&self.dir, options))?;
        Ok(Exit::Done)
    }
}
