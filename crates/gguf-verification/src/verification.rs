//! Verification as a whole, in order: structure, graph, tokenizer, measurement, thresholds.

use std::iter;
use std::time::Instant;

use crate::answers::cut_sources;
use crate::checks::input::CheckedFile;
use crate::checks::{
    adapter, check_baseline, check_file, check_texts, control_vector, graph, images, label, towers,
    vocabulary,
};
use crate::cost::Cost;
use crate::embeddings::{self, EncoderRun};
use crate::judgement::{JudgedModel, healthy_cost, judge_figures};
use crate::logit_file::model_mark::ModelMark;
use crate::measure::{self, LogitFiles, measure_with};
use crate::model::LoadedModel;
use crate::options::{VerifyOptions, longer_than_trained};
use crate::prompts::file_reports;
use crate::reference_twin::{TwinRun, evenly, has_twin, is_own_twin, positions_evenly, run_twin};
use crate::windows::{Cut, Scoring, Window, cut};
use crate::{
    Aspect, Check, Divergence, Extras, Figure, Finding, LogitWriter, Model, Perplexity, Position, Prompt,
    PromptFile, PromptReport, PromptSource, Report, SaveLogits, Severity, TaskReport, TaskSet, VerifyError,
    WeightOptions, compare_weights, drafts, known, masked, quality, tasks,
};
use gguf_core::progress::Progress;
use gguf_core::text::{escape_bytes, plural};
use gguf_engine::{Engine, EngineOptions, GraphPlan, ModelKind, Observer};

/// A logit file holds no weights, so what the file's types cost this model cannot be measured.
const GENERAL_LIMITS: &str = "the baseline is a logit file: the default limits are general ones, of a small model, and looser than \
     those that are measured with the baseline itself; `--baseline MODEL` measures them, `--max-kld` sets one";

/// Result of a verification.
#[derive(Clone, Debug)]
pub struct Verification {
    /// Verdict with the findings and figures that it is based on.
    pub report: Report,
    /// Prompts as token ids; empty if nothing was run.
    pub prompts: Vec<Prompt>,
    /// Every position that was computed.
    pub positions: Vec<Position>,
    /// Prompts that the limit on the number of chunks left without a window.
    pub unreached: Vec<usize>,
    /// True if a logit file was written.
    pub has_saved: bool,
}

impl Verification {
    pub(super) fn without_figures(report: Report) -> Self {
        Self { report, prompts: Vec::new(), positions: Vec::new(), unreached: Vec::new(), has_saved: false }
    }
}

/// Verifies a model.
///
/// # Errors
/// Anything that prevents the verification: unreadable prompts or weights, too little memory, cancellation. Problems of
/// the model are findings, not errors.
pub fn verify(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    prompts: &[PromptSource],
    options: &VerifyOptions<'_>,
    progress: &dyn Progress,
    observer: Option<&dyn Observer>,
) -> Result<Verification, VerifyError> {
    verify_with(model, baseline, prompts, options, &Extras::default(), progress, observer)
}

/// Does the same as [`verify`], with a logit file in place of a baseline, a logit file to write, or tasks.
///
/// # Errors
/// As [`verify`]; a logit file or tasks that cannot be used.
pub fn verify_with(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    prompts: &[PromptSource],
    options: &VerifyOptions<'_>,
    extras: &Extras<'_>,
    progress: &dyn Progress,
    observer: Option<&dyn Observer>,
) -> Result<Verification, VerifyError> {
    let mut verification = run_checks(model, baseline, prompts, options, extras, progress, observer)?;
    quality::judge(&mut verification.report);
    Ok(verification)
}

/// Runs all checks, as far as possible.
fn run_checks(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    prompts: &[PromptSource],
    options: &VerifyOptions<'_>,
    extras: &Extras<'_>,
    progress: &dyn Progress,
    observer: Option<&dyn Observer>,
) -> Result<Verification, VerifyError> {
    progress.steps(n_steps(baseline.is_some(), prompts, options, extras));
    let weights = |report: &mut Report| match baseline {
        Some(baseline) => {
            compare_all_weights(model, baseline, options, report, progress)?;
            let is_run = !options.weights_only && (!prompts.is_empty() || extras.logits.is_some());
            progress.steps(usize::from(
                is_run && has_twin(model, baseline) && !is_own_twin(report, model, baseline),
            ));
            Ok(())
        }
        None => Ok(()),
    };
    let ExaminedModel { mut report, ready } = examine(model, baseline, prompts, options, progress, weights)?;
    if extras.logits.is_some() {
        report.has_baseline();
    }
    let Some((plan, encoded)) = ready.filter(|(_, encoded)| encoded.is_some() || extras.logits.is_some())
    else {
        return Ok(Verification::without_figures(report));
    };
    let mut encoded = encoded.unwrap_or_default();
    report.extend(embeddings::stray_limits(&plan, &options.thresholds));
    if plan.kind == ModelKind::Encoder {
        report.ask_encoder();
        report.extend(embeddings::without_use(extras));
        let run = EncoderRun { options, progress, observer };
        embeddings::judge(model, baseline, plan, &encoded, run, &mut report)?;
        return Ok(Verification { prompts: encoded, ..Verification::without_figures(report) });
    }
    let mut scoring = options.scoring;
    let known = extras.logits.filter(|file| is_comparable(file.n_vocab(), plan.n_vocab, &mut report));
    if let Some(file) = known {
        if let Some(mark) = file.mark() {
            report.extend(mark.compare(&ModelMark::of(model, &plan, options.engine.level)?));
        }
        (encoded, scoring) = known::text(file, model, &encoded, options.files, &scoring, &mut report)?;
    }
    let engine = Engine::new(plan, model.source, options.engine)?;
    report.tasks = answers(&engine, model, extras.tasks, &mut report, progress)?;
    let of_tasks: Vec<Finding> = report.tasks.iter().flat_map(TaskReport::findings).collect();
    report.extend(of_tasks);
    if encoded.is_empty() && (extras.logits.is_some() || !extras.tasks.is_empty()) {
        let message = if extras.tasks.is_empty() {
            "no text was scored: that of the logit file does not fit the model"
        } else {
            "no text was scored: answers to tasks are counted, not judged"
        };
        report.add(Finding::unchecked(Check::Perplexity, message));
        return Ok(Verification::without_figures(report));
    }
    let files = if known.is_some() { &[] } else { options.files };
    let (cut, reference) = prepare(&engine, baseline, &encoded, prompts, files, &scoring, &mut report)?;
    let Cut { windows, unreached, chunks } = cut;
    let recall = baseline.and_then(|baseline| baseline.recall);
    let other = reference.as_ref().map(|engine| measure::Baseline { engine, recall });
    // If the baseline cannot be compared with, neither its logits nor the model's are saved.
    let wanted = extras.save.as_ref().filter(|_| baseline.is_some() == reference.is_some());
    let mut save = match wanted {
        Some(save) => {
            let n_ctx = scoring.n_ctx;
            let n_vocab = engine.plan().n_vocab;
            let level = options.engine.level;
            let mark = match baseline.zip(reference.as_ref()) {
                Some((baseline, engine)) => ModelMark::of(baseline, engine.plan(), level)?,
                None => ModelMark::of(model, engine.plan(), level)?,
            };
            let writer = LogitWriter::create(save.path, &windows, &encoded, n_ctx, n_vocab, &mark)?;
            Some(announced(writer, save)?)
        }
        None => None,
    };
    let logits = LogitFiles { known, save: save.as_mut() };
    let start = Instant::now();
    let (positions, n_tokens) = measure_with(&engine, other, logits, &windows, progress, observer)?;
    report.tokens_per_second = Some(n_tokens as f64 / start.elapsed().as_secs_f64().max(1e-9));
    fill(&mut report, encoded.len(), &positions, text_bytes(model, &positions));
    if let Some(divergence) = &mut report.divergence {
        add_contexts(divergence, &encoded, model);
    }
    report.prompt_files = file_reports(files, &chunks, &positions);
    let loaded_baseline =
        baseline.zip(reference.as_ref()).map(|(model, engine)| LoadedModel { model, engine });
    if report.divergence.is_some() {
        let twin = match loaded_baseline {
            Some(LoadedModel { model: baseline, .. }) if is_own_twin(&report, model, baseline) => {
                TwinRun::Positions(positions_evenly(&windows, &positions))
            }
            Some(loaded) => run_twin(model, loaded, &evenly(&windows), progress)?,
            None => TwinRun::None,
        };
        report.healthy = Some(healthy_cost(Cost::typical(model.source.tensors()), twin, &mut report));
    }
    if known.is_some() && options.thresholds.of(Figure::Kld).is_none() {
        report.add(Finding::warning(Check::Limits, GENERAL_LIMITS));
    }
    judge_figures(&mut report, &JudgedModel::of(model, engine.plan(), prompts));
    if engine.plan().kind == ModelKind::Diffusion {
        let texts = masked::texts_of_windows(&windows, &encoded);
        let own = LoadedModel { model, engine: &engine };
        masked::judge(own, loaded_baseline, &texts, &mut report, progress)?;
    }
    if let (Some(writer), Some(save)) = (save, wanted) {
        writer.commit(save.sync)?;
    }
    Ok(Verification { report, prompts: encoded, positions, unreached, has_saved: wanted.is_some() })
}

/// Returns the number of stages of a verification that is known at its start: blocks, weights, the model, tasks. Whether
/// a reference copy is run depends on the weights.
fn n_steps(
    has_baseline: bool,
    prompts: &[PromptSource],
    options: &VerifyOptions<'_>,
    extras: &Extras<'_>,
) -> usize {
    let is_run = !(options.structure_only || options.weights_only);
    let has_text = is_run && (!prompts.is_empty() || extras.logits.is_some());
    let n_tasks = if is_run { extras.tasks.len() } else { 0 };
    let has_weights = has_baseline && !options.structure_only;
    1 + usize::from(has_weights) + usize::from(has_text) + n_tasks
}

/// Model whose file, keys, weights and tokenizer were checked.
pub(super) struct ExaminedModel {
    pub(super) report: Report,
    /// Graph and the prompts as token ids, if the model can be run; the prompts are `None` if all are text and cannot
    /// be encoded.
    pub(super) ready: Option<(GraphPlan, Option<Vec<Prompt>>)>,
}

/// Runs all checks before a model is run. `weights` compares the weights with the baseline's.
pub(super) fn examine(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    prompts: &[PromptSource],
    options: &VerifyOptions<'_>,
    progress: &dyn Progress,
    weights: impl FnOnce(&mut Report) -> Result<(), VerifyError>,
) -> Result<ExaminedModel, VerifyError> {
    let mut report = Report::new(model.arch(), Some(model.bits_per_weight()), options.thresholds);
    if baseline.is_some() {
        report.has_baseline();
    }
    let level = options.engine.level;
    let file = CheckedFile::new(model.source, model.metadata, model.file, level, progress);
    report.extend(check_file(&file)?);
    report.judged(
        Aspect::Structure,
        format!("{}, block by block", plural(model.source.tensors().len() as u64, "tensor")),
    );
    if let Some(file) = model.file {
        let (found, wrong) = label::check(model.metadata, model.source.tensors(), Some(file.path()));
        report.label = found;
        report.extend(wrong);
    }
    if adapter::is_one(model.metadata) {
        adapter::leave_out(&mut report);
        return Ok(ExaminedModel { report, ready: None });
    }
    if control_vector::is_one(model.metadata) {
        control_vector::leave_out(&mut report);
        return Ok(ExaminedModel { report, ready: None });
    }
    if towers::is_towers(model.metadata) {
        towers::leave_out(&mut report);
    }
    let is_image = images::is_one(model.metadata, model.source.tensors());
    let plan = if is_image {
        images::leave_out(&mut report);
        None
    } else if drafts::are_alone(model.metadata, model.source.tensors()) {
        drafts::leave_out(model.metadata, &mut report);
        None
    } else if vocabulary::is_alone(model.metadata, model.source.tensors()) {
        vocabulary::leave_out(&mut report);
        None
    } else if options.weights_only {
        graph::check_missing(model, &mut report);
        None
    } else {
        graph::check(model, &mut report)?
    };
    for lost in [Some(model), baseline].into_iter().flatten().flat_map(|model| model.lost) {
        report.add(Finding::warning(Check::Hparams, lost));
    }
    if let Some(baseline) = baseline {
        report.extend(check_baseline(model, baseline));
        report.judged(
            Aspect::Metadata,
            format!("{}, compared with the baseline's", plural(model.metadata.len() as u64, "key")),
        );
        if !options.structure_only {
            weights(&mut report)?;
        }
    }
    if !is_image {
        check_tokenizer(model, prompts, &mut report);
    }
    let stop = report.findings.iter().any(|f| f.severity == Severity::Error && !f.check.is_measured());
    let Some(plan) = plan.filter(|_| !(options.structure_only || stop)) else {
        if stop {
            report.not_judged(
                Aspect::Perplexity,
                "the errors make figures meaningless",
                "a file without them",
            );
        }
        return Ok(ExaminedModel { report, ready: None });
    };
    let encoded = encode(model, prompts, baseline.is_some(), &mut report)?;
    Ok(ExaminedModel { report, ready: Some((plan, encoded)) })
}

/// Cuts the prompts, and prepares the baseline if its logits can be compared with the model's. `prompts` are the
/// sources of the encoded ones, in the same order.
pub(super) fn prepare<'b>(
    engine: &Engine<'_>,
    baseline: Option<&Model<'b>>,
    encoded: &[Prompt],
    prompts: &[PromptSource],
    files: &[PromptFile],
    scoring: &Scoring,
    report: &mut Report,
) -> Result<(Cut, Option<Engine<'b>>), VerifyError> {
    let mut cut = cut(encoded, files, scoring)?;
    let plan = engine.plan();
    cut_sources(plan, &mut cut.windows);
    report
        .extend(beyond_training(plan, &cut.windows).map(|message| Finding::warning(Check::Context, message)));
    let reference = match baseline {
        Some(baseline) => {
            let reference = reference_engine(engine, baseline, report)?;
            report.extend(compare_ids(encoded, prompts, baseline));
            reference
        }
        None => None,
    };
    Ok((cut, reference))
}

/// Returns true if the baseline has as many logits as the model; adds a finding otherwise.
fn is_comparable(other: usize, own: usize, report: &mut Report) -> bool {
    if own != other {
        let message = format!("{own} logits, the baseline has {other}: they cannot be compared");
        report.add(Finding::error(Check::Baseline, message));
    }
    own == other
}

/// Announces the size of a logit file, and reserves it.
fn announced(writer: LogitWriter, save: &SaveLogits<'_>) -> Result<LogitWriter, VerifyError> {
    (save.announce)(&writer.size());
    writer.reserve()?;
    Ok(writer)
}

/// Returns the model's answers to the tasks; none without a tokenizer.
fn answers(
    engine: &Engine<'_>,
    model: &Model<'_>,
    tasks: &[TaskSet],
    report: &mut Report,
    progress: &dyn Progress,
) -> Result<Vec<TaskReport>, VerifyError> {
    match model.encoder {
        Ok(encoder) => {
            let answers = tasks::run(engine, encoder, tasks, progress)?;
            let longest = answers.iter().map(|answers| answers.longest).max().unwrap_or(0);
            let warning = longer_than_trained(engine.plan(), longest, "tasks");
            report.extend(warning.map(|message| Finding::warning(Check::Context, message)));
            Ok(answers)
        }
        Err(_) if tasks.is_empty() => Ok(Vec::new()),
        Err(reason) => {
            report.add(Finding::unchecked(Check::Tasks, format!("text cannot be encoded: {reason}")));
            Ok(Vec::new())
        }
    }
}

/// Compares every tensor with the baseline's.
fn compare_all_weights(
    model: &Model<'_>,
    baseline: &Model<'_>,
    options: &VerifyOptions<'_>,
    report: &mut Report,
    progress: &dyn Progress,
) -> Result<(), VerifyError> {
    let EngineOptions { level, memory_bytes, .. } = options.engine;
    let how = WeightOptions { level, memory_bytes, importance: options.importance };
    let weights = compare_weights(model, baseline, &how, progress)?;
    report.set_weights(weights);
    Ok(())
}

/// Runs the checks of the tokenizer and of the chat template.
fn check_tokenizer(model: &Model<'_>, prompts: &[PromptSource], report: &mut Report) {
    let texts = model.texts(prompts);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    check_texts(model, &texts, report);
    match model.encoder {
        Ok(_) => {
            let source = if model.origin.is_some() { ", ids beside the source's" } else { "" };
            report.judged(
                Aspect::Tokenizer,
                format!("{} to ids and back{source}", plural(texts.len() as u64, "text")),
            );
        }
        Err(reason) if vocabulary::is_expected(model.metadata) => {
            report.not_judged(Aspect::Tokenizer, reason, "a vocabulary that this program knows");
        }
        Err(_) if towers::is_towers(model.metadata) => {
            report.judged(Aspect::Tokenizer, "towers have none");
        }
        Err(_) => report.judged(Aspect::Tokenizer, "the file declares that it has none"),
    }
}

/// Encodes the prompts; `None` if no prompt can be encoded.
fn encode(
    model: &Model<'_>,
    prompts: &[PromptSource],
    has_baseline: bool,
    report: &mut Report,
) -> Result<Option<Vec<Prompt>>, VerifyError> {
    match model.encode(prompts) {
        Err(VerifyError::NoEncoder { reason }) => {
            report.add(Finding::unchecked(Check::Perplexity, format!("text cannot be encoded: {reason}")));
            let remedy = "`--prompts FILE.jsonl`, its lines `{\"tokens\": [1, 2, 3]}`";
            for aspect in iter::once(Aspect::Perplexity).chain(has_baseline.then_some(Aspect::Divergence)) {
                report.not_judged(aspect, "the file has no tokenizer for text", remedy);
            }
            Ok(None)
        }
        Ok((encoded, left_out)) => {
            let is_left = !left_out.is_empty() && encoded.iter().all(|prompt| prompt.tokens.is_empty());
            report.extend(left_out);
            if is_left && !prompts.is_empty() {
                let remedy = "a chat template that works, or prompts of text";
                report.not_judged(Aspect::Perplexity, "no prompt became tokens", remedy);
                return Ok(None);
            }
            Ok(Some(encoded))
        }
        Err(error) => Err(error),
    }
}

/// Creates the baseline's engine if its logits can be compared with the model's.
fn reference_engine<'b>(
    engine: &Engine<'_>,
    baseline: &Model<'b>,
    report: &mut Report,
) -> Result<Option<Engine<'b>>, VerifyError> {
    let plan = baseline.plan().map_err(VerifyError::Baseline)?;
    if !is_comparable(plan.n_vocab, engine.plan().n_vocab, report) {
        return Ok(None);
    }
    Engine::new(plan, baseline.source, *engine.options()).map(Some).map_err(VerifyError::Baseline)
}

/// Computes the figures of the positions; `n_bytes` is the size of the scored text if a tokenizer is known.
pub(super) fn fill(report: &mut Report, n_prompts: usize, positions: &[Position], n_bytes: Option<u64>) {
    report.perplexity = Perplexity::of(positions.iter());
    // The positions of a prompt are consecutive, in the order of the prompts, unless some prompts belong to no file.
    let is_sorted = positions.is_sorted_by_key(|p| p.prompt);
    let of_prompt = |prompt: usize| {
        let start = positions.partition_point(|p| p.prompt < prompt);
        let end = positions.partition_point(|p| p.prompt <= prompt);
        let around = if is_sorted { positions.get(start..end).unwrap_or_default() } else { positions };
        Perplexity::of(around.iter().filter(|p| p.prompt == prompt))
    };
    report.prompts =
        (0..n_prompts).map(|prompt| PromptReport { prompt, perplexity: of_prompt(prompt) }).collect();
    report.divergence = Divergence::of(positions);
    let nll = || positions.iter().filter(|p| p.is_scored).map(|p| p.score.nll).sum::<f64>();
    report.bits_per_byte =
        n_bytes.filter(|&n| n > 0).map(|n_bytes| nll() / std::f64::consts::LN_2 / n_bytes as f64);
}

/// Returns a warning if chunks are longer than those that the model was trained on.
pub(super) fn beyond_training(plan: &GraphPlan, windows: &[Window]) -> Option<String> {
    let longest = windows.iter().map(|window| window.chunk.tokens.len()).max()?;
    longer_than_trained(plan, longest, "chunks")
}

/// Finds the first prompt for which the baseline's tokenizer gives other tokens.
fn compare_ids(encoded: &[Prompt], prompts: &[PromptSource], baseline: &Model<'_>) -> Option<Finding> {
    baseline.encoder.ok()?;
    let (others, _) = baseline.encode(prompts).ok()?;
    // A chat that one template fails on is reported elsewhere.
    let is_told = |prompt: &Prompt| prompt.tokens.is_empty();
    let mut pairs = encoded.iter().zip(&others).enumerate();
    let (prompt, (own, other)) = pairs.find(|(at, (own, other))| {
        let is_chat = matches!(prompts.get(*at), Some(PromptSource::Messages(_)));
        own.tokens != other.tokens && !(is_chat && (is_told(own) || is_told(other)))
    })?;
    let at = own.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    let show = |tokens: &[u32]| tokens.get(at).map_or("the end".to_owned(), u32::to_string);
    let message = format!(
        "prompt {prompt}: token {at} is {}, by the baseline's tokenizer {}",
        show(&own.tokens),
        show(&other.tokens)
    );
    Some(Finding::error(Check::TokenizerParity, message))
}

/// Returns the bytes of the text of the scored tokens; `None` without a tokenizer.
pub(super) fn text_bytes(model: &Model<'_>, positions: &[Position]) -> Option<u64> {
    let encoder = model.encoder.ok()?;
    let scored = positions.iter().filter(|p| p.is_scored);
    Some(scored.map(|p| encoder.decode(&[p.token]).len() as u64).sum())
}

/// Adds the text before each of the worst tokens, if there is a tokenizer.
pub(super) fn add_contexts(divergence: &mut Divergence, prompts: &[Prompt], model: &Model<'_>) {
    const TOKENS: usize = 16;
    let Ok(encoder) = model.encoder else { return };
    for worst in &mut divergence.worst {
        let tokens = prompts.get(worst.prompt).map(|prompt| prompt.tokens.as_slice()).unwrap_or_default();
        let before = tokens.get(worst.at.saturating_sub(TOKENS)..worst.at).unwrap_or_default();
        worst.context = Some(escape_bytes(&encoder.decode(before)));
    }
}
