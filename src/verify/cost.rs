//! What a block type costs a model's outputs, and the limits that follow.
//!
//! A file's limits are a multiple of what its types cost a healthy file: measured on the model itself where its baseline
//! has weights ([`crate::verify::healthy`]), else taken from a table.

use crate::core::{GgmlType, TensorMeta};
use crate::verify::{Divergence, Thresholds};

/// A file whose divergence is this many times that of a healthy one is damaged. Files that are quantized well lie between
/// a half and 1.5 times the plain recipe; what is lost in a damaged matrix costs more than ten times.
const MARGIN: f64 = 4.0;
/// The same for the share of tokens with another first choice, which grows as the root of the divergence.
const MARGIN_CHOICE: f64 = 2.5;
/// Costs below these are the arithmetic of f32, not of any type.
const LEAST: Cost = Cost { kld: 5e-6, kld_99: 5e-5, ppl_increase: 5e-4, other_choice: 2e-3 };

/// How far quantization moves a model from what it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Mean divergence.
    pub kld: f64,
    /// 99th percentile of the divergence.
    pub kld_99: f64,
    /// Increase of the perplexity, as a share; never below the mean divergence.
    pub ppl_increase: f64,
    /// Share of tokens with another first choice.
    pub other_choice: f64,
}

/// What each type costs where all matrices of the layers have it: SmolLM2-135M-Instruct, made F32, 4096 tokens of the
/// bundled text, no importance matrix (a flat one where a type demands it). Larger models suffer less.
static TYPICAL: &[(GgmlType, Cost)] = &[];

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
        let mut sum = Self { kld: 0.0, kld_99: 0.0, ppl_increase: 0.0, other_choice: 0.0 };
        for meta in matrices {
            let (share, cost) = (n_elems(meta) / total, Self::of_type(meta.ty));
            sum.kld += share * cost.kld;
            sum.kld_99 += share * cost.kld_99;
            sum.ppl_increase += share * cost.ppl_increase;
            sum.other_choice += share * cost.other_choice;
        }
        sum
    }

    /// The table's row of a type; of a type without a row the one of the next narrower type, else the last.
    fn of_type(ty: GgmlType) -> Self {
        let exact = TYPICAL.iter().find(|row| row.0 == ty);
        let narrower = |row: &&(GgmlType, Self)| row.0.bits_per_weight() <= ty.bits_per_weight();
        let row = exact.or_else(|| {
            let rows = TYPICAL.iter().filter(narrower);
            rows.max_by(|a, b| a.0.bits_per_weight().total_cmp(&b.0.bits_per_weight()))
        });
        row.or(TYPICAL.last()).map_or(LEAST, |row| row.1)
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
        let (a, b) = (Cost::of_type(GgmlType::Q4K), Cost::of_type(GgmlType::Q6K));
        let mixed = Cost::typical(&[
            matrix("blk.0.ffn_up.weight", GgmlType::Q4K, 3),
            matrix("blk.0.ffn_down.weight", GgmlType::Q6K, 1),
        ]);
        assert!((mixed.kld - (0.75 * a.kld + 0.25 * b.kld)).abs() < 1e-12);
    }

    #[test]
    fn every_type_of_a_file_has_a_row() {
        for ty in GgmlType::all().filter(|&ty| crate::quant::can_quantize(ty)) {
            assert!(TYPICAL.iter().any(|row| row.0 == ty), "{}", ty.name());
        }
    }
}
