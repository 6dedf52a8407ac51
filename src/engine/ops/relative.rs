//! Positions as a bias of the scores (T5, Raffel et al. 2020, section 2.1): a learned value per head and bucket of
//! distances, added to the scores unscaled.

use crate::engine::EngineError;
use crate::engine::plan::RelativeBias;
use crate::engine::run::weights::WeightReader;

impl RelativeBias {
    /// The bucket of a key `offset` positions behind the query: those near by have one each, those farther off share
    /// them in growing spans. The order of the operations, in f32, is that of the reference.
    fn bucket(&self, offset: isize) -> usize {
        let distance = offset.unsigned_abs();
        let (n, first, distance) = match (self.both_sides, offset > 0) {
            (true, true) => (self.n_buckets / 2, self.n_buckets / 2, distance),
            (true, false) => (self.n_buckets / 2, 0, distance),
            // Later keys are not seen; the nearest bucket stands in.
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

/// What every head adds to the scores of keys at all distances.
pub(crate) struct RelativeScores {
    /// `[heads, 2 n - 1]`: the query's own position is in the middle.
    values: Vec<f32>,
    n_positions: usize,
}

impl RelativeScores {
    pub(crate) fn new(
        plan: &RelativeBias,
        weights: WeightReader<'_>,
        n_positions: usize,
    ) -> Result<Self, EngineError> {
        let table = weights.vector(&plan.table)?;
        let n_heads = table.len() / plan.n_buckets;
        let middle = n_positions.saturating_sub(1) as isize;
        let buckets: Vec<usize> = (-middle..=middle).map(|offset| plan.bucket(offset)).collect();
        let of_head = |head: usize| buckets.iter().map(move |bucket| bucket * n_heads + head);
        let values = (0..n_heads).flat_map(of_head).map(|at| table[at]).collect();
        Ok(Self { values, n_positions })
    }

    /// What a head adds for the query at `position` and `n_keys` keys from `first_key` on.
    pub(crate) fn row(&self, head: usize, position: usize, first_key: usize, n_keys: usize) -> &[f32] {
        let width = 2 * self.n_positions - 1;
        let start = head * width + self.n_positions - 1 + first_key - position;
        &self.values[start..start + n_keys]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::Vector;

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
        // Of the second head 5 to 9 stand for offsets -2 to 2.
        assert_eq!(scores.row(1, 2, 1, 2), [6.0, 7.0]);
        assert_eq!(scores.row(1, 0, 0, 3), [7.0, 8.0, 9.0]);
    }
}
