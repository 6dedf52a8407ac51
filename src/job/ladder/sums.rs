//! SHA-256 checksums of files.

use std::io;
use std::path::PathBuf;

use rayon::prelude::*;

use crate::core::progress::Progress;
use crate::core::sha256::{DigestError, sha256_of_file};
use crate::gguf::WriteError;

/// Computes the checksums of files, several at once.
pub(super) fn of_files(paths: &[PathBuf], progress: &dyn Progress) -> Result<Vec<String>, WriteError> {
    let sizes = paths.iter().map(|path| Ok(fs_err::metadata(path)?.len())).sum::<io::Result<u64>>()?;
    progress.begin("computing checksums", sizes);
    let sum = |path: &PathBuf| {
        sha256_of_file(path, progress).map_err(|error| match error {
            DigestError::Io(error) => WriteError::Io(error),
            DigestError::Cancelled { .. } => WriteError::Cancelled,
        })
    };
    let sums = paths.par_iter().map(sum).collect();
    progress.end();
    sums
}
