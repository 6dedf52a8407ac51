//! The closed list of tensor operations: their names and parameters in cards, and the shapes they make.
//!
//! Here an operation is described; `views` carries it out. Shapes are outermost first everywhere.

use crate::arch::datum::Datum;
use crate::arch::eval::{EvalError, Scope};
use crate::arch::expr::Expr;
use crate::arch::names::Captures;

macro_rules! op_kinds {
    ($( $variant:ident $name:literal $short:literal [$( $param:literal $form:ident $required:literal ),*] $doc:literal; )*) => {
        /// An operation by its name in cards.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum OpKind { $( #[doc = $doc] $variant, )* }

        /// The vocabulary.
        const KINDS: &[KindRow] = &[$( KindRow {
            kind: OpKind::$variant,
            name: $name,
            short: $short,
            params: &[$( ParamRow { name: $param, form: Form::$form, required: $required } ),*],
        }, )*];
    };
}

/// Whether a parameter is one value or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    One,
    Many,
}

/// One parameter of an operation.
#[derive(Debug)]
pub(super) struct ParamRow {
    pub(super) name: &'static str,
    pub(super) form: Form,
    pub(super) required: bool,
}

#[derive(Debug)]
pub(super) struct KindRow {
    pub(super) kind: OpKind,
    pub(super) name: &'static str,
    /// The parameter that `{ op = value }` sets; empty if the parameters are always a table.
    pub(super) short: &'static str,
    pub(super) params: &'static [ParamRow],
}

op_kinds! {
    PermuteRope "permute_rope" "heads" ["heads" One true]
        "Rows `[heads, 2, d/2]` become `[heads, d/2, 2]`: rotary pairs side by side.";
    PermuteAxis "permute_axis" "" ["axis" One false, "factors" Many true, "order" Many true]
        "An axis seen as a product of factors, these reordered.";
    Ungroup "ungroup" "" ["groups" One true, "sizes" Many true]
        "Rows `[groups, Σsizes]` become all of section 0, all of section 1, and so on.";
    Split "split" "" ["axis" One false, "sizes" Many true] "One tensor becomes several along an axis.";
    Unzip "unzip" "" ["axis" One true, "n" One false] "Every n-th index of an axis, n tensors.";
    Transpose "transpose" "axes" ["axes" Many true] "Two axes change places.";
    Reshape "reshape" "dims" ["dims" Many true] "The same elements in another shape; one dimension may be -1.";
    Squeeze "squeeze" "axis" ["axis" One false] "Drops axes of length 1, or the one that is named.";
    Unsqueeze "unsqueeze" "axis" ["axis" One true] "Adds an axis of length 1.";
    Flatten "flatten" "" [] "One dimension.";
    Slice "slice" "" ["axis" One false, "start" One false, "end" One false]
        "A range of an axis, clamped to it as Python does.";
    Gather "gather" "indices" ["indices" Many true] "Rows in the order of the indices.";
    Add "add" "value" ["value" One true] "Adds a number.";
    Scale "scale" "by" ["by" One true] "Multiplies by a number.";
    NegExp "neg_exp" "" [] "`-exp(x)`";
    Exp "exp" "" [] "`exp(x)`";
}

impl OpKind {
    /// The whole vocabulary.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|row| row.kind)
    }

    pub(super) fn row(self) -> &'static KindRow {
        // Every kind has its row: the macro writes both from one list, in the same order.
        &KINDS[self as usize]
    }

    /// The operation's name in cards.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

/// A parameter as a card gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// One value.
    One(Expr),
    /// A list of values.
    Many(Vec<Expr>),
}

/// An operation as a card gives it: parameters are expressions.
#[derive(Clone, Debug, PartialEq)]
pub struct OpSpec {
    /// Which operation.
    pub kind: OpKind,
    /// Parameters by name.
    pub params: Vec<(&'static str, Param)>,
}

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
    /// See `OpKind::Gather`.
    Gather {
        /// Rows.
        indices: Vec<u64>,
    },
    /// Element by element.
    Math(MathOp),
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

fn list(dims: &[u64]) -> String {
    format!("{dims:?}")
}

impl OpSpec {
    /// How many tensors come out of one.
    #[must_use]
    pub fn n_outputs(&self) -> Option<usize> {
        match (self.kind, self.param("sizes"), self.param("n")) {
            (OpKind::Split, Some(Param::Many(sizes)), _) => Some(sizes.len()),
            (OpKind::Unzip, _, None) => Some(2),
            (OpKind::Unzip, _, Some(Param::One(Expr::Int(n)))) => usize::try_from(*n).ok(),
            (OpKind::Split | OpKind::Unzip, ..) => None,
            _ => Some(1),
        }
    }

    fn param(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|param| param.0 == name).map(|param| &param.1)
    }

    fn one(
        &self,
        name: &str,
        scope: &Scope<'_>,
        captures: Captures,
        dims: &[u64],
    ) -> Result<Option<Datum>, OpError> {
        let Some(Param::One(expr)) = self.param(name) else { return Ok(None) };
        let value = scope.eval_with(expr, captures, dims);
        value.map(Some).map_err(|source| OpError::Eval { op: self.kind.name(), source })
    }

    fn int(
        &self,
        name: &'static str,
        scope: &Scope<'_>,
        captures: Captures,
        dims: &[u64],
    ) -> Result<Option<i128>, OpError> {
        let Some(value) = self.one(name, scope, captures, dims)? else { return Ok(None) };
        match value {
            Datum::Int(int) => Ok(Some(int)),
            other => Err(self.kind_error(&other)),
        }
    }

    fn kind_error(&self, found: &Datum) -> OpError {
        let op = self.kind.name();
        OpError::Eval { op, source: EvalError::Kind { op, found: found.kind() } }
    }

    fn ints(
        &self,
        name: &'static str,
        scope: &Scope<'_>,
        captures: Captures,
        dims: &[u64],
    ) -> Result<Vec<i128>, OpError> {
        let op = self.kind.name();
        let eval =
            |expr| scope.eval_with(expr, captures, dims).map_err(|source| OpError::Eval { op, source });
        let values = match self.param(name) {
            Some(Param::Many(items)) => items.iter().map(eval).collect::<Result<Vec<_>, _>>()?,
            Some(Param::One(expr)) => match eval(expr)? {
                Datum::List(items) => items.to_vec(),
                other => return Err(self.kind_error(&other)),
            },
            None => Vec::new(),
        };
        values
            .iter()
            .map(|value| match value {
                Datum::Int(int) => Ok(*int),
                other => Err(self.kind_error(other)),
            })
            .collect()
    }

    /// The operation with its numbers, for a tensor of these dimensions.
    ///
    /// # Errors
    /// [`OpError`]: an expression without a value, an axis the tensor lacks.
    pub fn resolve(&self, scope: &Scope<'_>, captures: Captures, dims: &[u64]) -> Result<Op, OpError> {
        let op = self.kind.name();
        let int = |name| self.int(name, scope, captures, dims);
        let ints = |name| self.ints(name, scope, captures, dims);
        let lengths = |name: &'static str| -> Result<Vec<u64>, OpError> {
            let range = |_| OpError::Range { op, parameter: name };
            ints(name)?.into_iter().map(|n| u64::try_from(n).map_err(range)).collect()
        };
        let axis_of = |axis: i128, rank: usize| {
            let wrapped = if axis < 0 { axis + rank as i128 } else { axis };
            usize::try_from(wrapped).ok().filter(|&a| a < rank).ok_or(OpError::Axis { op, axis, rank })
        };
        let axis = |default: i128| axis_of(int("axis")?.unwrap_or(default), dims.len());
        let number = |name| -> Result<f64, OpError> {
            let value = self.one(name, scope, captures, dims)?.unwrap_or(Datum::Null);
            value.as_float().ok_or_else(|| self.kind_error(&value))
        };
        Ok(match self.kind {
            OpKind::PermuteRope => {
                let heads = u64::try_from(int("heads")?.unwrap_or(0)).unwrap_or(0);
                let rows = dims.first().copied().ok_or(OpError::Axis { op, axis: 0, rank: 0 })?;
                let half =
                    heads.checked_mul(2).filter(|&n| n > 0 && rows.is_multiple_of(n)).map(|n| rows / n);
                let parts = || OpError::Parts {
                    op,
                    parts: format!("{heads} heads of pairs"),
                    whole: format!("{rows} rows"),
                };
                Op::PermuteAxis {
                    axis: 0,
                    factors: vec![heads, 2, half.ok_or_else(parts)?],
                    order: vec![0, 2, 1],
                }
            }
            OpKind::PermuteAxis => {
                let range = |_| OpError::Range { op, parameter: "order" };
                let order = ints("order")?.into_iter().map(|n| usize::try_from(n).map_err(range));
                Op::PermuteAxis {
                    axis: axis(0)?,
                    factors: lengths("factors")?,
                    order: order.collect::<Result<_, _>>()?,
                }
            }
            OpKind::Ungroup => {
                let groups = int("groups")?.and_then(|n| u64::try_from(n).ok());
                let groups = groups.ok_or(OpError::Range { op, parameter: "groups" })?;
                Op::Ungroup { groups, sizes: lengths("sizes")? }
            }
            OpKind::Split => Op::Split { axis: axis(0)?, sizes: lengths("sizes")? },
            OpKind::Unzip => {
                let n = u64::try_from(int("n")?.unwrap_or(2))
                    .map_err(|_| OpError::Range { op, parameter: "n" })?;
                Op::Unzip { axis: axis(0)?, n }
            }
            OpKind::Transpose => match ints("axes")?.as_slice() {
                [a, b] => Op::Transpose { a: axis_of(*a, dims.len())?, b: axis_of(*b, dims.len())? },
                _ => return Err(OpError::Range { op, parameter: "axes" }),
            },
            OpKind::Reshape => Op::Reshape { dims: inferred(op, dims, &ints("dims")?)? },
            OpKind::Squeeze => match int("axis")? {
                None => Op::Reshape { dims: dims.iter().copied().filter(|&d| d != 1).collect() },
                Some(axis) => {
                    let axis = axis_of(axis, dims.len())?;
                    let mut dims = dims.to_vec();
                    if dims.remove(axis) != 1 {
                        return Err(OpError::Range { op, parameter: "axis" });
                    }
                    Op::Reshape { dims }
                }
            },
            OpKind::Unsqueeze => {
                let axis = axis_of(int("axis")?.unwrap_or(0), dims.len() + 1)?;
                let mut dims = dims.to_vec();
                dims.insert(axis, 1);
                Op::Reshape { dims }
            }
            OpKind::Flatten => Op::Reshape { dims: inferred(op, dims, &[-1])? },
            OpKind::Slice => {
                let axis = axis(0)?;
                let len = i128::from(dims[axis]);
                let clamp = |at: i128| (if at < 0 { at + len } else { at }).clamp(0, len) as u64;
                let start = clamp(int("start")?.unwrap_or(0));
                Op::Slice { axis, start, end: int("end")?.map_or(dims[axis], clamp).max(start) }
            }
            OpKind::Gather => Op::Gather { indices: lengths("indices")? },
            OpKind::Add => Op::Math(MathOp::Add(number("value")?)),
            OpKind::Scale => Op::Math(MathOp::Scale(number("by")?)),
            OpKind::NegExp => Op::Math(MathOp::NegExp),
            OpKind::Exp => Op::Math(MathOp::Exp),
        })
    }
}

/// The dimensions of a reshape, with -1 filled in.
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

impl Op {
    /// The operation's name in cards.
    #[must_use]
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
            Self::Gather { .. } => "gather",
            Self::Math(MathOp::Add(_)) => "add",
            Self::Math(MathOp::Scale(_)) => "scale",
            Self::Math(MathOp::NegExp) => "neg_exp",
            Self::Math(MathOp::Exp) => "exp",
        }
    }

    /// The dimensions of what comes out, one list per output.
    ///
    /// # Errors
    /// [`OpError`] if the operation does not fit.
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
            Self::Gather { indices } => {
                let len = at(0)?;
                if indices.iter().any(|&index| index >= len) {
                    return Err(OpError::Range { op, parameter: "indices" });
                }
                Ok(vec![with(0, indices.len() as u64)])
            }
            Self::Math(_) => Ok(vec![dims.to_vec()]),
        }
    }

    /// The operation that undoes this one on a tensor that came out of it, where one tensor suffices. Splits are
    /// undone by joining, and what drops elements by nothing. Arithmetic comes back with rounding errors.
    #[must_use]
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
            Self::Math(MathOp::Add(value)) => Self::Math(MathOp::Add(-value)),
            Self::Math(MathOp::Scale(value)) if *value != 0.0 => Self::Math(MathOp::Scale(1.0 / value)),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
