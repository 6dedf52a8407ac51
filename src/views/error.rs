//! Why views do not fit, and why rows could not be produced.

use crate::core::{ElementType, GgmlType, Hint, SourceError};
use crate::quant::{BlockError, QuantError};

/// Why an operation does not fit the shape it was applied to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum ShapeError {
    /// The axis is not there.
    #[error("axis {axis} of a tensor with {rank} dimensions")]
    Axis { axis: i64, rank: usize },
    /// Factors do not multiply to the size of the axis.
    #[error("dimension {size} is not the product of {factors:?}")]
    Factors { size: u64, factors: Vec<u64> },
    /// Sizes do not add up to the size of the axis.
    #[error("dimension {size} is not the sum of {sizes:?}")]
    Sizes { size: u64, sizes: Vec<u64> },
    /// A range beyond the axis.
    #[error("range {start}..{end} of a dimension of {size}")]
    Range { start: u64, end: u64, size: u64 },
    /// Views that do not fit together.
    #[error("shapes {first:?} and {other:?} cannot be joined along axis {axis}")]
    Join { first: Vec<u64>, other: Vec<u64>, axis: usize },
    /// Nothing to join.
    #[error("nothing to join")]
    Empty,
    /// Not a reordering of all factors.
    #[error("{order:?} is not an order of {n} factors")]
    Order { order: Vec<usize>, n: usize },
    /// Different element counts.
    #[error("shape {from:?} cannot become {to:?}")]
    Reshape { from: Vec<u64>, to: Vec<u64> },
    /// An axis to drop that is longer than one.
    #[error("dimension {size} cannot be dropped")]
    Squeeze { size: u64 },
    /// The factors cut across an earlier reordering or a seam.
    #[error("shape {from:?} was put together in a way that cannot be cut into {to:?}")]
    Seam { from: Vec<u64>, to: Vec<u64> },
}

/// Why rows could not be produced.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum ViewError {
    /// NaN or infinity in the source.
    #[error("source tensor `{weight}`: element {index} is {value}")]
    NonFinite { weight: String, index: u64, value: f32 },
    /// A finite value that the target type turns into infinity.
    #[error("source tensor `{weight}`: element {index} is {value:e}, too large for {ty}")]
    Overflow { weight: String, index: u64, value: f32, ty: GgmlType },
    /// An integer that the target type does not hold.
    #[error("source tensor `{weight}`: element {index} is {value}, too large for {ty}")]
    IntRange { weight: String, index: u64, value: i64, ty: GgmlType },
    /// A value that arithmetic or planning made, not a source.
    #[error("element {index} comes out as {value}")]
    Computed { index: u64, value: f32 },
    /// A block that does not decode to finite numbers.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The block type refused.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An element type that has no number in it.
    #[error("source tensor `{weight}`: {ty} elements are not numbers that can be converted")]
    ElementType { weight: String, ty: ElementType },
    /// Rows too long for this machine's address space.
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
