//! Rotations of queries and keys by their positions.

use crate::engine::plan::Vector;

/// Which values of a head a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairLayout {
    /// `(2i, 2i + 1)`.
    Interleaved,
    /// `(i, i + n/2)`.
    Half,
    /// `(i, i + n/2)` of heads whose two halves were put between each other as a whole, rotated or not.
    HalfBetween,
}

/// Dimensions between which yarn goes over from extrapolation to interpolation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Last dimension that is only extrapolated.
    pub low: f64,
    /// First dimension that is only interpolated.
    pub high: f64,
}

/// Scaling of the rotation angles.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions are divided by the factor.
    Linear(f64),
    /// Interpolation by frequency: low dimensions keep their angle, high ones are divided by `factor`.
    Yarn {
        /// Divisor of interpolated angles.
        factor: f64,
        /// Where interpolation sets in.
        ramp: Ramp,
        /// Weight of the extrapolated part.
        ext_factor: f64,
    },
}

/// A rotation of q and k.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Rotated dimensions of a head, from its start.
    pub n_dims: usize,
    /// Which values are rotated together.
    pub pairs: PairLayout,
    /// Base of the frequencies.
    pub base: f64,
    /// Scaling of the angles.
    pub scaling: RopeScaling,
    /// Divisors of the angles, one per pair.
    pub factors: Option<Vector>,
    /// Divisors for long chunks.
    pub long_factors: Option<LongFactors>,
    /// Factor of cos and sin.
    pub magnitude: f64,
}

/// Divisors of the angles in chunks beyond a length.
#[derive(Clone, Debug, PartialEq)]
pub struct LongFactors {
    /// Longest chunk that does not use them.
    pub limit: usize,
    /// One per pair.
    pub factors: Vector,
}
