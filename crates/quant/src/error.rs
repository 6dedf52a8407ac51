//! Errors of quantizing and decoding: arguments that do not fit together, and blocks without finite numbers.

use gguf_core::{GgmlType, Hint, simd::SimdLevel};

/// Reason why rows were not quantized or decoded.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// The type can hold data, but there is no quantizer for it.
    #[error("cannot quantize to {ty}")]
    NotATarget {
        /// The requested type.
        ty: GgmlType,
    },
    /// There is no decoder for the type.
    #[error("cannot decode {ty}")]
    NotASource {
        /// The requested type.
        ty: GgmlType,
    },
    /// The type requires importance weights.
    #[error("{ty} needs an importance matrix, none given")]
    ImatrixRequired {
        /// The requested type.
        ty: GgmlType,
    },
    /// The importance weights are for another number of columns.
    #[error("importance matrix: {expected} weights expected, found {found}")]
    ImatrixLength {
        /// Columns of the rows.
        expected: usize,
        /// Number of weights given.
        found: usize,
    },
    /// An importance weight is negative or not a number.
    #[error("importance of column {column} is {value}: a finite number that is not negative expected")]
    Importance {
        /// Column of the weight.
        column: usize,
        /// The weight.
        value: f32,
    },
    /// The importance weights are so large or small that the search for scales failed.
    #[error(
        "row {row}: importance weights up to {largest:e} are out of the range in which {ty} can be searched"
    )]
    ImportanceMagnitude {
        /// The requested type.
        ty: GgmlType,
        /// Index of the row among those given.
        row: usize,
        /// Largest weight.
        largest: f32,
    },
    /// Values are too large for the type's blocks.
    #[error("row {row}, from column {column} on: values up to {largest:e} are too large for {ty}")]
    Magnitude {
        /// The requested type.
        ty: GgmlType,
        /// Index of the row among those given.
        row: usize,
        /// First column of the block.
        column: usize,
        /// Largest magnitude of the block.
        largest: f32,
    },
    /// A row is not a whole number of blocks.
    #[error("{n_cols} columns are not a positive multiple of {ty}'s block of {}", ty.block_elems())]
    Columns {
        /// The requested type.
        ty: GgmlType,
        /// Columns of the rows.
        n_cols: usize,
    },
    /// The elements are not whole rows.
    #[error("{n_elems} elements are not whole rows of {n_cols} columns")]
    Rows {
        /// Number of elements given.
        n_elems: usize,
        /// Columns of a row.
        n_cols: usize,
    },
    /// A byte buffer has the wrong length.
    #[error("{ty} blocks: {expected} bytes expected, found {found}")]
    Length {
        /// The type of the blocks.
        ty: GgmlType,
        /// Bytes that the elements need.
        expected: usize,
        /// Number of bytes given.
        found: usize,
    },
    /// More blocks than memory can address.
    #[error("{n_blocks} blocks of {ty} exceed the address space")]
    TooLarge {
        /// The type of the blocks.
        ty: GgmlType,
        /// Number of blocks requested.
        n_blocks: usize,
    },
    /// Values are so large or odd that no point of the type's code book is at a finite distance.
    #[error("row {row}, column {column}: no code of {ty} is near these values")]
    OffGrid {
        /// The requested type.
        ty: GgmlType,
        /// Index of the row among those given.
        row: usize,
        /// First column of the block.
        column: usize,
    },
    /// This machine lacks the vector instructions.
    #[error("this machine cannot run SIMD level `{level}`")]
    Level {
        /// The requested level.
        level: SimdLevel,
    },
}

impl QuantError {
    /// Returns the same error with the row counted from another one: `first_row` rows precede those given.
    #[must_use]
    pub fn from_row(mut self, first_row: usize) -> Self {
        if let Self::OffGrid { row, .. }
        | Self::Magnitude { row, .. }
        | Self::ImportanceMagnitude { row, .. } = &mut self
        {
            *row = row.saturating_add(first_row);
        }
        self
    }
}

impl Hint for QuantError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::ImatrixRequired { .. } => vec![
                "give one with --imatrix".to_owned(),
                "choose a type that does without, such as q2_k or iq3_s".to_owned(),
            ],
            Self::ImatrixLength { .. } => {
                vec!["check that the importance matrix was made with this model".to_owned()]
            }
            Self::Magnitude { .. } => vec![
                "give the tensor a type of a wider range: `bf16`, `f32`".to_owned(),
                "weights of this size are unusual: check that the model is not damaged".to_owned(),
            ],
            Self::Importance { .. } => vec!["make the importance matrix anew".to_owned()],
            Self::ImportanceMagnitude { .. } => {
                vec!["only ratios count: make the importance matrix anew, or scale it".to_owned()]
            }
            Self::Level { .. } => vec!["leave --simd at auto".to_owned()],
            _ => Vec::new(),
        }
    }
}

/// Flaw of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockFlaw {
    /// A value is NaN.
    #[error("NaN value")]
    Nan,
    /// A value is infinite.
    #[error("infinite value")]
    Infinite,
    /// A scale is NaN.
    #[error("NaN scale")]
    ScaleNan,
    /// A scale is infinite.
    #[error("infinite scale")]
    ScaleInfinite,
    /// The block is incomplete.
    #[error("truncated block")]
    Truncated,
}

/// A block that a model must not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {block}: {flaw}")]
pub struct BlockError {
    /// Index of the block; index of the element for plain types.
    pub block: usize,
    /// The flaw of the block.
    pub flaw: BlockFlaw,
}

impl Hint for BlockError {}
