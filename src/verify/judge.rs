//! The whole verification, in order: structure, graph, tokenizer, measurement, thresholds.

use std::time::Instant;

use crate::arch::graph::GraphFeatures;
use crate::core::progress::Progress;
use crate::core::text::escape_bytes;
use crate::core::{TensorMeta, TensorSource};
use crate::engine::{Chunk, Engine, EngineError, EngineOptions, GraphPlan, Observer};
use crate::gguf::{GgufFile, Metadata, Value};
use crate::verify::baseline;
use crate::verify::integrity::{check_layout, check_structure};
use crate::verify::measure::{self, measure};
use crate::verify::round_trip::check_round_trip;
use crate::verify::samples::SAMPLES;
use crate::verify::windows::{Scoring, Window, windows};
use crate::verify::{
    ChatError, ChatTemplate, Divergence, Finding, OriginTokenizer, Perplexity, Position, Prompt,
    PromptReport, PromptSource, Recall, Report, Severity, StructureOptions, TextEncoder, Thresholds,
    VerifyError,
};

/// A model to verify or to compare with.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Its tensors.
    pub source: &'a dyn TensorSource,
    /// Its metadata.
    pub metadata: &'a Metadata,
    /// Its file, if it is one.
    pub file: Option<&'a GgufFile>,
    /// The graph of its architecture; else why there is none.
    pub features: Result<&'a GraphFeatures, &'a str>,
    /// Its tokenizer; else why there is none.
    pub encoder: Result<&'a dyn TextEncoder, &'a str>,
    /// Writes out chat messages by its template.
    pub template: &'a dyn Fn(&serde_json::Value) -> Result<String, String>,
    /// The tokenizer that it was made with, to compare with its own.
    pub origin: Option<&'a OriginTokenizer>,
    /// Of a baseline: what it said last time, for the next model that is compared with it.
    pub recall: Option<&'a Recall>,
}

/// What to verify, and how.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Machine use.
    pub engine: EngineOptions,
    /// How prompts are cut.
    pub scoring: Scoring,
    /// Limits; what is not set takes a default if there is a baseline.
    pub thresholds: Thresholds,
    /// Stop before any arithmetic.
    pub structure_only: bool,
}

impl Model<'_> {
    fn plan(&self) -> Result<GraphPlan, EngineError> {
        let arch = self.arch().unwrap_or_default();
        match self.features {
            Ok(features) => GraphPlan::new(features, self.metadata, self.source.tensors()),
            Err(reason) => Err(EngineError::NoGraph { arch, reason: reason.to_owned() }),
        }
    }

    fn arch(&self) -> Option<String> {
        self.metadata.get("general.architecture").and_then(Value::as_str).map(str::to_owned)
    }

    /// Ids of the prompts. Without a tokenizer, prompts of text become empty ones; why comes with them.
    fn encode(&self, sources: &[PromptSource]) -> Result<(Vec<Prompt>, Option<String>), VerifyError> {
        let n_text = sources.iter().filter(|source| source.needs_encoder()).count();
        let missing = self.encoder.err().filter(|_| n_text > 0);
        if n_text == sources.len()
            && let Some(reason) = missing
        {
            return Err(VerifyError::NoEncoder { reason: reason.to_owned() });
        }
        let encode = |(at, source): (usize, &PromptSource)| {
            if source.needs_encoder() && missing.is_some() {
                return Ok(Prompt { tokens: Vec::new(), bos: None, score_from: 1, whole: false });
            }
            source.encode(at, self.encoder.ok(), self.template)
        };
        let prompts = sources.iter().enumerate().map(encode).collect::<Result<_, _>>()?;
        let left_out = missing.map(|reason| {
            format!("{n_text} of {} prompts are text, which cannot be encoded: {reason}", sources.len())
        });
        Ok((prompts, left_out))
    }

    /// Ids of the prompts, none left out.
    fn encode_all(&self, sources: &[PromptSource]) -> Result<Vec<Prompt>, VerifyError> {
        match (self.encode(sources)?, self.encoder) {
            ((_, Some(_)), Err(reason)) => Err(VerifyError::NoEncoder { reason: reason.to_owned() }),
            ((prompts, _), _) => Ok(prompts),
        }
    }

    /// Texts for the checks of the tokenizer: the built-in ones, then the prompts as they are read.
    fn texts(&self, prompts: &[PromptSource]) -> Vec<String> {
        let own = SAMPLES.iter().map(|&sample| sample.to_owned());
        let prompts = prompts.iter().flat_map(|prompt| match prompt {
            PromptSource::Tokens(_) => Vec::new(),
            PromptSource::Text(text) => vec![text.clone()],
            PromptSource::Completion { prompt, completion } => vec![prompt.clone(), completion.clone()],
            PromptSource::Messages(messages) => (self.template)(messages).into_iter().collect(),
        });
        own.chain(prompts).collect()
    }

    fn bits_per_weight(&self) -> f64 {
        bits_per_weight(self.source.tensors().iter())
    }

    /// Of the matrices of the layers alone: the embedding of a small model is large and often kept wide, and says
    /// nothing about how coarse the layers are.
    fn layer_bits_per_weight(&self) -> f64 {
        let tensors = self.source.tensors().iter();
        let layers = tensors.filter(|meta| meta.name.starts_with("blk.") && meta.shape.rank() > 1);
        bits_per_weight(layers)
    }
}

fn bits_per_weight<'a>(tensors: impl Iterator<Item = &'a TensorMeta>) -> f64 {
    let (mut n_bytes, mut n_elems) = (0.0, 0.0);
    for meta in tensors {
        n_bytes += meta.n_bytes().unwrap_or(0) as f64;
        n_elems += meta.shape.n_elems() as f64;
    }
    8.0 * n_bytes / f64::max(n_elems, 1.0)
}

/// Verifies a model; every position that was computed comes with the report.
///
/// # Errors
/// What keeps the verification from running: unreadable prompts or weights, too little memory, cancellation. What is
/// wrong with the model is a finding, not an error.
pub fn verify(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    prompts: &[PromptSource],
    options: &VerifyOptions,
    progress: &dyn Progress,
    observer: Option<&dyn Observer>,
) -> Result<(Report, Vec<Prompt>, Vec<Position>), VerifyError> {
    let mut report = Report::new(model.arch(), Some(model.bits_per_weight()), options.thresholds);
    let done = |mut report: Report, prompts, positions| {
        report.verdict = Report::judge(&report.findings);
        Ok((report, prompts, positions))
    };
    report.findings.extend(model.file.map(check_layout).unwrap_or_default());
    let structure = StructureOptions { level: options.engine.level };
    report.findings.extend(check_structure(model.source, model.metadata, &structure, progress)?);
    let plan = match model.plan() {
        Ok(plan) => Some(plan),
        Err(error @ (EngineError::NoGraph { .. } | EngineError::Unsupported { .. })) => {
            report.findings.push(Finding::unchecked("graph", error.to_string()));
            None
        }
        Err(error @ (EngineError::Source(_) | EngineError::Cancelled)) => return Err(error.into()),
        Err(error) => {
            report.findings.push(Finding::error("graph", error.to_string()));
            None
        }
    };
    if let Some(plan) = &plan {
        report.findings.extend(plan.warnings.iter().map(|w| Finding::warning("graph", w)));
    }
    if let Some(baseline) = baseline {
        report.findings.extend(baseline::compare(model.metadata, baseline.metadata));
    }
    let has_vocabulary = model.metadata.get("tokenizer.ggml.model").and_then(Value::as_str) != Some("none");
    if let Err(error) = ChatTemplate::of(model.metadata)
        && !matches!(error, ChatError::Missing)
    {
        report.findings.push(Finding::warning("chat-template", error.to_string()));
    }
    let texts = model.texts(prompts);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    match model.encoder {
        Err(reason) if has_vocabulary => {
            report.findings.push(Finding::unchecked("tokenizer", reason));
        }
        Err(_) => {}
        Ok(encoder) => report.findings.extend(check_round_trip(encoder, model.metadata, &texts)),
    }
    if let Some(origin) = model.origin {
        report.findings.extend(origin.compare(model.metadata, model.encoder, &texts));
    }
    let stop = report
        .findings
        .iter()
        .any(|f| f.severity == Severity::Error && !MEASURED_ALL_THE_SAME.contains(&f.check));
    let Some(plan) = plan.filter(|_| !(options.structure_only || stop)) else {
        return done(report, Vec::new(), Vec::new());
    };

    let encoded = match model.encode(prompts) {
        Err(VerifyError::NoEncoder { reason }) => {
            report
                .findings
                .push(Finding::unchecked("perplexity", format!("text cannot be encoded: {reason}")));
            return done(report, Vec::new(), Vec::new());
        }
        Ok((encoded, left_out)) => {
            report.findings.extend(left_out.map(|message| Finding::unchecked("perplexity", message)));
            encoded
        }
        Err(error) => return Err(error),
    };
    let windows = windows(&encoded, &options.scoring)?;
    let engine = Engine::new(plan, model.source, options.engine)?;
    let mut reference = None;
    if let Some(baseline) = baseline {
        let plan = baseline.plan().map_err(VerifyError::Baseline)?;
        let (own, other) = (engine.plan().n_vocab, plan.n_vocab);
        if own == other {
            reference =
                Some(Engine::new(plan, baseline.source, options.engine).map_err(VerifyError::Baseline)?);
        } else {
            let message = format!("{own} logits, the baseline has {other}: they cannot be compared");
            report.findings.push(Finding::error("baseline", message));
        }
        report.findings.extend(compare_ids(&encoded, prompts, baseline));
    }
    let start = Instant::now();
    let recall = baseline.and_then(|baseline| baseline.recall);
    let other = reference.as_ref().map(|engine| measure::Baseline { engine, recall });
    let measured = measure(&engine, other, &windows, progress, observer);
    let seconds = start.elapsed().as_secs_f64();
    let (positions, n_tokens) = measured?;

    report.perplexity = Perplexity::of(positions.iter());
    report.tokens_per_second = Some(n_tokens as f64 / seconds.max(1e-9));
    report.prompts = (0..encoded.len())
        .map(|prompt| PromptReport {
            prompt,
            perplexity: Perplexity::of(positions.iter().filter(|p| p.prompt == prompt)),
        })
        .collect();
    report.divergence = Divergence::of(&positions);
    if let Ok(encoder) = model.encoder {
        report.bits_per_byte = bits_per_byte(encoder, &positions);
        report.contexts =
            report.divergence.as_ref().map(|d| contexts(d, &encoded, encoder)).unwrap_or_default();
    }
    if let Some(perplexity) = &report.perplexity {
        if reference.is_some() {
            report.thresholds =
                options.thresholds.or(Thresholds::for_bits_per_weight(model.layer_bits_per_weight()));
        }
        let n_vocab = engine.plan().n_vocab as f64;
        // Two standard errors off: a few tokens prove nothing.
        let low = perplexity.value - 2.0 * perplexity.stderr;
        if !perplexity.value.is_finite() || (perplexity.tokens > 1 && low > n_vocab) {
            let message =
                format!("perplexity {:.1}: guessing among {n_vocab} tokens does better", perplexity.value);
            report.findings.push(Finding::error("worse-than-chance", message));
        }
        report.findings.extend(report.thresholds.missed(perplexity, report.divergence.as_ref()));
    }
    done(report, encoded, positions)
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

/// The logits after the last token of every prompt; the prompt's ids come with them.
///
/// # Errors
/// As [`verify`], and a graph that cannot be built.
pub fn last_logits(
    model: &Model<'_>,
    prompts: &[PromptSource],
    options: &EngineOptions,
    progress: &dyn Progress,
    mut each: impl FnMut(usize, &[f32]) -> Result<(), VerifyError>,
) -> Result<(), VerifyError> {
    let encoded = model.encode_all(prompts)?;
    let engine = Engine::new(model.plan()?, model.source, *options)?;
    let longest = encoded.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let limit = engine.group_tokens(longest)?;
    let mut chunks = Vec::new();
    let mut first = 0;
    let mut n_tokens = 0;
    for (at, prompt) in encoded.iter().enumerate() {
        let n = prompt.tokens.len();
        chunks.push(Chunk { tokens: prompt.tokens.clone(), rows: n.saturating_sub(1)..n });
        n_tokens += n;
        let next = encoded.get(at + 1).map(|next| n_tokens.saturating_add(next.tokens.len()));
        if next.is_none_or(|next| next > limit) {
            let hidden = engine.forward(&chunks, progress, None)?;
            let logits = engine.logits(&hidden, progress)?;
            let mut rows = logits.chunks(engine.plan().n_vocab.max(1));
            for (offset, chunk) in chunks.iter().enumerate() {
                let row = if chunk.tokens.is_empty() { &[] } else { rows.next().unwrap_or(&[]) };
                each(first + offset, row)?;
            }
            first = at + 1;
            chunks.clear();
            n_tokens = 0;
        }
    }
    Ok(())
}

/// The windows of a run that collects statistics from every token.
pub(super) fn all_windows(
    model: &Model<'_>,
    prompts: &[PromptSource],
    scoring: &Scoring,
) -> Result<Vec<Window>, VerifyError> {
    windows(&model.encode_all(prompts)?, scoring)
}

/// An engine for a model whose graph must exist.
pub(super) fn engine_of<'a>(model: &Model<'a>, options: EngineOptions) -> Result<Engine<'a>, VerifyError> {
    Ok(Engine::new(model.plan()?, model.source, options)?)
}
