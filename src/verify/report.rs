//! The verdict and everything it rests on.

use serde_json::{Value, json};

use crate::verify::{Divergence, Perplexity};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Warning,
    /// Could not be judged: the verdict is at best `partial`.
    Unchecked,
    /// The file is broken, or a threshold is missed.
    Error,
}

impl Severity {
    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Unchecked => "unchecked",
            Self::Error => "error",
        }
    }
}

/// Something a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check.
    pub check: &'static str,
    /// How bad.
    pub severity: Severity,
    /// The tensor it is about.
    pub tensor: Option<String>,
    /// What was found.
    pub message: String,
}

impl Finding {
    /// An error about the whole file.
    #[must_use]
    pub fn error(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, severity: Severity::Error, tensor: None, message: message.into() }
    }

    /// A warning about the whole file.
    #[must_use]
    pub fn warning(check: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(check, message) }
    }

    /// Something that could not be judged.
    #[must_use]
    pub fn unchecked(check: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Unchecked, ..Self::error(check, message) }
    }

    /// The same about one tensor.
    #[must_use]
    pub fn of(self, tensor: impl Into<String>) -> Self {
        Self { tensor: Some(tensor.into()), ..self }
    }
}

/// May the file be shipped? In order from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Every check passed.
    Pass,
    /// Passed as far as it could be judged.
    Partial,
    /// Broken, or a threshold is missed.
    Fail,
}

impl Verdict {
    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Partial => "partial",
            Self::Fail => "fail",
        }
    }
}

/// Limits that a file must keep; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    /// Perplexity.
    pub max_ppl: Option<f64>,
    /// Increase of the perplexity over the baseline, as a share (0.02 is 2 %).
    pub max_ppl_increase: Option<f64>,
    /// Mean divergence.
    pub max_kld: Option<f64>,
    /// 99th percentile of the divergence.
    pub max_kld_99: Option<f64>,
    /// Share of tokens with the same most likely prediction.
    pub min_top1: Option<f64>,
}

impl Thresholds {
    /// Defaults against a baseline, by the bits per weight of the file.
    ///
    /// They are set at some four times what the plain recipes of each width cost a model of 135 million parameters
    /// (small models suffer most): a file beyond them is not merely small but damaged.
    #[must_use]
    pub fn for_bits_per_weight(bpw: f64) -> Self {
        let rows = [
            // from bpw, mean, 99 %, increase, top-1
            (15.0, 0.002, 0.02, 0.005, 0.97),
            (7.5, 0.01, 0.06, 0.02, 0.93),
            (6.0, 0.04, 0.25, 0.05, 0.88),
            (5.0, 0.12, 0.7, 0.15, 0.80),
            (4.5, 0.3, 1.7, 0.35, 0.70),
            (4.0, 1.0, 5.0, 1.0, 0.50),
            (3.0, 2.0, 9.0, 4.0, 0.35),
            (0.0, 4.0, 16.0, 20.0, 0.15),
        ];
        let (_, kld, kld_99, increase, top1) =
            rows.into_iter().find(|row| bpw >= row.0).unwrap_or(rows[rows.len() - 1]);
        Self {
            max_ppl: None,
            max_ppl_increase: Some(increase),
            max_kld: Some(kld),
            max_kld_99: Some(kld_99),
            min_top1: Some(top1),
        }
    }

    /// These limits where they are set, else the others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            max_ppl: self.max_ppl.or(other.max_ppl),
            max_ppl_increase: self.max_ppl_increase.or(other.max_ppl_increase),
            max_kld: self.max_kld.or(other.max_kld),
            max_kld_99: self.max_kld_99.or(other.max_kld_99),
            min_top1: self.min_top1.or(other.min_top1),
        }
    }

    /// The limits that a measurement misses. A measurement that is not a number misses every limit.
    #[must_use]
    pub fn missed(&self, perplexity: &Perplexity, divergence: Option<&Divergence>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut above = |name: &'static str, value: f64, limit: Option<f64>| {
            if let Some(limit) = limit.filter(|&limit| value.is_nan() || value > limit) {
                findings.push(Finding::error(name, format!("{value:.6} is above the limit of {limit}")));
            }
        };
        above("max-ppl", perplexity.value, self.max_ppl);
        if let Some(d) = divergence {
            above("max-ppl-increase", d.delta_ln_ppl.value.exp_m1(), self.max_ppl_increase);
            above("max-kld", d.mean.value, self.max_kld);
            above("max-kld-99", d.p99, self.max_kld_99);
            if let Some(limit) = self.min_top1.filter(|&limit| d.top1_agreement < limit) {
                let message = format!("{:.4} is below the limit of {limit}", d.top1_agreement);
                findings.push(Finding::error("min-top1", message));
            }
        }
        findings
    }
}

/// What one prompt says.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptReport {
    /// Its number.
    pub prompt: usize,
    /// Perplexity of its scored tokens, if it has any.
    pub perplexity: Option<Perplexity>,
}

/// The outcome of a verification.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The verdict.
    pub verdict: Verdict,
    /// All findings, in the order of the checks.
    pub findings: Vec<Finding>,
    /// `general.architecture`.
    pub arch: Option<String>,
    /// Bits per weight over all tensors, if they could be read.
    pub bits_per_weight: Option<f64>,
    /// Perplexity of all scored tokens.
    pub perplexity: Option<Perplexity>,
    /// Scored information per byte of text, where a tokenizer tells the bytes.
    pub bits_per_byte: Option<f64>,
    /// Per prompt.
    pub prompts: Vec<PromptReport>,
    /// Against the baseline.
    pub divergence: Option<Divergence>,
    /// The text before each of the worst tokens, where a tokenizer tells it.
    pub contexts: Vec<String>,
    /// The limits that were applied.
    pub thresholds: Thresholds,
    /// Tokens run per second, baseline included.
    pub tokens_per_second: Option<f64>,
}

impl Report {
    /// A report without findings and figures.
    #[must_use]
    pub fn new(arch: Option<String>, bits_per_weight: Option<f64>, thresholds: Thresholds) -> Self {
        Self {
            verdict: Verdict::Pass,
            findings: Vec::new(),
            arch,
            bits_per_weight,
            perplexity: None,
            bits_per_byte: None,
            prompts: Vec::new(),
            divergence: None,
            contexts: Vec::new(),
            thresholds,
            tokens_per_second: None,
        }
    }

    /// The report about a file that cannot be read at all.
    #[must_use]
    pub fn unreadable(reason: impl Into<String>) -> Self {
        let mut report = Self::new(None, None, Thresholds::default());
        report.add(Finding::error("header", reason));
        report
    }

    /// Adds a finding; the verdict follows.
    pub fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
        self.verdict = Self::judge(&self.findings);
    }

    /// The verdict that findings amount to.
    #[must_use]
    pub fn judge(findings: &[Finding]) -> Verdict {
        match findings.iter().map(|finding| finding.severity).max() {
            Some(Severity::Error) => Verdict::Fail,
            Some(Severity::Unchecked) => Verdict::Partial,
            _ => Verdict::Pass,
        }
    }

    /// The report as JSON; names are stable.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let ppl = |p: &Perplexity| json!({ "value": p.value, "stderr": p.stderr, "tokens": p.tokens });
        let findings = self.findings.iter().map(|f| {
            json!({
                "check": f.check, "severity": f.severity.name(), "tensor": f.tensor, "message": f.message,
            })
        });
        let mut report = json!({
            "verdict": self.verdict.name(),
            "architecture": self.arch,
            "bits_per_weight": self.bits_per_weight,
            "perplexity": self.perplexity.as_ref().map(ppl),
            "bits_per_byte": self.bits_per_byte,
            "tokens_per_second": self.tokens_per_second,
            "findings": findings.collect::<Vec<_>>(),
        });
        let Some(map) = report.as_object_mut() else { return report };
        if self.prompts.len() > 1 {
            let prompts = self
                .prompts
                .iter()
                .map(|p| json!({ "prompt": p.prompt, "perplexity": p.perplexity.as_ref().map(ppl) }));
            map.insert("prompts".to_owned(), prompts.collect());
        }
        if let Some(d) = &self.divergence {
            let worst = d.worst.iter().enumerate().map(|(at, w)| {
                json!({
                    "prompt": w.prompt, "token_index": w.at, "kld": w.kld, "token": w.token,
                    "baseline_top": w.baseline_top, "model_top": w.model_top, "context": self.contexts.get(at),
                })
            });
            let rows = [
                (
                    "kld",
                    json!({
                        "mean": d.mean.value, "stderr": d.mean.stderr, "median": d.median, "p99": d.p99,
                        "p999": d.p999, "max": d.max,
                    }),
                ),
                ("top1_agreement", json!(d.top1_agreement)),
                ("rms_dp", json!(d.rms_dp)),
                ("delta_ln_ppl", json!({ "value": d.delta_ln_ppl.value, "stderr": d.delta_ln_ppl.stderr })),
                ("baseline_ppl", json!(d.baseline_ppl)),
                ("worst", worst.collect()),
            ];
            map.extend(rows.map(|(name, value)| (name.to_owned(), value)));
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        assert_eq!(Report::judge(&[]), Verdict::Pass);
        let warning = Finding::warning("a", "b");
        assert_eq!(Report::judge(std::slice::from_ref(&warning)), Verdict::Pass);
        let unchecked = Finding::unchecked("a", "b");
        assert_eq!(Report::judge(&[unchecked.clone(), warning]), Verdict::Partial);
        assert_eq!(Report::judge(&[Finding::error("a", "b"), unchecked]), Verdict::Fail);
    }

    #[test]
    fn limits_grow_as_bits_shrink_and_nan_passes_none() {
        let widths = [16.0, 8.5, 6.6, 5.5, 4.85, 4.25, 3.4, 2.1];
        let limits = widths.map(|bpw| Thresholds::for_bits_per_weight(bpw).max_kld.unwrap());
        assert!(limits.is_sorted());
        let set = Thresholds { max_ppl: Some(10.0), ..Thresholds::default() };
        let ppl = |value| Perplexity { value, stderr: 0.0, tokens: 1, total_nll: 0.0 };
        assert!(set.missed(&ppl(9.0), None).is_empty());
        assert_eq!(set.missed(&ppl(11.0), None).len(), 1);
        assert_eq!(set.missed(&ppl(f64::NAN), None).len(), 1);
    }
}
