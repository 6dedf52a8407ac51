//! The whole verification, in order: structure, graph, tokenizer, measurement, thresholds.

use std::time::Instant;

use crate::core::progress::Progress;
use crate::core::text::{escape, escape_bytes};
use crate::engine::{Engine, EngineError, EngineOptions, GraphPlan, Observer};
use crate::gguf::Value;
use crate::verify::baseline_keys;
use crate::verify::measure::{self, measure};
use crate::verify::prompts::file_reports;
use crate::verify::round_trip::check_round_trip;
use crate::verify::structure::{check_layout, check_structure};
use crate::verify::windows::{Cut, Scoring, Window, cut};
use crate::verify::{
    ChatError, ChatTemplate, Divergence, Finding, Model, Perplexity, Position, Prompt, PromptFile,
    PromptReport, PromptSource, Report, Severity, StructureOptions, TextEncoder, Thresholds, VerifyError,
};

/// What to verify, and how.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions<'a> {
    /// Machine use.
    pub engine: EngineOptions,
    /// How prompts are cut.
    pub scoring: Scoring,
    /// The files that the prompts are of; they share the chunks. None: all are as of one.
    pub files: &'a [PromptFile],
    /// Limits; what is not set takes a default if there is a baseline.
    pub thresholds: Thresholds,
    /// Stop before any arithmetic.
    pub structure_only: bool,
}

/// What a verification yields.
#[derive(Clone, Debug)]
pub struct Verification {
    /// The verdict and what it rests on.
    pub report: Report,
    /// The prompts as token ids; none if nothing was run.
    pub prompts: Vec<Prompt>,
    /// Every position that was computed.
    pub positions: Vec<Position>,
    /// Prompts of which the limit on the number of chunks left nothing.
    pub unreached: Vec<usize>,
}

impl Verification {
    fn without_figures(report: Report) -> Self {
        Self { report, prompts: Vec::new(), positions: Vec::new(), unreached: Vec::new() }
    }
}

/// Verifies a model.
///
/// # Errors
/// What keeps the verification from running: unreadable prompts or weights, too little memory, cancellation. What is
/// wrong with the model is a finding, not an error.
pub fn verify(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    prompts: &[PromptSource],
    options: &VerifyOptions<'_>,
    progress: &dyn Progress,
    observer: Option<&dyn Observer>,
) -> Result<Verification, VerifyError> {
    let mut report = Report::new(model.arch(), Some(model.bits_per_weight()), options.thresholds);
    report.extend(model.file.map(check_layout).unwrap_or_default());
    let structure = StructureOptions { level: options.engine.level };
    report.extend(check_structure(model.source, model.metadata, &structure, progress)?);
    let plan = check_graph(model, &mut report)?;
    if let Some(baseline) = baseline {
        report.extend(baseline_keys::compare(model, baseline.metadata));
    }
    check_tokenizer(model, prompts, &mut report);
    let stop = report
        .findings
        .iter()
        .any(|f| f.severity == Severity::Error && !MEASURED_ALL_THE_SAME.contains(&f.check));
    let Some(plan) = plan.filter(|_| !(options.structure_only || stop)) else {
        return Ok(Verification::without_figures(report));
    };
    let Some(encoded) = encode(model, prompts, &mut report)? else {
        return Ok(Verification::without_figures(report));
    };
    let Cut { windows, unreached, chunks } = cut(&encoded, options.files, &options.scoring)?;
    report.extend(beyond_training(&plan, &windows).map(|message| Finding::warning("context", message)));
    let engine = Engine::new(plan, model.source, options.engine)?;
    let reference = match baseline {
        Some(baseline) => {
            let reference = reference_engine(&engine, baseline, &mut report)?;
            report.extend(compare_ids(&encoded, prompts, baseline));
            reference
        }
        None => None,
    };
    let recall = baseline.and_then(|baseline| baseline.recall);
    let other = reference.as_ref().map(|engine| measure::Baseline { engine, recall });
    let start = Instant::now();
    let (positions, n_tokens) = measure(&engine, other, &windows, progress, observer)?;
    report.tokens_per_second = Some(n_tokens as f64 / start.elapsed().as_secs_f64().max(1e-9));
    fill(&mut report, model, &encoded, &positions);
    report.prompt_files = file_reports(options.files, &chunks, &positions);
    if reference.is_some() && report.perplexity.is_some() {
        let defaults = Thresholds::for_bits_per_weight(model.layer_bits_per_weight());
        report.thresholds = options.thresholds.or(defaults);
    }
    check_figures(&mut report, engine.plan().n_vocab);
    Ok(Verification { report, prompts: encoded, positions, unreached })
}

/// The graph, if there is one that can be run.
fn check_graph(model: &Model<'_>, report: &mut Report) -> Result<Option<GraphPlan>, VerifyError> {
    match model.plan() {
        Ok(plan) => {
            report.extend(plan.warnings.iter().map(|warning| Finding::warning("graph", warning)));
            Ok(Some(plan))
        }
        Err(
            error @ (EngineError::NoGraph { .. }
            | EngineError::Unsupported { .. }
            | EngineError::NotCausal { .. }),
        ) => {
            report.add(Finding::unchecked("graph", error.to_string()));
            Ok(None)
        }
        Err(error @ (EngineError::Source(_) | EngineError::Cancelled)) => Err(error.into()),
        Err(error) => {
            report.add(Finding::error("graph", error.to_string()));
            Ok(None)
        }
    }
}

/// The chat template, the round trip of texts, and the tokenizer that the model was made with.
fn check_tokenizer(model: &Model<'_>, prompts: &[PromptSource], report: &mut Report) {
    if let Err(error) = ChatTemplate::of(model.metadata)
        && !matches!(error, ChatError::Missing)
    {
        report.add(Finding::warning("chat-template", error.to_string()));
    }
    let has_vocabulary = model.metadata.get("tokenizer.ggml.model").and_then(Value::as_str) != Some("none");
    let texts = model.texts(prompts);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    match model.encoder {
        Err(reason) if has_vocabulary => report.add(Finding::unchecked("tokenizer", reason)),
        Err(_) => {}
        Ok(encoder) => report.extend(check_round_trip(encoder, model.metadata, &texts)),
    }
    if let Some(origin) = model.origin {
        report.extend(origin.compare(model.metadata, model.encoder, &texts));
    }
}

/// Ids of the prompts; `None` if all are text and cannot be encoded.
fn encode(
    model: &Model<'_>,
    prompts: &[PromptSource],
    report: &mut Report,
) -> Result<Option<Vec<Prompt>>, VerifyError> {
    match model.encode(prompts) {
        Err(VerifyError::NoEncoder { reason }) => {
            report.add(Finding::unchecked("perplexity", format!("text cannot be encoded: {reason}")));
            Ok(None)
        }
        Ok((encoded, left_out)) => {
            report.extend(left_out.map(|message| Finding::unchecked("perplexity", message)));
            Ok(Some(encoded))
        }
        Err(error) => Err(error),
    }
}

/// The baseline's engine, if its logits can be compared with those of the model.
fn reference_engine<'b>(
    engine: &Engine<'_>,
    baseline: &Model<'b>,
    report: &mut Report,
) -> Result<Option<Engine<'b>>, VerifyError> {
    let plan = baseline.plan().map_err(VerifyError::Baseline)?;
    let (own, other) = (engine.plan().n_vocab, plan.n_vocab);
    if own != other {
        let message = format!("{own} logits, the baseline has {other}: they cannot be compared");
        report.add(Finding::error("baseline", message));
        return Ok(None);
    }
    Engine::new(plan, baseline.source, *engine.options()).map(Some).map_err(VerifyError::Baseline)
}

/// The figures of the positions.
fn fill(report: &mut Report, model: &Model<'_>, encoded: &[Prompt], positions: &[Position]) {
    report.perplexity = Perplexity::of(positions.iter());
    report.prompts = (0..encoded.len())
        .map(|prompt| PromptReport {
            prompt,
            perplexity: Perplexity::of(positions.iter().filter(|p| p.prompt == prompt)),
        })
        .collect();
    report.divergence = Divergence::of(positions);
    if let Ok(encoder) = model.encoder {
        report.bits_per_byte = bits_per_byte(encoder, positions);
        report.contexts =
            report.divergence.as_ref().map(|d| contexts(d, encoded, encoder)).unwrap_or_default();
    }
}

/// Judges the figures: by chance, and by the limits.
fn check_figures(report: &mut Report, n_vocab: usize) {
    let Some(perplexity) = report.perplexity else { return };
    // Two standard errors off: a few tokens prove nothing.
    let low = perplexity.value - 2.0 * perplexity.stderr;
    if !perplexity.value.is_finite() || (perplexity.tokens > 1 && low > n_vocab as f64) {
        let message =
            format!("perplexity {:.1}: guessing among {n_vocab} tokens does better", perplexity.value);
        report.add(Finding::error("worse-than-chance", message));
    }
    let missed = report.thresholds.missed(&perplexity, report.divergence.as_ref());
    report.extend(missed);
}

/// A sentence about chunks that are longer than those the model was trained on.
pub(super) fn beyond_training(plan: &GraphPlan, windows: &[Window]) -> Option<String> {
    let longest = windows.iter().map(|window| window.chunk.tokens.len()).max()?;
    longer_than_trained(plan, longest, "chunks")
}

/// A sentence about `what` of more tokens than the model was trained on.
pub(super) fn longer_than_trained(plan: &GraphPlan, n_tokens: usize, what: &str) -> Option<String> {
    let trained = plan.n_ctx_train.filter(|&n| n > 0)?;
    (n_tokens > trained).then(|| {
        format!(
            "{what} of {n_tokens} tokens: the model was trained on {trained} (`{}.context_length`)",
            escape(&plan.arch)
        )
    })
}

/// Errors of these checks leave the figures meaningful: they show how much an error costs.
const MEASURED_ALL_THE_SAME: [&str; 5] =
    ["all-zero", "hparams", "round-trip", "source-tokenizer", "tokenizer-parity"];

/// The first prompt that the baseline's tokenizer reads as other tokens.
fn compare_ids(encoded: &[Prompt], prompts: &[PromptSource], baseline: &Model<'_>) -> Option<Finding> {
    baseline.encoder.ok()?;
    let (others, _) = baseline.encode(prompts).ok()?;
    let (prompt, (own, other)) =
        encoded.iter().zip(&others).enumerate().find(|(_, (own, other))| own.tokens != other.tokens)?;
    let at = own.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    let show = |tokens: &[u32]| tokens.get(at).map_or("the end".to_owned(), u32::to_string);
    let message = format!(
        "prompt {prompt}: token {at} is {}, by the baseline's tokenizer {}",
        show(&own.tokens),
        show(&other.tokens)
    );
    Some(Finding::error("tokenizer-parity", message))
}

/// Information of the scored tokens per byte of their text.
fn bits_per_byte(encoder: &dyn TextEncoder, positions: &[Position]) -> Option<f64> {
    let scored: Vec<&Position> = positions.iter().filter(|p| p.is_scored).collect();
    let n_bytes: usize = scored.iter().map(|p| encoder.decode(&[p.token]).len()).sum();
    let bits = scored.iter().map(|p| p.score.nll).sum::<f64>() / std::f64::consts::LN_2;
    (n_bytes > 0).then(|| bits / n_bytes as f64)
}

/// The text before each of the worst tokens.
fn contexts(divergence: &Divergence, prompts: &[Prompt], encoder: &dyn TextEncoder) -> Vec<String> {
    const TOKENS: usize = 16;
    let context = |worst: &crate::verify::WorstToken| {
        let tokens = &prompts.get(worst.prompt)?.tokens;
        let before = tokens.get(worst.at.saturating_sub(TOKENS)..worst.at)?;
        Some(escape_bytes(&encoder.decode(before)))
    };
    divergence.worst.iter().map(|worst| context(worst).unwrap_or_default()).collect()
}
