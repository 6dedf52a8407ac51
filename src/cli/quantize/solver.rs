//! `--solver`: names of the solvers.

use clap::ValueEnum;

use crate::calibrate::Solver;
use crate::cli::UsageError;

/// Name of the method that chooses codes and scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SolverName {
    /// As in llama.cpp, with the importance matrix of the same tokens
    Reference,
    /// Rounding that makes up for its own error and that of the tensors before, by the activations of the model whose
    /// earlier tensors are already quantized
    #[default]
    Sequential,
    /// `sequential`, then codes and scales move by the gradient of the model's divergence
    Tuned,
}

impl SolverName {
    pub(crate) fn solver(self, tune_steps: Option<usize>) -> Result<Solver, UsageError> {
        if tune_steps.is_some() && self != Self::Tuned {
            return Err(UsageError("--tune-steps: only `--solver tuned` takes steps".to_owned()));
        }
        Ok(match self {
            Self::Reference => Solver::Reference,
            Self::Sequential => Solver::Sequential,
            Self::Tuned => Solver::tuned(tune_steps),
        })
    }
}
