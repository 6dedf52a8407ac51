//! Chart of size against mean KLD, a point for each file.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::super::data::FileData;
use super::Drawn;
use super::axis::{MarkedAxis, decade_marks, decades, plain_label, power_label, round_marks};
use super::canvas::{Canvas, Ink};
use super::grid::Grid;

/// Pixels from the centre of a point to its label.
const LABEL_GAP: i32 = 9;

/// Point of one file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    label: String,
    size_bytes: f64,
    kld: f64,
    healthy: Option<f64>,
    verdict: &'static str,
}

/// Returns the files that have both figures.
pub(super) fn points(files: &[FileData]) -> Vec<Point> {
    let point = |file: &FileData| {
        let kld = file.divergence.map(|d| d.mean).filter(|kld| kld.is_finite())?;
        Some(Point {
            label: file.label.clone(),
            size_bytes: file.size_bytes? as f64,
            kld,
            healthy: file.healthy_kld.filter(|kld| kld.is_finite() && *kld > 0.0),
            verdict: file.verdict,
        })
    };
    files.iter().filter_map(point).collect()
}

/// Position in pixels from the upper left corner of the canvas.
#[derive(Clone, Copy, Debug)]
struct Pixel {
    x: i32,
    y: i32,
}

impl Pixel {
    fn moved(self, right: i32, down: i32) -> Self {
        Self { x: self.x + right, y: self.y + down }
    }

    /// Coordinates in the form that plotters takes.
    fn coord(self) -> (i32, i32) {
        (self.x, self.y)
    }
}

/// Rectangle in pixels.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl Frame {
    fn around(center: Pixel, half_width: i32, half_height: i32) -> Self {
        let Pixel { x, y } = center;
        Self { left: x - half_width, top: y - half_height, right: x + half_width, bottom: y + half_height }
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn is_inside(&self, other: &Self) -> bool {
        self.left >= other.left
            && self.top >= other.top
            && self.right <= other.right
            && self.bottom <= other.bottom
    }
}

/// Possible place of a label.
struct LabelPlace {
    anchor: HPos,
    at: Pixel,
    frame: Frame,
}

pub(super) fn draw(canvas: &mut Canvas<'_>, points: &[Point]) -> Drawn {
    let (unit, name) = unit(points);
    let sizes = || points.iter().map(|point| point.size_bytes / unit);
    let (smallest, largest) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    let air = (0.08 * (largest - smallest)).max(0.05 * largest).max(f64::MIN_POSITIVE);
    let x_range = (smallest - air).max(0.0)..largest + 1.6 * air;
    let shown = points.iter().flat_map(|point| [Some(point.kld), point.healthy]).flatten();
    let y_range = decades(shown.filter(|&kld| kld > 0.0).map(f64::log10));
    let x_marks = round_marks(&x_range, if canvas.is_narrow() { 4 } else { 8 });
    let step = x_marks.get(1).zip(x_marks.first()).map_or(1.0, |(b, a)| b - a);
    let y_marks = decade_marks(&y_range, if canvas.is_narrow() { 6 } else { 8 });
    canvas.y_title("mean KLD (log scale)")?;
    let mut chart = ChartBuilder::on(&canvas.area)
        .margin_top(24)
        .margin_right(12)
        .x_label_area_size(44)
        .y_label_area_size(if canvas.is_narrow() { 54 } else { 62 })
        .build_cartesian_2d(MarkedAxis::new(x_range, x_marks), MarkedAxis::new(y_range.clone(), y_marks))?;
    let grid = Grid {
        has_vertical_lines: true,
        x_title: &format!("size in {name}"),
        x_label: &|x| plain_label(*x, step),
        y_label: &|y| power_label(*y),
    };
    grid.draw(canvas, &mut chart)?;
    let plot = chart.plotting_area();
    let (xs, ys) = plot.get_pixel_range();
    let frame = Frame { left: xs.start, top: ys.start, right: xs.end, bottom: ys.end };
    // Values that a logarithmic scale cannot show are drawn on its lower edge.
    let exponent = |kld: f64| if kld > 0.0 { kld.log10() } else { y_range.start };
    let at = |point: &Point, kld: f64| {
        let (x, y) = plot.map_coordinate(&(point.size_bytes / unit, exponent(kld)));
        Pixel { x, y }
    };
    let mut taken: Vec<Frame> =
        points.iter().map(|point| Frame::around(at(point, point.kld), 6, 6)).collect();
    for point in points {
        if let Some(healthy) = point.healthy {
            let level = at(point, healthy);
            line(&canvas.area, level, at(point, point.kld), Ink::Grid, 1)?;
            line(&canvas.area, level.moved(-14, 0), level.moved(14, 0), Ink::Good, 2)?;
            taken.push(Frame::around(level, 14, 2));
        }
    }
    for point in points {
        let position = at(point, point.kld);
        mark(&canvas.area, position, point)?;
        label(canvas, position, point, &frame, &mut taken)?;
    }
    Ok(())
}

fn line(area: &DrawingArea<SVGBackend<'_>, Shift>, from: Pixel, to: Pixel, ink: Ink, width: u32) -> Drawn {
    Ok(area.draw(&PathElement::new(vec![from.coord(), to.coord()], ink.color().stroke_width(width)))?)
}

/// Marks a point: a disc for pass, a ring for partial, a cross for fail, so that colour is not the only difference.
fn mark(area: &DrawingArea<SVGBackend<'_>, Shift>, at: Pixel, point: &Point) -> Drawn {
    match point.verdict {
        "fail" => {
            line(area, at.moved(-5, -5), at.moved(5, 5), Ink::Bad, 3)?;
            line(area, at.moved(-5, 5), at.moved(5, -5), Ink::Bad, 3)
        }
        "partial" => Ok(area.draw(&Circle::new(at.coord(), 5, Ink::Doubtful.color().stroke_width(2)))?),
        _ => Ok(area.draw(&Circle::new(at.coord(), 5, Ink::Accent.color().filled()))?),
    }
}

/// Draws the name next to a point: to its right, else where it covers nothing.
fn label(canvas: &Canvas<'_>, mark: Pixel, point: &Point, frame: &Frame, taken: &mut Vec<Frame>) -> Drawn {
    let (width, half) = (canvas.text_px(&point.label), (canvas.font_px() * 0.7) as i32);
    let mut places = Vec::new();
    for shift in [0, 1, -1, 2, -2, 3, -3] {
        let level = mark.moved(0, shift * (half + 2));
        let row = Frame::around(level, 0, half);
        let (left, right) = (level.moved(-LABEL_GAP, 0), level.moved(LABEL_GAP, 0));
        let to_the_right = Frame { left: right.x, right: right.x + width, ..row };
        places.push(LabelPlace { anchor: HPos::Left, at: right, frame: to_the_right });
        let to_the_left = Frame { left: left.x - width, right: left.x, ..row };
        places.push(LabelPlace { anchor: HPos::Right, at: left, frame: to_the_left });
        if shift.abs() > 1 {
            let centered = Frame::around(level, width / 2, half);
            places.push(LabelPlace { anchor: HPos::Center, at: level, frame: centered });
        }
    }
    let is_inside = |place: &&LabelPlace| place.frame.is_inside(frame);
    let is_free =
        |place: &&LabelPlace| is_inside(place) && !taken.iter().any(|other| other.meets(&place.frame));
    // If no place is free, an overlapping label is better than none.
    let found = places.iter().find(is_free);
    let found = found.or_else(|| places.iter().find(is_inside)).or(places.first());
    let Some(place) = found else { return Ok(()) };
    taken.push(place.frame);
    if place.at.y != mark.y {
        // In a crowd, a label without a line seems to be that of another point.
        let towards = if place.at.y < mark.y { half - 2 } else { 2 - half };
        let end = match place.anchor {
            HPos::Left => place.at.moved(-2, 0),
            HPos::Right => place.at.moved(2, 0),
            HPos::Center => place.at.moved(0, towards),
        };
        line(&canvas.area, mark, end, Ink::Muted, 1)?;
    }
    let ink = if point.verdict == "fail" { Ink::Bad } else { Ink::Text };
    let style = canvas.text(ink, place.anchor, VPos::Center);
    Ok(canvas.area.draw_text(&point.label, &style, place.at.coord())?)
}

/// Returns the unit that sizes are shown in: bytes of one unit, and its name.
fn unit(points: &[Point]) -> (f64, &'static str) {
    let largest = points.iter().map(|point| point.size_bytes).fold(0.0, f64::max);
    let units = [(1024f64.powi(3), "GiB"), (1024f64.powi(2), "MiB"), (1024.0, "KiB")];
    units.into_iter().find(|(unit, _)| largest >= *unit).unwrap_or((1.0, "bytes"))
}
