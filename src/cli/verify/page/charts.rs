//! Charts as SVG for a page: drawn by plotters, coloured by the page's style sheet.
//!
//! Every chart is drawn twice, for wide and for narrow windows: text in a picture that is scaled down cannot be read.

mod axis;
mod canvas;
mod histogram;
mod quantiles;
mod size;

use super::data::FileData;
use canvas::Canvas;

/// A chart in both forms.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Chart {
    /// For windows of a desk.
    wide: String,
    /// For those of a phone.
    narrow: String,
}

/// A drawing that failed; there is no reason but a defect.
type Drawn = anyhow::Result<()>;

impl Chart {
    /// `id` is a word that no other chart of the page has. `title` and `description` are what a screen reader says.
    fn draw(
        id: &str,
        title: &str,
        description: &str,
        work: impl Fn(&mut Canvas<'_>) -> Drawn,
    ) -> anyhow::Result<Self> {
        let one = |form: canvas::Form| canvas::svg(form, id, title, description, &work);
        Ok(Self { wide: one(canvas::Form::Wide)?, narrow: one(canvas::Form::Narrow)? })
    }
}

/// Size against mean KLD; `None` with fewer than two files to compare.
pub(super) fn size_against_kld(files: &[FileData]) -> anyhow::Result<Option<Chart>> {
    let points = size::points(files);
    if points.len() < 2 {
        return Ok(None);
    }
    let description = format!("{} files; the numbers are in the table of files.", points.len());
    let title = "Size of each file against its mean KLD from the baseline";
    Chart::draw("size-kld", title, &description, |canvas| size::draw(canvas, &points)).map(Some)
}

/// KLD by quantile of the tokens, a line for each file; `None` with fewer than two.
pub(super) fn quantiles(files: &[FileData]) -> anyhow::Result<Option<Chart>> {
    let lines = quantiles::lines(files);
    if lines.len() < 2 {
        return Ok(None);
    }
    let title = "KLD by quantile of the tokens, a line for each file";
    let description = "The numbers are in the table below the chart.";
    Chart::draw("quantiles", title, description, |canvas| quantiles::draw(canvas, &lines)).map(Some)
}

/// How the KLD of one file is spread over the tokens; `None` where nothing is above rounding.
pub(super) fn histogram(at: usize, file: &FileData) -> anyhow::Result<Option<Chart>> {
    let Some(spread) = file.spread.as_ref().filter(|spread| !spread.bins.is_empty()) else { return Ok(None) };
    let title = format!("How the KLD is spread over the tokens: {}", file.label);
    let description = format!("{} tokens; the quantiles are in the table beside the chart.", spread.tokens);
    Chart::draw(&format!("histogram-{at}"), &title, &description, |canvas| histogram::draw(canvas, spread))
        .map(Some)
}
