//! Why rows could not be produced.

use crate::core::{ElementType, GgmlType, Hint, SourceError};
use crate::quant::{BlockError, QuantError};

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
