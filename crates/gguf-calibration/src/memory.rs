//! Memory that a run takes, computed before it.

use serde::Serialize;

use crate::{CalibrateError, Result};
use gguf_engine::EngineOptions;

/// Maximum bytes that a run takes in addition to the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Smallest sufficient memory budget in bytes, in addition to the weights: with hidden states in files.
    #[serde(rename = "needed_bytes")]
    pub least_bytes: u64,
    /// Bytes of memory with everything in memory, in addition to the weights.
    #[serde(rename = "in_memory_bytes")]
    pub all_bytes: u64,
    /// Bytes of the files of hidden states.
    #[serde(skip)]
    pub spilled_bytes: u64,
}

impl Needs {
    /// Returns true if hidden states have to go to files.
    pub(super) fn spills(&self, options: &EngineOptions, tokens: usize) -> Result<bool> {
        let (needed_bytes, budget_bytes) = (self.least_bytes, options.memory_bytes);
        if needed_bytes > budget_bytes {
            return Err(CalibrateError::Memory { budget_bytes, needed_bytes, tokens });
        }
        Ok(self.all_bytes > options.elastic_bytes())
    }
}
