//! Forecast of the memory and disk that a calibration needs, without running the model.

use crate::fidelity::{SolveTargets, targets};
use crate::memory::Needs;
use crate::options::{FidelityOptions, Solver};
use crate::tuned::TuningOutlook;
use crate::{CalibrateError, CalibrationText, Result, importance, sequential};
use gguf_core::GgmlType;
use gguf_engine::{Engine, ModelKind};
use gguf_quantization::Input;
use gguf_verification::Model;

/// Forecast of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook {
    /// What the user should know about the solver and this model.
    pub notes: Vec<String>,
    /// Number of tensors that would be solved.
    pub n_tensors: usize,
    /// Number of their matrices: more than one per tensor for experts.
    pub n_matrices: u64,
    /// Tensors whose types have no solver, in the order of their names.
    pub without_solver: Vec<(String, GgmlType)>,
    /// Memory and files that the run needs.
    pub needs: Needs,
    /// Memory that tuning needs, if something is tuned.
    pub tuning_bytes: Option<u64>,
    /// Number of weights that are tuned.
    pub n_tuned: u64,
    /// Memory budget in bytes.
    pub budget_bytes: u64,
    /// Bytes of the budget that the program does not hold yet.
    pub free_bytes: u64,
    /// Bytes of the blocks that are kept in a file until the output is written.
    pub block_bytes: u64,
}

impl Outlook {
    /// Bytes of unnamed temporary files: blocks until the output is written, and hidden states that do not fit in
    /// memory.
    pub fn disk_bytes(&self) -> u64 {
        let spilled = if self.is_spilling() { self.needs.spilled_bytes } else { 0 };
        // The start stays until the tuned file was measured.
        let n_states = if self.tuning_bytes.is_some() { 2 } else { 1 };
        self.block_bytes.saturating_mul(n_states).saturating_add(spilled)
    }

    /// Returns the error of a budget that is too small for tuning.
    pub fn tuning_error(&self) -> Option<CalibrateError> {
        let (budget_bytes, weights) = (self.budget_bytes, self.n_tuned);
        let needed_bytes = self.tuning_bytes.filter(|&needed| needed > budget_bytes)?;
        Some(CalibrateError::TuneMemory { budget_bytes, needed_bytes, weights })
    }

    /// Returns true if hidden states go to files.
    pub fn is_spilling(&self) -> bool {
        self.needs.all_bytes > self.free_bytes
    }

    /// Computes the forecast for a model, its text and options.
    ///
    /// # Errors
    /// As [`crate::solve`], except for memory, which this reports, and errors that occur only during a run.
    pub fn of(
        model: &Model<'_>,
        input: &Input<'_>,
        text: &CalibrationText,
        options: &FidelityOptions<'_>,
    ) -> Result<Self> {
        let plan = model.plan()?;
        if plan.kind == ModelKind::Encoder {
            return Err(CalibrateError::Encoder);
        }
        let (targets, without_solver) = match options.solver {
            Solver::Reference => SolveTargets::default(),
            Solver::Sequential | Solver::Tuned { .. } => targets(input, options.quantize)?,
        };
        let (mut notes, mut tuning_bytes, mut n_tuned) = (Vec::new(), None, 0);
        let engine = Engine::new(plan, model.source, options.engine)?;
        let needs = match options.solver {
            Solver::Reference => importance::needs(&engine, text),
            Solver::Sequential | Solver::Tuned { .. } => sequential::needs(&engine, text.lengths()),
        };
        let tensors = input.source.tensors();
        if let Solver::Tuned { .. } = options.solver {
            let changing = targets.values().map(|target| (&tensors[target.tensor], target.ty));
            let tuning = TuningOutlook::of(&engine, text, changing);
            notes = tuning.notes;
            (tuning_bytes, n_tuned) = (tuning.needed_bytes, tuning.n_weights);
        }
        let (mut n_matrices, mut block_bytes) = (0u64, 0u64);
        for target in targets.values() {
            let shape = &tensors[target.tensor].shape;
            let dims = shape.dims();
            n_matrices += dims[..dims.len().saturating_sub(2)].iter().product::<u64>();
            let row_bytes = target.ty.row_bytes(shape.n_cols()).unwrap_or(0);
            block_bytes = block_bytes.saturating_add(row_bytes.saturating_mul(shape.n_rows()));
        }
        Ok(Self {
            notes,
            tuning_bytes,
            n_tuned,
            n_tensors: targets.len(),
            n_matrices,
            without_solver,
            needs,
            budget_bytes: options.engine.memory_bytes,
            free_bytes: options.engine.elastic_bytes(),
            block_bytes,
        })
    }
}
