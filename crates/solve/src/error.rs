//! What can go wrong: moments that are none, rows that do not fit, types without a solver.

use gguf_core::{GgmlType, Hint};
use gguf_quant::grid_states::GridStateError;
use gguf_quant::states::StateError;
use gguf_quant::{BlockError, QuantError};

/// Why rows were not solved.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SolveError {
    /// The type's blocks are neither codes for each element nor points of a grid.
    #[error("no solver for {ty}")]
    NoSolver {
        /// The type asked for.
        ty: GgmlType,
    },
    /// A row is not a whole number of blocks.
    #[error("{n_cols} columns are not a positive multiple of {ty}'s block of {}", ty.block_elems())]
    Columns {
        /// The type asked for.
        ty: GgmlType,
        /// Columns of the rows.
        n_cols: usize,
    },
    /// Values or bytes of another number than what they stand beside.
    #[error("{what}: {expected} expected, found {found}")]
    Length {
        /// What has the wrong length.
        what: &'static str,
        /// Length that fits.
        expected: usize,
        /// Length given.
        found: usize,
    },
    /// A matrix that no address space holds.
    #[error("{n_rows} rows of {n_cols} columns exceed the address space")]
    TooLarge {
        /// Rows.
        n_rows: usize,
        /// Columns.
        n_cols: usize,
    },
    /// A value that is NaN or infinite.
    #[error("{what}: row {row}, column {column} is not finite")]
    NotFinite {
        /// What holds the value.
        what: &'static str,
        /// Row of the value.
        row: usize,
        /// Column of the value.
        column: usize,
    },
    /// A sum of squares that is negative.
    #[error("second moments: entry {column} of the diagonal is {value}, which no sum of squares is")]
    Diagonal {
        /// Column of the entry.
        column: usize,
        /// The entry.
        value: f32,
    },
    /// Moments that cannot be factored, or only into numbers that are not finite.
    #[error("second moments are not positive definite: column {column} hangs on others")]
    NotPositive {
        /// Column at which the factorization stopped.
        column: usize,
    },
    /// An option out of its range.
    #[error("{name} is {value}: a finite number that is not negative expected")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// The quantizer that the solver starts from refused.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The blocks that the solver starts from hold scales that are no numbers.
    #[error("row {row}: {error}")]
    Start {
        /// Row of the block.
        row: usize,
        /// What is wrong, with the block counted within the row.
        error: BlockError,
    },
    /// A number that a block cannot hold.
    #[error(transparent)]
    State(#[from] StateError),
    /// The same, of a type on a grid.
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
