//! Report as programs read it: names of keys are stable.

use serde::Serialize;

use crate::masked::document::MaskedDocument;
use crate::weights::document::WeightDocument;
use crate::{
    Divergence, EmbeddingReport, Finding, HealthyCost, JudgedAspect, LimitLine, Perplexity, PromptFileReport,
    PromptReport, Quality, Report, TaskReport, UnjudgedAspect, Verdict,
};

/// Figures and findings of a [`Report`], in the order in which they are printed.
#[derive(Clone, Debug, Serialize)]
pub struct ReportDocument<'a> {
    /// Verdict on the file; `partial` is a pass as far as it could be judged.
    verdict: Verdict,
    /// Closeness of the predictions to the baseline's; null if it was not measured.
    quality: Option<Quality>,
    /// Two readable sentences: whether the file is intact, and how good it is.
    answer: String,
    /// Readable name of the llama.cpp mixture that the tensor types match; null for adapters, towers and checkpoints.
    recipe: Option<&'a str>,
    /// Value of `general.architecture`.
    architecture: Option<&'a str>,
    /// Bits per weight over all tensors, if they could be read.
    bits_per_weight: Option<f64>,
    /// Perplexity of all scored tokens; null if nothing was computed.
    perplexity: Option<Perplexity>,
    /// Scored information per byte of the prompts' text; null without a tokenizer.
    bits_per_byte: Option<f64>,
    /// Speed of the run, baseline included; null for a report of combined parts.
    tokens_per_second: Option<f64>,
    /// Findings, and questions that could not be judged.
    findings: &'a [Finding],
    /// Answered questions.
    judged: Vec<JudgedAspect>,
    /// Open questions.
    not_judged: Vec<UnjudgedAspect>,
    /// Figures that have a limit.
    limits: &'a [LimitLine],
    /// Cost of the file's types in an undamaged file, of which the default limits are multiples; null without a
    /// baseline.
    healthy_cost: Option<HealthyCostDocument>,
    /// Comparison of the tensors with the baseline's.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<WeightDocument<'a>>,
    /// Figures per prompt, if there are several.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    prompts: &'a [PromptReport],
    /// Vectors of texts, of encoders.
    #[serde(skip_serializing_if = "Option::is_none")]
    embeddings: Option<&'a EmbeddingReport>,
    /// Predictions at masked tokens, of models that could predict them: encoders and diffusion models.
    #[serde(skip_serializing_if = "Option::is_none")]
    masked: Option<MaskedDocument<'a>>,
    /// Answers to questions, one entry per file of tasks.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tasks: &'a [TaskReport],
    /// Figures per file of prompts, if there are several.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    prompt_files: &'a [PromptFileReport],
    /// Divergence from the baseline, if both were run.
    #[serde(flatten)]
    divergence: Option<&'a Divergence>,
}

/// Cost of the file's types for an undamaged file.
#[derive(Clone, Copy, Debug, Serialize)]
struct HealthyCostDocument {
    /// Mean divergence, in nats per token.
    kld: f64,
    /// 99th percentile of the divergence.
    kld_99: f64,
    /// Increase of the perplexity, as a share.
    ppl_increase: f64,
    /// Share of tokens with another first choice.
    other_choice: f64,
    /// Number of tokens on which it was measured with the baseline's own weights; null if it is the types' cost for a
    /// small model, from a table.
    tokens: Option<usize>,
}

impl<'a> From<&'a Report> for ReportDocument<'a> {
    fn from(report: &'a Report) -> Self {
        Self {
            verdict: report.verdict,
            quality: report.quality(),
            answer: report.answer(),
            recipe: report.label.as_ref().map(|label| label.recipe.as_str()),
            architecture: report.arch.as_deref(),
            bits_per_weight: report.bits_per_weight,
            perplexity: report.perplexity,
            bits_per_byte: report.bits_per_byte,
            tokens_per_second: report.tokens_per_second,
            findings: &report.findings,
            judged: report.coverage.answered().collect(),
            not_judged: report.coverage.open().collect(),
            limits: &report.limits,
            healthy_cost: report.healthy.map(HealthyCostDocument::from),
            weights: report.weights.as_ref().map(WeightDocument::from),
            prompts: several(&report.prompts),
            embeddings: report.embeddings.as_ref(),
            masked: report.masked.as_ref().map(MaskedDocument::from),
            tasks: &report.tasks,
            prompt_files: several(&report.prompt_files),
            divergence: report.divergence.as_ref(),
        }
    }
}

impl From<HealthyCost> for HealthyCostDocument {
    fn from(HealthyCost { cost, n_tokens }: HealthyCost) -> Self {
        Self {
            kld: cost.kld,
            kld_99: cost.kld_99,
            ppl_increase: cost.ppl_increase,
            other_choice: cost.other_choice,
            tokens: n_tokens,
        }
    }
}

/// Returns the items if there is more than one; the figures of a single one are those of the whole.
fn several<T>(items: &[T]) -> &[T] {
    if items.len() > 1 { items } else { &[] }
}
