//! Decoding of a value range: the scale, zero point and minimum that FastLLM's loader derives from it.

use gguf_checkpoint::fastllm::Coding;
use gguf_core::numeric::roundf;

/// Interpretation of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Interpretation of FastLLM's loader.
    Loader,
    /// INT8 of the Python exporter: symmetric, 127 steps on each side.
    Symmetric,
    /// INT4_NOZERO until July 2023: the extremes of a row.
    Raw,
}

impl Reading {
    /// Computes the parameters of a range.
    pub(super) fn affine(self, min: f32, max: f32, coding: Coding) -> Affine {
        match self {
            Self::Loader => Affine::reader(min, max, if coding == Coding::Int8 { 255.0 } else { 15.0 }),
            Self::Symmetric => {
                let scale = max / 127.0;
                Affine { scale, zero: 128.0, min: -128.0 * scale }
            }
            Self::Raw => Affine { scale: (max - min) / 15.0, zero: 0.0, min },
        }
    }
}

/// Formula of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AffineForm {
    /// `scale · (code - zero)`
    Zero,
    /// `min + scale · code`
    Minimum,
}

impl AffineForm {
    pub(super) fn of(coding: Coding) -> Self {
        match coding {
            Coding::Int8 | Coding::Int4 => Self::Zero,
            Coding::Int4NoZero | Coding::Int4Group => Self::Minimum,
        }
    }
}

/// Parameters of a range: an element is `scale · (code - zero)`, or `min + scale · code`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    pub(super) scale: f32,
    pub(super) zero: f32,
    pub(super) min: f32,
}

impl Affine {
    /// The range whose values are all zero.
    pub(super) const NOTHING: Self = Self { scale: 0.0, zero: 0.0, min: 0.0 };

    /// Computes the parameters as FastLLM's loader does; `top` is the greatest code.
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

    pub(super) fn value(self, code: u8, form: AffineForm) -> f32 {
        let code = f32::from(code);
        match form {
            AffineForm::Zero => self.scale * (code - self.zero),
            AffineForm::Minimum => (f64::from(self.min) + f64::from(self.scale) * f64::from(code)) as f32,
        }
    }
}

/// Returns true if the current writers could have written a row's range.
///
/// These ranges have a minimum a whole number of steps below zero, and a maximum that is the rest of 15 steps, within
/// half a step.
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
        // Ranges that exclude zero are widened.
        assert_eq!(Affine::reader(3.0, 15.0, 15.0), Affine { scale: 1.0, zero: 0.0, min: -0.0 });
        assert_eq!(Affine::reader(-15.0, -3.0, 15.0), Affine { scale: 1.0, zero: 15.0, min: -15.0 });
        // A range whose scale underflows to zero: no division by it may have an effect.
        assert!(Affine::reader(-1e-45, 0.0, 255.0).is_finite());
    }

    #[test]
    fn present_and_raw_ranges_are_told_apart() {
        assert!(is_present(-8.0, 7.0));
        assert!(is_present(-3.0, 12.2));
        // Half of 15 steps on each side of zero is not a whole number of steps.
        assert!(!is_present(-4.0, 4.0));
    }
}
