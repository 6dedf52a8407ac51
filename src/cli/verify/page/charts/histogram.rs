//! Histogram of the KLD of one file over the tokens.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::cli::verify::details::DivergenceSpread;

use super::Drawn;
use super::axis::{MarkedAxis, decade_marks, plain_label, power_label, round_marks};
use super::canvas::{Canvas, Ink};
use super::grid::Grid;

/// Quantiles that are drawn as vertical lines.
const LINES: [&str; 3] = ["50 %", "90 %", "99 %"];

pub(super) fn draw(canvas: &mut Canvas<'_>, spread: &DivergenceSpread) -> Drawn {
    let (Some(first), Some(last)) = (spread.bins.first(), spread.bins.last()) else { return Ok(()) };
    let middle = 0.5 * (first.from + last.to);
    let x_range = (first.from - 0.1).min(middle - 0.5)..(last.to + 0.1).max(middle + 0.5);
    let share = |tokens: usize| 100.0 * tokens as f64 / spread.tokens.max(1) as f64;
    let highest = spread.bins.iter().map(|bin| share(bin.tokens)).fold(0.0, f64::max).max(1e-3);
    let y_range = 0.0..1.12 * highest;
    let x_marks = decade_marks(&x_range, if canvas.is_narrow() { 5 } else { 10 });
    let y_marks = round_marks(&y_range, 5);
    let step = y_marks.get(1).zip(y_marks.first()).map_or(1.0, |(b, a)| b - a);
    canvas.y_title("share of the tokens in %")?;
    let mut chart = ChartBuilder::on(&canvas.area)
        .margin_top(40)
        .margin_right(14)
        .x_label_area_size(44)
        .y_label_area_size(if canvas.is_narrow() { 38 } else { 62 })
        .build_cartesian_2d(MarkedAxis::new(x_range, x_marks), MarkedAxis::new(y_range, y_marks))?;
    let grid = Grid {
        has_vertical_lines: false,
        x_title: "KLD of a token (log scale)",
        x_label: &|x| power_label(*x),
        y_label: &|y| plain_label(*y, step),
    };
    grid.draw(canvas, &mut chart)?;
    let plot = chart.plotting_area();
    for bin in &spread.bins {
        let (left, top) = plot.map_coordinate(&(bin.from, share(bin.tokens)));
        let (right, bottom) = plot.map_coordinate(&(bin.to, 0.0));
        let bar = Rectangle::new(
            [(left + 1, top), ((right - 1).max(left + 2), bottom)],
            Ink::Accent.color().filled(),
        );
        canvas.area.draw(&bar)?;
    }
    let (_, ys) = plot.get_pixel_range();
    let mut free_from = i32::MIN;
    for name in LINES {
        let Some(kld) = spread.quantile(name).filter(|&kld| kld > 0.0) else { continue };
        if kld.log10() < first.from || kld.log10() > last.to {
            continue;
        }
        let (x, _) = plot.map_coordinate(&(kld.log10(), 0.0));
        canvas
            .area
            .draw(&PathElement::new(vec![(x, ys.start), (x, ys.end)], Ink::Text.color().stroke_width(1)))?;
        let half = canvas.text_px(name) / 2;
        // A name that would overlap another is left out; the table has it.
        if x - half >= free_from {
            let style = canvas.text(Ink::Text, HPos::Center, VPos::Bottom);
            canvas.area.draw_text(name, &style, (x, ys.start - 3))?;
            free_from = x + half + 4;
        }
    }
    Ok(())
}
