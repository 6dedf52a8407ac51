//! Canvas of a chart: its sizes, its named colours, and the resulting SVG.

use minijinja::HtmlEscape;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Drawn;
use crate::core::output::CHART;

/// Kind of window that a chart is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChartWidth {
    Wide,
    Narrow,
}

impl ChartWidth {
    /// Width and height in CSS pixels.
    fn size(self) -> (u32, u32) {
        match self {
            Self::Wide => (960, 400),
            Self::Narrow => (340, 320),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }
}

/// Colour of the page by name. The style sheet defines it for light and dark mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Text,
    Muted,
    Grid,
    Accent,
    Good,
    Doubtful,
    Bad,
    /// Colour of one of several lines.
    Series(usize),
}

/// Number of lines that have a colour of their own.
const N_SERIES: usize = 8;

impl Ink {
    /// Blue channel that represents the colour until `svg` replaces it with a class.
    fn number(self) -> u8 {
        match self {
            Self::Text => 1,
            Self::Muted => 2,
            Self::Grid => 3,
            Self::Accent => 4,
            Self::Good => 5,
            Self::Doubtful => 6,
            Self::Bad => 7,
            Self::Series(at) => 16 + (at % N_SERIES) as u8,
        }
    }

    pub(super) fn color(self) -> RGBColor {
        RGBColor(0, 0, self.number())
    }

    fn class(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Muted => "muted".to_owned(),
            Self::Grid => "grid".to_owned(),
            Self::Accent => "accent".to_owned(),
            Self::Good => "good".to_owned(),
            Self::Doubtful => "doubtful".to_owned(),
            Self::Bad => "bad".to_owned(),
            Self::Series(at) => format!("series{}", at % N_SERIES),
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        let plain =
            [Self::Text, Self::Muted, Self::Grid, Self::Accent, Self::Good, Self::Doubtful, Self::Bad];
        plain.into_iter().chain((0..N_SERIES).map(Self::Series))
    }
}

/// Drawing area of a chart, in one form.
pub(super) struct Canvas<'a> {
    pub(super) area: DrawingArea<SVGBackend<'a>, Shift>,
    pub(super) form: ChartWidth,
}

impl Canvas<'_> {
    pub(super) fn is_narrow(&self) -> bool {
        self.form == ChartWidth::Narrow
    }

    /// Font size in CSS pixels.
    pub(super) fn font_px(&self) -> f64 {
        if self.is_narrow() { 11.0 } else { 13.0 }
    }

    /// Returns a text style. plotters divides font sizes by 1.24 when it writes SVG.
    pub(super) fn text(&self, ink: Ink, h: HPos, v: VPos) -> TextStyle<'static> {
        let font = ("sans-serif", self.font_px() * 1.24);
        let style = TextStyle::from(font).pos(Pos::new(h, v));
        TextStyle { color: ink.color().to_backend_color(), ..style }
    }

    /// Estimated width of a text in pixels, as an upper bound over the fonts that a browser may choose.
    pub(super) fn text_px(&self, text: &str) -> i32 {
        (self.font_px() * 0.6 * text.chars().count() as f64).ceil() as i32
    }

    /// Draws the title of the y axis: horizontally above its upper end, where it is easy to read.
    pub(super) fn y_title(&self, text: &str) -> Drawn {
        Ok(self.area.draw_text(text, &self.text(Ink::Muted, HPos::Left, VPos::Top), (4, 2))?)
    }
}

/// Draws a chart as SVG. The result has classes instead of colours: `f-NAME` to fill, `s-NAME` for strokes.
pub(super) fn svg(
    form: ChartWidth,
    id: &str,
    title: &str,
    description: &str,
    work: impl Fn(&mut Canvas<'_>) -> Drawn,
) -> anyhow::Result<String> {
    let (width, height) = form.size();
    let mut drawn = String::new();
    {
        let area = SVGBackend::with_string(&mut drawn, (width, height)).into_drawing_area();
        let mut canvas = Canvas { area, form };
        work(&mut canvas)?;
        canvas.area.present()?;
    }
    // Quotes in texts are escaped, so anything in quotes is an attribute.
    for ink in Ink::all() {
        let (number, class) = (ink.number(), ink.class());
        drawn = drawn
            .replace(&format!("fill=\"#0000{number:02X}\""), &format!("class=\"f-{class}\""))
            .replace(&format!("stroke=\"#0000{number:02X}\""), &format!("class=\"s-{class}\""));
    }
    let body = drawn.split_once('>').map_or("", |(_, body)| body);
    let id = format!("{id}-{}", form.name());
    Ok(format!(
        "<svg class=\"chart {}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>{body}",
        form.name(),
        HtmlEscape(title),
        HtmlEscape(description),
    ))
}

/// Colours of a chart in a file of its own. It may lie on a light or a dark page.
const FILE_STYLE: &str = "<style>\
    .f-text{fill:#1d2329}.f-muted{fill:#59636e}.f-grid{fill:#d8dee4}.f-accent{fill:#2a6bb0}.f-good{fill:#1a7f4b}\
    .f-doubtful{fill:#8f5f00}.f-bad{fill:#c2232c}.s-text{stroke:#1d2329}.s-muted{stroke:#59636e}.s-grid{stroke:#d8dee4}\
    .s-accent{stroke:#2a6bb0}.s-good{stroke:#1a7f4b}.s-doubtful{stroke:#8f5f00}.s-bad{stroke:#c2232c}\
    @media (prefers-color-scheme:dark){.f-text{fill:#e4e8ec}.f-muted{fill:#9ba6b1}.f-grid{fill:#343c45}\
    .f-accent{fill:#6fb1f2}.f-good{fill:#56c990}.f-doubtful{fill:#e3b34c}.f-bad{fill:#ff8080}.s-text{stroke:#e4e8ec}\
    .s-muted{stroke:#9ba6b1}.s-grid{stroke:#343c45}.s-accent{stroke:#6fb1f2}.s-good{stroke:#56c990}\
    .s-doubtful{stroke:#e3b34c}.s-bad{stroke:#ff8080}}</style>";

/// Makes a file of a chart on a page.
pub(super) fn file(svg: &str) -> String {
    let start = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" {CHART} font-family=\"sans-serif\" ");
    match svg.strip_prefix("<svg ").and_then(|rest| rest.split_once('>')) {
        Some((attributes, body)) => format!("{start}{attributes}>{FILE_STYLE}{body}"),
        None => svg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_become_classes_and_text_stays_text() {
        let found = svg(ChartWidth::Wide, "x", "<b>", "a & b", |canvas| {
            let text = canvas.text(Ink::Bad, HPos::Left, VPos::Top);
            canvas.area.draw_text("<script>fill=\"#000001\"", &text, (1, 1))?;
            canvas.area.draw(&Circle::new((5, 5), 3, Ink::Series(9).color().stroke_width(2)))?;
            Ok(())
        })
        .unwrap();
        assert!(found.contains("class=\"f-bad\"") && found.contains("class=\"s-series1\""), "{found}");
        assert!(found.contains("&lt;script&gt;fill=&quot;#000001&quot;"), "{found}");
        assert!(!found.contains("=\"#") && !found.contains("<script"), "{found}");
        assert!(found.starts_with("<svg class=\"chart wide\"") && found.trim_end().ends_with("</svg>"));
        assert!(found.contains("<title id=\"x-wide-t\">&lt;b&gt;</title>"), "{found}");
    }
}
