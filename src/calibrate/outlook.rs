//! What a calibration would take, told without running the model.

use crate::calibrate::fidelity::{FidelityOptions, Solver, Targets, targets};
use crate::calibrate::matrices::solver_bytes;
use crate::calibrate::memory::Needs;
use crate::calibrate::{CalibrateError, CalibrationText, run, sequential};
use crate::core::{GgmlType, TensorMeta};
use crate::engine::Engine;
use crate::engine::plan::ModelKind;
use crate::quantize::Input;
use crate::verify::Model;

/// What a calibration would take.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook {
    /// Tensors that would be solved.
    pub n_tensors: usize,
    /// Their matrices: more where there are experts.
    pub n_matrices: u64,
    /// Tensors whose types have no solver, in the order of their names.
    pub without_solver: Vec<(String, GgmlType)>,
    /// What the run takes.
    pub needs: Needs,
    /// Bytes of memory that it may take.
    pub budget_bytes: u64,
    /// Bytes of these that the program does not hold already.
    pub free_bytes: u64,
    /// Bytes of the blocks that are kept in a file until the output is written.
    pub block_bytes: u64,
}

impl Outlook {
    /// Bytes of files without names: blocks until the output is written, hidden states that memory has no room for.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let spilled = if self.is_spilling() { self.needs.spilled_bytes } else { 0 };
        self.block_bytes.saturating_add(spilled)
    }

    /// Whether hidden states go to files.
    #[must_use]
    pub fn is_spilling(&self) -> bool {
        self.needs.all_bytes > self.free_bytes
    }

    /// Looks at a model, its text and what is asked for.
    ///
    /// # Errors
    /// As [`crate::calibrate::solve`], but for what only a run can tell, and for memory, of which this speaks.
    pub fn of(
        model: &Model<'_>,
        input: &Input<'_>,
        text: &CalibrationText,
        options: &FidelityOptions<'_>,
    ) -> Result<Self, CalibrateError> {
        let plan = model.plan()?;
        if plan.kind == ModelKind::Encoder {
            return Err(CalibrateError::Encoder);
        }
        let (targets, without_solver) = match options.solver {
            Solver::Reference => Targets::default(),
            Solver::Gptq | Solver::Sequential => targets(input, options.quantize)?,
        };
        let needs = if let Some(statistics) = options.keep.statistics {
            let solver = solver_bytes(input.source.tensors(), targets.values(), options.engine.n_threads);
            Needs::in_memory(statistics.layer_bytes()).beside(solver)
        } else {
            let engine = Engine::new(plan, model.source, options.engine)?;
            let wants = |meta: &TensorMeta| targets.contains_key(&meta.name);
            match options.solver {
                Solver::Sequential => sequential::needs(&engine, text.lengths()),
                Solver::Gptq | Solver::Reference => {
                    let solver =
                        solver_bytes(input.source.tensors(), targets.values(), options.engine.n_threads);
                    run::needs(model, &engine, text, &wants).beside(solver)
                }
            }
        };
        let tensors = input.source.tensors();
        let (mut n_matrices, mut block_bytes) = (0u64, 0u64);
        for target in targets.values() {
            let shape = &tensors[target.tensor].shape;
            let dims = shape.dims();
            n_matrices += dims[..dims.len().saturating_sub(2)].iter().product::<u64>();
            let row_bytes = target.ty.row_bytes(shape.n_cols()).unwrap_or(0);
            block_bytes = block_bytes.saturating_add(row_bytes.saturating_mul(shape.n_rows()));
        }
        Ok(Self {
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
