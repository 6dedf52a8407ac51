//! `gguf-inspect hash`: prints SHA-256 of tensors, data and files.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::cli::Session;
use crate::core::TensorSource;
use crate::core::text::escape;
use crate::gguf::GgufFile;
use crate::inspect;

/// Arguments of `hash`.
#[derive(Debug, Args)]
pub(super) struct HashArgs {
    /// File
    file: PathBuf,
}

impl HashArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let file = GgufFile::open(&self.file)?;
        let Some(hashes) = inspect::hash(&file, &session.progress)? else { bail!("interrupted") };
        if session.common.json {
            let tensors: Vec<_> = file
                .tensors()
                .iter()
                .zip(&hashes.tensors)
                .map(|(tensor, hash)| json!({ "name": tensor.name, "sha256": hash }))
                .collect();
            let files: Vec<_> = file
                .parts()
                .iter()
                .zip(&hashes.files)
                .map(|(part, hash)| json!({ "path": part.path().to_string_lossy(), "sha256": hash }))
                .collect();
            return session.print_json(&json!({ "tensors": tensors, "data": hashes.data, "files": files }));
        }
        session.print(|out| {
            for (tensor, hash) in file.tensors().iter().zip(&hashes.tensors) {
                writeln!(out, "{hash}  tensor {}", escape(&tensor.name))?;
            }
            writeln!(out, "{}  data", hashes.data)?;
            for (part, hash) in file.parts().iter().zip(&hashes.files) {
                writeln!(out, "{hash}  {}", part.path().display())?;
            }
            Ok(())
        })
    }
}
