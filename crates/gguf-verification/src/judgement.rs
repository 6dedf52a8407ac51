//! Judgement of the figures: enough text, better than chance, within the limits.

use serde::{Deserialize, Serialize};

use crate::cost::Cost;
use crate::reference_twin::{TwinRun, cost_of};
use crate::samples::is_builtin;
use crate::{
    Aspect, Check, Divergence, Figure, Finding, HealthyCost, LimitLine, Measured, Model, Perplexity,
    PromptSource, Report,
};
use gguf_core::text::plural;
use gguf_engine::{GraphPlan, ModelKind};
use gguf_format::{FileType, Value};

/// Minimum number of scored tokens, and largest standard error as a share of the perplexity, to judge a file.
const LEAST_TOKENS: usize = 1000;
const MOST_ERROR: f64 = 0.05;
/// Number of standard errors by which a limit must be kept in a comparison with a baseline. Both models see the same
/// text, so the error of their differences counts. With fewer than `LEAST_PAIRED` tokens the error itself is unknown,
/// as is a 99th percentile.
const PAIRED_ERRORS: f64 = 3.0;
const LEAST_PAIRED: usize = 100;

/// Facts about the model that a verdict on its figures needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JudgedModel {
    /// Number of tokens of the vocabulary.
    pub(super) n_vocab: usize,
    /// True if the model predicts the next token from all before it.
    pub(super) is_likelihood: bool,
    /// Name of the type that the file declares: `Q4_K_M`.
    pub(super) file_type: String,
    /// True if the built-in text is run because no text was given: a model may not know its languages.
    pub(super) has_builtin_text: bool,
}

impl JudgedModel {
    pub(super) fn of(model: &Model<'_>, plan: &GraphPlan, prompts: &[PromptSource]) -> Self {
        let id = model.metadata.get("general.file_type").and_then(Value::as_u64);
        let named = id.and_then(|id| u32::try_from(id).ok()).and_then(FileType::from_id);
        Self {
            n_vocab: plan.n_vocab,
            is_likelihood: plan.kind == ModelKind::Decoder,
            file_type: named.map_or_else(|| "its types".to_owned(), |found| found.name().to_owned()),
            has_builtin_text: is_builtin(prompts),
        }
    }
}

/// Returns the cost of the file's types for a healthy file: measured, or `typical` (of a small model) if that failed.
pub(super) fn healthy_cost(typical: Cost, twin: TwinRun, report: &mut Report) -> HealthyCost {
    let typical = HealthyCost { cost: typical, n_tokens: None };
    match twin {
        TwinRun::None => typical,
        TwinRun::Positions(positions) => cost_of(&positions).unwrap_or(typical),
        TwinRun::Failed(error) => {
            let message = format!("the file is judged by what its types cost a small model: {error}");
            report.add(Finding::warning(Check::Limits, message));
            typical
        }
    }
}

/// Judges the figures: by the amount of text, by chance, and by the limits.
pub(super) fn judge_figures(report: &mut Report, model: &JudgedModel) {
    let &JudgedModel { n_vocab, is_likelihood, has_builtin_text, .. } = model;
    let Some(perplexity) = report.perplexity else { return };
    // Two standard errors off: a few tokens prove nothing.
    let low = perplexity.value - 2.0 * perplexity.stderr;
    let is_chance = is_likelihood && perplexity.tokens > 1 && low > n_vocab as f64;
    if !perplexity.value.is_finite() || is_chance {
        let finding = worse_than_chance(&perplexity, n_vocab, has_builtin_text, report.divergence.as_ref());
        report.add(finding);
    }
    let defaults = report.healthy.map(|healthy| healthy.cost.limits()).unwrap_or_default();
    let measured = Measured {
        perplexity: Some(&perplexity),
        divergence: report.divergence.as_ref(),
        ..Measured::default()
    };
    let mut limits = report.thresholds.lines(&defaults, &measured);
    if !is_likelihood {
        limits.retain(|line| !line.figure.row().is_likelihood);
    }
    let missed: Vec<Finding> = limits
        .iter()
        .filter(|line| line.is_missed)
        .map(|line| Finding::error(Check::Limit(line.figure), reason(line, model, report.healthy)))
        .collect();
    report.extend(missed);
    judge_sample(report, &perplexity, &limits, is_likelihood);
    if has_builtin_text && report.divergence.is_none() {
        const OWN: &str = "`--prompts` with text that the model is made for, and `--baseline`";
        report.not_judged(Aspect::Perplexity, "only the text that comes with the program was run", OWN);
    }
    report.set_limits(limits);
}

/// Returns a finding for predictions that are worse than guessing. The file is at fault, unless its baseline does no
/// better, or the built-in text was used without a baseline.
fn worse_than_chance(
    perplexity: &Perplexity,
    n_vocab: usize,
    has_builtin_text: bool,
    divergence: Option<&Divergence>,
) -> Finding {
    const CHECK: Check = Check::WorseThanChance;
    let value = perplexity.value;
    let message = format!("perplexity {value:.1}: guessing among {n_vocab} tokens does better");
    if value.is_finite() && divergence.is_some_and(|d| d.baseline_ppl > n_vocab as f64) {
        return Finding::warning(
            CHECK,
            format!("{message}, as it does of the baseline: no text for this model"),
        );
    }
    if value.is_finite() && has_builtin_text && divergence.is_none() {
        return Finding::warning(
            CHECK,
            format!("{message}; give text that the model is made for: `--prompts FILE`"),
        );
    }
    Finding::error(CHECK, message)
}

/// Records whether enough text was run for its figures to be meaningful.
fn judge_sample(report: &mut Report, perplexity: &Perplexity, limits: &[LimitLine], is_likelihood: bool) {
    const MORE: &str = "more text: `--prompts`, `--chunks`, `--score all`";
    let (n, share) = (perplexity.tokens, perplexity.stderr / perplexity.value);
    let too_little = if is_decided(report, n, limits) {
        None
    } else if n < LEAST_TOKENS {
        Some(format!("only {} scored, a verdict needs {LEAST_TOKENS}", plural(n as u64, "token")))
    } else if is_likelihood && (share > MOST_ERROR || share.is_nan()) {
        let (share, most) = (100.0 * share, 100.0 * MOST_ERROR);
        Some(format!(
            "the perplexity of {n} tokens is uncertain by {share:.1} %, a verdict needs {most} % or less"
        ))
    } else {
        None
    };
    let is_of_text = |line: &LimitLine| line.figure == Figure::Ppl;
    let is_paired = |line: &LimitLine| {
        !is_of_text(line) && (line.figure == Figure::Kld || line.is_own || !line.is_kept())
    };
    match too_little.clone().or_else(|| too_close(limits, is_of_text)) {
        Some(why) => report.not_judged(Aspect::Perplexity, why, MORE),
        None => report.judged(Aspect::Perplexity, plural(n as u64, "token")),
    }
    if report.divergence.is_some() {
        match too_little.or_else(|| too_close(limits, is_paired)) {
            Some(why) => report.not_judged(Aspect::Divergence, why, MORE),
            None => report.judged(Aspect::Divergence, plural(n as u64, "token")),
        }
    }
}

/// Describes the first of some limits that is too close to its figure to tell.
pub(super) fn too_close(limits: &[LimitLine], is_meant: impl Fn(&LimitLine) -> bool) -> Option<String> {
    let line = limits.iter().find(|line| line.is_close() && is_meant(line))?;
    let stderr = line.figure.show(line.stderr.unwrap_or(0.0));
    Some(format!("{} is too close to tell: ± {stderr}", line.relation()))
}

/// Returns true if more text would not change the verdict. Either every tensor is reproduced byte for byte, or the
/// divergence and all limits that the user set are kept by [`PAIRED_ERRORS`] standard errors.
fn is_decided(report: &Report, n: usize, limits: &[LimitLine]) -> bool {
    if report.divergence.is_none() {
        return false;
    }
    let paired = limits.iter().find(|line| line.figure == Figure::Kld);
    let mut own = limits.iter().filter(|line| line.is_own && line.figure != Figure::Ppl);
    let is_kept = |line: &LimitLine| line.is_kept_by(PAIRED_ERRORS);
    report.is_reproduced() || (n >= LEAST_PAIRED && paired.is_some_and(is_kept) && own.all(is_kept))
}

/// Describes a missed limit in one line: the figure, the limit, and the origin of the limit.
fn reason(line: &LimitLine, model: &JudgedModel, healthy: Option<HealthyCost>) -> String {
    let relation = line.relation();
    let Some(healthy) = healthy.filter(|_| !line.is_own) else {
        return format!("{relation}, which an option asks for");
    };
    let kld = Figure::Kld.show(healthy.cost.kld);
    let whom = match healthy.n_tokens {
        Some(n) => format!("this model a KLD of {kld}, measured over {n} tokens"),
        None => format!("a model of 135 million parameters a KLD of {kld}"),
    };
    format!("{relation} for {}, which costs {whom}", model.file_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Estimate, Spread, Thresholds};

    fn report(value: f64, stderr: f64, own: Thresholds) -> Report {
        let mut report = Report::new(Some("llama".to_owned()), None, own);
        report.divergence = Some(Divergence {
            kld: Spread { mean: value, stderr, ..Spread::default() },
            top1_agreement: 1.0,
            delta_ln_ppl: Estimate { value: 0.0, stderr: 0.001 },
            baseline_ppl: 10.0,
            ..Divergence::default()
        });
        report
    }

    fn open(mut report: Report, tokens: usize, share: f64, kld: f64) -> Vec<Aspect> {
        let perplexity =
            Perplexity { value: 10.0, stderr: 10.0 * share, tokens, ids_digest: None, total_nll: 0.0 };
        let defaults = Thresholds::default().with(Figure::Kld, Some(kld));
        let measured = Measured {
            perplexity: Some(&perplexity),
            divergence: report.divergence.as_ref(),
            ..Measured::default()
        };
        let limits = report.thresholds.lines(&defaults, &measured);
        judge_sample(&mut report, &perplexity, &limits, true);
        let open = report.coverage.open().map(|open| open.aspect);
        open.filter(|aspect| [Aspect::Perplexity, Aspect::Divergence].contains(aspect)).collect()
    }

    #[test]
    fn the_paired_error_decides_beside_a_baseline() {
        let none = Thresholds::default();
        let both = [Aspect::Perplexity, Aspect::Divergence];
        // The perplexity alone is uncertain by 8 %, the divergence is not.
        assert!(open(report(0.0043, 0.0002, none), 1016, 0.08, 0.017).is_empty());
        assert!(open(report(0.0043, 0.0004, none), 200, 0.2, 0.017).is_empty());
        assert_eq!(open(report(0.0043, 0.0002, none), 99, 0.2, 0.017), both);
        assert_eq!(open(report(0.0043, 0.005, none), 1016, 0.08, 0.017), both);
        // Enough text for a perplexity: two errors are enough, as without a baseline.
        assert!(open(report(0.0043, 0.005, none), 5000, 0.02, 0.017).is_empty());
        let own = none.with(Figure::PplIncrease, Some(0.002));
        assert_eq!(open(report(0.0043, 0.0002, own), 1016, 0.08, 0.017), both);
        let mut alone = report(0.0043, 0.0002, none);
        alone.divergence = None;
        assert_eq!(open(alone, 1016, 0.08, 0.017), both);
    }
}
