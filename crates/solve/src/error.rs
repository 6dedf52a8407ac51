//! Errors of the solver: invalid moments, rows that do not fit, types without a solver.

use gguf_core::{GgmlType, Hint};
use gguf_quant::grid_states::GridStateError;
use gguf_quant::states::StateError;
use gguf_quant::{BlockError, QuantError};

/// Reason why rows were not solved.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SolveError {
    /// The type's blocks are neither codes for each element nor points of a grid.
    #[error("no solver for {ty}")]
    NoSolver {
        /// The requested type.
        ty: GgmlType,
    },
    /// A row is not a whole number of blocks.
    #[error("{n_cols} columns are not a positive multiple of {ty}'s block of {}", ty.block_elems())]
    Columns {
        /// The requested type.
        ty: GgmlType,
        /// Columns of the rows.
        n_cols: usize,
    },
    /// The number of values or bytes does not match the other arguments.
    #[error("{what}: {expected} expected, found {found}")]
    Length {
        /// Name of the argument with the wrong length.
        what: &'static str,
        /// Expected length.
        expected: usize,
        /// Given length.
        found: usize,
    },
    /// A matrix exceeds the address space.
    #[error("{n_rows} rows of {n_cols} columns exceed the address space")]
    TooLarge {
        /// Number of rows.
        n_rows: usize,
        /// Number of columns.
        n_cols: usize,
    },
    /// A value is NaN or infinite.
    #[error("{what}: row {row}, column {column} is not finite")]
    NotFinite {
        /// Name of the argument that holds the value.
        what: &'static str,
        /// Row of the value.
        row: usize,
        /// Column of the value.
        column: usize,
    },
    /// A diagonal entry, which is a sum of squares, is negative.
    #[error("second moments: entry {column} of the diagonal is {value}, which no sum of squares is")]
    Diagonal {
        /// Column of the entry.
        column: usize,
        /// The entry.
        value: f32,
    },
    /// The moments cannot be factored, or only into numbers that are not finite.
    #[error("second moments are not positive definite: column {column} hangs on others")]
    NotPositive {
        /// Column at which the factorization stopped.
        column: usize,
    },
    /// An option is out of its range.
    #[error("{name} is {value}: a finite number that is not negative expected")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// Value of the option.
        value: f32,
    },
    /// The quantizer that provides the start refused the rows.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The blocks that the solver starts from contain scales that are not finite.
    #[error("row {row}: {error}")]
    Start {
        /// Row of the block.
        row: usize,
        /// Flaw of the block; its index is counted within the row.
        error: BlockError,
    },
    /// A block of a scalar type cannot hold a number.
    #[error(transparent)]
    State(#[from] StateError),
    /// A block of a type on a grid cannot hold a number.
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
