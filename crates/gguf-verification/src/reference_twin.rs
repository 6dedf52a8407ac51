//! Cost of a file's types for this very model. The baseline is quantized to those types as it is read, and run over a
//! part of the text. The same error of the weights costs models very different amounts, by a factor of thirty and more;
//! no table knows it for a new model.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;

use crate::cost::Cost;
use crate::measure::{Baseline, measure};
use crate::model::LoadedModel;
use crate::{Divergence, HealthyCost, Model, Position, Report, VerifyError, Window};
use gguf_blocks::{can_quantize, dequantize, quantize_rows};
use gguf_core::progress::{Progress, Titled};
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, ImatrixNeed, SourceError, TensorMeta, TensorSource};
use gguf_engine::{Engine, EngineError};

/// Number of tokens that are run: enough for the cost to about 10 %, which is well within the margin of the limits.
const TOKENS: usize = 4096;
pub(super) const TITLE: &str = "running a reference copy, the baseline in the file's types";

/// Baseline as a healthy file would hold it: quantized to the file's types. Its weights are multiplied as the file's
/// are: blocks that the run multiplies in integers stay blocks, all others are decoded to F32.
pub(super) struct ReferenceTwin<'a> {
    baseline: &'a dyn TensorSource,
    /// Tensors of the baseline, all in F32.
    metas: Vec<TensorMeta>,
    /// Type that each tensor is quantized to; `None` for one that stays as it is.
    types: Vec<Option<GgmlType>>,
    level: SimdLevel,
}

impl<'a> ReferenceTwin<'a> {
    /// Creates the twin of a file for a run with these options; `None` if a tensor of the file has a type without a
    /// quantizer.
    pub(super) fn new(file: &[TensorMeta], baseline: &'a dyn TensorSource, level: SimdLevel) -> Option<Self> {
        let types: HashMap<&str, &TensorMeta> = file.iter().map(|meta| (meta.name.as_str(), meta)).collect();
        let ty = |meta: &TensorMeta| {
            let own = types.get(meta.name.as_str()).filter(|own| own.shape == meta.shape);
            let stored = own.map_or(meta.ty, |own| own.ty);
            (stored != GgmlType::F32 && stored != meta.ty).then_some(stored)
        };
        let types: Vec<Option<GgmlType>> = baseline.tensors().iter().map(ty).collect();
        if types.iter().flatten().any(|&ty| !can_quantize(ty)) {
            return None;
        }
        let metas =
            baseline.tensors().iter().map(|meta| TensorMeta { ty: GgmlType::F32, ..meta.clone() }).collect();
        Some(Self { baseline, metas, types, level })
    }
}

fn failed(meta: &TensorMeta, error: impl std::error::Error + Send + Sync + 'static) -> SourceError {
    SourceError { tensor: meta.name.clone(), source: Box::new(error) }
}

impl TensorSource for ReferenceTwin<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let meta = &self.baseline.tensors()[tensor];
        let quantized = self.types[tensor];
        if quantized.is_none() && meta.ty == GgmlType::F32 {
            return self.baseline.read_rows(tensor, first_row, out);
        }
        let n_cols = usize::try_from(meta.shape.n_cols()).unwrap_or(0).max(1);
        let row_bytes =
            |ty: GgmlType| ty.row_bytes(n_cols as u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let n_rows = out.len() / row_bytes(GgmlType::F32).max(1);
        let mut bytes = vec![0; row_bytes(meta.ty) * n_rows];
        self.baseline.read_rows(tensor, first_row, &mut bytes)?;
        let mut values = vec![0.0; n_cols * n_rows];
        dequantize(meta.ty, self.level, &bytes, &mut values).map_err(|error| failed(meta, error))?;
        if let Some(ty) = quantized {
            let flat = (ty.info().imatrix == ImatrixNeed::Required).then(|| vec![1.0; n_cols]);
            let mut blocks = vec![0; row_bytes(ty) * n_rows];
            quantize_rows(ty, self.level, n_cols, &values, flat.as_deref(), &mut blocks)
                .map_err(|error| failed(meta, error))?;
            dequantize(ty, self.level, &blocks, &mut values).map_err(|error| failed(meta, error))?;
        }
        for (out, value) in out.chunks_exact_mut(mem::size_of::<f32>()).zip(&values) {
            out.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
}

/// Outcome of running a healthy file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TwinRun {
    /// Not run: there is no baseline with weights, or a type has no quantizer.
    None,
    Positions(Vec<Position>),
    /// Reason why it could not be run.
    Failed(String),
}

/// Returns true if a healthy file can be run.
pub(super) fn has_twin(model: &Model<'_>, baseline: &Model<'_>) -> bool {
    ReferenceTwin::new(model.source.tensors(), baseline.source, SimdLevel::Scalar).is_some()
}

/// Returns true if the file itself is that healthy file: its weights are what its types make of the baseline, and its keys
/// give the baseline's graph.
pub(super) fn is_own_twin(report: &Report, model: &Model<'_>, baseline: &Model<'_>) -> bool {
    let plan = |of: &Model<'_>| Model { source: baseline.source, ..*of }.plan().ok();
    report.is_copy()
        && has_twin(model, baseline)
        && plan(model).is_some_and(|own| plan(baseline) == Some(own))
}

/// Runs the baseline in the types of `model` and compares it with the baseline itself, on windows that [`evenly`]
/// chose.
pub(super) fn run_twin(
    model: &Model<'_>,
    baseline: LoadedModel<'_>,
    windows: &[Window],
    progress: &dyn Progress,
) -> Result<TwinRun, VerifyError> {
    match twin_positions(model, baseline, windows, progress) {
        Ok(positions) => Ok(positions.map_or(TwinRun::None, TwinRun::Positions)),
        Err(error @ VerifyError::Engine(EngineError::Cancelled)) => Err(error),
        Err(error) => Ok(TwinRun::Failed(error.to_string())),
    }
}

fn twin_positions(
    model: &Model<'_>,
    baseline: LoadedModel<'_>,
    windows: &[Window],
    progress: &dyn Progress,
) -> Result<Option<Vec<Position>>, VerifyError> {
    let LoadedModel { model: baseline, engine: reference } = baseline;
    let options = *reference.options();
    let Some(twin) = ReferenceTwin::new(model.source.tensors(), baseline.source, options.level) else {
        return Ok(None);
    };
    let recalled = baseline.recall.and_then(|recall| recall.twin(&twin.types, windows));
    if let Some(positions) = recalled {
        return Ok(Some(positions));
    }
    let plan = Model { source: &twin, ..*baseline }.plan().map_err(VerifyError::Baseline)?;
    let engine = Engine::new(plan, &twin, options).map_err(VerifyError::Baseline)?;
    let reference = Baseline { engine: reference, recall: baseline.recall };
    let (positions, _) = measure(&engine, Some(reference), windows, &Titled { title: TITLE, progress })
        .map_err(|error| match error {
            VerifyError::Engine(EngineError::Cancelled) => error,
            VerifyError::Engine(error) => VerifyError::Baseline(error),
            other => other,
        })?;
    if let Some(recall) = baseline.recall {
        recall.keep_twin(&twin.types, windows, &positions);
    }
    Ok(Some(positions))
}

/// Returns the cost of the types from the positions of a healthy file; `None` if none is scored.
pub(super) fn cost_of(positions: &[Position]) -> Option<HealthyCost> {
    let n_tokens = positions.iter().filter(|position| position.is_scored).count();
    let cost = |divergence| HealthyCost { cost: Cost::of(&divergence), n_tokens: Some(n_tokens) };
    Divergence::of(positions).map(cost)
}

/// Chooses windows spread evenly over the text, with about [`TOKENS`] tokens in total.
pub(super) fn evenly(windows: &[Window]) -> Vec<Window> {
    evenly_of(windows, 0..windows.len())
}

/// Chooses the windows of [`evenly`] that are in a share of all windows.
pub(super) fn evenly_of(windows: &[Window], share: Range<usize>) -> Vec<Window> {
    let chosen = windows.iter().enumerate().step_by(step(windows)).filter(|(at, _)| share.contains(at));
    chosen.map(|(_, window)| window.clone()).collect()
}

/// Returns the positions of the windows that [`evenly`] chooses, from those of a run over all windows.
pub(super) fn positions_evenly(windows: &[Window], positions: &[Position]) -> Vec<Position> {
    let step = step(windows);
    let mut rest = positions;
    let own = windows.iter().enumerate().flat_map(|(at, window)| {
        let (own, later) = rest.split_at(window.targets.len().min(rest.len()));
        rest = later;
        if at.is_multiple_of(step) { own } else { &[] }
    });
    own.copied().collect()
}

/// Returns the distance of the chosen windows.
fn step(windows: &[Window]) -> usize {
    let total: usize = windows.iter().map(|window| window.chunk.tokens.len()).sum();
    total.div_ceil(TOKENS).max(1)
}
