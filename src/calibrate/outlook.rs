//! What a calibration would take, told without running the model.

use crate::calibrate::fidelity::{FidelityOptions, Solver, Targets, targets};
use crate::calibrate::run::{CalibrateOptions, CalibrationRun};
use crate::calibrate::sequential::needed_bytes;
use crate::calibrate::{CalibrateError, CalibrationText};
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
    /// Bytes of memory that the run takes at most, beside the weights.
    pub needed_bytes: u64,
    /// Bytes that it may take.
    pub budget_bytes: u64,
    /// Bytes of the blocks that are kept in a file until the output is written.
    pub disk_bytes: u64,
}

impl Outlook {
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
        let lengths =
            text.kinds.iter().flat_map(|kind| &kind.windows).map(|window| window.chunk.tokens.len());
        let needed_bytes = if let Some(statistics) = options.keep.statistics {
            statistics.layer_bytes()
        } else if options.solver == Solver::Sequential {
            let engine = Engine::new(model.plan()?, model.source, options.engine)?;
            needed_bytes(&plan, &engine, lengths)
        } else {
            let wants = |meta: &TensorMeta| targets.contains_key(&meta.name);
            match CalibrationRun::new(model, text, CalibrateOptions { engine: options.engine, wants: &wants })
            {
                Ok(run) => run.needed_bytes(),
                Err(CalibrateError::Memory { needed_bytes, .. }) => needed_bytes,
                Err(error) => return Err(error),
            }
        };
        let tensors = input.source.tensors();
        let (mut n_matrices, mut disk_bytes) = (0u64, 0u64);
        for target in targets.values() {
            let shape = &tensors[target.tensor].shape;
            let dims = shape.dims();
            n_matrices += dims[..dims.len().saturating_sub(2)].iter().product::<u64>();
            let row_bytes = target.ty.row_bytes(shape.n_cols()).unwrap_or(0);
            disk_bytes = disk_bytes.saturating_add(row_bytes.saturating_mul(shape.n_rows()));
        }
        Ok(Self {
            n_tensors: targets.len(),
            n_matrices,
            without_solver,
            needed_bytes,
            budget_bytes: options.engine.memory_bytes,
            disk_bytes,
        })
    }
}
