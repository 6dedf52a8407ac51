//! The whole verification, in order: structure, graph, tokenizer, measurement, thresholds.

use std::time::Instant;

use crate::arch::graph::GraphFeatures;
use crate::core::progress::Progress;
use crate::core::text::escape_bytes;
use crate::core::{TensorMeta, TensorSource};
use crate::engine::{Chunk, Engine, EngineError, EngineOptions, GraphPlan, Observer};
use crate::gguf::{GgufFile, Metadata, Value};
use crate::verify::integrity::{check_layout, check_structure};
use crate::verify::measure::measure;
use crate::verify::vocabulary;
use crate::verify::windows::{Scoring, Window, windows};
use crate::verify::{
    Divergence, Finding, Perplexity, Position, Prompt, PromptReport, PromptSource, Report, StructureOptions,
    TextEncoder, Thresholds, Verdict, VerifyError,
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

    fn encode(&self, sources: &[PromptSource]) -> Result<Vec<Prompt>, VerifyError> {
        let needed = sources.iter().any(PromptSource::needs_encoder);
        let encoder = match self.encoder {
            Ok(encoder) => Some(encoder),
            Err(reason) if needed => return Err(VerifyError::NoEncoder { reason: reason.to_owned() }),
            Err(_) => None,
        };
        sources.iter().enumerate().map(|(at, source)| source.encode(at, encoder, self.template)).collect()
    }

    fn bits_per_weight(&self) -> f64 {
        let tensors = self.source.tensors();
        let bytes: f64 = tensors.iter().filter_map(TensorMeta::n_bytes).map(|n| n as f64).sum();
        let elems: f64 = tensors.iter().map(|meta| meta.shape.n_elems() as f64).sum();
        8.0 * bytes / elems.max(1.0)
    }
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
    let mut report = Report {
        verdict: Verdict::Pass,
        findings: Vec::new(),
        arch: model.arch(),
        bits_per_weight: model.bits_per_weight(),
        perplexity: None,
        bits_per_byte: None,
        prompts: Vec::new(),
        divergence: None,
        contexts: Vec::new(),
        thresholds: options.thresholds,
        tokens_per_second: None,
    };
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
        report.findings.extend(vocabulary::compare(model.metadata, baseline.metadata));
    }
    let has_vocabulary = model.metadata.get("tokenizer.ggml.model").and_then(Value::as_str) != Some("none");
    match model.encoder {
        Err(reason) if has_vocabulary => {
            report.findings.push(Finding::unchecked("tokenizer", reason));
        }
        Err(_) => {}
        Ok(encoder) => {
            let mut samples = vec!["Hello, world! 123  \n\tünïcödé 漢字 🙂"];
            samples.extend(prompts.iter().filter_map(|prompt| match prompt {
                PromptSource::Text(text) => Some(text.as_str()),
                _ => None,
            }));
            report.findings.extend(vocabulary::check_round_trip(encoder, &samples));
        }
    }
    let broken = Report::judge(&report.findings) == Verdict::Fail;
    // Broken structure makes every figure meaningless; a tokenizer that differs is shown by the figures as well.
    let stop = report.findings.iter().any(|f| {
        f.severity == crate::verify::Severity::Error && f.check != "tokenizer-parity" && f.check != "all-zero"
    });
    let Some(plan) = plan.filter(|_| !(options.structure_only || broken && stop)) else {
        return done(report, Vec::new(), Vec::new());
    };

    let encoded = match model.encode(prompts) {
        Err(VerifyError::NoEncoder { reason }) => {
            report
                .findings
                .push(Finding::unchecked("perplexity", format!("text cannot be encoded: {reason}")));
            return done(report, Vec::new(), Vec::new());
        }
        other => other?,
    };
    let windows = windows(&encoded, &options.scoring)?;
    let engine = Engine::new(plan, model.source, options.engine)?;
    let reference = match baseline {
        None => None,
        Some(baseline) => {
            let plan = baseline.plan().map_err(VerifyError::Baseline)?;
            Some(Engine::new(plan, baseline.source, options.engine).map_err(VerifyError::Baseline)?)
        }
    };
    if let Some(reference) = &reference
        && reference.plan().n_vocab != engine.plan().n_vocab
    {
        let (model, baseline) = (engine.plan().n_vocab, reference.plan().n_vocab);
        return Err(VerifyError::Vocabulary { model, baseline });
    }
    let n_tokens: usize = windows.iter().map(|window| window.chunk.tokens.len()).sum();
    let n_models = 1 + u64::from(baseline.is_some());
    let start = Instant::now();
    let measured = measure(&engine, reference.as_ref(), &windows, progress, observer);
    let seconds = start.elapsed().as_secs_f64();
    let positions = measured?;

    report.perplexity = Perplexity::of(positions.iter());
    report.tokens_per_second = Some(n_models as f64 * n_tokens as f64 / seconds.max(1e-9));
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
        if baseline.is_some() {
            report.thresholds =
                options.thresholds.or(Thresholds::for_bits_per_weight(report.bits_per_weight));
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
    let encoded = model.encode(prompts)?;
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
    windows(&model.encode(prompts)?, scoring)
}

/// An engine for a model whose graph must exist.
pub(super) fn engine_of<'a>(model: &Model<'a>, options: EngineOptions) -> Result<Engine<'a>, VerifyError> {
    Ok(Engine::new(model.plan()?, model.source, options)?)
}
