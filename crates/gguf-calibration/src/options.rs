//! Options of a calibrated quantization.

use std::path::Path;

use serde::{Serialize, Serializer};

use crate::WorkFolder;
use gguf_engine::EngineOptions;
use gguf_quantization::QuantizeOptions;

/// Steps of a tuning: more still gain a little.
const TUNING_STEPS: usize = 400;

/// Method that chooses codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solver {
    /// Rounding as in llama.cpp, with the importance matrix of the same tokens.
    Reference,
    /// Error feedback and coordinate descent with the activations of the model whose earlier tensors are already
    /// quantized. The weights are corrected to compensate for the error of those tensors.
    Sequential,
    /// `sequential`, then steps of codes and scales by the gradient of the model's divergence.
    Tuned {
        /// Number of steps.
        n_steps: usize,
    },
}

impl Solver {
    /// Name in options and metadata.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Sequential => "sequential",
            Self::Tuned { .. } => "tuned",
        }
    }

    /// `tuned` with this number of steps, or with enough for most models.
    pub fn tuned(n_steps: Option<usize>) -> Self {
        Self::Tuned { n_steps: n_steps.unwrap_or(TUNING_STEPS) }
    }

    /// Number of steps of the tuning; 0 for other solvers.
    pub fn tuning_steps(self) -> usize {
        match self {
            Self::Tuned { n_steps } => n_steps,
            _ => 0,
        }
    }
}

impl Serialize for Solver {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Options of a calibrated quantization.
#[derive(Clone, Copy, Debug)]
pub struct FidelityOptions<'a> {
    /// Method that chooses codes and scales.
    pub solver: Solver,
    /// Threads, memory and vector instructions. The memory budget is for activations and moments together.
    pub engine: EngineOptions,
    /// Options of the quantization.
    pub quantize: &'a QuantizeOptions,
    /// Folder for a temporary file as large as the output.
    pub dir: &'a Path,
    /// Folder for blocks and figures as soon as they are made, so that the same run can resume from them.
    pub work: Option<&'a WorkFolder>,
}
