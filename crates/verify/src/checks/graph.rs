//! Check that the model has a graph that can be run.

use crate::{Check, Finding, Model, Report, VerifyError};
use gguf_arch::missing_tensors;
use gguf_engine::{EngineError, GraphPlan};

/// Returns the graph if there is one that can be run; otherwise adds a finding.
pub(crate) fn check(model: &Model<'_>, report: &mut Report) -> Result<Option<GraphPlan>, VerifyError> {
    let missing = missing_tensors(model.metadata, model.source.tensors());
    report.extend(missing.iter().map(|missing| Finding::error(Check::Graph, missing.to_string())));
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
        Err(error) => {
            report.add(Finding::error(Check::Graph, error.to_string()));
            Ok(None)
        }
    }
}
