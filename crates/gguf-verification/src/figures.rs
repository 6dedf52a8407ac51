//! Figures that may have a limit, one row each: everything that reports, options and verdicts need to know of a figure.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::{Divergence, EmbeddingDifference, Estimate, MaskedReport, Perplexity, Quality, Report};

/// Outputs of a model that a figure describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Predictions of the next token.
    Predictions,
    /// Vectors of texts, of encoders.
    Vectors,
    /// Scores of texts, of encoders with a classifier.
    Scores,
    /// Predictions of masked tokens.
    Masks,
}

impl Subject {
    /// Returns the outputs in words, as part of a sentence.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Predictions => "predictions of the next token",
            Self::Vectors => "an encoder's vectors",
            Self::Scores => "a classifier's scores",
            Self::Masks => "predictions of masked tokens",
        }
    }
}

/// Direction in which a figure gets better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Less is better: limits are ceilings.
    Less,
    /// More is better: limits are floors.
    More,
}

/// Values that the option of a limit takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitRange {
    /// Finite numbers from 0 up.
    Amount,
    /// Finite numbers.
    Finite,
    /// Numbers from 0 to 1.
    Share,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Measured<'a> {
    pub(super) perplexity: Option<&'a Perplexity>,
    pub(super) divergence: Option<&'a Divergence>,
    pub(super) vectors: Option<&'a EmbeddingDifference>,
    pub(super) masked: Option<&'a MaskedReport>,
}

impl<'a> Measured<'a> {
    fn of(report: &'a Report) -> Self {
        Self {
            perplexity: report.perplexity.as_ref(),
            divergence: report.divergence.as_ref(),
            vectors: report.embeddings.as_ref().and_then(|found| found.against.as_ref()),
            masked: report.masked.as_ref().and_then(|found| found.as_ref().ok()).map(|found| &**found),
        }
    }
}

/// Value of a figure, with its standard error if that is known.
type Value = (f64, Option<f64>);

/// Description of a figure.
pub struct FigureRow {
    /// Name of the limit: an option without its dashes, a check, a key of the report.
    pub option: &'static str,
    /// Help text of the option.
    pub help: &'static str,
    /// Placeholder of the option's value.
    pub placeholder: &'static str,
    /// Values that the option takes.
    pub range: LimitRange,
    /// Name in sentences.
    pub label: &'static str,
    /// Head of the column in the table of several files.
    pub column: &'static str,
    /// Text of a value in that column.
    pub cell: fn(f64) -> String,
    /// True for a column that a narrow terminal leaves out first.
    pub is_spare: bool,
    /// Outputs that the figure describes.
    pub subject: Subject,
    /// Direction in which it gets better.
    pub better: Better,
    /// True if the figure compares with a baseline.
    pub needs_baseline: bool,
    /// True if the figure needs predictions that are likelihoods.
    pub(crate) is_likelihood: bool,
    /// Text of a value for readers, as part of a sentence.
    show: fn(f64) -> String,
    measured: fn(&Measured<'_>) -> Option<Value>,
}

impl fmt::Debug for FigureRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.option)
    }
}

/// Declares the figures: the variants of [`Figure`] and their rows.
macro_rules! figures {
    ($($(#[$doc:meta])+ $variant:ident { $($field:ident: $value:expr,)+ })+) => {
        /// Figure that may have a limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Figure {
            $($(#[$doc])+ $variant,)+
        }

        impl Figure {
            /// All figures, in the order of their limits in reports.
            pub const ALL: [Self; ROWS.len()] = [$(Self::$variant,)+];
        }

        const ROWS: &[FigureRow] = &[$(FigureRow { $($field: $value,)+ },)+];
    };
}

fn decimals(value: f64) -> String {
    format!("{value:.6}")
}

fn four_decimals(value: f64) -> String {
    format!("{value:.4}")
}

/// Formats a cosine: its distance from 1 counts.
fn cosine(value: f64) -> String {
    format!("{value:.8}")
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn signed_percent(share: f64) -> String {
    format!("{:+.2} %", 100.0 * share)
}

figures! {
    /// Perplexity.
    Ppl {
        option: "max-ppl",
        help: "Highest perplexity that passes",
        placeholder: "PPL",
        range: LimitRange::Amount,
        label: "perplexity",
        column: "perplexity",
        cell: four_decimals,
        is_spare: false,
        subject: Subject::Predictions,
        better: Better::Less,
        needs_baseline: false,
        is_likelihood: true,
        show: four_decimals,
        measured: |m| m.perplexity.map(|p| (p.value, Some(p.stderr))),
    }
    /// Increase of the perplexity over the baseline, as a share (0.02 is 2 %).
    PplIncrease {
        option: "max-ppl-increase",
        help: "Highest increase of the perplexity over the baseline's, as a share (0.02 is 2 %)",
        placeholder: "SHARE",
        range: LimitRange::Finite,
        label: "increase of the perplexity",
        column: "Δ ppl",
        cell: signed_percent,
        is_spare: false,
        subject: Subject::Predictions,
        better: Better::Less,
        needs_baseline: true,
        is_likelihood: true,
        show: signed_percent,
        measured: |m| m.divergence.map(|d| {
            let Estimate { value, stderr } = d.ppl_increase();
            (value, Some(stderr))
        }),
    }
    /// Mean divergence, in nats per token.
    Kld {
        option: "max-kld",
        help: "Highest mean divergence [default: four times what the file's types cost this model]",
        placeholder: "KLD",
        range: LimitRange::Amount,
        label: "KLD",
        column: "KLD",
        cell: decimals,
        is_spare: false,
        subject: Subject::Predictions,
        better: Better::Less,
        needs_baseline: true,
        is_likelihood: false,
        show: significant,
        measured: |m| m.divergence.map(|d| (d.kld.mean, Some(d.kld.stderr))),
    }
    /// 99th percentile of the divergence.
    Kld99 {
        option: "max-kld-99",
        help: "Highest 99th percentile of the divergence [default: likewise]",
        placeholder: "KLD",
        range: LimitRange::Amount,
        label: "99 % KLD",
        column: "99 % KLD",
        cell: decimals,
        is_spare: true,
        subject: Subject::Predictions,
        better: Better::Less,
        needs_baseline: true,
        is_likelihood: false,
        show: significant,
        measured: |m| m.divergence.map(|d| (d.kld.quantiles.p99, None)),
    }
    /// Share of tokens with the same most likely prediction.
    Top1 {
        option: "min-top1",
        help: "Lowest share of tokens with the same first choice [default: likewise]",
        placeholder: "SHARE",
        range: LimitRange::Share,
        label: "same first choice",
        column: "same",
        cell: percent,
        is_spare: false,
        subject: Subject::Predictions,
        better: Better::More,
        needs_baseline: true,
        is_likelihood: false,
        show: percent,
        measured: |m| m.divergence.map(|d| (d.top1_agreement, Some(d.top1_stderr))),
    }
    /// Mean cosine of a text's vector with the baseline's; of no use for models that score texts, which often have one
    /// score per text.
    Cosine {
        option: "min-cosine",
        help: "Lowest mean cosine of a text's vector with the baseline's, of encoders [default: by what the file's types cost this model]",
        placeholder: "COSINE",
        range: LimitRange::Share,
        label: "mean cosine",
        column: "cosine",
        cell: cosine,
        is_spare: false,
        subject: Subject::Vectors,
        better: Better::More,
        needs_baseline: true,
        is_likelihood: false,
        show: cosine,
        measured: |m| m.vectors.filter(|v| v.score_error.is_none()).map(|v| (v.mean_cosine, None)),
    }
    /// Lowest cosine of a single text's vector with the baseline's.
    WorstCosine {
        option: "min-worst-cosine",
        help: "Lowest cosine of any text's vector [default: likewise]",
        placeholder: "COSINE",
        range: LimitRange::Share,
        label: "worst cosine",
        column: "worst",
        cell: cosine,
        is_spare: false,
        subject: Subject::Vectors,
        better: Better::More,
        needs_baseline: true,
        is_likelihood: false,
        show: cosine,
        measured: |m| m.vectors.filter(|v| v.score_error.is_none()).map(|v| (v.worst_cosine, None)),
    }
    /// Root mean square of the differences of scores, as a share of their spread.
    ScoreError {
        option: "max-score-error",
        help: "Highest error of the scores of texts, as a share of their spread [default: likewise]",
        placeholder: "SHARE",
        range: LimitRange::Amount,
        label: "error of the scores",
        column: "scores off by",
        cell: significant,
        is_spare: false,
        subject: Subject::Scores,
        better: Better::Less,
        needs_baseline: true,
        is_likelihood: false,
        show: significant,
        measured: |m| m.vectors.and_then(|v| v.score_error).map(|error| (error, None)),
    }
    /// Pseudo-perplexity, of masked language models.
    PseudoPpl {
        option: "max-pseudo-ppl",
        help: "Highest pseudo-perplexity that passes, of models that predict masked tokens",
        placeholder: "PPL",
        range: LimitRange::Amount,
        label: "pseudo-perplexity",
        column: "pseudo-ppl",
        cell: four_decimals,
        is_spare: false,
        subject: Subject::Masks,
        better: Better::Less,
        needs_baseline: false,
        is_likelihood: false,
        show: four_decimals,
        measured: |m| m.masked.map(|found| (found.perplexity.value, Some(found.perplexity.stderr))),
    }
    /// Mean divergence at masked tokens.
    MaskedKld {
        option: "max-masked-kld",
        help: "Highest mean divergence at masked tokens [default: four times what the file's types cost this model there]",
        placeholder: "KLD",
        range: LimitRange::Amount,
        label: "KLD at masked tokens",
        column: "masked KLD",
        cell: decimals,
        is_spare: false,
        subject: Subject::Masks,
        better: Better::Less,
        needs_baseline: true,
        is_likelihood: false,
        show: significant,
        measured: |m| {
            let divergence = m.masked.and_then(|found| found.divergence.as_ref());
            divergence.map(|d| (d.kld.mean, Some(d.kld.stderr)))
        },
    }
    /// Share of masked tokens with the same most likely prediction.
    MaskedTop1 {
        option: "min-masked-top1",
        help: "Lowest share of masked tokens with the same first choice [default: likewise]",
        placeholder: "SHARE",
        range: LimitRange::Share,
        label: "same first choice at masked tokens",
        column: "masked same",
        cell: percent,
        is_spare: false,
        subject: Subject::Masks,
        better: Better::More,
        needs_baseline: true,
        is_likelihood: false,
        show: percent,
        measured: |m| {
            let divergence = m.masked.and_then(|found| found.divergence.as_ref());
            divergence.map(|d| (d.top1_agreement, Some(d.top1_stderr)))
        },
    }
}

impl Figure {
    /// Returns the figure's description.
    pub fn row(self) -> &'static FigureRow {
        &ROWS[self as usize]
    }

    /// Returns the figures of some outputs.
    pub fn of_subject(subject: Subject) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |figure| figure.row().subject == subject)
    }

    /// Returns the value that a report has, if it was measured.
    pub fn measured(self, report: &Report) -> Option<f64> {
        (self.row().measured)(&Measured::of(report)).map(|(value, _)| value)
    }

    /// Formats a value for readers.
    pub fn show(self, value: f64) -> String {
        (self.row().show)(value)
    }

    /// Returns true if a value keeps a limit. A NaN value keeps none.
    fn keeps(self, value: f64, limit: f64) -> bool {
        match self.row().better {
            Better::Less => value <= limit,
            Better::More => value >= limit,
        }
    }
}

/// Writes the name of the limit.
impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.row().option)
    }
}

/// Formats a value with three significant digits, without an exponent unless it is very small.
fn significant(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if magnitude < -5 {
        return format!("{value:.2e}");
    }
    format!("{value:.*}", usize::try_from(2 - magnitude).unwrap_or(0))
}

/// Number of standard errors within which a figure is too close to its limit to tell.
const CLOSE: f64 = 2.0;

/// Figure with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LimitLine {
    /// Measured figure, by the name of its limit: `max-kld`.
    #[serde(rename = "limit")]
    pub figure: Figure,
    /// Measured value.
    pub value: f64,
    /// Standard error of the value, if it is known.
    #[serde(skip)]
    pub stderr: Option<f64>,
    /// Limit of the value.
    #[serde(rename = "at")]
    pub limit: f64,
    /// True if an option set the limit.
    #[serde(rename = "own")]
    pub is_own: bool,
    /// True if the limit is missed by two standard errors or more. A NaN value misses every limit.
    #[serde(rename = "missed")]
    pub is_missed: bool,
}

impl LimitLine {
    /// Compares a value, whose standard error may be unknown, with its limit.
    pub fn new(figure: Figure, value: f64, stderr: Option<f64>, limit: f64, is_own: bool) -> Self {
        let line = Self { figure, value, stderr, limit, is_own, is_missed: false };
        Self { is_missed: !line.is_kept_by(-CLOSE) && !line.is_kept(), ..line }
    }

    /// Returns true if the value keeps the limit, whatever its error.
    pub fn is_kept(&self) -> bool {
        self.figure.keeps(self.value, self.limit)
    }

    /// Returns true if the limit is kept or missed by less than two standard errors: more text may change the result.
    pub fn is_close(&self) -> bool {
        !self.is_missed && !self.is_kept_by(CLOSE)
    }

    /// Returns true if the limit is kept even if the figure is off by this many standard errors.
    pub(crate) fn is_kept_by(&self, errors: f64) -> bool {
        let doubt = errors * self.stderr.unwrap_or(0.0);
        let worst = match self.figure.row().better {
            Better::Less => self.value + doubt,
            Better::More => self.value - doubt,
        };
        self.figure.keeps(worst, self.limit)
    }

    /// Formats the comparison: `KLD 0.133 > 0.0300`.
    pub fn relation(&self) -> String {
        let sign = match (self.figure.row().better, !self.is_kept()) {
            (Better::Less, true) => ">",
            (Better::Less, false) => "≤",
            (Better::More, true) => "<",
            (Better::More, false) => "≥",
        };
        let show = |value| self.figure.show(value);
        format!("{} {} {sign} {}", self.figure.row().label, show(self.value), show(self.limit))
    }
}

/// Limits that a file must keep; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    figures: [Option<f64>; Figure::ALL.len()],
    /// Lowest quality of the predictions.
    pub min_quality: Option<Quality>,
}

impl Thresholds {
    /// Returns these thresholds with a limit of one figure.
    pub fn with(mut self, figure: Figure, limit: Option<f64>) -> Self {
        self.figures[figure as usize] = limit;
        self
    }

    /// Returns the limit of a figure.
    pub fn of(&self, figure: Figure) -> Option<f64> {
        self.figures[figure as usize]
    }

    /// Returns these limits, completed by those of `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            figures: Figure::ALL.map(|figure| self.of(figure).or(other.of(figure))),
            min_quality: self.min_quality.or(other.min_quality),
        }
    }

    /// Returns true if no limit is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the figures with a limit in these thresholds.
    pub fn set(&self) -> impl Iterator<Item = Figure> + '_ {
        Figure::ALL.into_iter().filter(|&figure| self.of(figure).is_some())
    }

    /// Returns every measured figure with its limit: from these thresholds if it is set, otherwise from `defaults`.
    pub(super) fn lines(&self, defaults: &Self, measured: &Measured<'_>) -> Vec<LimitLine> {
        let line = |figure: Figure| {
            let (value, stderr) = (figure.row().measured)(measured)?;
            let own = self.of(figure);
            let limit = own.or(defaults.of(figure))?;
            Some(LimitLine::new(figure, value, stderr, limit, own.is_some()))
        };
        Figure::ALL.into_iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ppl(value: f64) -> Perplexity {
        Perplexity { value, stderr: 0.5, tokens: 1, ids_digest: None, total_nll: 0.0 }
    }

    #[test]
    fn own_limits_go_before_defaults_and_nan_keeps_none() {
        let own = Thresholds::default().with(Figure::Ppl, Some(10.0));
        let defaults = own.with(Figure::Ppl, Some(2.0));
        let lines = |value| {
            let perplexity = ppl(value);
            own.lines(&defaults, &Measured { perplexity: Some(&perplexity), ..Measured::default() })
        };
        assert_eq!(lines(8.0).len(), 1);
        assert!(lines(8.0)[0].is_own && !lines(8.0)[0].is_missed && !lines(8.0)[0].is_close());
        assert!(lines(9.5)[0].is_close());
        assert!(lines(9.5)[0].is_kept_by(1.0) && !lines(9.5)[0].is_kept_by(1.1));
        assert!(lines(11.5)[0].is_missed && lines(10.5)[0].is_close() && lines(f64::NAN)[0].is_missed);
        assert_eq!(lines(11.0)[0].relation(), "perplexity 11.0000 > 10.0000");
    }

    #[test]
    fn figures_are_shown_as_people_read_them() {
        assert_eq!(Figure::Kld.show(0.1334), "0.133");
        assert_eq!(Figure::Kld.show(0.03), "0.0300");
        assert_eq!(Figure::Kld.show(4.2e-10), "4.20e-10");
        assert_eq!(Figure::Kld.show(12.34), "12.3");
        assert_eq!(Figure::Top1.show(0.98765), "98.77 %");
        let top1 = LimitLine::new(Figure::Top1, 0.9, None, 0.95, false);
        assert!(top1.is_missed);
        assert_eq!(top1.relation(), "same first choice 90.00 % < 95.00 %");
    }
}
