//! Rotary position embedding (RoPE): the rotation of queries and keys by their positions.
//!
//! Angles are computed in f64, and their cos and sin are rounded to f32 once: the error at position 4096 stays below
//! one unit in the last place of the table.

use crate::exec::weights::{Vector, WeightReader};
use crate::{EngineError, Result};
use gguf_core::simd::{SimdLevel, VectorLoop};

/// Pairs of values of a head that are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairLayout {
    /// Neighbouring values, `(2i, 2i + 1)`.
    Interleaved,
    /// Values of the two halves, `(i, i + n/2)` (NeoX).
    Half,
    /// Values of the two halves, `(i, i + n/2)`, of heads whose halves are interleaved as a whole, including dimensions
    /// that are not rotated.
    HalfBetween,
}

/// Dimensions between which YaRN changes from extrapolation to interpolation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ramp {
    /// Last dimension that is only extrapolated.
    pub low: f64,
    /// First dimension that is only interpolated.
    pub high: f64,
}

/// Scaling of the rotation angles.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    /// Positions are divided by the factor.
    Linear(f64),
    /// YaRN, interpolation by frequency: low dimensions keep their angle, those of high ones are divided by `factor`.
    Yarn {
        /// Divisor of interpolated angles.
        factor: f64,
        /// Dimensions between which interpolation sets in.
        ramp: Ramp,
        /// Weight of the extrapolated part.
        ext_factor: f64,
    },
}

/// Rotation of queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    /// Number of rotated dimensions of a head, from its start.
    pub n_dims: usize,
    /// Values that are rotated together.
    pub pairs: PairLayout,
    /// Base of the frequencies.
    pub base: f64,
    /// Scaling of the angles.
    pub scaling: RopeScaling,
    /// Divisors of the angles, one per pair.
    pub factors: Option<Vector>,
    /// Divisors for long chunks.
    pub(crate) long_factors: Option<LongFactors>,
    /// Factor of cos and sin.
    pub magnitude: f64,
}

/// Divisors of the angles in chunks beyond a length.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LongFactors {
    /// Longest chunk that does not use them.
    pub limit: usize,
    /// Divisors, one per pair.
    pub factors: Vector,
}

/// cos and sin of every position and pair.
#[derive(Clone, Debug)]
pub(crate) struct RopeTable {
    half: usize,
    pairs: PairLayout,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Returns the divisors of the rotated pairs. A file may store those of a whole head: the others must be 1.
    fn divisors(&self, weights: WeightReader<'_>, stored: &Vector) -> Result<Vec<f32>> {
        let mut factors = weights.vector(stored)?;
        let n_pairs = self.n_dims / 2;
        if let Some(at) = factors.iter().skip(n_pairs).position(|&factor| factor != 1.0) {
            let (tensor, index) = (weights.name(stored), n_pairs + at);
            return Err(EngineError::RopeFactor { tensor, index, found: factors[index], n_pairs });
        }
        factors.truncate(n_pairs);
        Ok(factors)
    }

    /// Returns the angle per position of every pair, with the divisors `factors`.
    fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let n = self.n_dims as f64;
        (0..self.n_dims / 2)
            .map(|i| {
                let factor = factors.and_then(|f| f.get(i)).map_or(1.0, |&f| f64::from(f));
                let theta = self.base.powf(-2.0 * i as f64 / n) / factor;
                match self.scaling {
                    RopeScaling::Linear(by) => theta / by,
                    RopeScaling::Yarn { factor, ramp: Ramp { low, high }, ext_factor } => {
                        let ramp = (i as f64 - low) / (high - low).max(0.001);
                        let kept = (1.0 - ramp.clamp(0.0, 1.0)) * ext_factor;
                        theta * (kept + (1.0 - kept) / factor)
                    }
                }
            })
            .collect()
    }

    /// Returns the table for positions `0 .. n_positions`.
    pub(crate) fn table(&self, n_positions: usize, factors: Option<&[f32]>) -> RopeTable {
        let frequencies = self.frequencies(factors);
        let half = frequencies.len();
        let mut cos = Vec::with_capacity(n_positions * half);
        let mut sin = Vec::with_capacity(n_positions * half);
        for position in 0..n_positions {
            for frequency in &frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push((c * self.magnitude) as f32);
                sin.push((s * self.magnitude) as f32);
            }
        }
        RopeTable { half, pairs: self.pairs, cos, sin }
    }
}

#[derive(Debug)]
struct LongTable {
    /// Longest chunk that uses the short table.
    limit: usize,
    table: RopeTable,
}

/// Tables of the rotations of a plan.
#[derive(Debug, Default)]
pub(crate) struct RopeTables {
    short: Vec<RopeTable>,
    long: Vec<Option<LongTable>>,
}

impl RopeTables {
    /// Computes the tables of `ropes` for positions `0 .. n_positions`.
    pub(crate) fn new(ropes: &[Rope], weights: WeightReader<'_>, n_positions: usize) -> Result<Self> {
        let mut tables = Self::default();
        for rope in ropes {
            let factors = rope.factors.as_ref().map(|factors| rope.divisors(weights, factors)).transpose()?;
            tables.short.push(rope.table(n_positions, factors.as_deref()));
            tables.long.push(match &rope.long_factors {
                Some(LongFactors { limit, factors }) if n_positions > *limit => {
                    let factors = rope.divisors(weights, factors)?;
                    Some(LongTable { limit: *limit, table: rope.table(n_positions, Some(&factors)) })
                }
                Some(_) | None => None,
            });
        }
        Ok(tables)
    }

    /// Returns the layout of the pairs of rotation `rope`.
    pub(crate) fn pairs(&self, rope: usize) -> PairLayout {
        self.short[rope].pairs
    }

    /// Returns the table of rotation `rope` for a chunk of this length.
    pub(crate) fn table(&self, rope: usize, chunk_len: usize) -> &RopeTable {
        match &self.long[rope] {
            Some(long) if chunk_len > long.limit => &long.table,
            Some(_) | None => &self.short[rope],
        }
    }
}

impl RopeTable {
    /// Rotates all heads of a row, `dk` wide each, in place. `position` must be below the table's length.
    pub(crate) fn rotate(&self, level: SimdLevel, row: &mut [f32], dk: usize, position: usize) {
        let angles = position * self.half..(position + 1) * self.half;
        let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
        level.vectorize(Rotation { pairs: self.pairs, cos, sin, row, dk });
    }
}

impl RopeTable {
    /// Turns gradients of rotated heads into those of the heads: the rotation by the opposite angle.
    pub(crate) fn rotate_back(&self, level: SimdLevel, row: &mut [f32], dk: usize, position: usize) {
        let angles = position * self.half..(position + 1) * self.half;
        let sin: Vec<f32> = self.sin[angles.clone()].iter().map(|sin| -sin).collect();
        level.vectorize(Rotation { pairs: self.pairs, cos: &self.cos[angles], sin: &sin, row, dk });
    }
}

/// Rotation of one token's heads.
struct Rotation<'a> {
    pairs: PairLayout,
    cos: &'a [f32],
    sin: &'a [f32],
    row: &'a mut [f32],
    dk: usize,
}

impl VectorLoop for Rotation<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { pairs, cos, sin, row, dk } = self;
        for head in row.chunks_mut(dk) {
            match pairs {
                PairLayout::Interleaved => {
                    for ((pair, &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                        let [a, b] = *pair;
                        *pair = [a * c - b * s, a * s + b * c];
                    }
                }
                PairLayout::HalfBetween => {
                    let half = head.len() / 2;
                    let place = |at: usize| if at < half { 2 * at } else { 2 * (at - half) + 1 };
                    for (at, (&c, &s)) in cos.iter().zip(sin).enumerate() {
                        let (first, second) = (place(at), place(at + cos.len()));
                        let (a, b) = (head[first], head[second]);
                        (head[first], head[second]) = (a * c - b * s, a * s + b * c);
                    }
                }
                PairLayout::Half => {
                    let (first, rest) = head.split_at_mut(cos.len());
                    for (((a, b), &c), &s) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
                        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(pairs: PairLayout, scaling: RopeScaling) -> Rope {
        let (factors, long_factors) = (None, None);
        Rope { n_dims: 8, pairs, base: 10000.0, scaling, factors, long_factors, magnitude: 1.0 }
    }

    #[test]
    fn the_two_layouts_are_permutations_of_each_other_and_leave_the_tail() {
        let head: Vec<f32> = (0..10).map(|i| i as f32 - 3.5).collect();
        let mut pairs = head.clone();
        rope(PairLayout::Interleaved, RopeScaling::Linear(1.0)).table(6, None).rotate(
            SimdLevel::detect(),
            &mut pairs,
            10,
            5,
        );
        let mut halves: Vec<f32> = [0, 2, 4, 6, 1, 3, 5, 7, 8, 9].map(|i| head[i]).to_vec();
        rope(PairLayout::Half, RopeScaling::Linear(1.0)).table(6, None).rotate(
            SimdLevel::detect(),
            &mut halves,
            10,
            5,
        );
        let back: Vec<f32> = [0, 4, 1, 5, 2, 6, 3, 7, 8, 9].map(|i| halves[i]).to_vec();
        assert_eq!(pairs, back);
        assert_eq!(pairs[8..], head[8..]);
        let angle = 5.0f64;
        let expected = f64::from(head[0]) * angle.cos() - f64::from(head[1]) * angle.sin();
        assert!((f64::from(pairs[0]) - expected).abs() < 1e-6);
    }

    #[test]
    fn halves_that_stand_between_each_other_rotate_as_they_did_before() {
        let plain: Vec<f32> = (0..12).map(|i| i as f32 * 0.7 - 3.0).collect();
        let mut halves = plain.clone();
        let level = SimdLevel::detect();
        rope(PairLayout::Half, RopeScaling::Linear(1.0)).table(6, None).rotate(level, &mut halves, 12, 5);
        let between = |x: &[f32]| (0..12).map(|at| x[at / 2 + at % 2 * 6]).collect::<Vec<f32>>();
        let mut found = between(&plain);
        rope(PairLayout::HalfBetween, RopeScaling::Linear(1.0))
            .table(6, None)
            .rotate(level, &mut found, 12, 5);
        assert_eq!(found, between(&halves));
    }

    #[test]
    fn scalings_at_their_ends() {
        let plain = rope(PairLayout::Interleaved, RopeScaling::Linear(1.0)).frequencies(None);
        let linear = rope(PairLayout::Interleaved, RopeScaling::Linear(4.0)).frequencies(None);
        let yarn = RopeScaling::Yarn { factor: 4.0, ramp: Ramp { low: 1.0, high: 2.0 }, ext_factor: 1.0 };
        let yarn = rope(PairLayout::Interleaved, yarn).frequencies(None);
        assert_eq!(yarn[..2], plain[..2], "high frequencies are kept");
        assert_eq!(yarn[2..], linear[2..], "low ones are interpolated");
        let divided = rope(PairLayout::Interleaved, RopeScaling::Linear(1.0)).frequencies(Some(&[2.0; 4]));
        assert_eq!(divided[3], plain[3] / 2.0);
    }
}
