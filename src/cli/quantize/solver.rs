//! `--solver`: names of the solvers.

use clap::ValueEnum;

use crate::calibrate::Solver;

/// Name of the method that chooses codes and scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SolverName {
    /// As in llama.cpp, with the importance matrix of the same tokens
    Reference,
    /// Rounding that makes up for its own error, by statistics of the unquantized model's activations
    Gptq,
    /// The same with the activations of the model whose earlier tensors are already quantized, and weights that
    /// compensate for their error
    #[default]
    Sequential,
}

impl From<SolverName> for Solver {
    fn from(name: SolverName) -> Self {
        match name {
            SolverName::Reference => Self::Reference,
            SolverName::Gptq => Self::Gptq,
            SolverName::Sequential => Self::Sequential,
        }
    }
}
