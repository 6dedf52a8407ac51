//! The verdict and everything it rests on.

use serde_json::{Value, json};

use crate::verify::{Divergence, Perplexity, PromptFileReport, Thresholds};

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
    /// Per file of prompts.
    pub prompt_files: Vec<PromptFileReport>,
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
            prompt_files: Vec::new(),
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
        self.extend([finding]);
    }

    /// Adds findings; the verdict follows.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
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
        if self.prompt_files.len() > 1 {
            let files = self.prompt_files.iter().map(PromptFileReport::to_json);
            map.insert("prompt_files".to_owned(), files.collect());
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
}
