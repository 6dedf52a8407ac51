//! From a card's features, a file's metadata and its tensors to a [`GraphPlan`](crate::engine::GraphPlan): everything about
//! a graph that does not depend on tokens.

mod adjugates;
mod altup;
mod arch_keys;
mod attention;
mod builder;
mod by_token;
pub(crate) mod claims;
mod compressed;
mod cycles;
mod delta_net;
mod extras;
mod features;
mod ffn;
mod hyper;
mod kda;
mod latent;
mod layer;
mod mamba;
mod mixer;
mod mla;
mod ngrams;
mod plamo2;
mod pooling;
mod rope;
mod rwkv;
mod shortconv;
mod stacks;
mod stream_mix;
mod switched;
#[cfg(test)]
mod tests;

use crate::arch::GraphFeatures;
use crate::engine::EngineError;

/// What the engine does with an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its graph is described, and every feature of the description is built.
    Runs,
    /// Its graph cannot be run, for this reason.
    Refused(String),
    /// Nobody has described its graph.
    Undescribed,
}

/// How far the engine is with an architecture, by `general.architecture`. A model may still have keys or tensors that the
/// engine refuses.
#[must_use]
pub fn stage(arch: &str) -> Stage {
    match GraphFeatures::of(arch).map(|features| features::BuiltFeatures::of(arch, &features)) {
        None => Stage::Undescribed,
        Some(Ok(_)) => Stage::Runs,
        Some(Err(EngineError::NoGraph { reason, .. })) => Stage::Refused(reason),
        Some(Err(EngineError::Unsupported { feature, value, .. })) => {
            Stage::Refused(format!("`{feature} = {value}` is not built yet"))
        }
        Some(Err(error)) => Stage::Refused(error.to_string()),
    }
}
