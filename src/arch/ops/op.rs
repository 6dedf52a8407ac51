//! Operations with their numbers, and what can be wrong with them.

use crate::arch::eval::EvalError;

/// An operation with its numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// See `OpKind::PermuteAxis`; `permute_rope` is a case of it.
    PermuteAxis {
        /// Axis.
        axis: usize,
        /// Lengths whose product is the axis.
        factors: Vec<u64>,
        /// Which factor stands at each place of the result.
        order: Vec<usize>,
    },
    /// See `OpKind::Ungroup`.
    Ungroup {
        /// Number of groups.
        groups: u64,
        /// Rows of each section in a group.
        sizes: Vec<u64>,
    },
    /// The inverse of `Ungroup`.
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
        /// One axis.
        a: usize,
        /// The other.
        b: usize,
    },
    /// See `OpKind::Reshape`; squeezing and flattening are cases of it.
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
        /// One past the last.
        end: u64,
    },
    /// See `OpKind::Deinterleave`.
    Deinterleave {
        /// Rows of a group.
        group: u64,
        /// Rows of each group that are sorted.
        rot: u64,
    },
    /// See `OpKind::Interleave`.
    Interleave {
        /// Rows of a group.
        group: u64,
        /// Rows of each group that are mixed.
        rot: u64,
    },
    /// See `OpKind::PadRows`.
    PadRows {
        /// Rows of the result.
        rows: u64,
    },
    /// See `OpKind::PrependZero`.
    PrependZero {
        /// How many rows.
        rows: u64,
    },
    /// See `OpKind::Gather`.
    Gather {
        /// Rows.
        indices: Vec<u64>,
    },
    /// See `OpKind::GatherBlocks`.
    GatherBlocks {
        /// Number of blocks.
        n: u64,
        /// Blocks.
        index: Vec<u64>,
    },
    /// See `OpKind::Repeat`.
    Repeat {
        /// Axis.
        axis: usize,
        /// How often its first index comes.
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
        /// What is added to the variance.
        eps: f64,
    },
    /// See `OpKind::ResizeGrid`.
    ResizeGrid {
        /// The new side.
        side: u64,
    },
    /// `OpKind::Scale` of some rows.
    ScaleRows {
        /// The factor.
        by: f64,
        /// First row.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// Element by element.
    Math(MathOp),
    /// With numbers that depend on all elements.
    Whole(WholeOp),
    /// See `OpKind::AddIndex`; `below` is checked while planning.
    AddIndex {
        /// What the sums must be below.
        below: u64,
    },
    /// The inverse of `AddIndex`.
    SubIndex,
}

/// An operation on each element.
///
/// # Exactness
/// In f32, with the number rounded to f32 first; elements stored as F16 are rounded to F16 after each operation.
/// This is what torch does with a tensor and a number.
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
    /// Rounded to F32 behind each of the two functions; torch's own is one step away for some numbers.
    Softplus,
    /// `ln(-x)`
    LnNeg,
    /// `ln(x)`
    Ln,
    /// Adds the place of the element in its tensor.
    AddIndex,
    /// Takes the place of the element from it.
    SubIndex,
}

/// An operation that must see all elements before it can give the first.
///
/// # Exactness
/// Sums are those of torch on two threads, which is what it takes for all but large tensors on any machine. Of more than
/// 65536 elements its last bits depend on the number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WholeOp {
    /// See `OpKind::Ternary`.
    Ternary,
    /// See `OpKind::SubMean`.
    SubMean,
    /// See `OpKind::L2Normalize`.
    L2Normalize {
        /// What is added to each length.
        eps: f64,
    },
}

/// Why an operation does not fit a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// No such axis.
    #[error("`{op}`: axis {axis} of a tensor with {rank} dimensions")]
    Axis {
        /// The operation.
        op: &'static str,
        /// The axis asked for.
        axis: i128,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// Parts that do not add up (or multiply) to the whole.
    #[error("`{op}`: {parts} do not make {whole}")]
    Parts {
        /// The operation.
        op: &'static str,
        /// The parts.
        parts: String,
        /// The length or shape to be made.
        whole: String,
    },
    /// An order that is not a permutation, an index out of range.
    #[error("`{op}`: `{parameter}` is out of range")]
    Range {
        /// The operation.
        op: &'static str,
        /// The parameter.
        parameter: &'static str,
    },
    /// An expression of a parameter.
    #[error("`{op}`: {source}")]
    Eval {
        /// The operation.
        op: &'static str,
        /// What is wrong.
        source: EvalError,
    },
}

pub(super) fn list(dims: &[u64]) -> String {
    format!("{dims:?}")
}
