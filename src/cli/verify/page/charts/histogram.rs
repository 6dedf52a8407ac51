//! Histogram of the KLD of one file over the tokens.

use crate::cli::verify::details::DivergenceSpread;

use super::axis::Axis;
use super::canvas::{ABOVE, Canvas};
use super::grid::Grid;

/// Quantiles that are drawn as vertical lines.
const LINES: [&str; 3] = ["50 %", "90 %", "99 %"];

pub(super) fn draw(canvas: &mut Canvas, spread: &DivergenceSpread) {
    let (Some(first), Some(last)) = (spread.bins.first(), spread.bins.last()) else { return };
    let middle = 0.5 * (first.from + last.to);
    let x_range = (first.from - 0.1).min(middle - 0.5)..(last.to + 0.1).max(middle + 0.5);
    let share = |tokens: usize| 100.0 * tokens as f64 / spread.tokens.max(1) as f64;
    let highest = spread.bins.iter().map(|bin| share(bin.tokens)).fold(0.0, f64::max).max(1e-3);
    let x = Axis::logarithmic("KLD of a token (log scale)", x_range, canvas.pick(10, 5));
    let y = Axis::linear("share of the tokens in %", 0.0..1.12 * highest, 5);
    let frame = canvas.frame(canvas.pick(62, 38), 40, 14);
    let grid = Grid::draw(canvas, frame, Axis { has_lines: false, ..x }, y);
    for bin in &spread.bins {
        let (left, top) = grid.at(bin.from, share(bin.tokens));
        let (right, bottom) = grid.at(bin.to, 0.0);
        canvas.bar("accent", (left + 1, top), ((right - 1).max(left + 2), bottom));
    }
    let mut free_from = i32::MIN;
    for name in LINES {
        let Some(kld) = spread.quantile(name).filter(|&kld| kld > 0.0) else { continue };
        if kld.log10() < first.from || kld.log10() > last.to {
            continue;
        }
        let (x, _) = grid.at(kld.log10(), 0.0);
        canvas.line("text", 1, &[(x, frame.top), (x, frame.bottom)]);
        let half = canvas.text_px(name) / 2;
        // A name that would overlap another is left out; the table has it.
        if x - half >= free_from {
            canvas.text("text", (x, frame.top - 3), "middle", ABOVE, name);
            free_from = x + half + 4;
        }
    }
}
