//! Tensors that a reference copy of the file holds, too: the baseline's, quantized to the file's type and nothing else.

use rayon::prelude::*;

use crate::weights::CHUNK_ELEMS;
use crate::weights::compare::Comparison;
use crate::weights::pairs::TensorPair;
use crate::weights::tensor::TensorTally;
use gguf_blocks::{can_quantize, first_non_finite, quantize_rows};
use gguf_core::ImatrixNeed;
use gguf_core::progress::Progress;
use gguf_engine::EngineError;
use gguf_format::Imatrix;
use gguf_quantization::{MadeTensor, column_importance};

impl TensorPair<'_> {
    /// Returns true if the file's bytes are the baseline's in the file's type. Where the file was judged by the baseline,
    /// the comparison knows; where it is the finer of both, its rows are made again.
    pub(super) fn is_copy(
        &self,
        comparison: &Comparison<'_>,
        tally: &TensorTally,
        progress: &dyn Progress,
    ) -> Result<bool, EngineError> {
        let (file, baseline) = (&self.file, &self.baseline);
        let is_plain = file.factors.is_empty() && baseline.factors.is_empty();
        if !is_plain || baseline.meta().name != self.name || tally.unjudged.is_some() {
            return Ok(false);
        }
        let is_equal = tally.n_equal_blocks == tally.n_blocks && tally.n_by_detour == 0;
        let (ty, is_same) = (file.meta().ty, file.meta().ty == baseline.meta().ty);
        let is_judged = std::ptr::addr_eq(comparison.coded.source, file.source);
        if is_equal && (!ty.is_quantized() || !is_same) && (is_judged || is_same) {
            return Ok(true);
        }
        // Another result of the same comparison stays another result.
        if !is_same && (is_judged || !can_quantize(ty)) {
            return Ok(false);
        }
        self.all_rows(progress, &|first, n| self.has_copied(first, n))
    }

    /// Returns true if the file's bytes are the baseline's in the file's type with the tensor's importance.
    pub(super) fn is_made_with(
        &self,
        importance: Option<&Imatrix>,
        progress: &dyn Progress,
    ) -> Result<bool, EngineError> {
        let (file, baseline) = (&self.file, &self.baseline);
        let is_plain = file.factors.is_empty() && baseline.factors.is_empty();
        let weights = importance.filter(|_| is_plain && baseline.meta().name == self.name);
        let Some(weights) = weights.and_then(|matrix| column_importance(matrix, file.meta())) else {
            return Ok(false);
        };
        let (ty, source) = (file.meta().ty, baseline.source);
        let Some(made) = MadeTensor::new(source, baseline.tensor, ty, Some(weights), file.level) else {
            return Ok(false);
        };
        self.all_rows(progress, &|first, n| {
            let mut stored = Vec::new();
            let stored = file.bytes(first, n, &mut stored)?;
            let mut own = vec![0; stored.len()];
            match made.read_rows(first, &mut own) {
                Err(error) if MadeTensor::is_refused(&error) => Ok(false),
                read => read.map(|()| own == stored).map_err(EngineError::from),
            }
        })
    }

    /// Returns true if `is_equal` does for all rows, which it gets as their first and their number.
    fn all_rows(
        &self,
        progress: &dyn Progress,
        is_equal: &(dyn Fn(u64, u64) -> Result<bool, EngineError> + Sync),
    ) -> Result<bool, EngineError> {
        let n_rows = self.file.n_rows();
        let step = (CHUNK_ELEMS / self.file.meta().shape.n_cols().max(1)).max(1);
        let is_chunk_equal = |chunk: u64| {
            if progress.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            is_equal(chunk * step, step.min(n_rows - chunk * step))
        };
        let results = (0..n_rows.div_ceil(step)).into_par_iter().map(is_chunk_equal);
        results.try_reduce(|| true, |a, b| Ok(a && b))
    }

    fn has_copied(&self, first: u64, n: u64) -> Result<bool, EngineError> {
        let (mut stored, mut bytes, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let ty = self.file.meta().ty;
        let stored = self.file.bytes(first, n, &mut stored)?;
        if ty == self.baseline.meta().ty {
            return Ok(self.baseline.bytes(first, n, &mut bytes)? == stored);
        }
        self.baseline.floats(first, n, &mut bytes, &mut values)?;
        let n_cols = self.file.n_cols()?;
        let flat = (ty.info().imatrix == ImatrixNeed::Required).then(|| vec![1.0; n_cols]);
        let mut made = vec![0; stored.len()];
        let is_finite = first_non_finite(&values).is_none();
        let level = self.file.level;
        let is_made = quantize_rows(ty, level, n_cols, &values, flat.as_deref(), &mut made).is_ok();
        Ok(is_finite && is_made && made == stored)
    }
}
