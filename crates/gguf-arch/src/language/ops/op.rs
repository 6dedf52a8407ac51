//! Operations with evaluated parameters, and errors when they do not fit a tensor.

use crate::language::eval::error::EvalError;

/// Operation with evaluated parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// See `OpKind::PermuteAxis`; `permute_rope` is a special case of it.
    PermuteAxis {
        /// Axis.
        axis: usize,
        /// Factors of the axis length.
        factors: Vec<u64>,
        /// For each axis of the result, the index of its factor.
        order: Vec<usize>,
    },
    /// See `OpKind::Ungroup`.
    Ungroup {
        /// Number of groups.
        groups: u64,
        /// Rows of each section in a group.
        sizes: Vec<u64>,
    },
    /// Inverse of `Ungroup`.
    Regroup {
        /// Number of groups.
        groups: u64,
        /// Rows of each section in a group.
        sizes: Vec<u64>,
    },
    /// See `OpKind::Split`.
    Split {
        /// Axis.
        axis: usize,
        /// Length of each part.
        sizes: Vec<u64>,
    },
    /// See `OpKind::Unzip`.
    Unzip {
        /// Axis.
        axis: usize,
        /// Number of results.
        n: u64,
    },
    /// See `OpKind::Transpose`.
    Transpose {
        /// First axis.
        a: usize,
        /// Second axis.
        b: usize,
    },
    /// See `OpKind::Reshape`; squeezing and flattening are special cases of it.
    Reshape {
        /// The new dimensions.
        dims: Vec<u64>,
    },
    /// See `OpKind::Slice`.
    Slice {
        /// Axis.
        axis: usize,
        /// First index.
        start: u64,
        /// One past the last index.
        end: u64,
    },
    /// See `OpKind::Deinterleave`.
    Deinterleave {
        /// Rows of a group.
        group: u64,
        /// Rows of each group that are reordered.
        rot: u64,
    },
    /// See `OpKind::Interleave`.
    Interleave {
        /// Rows of a group.
        group: u64,
        /// Rows of each group that are reordered.
        rot: u64,
    },
    /// See `OpKind::PadRows`.
    PadRows {
        /// Rows of the result.
        rows: u64,
    },
    /// See `OpKind::PrependZero`.
    PrependZero {
        /// Number of zero rows.
        rows: u64,
    },
    /// See `OpKind::Gather`.
    Gather {
        /// Source row of each result row.
        indices: Vec<u64>,
    },
    /// See `OpKind::GatherBlocks`.
    GatherBlocks {
        /// Number of blocks.
        n: u64,
        /// Source block of each result block.
        index: Vec<u64>,
    },
    /// See `OpKind::Repeat`.
    Repeat {
        /// Axis.
        axis: usize,
        /// Number of copies of the first index.
        n: u64,
    },
    /// See `OpKind::Negate`.
    Negate {
        /// Rows of a group.
        group: u64,
        /// First row of each group that is negated.
        from: u64,
    },
    /// See `OpKind::Sum`.
    Sum {
        /// Axis.
        axis: usize,
    },
    /// See `OpKind::FoldNorm`.
    FoldNorm {
        /// Number that is added to the variance.
        eps: f64,
    },
    /// See `OpKind::ResizeGrid`.
    ResizeGrid {
        /// New side length.
        side: u64,
    },
    /// `OpKind::Scale` with `rows`.
    ScaleRows {
        /// The factor.
        by: f64,
        /// First row.
        start: u64,
        /// One past the last row.
        end: u64,
    },
    /// Operation on each element by itself.
    Math(MathOp),
    /// Operation with numbers that depend on all elements.
    Whole(WholeOp),
    /// See `OpKind::AddIndex`; the values are checked against `below` while planning.
    AddIndex {
        /// Exclusive upper limit of the sums.
        below: u64,
    },
    /// Inverse of `AddIndex`.
    SubIndex,
}

/// Operation on each element by itself.
///
/// # Exactness
/// Computed in f32, with the parameter rounded to f32 first. Elements stored as F16 are rounded to F16 after each
/// operation. This is what torch does with a tensor and a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MathOp {
    /// `x + value`
    Add(f64),
    /// `x * value`
    Scale(f64),
    /// `-exp(x)`
    NegExp,
    /// `exp(x)`
    Exp,
    /// `ln(1 + exp(x))`
    ///
    /// # Exactness
    /// Rounded to F32 after each of the two functions; torch's own softplus differs by one unit in the last place for
    /// some numbers.
    Softplus,
    /// `ln(-x)`
    LnNeg,
    /// `ln(x)`
    Ln,
    /// Adds the element's index in its tensor.
    AddIndex,
    /// Subtracts the element's index in its tensor.
    SubIndex,
}

/// Operation that must read all elements before it can return the first.
///
/// # Exactness
/// Sums are those of torch on two threads, which torch computes for all but large tensors on any machine. With more
/// than 65536 elements, torch's last bits depend on the number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WholeOp {
    /// See `OpKind::Ternary`.
    Ternary,
    /// See `OpKind::SubMean`.
    SubMean,
    /// See `OpKind::L2Normalize`.
    L2Normalize {
        /// Number that is added to each length.
        eps: f64,
    },
}

/// Error when an operation does not fit a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OpError {
    #[error("`{op}`: axis {axis} of a tensor with {rank} dimensions")]
    Axis { op: &'static str, axis: i128, rank: usize },
    #[error("`{op}`: {parts} do not make {whole}")]
    Parts { op: &'static str, parts: String, whole: String },
    #[error("`{op}`: `{parameter}` is out of range")]
    Range { op: &'static str, parameter: &'static str },
    #[error("`{op}`: {source}")]
    Eval { op: &'static str, source: EvalError },
}

impl OpError {
    /// Returns true if an argument is a key that the configuration lacks.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Eval { source, .. } if source.is_absent())
    }
}

pub(super) fn list(dims: &[u64]) -> String {
    format!("{dims:?}")
}
