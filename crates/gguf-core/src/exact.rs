//! Sums that do not depend on the order of their terms: the rounding error of a sum is kept next to it.
//!
//! # Exactness
//! A square of an `f32` is exact in an `f64`, and the error of a sum of two `f64` is an `f64`. Sum and rest together
//! hold a total to about 2⁻¹⁰⁰ of itself, however it was split into batches, groups and parts. The sum alone is the
//! total rounded once. Two ways of splitting give the same `f32` in a file, unless the total lies within 2⁻¹⁰⁰ of
//! itself of the midpoint between two `f32`.

/// Returns a sum and its rounding error (Knuth 1969; Møller 1965). Together they are `a + b`, unless the sum overflows.
#[inline]
pub fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// Adds sums and their rounding errors to other sums and theirs; missing rounding errors count as zero.
pub fn add_exactly(sums: &mut [f64], rests: &mut [f64], more: &[f64], more_rests: &[f64]) {
    for (at, ((sum, rest), &x)) in sums.iter_mut().zip(rests).zip(more).enumerate() {
        let (total, lost) = two_sum(*sum, x);
        (*sum, *rest) = two_sum(total, *rest + more_rests.get(at).copied().unwrap_or(0.0) + lost);
    }
}

/// Returns a sum plus its rest as the nearest `f32`, ties to even. The total is rounded only once.
pub fn rounded(sum: f64, rest: f64) -> f32 {
    let (sum, rest) = two_sum(sum, rest);
    if rest == 0.0 || !rest.is_finite() {
        return sum as f32;
    }
    // After rounding to odd, only the second rounding, to fewer digits, counts (Boldo, Melquiond 2008).
    let odd = match (sum.to_bits() & 1, rest > 0.0) {
        (0, true) => sum.next_up(),
        (0, false) => sum.next_down(),
        _ => sum,
    };
    odd as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_rounded_once() {
        let (one, half) = (1.0f64, f64::from(f32::EPSILON) / 2.0);
        // Just above and below the midpoint of two neighbours, by less than an f64 can express.
        assert_eq!(rounded(one + half, 1e-40), 1.0 + f32::EPSILON);
        assert_eq!(rounded(one + half, -1e-40), 1.0);
        assert_eq!(rounded(one + half, 0.0), 1.0, "ties to even");
        assert_eq!(rounded(one + 3.0 * half, -1e-40), 1.0 + f32::EPSILON);
        assert_eq!(rounded(-one - half, -1e-40), -1.0 - f32::EPSILON);
        // A rest may be the larger of the two.
        assert_eq!(rounded(1e-30, 2.0), 2.0);
        assert_eq!(rounded(0.0, 0.0).to_bits(), 0);
        assert!(rounded(f64::INFINITY, 0.0).is_infinite() && !rounded(f64::INFINITY, f64::NAN).is_finite());
        assert!(rounded(f64::NAN, 1.0).is_nan());
        // Below the normal numbers there are fewer digits.
        let tiny = f64::from(f32::from_bits(3));
        assert_eq!(rounded(tiny, tiny / 6.0).to_bits(), 4, "three and a half to even");
        assert_eq!(rounded(tiny, (tiny / 6.0).next_down()).to_bits(), 3);
    }

    /// Sums of squares of numbers of very different size, cut in several ways.
    #[test]
    fn sums_are_the_same_however_they_are_cut() {
        let number = |seed: u64| {
            let x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed << 7);
            let x = f32::from_bits(0x3000_0000 + (x >> 37) as u32);
            f64::from(x) * f64::from(x)
        };
        let numbers: Vec<f64> = (1..5000).map(number).collect();
        let sum = |cut: usize, is_backward: bool| {
            let mut parts: Vec<([f64; 1], [f64; 1])> = numbers
                .chunks(cut)
                .map(|part| {
                    let (mut sum, mut rest) = ([0.0], [0.0]);
                    for &x in part {
                        add_exactly(&mut sum, &mut rest, &[x], &[]);
                    }
                    (sum, rest)
                })
                .collect();
            if is_backward {
                parts.reverse();
            }
            let (mut sum, mut rest) = ([0.0], [0.0]);
            for (more, rests) in &parts {
                add_exactly(&mut sum, &mut rest, more, rests);
            }
            sum[0].to_bits()
        };
        let whole = sum(5000, false);
        for cut in [1, 2, 7, 256, 1000, 4999] {
            assert_eq!((sum(cut, false), sum(cut, true)), (whole, whole), "{cut}");
        }
        // Plain sums depend on the order.
        let plain: f64 = numbers.iter().sum();
        let backward: f64 = numbers.iter().rev().sum();
        assert!(plain.to_bits() != whole || backward.to_bits() != whole);
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let (mut sum, mut rest) = ([f64::INFINITY, 1.0], [0.0; 2]);
        add_exactly(&mut sum, &mut rest, &[1.0, f64::NAN], &[]);
        assert!(sum.iter().all(|sum| !sum.is_finite()), "{sum:?}");
    }
}
