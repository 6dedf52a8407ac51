//! The verdict and everything it rests on.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::verify::baseline_keys::leaves_results_open;
use crate::verify::{
    Aspect, Cost, Coverage, Distribution, Divergence, EmbeddingReport, Estimate, Figure, FileLabel,
    LimitLine, MaskedReport, Perplexity, PromptFileReport, Quality, RoutingReport, TaskReport, Thresholds,
    WeightReport,
};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// Every check that has findings, beside the limits of [`Figure`]s.
const CHECKS: &[&str] = &[
    "adapter",
    "all-zero",
    "baseline",
    "chat-template",
    "context",
    "embeddings",
    "encoder",
    "graph",
    "header",
    "hparams",
    "keys",
    "label",
    "layout",
    "limits",
    "masked",
    "metadata",
    "min-quality",
    "non-finite",
    "perplexity",
    "prompts",
    "required-keys",
    "round-trip",
    "shapes",
    "source-tokenizer",
    "tasks",
    "tokenizer",
    "tokenizer-parity",
    "towers",
    "trace",
    "trailing-bytes",
    "weights",
    "worse-than-chance",
];

/// The check of this name, as findings that are read from a file name it.
pub(super) fn check_named(name: &str) -> Option<&'static str> {
    let limits = Figure::ALL.iter().map(|figure| figure.limit_name());
    CHECKS.iter().copied().chain(limits).find(|check| *check == name)
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

/// What the types of a file cost a healthy file: what the limits are a multiple of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HealthyCost {
    /// The cost.
    pub cost: Cost,
    /// Tokens over which it was measured on the baseline's own weights; `None` if it is what the types cost a small model.
    pub n_tokens: Option<usize>,
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
    /// What was judged and what was not; change it by [`Report::judged`] and [`Report::not_judged`].
    pub coverage: Coverage,
    /// `general.architecture`.
    pub arch: Option<String>,
    /// What the file is called and what it is, of files whose types follow llama.cpp's mixtures.
    pub label: Option<FileLabel>,
    /// Bits per weight over all tensors, if they could be read.
    pub bits_per_weight: Option<f64>,
    /// The tensors against the baseline's, if there is one.
    pub weights: Option<WeightReport>,
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
    /// Vectors of texts, of encoders.
    pub embeddings: Option<EmbeddingReport>,
    /// What is predicted in the place of masked tokens, or why nothing is; of models that see both ways.
    pub masked: Option<Result<Box<MaskedReport>, String>>,
    /// What the tokens that were run chose, of models with experts.
    pub routing: Option<RoutingReport>,
    /// Questions answered, file by file.
    pub tasks: Vec<TaskReport>,
    /// The text before each of the worst tokens, where a tokenizer tells it.
    pub contexts: Vec<String>,
    /// The limits that the reader set.
    pub thresholds: Thresholds,
    /// The figures that have a limit.
    pub limits: Vec<LimitLine>,
    /// What the limits rest on that the reader did not set.
    pub healthy: Option<HealthyCost>,
    /// Tokens run per second, baseline included.
    pub tokens_per_second: Option<f64>,
}

impl Report {
    /// A report without findings and figures.
    #[must_use]
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
            routing: None,
            tasks: Vec::new(),
            contexts: Vec::new(),
            thresholds,
            limits: Vec::new(),
            healthy: None,
            tokens_per_second: None,
        }
    }

    /// The report about a file that cannot be read at all.
    #[must_use]
    pub fn unreadable(reason: impl Into<String>) -> Self {
        let mut report = Self::new(None, None, Thresholds::default());
        report.add(Finding::error("header", reason));
        for aspect in Aspect::ALL {
            report.not_judged(aspect, "the file could not be read", "a file that can be read");
        }
        report
    }

    /// Adds a finding; the verdict follows.
    pub fn add(&mut self, finding: Finding) {
        self.extend([finding]);
    }

    /// Adds findings; the verdict follows.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
        self.settle();
    }

    /// Notes what was judged; the verdict follows.
    pub fn judged(&mut self, aspect: Aspect, by: impl Into<String>) {
        self.coverage.judged(aspect, by);
        self.settle();
    }

    /// Notes why something was not judged, and what would judge it; the verdict follows.
    pub fn not_judged(&mut self, aspect: Aspect, reason: impl Into<String>, remedy: impl Into<String>) {
        self.coverage.not_judged(aspect, reason, remedy);
        self.settle();
    }

    /// Says that the baseline is the model itself, which judges nothing.
    pub fn own_baseline(&mut self) {
        const ITSELF: &str = "the baseline is the model itself";
        self.add(Finding::warning("baseline", ITSELF));
        for aspect in [Aspect::Metadata, Aspect::Weights, Aspect::Divergence] {
            self.not_judged(aspect, ITSELF, "the model that it was made from");
        }
    }

    /// From now on no open question says that there is no baseline.
    pub(super) fn has_baseline(&mut self) {
        self.coverage.has_baseline();
    }

    /// From now on what is asked of encoders.
    pub(super) fn ask_encoder(&mut self) {
        self.coverage.ask_encoder();
        self.settle();
    }

    /// From now on what is asked of models that predict masked tokens.
    pub(super) fn ask_masked(&mut self) {
        self.coverage.ask_masked();
        self.settle();
    }

    /// Notes further figures beside their limits; the verdict follows.
    pub(super) fn add_limits(&mut self, limits: Vec<LimitLine>) {
        self.limits.extend(limits);
        self.settle();
    }

    /// Notes the figures beside their limits; the verdict follows.
    pub(super) fn set_limits(&mut self, limits: Vec<LimitLine>) {
        self.limits = limits;
        self.settle();
    }

    /// Notes the weights beside the baseline's, with what is wrong with them; the verdict follows.
    pub(super) fn set_weights(&mut self, weights: WeightReport) {
        self.findings.extend(weights.findings.iter().cloned());
        self.coverage.judged(Aspect::Weights, weights.summary());
        self.weights = Some(weights);
        self.settle();
    }

    /// True if every tensor is, byte for byte, what its type makes of the baseline's, and the file lacks no number that changes
    /// results because GGUF has no key for it: then no text can say more.
    pub(super) fn is_reproduced(&self) -> bool {
        self.weights.as_ref().is_some_and(WeightReport::is_reproduced)
            && !self.findings.iter().any(leaves_results_open)
    }

    /// An error fails; a pass has to be earned.
    fn settle(&mut self) {
        let needs_figures = !self.is_reproduced() || !self.thresholds.is_empty();
        self.coverage.need_figures(needs_figures);
        let has_own_limit = self.limits.iter().any(|line| line.is_own);
        self.verdict = match self.findings.iter().map(|finding| finding.severity).max() {
            Some(Severity::Error) => Verdict::Fail,
            Some(Severity::Unchecked) => Verdict::Partial,
            _ if !self.coverage.earns_pass(has_own_limit) => Verdict::Partial,
            _ => Verdict::Pass,
        };
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
        let open = self.coverage.open().map(
            |open| json!({ "aspect": open.aspect.name(), "reason": open.reason, "remedy": open.remedy }),
        );
        let limits = self.limits.iter().map(|line| {
            json!({
                "limit": line.figure.limit_name(), "value": line.value, "at": line.limit, "own": line.is_own,
                "missed": line.is_missed(),
            })
        });
        let mut report = json!({
            "verdict": self.verdict.name(),
            "quality": self.quality().map(Quality::word),
            "answer": self.answer(),
            "recipe": self.label.as_ref().map(|label| &label.recipe),
            "architecture": self.arch,
            "bits_per_weight": self.bits_per_weight,
            "perplexity": self.perplexity.as_ref().map(ppl),
            "bits_per_byte": self.bits_per_byte,
            "tokens_per_second": self.tokens_per_second,
            "findings": findings.collect::<Vec<_>>(),
            "judged": self.coverage.answered().map(|j| json!({ "aspect": j.aspect.name(), "by": j.by })).collect::<Vec<_>>(),
            "not_judged": open.collect::<Vec<_>>(),
            "limits": limits.collect::<Vec<_>>(),
            "healthy_cost": self.healthy.map(|h| json!({
                "kld": h.cost.kld, "kld_99": h.cost.kld_99, "ppl_increase": h.cost.ppl_increase,
                "other_choice": h.cost.other_choice, "tokens": h.n_tokens,
            })),
        });
        let Some(map) = report.as_object_mut() else { return report };
        if let Some(weights) = &self.weights {
            map.insert("weights".to_owned(), weights.to_json());
        }
        if self.prompts.len() > 1 {
            let prompts = self
                .prompts
                .iter()
                .map(|p| json!({ "prompt": p.prompt, "perplexity": p.perplexity.as_ref().map(ppl) }));
            map.insert("prompts".to_owned(), prompts.collect());
        }
        if let Some(embeddings) = &self.embeddings {
            map.insert("embeddings".to_owned(), embeddings.to_json());
        }
        if let Some(masked) = &self.masked {
            let value = masked.as_ref().map_or_else(|why| json!({ "absent": why }), |found| found.to_json());
            map.insert("masked".to_owned(), value);
        }
        if let Some(routing) = &self.routing {
            map.insert("experts".to_owned(), routing.to_json());
        }
        if !self.tasks.is_empty() {
            map.insert("tasks".to_owned(), self.tasks.iter().map(TaskReport::to_json).collect());
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
            let s = &d.statistics;
            let rows = [
                ("kld", distribution(&d.mean, &s.kld)),
                ("dp", distribution(&s.mean_dp, &s.dp)),
                ("top1_agreement", json!(d.top1_agreement)),
                ("top1_stderr", json!(s.same_top.stderr)),
                ("rms_dp", json!(d.rms_dp)),
                ("rms_dp_stderr", json!(s.rms_dp.stderr)),
                ("ppl_ratio", estimate(&s.ppl_ratio)),
                ("ppl_difference", estimate(&s.ppl_difference)),
                ("ln_ppl_correlation", json!(s.ln_ppl_correlation)),
                ("baseline_ppl_stderr", json!(s.baseline_ppl_stderr)),
                ("delta_ln_ppl", estimate(&d.delta_ln_ppl)),
                ("baseline_ppl", json!(d.baseline_ppl)),
                ("worst", worst.collect()),
            ];
            map.extend(rows.map(|(name, value)| (name.to_owned(), value)));
        }
        report
    }
}

fn estimate(e: &Estimate) -> Value {
    json!({ "value": e.value, "stderr": e.stderr })
}

/// A mean and the quantiles beside it.
fn distribution(mean: &Estimate, quantiles: &Distribution) -> Value {
    let own = [("mean", mean.value), ("stderr", mean.stderr)];
    own.into_iter().chain(quantiles.named()).map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources of this room, with those below it.
    fn sources(dir: &std::path::Path, found: &mut String) {
        for entry in fs_err::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else {
                found.push_str(&fs_err::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn every_check_that_finds_something_is_known_by_its_name() {
        let mut text = String::new();
        for room in ["src/verify", "src/cli/verify"] {
            sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(room), &mut text);
        }
        let mut n = 0;
        for start in ["Finding::error(", "Finding::warning(", "Finding::unchecked(", "CHECK: &str ="] {
            for (at, _) in text.match_indices(start) {
                let argument = text[at + start.len()..].trim_start();
                let quoted = argument.strip_prefix('"').and_then(|rest| rest.split('"').next());
                // This list of starts is none of them.
                let is_name = |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
                let Some(name) = quoted.filter(is_name) else { continue };
                // Those of tests have a letter.
                assert!(name.len() == 1 || check_named(name).is_some(), "`{name}` is not in the list");
                n += 1;
            }
        }
        assert!(n > 40, "{n}");
        assert_eq!((check_named("max-kld"), check_named("max-kl")), (Some("max-kld"), None));
    }

    #[test]
    fn the_worst_finding_decides_and_a_pass_is_earned() {
        let mut report = Report::new(None, None, Thresholds::default());
        assert_eq!(report.verdict, Verdict::Partial, "nothing was judged");
        for aspect in Aspect::ALL {
            report.judged(aspect, "x");
        }
        assert_eq!(report.verdict, Verdict::Pass);
        report.add(Finding::warning("a", "b"));
        assert_eq!(report.verdict, Verdict::Pass);
        report.add(Finding::unchecked("a", "b"));
        assert_eq!(report.verdict, Verdict::Partial);
        report.add(Finding::error("a", "b"));
        assert_eq!(report.verdict, Verdict::Fail);
        report.not_judged(Aspect::Weights, "x", "y");
        assert_eq!(report.verdict, Verdict::Fail);
    }
}
