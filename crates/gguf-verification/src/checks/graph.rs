//! Check that the model has a graph that can be run.

use crate::checks::foreign::named;
use crate::{Check, Finding, Model, Report, VerifyError};
use gguf_arch::{MissingTensors, foreign_tensors, missing_tensors};
use gguf_engine::{EngineError, GraphPlan};

/// Adds a finding if the runtime's loader requires tensors that are missing, and returns them.
pub(crate) fn check_missing(model: &Model<'_>, report: &mut Report) -> Option<MissingTensors> {
    let missing = missing_tensors(model.metadata, model.source.tensors());
    report.extend(missing.iter().map(|missing| Finding::error(Check::Graph, missing.to_string())));
    missing
}

/// Returns the graph if there is one that can be run; otherwise adds a finding.
pub(crate) fn check(model: &Model<'_>, report: &mut Report) -> Result<Option<GraphPlan>, VerifyError> {
    let missing = check_missing(model, report);
    let foreign = foreign_tensors(model.metadata, model.source.tensors());
    let has_foreign = foreign.is_some();
    let foreign = foreign.and_then(named);
    let is_told = |name: &String| foreign.as_ref().is_some_and(|foreign| foreign.names.contains(name));
    match model.plan() {
        Ok(plan) => {
            report.extend(plan.warnings.iter().map(|warning| Finding::warning(Check::Graph, warning)));
            Ok(Some(plan))
        }
        Err(error @ (EngineError::NoGraph { .. } | EngineError::Unsupported { .. })) => {
            report.add(Finding::unchecked(Check::Graph, error.to_string()));
            Ok(None)
        }
        Err(error @ (EngineError::Source(_) | EngineError::Cancelled)) => Err(error.into()),
        Err(EngineError::MissingTensor { tensor })
            if missing.is_some_and(|missing| missing.names.contains(&tensor)) =>
        {
            Ok(None)
        }
        // The check of tensors has named those that the runtime's loader does not take. It takes the others: outside of
        // blocks they are what this program does not compute.
        Err(EngineError::LeftOver { tensors }) if tensors.iter().all(is_told) => Ok(None),
        Err(EngineError::LeftOver { tensors })
            if !has_foreign && !tensors.iter().any(|name| name.contains("blk.")) =>
        {
            report.add(Finding::unchecked(Check::Graph, EngineError::LeftOver { tensors }.to_string()));
            Ok(None)
        }
        Err(error) => {
            report.add(Finding::error(Check::Graph, error.to_string()));
            Ok(None)
        }
    }
}
