//! Grid lines of a chart, with the titles and labels of both axes.

use std::ops::Range;

use super::axis::Axis;
use super::canvas::{ABOVE, BELOW, Canvas, Frame, LEVEL, Pixel};

/// Coordinates of a chart whose grid is drawn.
pub(super) struct Grid {
    frame: Frame,
    x: Range<f64>,
    y: Range<f64>,
}

impl Grid {
    pub(super) fn draw(canvas: &mut Canvas, frame: Frame, x: Axis<'_>, y: Axis<'_>) -> Self {
        let grid = Self { frame, x: x.range, y: y.range };
        let Frame { left, top, right, bottom } = frame;
        // The title of the y axis is above its upper end, where it is easy to read.
        canvas.text("muted", (4, 2), "start", BELOW, y.title);
        let (_, height) = canvas.size();
        canvas.text("muted", (left.midpoint(right), height), "middle", ABOVE, x.title);
        for (value, label) in x.marks {
            let (at, _) = grid.at(value, grid.y.start);
            if x.has_lines {
                canvas.line("grid", 1, &[(at, bottom - 1), (at, top)]);
            }
            canvas.line("muted", 1, &[(at, bottom), (at, bottom + 5)]);
            canvas.text("muted", (at, bottom + 10), "middle", BELOW, &label);
        }
        for (value, label) in y.marks {
            let (_, at) = grid.at(grid.x.start, value);
            if y.has_lines {
                canvas.line("grid", 1, &[(left, at), (right - 1, at)]);
            }
            canvas.line("muted", 1, &[(left - 6, at), (left - 1, at)]);
            canvas.text("muted", (left - 10, at), "end", LEVEL, &label);
        }
        canvas.line("muted", 1, &[(left, bottom), (right - 1, bottom)]);
        canvas.line("muted", 1, &[(left - 1, top), (left - 1, bottom - 1)]);
        grid
    }

    /// Returns the position of a pair of values.
    pub(super) fn at(&self, x: f64, y: f64) -> Pixel {
        let Frame { left, top, right, bottom } = self.frame;
        let pixels = |range: &Range<f64>, value: f64, length: i32| {
            let share = (value - range.start) / (range.end - range.start);
            (share * f64::from(length) + 1e-3).floor() as i32
        };
        (left + pixels(&self.x, x, right - 1 - left), bottom - 1 - pixels(&self.y, y, bottom - 1 - top))
    }

    /// Returns the position on a logarithmic y axis; a value that it cannot show is on its lower end.
    pub(super) fn at_log(&self, x: f64, y: f64) -> Pixel {
        self.at(x, y.log10().max(self.y.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_reach_from_edge_to_edge() {
        let mut canvas = Canvas::new(false);
        let axis = || Axis::linear("", 0.0..10.0, 5);
        let frame = canvas.frame(62, 24, 12);
        let grid = Grid::draw(&mut canvas, frame, axis(), axis());
        let found = [grid.at_log(0.0, 0.0), grid.at(5.0, 5.0), grid.at(10.0, 10.0)];
        assert_eq!(found, [(62, 355), (504, 190), (947, 24)]);
    }
}
