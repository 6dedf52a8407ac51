//! Arithmetic on lanes: plain loops that are compiled for every level of vector instructions. Nothing here is fused, so
//! all levels give the same bits.

use crate::panel::{LANES, Lane};
use gguf_blocks::states::StateForm;

/// Constant whose addition and subtraction rounds to the nearest integer, halves to even, below 2^22.
const ROUND: f32 = 12_582_912.0;

/// Codes of a type, prepared for the choice of the nearest.
#[derive(Clone, Copy)]
pub(crate) struct NearestCodes {
    lowest: f32,
    highest: f32,
    is_linear: bool,
    /// Differences of successive values of a code book, and the limits from which the next value is nearer.
    rises: [f32; 15],
    from: [f32; 15],
}

impl NearestCodes {
    pub(crate) fn new(form: &StateForm) -> Self {
        let value = |index: usize| form.values.get(index).map_or(f32::INFINITY, |value| f32::from(*value));
        let (lowest, highest) = (value(0), value(form.values.len() - 1));
        let rises = std::array::from_fn(|index| value(index + 1) - value(index));
        let from = std::array::from_fn(|index| f32::midpoint(value(index), value(index + 1)));
        let is_linear = (highest - lowest) as usize + 1 == form.values.len();
        Self { lowest, highest, is_linear, rises, from }
    }

    /// Returns the value nearest to `x`; any for NaN.
    #[inline(always)]
    fn nearest(&self, x: &Lane) -> Lane {
        let mut out = [self.lowest; LANES];
        if self.is_linear {
            for (out, x) in out.iter_mut().zip(x) {
                *out = round(limit(*x, self.lowest, self.highest));
            }
        } else {
            for (rise, from) in self.rises.iter().zip(&self.from) {
                for r in 0..LANES {
                    out[r] += if x[r] >= *from { *rise } else { 0.0 };
                }
            }
        }
        out
    }

    /// Returns the values whose elements are nearest to the targets.
    #[inline(always)]
    pub(crate) fn nearest_values(&self, targets: &Lane, step: &Lane, off: &Lane) -> Lane {
        let mut x = *targets;
        for r in 0..LANES {
            // A group without a scale has no codes to choose from.
            let inverse = if step[r] == 0.0 { 0.0 } else { 1.0 / step[r] };
            x[r] = (x[r] + off[r]) * inverse;
        }
        self.nearest(&x)
    }
}

/// Limits `x` to a range; returns the lower limit for NaN.
#[inline(always)]
pub(crate) fn limit(x: f32, lowest: f32, highest: f32) -> f32 {
    let x = if x > lowest { x } else { lowest };
    if x < highest { x } else { highest }
}

/// Returns the nearest integer to a number between ±2^22, half to even.
#[inline(always)]
pub(crate) fn round(x: f32) -> f32 {
    (x + ROUND) - ROUND
}

#[inline(always)]
pub(crate) fn times(a: &Lane, b: &Lane) -> Lane {
    let mut out = *a;
    for r in 0..LANES {
        out[r] *= b[r];
    }
    out
}

#[inline(always)]
pub(crate) fn add_product(out: &mut Lane, a: &Lane, b: &Lane) {
    for r in 0..LANES {
        out[r] += a[r] * b[r];
    }
}

#[inline(always)]
pub(crate) fn take_product(out: &mut Lane, a: &Lane, b: &Lane) {
    for r in 0..LANES {
        out[r] -= a[r] * b[r];
    }
}

#[inline(always)]
pub(crate) fn add_scaled(out: &mut Lane, a: &Lane, factor: f32) {
    for r in 0..LANES {
        out[r] += a[r] * factor;
    }
}

#[inline(always)]
pub(crate) fn errors(w: &Lane, v: &Lane, step: &Lane, off: &Lane) -> Lane {
    let mut out = *w;
    for r in 0..LANES {
        out[r] -= step[r] * v[r] - off[r];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_blocks::states::FORMS;

    #[test]
    fn the_nearest_value_is_the_nearest() {
        for form in FORMS {
            let codes = NearestCodes::new(form);
            for at in -3000i16..3000 {
                let x = f32::from(at) / 20.0 + 0.01;
                let distance = |value: f32| (value - x).abs();
                let found = codes.nearest(&[x; LANES])[LANES - 1];
                let best = form.values.iter().map(|value| distance(f32::from(*value))).fold(1e9, f32::min);
                assert_eq!(distance(found), best, "{}: {found} for {x}", form.ty);
            }
            for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
                let found = codes.nearest(&[x; LANES])[0];
                assert!(form.values.iter().any(|value| f32::from(*value) == found), "{}: {x}", form.ty);
            }
        }
    }
}
