//! Types for a size where there is calibration text: what they cost is measured on it, or estimated with its importance.

use std::collections::BTreeSet;
use std::path::Path;

use crate::calibrate::attempts::divergence_of;
use crate::calibrate::costs::{MeasureOptions, measure_costs, runs_for};
use crate::calibrate::fidelity::keys_to_come;
use crate::calibrate::importance::total_importance;
use crate::calibrate::run::{CalibrateOptions, CalibrationRun};
use crate::calibrate::{CalibrateError, CalibrationText, Solver, run, sequential};
use crate::core::progress::{Progress, Titled};
use crate::core::{GgmlType, TensorMeta};
use crate::engine::plan::ModelKind;
use crate::engine::{Engine, EngineOptions};
use crate::gguf::{ColumnSums, FileType, Imatrix, ImatrixSums};
use crate::quantize::{
    AllocateOptions, Allocation, Input, OpenTensor, QuantizeOptions, QuantizePlan, SizeTarget, Survey,
    TensorCost, n_matrices,
};
use crate::solve::can_solve;
use crate::verify::{Divergence, Model};

/// Tokens of a run that measures what a tensor costs. Its divergence is known to about a twentieth then; eight times as many
/// gave types that were no better.
const RUN_TOKENS: usize = 1024;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct TypesOptions<'a> {
    /// Options of the quantization. Types that they name are kept; their file type and `pure` are not looked at.
    pub quantize: &'a QuantizeOptions,
    /// Types to choose from; empty: those of [`AllocateOptions`].
    pub types: &'a [GgmlType],
    /// The size.
    pub target: SizeTarget,
    /// What will round to the types.
    pub solver: Solver,
    /// Machine use.
    pub engine: EngineOptions,
    /// A folder for hidden states that the memory budget has no room for.
    pub dir: &'a Path,
}

/// Types, and what they were chosen with.
#[derive(Debug)]
pub struct ChosenTypes {
    /// The choice. Its size is that of the calibrated file.
    pub allocation: Allocation,
    /// Importance of the columns in the text.
    pub imatrix: Imatrix,
}

/// What a solver leaves of the divergence of the importance matrix alone, of the types that it knows: the means of
/// `docs/fidelity.md`. It matters beside types and tensors without a solver.
fn gain(solver: Solver) -> f64 {
    match solver {
        Solver::Reference => 1.0,
        Solver::Gptq => 0.58,
        Solver::Sequential => 0.35,
    }
}

/// Chooses types for a size by what they cost on the calibration text.
///
/// The unquantized model is run once for the importance of all columns. Then, if a count of operations allows it, once on
/// about 1024 tokens for each tensor, or for each group of tensors of one role, with only that quantized; models that are too
/// large for that have estimates by role. The tokens are those that the solver sees, never those that are held back.
///
/// The same input, text and options give the same types for any number of threads, on machines with fused multiply-add.
///
/// # Errors
/// Models without likelihoods, memory that does not do, a size that cannot be had.
pub fn choose_types(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    options: &TypesOptions<'_>,
    progress: &dyn Progress,
) -> Result<ChosenTypes, CalibrateError> {
    let plan = model.plan()?;
    if plan.kind == ModelKind::Encoder {
        return Err(CalibrateError::Encoder);
    }
    check_budget(model, input, text, options)?;
    check_size(input, text, options)?;
    let wants = |_: &TensorMeta| false;
    let run = CalibrationRun::new(
        model,
        text,
        CalibrateOptions { engine: options.engine, wants: &wants, dir: options.dir },
    )?;
    let sums = run.run::<CalibrateError>(progress, &mut |_| Ok(()))?;
    drop(run);
    let imatrix = Imatrix::of_sums(&total_importance(&sums))?;
    let keys = keys_to_come(options.solver, text);
    let asked = AllocateOptions { quantize: options.quantize, types: options.types, keys: &keys };
    let survey = Survey::new(input, Some(&imatrix), &asked)?;
    let mut costs = survey.estimate(progress)?;
    let windows = text.some_windows(RUN_TOKENS);
    let n_run_tokens = windows.iter().map(|window| window.chunk.tokens.len()).sum();
    let n_elems =
        input.source.tensors().iter().fold(0, |sum: u64, meta| sum.saturating_add(meta.shape.n_elems()));
    let mut measure = MeasureOptions::new(options.engine);
    measure.n_runs = measure.n_runs.min(runs_for(n_elems, n_run_tokens, text.n_tokens()));
    let n_runs = measure_costs(model, &survey, &mut costs, &windows, &measure, progress)?;
    let tensors = model.source.tensors();
    let heads = tensors.get(plan.head.tensor).map(|meta| meta.name.as_str());
    let seen: BTreeSet<&str> =
        sums.iter().flat_map(|kind| kind.tensors.keys().map(String::as_str)).chain(heads).collect();
    for (tensor, cost) in survey.tensors().iter().zip(&mut costs) {
        scale(input, tensor, cost, &seen, gain(options.solver));
    }
    let allocation = survey.choose(&costs, options.target)?;
    drop(survey);
    Ok(ChosenTypes { allocation: Allocation { n_runs, ..allocation }, imatrix })
}

/// Solving may take more memory than choosing: better said now than later.
fn check_budget(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    options: &TypesOptions<'_>,
) -> Result<(), CalibrateError> {
    let engine = Engine::new(model.plan()?, model.source, options.engine)?;
    let needs = match options.solver {
        Solver::Reference => return Ok(()),
        Solver::Sequential => sequential::needs(&engine, text.lengths()),
        Solver::Gptq => {
            let changed = QuantizePlan::types_to_come(input, options.quantize)?;
            let names: BTreeSet<&str> = changed
                .keys()
                .filter_map(|&at| input.source.tensors().get(at))
                .map(|meta| meta.name.as_str())
                .collect();
            let wants = |meta: &TensorMeta| names.contains(meta.name.as_str());
            run::needs(model, &engine, text, &wants)
        }
    };
    needs.spills(&options.engine, text.n_tokens()).map(drop)
}

/// A size that cannot be had is told of before the model is run: by an importance matrix of the same keys, and columns that
/// are all alike.
fn check_size(
    input: &Input<'_>,
    text: &CalibrationText,
    options: &TypesOptions<'_>,
) -> Result<(), CalibrateError> {
    let alike = |meta: &TensorMeta| {
        let n_cols = usize::try_from(meta.shape.n_cols()).ok()?;
        let n_matrices = usize::try_from(n_matrices(meta)).ok()?;
        let n = n_cols.checked_mul(n_matrices)?;
        Some((meta.name.clone(), ColumnSums { n_cols, sums: vec![1.0; n], counts: vec![1; n_matrices] }))
    };
    let alike = Imatrix::of_sums(&ImatrixSums {
        tensors: input.source.tensors().iter().filter_map(alike).collect(),
        datasets: text.kinds.iter().map(|kind| kind.name.as_bytes().to_vec()).collect(),
        n_chunks: text.kinds.iter().map(|kind| kind.windows.len()).sum(),
        chunk_size: text.n_ctx,
    })?;
    let keys = keys_to_come(options.solver, text);
    let asked = AllocateOptions { quantize: options.quantize, types: options.types, keys: &keys };
    Ok(Survey::new(input, Some(&alike), &asked)?.check(options.target)?)
}

/// Tensors that something is multiplied with have a solver for some types.
fn scale(input: &Input<'_>, tensor: &OpenTensor, cost: &mut TensorCost, seen: &BTreeSet<&str>, gain: f64) {
    let is_seen =
        input.source.tensors().get(tensor.source).is_some_and(|meta| seen.contains(meta.name.as_str()));
    if is_seen {
        cost.scale(|ty| if can_solve(ty) { gain } else { 1.0 });
    }
}

/// Divergence of a file of a standard mix, by the importance matrix alone, on the text that is held back.
///
/// # Errors
/// Models that cannot be run, text without scored tokens; being told to stop.
pub fn measure_mix(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    mix: (FileType, &Imatrix, &QuantizeOptions),
    engine: EngineOptions,
    progress: &dyn Progress,
) -> Result<Divergence, CalibrateError> {
    let (file_type, imatrix, options) = mix;
    let options = QuantizeOptions { file_type, pure: false, ..options.clone() };
    let plan = QuantizePlan::new(input, &options, Some(imatrix))?;
    progress.steps(1);
    let progress = Titled { title: "measuring the standard mix of types", progress };
    divergence_of(&plan, model, &text.check_windows(), engine, &progress)
}
