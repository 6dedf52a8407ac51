//! Functions of one value, written so that the compiler vectorizes the loops around them at every SIMD level with the
//! same bits: no fused multiply-add, no table.

#![expect(clippy::inline_always, reason = "the functions must be compiled inside the level's function")]

/// Returns `e^x` to 2 units in the last place; zero below -87, infinity above 88.7, NaN for NaN.
///
/// Range reduction by `ln 2` in two parts and the degree-5 polynomial of Cephes' `expf`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let clamped = if x > 88.7 { 88.7 } else { x };
    let clamped = if clamped < -87.0 { -87.0 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = clamped - n * 0.693_359_375;
    let r = r - n * -2.121_944_4e-4;
    let mut p = 1.987_569_15e-4;
    p = p * r + 1.398_199_950_7e-3;
    p = p * r + 8.333_451_907_3e-3;
    p = p * r + 4.166_579_589_4e-2;
    p = p * r + 1.666_666_545_9e-1;
    p = p * r + 5.000_000_120_1e-1;
    let y = p * (r * r) + r + 1.0;
    let scaled = f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23));
    let low = if x < -87.0 { 0.0 } else { scaled };
    let high = if x > 88.7 { f32::INFINITY } else { low };
    if x.is_nan() { x } else { high }
}

/// Returns the logistic function.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
pub(crate) fn exp_m1(x: f32) -> f32 {
    // Near zero the difference loses digits: the series to x^6 is exact to f32 below 0.1.
    let series = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0 + x / 720.0)))));
    if x.abs() < 0.1 { series } else { exp(x) - 1.0 }
}

/// Returns the hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // Near zero the quotient loses digits: the series of tanh to x^7 is exact to f32 below 0.1.
    let x2 = x * x;
    let series = x * (1.0 + x2 * (-1.0 / 3.0 + x2 * (2.0 / 15.0 + x2 * (-17.0 / 315.0))));
    let e = exp(-2.0 * x.abs());
    let quotient = ((1.0 - e) / (1.0 + e)).copysign(x);
    if x.abs() < 0.1 { series } else { quotient }
}

/// Returns `erf` to 1.2e-7, by the Chebyshev fit of `erfc` in Numerical Recipes (6.2), in f64.
#[inline(always)]
pub(crate) fn erf(x: f64) -> f64 {
    const C: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let z = x.abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let poly = C.iter().fold(0.0, |sum, c| sum * t + c);
    let erfc = t * (-z * z + poly).exp();
    (1.0 - erfc).copysign(x)
}

#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    // 0.5 x (1 + tanh z) is x times the logistic function of 2z.
    x * sigmoid(2.0 * 0.797_884_560_8 * x * (1.0 + 0.044_715 * x * x))
}

/// Returns GELU by the error function.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2) as f32)
}

/// Returns `max(x, 0)`.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if x > 0.0 { x } else { 0.0 }
}

/// Returns `ln(1 + y)` for y from 0 to 1, to 2 units in the last place: `2 artanh(y / (2 + y))` as a series, whose
/// argument is at most a third.
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

/// Returns `ln(1 + e^x)`.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + ln_1p(exp(-x.abs()))
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
