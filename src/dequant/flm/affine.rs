//! What a value range means: the scale, zero point and minimum that FastLLM's loader derives from it.

use crate::core::numeric::roundf;

/// A range made ready: an element is `scale · (code - zero)`, or `min + scale · code`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    pub(super) scale: f32,
    pub(super) zero: f32,
    pub(super) min: f32,
}

impl Affine {
    /// Everything is zero.
    pub(super) const NOTHING: Self = Self { scale: 0.0, zero: 0.0, min: 0.0 };

    /// FastLLM's loader.
    pub(super) fn reader(min: f32, max: f32, top: f32) -> Self {
        let (min, max) = (if min < 0.0 { min } else { 0.0 }, if max > 0.0 { max } else { 0.0 });
        if min == 0.0 && max == 0.0 {
            return Self::NOTHING;
        }
        let scale = (max - min) / top;
        let zero = 0.0 - min / scale;
        let zero = if zero < 0.0 {
            0.0
        } else if zero > top {
            top
        } else {
            roundf(zero)
        };
        Self { scale, zero, min: -scale * zero }
    }

    pub(super) fn is_finite(self) -> bool {
        self.scale.is_finite() && self.zero.is_finite() && self.min.is_finite()
    }

    /// The value of a code; `has_min` says which of the two forms the tensor has.
    pub(super) fn value(self, code: u8, has_min: bool) -> f32 {
        let code = f32::from(code);
        if has_min {
            (f64::from(self.min) + f64::from(self.scale) * f64::from(code)) as f32
        } else {
            self.scale * (code - self.zero)
        }
    }
}

/// `min` and `max` of a stored pair.
pub(super) fn split(pair: [u8; 8]) -> (f32, f32) {
    let [a, b, c, d, e, f, g, h] = pair;
    (f32::from_le_bytes([a, b, c, d]), f32::from_le_bytes([e, f, g, h]))
}

/// Whether the present writers could have written a row's range: the minimum is a whole number of steps below zero, and
/// the maximum what is left of 15 steps up to half a step.
pub(super) fn is_present(min: f32, max: f32) -> bool {
    let ratio = f64::from(max) / -f64::from(min);
    (1..=15).map(f64::from).any(|zero| (15.0 - ratio * zero - zero).abs() <= 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symmetric_range_has_its_zero_beside_the_middle() {
        let affine = Affine::reader(-1.0, 1.0, 255.0);
        assert_eq!(affine.scale, 2.0 / 255.0);
        assert!(affine.zero == 128.0 || affine.zero == 127.0, "{affine:?}");
        assert_eq!(Affine::reader(0.0, 0.0, 15.0), Affine::NOTHING);
        // Ranges beside zero are widened.
        assert_eq!(Affine::reader(3.0, 15.0, 15.0), Affine { scale: 1.0, zero: 0.0, min: -0.0 });
        assert_eq!(Affine::reader(-15.0, -3.0, 15.0), Affine { scale: 1.0, zero: 15.0, min: -15.0 });
        // A range whose scale vanishes: no division by it may show.
        assert!(Affine::reader(-1e-45, 0.0, 255.0).is_finite());
    }

    #[test]
    fn present_and_raw_ranges_are_told_apart() {
        assert!(is_present(-8.0, 7.0));
        assert!(is_present(-3.0, 12.2));
        // Half of 15 steps on each side of zero is no whole number of them.
        assert!(!is_present(-4.0, 4.0));
    }
}
