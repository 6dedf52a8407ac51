//! Sizes and bits per weight, of the whole output and of each class of tensors.

use std::ops::Range;

use crate::{QuantizePlan, TensorClass};
use gguf_core::TensorSource;

/// Elements and bytes of a set of tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of tensors.
    pub n_tensors: usize,
    /// Number of elements of all tensors.
    pub n_elems: u64,
    /// Bytes in the source.
    pub bytes_before: u64,
    /// Bytes in the output.
    pub bytes_after: u64,
}

impl Sizes {
    /// Bits per weight in the output.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        bits(self.bytes_after, self.n_elems)
    }

    /// Bits per weight in the source.
    #[must_use]
    pub fn bits_per_weight_before(&self) -> f64 {
        bits(self.bytes_before, self.n_elems)
    }
}

fn bits(n_bytes: u64, n_elems: u64) -> f64 {
    if n_elems == 0 { 0.0 } else { n_bytes as f64 * 8.0 / n_elems as f64 }
}

/// Sizes of a plan, without padding and metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Sizes of all tensors.
    pub total: Sizes,
    /// Sizes of each class, in the order of the classes.
    pub classes: Vec<(TensorClass, Sizes)>,
}

impl QuantizePlan<'_> {
    /// Sizes of all tensors before and after quantization.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary_of(0..self.tensors().len())
    }

    /// Sizes before and after quantization of the tensors at these indices of the output.
    #[must_use]
    pub fn summary_of(&self, places: Range<usize>) -> Summary {
        let mut summary = Summary::default();
        let pairs = self.steps().iter().zip(self.tensors());
        for (step, after) in pairs.skip(places.start).take(places.len()) {
            let before = &self.source_tensors()[step.source];
            let class = step.choice.class;
            let at = summary.classes.iter().position(|row| row.0 == class).unwrap_or_else(|| {
                summary.classes.push((class, Sizes::default()));
                summary.classes.len() - 1
            });
            for sizes in [&mut summary.total, &mut summary.classes[at].1] {
                sizes.n_tensors += 1;
                sizes.n_elems = sizes.n_elems.saturating_add(after.shape.n_elems());
                sizes.bytes_before = sizes.bytes_before.saturating_add(before.n_bytes().unwrap_or(0));
                sizes.bytes_after = sizes.bytes_after.saturating_add(after.n_bytes().unwrap_or(0));
            }
        }
        summary.classes.sort_by_key(|row| row.0);
        summary
    }
}
