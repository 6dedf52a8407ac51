//! Figures of single files, which folders of other commands keep and compare.

use serde::{Deserialize, Serialize};

use crate::cli::verify::page::charts;
use crate::cli::verify::recommend::{FileFigures, recommend};
use crate::cli::verify::report::ModelReport;
use crate::verify::{Quality, Verdict};

/// Figures of a model beside its baseline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::cli) struct JudgedFile {
    /// Verdict: `pass`, `partial` or `fail`.
    pub(in crate::cli) verdict: String,
    /// Quality in words; null where it was not measured.
    pub(in crate::cli) quality: Option<String>,
    /// Recommendation among the files; may be empty.
    pub(in crate::cli) recommendation: String,
    /// Mean KLD from the baseline, in nats.
    pub(in crate::cli) mean_kld: Option<f64>,
    /// Standard error of the mean KLD.
    mean_kld_stderr: Option<f64>,
    /// Mean KLD that these types cost a file without faults, in nats.
    healthy_kld: Option<f64>,
    /// KLD that 99 % of the tokens stay below, in nats.
    kld_99: Option<f64>,
    /// Share of tokens with the same first choice, 0 to 1.
    pub(in crate::cli) same_top: Option<f64>,
    /// Perplexity of the text.
    perplexity: Option<f64>,
    /// Relative change of the perplexity; 0.02 is 2 %.
    ppl_change: Option<f64>,
    /// Number of tokens that were scored.
    tokens: Option<u64>,
}

/// File of a folder with its figures.
pub(in crate::cli) struct FileInFolder<'a> {
    pub(in crate::cli) label: &'a str,
    pub(in crate::cli) size_bytes: u64,
    /// Its figures, which get their recommendation.
    pub(in crate::cli) figures: &'a mut JudgedFile,
}

impl JudgedFile {
    pub(in crate::cli::verify) fn of(entry: &ModelReport) -> Self {
        let report = &entry.report;
        let divergence = report.divergence.as_ref();
        Self {
            verdict: report.verdict.name().to_owned(),
            quality: report.quality().map(|quality| quality.name().to_owned()),
            recommendation: String::new(),
            mean_kld: divergence.map(|d| d.kld.mean),
            mean_kld_stderr: divergence.map(|d| d.kld.stderr),
            healthy_kld: report.healthy.map(|healthy| healthy.cost.kld),
            kld_99: divergence.map(|d| d.kld.quantiles.p99),
            same_top: divergence.map(|d| d.top1_agreement),
            perplexity: report.perplexity.map(|p| p.value),
            ppl_change: divergence.map(|d| d.ppl_increase().value),
            tokens: report.perplexity.map(|p| p.tokens as u64),
        }
    }

    fn quality(&self) -> Option<Quality> {
        let quality = self.mean_kld.zip(self.same_top).map(|(kld, same)| Quality::of(kld, same));
        quality.filter(|_| self.quality.is_some())
    }
}

/// Compares files: recommends some, and draws the chart of size against mean KLD as an SVG file if there are two.
pub(in crate::cli) fn compare(files: &mut [FileInFolder<'_>]) -> Option<String> {
    let figures = |file: &FileInFolder<'_>| FileFigures {
        verdict: match file.figures.verdict.as_str() {
            "pass" => Verdict::Pass,
            "fail" => Verdict::Fail,
            _ => Verdict::Partial,
        },
        size_bytes: Some(file.size_bytes),
        mean_kld: file.figures.mean_kld,
        quality: file.figures.quality(),
    };
    let words = recommend(&files.iter().map(figures).collect::<Vec<_>>());
    for (file, word) in files.iter_mut().zip(words) {
        file.figures.recommendation = word;
    }
    let point = |file: &FileInFolder<'_>| {
        let JudgedFile { verdict, mean_kld, healthy_kld, .. } = &*file.figures;
        let kld = mean_kld.filter(|kld| kld.is_finite())?;
        Some(charts::point(file.label, file.size_bytes, kld, *healthy_kld, verdict))
    };
    charts::size_against_kld(&files.iter().filter_map(point).collect::<Vec<_>>())
        .map(charts::Chart::into_file)
}
