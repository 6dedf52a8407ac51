//! What figures amount to: enough text, better than chance, within the limits.

use serde::{Deserialize, Serialize};

use crate::engine::GraphPlan;
use crate::engine::plan::ModelKind;
use crate::gguf::{FileType, Value};
use crate::verify::cost::Cost;
use crate::verify::healthy::{TwinRun, cost_of};
use crate::verify::{Aspect, Figure, Finding, HealthyCost, LimitLine, Model, Perplexity, Report};

/// Fewer scored tokens, and a standard error above this share of the perplexity, say nothing about a file.
const LEAST_TOKENS: usize = 1000;
const MOST_ERROR: f64 = 0.05;

/// What a verdict on figures has to know of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Judged {
    /// Tokens that it chooses among.
    pub(super) n_vocab: usize,
    /// Whether it predicts the next token of all before.
    pub(super) is_likelihood: bool,
    /// What the file is, by its own word: `Q4_K_M`.
    pub(super) file_type: String,
}

impl Judged {
    pub(super) fn of(model: &Model<'_>, plan: &GraphPlan) -> Self {
        let id = model.metadata.get("general.file_type").and_then(Value::as_u64);
        let named = id.and_then(|id| u32::try_from(id).ok()).and_then(FileType::from_id);
        Self {
            n_vocab: plan.n_vocab,
            is_likelihood: plan.kind == ModelKind::Decoder,
            file_type: named.map_or_else(|| "its types".to_owned(), |found| found.name().to_owned()),
        }
    }
}

/// What the file's types cost a healthy file: measured, or `typical` of a small model where that could not be.
pub(super) fn healthy_cost(typical: Cost, twin: TwinRun, report: &mut Report) -> HealthyCost {
    let typical = HealthyCost { cost: typical, n_tokens: None };
    match twin {
        TwinRun::None => typical,
        TwinRun::Positions(positions) => cost_of(&positions).unwrap_or(typical),
        TwinRun::Failed(error) => {
            let message = format!("the limits are those of a small model: {error}");
            report.add(Finding::warning("limits", message));
            typical
        }
    }
}

/// Judges the figures: by their number, by chance, and by the limits.
pub(super) fn judge_figures(report: &mut Report, model: &Judged) {
    let &Judged { n_vocab, is_likelihood, .. } = model;
    let Some(perplexity) = report.perplexity else { return };
    // Two standard errors off: a few tokens prove nothing.
    let low = perplexity.value - 2.0 * perplexity.stderr;
    let is_chance = is_likelihood && perplexity.tokens > 1 && low > n_vocab as f64;
    if !perplexity.value.is_finite() || is_chance {
        let message =
            format!("perplexity {:.1}: guessing among {n_vocab} tokens does better", perplexity.value);
        report.add(Finding::error("worse-than-chance", message));
    }
    let defaults = report.healthy.map(|healthy| healthy.cost.limits()).unwrap_or_default();
    let mut limits = report.thresholds.lines(&defaults, &perplexity, report.divergence.as_ref());
    if !is_likelihood {
        limits.retain(|line| !matches!(line.figure, Figure::Ppl | Figure::PplIncrease));
    }
    let missed: Vec<Finding> = limits
        .iter()
        .filter(|line| line.is_missed())
        .map(|line| Finding::error(line.figure.limit_name(), reason(line, model, report.healthy)))
        .collect();
    report.extend(missed);
    judge_sample(report, &perplexity, &limits, is_likelihood);
    report.set_limits(limits);
}

/// Whether enough text was run for its figures to say something.
fn judge_sample(report: &mut Report, perplexity: &Perplexity, limits: &[LimitLine], is_likelihood: bool) {
    const MORE: &str = "more text: `--prompts`, `--chunks`, `--score all`";
    let (n, share) = (perplexity.tokens, perplexity.stderr / perplexity.value);
    let too_little = if n < LEAST_TOKENS {
        Some(format!("only {n} tokens were scored, figures need {LEAST_TOKENS}"))
    } else if is_likelihood && (share > MOST_ERROR || share.is_nan()) {
        let (share, most) = (100.0 * share, 100.0 * MOST_ERROR);
        Some(format!("its error is {share:.1} % over {n} tokens, {most} % is the most"))
    } else {
        None
    };
    let close = |figure: Figure| {
        let line = limits.iter().find(|line| line.figure == figure && line.is_close())?;
        let stderr = line.figure.show(line.stderr.unwrap_or(0.0));
        Some(format!("{} is too close to tell: ± {stderr}", line.relation()))
    };
    match too_little.clone().or_else(|| close(Figure::Ppl)) {
        Some(why) => report.not_judged(Aspect::Perplexity, why, MORE),
        None => report.judged(Aspect::Perplexity, format!("{n} tokens")),
    }
    if report.divergence.is_some() {
        match too_little.or_else(|| close(Figure::Kld)) {
            Some(why) => report.not_judged(Aspect::Divergence, why, MORE),
            None => report.judged(Aspect::Divergence, format!("{n} tokens")),
        }
    }
}

/// A limit that is missed, in a line: the figure, the limit, and where it comes from.
fn reason(line: &LimitLine, model: &Judged, healthy: Option<HealthyCost>) -> String {
    let relation = line.relation();
    let Some(healthy) = healthy.filter(|_| !line.is_own) else {
        return format!("{relation}, the limit that was set");
    };
    let kld = Figure::Kld.show(healthy.cost.kld);
    let whom = match healthy.n_tokens {
        Some(n) => format!("this model a KLD of {kld}, measured over {n} tokens"),
        None => format!("a model of 135 million parameters a KLD of {kld}"),
    };
    format!("{relation} for {}, which costs {whom}", model.file_type)
}
