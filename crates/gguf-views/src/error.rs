//! Errors of views that do not fit, and of rows that could not be produced.

use gguf_blocks::{BlockError, QuantError};
use gguf_core::{ElementType, GgmlType, Hint, SourceError};

/// Reason why an operation does not fit the shape it was applied to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum ShapeError {
    #[error("axis {axis} of a tensor with {rank} dimensions")]
    Axis { axis: i64, rank: usize },
    #[error("dimension {size} is not the product of {factors:?}")]
    Factors { size: u64, factors: Vec<u64> },
    #[error("dimension {size} is not the sum of {sizes:?}")]
    Sizes { size: u64, sizes: Vec<u64> },
    #[error("range {start}..{end} of a dimension of {size}")]
    Range { start: u64, end: u64, size: u64 },
    #[error("shapes {first:?} and {other:?} cannot be joined along axis {axis}")]
    Join { first: Vec<u64>, other: Vec<u64>, axis: usize },
    #[error("nothing to join")]
    Empty,
    #[error("{order:?} is not an order of {n} factors")]
    Order { order: Vec<usize>, n: usize },
    #[error("shape {from:?} cannot become {to:?}")]
    Reshape { from: Vec<u64>, to: Vec<u64> },
    #[error("dimension {size} cannot be dropped")]
    Squeeze { size: u64 },
    #[error("shape {from:?} was put together in a way that cannot be cut into {to:?}")]
    Seam { from: Vec<u64>, to: Vec<u64> },
}

/// Reason why rows could not be produced.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum ViewError {
    #[error("source tensor `{weight}`: element {index} is {value}")]
    NonFinite { weight: String, index: u64, value: f32 },
    #[error("source tensor `{weight}`: element {index} is {value:e}, too large for {ty}")]
    Overflow { weight: String, index: u64, value: f32, ty: GgmlType },
    #[error("source tensor `{weight}`: element {index} is {value}, too large for {ty}")]
    IntRange { weight: String, index: u64, value: i64, ty: GgmlType },
    #[error("element {index} comes out as {value}")]
    Computed { index: u64, value: f32 },
    #[error(transparent)]
    Block(#[from] BlockError),
    #[error(transparent)]
    Quant(#[from] QuantError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("source tensor `{weight}`: {ty} elements are not numbers that can be converted")]
    ElementType { weight: String, ty: ElementType },
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
