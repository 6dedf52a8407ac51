//! Calibrated quantization as a whole: run, solve, and compare the result with that of the importance matrix alone. A
//! file that is not better is not written.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::attempts::{AttemptResult, Attempts};
use crate::figures::{HeldOutFigures, WORTH_IT};
use crate::matrices::SolveTarget;
use crate::options::{FidelityOptions, Solver};
use crate::solved::SolvedBlocks;
use crate::{CalibrateError, CalibrationText, NotSolved, Result, SolverOptions};
use gguf_core::GgmlType;
use gguf_core::progress::Progress;
use gguf_engine::ModelKind;
use gguf_format::{Imatrix, ImatrixError, Value};
use gguf_quantization::{Input, QuantizeError, QuantizeOptions, QuantizePlan};
use gguf_solve::{SHRINKAGE_OF_STREAM, SolveOptions, can_solve};
use gguf_verification::{Model, Recall, SOLVER_KEY};

/// Divergence from the model on text that no solver used.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// Divergence of the result.
    #[serde(flatten)]
    pub figures: HeldOutFigures,
    /// Shrinkage of moments towards their diagonal: the fraction of each diagonal entry that was added to it.
    pub shrinkage: f32,
}

/// Result of a calibrated quantization.
#[derive(Debug)]
pub struct Fidelity {
    /// Importance of the same tokens.
    pub imatrix: Imatrix,
    /// Solved blocks; `None` if the file is better with the importance matrix alone.
    pub blocks: Option<SolvedBlocks>,
    /// Divergence, on the same text, of the file that the importance matrix alone gives.
    pub plain: HeldOutFigures,
    /// Attempts of the solver, in order.
    pub trials: Vec<Trial>,
    /// Matrices that the last attempt left to the importance matrix.
    pub left: Vec<NotSolved>,
    /// Tensors whose types have no solver, in file order.
    pub without_solver: Vec<(String, GgmlType)>,
    /// Metadata keys to write into the file.
    pub keys: Vec<(String, Value)>,
    /// Number of matrices that an interrupted run had solved.
    pub n_resumed: usize,
}

impl Fidelity {
    /// Divergence of the file: that of the blocks, or of the importance matrix alone.
    pub fn figures(&self) -> HeldOutFigures {
        let solved = self.trials.last().filter(|_| self.blocks.is_some());
        solved.map_or(self.plain, |trial| trial.figures)
    }

    /// The last attempt's mean divergence as a share of the importance matrix's.
    pub fn ratio(&self) -> Option<f64> {
        self.trials.last().map(|trial| trial.figures.ratio(&self.plain))
    }
}

/// Runs the model over the text, solves its tensors layer by layer, and measures the result on held-out text.
///
/// It is compared with the file that the importance matrix of the same tokens gives. If the ratio is above
/// 0.95, moments are drawn twice as strongly towards their diagonal and everything is done once more. If that
/// does not help either, the blocks are dropped.
///
/// # Errors
/// Models without likelihoods, unsuitable text, too little memory, types that cannot be chosen.
pub fn solve(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    options: &FidelityOptions<'_>,
    progress: &dyn Progress,
) -> Result<Fidelity> {
    if model.plan()?.kind == ModelKind::Encoder {
        return Err(CalibrateError::Encoder);
    }
    if !options.quantize.prune_layers.is_empty() {
        return Err(CalibrateError::Pruned);
    }
    let recall = Recall::of_many();
    let model = &Model { recall: Some(model.recall.unwrap_or(&recall)), ..*model };
    let held_out = text.held_out_windows();
    let (targets, without_solver) = match options.solver {
        Solver::Reference => SolveTargets::default(),
        Solver::Sequential | Solver::Tuned { .. } => targets(input, options.quantize)?,
    };
    let attempts = Attempts {
        model,
        input,
        text,
        options,
        targets: &targets,
        others: &without_solver,
        held_out: &held_out,
        progress,
    };
    let is_tuned = match options.solver {
        Solver::Tuned { .. } => {
            let outlook = attempts.tuning_outlook()?;
            outlook.check(&options.engine)?;
            outlook.notes.iter().for_each(|note| progress.warn(note));
            outlook.needed_bytes.is_some()
        }
        _ => false,
    };
    attempts.begin()?;
    let mut found: Option<(Imatrix, HeldOutFigures)> = None;
    let (mut trials, mut left, mut kept, mut n_resumed) = (Vec::new(), Vec::new(), None, 0);
    for (number, (factor, lambda)) in [(1.0, 1.0), (2.0, 3.0)].into_iter().enumerate() {
        let solver =
            SolverOptions { shrinkage: SHRINKAGE_OF_STREAM * factor, lambda, solve: SolveOptions::default() };
        if number > 0 {
            progress.steps(2);
        }
        let attempt = attempts.attempt(number, solver)?;
        let AttemptResult { imatrix, blocks, left: own, n_found } = attempt;
        n_resumed += n_found;
        let (imatrix, plain) = match found.take() {
            Some(known) => known,
            None => {
                let plan = QuantizePlan::new(input, options.quantize, Some(&imatrix))?;
                let plain = attempts.judge(None, &plan)?;
                drop(plan);
                (imatrix, plain)
            }
        };
        if options.solver == Solver::Reference {
            found = Some((imatrix, plain));
            break;
        }
        let plan = QuantizePlan::new(input, options.quantize, Some(&imatrix))?.with_solved(&blocks);
        let figures = attempts.judge(Some(number), &plan)?;
        drop(plan);
        trials.push(Trial { figures, shrinkage: solver.shrinkage });
        left = own;
        found = Some((imatrix, plain));
        if figures.ratio(&plain) <= WORTH_IT {
            kept = Some(blocks);
            break;
        }
        attempts.give_up(number);
    }
    let Some((imatrix, plain)) = found else { return Err(CalibrateError::NoText) };
    let mut used = if options.solver.tuning_steps() > 0 { Solver::Sequential } else { options.solver };
    if let (true, Some(blocks), Some(last)) = (is_tuned, &kept, trials.last())
        && let Some((tuned, figures)) = attempts.tune(&imatrix, blocks, &last.figures)?
    {
        let shrinkage = last.shrinkage;
        trials.push(Trial { figures, shrinkage });
        (kept, used) = (Some(tuned), options.solver);
    }
    let mut fidelity =
        Fidelity { imatrix, blocks: kept, plain, trials, left, without_solver, keys: Vec::new(), n_resumed };
    fidelity.keys = keys(&fidelity, used, text);
    Ok(fidelity)
}

/// Number of stages of [`solve`] that are known beforehand.
pub fn solving_steps(solver: Solver) -> usize {
    if solver == Solver::Reference { 2 } else { 3 }
}

/// Tensors to solve, by name, and those that get a type without a solver.
pub(super) type SolveTargets = (BTreeMap<String, SolveTarget>, Vec<(String, GgmlType)>);

pub(super) fn targets(input: &Input<'_>, options: &QuantizeOptions) -> Result<SolveTargets> {
    let tensors = input.source.tensors();
    let (mut targets, mut without) = (BTreeMap::new(), Vec::new());
    for (tensor, ty) in QuantizePlan::types_to_come(input, options)? {
        let name = tensors[tensor].name.clone();
        if can_solve(ty) {
            targets.insert(name, SolveTarget { tensor, ty });
        } else if ty.is_quantized() {
            without.push((name, ty));
        }
    }
    Ok((targets, without))
}

/// Metadata keys that describe how the file was made.
fn keys(fidelity: &Fidelity, solver: Solver, text: &CalibrationText) -> Vec<(String, Value)> {
    let solver = if fidelity.blocks.is_some() { solver } else { Solver::Reference };
    let solved = fidelity.trials.last().filter(|_| fidelity.blocks.is_some());
    let kld = solved.map(|trial| trial.figures.mean_kld as f32);
    keys_of(solver, text, kld, fidelity.plain.mean_kld as f32)
}

/// Same keys at their largest size, before anything is solved.
pub(super) fn keys_to_come(solver: Solver, text: &CalibrationText) -> Vec<(String, Value)> {
    let kld = (solver != Solver::Reference).then_some(0.0);
    keys_of(solver, text, kld, 0.0)
}

fn keys_of(solver: Solver, text: &CalibrationText, kld: Option<f32>, plain: f32) -> Vec<(String, Value)> {
    let mut keys = vec![
        (SOLVER_KEY.to_owned(), Value::from(solver.name())),
        ("gguf_foundry.quantize.calibration".to_owned(), Value::from(text.description().as_str())),
    ];
    if let Some(kld) = kld {
        keys.push(("gguf_foundry.quantize.kld".to_owned(), Value::F32(kld)));
    }
    keys.push(("gguf_foundry.quantize.kld_imatrix".to_owned(), Value::F32(plain)));
    keys
}

impl From<ImatrixError> for CalibrateError {
    fn from(error: ImatrixError) -> Self {
        Self::Quantize(QuantizeError::from(error))
    }
}
