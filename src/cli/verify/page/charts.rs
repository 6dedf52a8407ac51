//! SVG charts of a page, coloured by the page's style sheet.
//!
//! Every chart is drawn twice, for wide and for narrow windows: text in a scaled-down picture would be illegible.

mod axis;
mod canvas;
mod grid;
mod histogram;
mod quantiles;
mod size;

use super::data::FileData;
use canvas::Canvas;
pub(super) use size::{Point, point, points};

/// Chart in both forms.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Chart {
    /// Form for desktop windows.
    wide: String,
    /// Form for phones.
    narrow: String,
}

impl Chart {
    /// Draws both forms. `id` is unique on the page. Screen readers read out `title` and `description`.
    fn draw(id: &str, title: &str, description: &str, work: impl Fn(&mut Canvas)) -> Self {
        let one = |is_narrow| {
            let mut canvas = Canvas::new(is_narrow);
            work(&mut canvas);
            canvas.svg(id, title, description)
        };
        Self { wide: one(false), narrow: one(true) }
    }

    /// Returns the wide form as a file of its own, with the colours that the page's style sheet gives it.
    pub(super) fn into_file(self) -> String {
        canvas::file(&self.wide)
    }
}

/// Chart of size against mean KLD; `None` with fewer than two files to compare.
pub(super) fn size_against_kld(points: &[Point]) -> Option<Chart> {
    if points.len() < 2 {
        return None;
    }
    let description = format!("{} files; the numbers are in the table of files.", points.len());
    let title = "Size of each file against its mean KLD from the baseline";
    Some(Chart::draw("size-kld", title, &description, |canvas| size::draw(canvas, points)))
}

/// Chart of KLD by quantile of the tokens, a line for each file; `None` with fewer than two.
pub(super) fn quantiles(files: &[FileData]) -> Option<Chart> {
    let lines = quantiles::lines(files);
    if lines.len() < 2 {
        return None;
    }
    let title = "KLD by quantile of the tokens, a line for each file";
    let description = "The numbers are in the table below the chart.";
    Some(Chart::draw("quantiles", title, description, |canvas| quantiles::draw(canvas, &lines)))
}

/// Histogram of the KLD of one file over the tokens; `None` if no value is above rounding.
pub(super) fn histogram(at: usize, file: &FileData) -> Option<Chart> {
    let spread = file.spread.as_ref().filter(|spread| !spread.bins.is_empty())?;
    let title = format!("How the KLD is spread over the tokens: {}", file.label);
    let description = format!("{} tokens; the quantiles are in the table next to the chart.", spread.tokens);
    let id = format!("histogram-{at}");
    Some(Chart::draw(&id, &title, &description, |canvas| histogram::draw(canvas, spread)))
}
