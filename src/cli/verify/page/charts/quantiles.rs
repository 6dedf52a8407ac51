//! Chart of KLD by quantile of the tokens, a line for each file.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::super::data::FileData;
use super::Drawn;
use super::axis::{MarkedAxis, decade_marks, decades, power_label};
use super::canvas::{Canvas, Ink};
use super::grid::Grid;

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

pub(super) fn draw(canvas: &mut Canvas<'_>, lines: &[Line]) -> Drawn {
    let Some(names) = lines.first().map(|line| line.names.clone()) else { return Ok(()) };
    let label = |line: &Line| {
        if canvas.is_narrow() { line.label.chars().take(MAX_NARROW).collect() } else { line.label.clone() }
    };
    let longest = lines.iter().map(|line| canvas.text_px(&label(line))).max().unwrap_or(0);
    let x_range = -0.2..names.len() as f64 - 0.8;
    let x_marks: Vec<f64> = (0..names.len()).map(|at| at as f64).collect();
    let values = lines.iter().flat_map(|line| &line.values).copied().filter(|&kld| kld > 1e-9);
    let y_range = decades(values.map(f64::log10));
    let y_marks = decade_marks(&y_range, if canvas.is_narrow() { 6 } else { 8 });
    canvas.y_title("KLD of a token (log scale)")?;
    let mut chart = ChartBuilder::on(&canvas.area)
        .margin_top(24)
        .margin_right(u32::try_from(longest + 14).unwrap_or(80))
        .x_label_area_size(44)
        .y_label_area_size(if canvas.is_narrow() { 54 } else { 62 })
        .build_cartesian_2d(MarkedAxis::new(x_range, x_marks), MarkedAxis::new(y_range.clone(), y_marks))?;
    let is_narrow = canvas.is_narrow();
    let name = |x: &f64| {
        let at = x.round().max(0.0) as usize;
        let name = names.get(at).copied().unwrap_or_default();
        // Narrow windows have space for every second name.
        if is_narrow && at % 2 == 1 { String::new() } else { name.to_owned() }
    };
    let grid = Grid {
        has_vertical_lines: true,
        x_title: "share of the tokens at or below",
        x_label: &name,
        y_label: &|y| power_label(*y),
    };
    grid.draw(canvas, &mut chart)?;
    let plot = chart.plotting_area();
    let (xs, ys) = plot.get_pixel_range();
    let exponent = |kld: f64| if kld > 0.0 { kld.log10().max(y_range.start) } else { y_range.start };
    let mut ends = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let ink = Ink::Series(at);
        let points: Vec<(i32, i32)> = line
            .values
            .iter()
            .enumerate()
            .map(|(x, &kld)| plot.map_coordinate(&(x as f64, exponent(kld))))
            .collect();
        for &point in &points {
            canvas.area.draw(&Circle::new(point, 3, ink.color().filled()))?;
        }
        ends.extend(points.last().map(|end| (end.1, ink, label(line))));
        canvas.area.draw(&PathElement::new(points, ink.color().stroke_width(2)))?;
    }
    let gap = (canvas.font_px() * 1.3) as i32;
    let heights = spread_out(&ends.iter().map(|end| end.0).collect::<Vec<_>>(), gap, ys.end);
    for ((_, ink, label), y) in ends.iter().zip(heights) {
        let style = canvas.text(*ink, HPos::Left, VPos::Center);
        canvas.area.draw_text(label, &style, (xs.end + 8, y))?;
    }
    Ok(())
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
