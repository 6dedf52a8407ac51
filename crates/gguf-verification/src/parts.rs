//! Verification by parts. Each of several machines runs a share of the windows and compares a share of the tensors,
//! without communication. The parts together give the report of a single run, number for number.
//!
//! Every part cuts the same prompts into the same windows and takes consecutive ones, so that the largest share of
//! tokens is as small as possible. Positions are stored exactly and joined in order before anything is summed. Every
//! part runs the checks before a run (structure, keys, tokenizer): each machine has its own copy of the file, and the
//! copies must be found to be the same.

mod combine;
mod error;
mod facts;
mod file;

use std::path::{Path, PathBuf};

use crate::checks::adapter;
use crate::cost::Cost;
use crate::judgement::JudgedModel;
use crate::measure::{self, LogitFiles, measure_with};
use crate::model::LoadedModel;
use crate::reference_twin::{TwinRun, evenly_of, run_twin};
use crate::verification::{ExaminedModel, add_contexts, examine, prepare, text_bytes};
use crate::weights::compare_share;
use crate::windows::Cut;
use crate::{
    Divergence, Finding, Model, Position, Prompt, PromptSource, Report, Thresholds, VerifyError,
    VerifyOptions, WeightOptions, WeightReport,
};
pub use combine::{CombinedVerification, combine_parts};
pub use error::PartError;
pub use facts::PartLabel;
use facts::{FileFacts, PartChecks, PartFacts, Plan, RunFacts, RunPlan, StoredFinding, TwinFacts, costs};
use gguf_core::progress::Progress;
use gguf_engine::{Engine, EngineOptions, GraphPlan, ModelKind};
use gguf_format::Share;

/// One of several parts of a verification, as its file holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct VerificationPart {
    /// File that it was read from; empty if it was not.
    path: PathBuf,
    facts: PartFacts,
    /// Positions measured at the windows of the part, in order.
    positions: Vec<Position>,
    /// Positions of the healthy file that limits are measured with.
    twin: Vec<Position>,
}

impl VerificationPart {
    /// Returns the file that it was read from; empty if it was not.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of the part, from 1, and the number of parts.
    pub fn number(&self) -> (usize, usize) {
        (self.facts.number, self.facts.count)
    }

    /// Returns the number of the part's first window, the number of its windows, and the number of all windows. `None`
    /// if nothing was run, because the checks before a run found errors, or because there is no graph.
    pub fn windows(&self) -> Option<(usize, usize, usize)> {
        let run = self.facts.run.as_ref()?;
        Some((run.first_window, run.end_window.saturating_sub(run.first_window), run.plan.n_windows))
    }

    /// Returns true if the model was compared with a baseline.
    pub fn has_baseline(&self) -> bool {
        self.facts.plan.has_baseline()
    }

    /// Returns the number of tokens that were run, baseline included.
    pub fn n_tokens(&self) -> u64 {
        self.facts.run.as_ref().map_or(0, |run| run.n_tokens)
    }

    /// Returns the prompts that the limit on chunks left without a window, and the chunks of each prompt file, for all
    /// parts.
    pub fn unreached(&self) -> (&[usize], Vec<usize>) {
        let plan = self.facts.run.as_ref().map(|run| &run.plan);
        plan.map_or((&[], Vec::new()), |plan| {
            (plan.unreached.as_slice(), plan.files.iter().map(|file| file.chunks).collect())
        })
    }

    /// Sets the names of the files on this machine, and the warnings for the report.
    pub fn labelled(mut self, label: PartLabel, notes: &[Finding]) -> Self {
        self.facts.label = label;
        self.facts.notes = notes.iter().map(StoredFinding::of).collect();
        self
    }
}

/// Runs one part of a verification: its share of the windows of all prompts. [`combine_parts`] makes the report.
///
/// # Errors
/// As [`crate::verify`]; [`VerifyError::NoParts`] for models whose positions are not measured one by one
/// (encoders, diffusion models, adapters) and for limits, which are for [`combine_parts`]; [`VerifyError::FewWindows`]
/// for more parts than windows.
pub fn verify_part(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    prompts: &[PromptSource],
    options: &VerifyOptions<'_>,
    share: Share,
    progress: &dyn Progress,
) -> Result<VerificationPart, VerifyError> {
    let no_parts = |what: &str| Err(VerifyError::NoParts { what: what.to_owned() });
    if options.thresholds != Thresholds::default() {
        return no_parts("limits: they are kept or missed by all parts together");
    }
    if options.structure_only || options.weights_only {
        return no_parts("a verification that runs nothing");
    }
    if adapter::is_one(model.metadata) {
        return no_parts("an adapter: it is not run");
    }
    let (mut at_weights, mut weights) = (None, None);
    let ExaminedModel { report, ready } = examine(model, baseline, prompts, options, progress, |report| {
        at_weights = Some(report.findings.len());
        if let Some(baseline) = baseline {
            let EngineOptions { level, memory_bytes, .. } = options.engine;
            let how = WeightOptions { level, memory_bytes, importance: options.importance };
            weights = Some(compare_share(model, baseline, &how, Some(share), progress)?);
        }
        Ok(())
    })?;
    let at_limits = report.findings.len();
    let mut checked =
        CheckedPart { at_weights: at_weights.unwrap_or(at_limits), at_limits, weights, report, share };
    let Some((plan, Some(encoded))) = ready else {
        let plan = Plan::of(model, baseline, prompts, &options.scoring, progress)?;
        return Ok(checked.part(plan, None, Vec::new(), Vec::new()));
    };
    match plan.kind {
        ModelKind::Encoder => return no_parts("an encoder: vectors of texts are compared with one another"),
        ModelKind::Diffusion => return no_parts("a diffusion model: it is judged at masked tokens"),
        ModelKind::Decoder => {}
    }
    let input = PartInput { plan, encoded: &encoded, sources: prompts };
    run(model, baseline, input, options, &mut checked, progress)
}

/// Part whose checks are done.
struct CheckedPart {
    at_weights: usize,
    at_limits: usize,
    weights: Option<WeightReport>,
    report: Report,
    share: Share,
}

impl CheckedPart {
    fn part(
        &self,
        plan: Plan,
        run: Option<RunFacts>,
        positions: Vec<Position>,
        twin: Vec<Position>,
    ) -> VerificationPart {
        let stored = |findings: &[Finding]| findings.iter().map(StoredFinding::of).collect();
        let checks = PartChecks {
            arch: self.report.arch.clone(),
            bits_per_weight: self.report.bits_per_weight,
            label: self.report.label.clone(),
            findings: stored(&self.report.findings),
            at_weights: self.at_weights,
            at_limits: self.at_limits,
            coverage: self.report.coverage.clone(),
            weights: self.weights.as_ref().map(|weights| stored(&weights.findings)),
        };
        let facts = PartFacts {
            plan,
            number: self.share.number(),
            count: self.share.count(),
            label: PartLabel::default(),
            notes: Vec::new(),
            checks,
            tensors: self.weights.as_ref().map(|weights| weights.tensors.clone()).unwrap_or_default(),
            run,
        };
        VerificationPart { path: PathBuf::new(), facts, positions, twin }
    }
}

/// Graph of a part, and its prompts as token ids and as they were given.
struct PartInput<'a> {
    plan: GraphPlan,
    encoded: &'a [Prompt],
    sources: &'a [PromptSource],
}

/// Runs the share of the windows.
fn run(
    model: &Model<'_>,
    baseline: Option<&Model<'_>>,
    input: PartInput<'_>,
    options: &VerifyOptions<'_>,
    checked: &mut CheckedPart,
    progress: &dyn Progress,
) -> Result<VerificationPart, VerifyError> {
    let PartInput { plan, encoded, sources } = input;
    let engine = Engine::new(plan, model.source, options.engine)?;
    let (files, scoring) = (options.files, &options.scoring);
    let (cut, reference) = prepare(&engine, baseline, encoded, sources, files, scoring, &mut checked.report)?;
    let Cut { windows, unreached, chunks } = cut;
    if windows.len() < checked.share.count() {
        return Err(VerifyError::FewWindows { share: checked.share, n_windows: windows.len() });
    }
    let own = checked.share.of_costs(&costs(&windows));
    let own_windows = windows.get(own.clone()).unwrap_or_default();
    let other = reference.as_ref().map(|engine| measure::Baseline { engine, recall: None });
    let logits = LogitFiles::default();
    let (positions, n_tokens) = measure_with(&engine, other, logits, own_windows, progress, None)?;
    let twin = match baseline.zip(reference.as_ref()) {
        Some((baseline, engine)) => run_twin(
            model,
            LoadedModel { model: baseline, engine },
            &evenly_of(&windows, own.clone()),
            progress,
        )?,
        None => TwinRun::None,
    };
    let (twin, twin_positions) = match twin {
        TwinRun::None => (TwinFacts::None, Vec::new()),
        TwinRun::Positions(positions) => (TwinFacts::Positions, positions),
        TwinRun::Failed(why) => (TwinFacts::Failed(why), Vec::new()),
    };
    let plan = Plan::of(model, baseline, sources, scoring, progress)?;
    let file = |(file, &chunks): (&crate::PromptFile, &usize)| FileFacts {
        first_prompt: file.prompts.start,
        end_prompt: file.prompts.end,
        chunks,
    };
    let facts = RunFacts {
        plan: RunPlan {
            judged: JudgedModel::of(model, engine.plan(), sources),
            has_masks: engine.plan().masked.is_some(),
            typical: Cost::typical(model.source.tensors()),
            is_compared: reference.is_some(),
            prompts: encoded.iter().map(|prompt| prompt.tokens.len() as u64).collect(),
            unreached,
            files: files.iter().zip(&chunks).map(file).collect(),
            n_windows: windows.len(),
        },
        first_window: own.start,
        end_window: own.end,
        n_tokens: n_tokens as u64,
        text_bytes: text_bytes(model, &positions),
        contexts: worst_contexts(&positions, encoded, model),
        twin,
        n_positions: positions.len() as u64,
        n_twin: twin_positions.len() as u64,
    };
    Ok(checked.part(plan, Some(facts), positions, twin_positions))
}

/// Texts before the tokens of this part that diverge most. The worst tokens of all parts are among them.
fn worst_contexts(
    positions: &[Position],
    encoded: &[Prompt],
    model: &Model<'_>,
) -> Vec<(usize, usize, String)> {
    let Some(mut divergence) = Divergence::of(positions) else { return Vec::new() };
    add_contexts(&mut divergence, encoded, model);
    divergence.worst.into_iter().filter_map(|worst| Some((worst.prompt, worst.at, worst.context?))).collect()
}
