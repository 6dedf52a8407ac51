//! Comparison of an encoder's text vectors with its baseline's.
//!
//! An encoder predicts no next token. Texts must keep their positions instead: measured by the cosine of each text's
//! vector with the baseline's, by equal nearest neighbours, and for models that score texts by the scores.

use serde::Serialize;

use crate::model::LoadedModel;
use crate::options::{VerifyOptions, longer_than_trained};
use crate::reference_twin::{ReferenceTwin, TITLE, is_own_twin};
use crate::texts::EncoderTexts;
use crate::{
    Aspect, Check, Extras, Figure, Finding, LimitLine, Measured, Model, Prompt, Report, Subject, TextEncoder,
    Thresholds, VerifyError, masked,
};
use gguf_core::progress::Progress;
use gguf_core::text::plural;
use gguf_engine::{Engine, GraphPlan, ModelKind, Observer, PooledRow, TokenChunk};

/// Minimum number of texts to judge a file.
const LEAST_TEXTS: usize = 16;
/// Maximum number of texts that are compared with one another: the number of pairs grows quadratically.
const MOST_NEIGHBOURS: usize = 2048;
/// Multiple of a healthy file's distance from the baseline above which a file is damaged.
const MARGIN: f64 = 4.0;
/// Distances below these come from f32 arithmetic, not from any type.
const LEAST: Distances = Distances { mean: 1e-6, worst: 1e-5, scores: 1e-4 };
/// Distances of a healthy file if they cannot be measured.
const TYPICAL: Distances = Distances { mean: 5e-3, worst: 2e-2, scores: 5e-2 };

/// Distances of a file's vectors from the baseline's.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Distances {
    /// One minus the mean cosine.
    mean: f64,
    /// One minus the lowest cosine.
    worst: f64,
    /// Root mean square of the score differences, as a share of the spread of the scores.
    scores: f64,
}

/// Figures of the text vectors, and their comparison with the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EmbeddingReport {
    /// Number of texts that were run: prompts, long ones in parts.
    pub texts: usize,
    /// Number of tokens of the texts.
    pub tokens: usize,
    /// Number of values of a vector; of scores, for models that score texts.
    pub width: usize,
    /// `mean`, `cls` or `last`; `rank` for models that score texts; `unsaid` if the file does not declare it, which is
    /// treated as the mean.
    pub pooling: &'static str,
    /// Comparison with the baseline, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<EmbeddingDifference>,
}

/// Differences of a model's vectors from the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EmbeddingDifference {
    /// Mean cosine of a text's two vectors; of little use for models that score texts.
    pub mean_cosine: f64,
    /// Lowest cosine of a text's two vectors.
    pub worst_cosine: f64,
    /// Index of the prompt of the text with the lowest cosine.
    pub worst_prompt: usize,
    /// Share of texts with the same nearest other text, 0 to 1; none for models that score texts, or with fewer than
    /// three texts.
    pub same_neighbour: Option<f64>,
    /// Spearman's rank correlation of the cosines of all pairs of texts. For models that score texts: rank correlation
    /// of the scores, averaged over the labels.
    pub rank_correlation: Option<f64>,
    /// Root mean square of the score differences, as a share of the spread of the scores; only for models that score
    /// texts.
    pub score_error: Option<f64>,
    /// Differences of a healthy file with these types, if they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthy: Option<HealthyVectors>,
}

/// Differences of an undamaged file's vectors from the baseline's; the limits are multiples of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HealthyVectors {
    /// Mean cosine of a text's two vectors.
    pub mean_cosine: f64,
    /// Lowest cosine of a text's two vectors.
    pub worst_cosine: f64,
    /// Root mean square of the score differences, as a share of the spread of the scores; only for models that score
    /// texts.
    pub score_error: Option<f64>,
}

impl HealthyVectors {
    fn distances(&self) -> Distances {
        Distances {
            mean: 1.0 - self.mean_cosine,
            worst: 1.0 - self.worst_cosine,
            scores: self.score_error.unwrap_or(0.0),
        }
    }
}

impl EmbeddingDifference {
    /// Compares vectors of the same texts; `prompts` holds the prompt of each text.
    fn of(baseline: &[Vec<f32>], model: &[Vec<f32>], prompts: &[usize], is_score: bool) -> Option<Self> {
        let cosines: Vec<f64> = baseline.iter().zip(model).map(|(a, b)| cosine(a, b)).collect();
        // A NaN cosine is worse than any other.
        let rank = |x: f64| if x.is_nan() { f64::NEG_INFINITY } else { x };
        let worst = (0..cosines.len()).min_by(|&a, &b| rank(cosines[a]).total_cmp(&rank(cosines[b])))?;
        let n = baseline.len().min(MOST_NEIGHBOURS);
        let (own, other) = (pairs(&model[..n]), pairs(&baseline[..n]));
        Some(Self {
            mean_cosine: cosines.iter().sum::<f64>() / cosines.len() as f64,
            worst_cosine: cosines[worst],
            worst_prompt: prompts.get(worst).copied().unwrap_or_default(),
            same_neighbour: (n > 2 && !is_score).then(|| same_neighbours(&own, &other, n)),
            rank_correlation: (n > 2).then(|| {
                if is_score { score_ranks(baseline, model) } else { rank_correlation(&own, &other) }
            }),
            score_error: is_score.then(|| score_error(baseline, model)),
            healthy: None,
        })
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Returns the cosines of all pairs, row by row of the triangle above the diagonal.
fn pairs(vectors: &[Vec<f32>]) -> Vec<f64> {
    let later = |at: usize| vectors[at + 1..].iter().map(move |other| cosine(&vectors[at], other));
    (0..vectors.len()).flat_map(later).collect()
}

/// Returns the index of a pair in the triangle of `n` texts.
fn pair(a: usize, b: usize, n: usize) -> usize {
    let (a, b) = (a.min(b), a.max(b));
    a * (2 * n - a - 1) / 2 + b - a - 1
}

fn same_neighbours(own: &[f64], other: &[f64], n: usize) -> f64 {
    let nearest = |pairs: &[f64], text: usize| {
        let others = (0..n).filter(|&other| other != text);
        others.max_by(|&a, &b| pairs[pair(text, a, n)].total_cmp(&pairs[pair(text, b, n)]))
    };
    let same = (0..n).filter(|&text| nearest(own, text) == nearest(other, text)).count();
    same as f64 / n as f64
}

/// Returns Spearman's correlation; ties are ranked by their order.
fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
    let ranks = |values: &[f64]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
        let mut ranks = vec![0.0; values.len()];
        order.into_iter().enumerate().for_each(|(rank, at)| ranks[at] = rank as f64);
        ranks
    };
    let (a, b) = (ranks(a), ranks(b));
    let n = a.len() as f64;
    let squares: f64 = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum();
    1.0 - 6.0 * squares / (n * (n * n - 1.0))
}

/// Returns the scores of each label, text by text.
fn by_label(scores: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let n_labels = scores.first().map_or(0, Vec::len);
    let of =
        |label: usize| scores.iter().filter_map(|text| text.get(label).copied().map(f64::from)).collect();
    (0..n_labels).map(of).collect()
}

/// Returns the root mean square of the differences, as a share of the spread of each label's scores around their own
/// mean. Differences between labels do not count: they say nothing about the texts.
fn score_error(baseline: &[Vec<f32>], model: &[Vec<f32>]) -> f64 {
    let (mut error, mut spread) = (0.0, 0.0);
    for (baseline, model) in by_label(baseline).iter().zip(&by_label(model)) {
        let mean = baseline.iter().sum::<f64>() / baseline.len() as f64;
        spread += baseline.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        error += baseline.iter().zip(model).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
    }
    (error / spread.max(f64::MIN_POSITIVE)).sqrt()
}

fn score_ranks(baseline: &[Vec<f32>], model: &[Vec<f32>]) -> f64 {
    let (baseline, model) = (by_label(baseline), by_label(model));
    let sum: f64 = baseline.iter().zip(&model).map(|(a, b)| rank_correlation(a, b)).sum();
    sum / baseline.len().max(1) as f64
}

/// Computes the vectors of the texts, group by group.
fn vectors(
    engine: &Engine<'_>,
    chunks: &[TokenChunk],
    progress: &dyn Progress,
    observer: Option<&dyn Observer>,
) -> Result<Vec<Vec<f32>>, VerifyError> {
    let (mut found, mut rest) = (Vec::new(), chunks);
    for n in engine.groups(chunks)? {
        let (group, later) = rest.split_at(n);
        let hidden = engine.forward(group, progress, observer)?;
        let lengths: Vec<usize> = group.iter().map(|chunk| chunk.tokens.len()).collect();
        found.extend(engine.embeddings(&hidden, &lengths, progress)?);
        rest = later;
    }
    Ok(found)
}

fn word(plan: &GraphPlan) -> &'static str {
    match (plan.pooling.classifier.is_some(), plan.pooling.row) {
        (true, _) => "rank",
        (false, PooledRow::Mean) => "mean",
        (false, PooledRow::First) => "cls",
        (false, PooledRow::Last) => "last",
        (false, PooledRow::Undeclared) => "unsaid",
    }
}

/// Options of a run of an encoder, and its observers.
#[derive(Clone, Copy)]
pub(super) struct EncoderRun<'a> {
    pub(super) options: &'a VerifyOptions<'a>,
    pub(super) progress: &'a dyn Progress,
    pub(super) observer: Option<&'a dyn Observer>,
}

/// Runs the texts through the model and its baseline, and judges the result.
pub(super) fn judge(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    mut plan: GraphPlan,
    prompts: &[Prompt],
    run: EncoderRun<'_>,
    report: &mut Report,
) -> Result<(), VerifyError> {
    let EncoderRun { options, progress, observer } = run;
    let mut n_ctx = options.scoring.n_ctx;
    if let Some(positions) = &plan.positions {
        n_ctx = n_ctx.min(positions.n_rows);
    }
    let end = model.encoder.ok().and_then(TextEncoder::end_of_text);
    let texts = EncoderTexts::cut(prompts, end, n_ctx, options.scoring.n_chunks);
    if texts.chunks.is_empty() {
        return Err(VerifyError::NothingToScore);
    }
    let longest = texts.chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0);
    report.extend(
        longer_than_trained(&plan, longest, "texts").map(|text| Finding::warning(Check::Context, text)),
    );
    let is_score = plan.pooling.classifier.is_some();
    let pooling = word(&plan);
    let others = match baseline {
        Some(baseline) => {
            let mut other = baseline.plan().map_err(VerifyError::Baseline)?;
            masked::level_heads(&mut plan, &mut other);
            Some(Engine::new(other, baseline.source, options.engine)?)
        }
        None => None,
    };
    let engine = Engine::new(plan, model.source, options.engine)?;
    let n_runs = if others.is_some() { 2 } else { 1 };
    progress.begin("running the model", n_runs * engine.work_bytes(&texts.chunks));
    let own = vectors(&engine, &texts.chunks, progress, observer)?;
    let width = own.first().map_or(0, Vec::len);
    let (n_texts, tokens) = (own.len(), texts.n_tokens());
    let mut figures = EmbeddingReport { texts: n_texts, tokens, width, pooling, against: None };
    if own.iter().flatten().any(|x| !x.is_finite()) {
        report.add(Finding::error(Check::Embeddings, "vectors with values that are no finite numbers"));
    }
    if let Some((reference, baseline)) = others.as_ref().zip(baseline) {
        let of_baseline = vectors(reference, &texts.chunks, progress, None)?;
        progress.end();
        if of_baseline.first().map_or(0, Vec::len) == width {
            // A file that is what its types make of the baseline is its own reference copy.
            let copy = is_own_twin(report, model, baseline).then_some(own.as_slice());
            let healthy = healthy(model, baseline, &engine, &texts, &of_baseline, copy, progress)?;
            figures.against = EmbeddingDifference::of(&of_baseline, &own, &texts.prompts, is_score);
            if let Some(against) = &mut figures.against {
                against.healthy = healthy;
            }
        } else {
            let message = format!("vectors of {width} values, the baseline's have another width");
            report.add(Finding::error(Check::Baseline, message));
        }
    } else {
        progress.end();
    }
    settle(report, figures, &options.thresholds);
    let texts = masked::texts_of(prompts, end, n_ctx, options.scoring.n_chunks);
    let other = baseline.zip(others.as_ref()).map(|(model, engine)| LoadedModel { model, engine });
    masked::judge(LoadedModel { model, engine: &engine }, other, &texts, report, progress)
}

/// Returns the differences of a healthy file with the model's types; `None` if one of the types has no quantizer. `copy`
/// are its vectors, if they are known.
fn healthy(
    model: &Model<'_>,
    baseline: &Model<'_>,
    engine: &Engine<'_>,
    texts: &EncoderTexts,
    of_baseline: &[Vec<f32>],
    copy: Option<&[Vec<f32>]>,
    progress: &dyn Progress,
) -> Result<Option<HealthyVectors>, VerifyError> {
    let options = *engine.options();
    let Some(twin) = ReferenceTwin::new(model.source.tensors(), baseline.source, options.level) else {
        return Ok(None);
    };
    let is_score = engine.plan().pooling.classifier.is_some();
    let run = || {
        let plan = Model { source: &twin, ..*baseline }.plan().map_err(VerifyError::Baseline)?;
        let engine = Engine::new(plan, &twin, options).map_err(VerifyError::Baseline)?;
        progress.begin(TITLE, engine.work_bytes(&texts.chunks));
        let found = vectors(&engine, &texts.chunks, progress, None)?;
        progress.end();
        Ok::<_, VerifyError>(found)
    };
    let found = copy.map_or_else(run, |copy| Ok(copy.to_vec()))?;
    let against = EmbeddingDifference::of(of_baseline, &found, &texts.prompts, is_score);
    Ok(against.map(|EmbeddingDifference { mean_cosine, worst_cosine, score_error, .. }| HealthyVectors {
        mean_cosine,
        worst_cosine,
        score_error,
    }))
}

/// Reports limits of figures that the model does not have.
pub(super) fn stray_limits(plan: &GraphPlan, own: &Thresholds) -> Vec<Finding> {
    let of_texts = match plan.pooling.classifier {
        _ if plan.kind != ModelKind::Encoder => None,
        Some(_) => Some(Subject::Scores),
        None => Some(Subject::Vectors),
    };
    stray_limits_of(of_texts, plan.kind != ModelKind::Diffusion, plan.masked.is_some(), own)
}

/// Reports the same by the kind of model: what an encoder gives for a text, `None` for other models; one whose
/// next-token predictions are likelihoods, one that predicts masked tokens.
pub(super) fn stray_limits_of(
    of_texts: Option<Subject>,
    is_likely: bool,
    has_masks: bool,
    own: &Thresholds,
) -> Vec<Finding> {
    let stray = own.set().filter(|figure| {
        let row = figure.row();
        match row.subject {
            Subject::Masks => !has_masks,
            Subject::Vectors | Subject::Scores => of_texts != Some(row.subject),
            Subject::Predictions => of_texts.is_some() || (row.is_likelihood && !is_likely),
        }
    });
    stray
        .map(|figure| {
            let row = figure.row();
            let (option, whose) = (row.option, row.subject.words());
            Finding::unchecked(
                Check::Limits,
                format!("`--{option}` is a limit of {whose}: this model has none"),
            )
        })
        .collect()
}

/// Reports extras that have no use for an encoder.
pub(super) fn without_use(extras: &Extras<'_>) -> Vec<Finding> {
    let asked = [
        ("--baseline", extras.logits.is_some(), "a logit file is of predictions"),
        ("--save-baseline", extras.save.is_some(), "there are no log-probabilities to keep"),
        ("tasks", !extras.tasks.is_empty(), "answers are chosen by their likelihood"),
    ];
    let of = |(what, _, why): &(&str, bool, &str)| {
        Finding::unchecked(Check::Encoder, format!("`{what}`: {why}, and the model predicts no text"))
    };
    asked.iter().filter(|(_, is_asked, _)| *is_asked).map(of).collect()
}

/// Applies the limits and records the coverage.
fn settle(report: &mut Report, figures: EmbeddingReport, own: &Thresholds) {
    if let Some(against) = &figures.against {
        let healthy = against.healthy.as_ref().map_or(TYPICAL, HealthyVectors::distances);
        if against.healthy.is_none() {
            let message = "the file is judged by what types cost any model: the cost of its own cannot be measured on the baseline";
            report.add(Finding::warning(Check::Limits, message));
        }
        let limits = lines(against, healthy, own);
        let missed: Vec<Finding> = limits
            .iter()
            .filter(|line| line.is_missed)
            .map(|line| {
                let of = if line.is_own {
                    "which an option asks for".to_owned()
                } else {
                    format!("{MARGIN} times as far as a healthy file of these types is")
                };
                Finding::error(Check::Limit(line.figure), format!("{}, {of}", line.relation()))
            })
            .collect();
        report.extend(missed);
        report.set_limits(limits);
    }
    let n = figures.texts;
    match (&figures.against, n < LEAST_TEXTS) {
        // Recorded already: there is no baseline, or its vectors cannot be compared.
        (None, _) => {}
        (Some(_), true) => {
            let reason = format!("only {} run, a verdict needs {LEAST_TEXTS}", plural(n as u64, "text"));
            report.not_judged(Aspect::Embeddings, reason, "more prompts, or a smaller `--ctx`");
        }
        (Some(_), false) => report.judged(Aspect::Embeddings, plural(n as u64, "text")),
    }
    report.embeddings = Some(figures);
}

fn lines(against: &EmbeddingDifference, healthy: Distances, own: &Thresholds) -> Vec<LimitLine> {
    let far = |distance: f64, least: f64| MARGIN * distance.max(least);
    let defaults = Thresholds::default()
        .with(Figure::Cosine, Some(1.0 - far(healthy.mean, LEAST.mean)))
        .with(Figure::WorstCosine, Some(1.0 - far(healthy.worst, LEAST.worst)))
        .with(Figure::ScoreError, Some(far(healthy.scores, LEAST.scores)));
    own.lines(&defaults, &Measured { vectors: Some(against), ..Measured::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_known_vectors() {
        let baseline = vec![vec![1.0, 0.0], vec![0.9, 0.1], vec![0.0, 1.0], vec![-1.0, 0.2]];
        let same = EmbeddingDifference::of(&baseline, &baseline, &[0, 1, 2, 3], false).unwrap();
        assert!((same.mean_cosine - 1.0).abs() < 1e-12);
        assert_eq!((same.same_neighbour, same.rank_correlation), (Some(1.0), Some(1.0)));
        let mut rotated = baseline.clone();
        rotated[2] = vec![1.0, 0.0];
        let other = EmbeddingDifference::of(&baseline, &rotated, &[0, 1, 2, 3], false).unwrap();
        assert_eq!((other.worst_prompt, other.worst_cosine), (2, 0.0));
        assert!(other.same_neighbour.unwrap() < 1.0 && other.rank_correlation.unwrap() < 1.0);
        rotated[1] = vec![f32::NAN, 0.0];
        let broken = EmbeddingDifference::of(&baseline, &rotated, &[0, 1, 2, 3], false).unwrap();
        assert!(broken.worst_cosine.is_nan() && broken.worst_prompt == 1);
        assert!(lines(&broken, TYPICAL, &Thresholds::default()).iter().all(|line| line.is_missed));
    }

    #[test]
    fn scores_are_compared_by_their_spread() {
        let baseline: Vec<Vec<f32>> = [0.0, 1.0, 2.0, 3.0].map(|x| vec![x]).to_vec();
        let model: Vec<Vec<f32>> = [0.1, 1.1, 2.1, 3.1].map(|x| vec![x]).to_vec();
        let found = EmbeddingDifference::of(&baseline, &model, &[0, 1, 2, 3], true).unwrap();
        assert!((found.score_error.unwrap() - 0.1 / 1.25f64.sqrt()).abs() < 1e-6);
        assert_eq!((found.same_neighbour, found.rank_correlation), (None, Some(1.0)));
        // A label that is far from the others does not hide a change, and ranks are those within a label.
        let two = |scores: [[f32; 2]; 3]| scores.map(|text| text.to_vec()).to_vec();
        let baseline = two([[0.0, 100.0], [1.0, 101.0], [2.0, 102.0]]);
        let model = two([[2.0, 100.0], [1.0, 101.0], [0.0, 102.0]]);
        let found = EmbeddingDifference::of(&baseline, &model, &[0, 1, 2], true).unwrap();
        assert!((found.score_error.unwrap() - 2f64.sqrt()).abs() < 1e-9, "{found:?}");
        assert_eq!(found.rank_correlation, Some(0.0));
    }

    #[test]
    fn pairs_lie_where_they_are_looked_for() {
        let n = 5;
        let mut at = 0;
        for a in 0..n {
            for b in a + 1..n {
                assert_eq!((pair(a, b, n), pair(b, a, n)), (at, at));
                at += 1;
            }
        }
    }
}
