//! Coverage of experts by a text. An expert without tokens has no importance, and one with few tokens a poor one.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::imatrix::statistics::layer_of;
use gguf_format::{ColumnSums, ImatrixSums};

/// Number of tokens that each expert of a layer saw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertCoverage {
    /// Layer number; null for a tensor outside the layers.
    pub layer: Option<usize>,
    /// Tensors whose experts all saw these tokens.
    pub tensors: Vec<String>,
    /// Number of experts.
    #[serde(rename = "experts")]
    pub n_experts: usize,
    /// Fewest tokens that an expert saw.
    pub min: i64,
    /// Median number of tokens.
    pub median: f64,
    /// Most tokens that an expert saw.
    pub max: i64,
    /// Experts that saw no token.
    pub unseen: Vec<usize>,
    /// Number of tokens that each expert saw.
    pub tokens: Vec<i64>,
}

impl ExpertCoverage {
    /// Describes the experts of some tensors by the tokens that each saw.
    pub fn new(layer: Option<usize>, tensors: Vec<String>, tokens: Vec<i64>) -> Self {
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        let middle = sorted.len() / 2;
        let median = match sorted.get(middle) {
            None => 0.0,
            Some(&upper) if sorted.len() % 2 == 1 => upper as f64,
            Some(&upper) => f64::midpoint(sorted[middle - 1] as f64, upper as f64),
        };
        let unseen = tokens.iter().enumerate().filter(|(_, n)| **n == 0).map(|(expert, _)| expert);
        Self {
            layer,
            tensors,
            n_experts: tokens.len(),
            min: sorted.first().copied().unwrap_or(0),
            median,
            max: sorted.last().copied().unwrap_or(0),
            unseen: unseen.collect(),
            tokens,
        }
    }
}

/// Returns the coverage of every layer with experts, in the order of layers. Tensors of a layer that saw the same
/// tokens share an entry.
pub fn expert_coverage(sums: &ImatrixSums) -> Vec<ExpertCoverage> {
    let mut layers: BTreeMap<(bool, Option<usize>), Vec<ExpertCoverage>> = BTreeMap::new();
    // The heads of latent attention are stacks, too, but each sees every token.
    let of_experts =
        |(name, columns): &(&String, &ColumnSums)| columns.counts.len() > 1 && name.contains("exps");
    for (name, columns) in sums.tensors.iter().filter(of_experts) {
        let layer = layer_of(name);
        // Tensors outside the layers come last.
        let own = layers.entry((layer.is_none(), layer)).or_default();
        match own.iter_mut().find(|coverage| coverage.tokens == columns.counts) {
            Some(coverage) => coverage.tensors.push(name.clone()),
            None => own.push(ExpertCoverage::new(layer, vec![name.clone()], columns.counts.clone())),
        }
    }
    layers.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_format::ColumnSums;

    #[test]
    fn tensors_that_saw_the_same_share_an_entry() {
        let columns =
            |counts: &[i64]| ColumnSums { n_cols: 1, sums: vec![0.0; counts.len()], counts: counts.to_vec() };
        let tensors = [
            ("blk.10.ffn_up_exps.weight", columns(&[3, 0, 9, 4])),
            ("blk.2.ffn_down_exps.weight", columns(&[5, 5, 1])),
            ("blk.10.ffn_down_exps.weight", columns(&[3, 0, 9, 4])),
            ("blk.10.attn_q.weight", columns(&[8])),
        ];
        let tensors = tensors.map(|(name, columns)| (name.to_owned(), columns)).into();
        let sums = ImatrixSums { tensors, datasets: Vec::new(), n_chunks: 1, chunk_size: 8 };
        let found = expert_coverage(&sums);
        assert_eq!(found.iter().map(|c| c.layer).collect::<Vec<_>>(), [Some(2), Some(10)]);
        assert_eq!(found[1].tensors, ["blk.10.ffn_down_exps.weight", "blk.10.ffn_up_exps.weight"]);
        assert_eq!((found[1].min, found[1].median, found[1].max), (0, 3.5, 9));
        assert_eq!((found[1].unseen.as_slice(), found[0].unseen.as_slice()), (&[1][..], &[][..]));
        assert_eq!(found[0].median, 5.0);
    }
}
