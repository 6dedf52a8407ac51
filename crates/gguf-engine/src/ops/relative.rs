//! Relative position bias (T5, Raffel et al. 2020, section 2.1): a learned value per head and bucket of distances,
//! added to the scores unscaled.

use crate::exec::weights::{Vector, WeightReader};
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::{MaskKind, Positions};

/// Learned bias of the scores by head and bucket of relative positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RelativeBias {
    /// Table with a row per bucket and a value per head.
    pub table: Vector,
    pub(crate) n_buckets: usize,
    /// Distance from which on all keys share the last bucket.
    pub(crate) max_distance: usize,
    /// True if half of the buckets are for later keys.
    pub(crate) both_sides: bool,
}

impl RelativeBias {
    /// Returns the bucket of a key at `offset` from the query. Near distances have one bucket each; larger distances
    /// share buckets of growing size. The operations are in f32, in the order of the reference (T5 of transformers).
    fn bucket(&self, offset: isize) -> usize {
        let distance = offset.unsigned_abs();
        let (n, first, distance) = match (self.both_sides, offset > 0) {
            (true, true) => (self.n_buckets / 2, self.n_buckets / 2, distance),
            (true, false) => (self.n_buckets / 2, 0, distance),
            // Later keys are not seen; the nearest bucket is used.
            (false, true) => (self.n_buckets, 0, 0),
            (false, false) => (self.n_buckets, 0, distance),
        };
        let exact = n / 2;
        if distance < exact {
            return first + distance;
        }
        let share = (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        let far = exact + (share * (n - exact) as f32) as usize;
        first + far.min(n - 1)
    }
}

/// Bias that every head adds to the scores of keys, for all distances.
pub(crate) struct RelativeScores {
    /// Biases, `[heads, 2 n - 1]`; that of the query's own position is in the middle.
    values: Vec<f32>,
    n_positions: usize,
}

impl RelativeScores {
    /// Computes the biases for sequences of at most `n_positions` tokens.
    pub(crate) fn new(plan: &RelativeBias, weights: WeightReader<'_>, n_positions: usize) -> Result<Self> {
        let table = weights.vector(&plan.table)?;
        let n_heads = table.len() / plan.n_buckets;
        let middle = n_positions.saturating_sub(1) as isize;
        let buckets: Vec<usize> = (-middle..=middle).map(|offset| plan.bucket(offset)).collect();
        let of_head = |head: usize| buckets.iter().map(move |bucket| bucket * n_heads + head);
        let values = (0..n_heads).flat_map(of_head).map(|at| table[at]).collect();
        Ok(Self { values, n_positions })
    }

    /// Returns the biases of a head for the query at `position` and `n_keys` keys from `first_key` on.
    pub(crate) fn row(&self, head: usize, position: usize, first_key: usize, n_keys: usize) -> &[f32] {
        let width = 2 * self.n_positions - 1;
        let start = head * width + self.n_positions - 1 + first_key - position;
        &self.values[start..start + n_keys]
    }
}

const BUCKETS: &str = "attention.relative_buckets_count";
/// Distance from which on all keys share a bucket, if the file does not declare one.
const MAX_DISTANCE: usize = 128;
const FARTHEST: &str = "attention.relative_max_distance";

impl RelativeBias {
    /// Resolves the relative position bias: the layer's own table, else that of the first layer.
    pub(crate) fn resolve(
        b: &mut Resolver<'_>,
        layer: usize,
        n_heads: usize,
    ) -> Result<Option<RelativeBias>> {
        if b.built.positions != Positions::Relative {
            return Ok(None);
        }
        let n_buckets = b.keys.need_count(BUCKETS)?;
        if n_buckets < 4 || n_buckets % 2 != 0 {
            return Err(b.keys.unknown(BUCKETS, "an even number of 4 or more", &n_buckets.to_string()));
        }
        let both_sides = b.built.sight == MaskKind::Full;
        let max_distance = b.keys.count(FARTHEST)?.unwrap_or(MAX_DISTANCE);
        // The nearest distances have one bucket each: the maximum must be larger than those.
        if max_distance <= n_buckets / if both_sides { 4 } else { 2 } {
            let expected = "more than half of the buckets of a side";
            return Err(b.keys.unknown(FARTHEST, expected, &max_distance.to_string()));
        }
        let len = n_buckets.saturating_mul(n_heads);
        let own = b.tensors.vector(&format!("blk.{layer}.attn_rel_b.weight"), len)?;
        let first = "blk.0.attn_rel_b.weight";
        let table = match own {
            Some(own) => own,
            None => b
                .tensors
                .vector(first, len)?
                .ok_or_else(|| EngineError::MissingTensor { tensor: first.to_owned() })?,
        };
        Ok(Some(RelativeBias { table, n_buckets, max_distance, both_sides }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::weights::Vector;

    fn plan(both_sides: bool) -> RelativeBias {
        let table = Vector { tensor: 0, first: 0, len: 64 };
        RelativeBias { table, n_buckets: 32, max_distance: 128, both_sides }
    }

    #[test]
    fn buckets_are_those_of_the_reference() {
        // transformers 4.57.6, `T5Attention._relative_position_bucket` with 32 buckets up to a distance of 128.
        let offsets = [-200, -128, -127, -60, -33, -16, -9, -8, -7, -1, 0, 1, 7, 8, 15, 16, 64, 127, 200];
        let both = [15, 15, 15, 13, 12, 10, 8, 8, 7, 1, 0, 17, 23, 24, 25, 26, 30, 31, 31];
        let causal = [31, 31, 31, 26, 21, 16, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (at, &offset) in offsets.iter().enumerate() {
            assert_eq!(plan(true).bucket(offset), both[at], "{offset}");
            assert_eq!(plan(false).bucket(offset), causal[at], "{offset}");
        }
    }

    #[test]
    fn rows_begin_at_the_first_key() {
        let scores = RelativeScores { values: (0..10).map(|x| x as f32).collect(), n_positions: 3 };
        // Elements 5 to 9 belong to the second head and offsets -2 to 2.
        assert_eq!(scores.row(1, 2, 1, 2), [6.0, 7.0]);
        assert_eq!(scores.row(1, 0, 0, 3), [7.0, 8.0, 9.0]);
    }
}
