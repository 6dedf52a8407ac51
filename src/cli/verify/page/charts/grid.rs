//! Grid lines of a chart, with the labels of both axes.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::Drawn;
use super::axis::MarkedAxis;
use super::canvas::{Canvas, Ink};

/// Chart with marks on both axes.
pub(super) type MarkedChart<'a, 'svg> =
    ChartContext<'a, SVGBackend<'svg>, Cartesian2d<MarkedAxis, MarkedAxis>>;

/// Labels of the axes of a chart, and its grid lines.
pub(super) struct Grid<'a> {
    pub(super) has_vertical_lines: bool,
    pub(super) x_title: &'a str,
    pub(super) x_label: &'a dyn Fn(&f64) -> String,
    pub(super) y_label: &'a dyn Fn(&f64) -> String,
}

impl Grid<'_> {
    pub(super) fn draw(&self, canvas: &Canvas<'_>, chart: &mut MarkedChart<'_, '_>) -> Drawn {
        let mut mesh = chart.configure_mesh();
        if !self.has_vertical_lines {
            mesh.disable_x_mesh();
        }
        mesh.bold_line_style(Ink::Grid.color())
            .light_line_style(TRANSPARENT)
            .axis_style(Ink::Muted.color())
            .x_label_style(canvas.text(Ink::Muted, HPos::Center, VPos::Top))
            .y_label_style(canvas.text(Ink::Muted, HPos::Right, VPos::Center))
            .axis_desc_style(canvas.text(Ink::Muted, HPos::Center, VPos::Center))
            .x_desc(self.x_title)
            .x_label_formatter(self.x_label)
            .y_label_formatter(self.y_label)
            .draw()?;
        Ok(())
    }
}
