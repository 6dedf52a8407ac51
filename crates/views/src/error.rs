//! Errors of views that do not fit, and of rows that could not be produced.

use gguf_core::{ElementType, GgmlType, Hint, SourceError};
use gguf_quant::{BlockError, QuantError};

/// Reason why an operation does not fit the shape it was applied to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum ShapeError {
    /// The axis does not exist.
    #[error("axis {axis} of a tensor with {rank} dimensions")]
    Axis { axis: i64, rank: usize },
    /// The factors do not multiply to the size of the axis.
    #[error("dimension {size} is not the product of {factors:?}")]
    Factors { size: u64, factors: Vec<u64> },
    /// The sizes do not add up to the size of the axis.
    #[error("dimension {size} is not the sum of {sizes:?}")]
    Sizes { size: u64, sizes: Vec<u64> },
    /// The range is beyond the axis.
    #[error("range {start}..{end} of a dimension of {size}")]
    Range { start: u64, end: u64, size: u64 },
    /// The views do not fit together.
    #[error("shapes {first:?} and {other:?} cannot be joined along axis {axis}")]
    Join { first: Vec<u64>, other: Vec<u64>, axis: usize },
    /// There is nothing to join.
    #[error("nothing to join")]
    Empty,
    /// The order is not a reordering of all factors.
    #[error("{order:?} is not an order of {n} factors")]
    Order { order: Vec<usize>, n: usize },
    /// The element counts differ.
    #[error("shape {from:?} cannot become {to:?}")]
    Reshape { from: Vec<u64>, to: Vec<u64> },
    /// An axis to drop is longer than one.
    #[error("dimension {size} cannot be dropped")]
    Squeeze { size: u64 },
    /// The factors cut across an earlier reordering or a seam.
    #[error("shape {from:?} was put together in a way that cannot be cut into {to:?}")]
    Seam { from: Vec<u64>, to: Vec<u64> },
}

/// Reason why rows could not be produced.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum ViewError {
    /// The source contains NaN or infinity.
    #[error("source tensor `{weight}`: element {index} is {value}")]
    NonFinite { weight: String, index: u64, value: f32 },
    /// The target type turns a finite value into infinity.
    #[error("source tensor `{weight}`: element {index} is {value:e}, too large for {ty}")]
    Overflow { weight: String, index: u64, value: f32, ty: GgmlType },
    /// The target type cannot hold an integer.
    #[error("source tensor `{weight}`: element {index} is {value}, too large for {ty}")]
    IntRange { weight: String, index: u64, value: i64, ty: GgmlType },
    /// Arithmetic or planning, not a source, produced a bad value.
    #[error("element {index} comes out as {value}")]
    Computed { index: u64, value: f32 },
    /// A block does not decode to finite numbers.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The quantizer of the block type refused the rows.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The element type holds no numbers.
    #[error("source tensor `{weight}`: {ty} elements are not numbers that can be converted")]
    ElementType { weight: String, ty: ElementType },
    /// The rows are too long for this machine's address space.
    #[error("rows of {n_cols} elements do not fit in memory")]
    TooLarge { n_cols: u64 },
}

impl Hint for ViewError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::NonFinite { .. } => {
                vec![
                    "`--allow-nonfinite` lets the value through; the checkpoint is probably damaged"
                        .to_owned(),
                ]
            }
            Self::Overflow { .. } => {
                vec!["`--type bf16` or `--type f32` hold the value".to_owned()]
            }
            _ => Vec::new(),
        }
    }
}
