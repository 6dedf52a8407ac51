//! Masked language models: pseudo-perplexity, and divergence of the predictions of masked tokens from the baseline's.
//!
//! Each token of a sample is masked alone, with all others visible, and the model predicts it (Salazar et al. 2020,
//! *Masked Language Model Scoring*). The pseudo-perplexity is `e` to the mean negative log likelihood of those tokens.

pub(super) mod document;

use crate::cost::Cost;
use crate::judgement::too_close;
use crate::model::LoadedModel;
use crate::reference_twin::{ReferenceTwin, TITLE};
use crate::texts::EncoderTexts;
use crate::{
    Aspect, Check, Divergence, Figure, Finding, LimitLine, Measured, Model, Perplexity, Position, Prompt,
    Reference, Report, Thresholds, VerifyError, Window,
};
use gguf_core::progress::Progress;
use gguf_core::text::plural;
use gguf_engine::{Engine, EngineError, GraphPlan, Hidden, ModelKind, TokenChunk};
use gguf_format::{Metadata, Value};

/// Maximum number of tokens of a text: every masked token is a run of its text.
const TEXT_TOKENS: usize = 128;
/// Range of the number of masked tokens. Shorter texts have fewer, which are not enough to judge a file.
const TOKENS: std::ops::RangeInclusive<usize> = 256..=1024;
/// Number of tokens that may change their first choice in addition to those of a healthy file: chance in a small
/// sample.
const SPARE_CHOICES: f64 = 4.0;
const MASK: &str = "tokenizer.ggml.mask_token_id";
/// Key that is true if the logits of a token are at the position before it, as in llama.cpp; the default for diffusion
/// models is true.
const SHIFT: &str = "diffusion.shift_logits";

/// Figures of a model's predictions at masked tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskedReport {
    /// Pseudo-perplexity over the masked tokens.
    pub perplexity: Perplexity,
    /// Number of texts with masked tokens; each has at most 128 tokens.
    pub texts: usize,
    /// Number of tokens that could have been masked; the sample is taken evenly from them.
    pub candidates: usize,
    /// Token that masks.
    pub mask_token: u32,
    /// Divergence from the baseline, if it predicts masked tokens too.
    pub divergence: Option<Divergence>,
    /// Cost of the file's types on the baseline's own weights at the same tokens, if it was measured.
    pub healthy: Option<Cost>,
}

/// States of a sample's masked tokens, with the engine that computed them.
#[derive(Clone, Copy)]
struct MaskedRun<'a> {
    engine: &'a Engine<'a>,
    states: &'a Hidden,
}

/// Masked copies of a sample's texts, and the tokens under the masks.
struct MaskedSample {
    chunks: Vec<TokenChunk>,
    targets: Vec<u32>,
    prompts: Vec<usize>,
    n_texts: usize,
    n_candidates: usize,
    mask: u32,
}

impl MaskedSample {
    /// Masks tokens spread evenly over the texts, except start and end tokens. With `shift` 1 a token is predicted at
    /// the position before it, so the first of a text is not masked.
    fn of(texts: &EncoderTexts, mask: u32, shift: usize) -> Self {
        let mut candidates: Vec<(usize, usize)> = Vec::new();
        for (text, (chunk, body)) in texts.chunks.iter().zip(&texts.bodies).enumerate() {
            let places = body.clone().filter(|&at| at >= shift && chunk.tokens.get(at) != Some(&mask));
            candidates.extend(places.map(|at| (text, at)));
        }
        let most = (texts.n_tokens() / TEXT_TOKENS).clamp(*TOKENS.start(), *TOKENS.end());
        let n_candidates = candidates.len();
        let n = n_candidates.min(most);
        let mut sample = Self {
            chunks: Vec::new(),
            targets: Vec::new(),
            prompts: Vec::new(),
            n_texts: 0,
            n_candidates,
            mask,
        };
        let mut last = None;
        // The middles of `n` equal parts.
        for (text, at) in (0..n).filter_map(|k| candidates.get((2 * k + 1) * n_candidates / (2 * n)).copied())
        {
            let mut tokens = texts.chunks[text].tokens.clone();
            sample.targets.push(std::mem::replace(&mut tokens[at], mask));
            let row = at - shift;
            sample.chunks.push(TokenChunk { tokens, rows: row..row + 1, n_source: 0 });
            sample.prompts.push(texts.prompts[text]);
            sample.n_texts += usize::from(last != Some(text));
            last = Some(text);
        }
        sample
    }

    /// Computes the states from which the masked tokens are predicted, group by group.
    fn run(&self, engine: &Engine<'_>, progress: &dyn Progress) -> Result<Hidden, EngineError> {
        let (mut states, mut rest) = (Hidden::default(), &self.chunks[..]);
        for n in engine.groups(&self.chunks)? {
            let (group, later) = rest.split_at(n);
            states.append(&engine.masked_states(group, progress, None)?);
            rest = later;
        }
        Ok(states)
    }

    /// Scores the masked tokens, and compares them with the baseline's predictions.
    fn positions(
        &self,
        own: MaskedRun<'_>,
        baseline: Option<MaskedRun<'_>>,
        progress: &dyn Progress,
    ) -> Result<Vec<Position>, EngineError> {
        let MaskedRun { engine, states } = own;
        let scores = match baseline {
            None => {
                let scores = engine.scores(states, &self.targets, progress, None)?;
                scores.into_iter().map(|score| (score, None)).collect::<Vec<_>>()
            }
            Some(reference) => {
                let both = reference.engine.divergences(
                    reference.states,
                    engine,
                    states,
                    &self.targets,
                    progress,
                )?;
                let pair = |d: gguf_engine::TokenDivergence| {
                    (d.model, Some(Reference { score: d.reference, kld: d.kld }))
                };
                both.into_iter().map(pair).collect()
            }
        };
        let of = |((&token, &prompt), (at, (score, reference)))| Position {
            prompt,
            at,
            token,
            score,
            reference,
            is_scored: true,
        };
        Ok(self.targets.iter().zip(&self.prompts).zip(scores.into_iter().enumerate()).map(of).collect())
    }
}

/// Cuts prompts into short texts of an encoder, in the same form as those for its vectors.
pub(super) fn texts_of(
    prompts: &[Prompt],
    end: Option<u32>,
    n_ctx: usize,
    n_chunks: Option<usize>,
) -> EncoderTexts {
    let parts = n_ctx.div_ceil(TEXT_TOKENS).max(1);
    EncoderTexts::cut(prompts, end, n_ctx.min(TEXT_TOKENS), n_chunks.map(|n| n.saturating_mul(parts)))
}

/// Makes texts from the windows of a model that is not an encoder.
pub(super) fn texts_of_windows(windows: &[Window], prompts: &[Prompt]) -> EncoderTexts {
    let text = |window: &Window| {
        let bos = prompts.get(window.prompt).and_then(|prompt| prompt.bos);
        Prompt { tokens: window.chunk.tokens.clone(), bos, score_from: 1, whole: false }
    };
    let own: Vec<Prompt> = windows.iter().map(text).collect();
    let mut texts = EncoderTexts::cut(&own, None, TEXT_TOKENS, None);
    texts.prompts.iter_mut().for_each(|at| *at = windows.get(*at).map_or(0, |window| window.prompt));
    texts
}

fn mask_token(metadata: &Metadata, n_vocab: usize) -> Result<u32, Finding> {
    let Some(value) = metadata.get(MASK) else {
        return Err(Finding::unchecked(Check::Masked, format!("the file names no mask token (`{MASK}`)")));
    };
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < n_vocab);
    id.ok_or_else(|| {
        let found = value.as_i128().map_or_else(|| "something else".to_owned(), |id| id.to_string());
        let message = format!("key `{MASK}`: expected a token below {n_vocab}, found {found}");
        Finding::error(Check::Masked, message)
    })
}

/// Removes the bias of the output scores from both models if one has none: converters omit it from encoder files, and
/// the weights are not at fault for it.
pub(super) fn level_heads(model: &mut GraphPlan, baseline: &mut GraphPlan) {
    if model.kind == ModelKind::Encoder && (model.head.bias.is_none() || baseline.head.bias.is_none()) {
        (model.head.bias, baseline.head.bias) = (None, None);
    }
}

/// Runs the sample through the model and its baseline, and judges the result.
pub(super) fn judge(
    own: LoadedModel<'_>,
    baseline: Option<LoadedModel<'_>>,
    texts: &EncoderTexts,
    report: &mut Report,
    progress: &dyn Progress,
) -> Result<(), VerifyError> {
    let LoadedModel { model, engine } = own;
    let plan = engine.plan();
    if plan.masked.is_none() {
        report.masked = Some(Err("no masked-language head in the file".to_owned()));
        return Ok(());
    }
    report.ask_masked();
    let mask = match mask_token(model.metadata, plan.n_vocab) {
        Ok(mask) => mask,
        Err(finding) => {
            let remedy = format!("a file that names it: `gguf-inspect set FILE {MASK}=u32:ID`");
            report.not_judged(Aspect::Masked, finding.message.clone(), remedy);
            report.masked = Some(Err(finding.message.clone()));
            // A missing key is reported as not judged, without a finding.
            report.extend((finding.severity == crate::Severity::Error).then_some(finding));
            return Ok(());
        }
    };
    let is_shifted = model.metadata.get(SHIFT).and_then(Value::as_bool);
    let shift = usize::from(plan.kind == ModelKind::Diffusion && is_shifted.unwrap_or(true));
    let sample = MaskedSample::of(texts, mask, shift);
    if sample.targets.is_empty() {
        report.not_judged(Aspect::Masked, "no token can be masked", "longer texts");
        report.masked = Some(Err("no token can be masked".to_owned()));
        return Ok(());
    }
    let comparable = |other: &GraphPlan| other.masked.is_some() && other.n_vocab == plan.n_vocab;
    let reference = baseline.filter(|other| comparable(other.engine.plan()));
    let n_runs = if reference.is_some() { 2 } else { 1 };
    progress.begin("running masked tokens", n_runs * engine.work_bytes(&sample.chunks));
    let states = sample.run(engine, progress)?;
    let reference_states = match reference {
        Some(other) => Some(sample.run(other.engine, progress).map_err(VerifyError::Baseline)?),
        None => None,
    };
    let reference = reference.zip(reference_states.as_ref());
    let other = reference.map(|(other, states)| MaskedRun { engine: other.engine, states });
    let positions = sample.positions(MaskedRun { engine, states: &states }, other, progress)?;
    progress.end();
    let healthy = match reference {
        Some((baseline, states)) => healthy(model, baseline, states, &sample, progress)?,
        None => None,
    };
    let Some(perplexity) = Perplexity::of(positions.iter()) else { return Ok(()) };
    let found = MaskedReport {
        perplexity,
        texts: sample.n_texts,
        candidates: sample.n_candidates,
        mask_token: sample.mask,
        divergence: Divergence::of(&positions),
        healthy,
    };
    settle(report, found, model, plan.n_vocab, baseline.is_some());
    Ok(())
}

/// Returns the cost of the file's types at the sample's tokens; `None` if one of the types has no quantizer.
fn healthy(
    model: &Model<'_>,
    baseline: LoadedModel<'_>,
    states: &Hidden,
    sample: &MaskedSample,
    progress: &dyn Progress,
) -> Result<Option<Cost>, VerifyError> {
    let LoadedModel { model: baseline, engine: reference } = baseline;
    let options = *reference.options();
    let Some(twin) = ReferenceTwin::new(model.source.tensors(), baseline.source, options.level) else {
        return Ok(None);
    };
    let mut plan = Model { source: &twin, ..*baseline }.plan().map_err(VerifyError::Baseline)?;
    plan.head.bias = plan.head.bias.filter(|_| reference.plan().head.bias.is_some());
    let engine = Engine::new(plan, &twin, options).map_err(VerifyError::Baseline)?;
    progress.begin(TITLE, engine.work_bytes(&sample.chunks));
    let own = sample.run(&engine, progress).map_err(VerifyError::Baseline)?;
    let own = MaskedRun { engine: &engine, states: &own };
    let positions = sample.positions(own, Some(MaskedRun { engine: reference, states }), progress);
    progress.end();
    Ok(Divergence::of(&positions.map_err(VerifyError::Baseline)?).map(|divergence| Cost::of(&divergence)))
}

fn lines(found: &MaskedReport, model: &Model<'_>, report: &Report) -> Vec<LimitLine> {
    let limits = found.healthy.unwrap_or_else(|| Cost::typical(model.source.tensors())).limits();
    let spare = SPARE_CHOICES / found.perplexity.tokens as f64;
    let top1 = (limits.of(Figure::Top1).unwrap_or(0.0) - spare).max(0.0);
    let defaults = Thresholds::default()
        .with(Figure::MaskedKld, limits.of(Figure::Kld))
        .with(Figure::MaskedTop1, Some(top1));
    report.thresholds.lines(&defaults, &Measured { masked: Some(found), ..Measured::default() })
}

/// Compares with chance, applies the limits and records the coverage.
fn settle(report: &mut Report, found: MaskedReport, model: &Model<'_>, n_vocab: usize, has_baseline: bool) {
    const MORE: &str = "more text: `--prompts`, `--chunks`";
    let p = found.perplexity;
    let low = p.value - 2.0 * p.stderr;
    if !p.value.is_finite() || (p.tokens > 1 && low > n_vocab as f64) {
        let message =
            format!("pseudo-perplexity {:.1}: guessing among {n_vocab} tokens does better", p.value);
        report.add(Finding::error(Check::WorseThanChance, message));
    }
    let limits = lines(&found, model, report);
    let whom = match &found.healthy {
        Some(cost) => format!("a healthy file of these types has a KLD of {}", Figure::Kld.show(cost.kld)),
        None => "by what the types cost a small model".to_owned(),
    };
    for line in limits.iter().filter(|line| line.is_missed) {
        let of = if line.is_own { "which an option asks for" } else { &whom };
        report.add(Finding::error(Check::Limit(line.figure), format!("{}, {of}", line.relation())));
    }
    let close = too_close(&limits, |line| line.is_own || !line.is_kept());
    let n = p.tokens;
    match (&found.divergence, has_baseline) {
        (_, false) => {
            let remedy = "`--baseline`: checkpoint or file of higher precision";
            report.not_judged(Aspect::Masked, "there is no baseline", remedy);
        }
        (None, true) => {
            let remedy = "a baseline with the head and the vocabulary of the file";
            report.not_judged(Aspect::Masked, "the baseline does not predict masked tokens", remedy);
        }
        (Some(_), true) if n < *TOKENS.start() => {
            let reason = format!(
                "only {} can be masked, a verdict needs {}",
                plural(n as u64, "token"),
                TOKENS.start()
            );
            report.not_judged(Aspect::Masked, reason, MORE);
        }
        (Some(_), true) if close.is_some() => {
            report.not_judged(Aspect::Masked, close.unwrap_or_default(), MORE);
        }
        (Some(_), true) => report.judged(Aspect::Masked, format!("{n} masked tokens")),
    }
    report.add_limits(limits);
    report.masked = Some(Ok(Box::new(found)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lengths: &[u32]) -> EncoderTexts {
        let prompt = |&n: &u32| Prompt {
            tokens: std::iter::once(1).chain(10..10 + n).collect(),
            bos: Some(1),
            score_from: 1,
            whole: false,
        };
        EncoderTexts::cut(&lengths.iter().map(prompt).collect::<Vec<_>>(), Some(2), TEXT_TOKENS, None)
    }

    #[test]
    fn each_token_but_the_ends_is_masked_once() {
        let sample = MaskedSample::of(&texts(&[3, 2]), 5, 0);
        let tokens: Vec<&[u32]> = sample.chunks.iter().map(|chunk| &chunk.tokens[..]).collect();
        let expected: [&[u32]; 5] =
            [&[1, 5, 11, 12, 2], &[1, 10, 5, 12, 2], &[1, 10, 11, 5, 2], &[1, 5, 11, 2], &[1, 10, 5, 2]];
        assert_eq!(tokens, expected);
        assert_eq!(
            (&sample.targets[..], &sample.prompts[..]),
            (&[10, 11, 12, 10, 11][..], &[0, 0, 0, 1, 1][..])
        );
        assert_eq!((sample.chunks[1].rows.clone(), sample.n_texts, sample.n_candidates), (2..3, 2, 5));
        // Predicted at the token before; a token that equals the mask cannot be masked.
        let sample = MaskedSample::of(&texts(&[3]), 11, 1);
        let rows: Vec<usize> = sample.chunks.iter().map(|chunk| chunk.rows.start).collect();
        assert_eq!((rows, &sample.targets[..]), (vec![0, 2], &[10, 12][..]));
    }

    #[test]
    fn a_sample_of_a_long_text_is_spread_over_all_of_it() {
        let texts = texts(&[100; 40]);
        let sample = MaskedSample::of(&texts, 5, 0);
        assert_eq!((sample.targets.len(), sample.n_candidates, sample.n_texts), (256, 4000, 40));
        let of = |prompt: usize| sample.prompts.iter().filter(|&&p| p == prompt).count();
        assert!((0..40).all(|prompt| (6..=7).contains(&of(prompt))));
        assert_eq!(MaskedSample::of(&self::texts(&[1000; 400]), 5, 0).targets.len(), 1024);
    }
}
