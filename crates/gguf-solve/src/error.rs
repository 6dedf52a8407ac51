//! Errors of the solver: invalid moments, rows that do not fit, types without a solver.

use gguf_blocks::grid_states::GridStateError;
use gguf_blocks::states::StateError;
use gguf_blocks::{BlockError, QuantError};
use gguf_core::{GgmlType, Hint};

/// Reason why rows were not solved.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SolveError {
    #[error("no solver for {ty}")]
    NoSolver { ty: GgmlType },
    #[error("{n_cols} columns are not a positive multiple of {ty}'s block of {}", ty.block_elems())]
    Columns { ty: GgmlType, n_cols: usize },
    #[error("{what}: {expected} expected, found {found}")]
    Length { what: &'static str, expected: usize, found: usize },
    #[error("{n_rows} rows of {n_cols} columns exceed the address space")]
    TooLarge { n_rows: usize, n_cols: usize },
    #[error("{what}: row {row}, column {column} is not finite")]
    NotFinite { what: &'static str, row: usize, column: usize },
    #[error("second moments: entry {column} of the diagonal is {value}, which no sum of squares is")]
    Diagonal { column: usize, value: f32 },
    #[error("second moments are not positive definite: column {column} hangs on others")]
    NotPositive { column: usize },
    #[error("{name} is {value}: a finite number that is not negative expected")]
    Option { name: &'static str, value: f32 },
    #[error(transparent)]
    Quant(#[from] QuantError),
    #[error("row {row}: {error}")]
    Start { row: usize, error: BlockError },
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    GridState(#[from] GridStateError),
}

impl Hint for SolveError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::NotPositive { .. } | Self::Diagonal { .. } => vec![
                "round these tensors with the importance matrix alone".to_owned(),
                "take more text, or a larger shrinkage".to_owned(),
            ],
            Self::Quant(error) => error.hints(),
            _ => Vec::new(),
        }
    }
}
