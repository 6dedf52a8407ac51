//! Inverse of the normal distribution's cumulative function.

use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};

/// Returns the value below which a standard normal variable lies with probability `p`.
///
/// # Exactness
/// Steps and roundings of `torch.distributions.Normal(0, 1).icdf` in F32. The inverse error function itself is rounded
/// correctly here; torch's may be off by a unit in the last place.
pub(super) fn normal_icdf(p: f32) -> f32 {
    inverse_erf(f64::from(2.0 * p - 1.0)) as f32 * SQRT_2 as f32
}

/// Inverse error function, by Newton's method; infinite at -1 and 1.
fn inverse_erf(y: f64) -> f64 {
    if y.abs() >= 1.0 {
        return if y.abs() > 1.0 { f64::NAN } else { y * f64::INFINITY };
    }
    // Start from Winitzki's approximation.
    let ln = (1.0 - y * y).ln();
    let a = 2.0 / (std::f64::consts::PI * 0.147) + ln / 2.0;
    let mut x = ((a * a - ln / 0.147).sqrt() - a).sqrt().copysign(y);
    for _ in 0..8 {
        x -= (erf(x) - y) / (FRAC_2_SQRT_PI * (-x * x).exp());
    }
    x
}

/// Error function as a series of positive terms, for arguments up to 5.
fn erf(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    let mut n = 1.0;
    while term.abs() > sum.abs() * 1e-18 && n < 1000.0 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::normal_icdf;

    #[test]
    fn values_equal_torch() {
        for (p, want) in [
            (0.95f32, 1.644_853_591_918_945_3_f64),
            (0.5, 0.0),
            (0.9, 1.281_551_480_293_274),
            (0.99, 2.326_348_304_748_535),
            (0.8, 0.841_621_279_716_491_7),
            (0.05, -1.644_853_591_918_945_3),
        ] {
            assert_eq!(f64::from(normal_icdf(p)), want, "{p}");
        }
        assert_eq!(normal_icdf(0.0), f32::NEG_INFINITY);
        assert_eq!(normal_icdf(1.0), f32::INFINITY);
        assert!(normal_icdf(2.0).is_nan());
    }
}
