//! Errors of quantizing and decoding: arguments that do not fit together, and blocks without finite numbers.

use gguf_core::{GgmlType, Hint, simd::SimdLevel};

/// Reason why rows were not quantized or decoded.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum QuantError {
    #[error("cannot quantize to {ty}")]
    NotATarget { ty: GgmlType },
    #[error("cannot decode {ty}")]
    NotASource { ty: GgmlType },
    #[error("{ty} needs an importance matrix, none given")]
    ImatrixRequired { ty: GgmlType },
    #[error("importance matrix: {expected} weights expected, found {found}")]
    ImatrixLength { expected: usize, found: usize },
    #[error("importance of column {column} is {value}: a finite number that is not negative expected")]
    Importance { column: usize, value: f32 },
    #[error(
        "row {row}: importance weights up to {largest:e} are out of the range in which {ty} can be searched"
    )]
    ImportanceMagnitude { ty: GgmlType, row: usize, largest: f32 },
    #[error("row {row}, from column {column} on: values up to {largest:e} are too large for {ty}")]
    Magnitude { ty: GgmlType, row: usize, column: usize, largest: f32 },
    #[error("{n_cols} columns are not a positive multiple of {ty}'s block of {}", ty.block_elems())]
    Columns { ty: GgmlType, n_cols: usize },
    #[error("{n_elems} elements are not whole rows of {n_cols} columns")]
    Rows { n_elems: usize, n_cols: usize },
    #[error("{ty} blocks: {expected} bytes expected, found {found}")]
    Length { ty: GgmlType, expected: usize, found: usize },
    #[error("{n_blocks} blocks of {ty} exceed the address space")]
    TooLarge { ty: GgmlType, n_blocks: usize },
    #[error("row {row}, column {column}: no code of {ty} is near these values")]
    OffGrid { ty: GgmlType, row: usize, column: usize },
    #[error("this machine cannot run SIMD level `{level}`")]
    Level { level: SimdLevel },
}

impl QuantError {
    /// Returns the same error with the row counted from another one: `first_row` rows precede those given.
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
                "give one with `--imatrix FILE`; `gguf-verify imatrix MODEL --prompts TEXT -o FILE` measures it".to_owned(),
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
#[expect(missing_docs, reason = "the messages say it")]
pub enum BlockFlaw {
    #[error("NaN value")]
    Nan,
    #[error("infinite value")]
    Infinite,
    #[error("NaN scale")]
    ScaleNan,
    #[error("infinite scale")]
    ScaleInfinite,
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
