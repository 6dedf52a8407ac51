//! Logarithms, written like the functions of `math`: the compiler vectorizes them, at every level with the same bits.

#![expect(clippy::inline_always, reason = "the functions must be compiled inside the level's function")]

use crate::engine::exec::math;

/// `ln(1 + y)` for y from 0 to 1, to 2 units in the last place: `2 artanh(y / (2 + y))` as a series, whose argument is at
/// most a third.
#[inline(always)]
fn ln_1p(y: f32) -> f32 {
    let z = y / (2.0 + y);
    let z2 = z * z;
    let mut p = 1.0 / 15.0;
    p = p * z2 + 1.0 / 13.0;
    p = p * z2 + 1.0 / 11.0;
    p = p * z2 + 1.0 / 9.0;
    p = p * z2 + 1.0 / 7.0;
    p = p * z2 + 1.0 / 5.0;
    p = p * z2 + 1.0 / 3.0;
    2.0 * (z + z * (z2 * p))
}

/// `ln(1 + e^x)`.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + ln_1p(math::exp(-x.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_equals_its_formula() {
        for i in -8600..=8600 {
            let x = i as f32 / 100.0;
            let expected = f64::from(-x.abs()).exp().ln_1p() + f64::from(x.max(0.0));
            assert!((f64::from(softplus(x)) / expected - 1.0).abs() < 5e-7, "{x}");
        }
        assert_eq!((softplus(-200.0), softplus(200.0)), (0.0, 200.0));
        assert!(softplus(f32::NAN).is_nan());
    }
}
