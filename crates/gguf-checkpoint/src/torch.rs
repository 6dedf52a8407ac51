//! PyTorch files: `pytorch_model.bin`, `.pth`, `.pt`, `.ckpt`, in the zip container and the older one.
//!
//! A file is a pickle that describes tensors, and storages that hold their elements. The pickle is read by the
//! restricted machine in [`super::pickle`]; nothing in it is executed. Tensors are views of storages with sizes and
//! strides; several may share one.

mod error;
mod legacy;
mod set;
mod state_dict;
mod storage;
mod tensor;
mod zip_archive;

pub use error::{RecordProblem, TensorProblem, TorchError};
pub(super) use set::{TorchFiles, is_leftover};
pub use tensor::StoredTensor;

use crate::pickle::{self, Value};
use gguf_core::bytes::Endian;
use gguf_core::limits::Limits;
use gguf_core::ranged::Bytes;
use tensor::Storages;

/// Contents of a PyTorch file.
#[derive(Clone, Debug)]
pub struct TorchFile {
    /// The tensors, in the order of the dictionary.
    pub tensors: Vec<StoredTensor>,
    /// Keys of the same dictionary whose values are not tensors.
    pub others: Vec<String>,
    /// Key of the dictionary with the weights, and of dictionaries with other weights beside it.
    pub sets: Option<(String, Vec<String>)>,
}

/// Parses the tensor descriptions of a file, without reading the tensor data.
///
/// # Errors
/// [`TorchError`]: another format, a broken file, a pickle with names that weights do not need, bytes that cannot be
/// read.
pub fn parse<B: Bytes + ?Sized>(file: &B, limits: &Limits) -> Result<TorchFile, TorchError> {
    let (pickle, storages) = match form(file)? {
        TorchFormat::Zip => {
            let archive = zip_archive::read(file)?;
            let extent = archive.pickle;
            if extent.n_bytes > limits.pickle_bytes {
                let (n_bytes, limit) = (extent.n_bytes, limits.pickle_bytes);
                return Err(TorchError::PickleTooLong { n_bytes, limit });
            }
            let pickle = pickle::read(&zip_archive::bytes(file, extent)?, extent.offset)?;
            (pickle, Storages { extents: archive.storages, endian: archive.endian })
        }
        TorchFormat::Legacy => {
            let (pickle, extents) = legacy::read(file, limits)?;
            (pickle, Storages { extents, endian: Endian::Little })
        }
    };
    for value in pickle.values() {
        if let Value::Persistent(id) = value
            && pickle.items(*id).is_none()
        {
            return Err(TorchError::PersistentId { found: pickle.get(*id).kind() });
        }
    }
    let found = state_dict::find(&pickle)?;
    if found.tensors.len() as u64 > limits.n_tensors {
        return Err(TorchError::TooManyTensors { limit: limits.n_tensors });
    }
    let mut tensors = Vec::with_capacity(found.tensors.len());
    for (name, id) in &found.tensors {
        let Value::Rebuilt { by, args } = pickle.get(*id) else { continue };
        let tensor = StoredTensor::read(name, &pickle, *by, args, &storages);
        tensors.push(tensor.map_err(|problem| problem.of(name))?);
    }
    Ok(TorchFile { tensors, others: found.others, sets: found.sets })
}

enum TorchFormat {
    Zip,
    Legacy,
}

/// Detects the container by its first bytes; recognizes other common files, for the error message.
fn form<B: Bytes + ?Sized>(file: &B) -> Result<TorchFormat, TorchError> {
    const TAR_MAGIC: usize = 257;
    const HEAD_BYTES: u64 = 512;
    let head = file.get(0, file.n_bytes().min(HEAD_BYTES))?.unwrap_or_default();
    let file = &*head;
    let is_tar = file.get(TAR_MAGIC..).is_some_and(|rest| rest.starts_with(b"ustar"));
    match file {
        [] => Err(TorchError::Empty),
        _ if file.starts_with(b"PK\x03\x04") => Ok(TorchFormat::Zip),
        _ if is_tar => Err(TorchError::Tar),
        _ if file.starts_with(b"version https://git-lfs") => Err(TorchError::LfsPointer),
        [b'<', ..] => Err(TorchError::WebPage),
        [_, _, _, _, _, _, 0, 0, b'{', ..] => Err(TorchError::Safetensors),
        // A pickle of protocol 2 or later starts with 0x80, of older protocols with these opcodes; the magic number
        // inside decides.
        [0x80 | b'L' | b'(', ..] => Ok(TorchFormat::Legacy),
        _ => Err(TorchError::Magic),
    }
}
