//! SHA-256 checksums of files.

use std::io;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::core::mmap::MappedFile;
use crate::core::progress::Progress;
use crate::core::text::hex;
use crate::gguf::WriteError;

/// Bytes of a step, after which an interrupt is noticed.
const STEP_BYTES: usize = 8 << 20;

/// Computes the checksums of files, several at once. Pages that were just written are not read from the disk.
pub(super) fn of_files(paths: &[PathBuf], progress: &dyn Progress) -> Result<Vec<String>, WriteError> {
    let sizes = paths.iter().map(|path| Ok(fs_err::metadata(path)?.len())).sum::<io::Result<u64>>()?;
    progress.begin("computing checksums", sizes);
    let sums = paths.par_iter().map(|path| of_file(path, progress)).collect();
    progress.end();
    sums
}

fn of_file(path: &Path, progress: &dyn Progress) -> Result<String, WriteError> {
    let file = MappedFile::open(path)?;
    let mut state = Sha256::new();
    let mut offset = 0;
    for step in file.chunks(STEP_BYTES) {
        if progress.is_cancelled() {
            return Err(WriteError::Cancelled);
        }
        state.update(step);
        file.release(offset, step.len() as u64);
        offset += step.len() as u64;
        progress.advance(step.len() as u64);
    }
    Ok(hex(&state.finalize()))
}
