//! Options of the solver, and what it left.

use serde::Serialize;

use gguf_solve::SolveOptions;

/// Strength of the shrinkage of moments towards their diagonal, and options of the solver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SolverOptions {
    /// Fraction of each diagonal entry that is added to it.
    pub shrinkage: f32,
    /// Pull of corrected weights towards the original ones, for solvers that correct weights.
    pub lambda: f32,
    /// Options for each row.
    pub solve: SolveOptions,
}

/// Matrix that is left to the importance matrix, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotSolved {
    /// Name of the tensor.
    pub tensor: String,
    /// Index of the matrix in a stack.
    pub matrix: u64,
    /// Reason why it was not solved.
    pub reason: String,
}
