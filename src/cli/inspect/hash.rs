//! `gguf-inspect hash`: prints SHA-256 of tensors, data and files.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use crate::cli::Session;
use crate::core::text::escape;
use crate::gguf::GgufFile;
use crate::inspect;

/// Arguments of `hash`.
#[derive(Debug, Args)]
pub(super) struct HashArgs {
    file: PathBuf,
}

impl HashArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let file = GgufFile::open(&self.file)?;
        let Some(hashes) = inspect::hash(&file, &session.progress)? else { bail!("interrupted") };
        if session.common.json {
            return session.print_json(&hashes);
        }
        session.print(|out| {
            for tensor in &hashes.tensors {
                writeln!(out, "{}  tensor {}", tensor.sha256, escape(tensor.name))?;
            }
            writeln!(out, "{}  data", hashes.data)?;
            for file in &hashes.files {
                writeln!(out, "{}  {}", file.sha256, file.path.display())?;
            }
            Ok(())
        })
    }
}
