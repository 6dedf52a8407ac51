//! `gguf-convert merge-lora`: merges an adapter into its base model.

use std::path::PathBuf;

use clap::Args;

use crate::cli::convert::to_gguf::ToGguf;
use crate::cli::remote::RemoteArgs;
use crate::cli::{Exit, Session, UsageError};
use crate::convert::ConvertOptions;
use crate::job::{JobInput, JobTypes};

/// Arguments of `merge-lora`.
#[derive(Debug, Args)]
pub(super) struct MergeLora {
    /// Directory of the base model: config.json, weights, tokenizer files; or a model on a server, as with hf2gguf
    base: PathBuf,
    /// Directory of the adapter: adapter_config.json, and adapter_model.safetensors or adapter_model.bin; or one on a server
    adapter: PathBuf,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    pub(super) to_gguf: ToGguf,
}

impl MergeLora {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let base = self.remote.directory(session, &self.base)?;
        let adapter = self.remote.directory(session, &self.adapter)?;
        self.remote.check_use([&base, &adapter])?;
        let adjust = |_: &JobTypes, options: &mut ConvertOptions| {
            if options.vocab_only {
                let text = "`--vocab-only` writes no tensors: there is nothing to merge into";
                return Err(UsageError(text.to_owned()).into());
            }
            Ok(())
        };
        let input = JobInput::Merged { base: base.path().to_owned(), adapter: adapter.path().to_owned() };
        // The base model's directory may contain its own conversion, so the default output is next to the adapter.
        self.to_gguf.run(session, input, adapter.output(), adjust)?;
        Ok(Exit::Done)
    }
}
