//! Canvas of a chart: its sizes, and its marks as SVG elements.
//!
//! A colour (`ink`) is a name that the page's style sheet defines for light and dark mode: class `f-NAME` to fill,
//! `s-NAME` for strokes.

use minijinja::HtmlEscape;

use crate::core::output::CHART;

/// Position in pixels from the upper left corner of the canvas: x, then y.
pub(super) type Pixel = (i32, i32);

/// Rectangle in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) right: i32,
    pub(super) bottom: i32,
}

// Values of `dy`: a text is below its position, level with it, or above.
pub(super) const BELOW: &str = "0.76em";
pub(super) const LEVEL: &str = "0.5ex";
pub(super) const ABOVE: &str = "-0.5ex";

/// Chart in the making, in one form.
pub(super) struct Canvas {
    is_narrow: bool,
    elements: Vec<String>,
}

impl Canvas {
    /// Canvas for phones (`is_narrow`) or for desktop windows.
    pub(super) fn new(is_narrow: bool) -> Self {
        Self { is_narrow, elements: Vec::new() }
    }

    pub(super) fn pick<T>(&self, wide: T, narrow: T) -> T {
        if self.is_narrow { narrow } else { wide }
    }

    /// Width and height in CSS pixels.
    pub(super) fn size(&self) -> (i32, i32) {
        self.pick((960, 400), (340, 320))
    }

    /// Font size in CSS pixels.
    pub(super) fn font_px(&self) -> f64 {
        self.pick(13.0, 11.0)
    }

    /// Estimated width of a text in pixels, as an upper bound over the fonts that a browser may choose.
    pub(super) fn text_px(&self, text: &str) -> i32 {
        (self.font_px() * 0.6 * text.chars().count() as f64).ceil() as i32
    }

    /// Area of the data, with the given margins and space for the labels of the x axis.
    pub(super) fn frame(&self, left: i32, top: i32, right: i32) -> Frame {
        let (width, height) = self.size();
        Frame { left, top, right: width - right, bottom: height - 44 }
    }

    pub(super) fn line(&mut self, ink: &str, width: u32, points: &[Pixel]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        let points = points.join(" ");
        self.elements.push(format!(
            r#"<polyline class="s-{ink}" stroke-width="{width}" points="{points}" fill="none"/>"#
        ));
    }

    pub(super) fn disc(&mut self, ink: &str, (x, y): Pixel, radius: u32) {
        self.elements.push(format!(r#"<circle class="f-{ink}" cx="{x}" cy="{y}" r="{radius}"/>"#));
    }

    pub(super) fn ring(&mut self, ink: &str, (x, y): Pixel, radius: u32) {
        self.elements.push(format!(
            r#"<circle class="s-{ink}" stroke-width="2" cx="{x}" cy="{y}" r="{radius}" fill="none"/>"#
        ));
    }

    pub(super) fn bar(&mut self, ink: &str, (left, top): Pixel, (right, bottom): Pixel) {
        let (width, height) = (right - left, bottom - top);
        self.elements.push(format!(
            r#"<rect class="f-{ink}" x="{left}" y="{top}" width="{width}" height="{height}"/>"#
        ));
    }

    /// Draws a text; `anchor` and `dy` say where its position is in it.
    pub(super) fn text(&mut self, ink: &str, (x, y): Pixel, anchor: &str, dy: &str, text: &str) {
        self.elements.push(format!(
            r#"<text class="f-{ink}" x="{x}" y="{y}" dy="{dy}" text-anchor="{anchor}">{}</text>"#,
            HtmlEscape(text)
        ));
    }

    /// Returns the chart. Its ids are made of `id` and the form.
    pub(super) fn svg(&self, id: &str, title: &str, description: &str) -> String {
        let (form, font_px) = (self.pick("wide", "narrow"), self.font_px());
        let (width, height) = self.size();
        let id = format!("{id}-{form}");
        let (title, description) = (HtmlEscape(title), HtmlEscape(description));
        let elements = self.elements.join("\n");
        format!(
            "<svg class=\"chart {form}\" viewBox=\"0 0 {width} {height}\" font-size=\"{font_px}\" role=\"img\" \
             aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{title}</title>\
             <desc id=\"{id}-d\">{description}</desc>\n{elements}\n</svg>\n"
        )
    }
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
    svg.replacen("<svg ", &start, 1).replacen('>', &format!(">{FILE_STYLE}"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_classes_and_text_stays_text() {
        let mut canvas = Canvas::new(true);
        canvas.text("bad", (1, 2), "start", BELOW, "<script>\"");
        canvas.line("grid", 1, &[(1, 2), (3, 4)]);
        canvas.disc("series1", (5, 6), 3);
        canvas.ring("doubtful", (7, 8), 5);
        canvas.bar("accent", (1, 2), (4, 9));
        insta::assert_snapshot!(canvas.svg("x", "<b>", "a & b"), @r#"
        <svg class="chart narrow" viewBox="0 0 340 320" font-size="11" role="img" aria-labelledby="x-narrow-t x-narrow-d"><title id="x-narrow-t">&lt;b&gt;</title><desc id="x-narrow-d">a &amp; b</desc>
        <text class="f-bad" x="1" y="2" dy="0.76em" text-anchor="start">&lt;script&gt;&quot;</text>
        <polyline class="s-grid" stroke-width="1" points="1,2 3,4" fill="none"/>
        <circle class="f-series1" cx="5" cy="6" r="3"/>
        <circle class="s-doubtful" stroke-width="2" cx="7" cy="8" r="5" fill="none"/>
        <rect class="f-accent" x="1" y="2" width="3" height="7"/>
        </svg>
        "#);
    }
}
