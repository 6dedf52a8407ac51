//! Limits on the distance of a healthy tensor from the baseline.
//!
//! Importance matrices and rounding that feeds errors back move codes. This was measured on every type over the bundled
//! model and SmolLM2 with their own matrices, and with simulated error feedback. The limits are at least 1.5 times what
//! was measured, and below the error of meaningless codes, which is 1 and above.
//!
//! Largest ratio of a tensor, a row and a block, largest error of a block, and largest scale (the common factor of the
//! values' deviation, as a logarithm) of a tensor and a row, with an importance matrix:
//!
//! | type | own error | tensor | row | block | block error | tensor scale | row scale |
//! |---|---|---|---|---|---|---|---|
//! | Q4_0 | 0.07 to 0.14 | 1.13 | 1.82 | 5.3 | 0.50 | 0.020 | 0.031 |
//! | Q4_1 | to 0.10 | 1.00 | 1.00 | 1.4 | 0.14 | 0.005 | 0.019 |
//! | Q5_0 | 0.04 to 0.07 | 1.45 | 2.21 | 8.6 | 0.47 | 0.006 | 0.017 |
//! | Q5_1 | 0.03 to 0.05 | 1.00 | 1.00 | 1.3 | 0.06 | 0.022 | 0.027 |
//! | IQ4_NL | 0.07 to 0.11 | 1.09 | 1.26 | 4.8 | 0.33 | 0.012 | 0.036 |
//! | Q6_K | 0.015 to 0.019 | 1.30 | 1.41 | 2.7 | 0.05 | 0.004 | 0.006 |
//! | Q5_K | 0.02 to 0.04 | 1.00 | 1.21 | 2.0 | 0.04 | 0.002 | 0.009 |
//! | Q4_K | 0.02 to 0.07 | 1.02 | 1.18 | 2.7 | 0.09 | 0.001 | 0.010 |
//! | IQ4_XS | 0.07 to 0.08 | 1.09 | 1.20 | 1.7 | 0.14 | 0.013 | 0.021 |
//! | Q3_K | 0.13 to 0.16 | 1.18 | 1.25 | 1.4 | 0.23 | 0.041 | 0.051 |
//! | IQ3_S | 0.15 to 0.18 | 1.01 | 1.21 | 2.2 | 0.39 | 0.030 | 0.066 |
//! | IQ3_XXS | 0.20 to 0.23 | 1.03 | 1.14 | 1.8 | 0.41 | 0.035 | 0.082 |
//! | Q2_K | 0.26 to 0.32 | 1.08 | 1.11 | 1.4 | 0.39 | 0.088 | 0.110 |
//! | IQ2_S | 0.24 to 0.28 | 1.22 | 1.29 | 1.6 | 0.44 | 0.088 | 0.148 |
//! | IQ2_XS | 0.29 to 0.31 | 1.21 | 1.28 | 1.5 | 0.48 | 0.047 | 0.094 |
//! | IQ2_XXS | 0.34 to 0.36 | 1.19 | 1.22 | 1.5 | 0.64 | 0.063 | 0.122 |
//! | IQ1_S | 0.45 to 0.51 | 1.13 | 1.17 | 1.3 | 0.78 | 0.135 | 0.171 |
//! | IQ1_M | 0.57 to 0.59 | 1.00 | 1.00 | 1.2 | 0.71 | 0.232 | 0.290 |
//!
//! Error-feedback rounding has tensor ratios up to 1.3, row ratios up to 1.8, block ratios up to 3.5 (blocks of 32) and
//! 2.2 (blocks of 256), and block errors up to 0.55 (Q2_K). Other types ignore importance: their ratios are 1.
//!
//! The solvers of `--calibrate` also correct weights for the error of the tensors before them, so that even a fine type
//! is far from the baseline in a file of coarse ones. What they leave is the part of each row that lies along the
//! baseline's (its *gain*). On the bundled model, with 1024 and 2048 tokens, the largest relative errors, and the
//! largest distances of a gain from 1:
//!
//! | file | tensor | row | block | gain of a row | gain of a block |
//! |---|---|---|---|---|---|
//! | Q4_K_M | 0.12 | 0.14 | 0.15 | 0.02 | 0.02 |
//! | Q4_0 | 0.14 | 0.16 | 0.27 | 0.02 | 0.13 |
//! | Q2_K | 0.31 | 0.35 | 0.39 | 0.09 | 0.09 |
//! | IQ2_XXS | 0.61 | 0.68 | 0.76 | 0.16 | 0.17 |
//! | IQ1_M | 0.82 | 0.94 | 1.01 | 0.19 | 0.22 |
//! | IQ1_S | 0.91 | 1.02 | 1.15 | 0.24 | 0.30 |

use gguf_blocks::{dequantize, quantize_rows};
use gguf_core::comparison::ComparisonSums;
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, ImatrixNeed};
use gguf_format::Value;

use crate::Model;

/// Columns and rows of the sample on which a type's nominal error is measured.
const SAMPLE_COLS: usize = 256;
const SAMPLE_ROWS: usize = 16;
/// Share of the type's nominal error that is granted even if the values happen to be on its grid.
const GRANTED: f64 = 0.5;
/// Relative error above which nothing of the reference is left.
const LOST: f64 = 0.9;
/// Limit like `LOST` for a row or block of types whose nominal error is at least `COARSE`: their importance matrices
/// leave one block in a thousand with nothing of its values. From `COARSEST` on (below two bits) no error of a block is
/// too large.
const LOST_COARSE: f64 = 1.15;
const COARSE: f64 = 0.3;
const COARSEST: f64 = 0.42;
/// Share of reproduced blocks from which the other blocks need an explanation.
pub(crate) const MOSTLY_REPRODUCED: f64 = 0.9;
/// Distance that a solver is granted, as a multiple of the nominal error of the file's coarsest type.
const DRIFT: f64 = 0.75;
/// Metadata key with the name of the solver that chose the codes, and the names of those that move weights.
pub const SOLVER_KEY: &str = "gguf_foundry.quantize.solver";
const MOVING_SOLVERS: [&str; 2] = ["sequential", "tuned"];
/// Length up to which blocks follow single columns of great importance and lose the others.
const SHORT_BLOCK: usize = 64;

/// Error that a type has, and the limits that follow from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ErrorLimits {
    /// Relative rms error of the type on normally distributed values.
    pub(crate) nominal: f64,
    /// Distance at which the values that the codes stand for may be from the reference: the nominal error of its type
    /// if it is quantized itself, and `drift`.
    blur: f64,
    /// Distance that a solver may have moved the weights; 0 if none did.
    pub(crate) drift: f64,
    block_ratio: f64,
}

/// Limits on the ratio of an error to the type's own. `ROW_RATIO` and `TENSOR_RATIO` are for codes that were made with
/// an importance matrix or error feedback, `STRICT_RATIO` for the blocks of a tensor that is reproduced except for a
/// few.
const ROW_RATIO: f64 = 5.0;
const TENSOR_RATIO: f64 = 3.0;
pub(crate) const STRICT_RATIO: f64 = 1.3;
/// Limits on the distance from 1 of the gain of moved weights, in addition to `GAIN_OF_DRIFT` times the square of the
/// drift: rounding itself lowers the gain by the square of its error.
const ROW_GAIN: f64 = 0.1;
const BLOCK_GAIN: f64 = 0.3;
const GAIN_OF_DRIFT: f64 = 2.7;

impl ErrorLimits {
    pub(crate) fn new(ty: GgmlType, reference: GgmlType, drift: f64, level: SimdLevel) -> Self {
        let blur = nominal_error(reference, level).hypot(drift);
        let block_ratio = match ty.info().imatrix {
            // Only error feedback moves these.
            ImatrixNeed::Ignored => 8.0,
            _ if ty.block_elems() <= SHORT_BLOCK => 20.0,
            _ => 10.0,
        };
        Self { nominal: nominal_error(ty, level), blur, drift, block_ratio }
    }

    /// Squared error that the type is granted on values whose sum of squares is `reference`, if our own codes have the
    /// squared error `own`. `usual` is the typical sum of squares of stretches of this length.
    pub(crate) fn granted(&self, own: f64, reference: f64, usual: f64) -> f64 {
        let own = own.max((GRANTED * self.nominal).powi(2) * reference);
        own + self.blur.powi(2) * reference.max(usual)
    }

    /// Returns true if a block with these sums, and this ratio of its error to the granted one, holds other values.
    /// `usual` is the typical sum of squares of the reference in such a block.
    pub(crate) fn is_bad_block(&self, sums: &ComparisonSums, usual: f64, ratio: f64) -> bool {
        let lost = self.is_lost(sums, usual, BLOCK_GAIN, self.lost());
        beyond(ratio, self.block_ratio, lost)
    }

    pub(crate) fn is_bad_row(&self, sums: &ComparisonSums, ratio: f64) -> bool {
        beyond(ratio, ROW_RATIO, self.is_lost(sums, 0.0, ROW_GAIN, self.lost()))
    }

    pub(crate) fn is_bad_tensor(&self, sums: &ComparisonSums, ratio: f64) -> bool {
        beyond(ratio, TENSOR_RATIO, self.is_lost(sums, 0.0, ROW_GAIN, LOST))
    }

    /// Returns true if the values are not the reference's: by their error, or by their gain if they were moved.
    fn is_lost(&self, sums: &ComparisonSums, usual: f64, gain: f64, error: f64) -> bool {
        if self.drift == 0.0 {
            return exceeds(sums.relative_error(), error);
        }
        let missing = (sums.reference - sums.products).abs() / sums.reference.max(usual);
        exceeds(missing, gain + GAIN_OF_DRIFT * self.drift.powi(2))
    }

    /// Returns true if codes show that a row is scaled: the type is fine, and no solver has moved the weights.
    pub(crate) fn shows_row_scales(&self) -> bool {
        self.nominal < COARSEST && self.drift == 0.0
    }

    fn lost(&self) -> f64 {
        match self.nominal {
            nominal if nominal < COARSE => LOST,
            nominal if nominal < COARSEST => LOST_COARSE,
            _ => f64::INFINITY,
        }
    }

    /// Largest logarithm of a factor on a whole tensor that codes with this error explain; the next two are for rows
    /// and columns.
    pub(crate) fn tensor_scale(own_error: f64) -> f64 {
        0.04 + 1.1 * own_error.powi(2)
    }

    pub(crate) fn row_scale(own_error: f64) -> f64 {
        0.06 + 1.5 * own_error.powi(2)
    }

    pub(crate) fn column_scale(own_error: f64) -> f64 {
        0.3 + 4.0 * own_error.powi(2)
    }
}

/// Returns true if a figure is above its limit; NaN is above every limit.
pub(crate) fn exceeds(figure: f64, limit: f64) -> bool {
    figure.is_nan() || figure > limit
}

fn beyond(ratio: f64, limit: f64, is_lost: bool) -> bool {
    (exceeds(ratio, limit) || is_lost) && exceeds(ratio, STRICT_RATIO)
}

/// Returns the distance that the solver of a file may have moved its weights; 0 if its keys name none that does. What
/// this hides is left to the divergence ([`WeightOutcome::Moved`]).
///
/// [`WeightOutcome::Moved`]: crate::WeightOutcome::Moved
pub(crate) fn drift_of(model: &Model<'_>, level: SimdLevel) -> f64 {
    let solver = model.metadata.get(SOLVER_KEY).and_then(Value::as_str);
    if !solver.is_some_and(|name| MOVING_SOLVERS.contains(&name)) {
        return 0.0;
    }
    let used = |ty: &GgmlType| model.source.tensors().iter().any(|meta| meta.ty == *ty);
    let errors = GgmlType::all().filter(used).map(|ty| nominal_error(ty, level));
    DRIFT * errors.fold(0.0, f64::max)
}

/// Relative rms error of a type's own quantizer on normally distributed values; 0 for floats.
pub(crate) fn nominal_error(ty: GgmlType, level: SimdLevel) -> f64 {
    if !ty.is_quantized() {
        return 0.0;
    }
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    // The sum of twelve uniform numbers is close enough to a normal one.
    let normal = |_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
    let values: Vec<f32> = (0..SAMPLE_COLS * SAMPLE_ROWS).map(normal).collect();
    let mut bytes = vec![0; values.len() / ty.block_elems() * ty.block_bytes()];
    let mut back = vec![0.0; values.len()];
    let flat = [1.0; SAMPLE_COLS];
    let weights = (ty.info().imatrix == ImatrixNeed::Required).then_some(flat.as_slice());
    let done = quantize_rows(ty, level, SAMPLE_COLS, &values, weights, &mut bytes)
        .and_then(|()| dequantize(ty, level, &bytes, &mut back));
    // A type without a quantizer is granted the error of a type with four bits.
    done.map_or(0.08, |()| ComparisonSums::of(&back, &values).relative_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finer_types_are_nearer() {
        let level = SimdLevel::detect();
        let errors =
            [GgmlType::F16, GgmlType::Q8_0, GgmlType::Q6K, GgmlType::Q4K, GgmlType::Q2K, GgmlType::Iq1S]
                .map(|ty| nominal_error(ty, level));
        assert!(errors.is_sorted(), "{errors:?}");
        assert!((0.003..0.01).contains(&errors[1]) && (0.2..0.4).contains(&errors[4]), "{errors:?}");
    }

    #[test]
    fn a_lost_block_is_bad_in_every_type_and_a_coarse_one_is_not() {
        let level = SimdLevel::detect();
        for ty in GgmlType::all().filter(|ty| ty.is_quantized()) {
            let limits = ErrorLimits::new(ty, GgmlType::F32, 0.0, level);
            let is_bad = |error: f64, ratio| {
                let sums = ComparisonSums { reference: 1.0, errors: error * error, ..Default::default() };
                limits.is_bad_block(&sums, 1.0, ratio)
            };
            if limits.nominal < COARSE {
                assert!(is_bad(1.0, 1.0 / limits.nominal), "{ty}");
            }
            assert!(!is_bad(limits.nominal, 1.0), "{ty}");
            assert!(is_bad(f64::NAN, f64::NAN), "{ty}");
        }
    }

    /// What `--calibrate` leaves of a coarse type is no damage; zeros, doubled and turned values are.
    #[test]
    fn moved_weights_are_judged_by_their_gain() {
        let level = SimdLevel::detect();
        let drift = DRIFT * nominal_error(GgmlType::Q2K, level);
        let sums = |gain: f64, error: f64| ComparisonSums {
            reference: 1.0,
            values: error * error - 1.0 + 2.0 * gain,
            products: gain,
            errors: error * error,
        };
        let [still, moved] =
            [0.0, drift].map(|drift| ErrorLimits::new(GgmlType::Q6K, GgmlType::F32, drift, level));
        assert!(still.is_bad_tensor(&sums(0.93, 0.3), 15.0));
        assert!(!moved.is_bad_tensor(&sums(0.93, 0.3), 1.4) && !moved.is_bad_row(&sums(0.93, 0.35), 1.6));
        for (gain, error) in [(0.0, 1.0), (2.0, 1.0), (-1.0, 2.0)] {
            let sums = sums(gain, error);
            assert!(moved.is_bad_tensor(&sums, 1.4) && moved.is_bad_row(&sums, 1.4), "{gain}");
            assert!(moved.is_bad_block(&sums, 1.0, 1.4), "{gain}");
        }
    }
}
