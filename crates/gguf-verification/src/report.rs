//! Report of a verification: the verdict and everything that it is based on.

pub(super) mod document;

use serde::{Deserialize, Serialize};

use crate::checks::baseline_keys::leaves_results_open;
use crate::{
    Aspect, Check, Cost, Coverage, Divergence, EmbeddingReport, FileLabel, LimitLine, MaskedReport,
    Perplexity, PromptFileReport, TaskReport, Thresholds, WeightOutcome, WeightReport,
};
use gguf_core::text::plural;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Noteworthy, without effect on the verdict.
    Warning,
    /// Not judged: the verdict is at best `partial`.
    Unchecked,
    /// Broken file, or a missed threshold.
    Error,
}

impl Severity {
    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Unchecked => "unchecked",
            Self::Error => "error",
        }
    }
}

/// Result of a check that is worth reporting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check that found it.
    pub check: Check,
    /// Severity of the finding.
    pub severity: Severity,
    /// Name of the tensor that the finding is about.
    pub tensor: Option<String>,
    /// Description of the finding.
    pub message: String,
}

impl Finding {
    /// Creates an error about the whole file.
    pub fn error(check: Check, message: impl Into<String>) -> Self {
        Self { check, severity: Severity::Error, tensor: None, message: message.into() }
    }

    /// Creates a warning about the whole file.
    pub fn warning(check: Check, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(check, message) }
    }

    /// Creates a finding about something that could not be judged.
    pub fn unchecked(check: Check, message: impl Into<String>) -> Self {
        Self { severity: Severity::Unchecked, ..Self::error(check, message) }
    }

    /// Makes the finding about one tensor.
    pub fn of(self, tensor: impl Into<String>) -> Self {
        Self { tensor: Some(tensor.into()), ..self }
    }
}

/// Answer to the question whether the file may be shipped, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All checks passed.
    Pass,
    /// Passed as far as it could be judged.
    Partial,
    /// Broken file, or a missed threshold.
    Fail,
}

impl Verdict {
    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Partial => "partial",
            Self::Fail => "fail",
        }
    }
}

/// Cost of the file's types for a healthy file; the default limits are multiples of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HealthyCost {
    /// Measured or typical cost.
    pub cost: Cost,
    /// Number of tokens on which it was measured with the baseline's own weights; `None` if it is the types' cost for a
    /// small model.
    pub n_tokens: Option<usize>,
}

/// Figures of one prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptReport {
    /// Index of the prompt, from 0.
    pub prompt: usize,
    /// Perplexity of its scored tokens, if it has any.
    pub perplexity: Option<Perplexity>,
}

/// Outcome of a verification.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Verdict on the file.
    pub verdict: Verdict,
    /// All findings, in the order of the checks.
    pub findings: Vec<Finding>,
    /// Aspects that were judged and that were not; changed by [`Report::judged`] and [`Report::not_judged`].
    pub coverage: Coverage,
    /// Value of `general.architecture`.
    pub arch: Option<String>,
    /// File name and recipe, for files whose types follow llama.cpp's mixtures.
    pub label: Option<FileLabel>,
    /// Bits per weight over all tensors, if they could be read.
    pub bits_per_weight: Option<f64>,
    /// Comparison of the tensors with the baseline's, if there is one.
    pub weights: Option<WeightReport>,
    /// Perplexity of all scored tokens.
    pub perplexity: Option<Perplexity>,
    /// Scored information per byte of text; `None` without a tokenizer.
    pub bits_per_byte: Option<f64>,
    /// Figures per prompt.
    pub prompts: Vec<PromptReport>,
    /// Figures per file of prompts.
    pub prompt_files: Vec<PromptFileReport>,
    /// Divergence from the baseline.
    pub divergence: Option<Divergence>,
    /// Figures of text vectors, for encoders.
    pub embeddings: Option<EmbeddingReport>,
    /// Figures of predictions at masked tokens, or the reason why there are none; for models with bidirectional
    /// attention.
    pub masked: Option<Result<Box<MaskedReport>, String>>,
    /// Answers to questions, per file of tasks.
    pub tasks: Vec<TaskReport>,
    /// Limits that the user set.
    pub thresholds: Thresholds,
    /// Figures that have a limit.
    pub limits: Vec<LimitLine>,
    /// Cost on which the default limits are based.
    pub healthy: Option<HealthyCost>,
    /// Number of tokens per second, baseline included.
    pub tokens_per_second: Option<f64>,
}

impl Report {
    /// Creates a report without findings and figures.
    pub fn new(arch: Option<String>, bits_per_weight: Option<f64>, thresholds: Thresholds) -> Self {
        Self {
            verdict: Verdict::Partial,
            findings: Vec::new(),
            coverage: Coverage::default(),
            arch,
            label: None,
            bits_per_weight,
            weights: None,
            perplexity: None,
            bits_per_byte: None,
            prompts: Vec::new(),
            prompt_files: Vec::new(),
            divergence: None,
            embeddings: None,
            masked: None,
            tasks: Vec::new(),
            thresholds,
            limits: Vec::new(),
            healthy: None,
            tokens_per_second: None,
        }
    }

    /// Creates the report for a file that cannot be read at all.
    pub fn unreadable(reason: impl Into<String>) -> Self {
        let mut report = Self::new(None, None, Thresholds::default());
        report.add(Finding::error(Check::Header, reason));
        for aspect in Aspect::ALL {
            report.not_judged(aspect, "the file could not be read", "a file that can be read");
        }
        report
    }

    /// Adds a finding and updates the verdict.
    pub fn add(&mut self, finding: Finding) {
        self.extend([finding]);
    }

    /// Adds findings and updates the verdict.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
        self.settle();
    }

    /// Records that an aspect was judged and updates the verdict.
    pub fn judged(&mut self, aspect: Aspect, by: impl Into<String>) {
        self.coverage.judged(aspect, by);
        self.settle();
    }

    /// Records why an aspect was not judged and what would judge it, and updates the verdict.
    pub fn not_judged(&mut self, aspect: Aspect, reason: impl Into<String>, remedy: impl Into<String>) {
        self.coverage.not_judged(aspect, reason, remedy);
        self.settle();
    }

    /// Records that the baseline is the model itself, which judges nothing.
    pub fn own_baseline(&mut self) {
        const ITSELF: &str = "the baseline is the model itself";
        self.add(Finding::warning(Check::Baseline, ITSELF));
        for aspect in [Aspect::Metadata, Aspect::Weights, Aspect::Divergence] {
            self.not_judged(aspect, ITSELF, "the model that it was made from");
        }
    }

    /// Records that there is a baseline: no open question may ask for one.
    pub(super) fn has_baseline(&mut self) {
        self.coverage.has_baseline();
    }

    /// Switches to the aspects that are asked of encoders.
    pub(super) fn ask_encoder(&mut self) {
        self.coverage.ask_encoder();
        self.settle();
    }

    /// Switches to the aspects that are asked of models that predict masked tokens.
    pub(super) fn ask_masked(&mut self) {
        self.coverage.ask_masked();
        self.settle();
    }

    /// Adds further figures with their limits and updates the verdict.
    pub(super) fn add_limits(&mut self, limits: Vec<LimitLine>) {
        self.limits.extend(limits);
        self.settle();
    }

    /// Sets the figures with their limits and updates the verdict.
    pub(super) fn set_limits(&mut self, limits: Vec<LimitLine>) {
        self.limits = limits;
        self.settle();
    }

    /// Sets the comparison of the weights, adds its findings and updates the verdict.
    pub(super) fn set_weights(&mut self, weights: WeightReport) {
        self.findings.extend(weights.findings.iter().cloned());
        match weights.with(WeightOutcome::Moved).count() {
            0 => self.coverage.judged(Aspect::Weights, weights.summary()),
            n => {
                let reason =
                    format!("calibration moved {}: only large damage would show", plural(n as u64, "tensor"));
                self.coverage.not_judged(Aspect::Weights, reason, "`--prompts`: the divergence decides");
            }
        }
        self.weights = Some(weights);
        self.settle();
    }

    /// Returns true if the weights are what the file's types make of the baseline's, bit for bit.
    pub(super) fn is_copy(&self) -> bool {
        self.weights.as_ref().is_some_and(WeightReport::is_copy)
    }

    /// Returns true if every tensor equals, byte for byte, the baseline's quantized to its type, and no missing key
    /// changes results because GGUF has no key for it. Then no text can reveal more.
    pub(super) fn is_reproduced(&self) -> bool {
        self.weights.as_ref().is_some_and(WeightReport::is_reproduced)
            && !self.findings.iter().any(leaves_results_open)
    }

    /// Updates the verdict: an error fails, and a pass requires that enough was judged.
    fn settle(&mut self) {
        let needs_figures = !self.is_reproduced() || !self.thresholds.is_empty();
        self.coverage.need_figures(needs_figures);
        let mut own = self.limits.iter().filter(|line| line.is_own);
        let (has_own_limit, is_close) = (own.clone().next().is_some(), own.any(LimitLine::is_close));
        self.verdict = match self.findings.iter().map(|finding| finding.severity).max() {
            Some(Severity::Error) => Verdict::Fail,
            Some(Severity::Unchecked) => Verdict::Partial,
            _ if is_close || !self.coverage.earns_pass(has_own_limit) => Verdict::Partial,
            _ => Verdict::Pass,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Figure;

    #[test]
    fn the_worst_finding_decides_and_a_pass_is_earned() {
        let mut report = Report::new(None, None, Thresholds::default());
        assert_eq!(report.verdict, Verdict::Partial, "nothing was judged");
        for aspect in Aspect::ALL {
            report.judged(aspect, "x");
        }
        assert_eq!(report.verdict, Verdict::Pass);
        report.add(Finding::warning(Check::Keys, "b"));
        assert_eq!(report.verdict, Verdict::Pass);
        report.add(Finding::unchecked(Check::Keys, "b"));
        assert_eq!(report.verdict, Verdict::Partial);
        report.add(Finding::error(Check::Keys, "b"));
        assert_eq!(report.verdict, Verdict::Fail);
        report.not_judged(Aspect::Weights, "x", "y");
        assert_eq!(report.verdict, Verdict::Fail);
    }

    /// Weights that are all reproduced earn a pass, but not for a limit that the figure may not keep.
    #[test]
    fn a_limit_within_the_error_is_open() {
        let verdict = |figure, value, limit| {
            let mut report = Report::new(None, None, Thresholds::default().with(figure, Some(limit)));
            for aspect in Aspect::ALL {
                report.judged(aspect, "x");
            }
            report.set_limits(vec![LimitLine::new(figure, value, Some(0.01), limit, true)]);
            report.verdict
        };
        for (figure, sign) in [(Figure::Top1, 1.0), (Figure::Kld, -1.0), (Figure::PplIncrease, -1.0)] {
            assert_eq!(verdict(figure, 0.85, 0.85 - sign * 0.025), Verdict::Pass, "{figure:?}");
            assert_eq!(verdict(figure, 0.85, 0.85 - sign * 0.015), Verdict::Partial, "{figure:?}");
            assert_eq!(verdict(figure, 0.85, 0.85 + sign * 0.015), Verdict::Partial, "{figure:?}");
        }
    }
}
