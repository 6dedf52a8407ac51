//! Model that files were made of: its tensors, its importance matrix, and its identity.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::convert::ConvertOptions;
use crate::core::progress::Progress;
use crate::core::sha256::{sha256_of_file, sha256_of_tensor};
use crate::core::simd::SimdLevel;
use crate::core::text::hex;
use crate::core::{GgmlType, ImatrixNeed, TensorMeta, TensorSource};
use crate::gguf::{Imatrix, Metadata, WriteError};
use crate::job::input::OpenedInput;
use crate::job::recipe::of_digest;
use crate::job::recipe::trial::Way;
use crate::job::run::JobRun;
use crate::job::{Events, Guard, Job, JobInput, JobOutput, JobTypes, OutputPath, Result};
use crate::quantize::{FileType, MadeTensor, column_importance};

/// Source of quantized files: a GGUF file or a checkpoint, with the importance matrix that may have been used.
pub struct RecipeSource {
    input: JobInput,
    convert: ConvertOptions,
    opened: OpenedInput,
    matrix: Option<SourceMatrix>,
    by_name: HashMap<String, usize>,
    pub(super) simd: SimdLevel,
    digest: OnceLock<String>,
}

/// Importance matrix of a source.
struct SourceMatrix {
    path: PathBuf,
    matrix: Imatrix,
    sha256: String,
}

impl RecipeSource {
    /// Opens a model. A checkpoint is converted as a quantization converts it, when rows are read.
    pub fn open(
        input: JobInput,
        convert: ConvertOptions,
        imatrix: Option<PathBuf>,
        events: &dyn Events,
    ) -> Result<Self> {
        let simd = convert.level;
        let path = OutputPath::Directory(PathBuf::new());
        let types = JobTypes::mixture(FileType::Q4KM);
        let job = Job { convert, ..Job::new(input, types, JobOutput::at(path)) };
        let opened = JobRun::new(&job, events, false).open()?;
        let matrix = imatrix.map(|path| -> Result<SourceMatrix> {
            let matrix = Imatrix::open(&path)?;
            let sha256 = sha256_of_file(&path, &crate::core::progress::Silent).map_err(of_digest)?;
            Ok(SourceMatrix { path, matrix, sha256 })
        });
        let by_name = opened.source().tensors().iter().enumerate();
        let by_name = by_name.map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        let Job { input, convert, .. } = job;
        Ok(Self {
            input,
            convert,
            opened,
            matrix: matrix.transpose()?,
            by_name,
            simd,
            digest: OnceLock::new(),
        })
    }

    /// Registers everything that is read.
    pub(super) fn guard(&self, guard: &mut Guard<'_>) -> Result<()> {
        self.input.guard(guard, &self.opened, &self.convert)?;
        guard.read_all("the importance matrix", self.matrix.iter().map(|matrix| &matrix.path))?;
        Ok(())
    }

    /// Tensors of the model, as they are in a converted file.
    pub fn tensors(&self) -> &[TensorMeta] {
        self.opened.source().tensors()
    }

    pub(super) fn rows(&self) -> &dyn TensorSource {
        self.opened.source()
    }

    pub(super) fn metadata(&self) -> &Metadata {
        self.opened.metadata()
    }

    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Bytes before the tensor data, if the source is a GGUF file.
    pub(super) fn header(&self) -> Option<&[u8]> {
        let file = self.opened.file()?;
        let part = file.parts().first()?;
        let n_bytes = usize::try_from(part.header().data_offset).ok()?;
        part.bytes().get(..n_bytes.min(part.bytes().len()))
    }

    pub(super) fn has_matrix(&self) -> bool {
        self.matrix.is_some()
    }

    /// Digest of the importance matrix.
    pub(super) fn matrix_sha256(&self) -> Option<&str> {
        self.matrix.as_ref().map(|matrix| matrix.sha256.as_str())
    }

    /// Returns a tensor of the source in a type; `None` if there is no such way to make it.
    pub(super) fn made(&self, tensor: usize, ty: GgmlType, way: Way) -> Option<MadeTensor<'_>> {
        let found = self.tensors().get(tensor)?;
        let weights = match way {
            Way::Plain => None,
            Way::Importance if found.ty == ty || ty.info().imatrix == ImatrixNeed::Ignored => return None,
            Way::Importance => Some(column_importance(&self.matrix.as_ref()?.matrix, found)?),
        };
        MadeTensor::new(self.rows(), tensor, ty, weights, self.simd)
    }

    /// Identity of the model: SHA-256 over names, types, shapes and digests of all tensors, in hexadecimal. It does not
    /// depend on paths and keys. All tensors are read once, at the first call.
    pub fn digest(&self, progress: &dyn Progress) -> Result<&str> {
        if let Some(digest) = self.digest.get() {
            return Ok(digest);
        }
        let tensors = self.tensors();
        progress.begin("identifying the source", tensors.iter().filter_map(TensorMeta::n_bytes).sum());
        let digest = |at| {
            let stopped = |error| {
                if progress.is_cancelled() { WriteError::Cancelled } else { WriteError::Source(error) }
            };
            sha256_of_tensor(self.rows(), at, progress).map_err(stopped)
        };
        let digests: Result<Vec<_>, WriteError> = (0..tensors.len()).into_par_iter().map(digest).collect();
        progress.end();
        let mut state = Sha256::new();
        for (tensor, digest) in tensors.iter().zip(digests?) {
            state.update((tensor.name.len() as u64).to_le_bytes());
            state.update(&tensor.name);
            state.update(tensor.ty.id().to_le_bytes());
            state.update((tensor.shape.rank() as u64).to_le_bytes());
            tensor.shape.dims().iter().for_each(|dim| state.update(dim.to_le_bytes()));
            state.update(digest);
        }
        Ok(self.digest.get_or_init(|| hex(&state.finalize())))
    }
}
