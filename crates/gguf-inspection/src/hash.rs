//! SHA-256 of the tensors, of all tensor data, and of the files.

use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;
use sha2::{Digest, Sha256};

use gguf_core::progress::Progress;
use gguf_core::text::hex;
use gguf_core::written::as_path;
use gguf_core::{SourceError, TensorSource};
use gguf_format::{GgufFile, Part};

/// Number of bytes hashed between two progress updates.
const CHUNK_BYTES: u64 = 4 << 20;

/// Hashes of a file, in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hashes<'a> {
    /// Hash of each tensor, in file order.
    pub tensors: Vec<TensorHash<'a>>,
    /// Hash of the data of all tensors, one after the other and without padding; independent of how a model is split.
    pub data: String,
    /// Hash of each file: the parts of the model.
    pub files: Vec<FileHash<'a>>,
}

/// Hash of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorHash<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Hash of its data in little-endian form. For a little-endian file these are the bytes in the file.
    pub sha256: String,
}

/// Hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileHash<'a> {
    /// Path of the file.
    #[serde(serialize_with = "as_path")]
    pub path: &'a Path,
    /// Hash of the whole file.
    pub sha256: String,
}

/// Hashes a model; `None` if the run was cancelled.
pub fn hash<'a>(file: &'a GgufFile, progress: &dyn Progress) -> Result<Option<Hashes<'a>>, SourceError> {
    progress.begin("hashing", file.tensor_bytes() * 2 + file.file_bytes());
    let n_tensors = file.tensors().len();
    let all = || {
        let mut hasher = Sha256::new();
        for tensor in 0..n_tensors {
            update(file, tensor, &mut hasher, progress)?;
        }
        Ok(hex(&hasher.finalize()))
    };
    let each = || {
        (0..n_tensors)
            .into_par_iter()
            .map(|tensor| {
                let mut hasher = Sha256::new();
                update(file, tensor, &mut hasher, progress)?;
                Ok(TensorHash { name: &file.tensors()[tensor].name, sha256: hex(&hasher.finalize()) })
            })
            .collect::<Result<Vec<_>, SourceError>>()
    };
    let whole = || file.parts().par_iter().map(|part| hash_file(part, progress)).collect::<Vec<_>>();
    let (tensors, (data, files)) = rayon::join(each, || rayon::join(all, whole));
    progress.end();
    if progress.is_cancelled() {
        return Ok(None);
    }
    Ok(Some(Hashes { tensors: tensors?, data: data?, files }))
}

/// Feeds one tensor to the hasher, row by row, until the run is cancelled.
fn update(
    file: &GgufFile,
    tensor: usize,
    hasher: &mut Sha256,
    progress: &dyn Progress,
) -> Result<(), SourceError> {
    let meta = &file.tensors()[tensor];
    let row_bytes = meta.row_bytes().unwrap_or(0);
    if row_bytes == 0 {
        return Ok(());
    }
    let step = (CHUNK_BYTES / row_bytes).max(1);
    let n_rows = meta.shape.n_rows();
    let mut buffer = Vec::new();
    let mut first = 0;
    while first < n_rows && !progress.is_cancelled() {
        let n = step.min(n_rows - first);
        if let Some(bytes) = file.borrow_rows(tensor, first, n) {
            hasher.update(bytes);
        } else {
            // The buffer is no larger than a part of the file, so its size is bounded.
            buffer.resize((n * row_bytes) as usize, 0);
            file.read_rows(tensor, first, &mut buffer)?;
            hasher.update(&buffer);
        }
        progress.advance(n * row_bytes);
        first += n;
    }
    Ok(())
}

fn hash_file<'a>(part: &'a Part, progress: &dyn Progress) -> FileHash<'a> {
    let mut hasher = Sha256::new();
    for chunk in part.bytes().chunks(CHUNK_BYTES as usize) {
        if progress.is_cancelled() {
            break;
        }
        hasher.update(chunk);
        progress.advance(chunk.len() as u64);
    }
    FileHash { path: part.path(), sha256: hex(&hasher.finalize()) }
}
