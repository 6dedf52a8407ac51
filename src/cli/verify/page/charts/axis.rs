//! Positions and labels of axis marks.

use std::ops::Range;

pub(super) struct Axis<'a> {
    pub(super) title: &'a str,
    pub(super) range: Range<f64>,
    /// Positions, each with its label.
    pub(super) marks: Vec<(f64, String)>,
    /// True if there is a grid line at each mark.
    pub(super) has_lines: bool,
}

impl<'a> Axis<'a> {
    /// Axis with about `n` marks at round numbers.
    pub(super) fn linear(title: &'a str, range: Range<f64>, n: usize) -> Self {
        let marks = round_marks(&range, n);
        let step = marks.get(1).zip(marks.first()).map_or(1.0, |(b, a)| b - a);
        let marks = marks.into_iter().map(|mark| (mark, plain_label(mark, step))).collect();
        Self { title, range, marks, has_lines: true }
    }

    /// Logarithmic axis; the range is one of exponents of ten.
    pub(super) fn logarithmic(title: &'a str, range: Range<f64>, n: usize) -> Self {
        let marks = decade_marks(&range, n).into_iter().map(|mark| (mark, power_label(mark))).collect();
        Self { title, range, marks, has_lines: true }
    }
}

/// Returns about `n` round numbers inside a range.
fn round_marks(range: &Range<f64>, n: usize) -> Vec<f64> {
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
fn decade_marks(range: &Range<f64>, n: usize) -> Vec<f64> {
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
fn power_label(exponent: f64) -> String {
    let value = 10f64.powf(exponent);
    if !(-4.1..=4.1).contains(&exponent) {
        return format!("{value:.0e}");
    }
    let digits = (-exponent.floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

/// Label with only as many decimals as `step` needs.
fn plain_label(value: f64, step: f64) -> String {
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
