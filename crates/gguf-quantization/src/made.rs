//! Single tensors of a source in a given type, and the keys of an output: what another program's file is compared with.

use std::borrow::Cow;

use crate::class::n_matrices;
use crate::importance::{Lookup, lookup};
use crate::metadata::{Changes, output_metadata};
use crate::{QuantizePlan, Reason, RowError, TensorClass, TensorPlan, TypeChoice};
use gguf_arch::diffusion::DiffusionRules;
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, ImatrixNeed, SourceError, TensorMeta, TensorSource};
use gguf_format::{Imatrix, Metadata};

/// Tensor of a source in a type, with or without importance. Rows are made when they are read; a tensor of the same type
/// is copied.
pub struct MadeTensor<'a> {
    plan: QuantizePlan<'a>,
}

impl<'a> MadeTensor<'a> {
    /// Tensor `tensor` of the source in a type. `weights` has one weight per column, matrix after matrix; types that
    /// ignore importance ignore it. Returns `None` if the rows are not whole blocks of the type, or if the number of
    /// weights is another one.
    pub fn new(
        source: &'a dyn TensorSource,
        tensor: usize,
        ty: GgmlType,
        weights: Option<Cow<'a, [f32]>>,
        simd: SimdLevel,
    ) -> Option<Self> {
        let found = source.tensors().get(tensor)?;
        let meta = TensorMeta { ty, ..found.clone() };
        meta.n_bytes()?;
        let expected = found.shape.n_cols().checked_mul(n_matrices(found))?;
        if weights.as_ref().is_some_and(|weights| weights.len() as u64 != expected) {
            return None;
        }
        let class = TensorClass::of(&found.name);
        let reason = if ty == found.ty { Reason::Kept } else { Reason::Option };
        let choice = TypeChoice { class, ty, reason, needs_imatrix: false };
        let weights = weights.filter(|_| ty.info().imatrix != ImatrixNeed::Ignored);
        let step = TensorPlan { source: tensor, choice, weights };
        Some(Self { plan: QuantizePlan::of_one(source, meta, step, simd) })
    }

    /// Name and shape of the tensor in the source, in the type that is made.
    pub fn meta(&self) -> &TensorMeta {
        // There is always one.
        &self.plan.tensors[0]
    }

    /// Index of the tensor in the source.
    pub fn source(&self) -> usize {
        self.plan.steps[0].source
    }

    /// Makes whole rows `first_row ..`, as [`TensorSource::read_rows`]. Values that are not finite are no error.
    ///
    /// # Panics
    /// If the range is outside the tensor.
    pub fn read_rows(&self, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.plan.read_rows(0, first_row, out)
    }

    /// Tells the source that these rows will not be read again soon.
    pub fn release_rows(&self, first_row: u64, n_rows: u64) {
        self.plan.release_rows(0, first_row, n_rows);
    }

    /// Returns true if an error of [`MadeTensor::read_rows`] states that the type cannot hold the rows, in contrast to
    /// rows that could not be read.
    pub fn is_refused(error: &SourceError) -> bool {
        matches!(error.source.downcast_ref::<RowError>(), Some(RowError::Quant(_)))
    }
}

/// Importance of a tensor's columns, matrix after matrix: its own entry of the importance matrix, or that of a tensor
/// with the same input. `None` if there is neither, or if the entry has another size.
pub fn column_importance<'a>(imatrix: &'a Imatrix, tensor: &TensorMeta) -> Option<Cow<'a, [f32]>> {
    match lookup(imatrix, tensor, true) {
        Lookup::Found(found) => Some(found.weights),
        _ => None,
    }
}

/// Metadata that a quantization of a source to a file type writes without further options, apart from the keys about
/// an importance matrix. `file_type` is the value of `general.file_type`.
pub fn written_metadata(source: &Metadata, file_type: u32) -> Metadata {
    let keeps_order = DiffusionRules::of_file(source, &[]).is_ok_and(|rules| rules.is_some());
    let changes =
        Changes { file_type, keeps_order, overrides: &[], imatrix: None, pruned: None, n_layers: None };
    // Only keys that are set can be refused.
    output_metadata(source, &changes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_format::FileType;
    use gguf_testkit::memory::MemoryTensors;

    #[test]
    fn a_tensor_has_the_rows_of_a_whole_run() {
        let values: Vec<f32> = (0..512u16).map(|n| f32::from(n % 37) - 11.0).collect();
        let source = MemoryTensors::default().with_f32("blk.0.ffn_up.weight", &[2, 256], &values);
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        let options = crate::QuantizeOptions::new(FileType::Q4KM);
        let input = crate::Input::new(&source, &metadata);
        let plan = QuantizePlan::new(&input, &options, None).unwrap();
        let made = MadeTensor::new(&source, 0, plan.tensors()[0].ty, None, options.simd).unwrap();
        assert_eq!((made.meta(), made.source()), (&plan.tensors()[0], 0));
        let n_bytes = made.meta().row_bytes().unwrap() as usize;
        let [mut whole, mut own] = [vec![0; 2 * n_bytes], vec![0; n_bytes]];
        plan.read_rows(0, 0, &mut whole).unwrap();
        for row in 0..2 {
            made.read_rows(row, &mut own).unwrap();
            assert_eq!(own, whole[row as usize * n_bytes..][..n_bytes], "row {row}");
        }
        assert_eq!(written_metadata(&metadata, FileType::Q4KM.id()), *plan.metadata());
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let source = MemoryTensors::default().with_f32("a", &[1, 32], &[1.0; 32]);
        let made = |ty, weights: Option<Vec<f32>>| {
            MadeTensor::new(&source, 0, ty, weights.map(Cow::Owned), SimdLevel::detect())
        };
        assert!(made(GgmlType::Q4K, None).is_none() && made(GgmlType::Q8_0, Some(vec![1.0])).is_none());
        assert!(MadeTensor::new(&source, 1, GgmlType::Q8_0, None, SimdLevel::detect()).is_none());
        let ternary = MemoryTensors::default().with_f32("a", &[1, 256], &[1.0; 256]);
        let needy = MadeTensor::new(&ternary, 0, GgmlType::Iq2Xxs, None, SimdLevel::detect()).unwrap();
        let error = needy.read_rows(0, &mut [0; 66]).unwrap_err();
        assert!(MadeTensor::is_refused(&error), "{error}");
    }
}
