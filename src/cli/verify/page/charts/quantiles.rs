//! Chart of KLD by quantile of the tokens, a line for each file.

use super::super::data::FileData;
use super::axis::{Axis, decades};
use super::canvas::{Canvas, LEVEL, Pixel};
use super::grid::Grid;

/// Number of lines that have a colour of their own.
const N_SERIES: usize = 8;

/// Maximum number of characters of a label at the end of a line, in narrow windows.
const MAX_NARROW: usize = 10;

/// Line of one file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    label: String,
    names: Vec<&'static str>,
    /// KLD at each quantile.
    values: Vec<f64>,
}

/// Returns the lines, from the median up, of files with a divergence above rounding.
pub(super) fn lines(files: &[FileData]) -> Vec<Line> {
    let line = |file: &FileData| {
        let shown = file.spread.as_ref()?.quantiles.iter().skip(2);
        let (names, values): (Vec<_>, Vec<_>) = shown.map(|q| (q.name, q.kld)).unzip();
        let is_drawn = values.iter().all(|kld: &f64| kld.is_finite()) && values.iter().any(|&kld| kld > 1e-9);
        is_drawn.then(|| Line { label: file.label.clone(), names, values })
    };
    files.iter().filter_map(line).collect()
}

pub(super) fn draw(canvas: &mut Canvas, lines: &[Line]) {
    let Some(Line { names, .. }) = lines.first() else { return };
    let max_chars = canvas.pick(usize::MAX, MAX_NARROW);
    let label = |line: &Line| -> String { line.label.chars().take(max_chars).collect() };
    let longest = lines.iter().map(|line| canvas.text_px(&label(line))).max().unwrap_or(0);
    // Narrow windows have space for every second name.
    let every = canvas.pick(1, 2);
    let name = |at: usize, name: &str| if at.is_multiple_of(every) { name.to_owned() } else { String::new() };
    let x = Axis {
        title: "share of the tokens at or below",
        range: -0.2..names.len() as f64 - 0.8,
        marks: names.iter().enumerate().map(|(at, quantile)| (at as f64, name(at, quantile))).collect(),
        has_lines: true,
    };
    let values = lines.iter().flat_map(|line| &line.values).copied().filter(|&kld| kld > 1e-9);
    let y_range = decades(values.map(f64::log10));
    let y = Axis::logarithmic("KLD of a token (log scale)", y_range, canvas.pick(8, 6));
    let frame = canvas.frame(canvas.pick(62, 54), 24, longest + 14);
    let grid = Grid::draw(canvas, frame, x, y);
    let mut ends = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let ink = format!("series{}", at % N_SERIES);
        let points: Vec<Pixel> =
            line.values.iter().enumerate().map(|(x, &kld)| grid.at_log(x as f64, kld)).collect();
        for &point in &points {
            canvas.disc(&ink, point, 3);
        }
        canvas.line(&ink, 2, &points);
        ends.extend(points.last().map(|end| (end.1, ink, label(line))));
    }
    let gap = (canvas.font_px() * 1.3) as i32;
    let heights = spread_out(&ends.iter().map(|end| end.0).collect::<Vec<_>>(), gap, frame.bottom);
    for ((_, ink, label), y) in ends.iter().zip(heights) {
        canvas.text(ink, (frame.right + 8, y), "start", LEVEL, label);
    }
}

/// Returns heights near the wanted ones, in the same order, at least `gap` apart and none below `lowest`.
fn spread_out(wanted: &[i32], gap: i32, lowest: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&at| wanted.get(at).copied());
    let mut placed: Vec<(usize, i32)> = Vec::new();
    for at in order {
        let y = wanted.get(at).copied().unwrap_or(0);
        let least = placed.last().map_or(i32::MIN, |&(_, y)| y + gap);
        placed.push((at, y.max(least)));
    }
    // Second pass, upwards: moves labels back that the first pushed out of the picture.
    let mut most = lowest;
    for (_, y) in placed.iter_mut().rev() {
        *y = (*y).min(most);
        most = *y - gap;
    }
    placed.sort_by_key(|&(at, _)| at);
    placed.into_iter().map(|(_, y)| y).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_distance_and_their_order() {
        assert_eq!(spread_out(&[10, 100], 14, 200), [10, 100]);
        assert_eq!(spread_out(&[12, 10, 11], 14, 200), [38, 10, 24]);
        assert_eq!(spread_out(&[198, 199, 200], 10, 200), [180, 190, 200]);
    }
}
