//! Positions and labels of axis marks.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;

/// Axis with marks at given positions: plotters' own key points have no labels that can be set for floats.
pub(super) struct MarkedAxis {
    inner: RangedCoordf64,
    marks: Vec<f64>,
}

impl MarkedAxis {
    pub(super) fn new(range: Range<f64>, marks: Vec<f64>) -> Self {
        Self { inner: range.into(), marks }
    }
}

impl Ranged for MarkedAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.inner.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.inner.range()
    }
}

impl ValueFormatter<f64> for MarkedAxis {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

/// Returns about `n` round numbers inside a range.
pub(super) fn round_marks(range: &Range<f64>, n: usize) -> Vec<f64> {
    let span = range.end - range.start;
    if !(span.is_finite() && span > 0.0) {
        return Vec::new();
    }
    let rough = span / n.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&step| step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let first = (range.start / step).ceil();
    (0..=4 * n)
        .map(|at| (first + at as f64) * step)
        .take_while(|&mark| mark <= range.end + 1e-9 * span)
        .collect()
}

/// Range of a logarithmic axis that covers all `exponents` of ten: at least one decade, plus a margin of 8 %.
pub(super) fn decades(exponents: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let lowest = exponents.clone().fold(f64::INFINITY, f64::min);
    let highest = exponents.fold(f64::NEG_INFINITY, f64::max);
    if !(lowest.is_finite() && highest.is_finite()) {
        return -1.0..0.0;
    }
    let air = 0.08 * (highest - lowest).max(1.0);
    let middle = 0.5 * (lowest + highest);
    (lowest - air).min(middle - 0.5)..(highest + air).max(middle + 0.5)
}

/// Marks of a logarithmic axis, as exponents of ten: each power; also 2 and 5 times each if there are few powers; only
/// every second or third power if there are many.
pub(super) fn decade_marks(range: &Range<f64>, n: usize) -> Vec<f64> {
    let span = range.end - range.start;
    let (low, high) = (range.start.floor() as i32, range.end.ceil() as i32);
    let step = (span / n.max(1) as f64).ceil().max(1.0) as i32;
    let steps: &[f64] = if span * 3.0 <= n as f64 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    (low..=high)
        .filter(|exponent| exponent.rem_euclid(step) == 0)
        .flat_map(|exponent| steps.iter().map(move |m| f64::from(exponent) + m.log10()))
        .filter(|mark| range.contains(mark))
        .collect()
}

/// Label of a power of ten: `0.02`, or `1e-6` where there would be many zeros.
pub(super) fn power_label(exponent: f64) -> String {
    let value = 10f64.powf(exponent);
    if !(-4.1..=4.1).contains(&exponent) {
        return format!("{value:.0e}");
    }
    let digits = (-exponent.floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

/// Label with only as many decimals as `step` needs.
pub(super) fn plain_label(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round() {
        assert_eq!(round_marks(&(0.0..10.0), 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(round_marks(&(37.0..81.0), 5), [40.0, 50.0, 60.0, 70.0, 80.0]);
        assert!(round_marks(&(1.0..1.0), 5).is_empty() && round_marks(&(0.0..f64::NAN), 5).is_empty());
    }

    #[test]
    fn powers_are_marked_by_how_many_there_are() {
        let labels = |range: Range<f64>, n| -> Vec<String> {
            decade_marks(&range, n).into_iter().map(power_label).collect()
        };
        assert_eq!(labels(-3.1..-0.9, 7), ["0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1"]);
        assert_eq!(labels(-6.2..0.1, 7), ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]);
        assert_eq!(labels(-9.0..0.5, 5), ["1e-8", "1e-6", "0.0001", "0.01", "1"]);
        let range = decades([-2.0, -2.0].into_iter());
        assert!(range.start <= -2.5 && range.end >= -1.5, "{range:?}");
        assert_eq!(decades(std::iter::empty()), -1.0..0.0);
    }
}
