//! Chart of size against mean KLD, a point for each file.

use super::super::data::FileData;
use super::axis::{Axis, decades};
use super::canvas::{Canvas, Frame, LEVEL, Pixel};
use super::grid::Grid;

/// Pixels from the centre of a point to its label.
const LABEL_GAP: i32 = 9;

/// Point of one file.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Point {
    label: String,
    size_bytes: f64,
    kld: f64,
    healthy: Option<f64>,
    verdict: String,
}

/// Returns the point of a file; `healthy` is the mean KLD that its types cost a file without faults.
pub(in super::super) fn point(
    label: &str,
    size_bytes: u64,
    kld: f64,
    healthy: Option<f64>,
    verdict: &str,
) -> Point {
    let healthy = healthy.filter(|kld| kld.is_finite() && *kld > 0.0);
    let (label, verdict) = (label.to_owned(), verdict.to_owned());
    Point { label, size_bytes: size_bytes as f64, kld, healthy, verdict }
}

/// Returns the files that have both figures.
pub(in super::super) fn points(files: &[FileData]) -> Vec<Point> {
    let point = |file: &FileData| {
        let kld = file.divergence.as_ref().map(|d| d.kld.mean).filter(|kld| kld.is_finite())?;
        Some(point(&file.label, file.size_bytes?, kld, file.healthy_kld, file.verdict))
    };
    files.iter().filter_map(point).collect()
}

fn moved((x, y): Pixel, right: i32, down: i32) -> Pixel {
    (x + right, y + down)
}

impl Frame {
    fn around((x, y): Pixel, half_width: i32, half_height: i32) -> Self {
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
    anchor: &'static str,
    at: Pixel,
    frame: Frame,
}

pub(super) fn draw(canvas: &mut Canvas, points: &[Point]) {
    let (unit, name) = unit(points);
    let sizes = || points.iter().map(|point| point.size_bytes / unit);
    let (smallest, largest) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    let air = (0.08 * (largest - smallest)).max(0.05 * largest).max(f64::MIN_POSITIVE);
    let title = format!("size in {name}");
    let x = Axis::linear(&title, (smallest - air).max(0.0)..largest + 1.6 * air, canvas.pick(8, 4));
    let shown = points.iter().flat_map(|point| [Some(point.kld), point.healthy]).flatten();
    let y_range = decades(shown.filter(|&kld| kld > 0.0).map(f64::log10));
    let y = Axis::logarithmic("mean KLD (log scale)", y_range, canvas.pick(8, 6));
    let frame = canvas.frame(canvas.pick(62, 54), 24, 12);
    let grid = Grid::draw(canvas, frame, x, y);
    let at = |point: &Point, kld: f64| grid.at_log(point.size_bytes / unit, kld);
    let mut taken: Vec<Frame> =
        points.iter().map(|point| Frame::around(at(point, point.kld), 6, 6)).collect();
    for point in points {
        if let Some(healthy) = point.healthy {
            let level = at(point, healthy);
            canvas.line("grid", 1, &[level, at(point, point.kld)]);
            canvas.line("good", 2, &[moved(level, -14, 0), moved(level, 14, 0)]);
            taken.push(Frame::around(level, 14, 2));
        }
    }
    for point in points {
        let position = at(point, point.kld);
        mark(canvas, position, point);
        label(canvas, position, point, &frame, &mut taken);
    }
}

/// Marks a point: a disc for pass, a ring for partial, a cross for fail, so that colour is not the only difference.
fn mark(canvas: &mut Canvas, at: Pixel, point: &Point) {
    match point.verdict.as_str() {
        "fail" => {
            canvas.line("bad", 3, &[moved(at, -5, -5), moved(at, 5, 5)]);
            canvas.line("bad", 3, &[moved(at, -5, 5), moved(at, 5, -5)]);
        }
        "partial" => canvas.ring("doubtful", at, 5),
        _ => canvas.disc("accent", at, 5),
    }
}

/// Draws the name next to a point: to its right, else where it covers nothing.
fn label(canvas: &mut Canvas, mark: Pixel, point: &Point, frame: &Frame, taken: &mut Vec<Frame>) {
    let (width, half) = (canvas.text_px(&point.label), (canvas.font_px() * 0.7) as i32);
    let mut places = Vec::new();
    for shift in [0, 1, -1, 2, -2, 3, -3] {
        let level = moved(mark, 0, shift * (half + 2));
        let row = Frame::around(level, 0, half);
        let (left, right) = (moved(level, -LABEL_GAP, 0), moved(level, LABEL_GAP, 0));
        let to_the_right = Frame { left: right.0, right: right.0 + width, ..row };
        places.push(LabelPlace { anchor: "start", at: right, frame: to_the_right });
        let to_the_left = Frame { left: left.0 - width, right: left.0, ..row };
        places.push(LabelPlace { anchor: "end", at: left, frame: to_the_left });
        if shift.abs() > 1 {
            let centered = Frame::around(level, width / 2, half);
            places.push(LabelPlace { anchor: "middle", at: level, frame: centered });
        }
    }
    let is_inside = |place: &&LabelPlace| place.frame.is_inside(frame);
    let is_free =
        |place: &&LabelPlace| is_inside(place) && !taken.iter().any(|other| other.meets(&place.frame));
    // If no place is free, an overlapping label is better than none.
    let found = places.iter().find(is_free);
    let found = found.or_else(|| places.iter().find(is_inside)).or(places.first());
    let Some(place) = found else { return };
    taken.push(place.frame);
    if place.at.1 != mark.1 {
        // In a crowd, a label without a line seems to be that of another point.
        let towards = if place.at.1 < mark.1 { half - 2 } else { 2 - half };
        let end = match place.anchor {
            "start" => moved(place.at, -2, 0),
            "end" => moved(place.at, 2, 0),
            _ => moved(place.at, 0, towards),
        };
        canvas.line("muted", 1, &[mark, end]);
    }
    let ink = if point.verdict == "fail" { "bad" } else { "text" };
    canvas.text(ink, place.at, place.anchor, LEVEL, &point.label);
}

/// Returns the unit that sizes are shown in: bytes of one unit, and its name.
fn unit(points: &[Point]) -> (f64, &'static str) {
    let largest = points.iter().map(|point| point.size_bytes).fold(0.0, f64::max);
    let units = [(1024f64.powi(3), "GiB"), (1024f64.powi(2), "MiB"), (1024.0, "KiB")];
    units.into_iter().find(|(unit, _)| largest >= *unit).unwrap_or((1.0, "bytes"))
}
