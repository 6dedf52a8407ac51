//! `gguf-inspect split`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::Session;
use crate::cli::inspect::written;
use crate::gguf::{SplitSpec, SplitStyle};
use crate::inspect;

/// Tensors in a part where nothing else is said, as in llama.cpp.
const DEFAULT_MAX_TENSORS: u64 = 128;

/// Arguments of `split`.
#[derive(Debug, Args)]
pub(super) struct SplitArgs {
    /// File
    file: PathBuf,
    /// Name of the parts: PATH-00001-of-00003.gguf
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// Most bytes of tensors in a part, with K, M or G; powers of 1000 here, as in llama.cpp
    #[arg(long, value_name = "SIZE", value_parser = crate::cli::split_size)]
    split_max_size: Option<u64>,
    /// Most tensors in a part [default: 128, if no size is given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with = "split_max_size")]
    split_max_tensors: Option<u64>,
    /// Keep tensors out of the first part
    #[arg(long)]
    no_tensor_first_split: bool,
    /// Leave out the key gguf_foundry.split.id, by which mixed parts are found: the bytes of llama-gguf-split
    #[arg(long)]
    no_split_id: bool,
}

impl SplitArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let default = self.split_max_size.is_none().then_some(DEFAULT_MAX_TENSORS);
        let spec = SplitSpec {
            max_bytes: self.split_max_size,
            max_tensors: self.split_max_tensors.or(default),
            no_tensor_first: self.no_tensor_first_split,
            style: SplitStyle::GgufSplit,
            without_id: self.no_split_id,
            share: None,
        };
        let options = written::write_options(session);
        let report = inspect::split_file(&self.file, &self.output, spec, &options, &session.progress)?;
        written::print(&report, session)
    }
}
