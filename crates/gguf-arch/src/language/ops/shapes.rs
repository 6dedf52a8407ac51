//! Shapes of the results of operations, and the inverse operations.

use super::op::list;
use super::{MathOp, Op, OpError, WholeOp};

/// Maximum number of parts into which an operation may cut an axis: no model has more heads.
const MAX_PARTS: u64 = 1 << 16;
/// Maximum side length of a grid of positions.
const MAX_SIDE: u64 = 256;
/// Maximum number of summands of an operation: a patch has few frames.
const MAX_SUMMANDS: u64 = 64;

impl Op {
    /// Returns the operation's name in cards.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PermuteAxis { .. } => "permute_axis",
            Self::Ungroup { .. } => "ungroup",
            Self::Regroup { .. } => "regroup",
            Self::Split { .. } => "split",
            Self::Unzip { .. } => "unzip",
            Self::Transpose { .. } => "transpose",
            Self::Reshape { .. } => "reshape",
            Self::Slice { .. } => "slice",
            Self::Deinterleave { .. } => "deinterleave",
            Self::Interleave { .. } => "interleave",
            Self::PadRows { .. } => "pad_rows",
            Self::PrependZero { .. } => "prepend_zero",
            Self::Gather { .. } => "gather",
            Self::GatherBlocks { .. } => "gather_blocks",
            Self::Repeat { .. } => "repeat",
            Self::Negate { .. } => "negate",
            Self::ScaleRows { .. } | Self::Math(MathOp::Scale(_)) => "scale",
            Self::Sum { .. } => "sum",
            Self::FoldNorm { .. } => "fold_norm",
            Self::ResizeGrid { .. } => "resize_grid",
            Self::AddIndex { .. } | Self::Math(MathOp::AddIndex) => "add_index",
            Self::SubIndex | Self::Math(MathOp::SubIndex) => "sub_index",
            Self::Whole(WholeOp::Ternary) => "ternary",
            Self::Whole(WholeOp::SubMean) => "sub_mean",
            Self::Whole(WholeOp::L2Normalize { .. }) => "l2_normalize",
            Self::Math(MathOp::LnNeg) => "ln_neg",
            Self::Math(MathOp::Ln) => "ln",
            Self::Math(MathOp::Add(_)) => "add",
            Self::Math(MathOp::NegExp) => "neg_exp",
            Self::Math(MathOp::Exp) => "exp",
            Self::Math(MathOp::Softplus) => "softplus",
        }
    }

    /// Returns the dimensions of each result.
    pub fn shapes(&self, dims: &[u64]) -> Result<Vec<Vec<u64>>, OpError> {
        let op = self.name();
        let at = |axis: usize| {
            dims.get(axis).copied().ok_or(OpError::Axis { op, axis: axis as i128, rank: dims.len() })
        };
        let with = |axis: usize, len: u64| {
            let mut dims = dims.to_vec();
            dims[axis] = len;
            dims
        };
        let sum = |sizes: &[u64]| sizes.iter().try_fold(0u64, |sum, &n| sum.checked_add(n));
        let parts =
            |parts: &[u64], whole: u64| OpError::Parts { op, parts: list(parts), whole: whole.to_string() };
        match self {
            Self::PermuteAxis { axis, factors, order } => {
                let len = at(*axis)?;
                if factors.iter().try_fold(1u64, |n, &f| n.checked_mul(f)) != Some(len) {
                    return Err(parts(factors, len));
                }
                let mut sorted = order.clone();
                sorted.sort_unstable();
                if !sorted.into_iter().eq(0..factors.len()) {
                    return Err(OpError::Range { op, parameter: "order" });
                }
                Ok(vec![dims.to_vec()])
            }
            Self::Ungroup { groups, sizes } | Self::Regroup { groups, sizes } => {
                let len = at(0)?;
                if sum(sizes).and_then(|n| n.checked_mul(*groups)) != Some(len) {
                    return Err(parts(sizes, len));
                }
                Ok(vec![dims.to_vec()])
            }
            Self::Split { axis, sizes } => {
                let len = at(*axis)?;
                if sum(sizes) != Some(len) {
                    return Err(parts(sizes, len));
                }
                Ok(sizes.iter().map(|&size| with(*axis, size)).collect())
            }
            Self::Unzip { axis, n } => {
                let len = at(*axis)?;
                if *n == 0 || *n > 64 || !len.is_multiple_of(*n) {
                    return Err(parts(&[*n], len));
                }
                Ok((0..*n).map(|_| with(*axis, len / n)).collect())
            }
            Self::Transpose { a, b } => {
                let (len_a, len_b) = (at(*a)?, at(*b)?);
                let mut dims = with(*a, len_b);
                dims[*b] = len_a;
                Ok(vec![dims])
            }
            Self::Reshape { dims: wanted } => {
                let n = |dims: &[u64]| dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
                if n(wanted) != n(dims) {
                    return Err(OpError::Parts { op, parts: list(wanted), whole: list(dims) });
                }
                Ok(vec![wanted.clone()])
            }
            Self::Slice { axis, start, end } => {
                if start > end || *end > at(*axis)? {
                    return Err(OpError::Range { op, parameter: "end" });
                }
                Ok(vec![with(*axis, end - start)])
            }
            Self::Sum { axis } => {
                let len = at(*axis)?;
                if !(1..=MAX_SUMMANDS).contains(&len) {
                    return Err(parts(&[len], MAX_SUMMANDS));
                }
                let mut dims = dims.to_vec();
                dims.remove(*axis);
                Ok(vec![dims])
            }
            Self::FoldNorm { .. } => match dims {
                [4, n] => Ok(vec![vec![*n]; 2]),
                _ => Err(OpError::Parts {
                    op,
                    parts: "weight, bias, mean and variance".to_owned(),
                    whole: list(dims),
                }),
            },
            Self::Gather { indices } => {
                let len = at(0)?;
                if indices.iter().any(|&index| index >= len) {
                    return Err(OpError::Range { op, parameter: "indices" });
                }
                Ok(vec![with(0, indices.len() as u64)])
            }
            _ => self.row_shapes(dims),
        }
    }

    /// As [`Op::shapes`], for the operations on rows and on elements.
    fn row_shapes(&self, dims: &[u64]) -> Result<Vec<Vec<u64>>, OpError> {
        let op = self.name();
        let axis = |axis: usize| {
            dims.get(axis).copied().ok_or(OpError::Axis { op, axis: axis as i128, rank: dims.len() })
        };
        let with = |axis: usize, len: u64| {
            let mut dims = dims.to_vec();
            dims[axis] = len;
            Ok(vec![dims])
        };
        let range = |parameter| OpError::Range { op, parameter };
        let groups = |group: u64| {
            let rows = axis(0)?;
            let is_whole = group > 0 && rows.is_multiple_of(group) && rows / group <= MAX_PARTS;
            let parts =
                || OpError::Parts { op, parts: format!("groups of {group}"), whole: format!("{rows} rows") };
            if is_whole { Ok(()) } else { Err(parts()) }
        };
        match self {
            Self::Deinterleave { group, rot } | Self::Interleave { group, rot } => {
                groups(*group)?;
                if *rot == 0 || !rot.is_multiple_of(2) || rot > group {
                    return Err(range("rot"));
                }
            }
            Self::Negate { group, from } => {
                groups(*group)?;
                if from > group {
                    return Err(range("from"));
                }
            }
            Self::PadRows { rows } => return with(0, axis(0)?.max(*rows)),
            Self::PrependZero { rows } => {
                return with(0, axis(0)?.checked_add(*rows).ok_or(range("rows"))?);
            }
            Self::GatherBlocks { n, index } => {
                let len = axis(0)?;
                if *n == 0 || !len.is_multiple_of(*n) {
                    return Err(OpError::Parts { op, parts: format!("{n} blocks"), whole: len.to_string() });
                }
                if index.is_empty() || index.len() as u64 > MAX_PARTS || index.iter().any(|at| at >= n) {
                    return Err(range("index"));
                }
                let rows = (len / n).checked_mul(index.len() as u64).ok_or(range("index"))?;
                return with(0, rows);
            }
            Self::ResizeGrid { side } => return self.grid_shapes(*side, dims),
            Self::Repeat { axis: at, n } => {
                if axis(*at)? == 0 || *n == 0 || *n > MAX_PARTS {
                    return Err(range("n"));
                }
                return with(*at, *n);
            }
            Self::ScaleRows { start, end, .. } if start > end || *end > axis(0)? => {
                return Err(range("rows"));
            }
            Self::Whole(WholeOp::L2Normalize { .. }) if axis(0)? == 0 => return Err(range("axis")),
            Self::AddIndex { .. } | Self::SubIndex if dims.len() != 1 => {
                return Err(OpError::Axis { op, axis: 1, rank: dims.len() });
            }
            _ => {}
        }
        Ok(vec![dims.to_vec()])
    }

    /// Returns the shape of a square grid of rows after resizing to another side.
    fn grid_shapes(&self, side: u64, dims: &[u64]) -> Result<Vec<Vec<u64>>, OpError> {
        let op = self.name();
        let [n_rows, n_cols] = *dims else {
            return Err(OpError::Axis { op, axis: 1, rank: dims.len() });
        };
        if n_rows == 0 || n_rows.isqrt().pow(2) != n_rows {
            return Err(OpError::Parts {
                op,
                parts: "rows of a square".to_owned(),
                whole: format!("{n_rows} rows"),
            });
        }
        if side == 0 || side > MAX_SIDE {
            return Err(OpError::Range { op, parameter: "side" });
        }
        Ok(vec![vec![side * side, n_cols]])
    }

    /// Returns the operation that undoes this one on its result, if one tensor is enough. Splits are undone by joining;
    /// operations that drop elements cannot be undone. Inverses of arithmetic have rounding errors.
    pub fn inverse(&self) -> Option<Self> {
        Some(match self {
            Self::PermuteAxis { axis, factors, order } => {
                let mut back = vec![0; order.len()];
                for (place, &from) in order.iter().enumerate() {
                    *back.get_mut(from)? = place;
                }
                let factors = order.iter().map(|&from| factors.get(from).copied()).collect::<Option<_>>()?;
                Self::PermuteAxis { axis: *axis, factors, order: back }
            }
            Self::Ungroup { groups, sizes } => Self::Regroup { groups: *groups, sizes: sizes.clone() },
            Self::Regroup { groups, sizes } => Self::Ungroup { groups: *groups, sizes: sizes.clone() },
            Self::Transpose { a, b } => Self::Transpose { a: *a, b: *b },
            Self::Deinterleave { group, rot } => Self::Interleave { group: *group, rot: *rot },
            Self::Interleave { group, rot } => Self::Deinterleave { group: *group, rot: *rot },
            Self::Gather { indices } => Self::Gather { indices: inverse_order(indices)? },
            Self::GatherBlocks { n, index } => {
                let index = inverse_order(index).filter(|index| index.len() as u64 == *n)?;
                Self::GatherBlocks { n: *n, index }
            }
            Self::Negate { .. } => self.clone(),
            Self::ScaleRows { by, start, end } if *by != 0.0 => {
                Self::ScaleRows { by: 1.0 / by, start: *start, end: *end }
            }
            Self::AddIndex { .. } => Self::SubIndex,
            Self::Math(MathOp::NegExp) => Self::Math(MathOp::LnNeg),
            Self::Math(MathOp::Exp) => Self::Math(MathOp::Ln),
            Self::Math(MathOp::Add(value)) => Self::Math(MathOp::Add(-value)),
            Self::Math(MathOp::Scale(value)) if *value != 0.0 => Self::Math(MathOp::Scale(1.0 / value)),
            _ => return None,
        })
    }
}
/// Returns the position of each index in an order; `None` unless the order is a permutation.
fn inverse_order(order: &[u64]) -> Option<Vec<u64>> {
    let mut back = vec![None; order.len()];
    for (place, &from) in order.iter().enumerate() {
        let slot = back.get_mut(usize::try_from(from).ok()?)?;
        if slot.replace(place as u64).is_some() {
            return None;
        }
    }
    back.into_iter().collect()
}
