//! Comparison of two models on given windows, without a verdict.

use crate::measure::{Baseline, measure};
use crate::{Divergence, Model, VerifyError, Window};
use gguf_core::progress::Progress;
use gguf_engine::{Engine, EngineOptions};

/// Computes the divergence of a model from a baseline over the scored tokens of windows; `None` if there are none. The
/// baseline's results are kept in its [`crate::Recall`] for the next model.
pub fn divergence_on(
    model: &Model<'_>,
    baseline: &Model<'_>,
    windows: &[Window],
    options: EngineOptions,
    progress: &dyn Progress,
) -> Result<Option<Divergence>, VerifyError> {
    let own = Engine::new(model.plan()?, model.source, options)?;
    let other = baseline.plan().and_then(|plan| Engine::new(plan, baseline.source, options));
    let other = other.map_err(VerifyError::Baseline)?;
    let baseline = Baseline { engine: &other, recall: baseline.recall };
    let (positions, _) = measure(&own, Some(baseline), windows, progress)?;
    Ok(Divergence::of(&positions))
}
