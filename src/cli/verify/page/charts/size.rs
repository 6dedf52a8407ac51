//! Chart of size against mean KLD, a point for each file.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::super::data::FileData;
use super::Drawn;
use super::axis::{MarkedAxis, decade_marks, decades, plain_label, power_label, round_marks};
use super::canvas::{Canvas, Ink};

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

/// Rectangle in pixels: left, top, right, bottom.
#[derive(Clone, Copy, Debug)]
struct Frame(i32, i32, i32, i32);

impl Frame {
    fn meets(&self, other: &Self) -> bool {
        self.0 < other.2 && other.0 < self.2 && self.1 < other.3 && other.1 < self.3
    }

    fn is_inside(&self, other: &Self) -> bool {
        self.0 >= other.0 && self.1 >= other.1 && self.2 <= other.2 && self.3 <= other.3
    }
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
    chart
        .configure_mesh()
        .bold_line_style(Ink::Grid.color())
        .light_line_style(TRANSPARENT)
        .axis_style(Ink::Muted.color())
        .x_label_style(canvas.text(Ink::Muted, HPos::Center, VPos::Top))
        .y_label_style(canvas.text(Ink::Muted, HPos::Right, VPos::Center))
        .axis_desc_style(canvas.text(Ink::Muted, HPos::Center, VPos::Center))
        .x_desc(format!("size in {name}"))
        .x_label_formatter(&|x| plain_label(*x, step))
        .y_label_formatter(&|y| power_label(*y))
        .draw()?;
    let plot = chart.plotting_area();
    let (xs, ys) = plot.get_pixel_range();
    let frame = Frame(xs.start, ys.start, xs.end, ys.end);
    // Values that a logarithmic scale cannot show are drawn on its lower edge.
    let exponent = |kld: f64| if kld > 0.0 { kld.log10() } else { y_range.start };
    let at = |point: &Point, kld: f64| plot.map_coordinate(&(point.size_bytes / unit, exponent(kld)));
    let mut taken: Vec<Frame> = points
        .iter()
        .map(|point| at(point, point.kld))
        .map(|(x, y)| Frame(x - 6, y - 6, x + 6, y + 6))
        .collect();
    for point in points {
        let (x, y) = at(point, point.kld);
        if let Some(healthy) = point.healthy {
            let level = at(point, healthy).1;
            line(&canvas.area, (x, level), (x, y), Ink::Grid, 1)?;
            line(&canvas.area, (x - 14, level), (x + 14, level), Ink::Good, 2)?;
            taken.push(Frame(x - 14, level - 2, x + 14, level + 2));
        }
    }
    for point in points {
        let position = at(point, point.kld);
        mark(&canvas.area, position, point)?;
        label(canvas, position, point, &frame, &mut taken)?;
    }
    Ok(())
}

fn line(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    from: (i32, i32),
    to: (i32, i32),
    ink: Ink,
    width: u32,
) -> Drawn {
    Ok(area.draw(&PathElement::new(vec![from, to], ink.color().stroke_width(width)))?)
}

/// Marks a point: a disc for pass, a ring for partial, a cross for fail, so that colour is not the only difference.
fn mark(area: &DrawingArea<SVGBackend<'_>, Shift>, (x, y): (i32, i32), point: &Point) -> Drawn {
    match point.verdict {
        "fail" => {
            line(area, (x - 5, y - 5), (x + 5, y + 5), Ink::Bad, 3)?;
            line(area, (x - 5, y + 5), (x + 5, y - 5), Ink::Bad, 3)
        }
        "partial" => Ok(area.draw(&Circle::new((x, y), 5, Ink::Doubtful.color().stroke_width(2)))?),
        _ => Ok(area.draw(&Circle::new((x, y), 5, Ink::Accent.color().filled()))?),
    }
}

/// Draws the name next to a point: to its right, else where it covers nothing.
fn label(
    canvas: &Canvas<'_>,
    (x, y): (i32, i32),
    point: &Point,
    frame: &Frame,
    taken: &mut Vec<Frame>,
) -> Drawn {
    let (width, half) = (canvas.text_px(&point.label), (canvas.font_px() * 0.7) as i32);
    let mut places = Vec::new();
    for shift in [0, 1, -1, 2, -2, 3, -3] {
        let y = y + shift * (half + 2);
        places.push((
            HPos::Left,
            (x + LABEL_GAP, y),
            Frame(x + LABEL_GAP, y - half, x + LABEL_GAP + width, y + half),
        ));
        places.push((
            HPos::Right,
            (x - LABEL_GAP, y),
            Frame(x - LABEL_GAP - width, y - half, x - LABEL_GAP, y + half),
        ));
        if shift.abs() > 1 {
            places.push((HPos::Center, (x, y), Frame(x - width / 2, y - half, x + width / 2, y + half)));
        }
    }
    let is_free = |place: &Frame| place.is_inside(frame) && !taken.iter().any(|other| other.meets(place));
    // If no place is free, an overlapping label is better than none.
    let found = places.iter().find(|(.., place)| is_free(place));
    let found = found.or_else(|| places.iter().find(|(.., place)| place.is_inside(frame))).or(places.first());
    let Some((anchor, position, place)) = found else { return Ok(()) };
    taken.push(*place);
    let ink = if point.verdict == "fail" { Ink::Bad } else { Ink::Text };
    Ok(canvas.area.draw_text(&point.label, &canvas.text(ink, *anchor, VPos::Center), *position)?)
}

/// Returns the unit that sizes are shown in: bytes of one unit, and its name.
fn unit(points: &[Point]) -> (f64, &'static str) {
    let largest = points.iter().map(|point| point.size_bytes).fold(0.0, f64::max);
    let units = [(1024f64.powi(3), "GiB"), (1024f64.powi(2), "MiB"), (1024.0, "KiB")];
    units.into_iter().find(|(unit, _)| largest >= *unit).unwrap_or((1.0, "bytes"))
}
