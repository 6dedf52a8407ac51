//! The mode as a whole: run, solve, and hold the result against what the importance matrix alone gives. A file that is not
//! better is not written.

use std::collections::BTreeMap;
use std::path::Path;

use crate::calibrate::matrices::{MatrixSolver, Target};
use crate::calibrate::run::{CalibrateOptions, CalibrationRun, total_importance};
use crate::calibrate::sequential::{Followed, Task};
use crate::calibrate::solved::SolvedBlocks;
use crate::calibrate::solver::LayerSolver;
use crate::calibrate::{CalibrateError, CalibrationText, NotSolved, SolverOptions};
use crate::core::progress::Progress;
use crate::core::{GgmlType, TensorMeta};
use crate::engine::EngineOptions;
use crate::engine::plan::ModelKind;
use crate::gguf::{Imatrix, ImatrixError, Value};
use crate::quantize::{Input, QuantizeError, QuantizeOptions, QuantizePlan};
use crate::solve::{SHRINKAGE, SHRINKAGE_OF_STREAM, SolveOptions, can_solve};
use crate::verify::{Divergence, Model, Recall, Window, divergence_on};

/// A solved file whose divergence is not below this share of the importance matrix's is tried again, then given up.
pub const WORTH_IT: f64 = 0.95;

/// How codes and scales are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solver {
    /// As llama.cpp does with the importance matrix of the same tokens.
    Reference,
    /// Error feedback and coordinate descent with the second moments of the unquantized model's activations.
    Gptq,
    /// The same with those of the model whose earlier tensors are quantized already, of weights that make good what these
    /// lost.
    Sequential,
}

impl Solver {
    /// Its name in options and metadata.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Gptq => "gptq",
            Self::Sequential => "sequential",
        }
    }
}

/// How a model is solved.
#[derive(Clone, Copy, Debug)]
pub struct FidelityOptions<'a> {
    /// How codes and scales are chosen.
    pub solver: Solver,
    /// Machine use. The memory budget is for activations and moments together.
    pub engine: EngineOptions,
    /// What is asked of the quantization.
    pub quantize: &'a QuantizeOptions,
    /// A folder for a temporary file as large as the output.
    pub dir: &'a Path,
}

/// Divergence from the model on text that no solver saw.
#[derive(Clone, Debug)]
pub struct Trial {
    /// How it was solved.
    pub options: SolverOptions,
    /// What it came to.
    pub check: Divergence,
}

/// What came out.
#[derive(Debug)]
pub struct Fidelity {
    /// Importance of the same tokens.
    pub imatrix: Imatrix,
    /// The blocks; `None` if the file is better off with the importance matrix alone.
    pub blocks: Option<SolvedBlocks>,
    /// Divergence of the file that the importance matrix alone gives, on the same text.
    pub plain: Divergence,
    /// Attempts, in order.
    pub trials: Vec<Trial>,
    /// Matrices of the last attempt that stayed with the importance matrix.
    pub left: Vec<NotSolved>,
    /// Tensors whose types have no solver, in file order.
    pub without_solver: Vec<(String, GgmlType)>,
    /// Keys for the file's metadata.
    pub keys: Vec<(String, Value)>,
}

impl Fidelity {
    /// The last attempt's mean divergence as a share of the importance matrix's.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.trials.last().map(|trial| ratio(&trial.check, &self.plain))
    }
}

fn ratio(solved: &Divergence, plain: &Divergence) -> f64 {
    if plain.mean.value > 0.0 { solved.mean.value / plain.mean.value } else { 1.0 }
}

/// Runs the model over the text, solves its tensors layer by layer, and measures the result on text that was held back
/// beside the file that the importance matrix of the same tokens gives. With a ratio above [`WORTH_IT`] moments are drawn
/// twice as strongly towards their diagonal and everything is done once more; if that does not help either, the blocks
/// are dropped.
///
/// # Errors
/// Models without likelihoods, text or memory that does not do, types that cannot be chosen.
pub fn solve(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    options: &FidelityOptions<'_>,
    progress: &dyn Progress,
) -> Result<Fidelity, CalibrateError> {
    if model.plan()?.kind == ModelKind::Encoder {
        return Err(CalibrateError::Encoder);
    }
    if !options.quantize.prune_layers.is_empty() {
        return Err(CalibrateError::Pruned);
    }
    let recall = Recall::default();
    let model = &Model { recall: Some(&recall), ..*model };
    let check = text.check_windows();
    let (targets, without_solver) = match options.solver {
        Solver::Reference => Targets::default(),
        Solver::Gptq | Solver::Sequential => targets(input, options.quantize)?,
    };
    let shrinkage = match options.solver {
        Solver::Sequential => SHRINKAGE_OF_STREAM,
        _ if text.kinds.len() > 1 => SHRINKAGE,
        _ => 1.0,
    };
    let mut found: Option<(Imatrix, Divergence)> = None;
    let (mut trials, mut left, mut kept) = (Vec::new(), Vec::new(), None);
    for (factor, lambda) in [(1.0, 1.0), (2.0, 3.0)] {
        let solver = SolverOptions { shrinkage: shrinkage * factor, lambda, solve: SolveOptions::default() };
        let attempt = attempt(model, input, text, options, (&targets, &without_solver, solver), progress)?;
        let (imatrix, plain) = match found.take() {
            Some(known) => known,
            None => {
                let plan = QuantizePlan::new(input, options.quantize, Some(&attempt.imatrix))?;
                let plain = divergence(model, &plan, &check, options.engine, progress)?;
                drop(plan);
                (attempt.imatrix, plain)
            }
        };
        if options.solver == Solver::Reference {
            found = Some((imatrix, plain));
            break;
        }
        let plan = QuantizePlan::new(input, options.quantize, Some(&imatrix))?;
        let plan = plan.with_solved(&attempt.blocks);
        let solved = divergence(model, &plan, &check, options.engine, progress)?;
        drop(plan);
        let is_worth_it = ratio(&solved, &plain) <= WORTH_IT;
        trials.push(Trial { options: solver, check: solved });
        left = attempt.left;
        found = Some((imatrix, plain));
        if is_worth_it {
            kept = Some(attempt.blocks);
            break;
        }
    }
    let Some((imatrix, plain)) = found else { return Err(CalibrateError::NoText) };
    let mut fidelity =
        Fidelity { imatrix, blocks: kept, plain, trials, left, without_solver, keys: Vec::new() };
    fidelity.keys = keys(&fidelity, options.solver, text);
    Ok(fidelity)
}

/// What one attempt gives.
struct Attempt {
    imatrix: Imatrix,
    blocks: SolvedBlocks,
    left: Vec<NotSolved>,
}

fn attempt(
    model: &Model<'_>,
    input: &Input<'_>,
    text: &CalibrationText,
    options: &FidelityOptions<'_>,
    (targets, others, solver): (&BTreeMap<String, Target>, &[(String, GgmlType)], SolverOptions),
    progress: &dyn Progress,
) -> Result<Attempt, CalibrateError> {
    let tensors = input.source.tensors();
    let places = targets.values().map(|target| (&tensors[target.tensor], target.ty));
    let blocks = SolvedBlocks::new(options.dir, places)?;
    if options.solver == Solver::Sequential {
        let solved = targets.iter().map(|(name, target)| (name.clone(), target.ty));
        let task = Task {
            model,
            source: input.source,
            text,
            engine: options.engine,
            targets,
            types: &solved.chain(others.iter().cloned()).collect(),
            options: solver,
            blocks: &blocks,
            progress,
        };
        let Followed { importance, left } = task.run()?;
        let imatrix = Imatrix::of_sums(&importance).map_err(QuantizeError::from)?;
        return Ok(Attempt { imatrix, blocks, left });
    }
    let wants = |meta: &TensorMeta| targets.contains_key(&meta.name);
    let calibrate = CalibrateOptions { engine: options.engine, wants: &wants };
    let run = CalibrationRun::new(model, text, calibrate)?;
    let mut solver = LayerSolver {
        matrices: MatrixSolver {
            source: input.source,
            level: options.engine.level,
            options: solver.solve,
            blocks: &blocks,
            progress,
        },
        shrinkage: solver.shrinkage,
        targets,
        weights: text.kinds.iter().map(|kind| f64::from(kind.weight)).collect(),
        left: Vec::new(),
    };
    let sums = run.run(progress, &mut |layer| solver.take(&layer))?;
    let left = solver.left;
    let imatrix = Imatrix::of_sums(&total_importance(&sums)).map_err(QuantizeError::from)?;
    Ok(Attempt { imatrix, blocks, left })
}

/// Tensors to solve, by name, and those that get a type without a solver.
type Targets = (BTreeMap<String, Target>, Vec<(String, GgmlType)>);

fn targets(input: &Input<'_>, options: &QuantizeOptions) -> Result<Targets, CalibrateError> {
    let tensors = input.source.tensors();
    let (mut targets, mut without) = (BTreeMap::new(), Vec::new());
    for (tensor, ty) in QuantizePlan::types_to_come(input, options)? {
        let name = tensors[tensor].name.clone();
        if can_solve(ty) {
            targets.insert(name, Target { tensor, ty });
        } else if ty.is_quantized() {
            without.push((name, ty));
        }
    }
    Ok((targets, without))
}

fn divergence(
    model: &Model<'_>,
    plan: &QuantizePlan<'_>,
    windows: &[Window],
    engine: EngineOptions,
    progress: &dyn Progress,
) -> Result<Divergence, CalibrateError> {
    let own = Model { source: plan, metadata: plan.metadata(), file: None, recall: None, ..*model };
    divergence_on(&own, model, windows, engine, progress)?.ok_or(CalibrateError::NoText)
}

/// What the file says of how it was made.
fn keys(fidelity: &Fidelity, solver: Solver, text: &CalibrationText) -> Vec<(String, Value)> {
    let solver = if fidelity.blocks.is_some() { solver } else { Solver::Reference }.name();
    let mut keys = vec![
        ("gguf_foundry.quantize.solver".to_owned(), Value::from(solver)),
        ("gguf_foundry.quantize.calibration".to_owned(), Value::from(text.description().as_str())),
    ];
    if let Some(trial) = fidelity.trials.last().filter(|_| fidelity.blocks.is_some()) {
        let kld = Value::F32(trial.check.mean.value as f32);
        keys.push(("gguf_foundry.quantize.kld".to_owned(), kld));
    }
    let plain = Value::F32(fidelity.plain.mean.value as f32);
    keys.push(("gguf_foundry.quantize.kld_imatrix".to_owned(), plain));
    keys
}

impl From<ImatrixError> for CalibrateError {
    fn from(error: ImatrixError) -> Self {
        Self::Quantize(QuantizeError::from(error))
    }
}
