//! Words of cards: expressions and their values, patterns of names, operations on tensors.

pub(crate) mod datum;
pub(crate) mod eval;
pub(crate) mod expr;
pub(crate) mod names;
pub(crate) mod ops;
pub(crate) mod values;
