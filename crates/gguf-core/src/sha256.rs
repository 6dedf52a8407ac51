//! SHA-256 of files and tensors.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::progress::Progress;
use crate::text::hex;
use crate::{SourceError, TensorSource, input};

/// Bytes that are read at a time; between two reads an interrupt is noticed.
const STEP_BYTES: usize = 1 << 20;

/// Bytes of a tensor that are read at a time.
const STEP_OF_TENSOR: u64 = 4 << 20;

/// Reasons why a file has no digest.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DigestError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("stopped while hashing {}", path.display())]
    Cancelled { path: PathBuf },
}

impl From<DigestError> for io::Error {
    fn from(error: DigestError) -> Self {
        match error {
            DigestError::Io(error) => error,
            DigestError::Cancelled { .. } => Self::new(io::ErrorKind::Interrupted, error.to_string()),
        }
    }
}

/// Returns the SHA-256 digest of a file in lower-case hexadecimal. Advances the progress by the bytes of the file.
pub fn sha256_of_file(path: &Path, progress: &dyn Progress) -> Result<String, DigestError> {
    let mut file = input::open(path)?;
    let (mut state, mut buffer) = (Sha256::new(), vec![0; STEP_BYTES]);
    loop {
        if progress.is_cancelled() {
            return Err(DigestError::Cancelled { path: path.to_owned() });
        }
        let n_bytes = file.read(&mut buffer)?;
        let Some(part) = buffer.get(..n_bytes).filter(|part| !part.is_empty()) else { break };
        state.update(part);
        progress.advance(n_bytes as u64);
    }
    Ok(hex(&state.finalize()))
}

/// Returns the SHA-256 digest of all bytes of a tensor. Advances the progress by them.
pub fn sha256_of_tensor(
    source: &dyn TensorSource,
    tensor: usize,
    progress: &dyn Progress,
) -> Result<Vec<u8>, SourceError> {
    let meta = &source.tensors()[tensor];
    let failed = |text: &str| SourceError { tensor: meta.name.clone(), source: text.into() };
    let mut state = Sha256::new();
    let row_bytes = meta.row_bytes().unwrap_or(0).max(1);
    let (step, all) = ((STEP_OF_TENSOR / row_bytes).max(1), meta.shape.n_rows());
    let (mut buffer, mut row) = (Vec::new(), 0);
    while row < all {
        if progress.is_cancelled() {
            return Err(failed("interrupted"));
        }
        let n_rows = step.min(all - row);
        let n_bytes = n_rows.saturating_mul(row_bytes);
        if let Some(bytes) = source.borrow_rows(tensor, row, n_rows) {
            state.update(bytes);
        } else {
            buffer.resize(
                usize::try_from(n_bytes).map_err(|_| failed("a row is too long for this system"))?,
                0,
            );
            source.read_rows(tensor, row, &mut buffer)?;
            state.update(&buffer);
        }
        source.release_rows(tensor, row, n_rows);
        progress.advance(n_bytes);
        row += n_rows;
    }
    Ok(state.finalize().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::{CancelFlag, Silent};

    #[test]
    fn digests_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs_err::write(&path, b"abc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_of_file(&path, &Silent).unwrap(), abc);
        fs_err::write(&path, vec![b'a'; 3_000_000]).unwrap();
        assert_eq!(sha256_of_file(&path, &Silent).unwrap(), hex(&Sha256::digest(vec![b'a'; 3_000_000])));
        let stop = CancelFlag::default();
        stop.cancel();
        let stopped = sha256_of_file(&path, &stop).unwrap_err();
        assert!(matches!(&stopped, DigestError::Cancelled { path } if path.ends_with("file")));
        assert_eq!(io::Error::from(stopped).kind(), io::ErrorKind::Interrupted);
        assert!(sha256_of_file(&dir.path().join("none"), &Silent).is_err());
        assert!(sha256_of_file(dir.path(), &Silent).is_err());
    }
}
