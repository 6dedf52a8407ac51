//! Choice of types for a target size with calibration text: costs are measured on it, or estimated with its importance.

use std::collections::BTreeSet;
use std::path::Path;

use crate::attempts::divergence_of;
use crate::costs::{MeasureOptions, measure_costs, runs_for};
use crate::fidelity::keys_to_come;
use crate::importance::{self, importance};
use crate::{CalibrateError, CalibrationText, Result, Solver, WorkFolder, sequential};
use gguf_core::progress::{Progress, Titled};
use gguf_core::{GgmlType, TensorMeta};
use gguf_engine::{Engine, EngineOptions, ModelKind};
use gguf_format::{ColumnSums, Imatrix};
use gguf_quantization::{
    AllocateOptions, Allocation, Input, OpenTensor, QuantizeOptions, QuantizePlan, SizeTarget, Survey,
    TensorCost, n_matrices,
};
use gguf_solve::can_solve;
use gguf_verification::{Divergence, Model};

/// Tokens of a run that measures the cost of a tensor. The divergence is then known to about a twentieth. Eight times
/// as many tokens gave types that were no better.
const RUN_TOKENS: usize = 1024;

/// Options of the choice.
#[derive(Clone, Copy, Debug)]
pub struct TypesOptions<'a> {
    /// Options of the quantization. Types that they name are kept; their file type and `pure` are ignored.
    pub quantize: &'a QuantizeOptions,
    /// Types to choose from; if empty, those of [`AllocateOptions`].
    pub types: &'a [GgmlType],
    /// Solver that will round to the types.
    pub solver: Solver,
    /// Threads, memory and vector instructions.
    pub engine: EngineOptions,
    /// Folder for hidden states that do not fit in the memory budget.
    pub dir: &'a Path,
}

/// Chosen types, and the importance they were chosen with.
#[derive(Debug)]
pub struct ChosenTypes {
    /// Chosen types. The size is that of the calibrated file.
    pub allocation: Allocation,
    /// Importance of the columns on the text.
    pub imatrix: Imatrix,
}

/// Divergence that a solver leaves, as a share of that of the importance matrix alone, for types that it supports: the
/// means of the measurements in `docs/choosing-types.md`. It matters in comparison with types and tensors without a solver.
fn gain(solver: Solver) -> f64 {
    match solver {
        Solver::Reference => 1.0,
        Solver::Sequential => 0.35,
        Solver::Tuned { .. } => 0.27,
    }
}

/// Costs of types on a text, and what they were measured with.
pub(super) struct TextCosts {
    pub(super) costs: Vec<TensorCost>,
    pub(super) imatrix: Imatrix,
    /// Number of runs of the model that measured them.
    pub(super) n_runs: usize,
}

/// Chooses types for a target size by their costs on the calibration text.
///
/// The unquantized model is run once for the importance of all columns. If a count of operations allows it, it is then
/// run on about 1024 tokens for each tensor, or for each group of tensors of one role, with only these quantized.
/// Models that are too large for that use estimates by role. The tokens are those that the solver uses, never held-out
/// ones.
///
/// Types are the same for the same input, text and options with any number of threads, on machines with fused
/// multiply-add.
///
/// # Errors
/// Models without likelihoods, too little memory, a size that cannot be reached.
pub fn choose_types(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    options: &TypesOptions<'_>,
    target: SizeTarget,
    progress: &dyn Progress,
) -> Result<ChosenTypes> {
    check_budget(model, text, options)?;
    let alike = equal_importance(input, text)?;
    options.survey(input, text, Some(&alike), |survey| survey.check(target))??;
    let TextCosts { costs, imatrix, n_runs } = text_costs(model, input, text, options, None, progress)?;
    let found = options.survey(input, text, Some(&imatrix), |survey| survey.choose(&costs, target))??;
    Ok(ChosenTypes { allocation: Allocation { n_runs, ..found }, imatrix })
}

impl TypesOptions<'_> {
    /// Calls `work` with the survey of a file that a calibration writes.
    pub(super) fn survey<R>(
        &self,
        input: &Input<'_>,
        text: &CalibrationText,
        imatrix: Option<&Imatrix>,
        work: impl FnOnce(&Survey<'_>) -> R,
    ) -> Result<R> {
        let keys = keys_to_come(self.solver, text);
        let asked = AllocateOptions { quantize: self.quantize, types: self.types, keys: &keys };
        Ok(work(&Survey::new(input, imatrix, &asked)?))
    }
}

/// Measures the costs of types on the calibration text, as [`choose_types`] describes.
pub(super) fn text_costs(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    options: &TypesOptions<'_>,
    work: Option<&WorkFolder>,
    progress: &dyn Progress,
) -> Result<TextCosts> {
    let plan = model.plan()?;
    if plan.kind == ModelKind::Encoder {
        return Err(CalibrateError::Encoder);
    }
    let sums = importance(model, text, options.engine, options.dir, progress)?;
    let imatrix = Imatrix::of_sums(&sums)?;
    let windows = text.some_windows(RUN_TOKENS);
    let n_run_tokens = windows.iter().map(|window| window.chunk.tokens.len()).sum();
    let n_elems =
        input.source.tensors().iter().fold(0, |sum: u64, meta| sum.saturating_add(meta.shape.n_elems()));
    let mut measure = MeasureOptions { work, ..MeasureOptions::new(options.engine) };
    measure.n_runs = measure.n_runs.min(runs_for(n_elems, n_run_tokens, text.n_tokens()));
    let tensors = model.source.tensors();
    let heads = tensors.get(plan.head.tensor).map(|meta| meta.name.as_str());
    let seen: BTreeSet<&str> = sums.tensors.keys().map(String::as_str).chain(heads).collect();
    let (costs, n_runs) = options.survey(input, text, Some(&imatrix), |survey| {
        let mut costs = survey.estimate(progress)?;
        let n_runs = measure_costs(model, survey, &mut costs, &windows, &measure, progress)?;
        for (tensor, cost) in survey.tensors().iter().zip(&mut costs) {
            scale(input, tensor, cost, &seen, gain(options.solver));
        }
        Ok::<_, CalibrateError>((costs, n_runs))
    })??;
    Ok(TextCosts { costs, imatrix, n_runs })
}

/// Checks the memory for solving, which may be more than for choosing, so that the error comes early.
pub(super) fn check_budget(
    model: &Model<'_>,
    text: &CalibrationText,
    options: &TypesOptions<'_>,
) -> Result<()> {
    let engine = Engine::new(model.plan()?, model.source, options.engine)?;
    let needs = match options.solver {
        Solver::Reference => importance::needs(&engine, text),
        Solver::Sequential | Solver::Tuned { .. } => sequential::needs(&engine, text.lengths()),
    };
    needs.spills(&options.engine, text.n_tokens()).map(drop)
}

/// Importance matrix with the keys of the one that the text gives and equal columns, for what is known before a run.
pub(super) fn equal_importance(input: &Input<'_>, text: &CalibrationText) -> Result<Imatrix> {
    let alike = |meta: &TensorMeta| {
        let n_cols = usize::try_from(meta.shape.n_cols()).ok()?;
        let n_matrices = usize::try_from(n_matrices(meta)).ok()?;
        let n = n_cols.checked_mul(n_matrices)?;
        Some((meta.name.clone(), ColumnSums { n_cols, sums: vec![1.0; n], counts: vec![1; n_matrices] }))
    };
    let tensors = input.source.tensors().iter().filter_map(alike).collect();
    Ok(Imatrix::of_sums(&text.importance(tensors))?)
}

/// Scales the cost of a tensor by the solver's gain, for types with a solver, if the tensor is multiplied with
/// activations.
fn scale(input: &Input<'_>, tensor: &OpenTensor, cost: &mut TensorCost, seen: &BTreeSet<&str>, gain: f64) {
    let is_seen =
        input.source.tensors().get(tensor.source).is_some_and(|meta| seen.contains(meta.name.as_str()));
    if is_seen {
        cost.scale(|ty| if can_solve(ty) { gain } else { 1.0 });
    }
}

/// Measures the divergence of the file of `mix`, the plan of a standard mix of types by the importance matrix alone, on
/// the check text. The file is not written.
pub fn measure_mix(
    mix: &QuantizePlan<'_>,
    model: &Model<'_>,
    text: &CalibrationText,
    engine: EngineOptions,
    progress: &dyn Progress,
) -> Result<Divergence> {
    progress.steps(1);
    let progress = Titled { title: "measuring the standard mix of types", progress };
    divergence_of(mix, model, &text.held_out_windows(), engine, &progress)
}
