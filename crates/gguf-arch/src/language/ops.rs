//! The closed list of tensor operations: their names and parameters in cards, and the shapes of their results.
//!
//! This module describes operations; `gguf-views` executes them. Shapes are outermost first everywhere.

use crate::language::expr::Expr;

mod op;
mod resolve;
mod shapes;
#[cfg(test)]
mod tests;

pub use op::{MathOp, Op, OpError, WholeOp};
pub(crate) use resolve::Undo;

macro_rules! op_kinds {
    ($( $variant:ident $name:literal $short:literal [$( $param:literal $form:ident $required:literal ),*] $doc:literal; )*) => {
        /// Operation, by its name in cards.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum OpKind { $( #[doc = $doc] $variant, )* }

        /// All operations, in the order of `OpKind`.
        const KINDS: &[KindRow] = &[$( KindRow {
            kind: OpKind::$variant,
            name: $name,
            short: $short,
            params: &[$( ParamRow { name: $param, form: ParamForm::$form, required: $required } ),*],
        }, )*];
    };
}

/// Form of a parameter: one value or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamForm {
    One,
    Many,
}

/// Parameter of an operation.
#[derive(Debug)]
pub(crate) struct ParamRow {
    pub(crate) name: &'static str,
    pub(crate) form: ParamForm,
    pub(crate) required: bool,
}

#[derive(Debug)]
pub(crate) struct KindRow {
    pub(crate) kind: OpKind,
    pub(crate) name: &'static str,
    /// Parameter that the short form `{ op = value }` sets; empty if parameters are always a table.
    pub(crate) short: &'static str,
    pub(crate) params: &'static [ParamRow],
}

op_kinds! {
    PermuteRope "permute_rope" "heads" ["heads" One true]
        "Rows `[heads, 2, d/2]` become `[heads, d/2, 2]`: rotary pairs side by side.";
    PermuteAxis "permute_axis" "" ["axis" One false, "factors" Many true, "order" Many true]
        "An axis seen as a product of factors, one of which may be -1, these reordered.";
    Deinterleave "deinterleave" "" ["group" One true, "rot" One true]
        "Of every `group` rows the first `rot` are sorted: the even ones, then the odd ones.";
    Interleave "interleave" "" ["group" One true, "rot" One true]
        "Of every `group` rows the first `rot` are mixed: the halves in turns.";
    Ungroup "ungroup" "" ["groups" One true, "sizes" Many true]
        "Rows `[groups, Σsizes]` become all of section 0, all of section 1, and so on.";
    Split "split" "" ["axis" One false, "sizes" Many true] "One tensor becomes several along an axis.";
    Unzip "unzip" "" ["axis" One true, "n" One false] "Every n-th index of an axis, n tensors.";
    Transpose "transpose" "axes" ["axes" Many true] "Two axes change places.";
    Reshape "reshape" "dims" ["dims" Many true, "hf" Many false]
        "The same elements in another shape; one dimension may be -1. `hf` is the checkpoint's, for the way back.";
    Squeeze "squeeze" "axis" ["axis" One false, "hf" Many false]
        "Drops axes of length 1, or the one that is named. `hf` is the checkpoint's shape, for the way back.";
    Unsqueeze "unsqueeze" "axis" ["axis" One true] "Adds an axis of length 1.";
    Flatten "flatten" "" ["hf" Many false] "One dimension. `hf` is the checkpoint's shape, for the way back.";
    Slice "slice" "" ["axis" One false, "start" One false, "end" One false]
        "A range of an axis, clamped to it as Python does.";
    PadRows "pad_rows" "rows" ["rows" One true] "Rows of zeros are added up to this number of rows.";
    PrependZero "prepend_zero" "" [] "A row of zeros in front.";
    Gather "gather" "indices" ["indices" Many true] "Rows in the order of the indices.";
    GatherBlocks "gather_blocks" "" ["n" One true, "index" Many true]
        "The rows as `n` blocks, in the order of the indices.";
    Repeat "repeat" "" ["axis" One false, "n" One true]
        "The first index of an axis, `n` times; what else the axis has is dropped.";
    Negate "negate" "" ["group" One true, "from" One true]
        "Of every `group` rows those from `from` on change their sign.";
    Sum "sum" "axis" ["axis" One true] "The sum along an axis, which goes.";
    FoldNorm "fold_norm" "eps" ["eps" One true]
        "Four rows, a batch norm's weight, bias, mean and variance, become two tensors: factors and shifts.";
    ResizeGrid "resize_grid" "side" ["side" One true]
        "Rows, positions of a square grid, become those of a grid of this side: bilinear, corners on corners.";
    Add "add" "value" ["value" One true] "Adds a number.";
    Scale "scale" "by" ["by" One true, "rows" Many false] "Multiplies by a number: all, or the rows `[a, b]`.";
    NegExp "neg_exp" "" [] "`-exp(x)`";
    Exp "exp" "" [] "`exp(x)`";
    Softplus "softplus" "" [] "`ln(1 + exp(x))`";
    Ternary "ternary" "" [] "Every element becomes -s, 0 or s, the nearest; s is the mean magnitude of all.";
    SubMean "sub_mean" "" [] "Takes the mean of all elements from each.";
    L2Normalize "l2_normalize" "" ["axis" One false, "eps" One true]
        "Every column (axis 0) is divided by its length plus `eps`.";
    AddIndex "add_index" "below" ["below" One true]
        "Integers: adds to each its place. What comes out must be below the limit, and no number twice.";
}

impl OpKind {
    /// Returns all operations.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|row| row.kind)
    }

    pub(crate) fn row(self) -> &'static KindRow {
        // The macro builds the enum and the table from one list, so every variant has its row.
        &KINDS[self as usize]
    }

    /// Returns the operation's name in cards.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

/// Parameter as a card declares it.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// One value.
    One(Expr),
    /// A list of values.
    Many(Vec<Expr>),
}

/// Operation as a card declares it: its parameters are unevaluated expressions.
#[derive(Clone, Debug, PartialEq)]
pub struct OpSpec {
    /// Kind of the operation.
    pub kind: OpKind,
    /// Parameters, by name.
    pub params: Vec<(&'static str, Param)>,
}

impl OpSpec {
    /// Returns the number of result tensors; `None` if it is unknown.
    pub(crate) fn n_outputs(&self) -> Option<usize> {
        match (self.kind, self.param("sizes"), self.param("n")) {
            (OpKind::Split, Some(Param::Many(sizes)), _) => Some(sizes.len()),
            (OpKind::Unzip, _, None) | (OpKind::FoldNorm, ..) => Some(2),
            (OpKind::Unzip, _, Some(Param::One(Expr::Int(n)))) => usize::try_from(*n).ok(),
            (OpKind::Split | OpKind::Unzip, ..) => None,
            _ => Some(1),
        }
    }

    fn param(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|param| param.0 == name).map(|param| &param.1)
    }
}
