//! Cost of block types for a model's outputs, and the limits that follow.
//!
//! The limits of a file are multiples of the cost that its types have for a healthy file. The cost is measured on the
//! model itself if the baseline has weights (module `healthy`), otherwise taken from a table.

use serde::{Deserialize, Serialize};

use crate::{Divergence, Figure, Thresholds, exact};
use gguf_core::{GgmlType, TensorMeta};

/// Multiple of a healthy file's divergence above which a file is damaged. Well quantized files have 0.5 to 1.5 times
/// the divergence of the plain recipe; damage in a matrix costs more than ten times.
const MARGIN: f64 = 4.0;
/// Corresponding multiple for the share of tokens with another first choice, which grows with the root of the
/// divergence.
const MARGIN_CHOICE: f64 = 2.5;
/// Costs below these come from f32 arithmetic, not from any type.
const LEAST: Cost = Cost { kld: 5e-6, kld_99: 5e-5, ppl_increase: 5e-4, other_choice: 2e-3 };

/// Change of a model's outputs by quantization.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Mean divergence, in nats per token.
    #[serde(with = "exact::double")]
    pub kld: f64,
    /// 99th percentile of the divergence.
    #[serde(with = "exact::double")]
    pub kld_99: f64,
    /// Increase of the perplexity, as a share; never below the mean divergence.
    #[serde(with = "exact::double")]
    pub(crate) ppl_increase: f64,
    /// Share of tokens with another first choice.
    #[serde(with = "exact::double")]
    pub(crate) other_choice: f64,
}

/// Mean divergence of a small model if all matrices of its layers have the type. SmolLM2-135M-Instruct was measured in
/// Q8_0, Q5_0, Q4_0, IQ4_NL and F16; its divergence is 31 to 58 times that of the bundled model. The other rows are the
/// bundled model's times 50, limited by what a model has left to lose. Larger models suffer less.
static TYPICAL: &[(GgmlType, f64)] = &[
    (GgmlType::F32, 0.0),
    (GgmlType::F16, 2.2e-06),
    (GgmlType::Bf16, 0.00014),
    (GgmlType::Q8_0, 0.0016),
    (GgmlType::Q6K, 0.028),
    (GgmlType::Q5K, 0.07),
    (GgmlType::Q5_1, 0.075),
    (GgmlType::Q5_0, 0.098),
    (GgmlType::Q4K, 0.22),
    (GgmlType::Iq4Nl, 0.25),
    (GgmlType::Iq4Xs, 0.26),
    (GgmlType::Q4_1, 0.28),
    (GgmlType::Nvfp4, 0.35),
    (GgmlType::Q4_0, 0.38),
    (GgmlType::Mxfp4, 0.6),
    (GgmlType::Q3K, 0.96),
    (GgmlType::Iq3S, 1.4),
    (GgmlType::Iq3Xxs, 2.1),
    (GgmlType::Iq2S, 3.5),
    (GgmlType::Iq2Xs, 4.0),
    (GgmlType::Q2K, 4.0),
    (GgmlType::Iq2Xxs, 4.5),
    (GgmlType::Iq1M, 5.0),
    (GgmlType::Iq1S, 5.0),
    (GgmlType::Q2_0, 6.0),
    (GgmlType::Tq2_0, 6.0),
    (GgmlType::Tq1_0, 6.0),
    (GgmlType::Q1_0, 6.0),
];

impl Cost {
    /// Returns the measured cost.
    pub fn of(divergence: &Divergence) -> Self {
        let kld = divergence.kld.mean.max(0.0);
        Self {
            kld,
            kld_99: divergence.kld.quantiles.p99.max(0.0),
            // By chance the perplexity may stay the same or fall.
            ppl_increase: divergence.ppl_increase().value.abs().max(kld),
            other_choice: 1.0 - divergence.top1_agreement,
        }
    }

    /// Returns the cost of a model's types for a small model, weighted by the sizes of its matrices. Only matrices of
    /// layers count, if there are any: embeddings are often kept wide and say nothing about the layers.
    pub(crate) fn typical(tensors: &[TensorMeta]) -> Self {
        let is_matrix = |meta: &&TensorMeta| meta.shape.rank() > 1;
        let mut matrices: Vec<&TensorMeta> =
            tensors.iter().filter(is_matrix).filter(|meta| meta.name.starts_with("blk.")).collect();
        if matrices.is_empty() {
            matrices = tensors.iter().filter(is_matrix).collect();
        }
        let n_elems = |meta: &TensorMeta| meta.shape.n_elems() as f64;
        let total = matrices.iter().map(|meta| n_elems(meta)).sum::<f64>().max(1.0);
        Self::of_kld(matrices.iter().map(|meta| n_elems(meta) / total * Self::kld_of_type(meta.ty)).sum())
    }

    /// Derives the other figures from a mean divergence, in the ratios of SmolLM2.
    fn of_kld(kld: f64) -> Self {
        Self { kld, kld_99: 5.0 * kld, ppl_increase: kld, other_choice: (0.6 * kld.sqrt()).min(1.0) }
    }

    /// Returns the table's value for a type; without one, that of the first row with at most as many bits per weight,
    /// or the last.
    fn kld_of_type(ty: GgmlType) -> f64 {
        let exact = TYPICAL.iter().find(|row| row.0 == ty);
        let narrower = || TYPICAL.iter().find(|row| row.0.bits_per_weight() <= ty.bits_per_weight());
        exact.or_else(narrower).or(TYPICAL.last()).map_or(0.0, |row| row.1)
    }

    /// Returns the limits of a file whose healthy form has this cost.
    pub fn limits(&self) -> Thresholds {
        let other_choice = MARGIN_CHOICE * self.other_choice.max(LEAST.other_choice);
        Thresholds::default()
            .with(Figure::PplIncrease, Some(MARGIN * self.ppl_increase.max(LEAST.ppl_increase)))
            .with(Figure::Kld, Some(MARGIN * self.kld.max(LEAST.kld)))
            .with(Figure::Kld99, Some(MARGIN * self.kld_99.max(LEAST.kld_99)))
            .with(Figure::Top1, Some((1.0 - other_choice).max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::Shape;

    fn matrix(name: &str, ty: GgmlType, rows: u64) -> TensorMeta {
        TensorMeta { name: name.to_owned(), shape: Shape::new(vec![rows, 256]).unwrap(), ty }
    }

    #[test]
    fn costs_grow_as_types_narrow_and_layers_decide() {
        let of = |ty| {
            Cost::typical(&[
                matrix("blk.0.ffn_up.weight", ty, 4),
                matrix("token_embd.weight", GgmlType::F32, 4),
            ])
        };
        let types =
            [GgmlType::F32, GgmlType::Q8_0, GgmlType::Q6K, GgmlType::Q4K, GgmlType::Q3K, GgmlType::Q2K];
        let limits = types.map(|ty| of(ty).limits().of(Figure::Kld).unwrap());
        assert!(limits.is_sorted() && limits[1] < limits[3], "{limits:?}");
        let floors = types.map(|ty| -of(ty).limits().of(Figure::Top1).unwrap());
        assert!(floors.is_sorted(), "{floors:?}");
    }

    #[test]
    fn a_mixture_costs_what_its_parts_do() {
        let (a, b) = (Cost::kld_of_type(GgmlType::Q4K), Cost::kld_of_type(GgmlType::Q6K));
        let mixed = Cost::typical(&[
            matrix("blk.0.ffn_up.weight", GgmlType::Q4K, 3),
            matrix("blk.0.ffn_down.weight", GgmlType::Q6K, 1),
        ]);
        assert!((mixed.kld - (0.75 * a + 0.25 * b)).abs() < 1e-12);
    }

    #[test]
    fn every_type_of_a_file_has_a_row() {
        for ty in GgmlType::all().filter(|&ty| gguf_blocks::can_quantize(ty)) {
            assert!(TYPICAL.iter().any(|row| row.0 == ty), "{}", ty.name());
        }
    }
}
