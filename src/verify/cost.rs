//! What a block type costs a model's outputs, and the limits that follow.
//!
//! A file's limits are a multiple of what its types cost a healthy file: measured on the model itself where its baseline
//! has weights ([`crate::verify::healthy`]), else taken from a table.

use serde::{Deserialize, Serialize};

use crate::core::{GgmlType, TensorMeta};
use crate::verify::{Divergence, Thresholds, exact};

/// A file whose divergence is this many times that of a healthy one is damaged. Files that are quantized well lie between
/// a half and 1.5 times the plain recipe; what is lost in a damaged matrix costs more than ten times.
const MARGIN: f64 = 4.0;
/// The same for the share of tokens with another first choice, which grows as the root of the divergence.
const MARGIN_CHOICE: f64 = 2.5;
/// Costs below these are the arithmetic of f32, not of any type.
const LEAST: Cost = Cost { kld: 5e-6, kld_99: 5e-5, ppl_increase: 5e-4, other_choice: 2e-3 };

/// How far quantization moves a model from what it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Mean divergence.
    #[serde(with = "exact::double")]
    pub kld: f64,
    /// 99th percentile of the divergence.
    #[serde(with = "exact::double")]
    pub kld_99: f64,
    /// Increase of the perplexity, as a share; never below the mean divergence.
    #[serde(with = "exact::double")]
    pub ppl_increase: f64,
    /// Share of tokens with another first choice.
    #[serde(with = "exact::double")]
    pub other_choice: f64,
}

/// The mean divergence that each type costs a small model where all matrices of its layers have it. SmolLM2-135M-Instruct
/// was measured in Q8_0, Q5_0, Q4_0, IQ4_NL and F16; it suffers 31 to 58 times as much as the bundled model, from which the
/// other rows are taken, times 50, up to what little a model has left to lose. Larger models suffer less.
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
    /// The cost that was measured.
    #[must_use]
    pub fn of(divergence: &Divergence) -> Self {
        let kld = divergence.mean.value.max(0.0);
        Self {
            kld,
            kld_99: divergence.p99.max(0.0),
            // Chance may leave the perplexity where it was, or lower it.
            ppl_increase: divergence.delta_ln_ppl.value.exp_m1().abs().max(kld),
            other_choice: 1.0 - divergence.top1_agreement,
        }
    }

    /// What the types of a model's matrices cost a small model, by the shares of their weights. Embeddings are often kept
    /// wide and say nothing about the layers, so those count alone, if there are any.
    #[must_use]
    pub fn typical(tensors: &[TensorMeta]) -> Self {
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

    /// The other figures that go with a mean divergence, as those of SmolLM2 do.
    fn of_kld(kld: f64) -> Self {
        Self { kld, kld_99: 5.0 * kld, ppl_increase: kld, other_choice: (0.6 * kld.sqrt()).min(1.0) }
    }

    /// The table's row of a type; of a type without a row that of the next narrower one, else the last.
    fn kld_of_type(ty: GgmlType) -> f64 {
        let exact = TYPICAL.iter().find(|row| row.0 == ty);
        let narrower = || TYPICAL.iter().find(|row| row.0.bits_per_weight() <= ty.bits_per_weight());
        exact.or_else(narrower).or(TYPICAL.last()).map_or(0.0, |row| row.1)
    }

    /// The limits of a file whose healthy form has this cost.
    #[must_use]
    pub fn limits(&self) -> Thresholds {
        let other_choice = MARGIN_CHOICE * self.other_choice.max(LEAST.other_choice);
        Thresholds {
            max_ppl: None,
            max_ppl_increase: Some(MARGIN * self.ppl_increase.max(LEAST.ppl_increase)),
            max_kld: Some(MARGIN * self.kld.max(LEAST.kld)),
            max_kld_99: Some(MARGIN * self.kld_99.max(LEAST.kld_99)),
            min_top1: Some((1.0 - other_choice).max(0.0)),
            ..Thresholds::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Shape;

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
        let limits = types.map(|ty| of(ty).limits().max_kld.unwrap());
        assert!(limits.is_sorted() && limits[1] < limits[3], "{limits:?}");
        let floors = types.map(|ty| -of(ty).limits().min_top1.unwrap());
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
        for ty in GgmlType::all().filter(|&ty| crate::quant::can_quantize(ty)) {
            assert!(TYPICAL.iter().any(|row| row.0 == ty), "{}", ty.name());
        }
    }
}
