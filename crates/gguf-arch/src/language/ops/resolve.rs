//! Evaluates the parameters of a card's operation for one tensor.

use super::op::list;
use super::{MathOp, Op, OpError, OpKind, OpSpec, Param, WholeOp};
use crate::language::datum::Datum;
use crate::language::eval::Scope;
use crate::language::eval::error::EvalError;
use crate::language::names::Captures;

/// Inverse of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Undo {
    /// Operation that undoes it.
    pub op: Op,
    /// True if every bit is restored.
    pub is_exact: bool,
}

/// Parameters of an operation, and the tensor for which they are evaluated.
#[derive(Clone, Copy)]
struct OpParams<'a> {
    spec: &'a OpSpec,
    scope: &'a Scope<'a>,
    captures: Captures,
    dims: &'a [u64],
}

impl OpParams<'_> {
    fn op(&self) -> &'static str {
        self.spec.kind.name()
    }

    fn has(&self, name: &str) -> bool {
        self.spec.param(name).is_some()
    }

    fn one(&self, name: &str) -> Result<Option<Datum>, OpError> {
        let Some(Param::One(expr)) = self.spec.param(name) else { return Ok(None) };
        let value = self.scope.eval_with(expr, self.captures, self.dims);
        value.map(Some).map_err(|source| OpError::Eval { op: self.op(), source })
    }

    fn int(&self, name: &str) -> Result<Option<i128>, OpError> {
        match self.one(name)? {
            // A null value counts as an absent parameter.
            None | Some(Datum::Null) => Ok(None),
            Some(Datum::Int(int)) => Ok(Some(int)),
            Some(other) => Err(self.kind_error(&other)),
        }
    }

    fn kind_error(&self, found: &Datum) -> OpError {
        let op = self.op();
        OpError::Eval { op, source: EvalError::Kind { op, found: found.kind() } }
    }

    fn range(&self, parameter: &'static str) -> OpError {
        OpError::Range { op: self.op(), parameter }
    }

    fn ints(&self, name: &str) -> Result<Vec<i128>, OpError> {
        let op = self.op();
        let eval = |expr| {
            let value = self.scope.eval_with(expr, self.captures, self.dims);
            value.map_err(|source| OpError::Eval { op, source })
        };
        let values = match self.spec.param(name) {
            Some(Param::Many(items)) => items.iter().map(eval).collect::<Result<Vec<_>, _>>()?,
            Some(Param::One(expr)) => match eval(expr)? {
                Datum::List(items) => items.to_vec(),
                other => return Err(self.kind_error(&other)),
            },
            None => Vec::new(),
        };
        let int = |value: &Datum| match value {
            Datum::Int(int) => Ok(*int),
            other => Err(self.kind_error(other)),
        };
        values.iter().map(int).collect()
    }

    fn lengths(&self, name: &'static str) -> Result<Vec<u64>, OpError> {
        let length = |n| u64::try_from(n).map_err(|_| self.range(name));
        self.ints(name)?.into_iter().map(length).collect()
    }

    /// Returns a count; an absent or negative one is out of range.
    fn length(&self, name: &'static str) -> Result<u64, OpError> {
        let found = self.int(name)?.and_then(|n| u64::try_from(n).ok());
        found.ok_or_else(|| self.range(name))
    }

    fn axis_of(&self, axis: i128, rank: usize) -> Result<usize, OpError> {
        let wrapped = if axis < 0 { axis + rank as i128 } else { axis };
        let found = usize::try_from(wrapped).ok().filter(|&a| a < rank);
        found.ok_or(OpError::Axis { op: self.op(), axis, rank })
    }

    fn axis(&self) -> Result<usize, OpError> {
        self.axis_of(self.int("axis")?.unwrap_or(0), self.dims.len())
    }

    fn number(&self, name: &str) -> Result<f64, OpError> {
        let value = self.one(name)?.unwrap_or(Datum::Null);
        value.as_float().ok_or_else(|| self.kind_error(&value))
    }

    /// Returns a range of an axis, clamped as Python does.
    fn clamped(&self, axis: usize, start: i128, end: Option<i128>) -> (u64, u64) {
        let len = self.dims[axis];
        let wide = i128::from(len);
        let clamp = |at: i128| (if at < 0 { at + wide } else { at }).clamp(0, wide) as u64;
        let start = clamp(start);
        (start, end.map_or(len, clamp).max(start))
    }
}

impl OpSpec {
    /// Returns the operation with evaluated parameters for a tensor of these dimensions.
    ///
    /// # Errors
    /// [`OpError`]: an expression that cannot be evaluated, or an axis that the tensor lacks.
    pub fn resolve(&self, scope: &Scope<'_>, captures: Captures, dims: &[u64]) -> Result<Op, OpError> {
        let params = OpParams { spec: self, scope, captures, dims };
        Ok(match self.kind {
            OpKind::PermuteRope => permute_rope(&params)?,
            OpKind::PermuteAxis => permute_axis(&params)?,
            OpKind::Deinterleave => {
                Op::Deinterleave { group: params.length("group")?, rot: params.length("rot")? }
            }
            OpKind::Interleave => {
                Op::Interleave { group: params.length("group")?, rot: params.length("rot")? }
            }
            OpKind::Ungroup => {
                Op::Ungroup { groups: params.length("groups")?, sizes: params.lengths("sizes")? }
            }
            OpKind::Split => Op::Split { axis: params.axis()?, sizes: params.lengths("sizes")? },
            OpKind::Unzip => {
                let n = if params.has("n") { params.length("n")? } else { 2 };
                Op::Unzip { axis: params.axis()?, n }
            }
            OpKind::Transpose => match params.ints("axes")?.as_slice() {
                [a, b] => {
                    Op::Transpose { a: params.axis_of(*a, dims.len())?, b: params.axis_of(*b, dims.len())? }
                }
                _ => return Err(params.range("axes")),
            },
            OpKind::Reshape => params.reshape(&params.ints("dims")?)?,
            OpKind::Flatten => params.reshape(&[-1])?,
            OpKind::Squeeze => params.squeeze()?,
            OpKind::Unsqueeze => params.unsqueeze()?,
            OpKind::Slice => {
                let axis = params.axis()?;
                let (start, end) =
                    params.clamped(axis, params.int("start")?.unwrap_or(0), params.int("end")?);
                Op::Slice { axis, start, end }
            }
            OpKind::PadRows => Op::PadRows { rows: params.length("rows")? },
            OpKind::PrependZero => Op::PrependZero { rows: 1 },
            OpKind::Gather => Op::Gather { indices: params.lengths("indices")? },
            OpKind::GatherBlocks => {
                Op::GatherBlocks { n: params.length("n")?, index: params.lengths("index")? }
            }
            OpKind::Repeat => Op::Repeat { axis: params.axis()?, n: params.length("n")? },
            OpKind::Negate => Op::Negate { group: params.length("group")?, from: params.length("from")? },
            OpKind::Sum => Op::Sum { axis: params.axis()? },
            OpKind::FoldNorm => Op::FoldNorm { eps: params.number("eps")? },
            OpKind::ResizeGrid => Op::ResizeGrid { side: params.length("side")? },
            OpKind::Add => Op::Math(MathOp::Add(params.number("value")?)),
            OpKind::Scale => scale(&params)?,
            OpKind::NegExp => Op::Math(MathOp::NegExp),
            OpKind::Exp => Op::Math(MathOp::Exp),
            OpKind::Softplus => Op::Math(MathOp::Softplus),
            OpKind::Ternary => Op::Whole(WholeOp::Ternary),
            OpKind::SubMean => Op::Whole(WholeOp::SubMean),
            OpKind::L2Normalize => match params.axis()? {
                0 => Op::Whole(WholeOp::L2Normalize { eps: params.number("eps")? }),
                _ => return Err(params.range("axis")),
            },
            OpKind::AddIndex => Op::AddIndex { below: params.length("below")? },
        })
    }

    /// Returns the operation that undoes this one on a result of these dimensions; `None` if none does. Results of
    /// padding, repeating, or subtracting a mean stay as they are: repeating the operation changes nothing.
    pub(crate) fn undo(
        &self,
        scope: &Scope<'_>,
        captures: Captures,
        dims: &[u64],
    ) -> Result<Option<Undo>, OpError> {
        let params = OpParams { spec: self, scope, captures, dims };
        let (op, is_exact) = match self.kind {
            OpKind::Reshape | OpKind::Flatten | OpKind::Squeeze if params.has("hf") => {
                (Some(params.reshape(&params.ints("hf")?)?), true)
            }
            OpKind::Reshape | OpKind::Flatten => (None, true),
            OpKind::Squeeze if params.has("axis") => (Some(params.unsqueeze()?), true),
            // The file does not tell which axes had length 1.
            OpKind::Squeeze | OpKind::PadRows | OpKind::Repeat => {
                (Some(Op::Reshape { dims: dims.to_vec() }), true)
            }
            OpKind::Unsqueeze => (Some(params.squeeze()?), true),
            // The part that was cut off is lost; the rest moves to its original position.
            OpKind::Slice => match (params.axis()?, params.int("start")?.unwrap_or(0)) {
                (_, 0) => (Some(Op::Reshape { dims: dims.to_vec() }), false),
                (0, start) if start > 0 => {
                    let rows = u64::try_from(start).map_err(|_| params.range("start"))?;
                    (Some(Op::PrependZero { rows }), false)
                }
                _ => (None, true),
            },
            // The limit of the sums matters only to the forward operation.
            OpKind::AddIndex => (Some(Op::SubIndex), true),
            OpKind::SubMean | OpKind::L2Normalize => (Some(Op::Reshape { dims: dims.to_vec() }), false),
            OpKind::PrependZero => {
                let end =
                    dims.first().copied().ok_or(OpError::Axis { op: self.kind.name(), axis: 0, rank: 0 })?;
                (Some(Op::Slice { axis: 0, start: 1.min(end), end }), true)
            }
            _ => {
                let op = self.resolve(scope, captures, dims)?;
                let is_exact = !matches!(op, Op::Math(_) | Op::ScaleRows { .. });
                (op.inverse(), is_exact)
            }
        };
        Ok(op.map(|op| Undo { op, is_exact }))
    }
}

fn permute_rope(params: &OpParams<'_>) -> Result<Op, OpError> {
    let heads = u64::try_from(params.int("heads")?.unwrap_or(0)).unwrap_or(0);
    let op = params.op();
    let rows = params.dims.first().copied().ok_or(OpError::Axis { op, axis: 0, rank: 0 })?;
    let half = heads.checked_mul(2).filter(|&n| n > 0 && rows.is_multiple_of(n)).map(|n| rows / n);
    let parts =
        || OpError::Parts { op, parts: format!("{heads} heads of pairs"), whole: format!("{rows} rows") };
    Ok(Op::PermuteAxis { axis: 0, factors: vec![heads, 2, half.ok_or_else(parts)?], order: vec![0, 2, 1] })
}

fn permute_axis(params: &OpParams<'_>) -> Result<Op, OpError> {
    let axis = params.axis()?;
    let order = params.ints("order")?.into_iter();
    let order = order.map(|n| usize::try_from(n).map_err(|_| params.range("order")));
    let factors = inferred(params.op(), &params.dims[axis..=axis], &params.ints("factors")?)?;
    Ok(Op::PermuteAxis { axis, factors, order: order.collect::<Result<_, _>>()? })
}

fn scale(params: &OpParams<'_>) -> Result<Op, OpError> {
    let by = params.number("by")?;
    if !params.has("rows") {
        return Ok(Op::Math(MathOp::Scale(by)));
    }
    match params.ints("rows")?.as_slice() {
        [start, end] if !params.dims.is_empty() => {
            let (start, end) = params.clamped(0, *start, Some(*end));
            Ok(Op::ScaleRows { by, start, end })
        }
        _ => Err(params.range("rows")),
    }
}

impl OpParams<'_> {
    fn reshape(&self, wanted: &[i128]) -> Result<Op, OpError> {
        Ok(Op::Reshape { dims: inferred(self.op(), self.dims, wanted)? })
    }

    /// Drops the named axis, else all axes of length 1.
    fn squeeze(&self) -> Result<Op, OpError> {
        let Some(axis) = self.int("axis")? else {
            return Ok(Op::Reshape { dims: self.dims.iter().copied().filter(|&d| d != 1).collect() });
        };
        let axis = self.axis_of(axis, self.dims.len())?;
        let mut dims = self.dims.to_vec();
        if dims.remove(axis) != 1 {
            return Err(self.range("axis"));
        }
        Ok(Op::Reshape { dims })
    }

    fn unsqueeze(&self) -> Result<Op, OpError> {
        let axis = self.axis_of(self.int("axis")?.unwrap_or(0), self.dims.len() + 1)?;
        let mut dims = self.dims.to_vec();
        dims.insert(axis, 1);
        Ok(Op::Reshape { dims })
    }
}

/// Returns the dimensions of a reshape, with -1 replaced.
fn inferred(op: &'static str, dims: &[u64], wanted: &[i128]) -> Result<Vec<u64>, OpError> {
    let n_elems: u128 = dims.iter().map(|&d| u128::from(d)).product();
    let parts = || OpError::Parts { op, parts: format!("{wanted:?}"), whole: list(dims) };
    let mut known: u128 = 1;
    for &dim in wanted.iter().filter(|&&dim| dim != -1) {
        known = u128::try_from(dim).ok().and_then(|dim| known.checked_mul(dim)).ok_or_else(parts)?;
    }
    let n_free = wanted.iter().filter(|&&dim| dim == -1).count();
    let free = match n_free {
        0 if known == n_elems => 1,
        1 if known > 0 && n_elems.is_multiple_of(known) => n_elems / known,
        _ => return Err(parts()),
    };
    let fill = |&dim: &i128| u64::try_from(if dim == -1 { free as i128 } else { dim }).map_err(|_| parts());
    wanted.iter().map(fill).collect()
}
