//! Support of the engine for an architecture.

use crate::EngineError;
use crate::ops::Mixer;
use crate::resolve::features::BuiltFeatures;
use gguf_arch::GraphFeatures;

/// Support of the engine for an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The graph is described, and every feature of the description is implemented.
    Runs,
    /// The graph cannot be run, for this reason.
    Refused(String),
    /// The card does not describe a graph.
    Undescribed,
}

/// Returns the support for an architecture, by `general.architecture`. A model may still have keys or tensors that the
/// engine refuses.
pub fn stage(arch: &str) -> Stage {
    let Some(features) = GraphFeatures::of(arch) else { return Stage::Undescribed };
    let built = BuiltFeatures::of(arch, &features).and_then(|_| Mixer::check_words(arch, &features.mixer));
    match built {
        Ok(()) => Stage::Runs,
        Err(EngineError::NoGraph { reason, .. }) => Stage::Refused(reason),
        Err(EngineError::Unsupported { feature, value, .. }) => {
            Stage::Refused(format!("`{feature} = {value}` is not built yet"))
        }
        Err(error) => Stage::Refused(error.to_string()),
    }
}
