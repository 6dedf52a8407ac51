//! Sizes and bits per weight, of the whole output and of each class of tensors.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use crate::{QuantizePlan, TensorClass};
use gguf_core::TensorSource;

/// Elements and bytes of a set of tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sizes {
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Number of elements of all tensors.
    #[serde(rename = "weights")]
    pub n_elems: u64,
    /// Bytes in the source.
    pub bytes_before: u64,
    /// Bytes in the output.
    pub bytes_after: u64,
    /// Bits per weight in the output.
    pub bits_per_weight: f64,
}

impl Sizes {
    /// Bits per weight in the source.
    pub fn bits_per_weight_before(&self) -> f64 {
        bits(self.bytes_before, self.n_elems)
    }

    /// Adds a tensor of `n_elems` elements.
    fn add(&mut self, n_elems: u64, bytes_before: u64, bytes_after: u64) {
        self.n_tensors += 1;
        self.n_elems = self.n_elems.saturating_add(n_elems);
        self.bytes_before = self.bytes_before.saturating_add(bytes_before);
        self.bytes_after = self.bytes_after.saturating_add(bytes_after);
        self.bits_per_weight = bits(self.bytes_after, self.n_elems);
    }
}

fn bits(n_bytes: u64, n_elems: u64) -> f64 {
    if n_elems == 0 { 0.0 } else { n_bytes as f64 * 8.0 / n_elems as f64 }
}

/// Sizes of a plan, without padding and metadata.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Sizes of all tensors.
    pub total: Sizes,
    /// Sizes of the tensors of each class: `attn_q`, `ffn_down`, …
    pub classes: BTreeMap<TensorClass, Sizes>,
}

impl QuantizePlan<'_> {
    /// Sizes of all tensors before and after quantization.
    pub fn summary(&self) -> Summary {
        self.summary_of(0..self.tensors().len())
    }

    /// Sizes before and after quantization of the tensors at these indices of the output.
    pub fn summary_of(&self, places: Range<usize>) -> Summary {
        let mut summary = Summary::default();
        let pairs = self.steps().iter().zip(self.tensors());
        for (step, after) in pairs.skip(places.start).take(places.len()) {
            let before = &self.source_tensors()[step.source];
            for sizes in [&mut summary.total, summary.classes.entry(step.choice.class).or_default()] {
                let (bytes_before, bytes_after) = (before.n_bytes(), after.n_bytes());
                sizes.add(after.shape.n_elems(), bytes_before.unwrap_or(0), bytes_after.unwrap_or(0));
            }
        }
        summary
    }
}
