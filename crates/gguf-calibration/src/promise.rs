//! Types for a divergence: the smallest file whose measured divergence on held-out text keeps to a limit.
//!
//! Every candidate is solved and measured as the file that it would become, so that the figure of the result is that of the
//! written file.

use serde::Serialize;

use crate::attempts::Attempts;
use crate::fidelity::SolveTargets;
use crate::figures::HeldOutFigures;
use crate::search::{MOST_TRIES, Proposals, Search};
use crate::types::{TextCosts, check_budget, equal_importance, text_costs};
use crate::{
    CalibrateError, CalibrationText, ChosenTypes, Fidelity, FidelityOptions, Result, TypesOptions,
    WorkFolder, solve, solving_steps,
};
use gguf_core::progress::Progress;
use gguf_quantization::{Allocation, Choices, Input, QuantizeOptions, TypeSet};
use gguf_verification::{Fingerprint, Model};

/// Standard errors that are added to a mean before it is compared with a limit.
pub const PROMISE_ERRORS: f64 = 2.0;

/// Measured types of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TriedTypes {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Expected mean KLD (nats).
    pub expected_kld: f64,
    /// Measured mean KLD (nats) on held-out text.
    pub mean_kld: f64,
    /// Standard error of the mean.
    pub stderr: f64,
    /// True if mean and error keep to the limit.
    #[serde(rename = "kept")]
    pub is_kept: bool,
}

/// Types whose measured divergence keeps to a limit.
#[derive(Debug)]
pub struct KeptPromise {
    /// Chosen types.
    pub chosen: ChosenTypes,
    /// Solved blocks and figures of the file.
    pub fidelity: Fidelity,
    /// Figures of the file.
    pub figures: HeldOutFigures,
    /// Measured candidates, in their order.
    pub tried: Vec<TriedTypes>,
}

impl HeldOutFigures {
    /// Mean divergence with its error bound, which must keep to a limit.
    pub fn bound(&self) -> f64 {
        self.mean_kld + PROMISE_ERRORS * self.stderr
    }
}

/// Maximum number of candidates that are solved and measured.
pub fn most_candidates() -> usize {
    MOST_TRIES
}

/// Finds the types of the smallest file whose mean divergence on the held-out text, with two standard errors added, is at
/// most `most_kld`, and solves them.
///
/// With a work folder, measured candidates are not measured again by a run that resumes, whatever its limit.
///
/// # Errors
/// As [`solve`] and [`crate::choose_types`]; [`CalibrateError::Unkept`] if the largest types exceed the limit.
pub fn keep_promise(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    options: &TypesOptions<'_>,
    most_kld: f64,
    work: Option<&WorkFolder>,
    progress: &dyn Progress,
) -> Result<KeptPromise> {
    check_budget(model, text, options)?;
    // Types and tensors that do not go together are reported before the model runs.
    options.survey(input, text, Some(&equal_importance(input, text)?), |_| ())?;
    let run = PromiseRun { model, input, text, options, work, progress };
    run.begin()?;
    let TextCosts { costs, imatrix, n_runs } = text_costs(model, input, text, options, work, progress)?;
    let (allocation, fidelity, tried) = options
        .survey(input, text, Some(&imatrix), |survey| run.search(&survey.choices(&costs), most_kld))??;
    let chosen = ChosenTypes { allocation: Allocation { n_runs, ..allocation }, imatrix };
    Ok(KeptPromise { chosen, figures: fidelity.figures(), fidelity, tried })
}

/// Chooses types of this expected divergence by estimates, without running the model.
///
/// # Errors
/// Tensors that cannot be read; types that cannot be chosen.
pub fn expected_types(
    input: &Input<'_>,
    text: &CalibrationText,
    options: &TypesOptions<'_>,
    most_kld: f64,
    progress: &dyn Progress,
) -> Result<Allocation> {
    let alike = equal_importance(input, text)?;
    options.survey(input, text, Some(&alike), |survey| {
        let costs = survey.estimate(progress)?;
        let choices = survey.choices(&costs);
        let set = choices.within_kld(most_kld);
        Ok(choices.allocation(&set, set.file_bytes)?)
    })?
}

impl Proposals for Choices<'_, '_> {
    fn within_bytes(&self, most_bytes: u64) -> Option<TypeSet> {
        Self::within_bytes(self, most_bytes).ok()
    }

    fn within_kld(&self, most_kld: f64) -> TypeSet {
        Self::within_kld(self, most_kld)
    }

    fn downgrades(&self, from: &TypeSet) -> Vec<TypeSet> {
        Self::downgrades(self, from)
    }
}

/// Inputs of the search.
struct PromiseRun<'a> {
    model: &'a Model<'a>,
    input: &'a Input<'a>,
    text: &'a CalibrationText,
    options: &'a TypesOptions<'a>,
    work: Option<&'a WorkFolder>,
    progress: &'a dyn Progress,
}

/// Smallest candidate so far that keeps to the limit, with its blocks.
struct Best {
    set: TypeSet,
    fidelity: Fidelity,
    work: Option<WorkFolder>,
}

impl PromiseRun<'_> {
    fn solving<'o>(
        &'o self,
        quantize: &'o QuantizeOptions,
        work: Option<&'o WorkFolder>,
    ) -> FidelityOptions<'o> {
        let TypesOptions { solver, engine, dir, .. } = *self.options;
        FidelityOptions { solver, engine, quantize, dir, work }
    }

    /// Begins to keep the figures of candidates, or resumes from those that are kept.
    fn begin(&self) -> Result<()> {
        let Some(work) = self.work else { return Ok(()) };
        let (targets, others) = SolveTargets::default();
        let attempts = Attempts {
            model: self.model,
            input: self.input,
            text: self.text,
            options: &self.solving(self.options.quantize, None),
            targets: &targets,
            others: &others,
            held_out: &self.text.held_out_windows(),
            progress: self.progress,
        };
        let mut facts = attempts.facts()?;
        let types: Vec<&str> = self.options.types.iter().map(|ty| ty.name()).collect();
        facts.add("choice of types", format!("for a divergence, of {types:?}"));
        Ok(work.begin(facts)?)
    }

    /// Searches among the choices, and returns the best one with its blocks and all that were measured.
    fn search(
        &self,
        choices: &Choices<'_, '_>,
        most_kld: f64,
    ) -> Result<(Allocation, Fidelity, Vec<TriedTypes>)> {
        let mut best: Option<Best> = None;
        let mut tried: Vec<TriedTypes> = Vec::new();
        let found = Search::new(choices, most_kld).run(&mut |set| {
            let candidate = id(choices, set);
            let known = self.work.and_then(|work| work.tried(&candidate));
            let figures = match known {
                Some(figures) => figures,
                None => self.measured(choices, set, &candidate, most_kld, &mut best)?,
            };
            let TypeSet { file_bytes, expected_kld, .. } = *set;
            let HeldOutFigures { mean_kld, stderr, .. } = figures;
            let is_kept = figures.bound() <= most_kld;
            tried.push(TriedTypes { file_bytes, expected_kld, mean_kld, stderr, is_kept });
            Ok::<_, CalibrateError>(figures.bound())
        })?;
        let Some(set) = found else {
            let best = tried.iter().min_by(|a, b| a.mean_kld.total_cmp(&b.mean_kld));
            let TriedTypes { file_bytes, mean_kld, stderr, .. } = *best.ok_or(CalibrateError::NoText)?;
            let n_tokens = self.text.n_held_out_tokens();
            return Err(CalibrateError::Unkept { most_kld, mean_kld, stderr, file_bytes, n_tokens });
        };
        let fidelity = match best.filter(|best| best.set == set) {
            Some(best) => best.fidelity,
            // An earlier run has measured it.
            None => self.solved(choices, &set, &id(choices, &set))?.0,
        };
        Ok((choices.allocation(&set, set.file_bytes)?, fidelity, tried))
    }

    /// Solves and measures a candidate, and keeps its blocks if it is the best so far.
    fn measured(
        &self,
        choices: &Choices<'_, '_>,
        set: &TypeSet,
        candidate: &str,
        most_kld: f64,
        best: &mut Option<Best>,
    ) -> Result<HeldOutFigures> {
        let (fidelity, work) = self.solved(choices, set, candidate)?;
        let figures = fidelity.figures();
        if let Some(work) = self.work {
            work.add_tried(candidate, &figures)?;
        }
        let is_best = figures.bound() <= most_kld
            && best.as_ref().is_none_or(|best| set.file_bytes < best.set.file_bytes);
        let own = Best { set: set.clone(), fidelity, work };
        let unused = if is_best { best.replace(own) } else { Some(own) };
        if let Some(Best { fidelity, work: Some(work), .. }) = unused {
            drop(fidelity);
            work.clear()?;
        }
        Ok(figures)
    }

    fn solved(
        &self,
        choices: &Choices<'_, '_>,
        set: &TypeSet,
        candidate: &str,
    ) -> Result<(Fidelity, Option<WorkFolder>)> {
        let work = self.work.map(|work| work.candidate(candidate)).transpose()?;
        let allocation = choices.allocation(set, set.file_bytes)?;
        self.progress.steps(solving_steps(self.options.solver));
        let options = self.solving(&allocation.options, work.as_ref());
        let fidelity = solve(self.model, self.input, self.text, &options, self.progress)?;
        Ok((fidelity, work))
    }
}

/// Identifies the types of a candidate.
fn id(choices: &Choices<'_, '_>, set: &TypeSet) -> String {
    let mut digest = Fingerprint::default();
    for chosen in choices.types(set) {
        digest.bytes(chosen.name.as_bytes());
        digest.bytes(chosen.ty.name().as_bytes());
    }
    digest.hex()
}
