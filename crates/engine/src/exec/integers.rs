//! Arithmetic of products: which matrices are multiplied in integers, and activations rounded for them.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Mutex;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::exec::context::Context;
use crate::exec::matmul::MatrixView;
use crate::exec::matmul::integer::{PanelLayout, RoundedRows, RoundedView};
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, WeightReader};
use gguf_core::sync::Unpoisoned;
use gguf_core::{GgmlType, TensorMeta};
use gguf_quant::integer_form;

/// Arithmetic of products with weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// F32 for all weights: the reference.
    #[default]
    F32,
    /// Integer weights and 16-bit activations for block types whose elements are integers times scales, F32 for others.
    Integer,
}

impl Arithmetic {
    /// Returns true if matrices of this type are multiplied in integers.
    #[must_use]
    pub fn is_integer(self, ty: GgmlType) -> bool {
        self == Self::Integer && integer_form(ty).is_some()
    }

    /// Returns the arithmetic that a model's tensors get: F32 if none has integers.
    #[must_use]
    pub fn of_tensors(self, tensors: &[TensorMeta]) -> Self {
        if tensors.iter().any(|meta| self.is_integer(meta.ty)) { Self::Integer } else { Self::F32 }
    }

    /// Returns the layout of a matrix's panels, if it is multiplied in integers.
    pub(crate) fn layout(self, meta: &TensorMeta, n_cols: usize) -> Option<PanelLayout> {
        let form = integer_form(meta.ty).filter(|_| self == Self::Integer)?;
        PanelLayout::new(form, n_cols)
    }
}

/// Choice of arithmetic, as `--arithmetic` accepts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArithmeticChoice {
    /// Integers for the types that have them.
    #[default]
    Auto,
    /// Integers for the types that have them; an error if no matrix has such a type.
    Integer,
    /// F32 for all weights.
    F32,
}

/// Error for an unknown `--arithmetic`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown arithmetic `{0}`: expected auto, integer or f32")]
pub struct UnknownArithmetic(String);

impl FromStr for ArithmeticChoice {
    type Err = UnknownArithmetic;

    fn from_str(text: &str) -> Result<Self, UnknownArithmetic> {
        let choices = [("auto", Self::Auto), ("integer", Self::Integer), ("f32", Self::F32)];
        let choice = choices.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        choice.map(|(_, choice)| choice).ok_or_else(|| UnknownArithmetic(text.to_owned()))
    }
}

impl From<ArithmeticChoice> for Arithmetic {
    fn from(choice: ArithmeticChoice) -> Self {
        match choice {
            ArithmeticChoice::F32 => Self::F32,
            ArithmeticChoice::Auto | ArithmeticChoice::Integer => Self::Integer,
        }
    }
}

/// Integers of panels and rounded activations that were given back, for reuse.
#[derive(Debug, Default)]
pub(crate) struct IntegerBuffers {
    codes: Mutex<Vec<Vec<i16>>>,
    rounded: Mutex<Vec<RoundedRows>>,
}

impl IntegerBuffers {
    /// Takes at least `len` integers, not cleared.
    pub(crate) fn take_codes(&self, len: usize) -> Vec<i16> {
        let codes = if len == 0 { None } else { self.codes.lock().unpoisoned().pop() };
        codes.filter(|codes| codes.len() >= len).unwrap_or_else(|| vec![0; len])
    }

    /// Gives integers back.
    pub(crate) fn give_codes(&self, codes: Vec<i16>) {
        if !codes.is_empty() {
            self.codes.lock().unpoisoned().push(codes);
        }
    }

    /// Gives rounded activations back.
    pub(crate) fn give_rounded(&self, rounded: Option<RoundedRows>) {
        self.rounded.lock().unpoisoned().extend(rounded);
    }
}

/// Rows of activations, and the same rounded if a matrix of the call is multiplied in integers.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) n_cols: usize,
    pub(crate) rounded: Option<&'a RoundedRows>,
}

/// Some rows of activations.
#[derive(Clone)]
pub(crate) struct InputRows<'a> {
    pub(crate) floats: MatrixView<'a>,
    pub(crate) rounded: Option<RoundedView<'a>>,
}

impl<'a> Inputs<'a> {
    /// Returns some of the rows.
    pub(crate) fn rows(&self, range: Range<usize>) -> InputRows<'a> {
        let floats = &self.x[range.start * self.n_cols..];
        InputRows {
            floats: MatrixView::new(floats, range.len(), self.n_cols, self.n_cols),
            rounded: self.rounded.map(|rounded| rounded.view().tokens(range)),
        }
    }
}

impl WeightReader<'_> {
    /// Returns the layout of a matrix's panels, if it is multiplied in integers.
    pub(crate) fn layout(&self, matrix: &Matrix) -> Option<PanelLayout> {
        self.arithmetic.layout(&self.source.tensors()[matrix.tensor], matrix.n_cols)
    }
}

impl Context<'_> {
    /// Rounds activations `x`, `[n_tokens, n_cols]`, if a matrix is multiplied in integers.
    pub(crate) fn round<'m>(
        &self,
        x: &[f32],
        n_cols: usize,
        mut matrices: impl Iterator<Item = &'m Matrix>,
    ) -> Option<RoundedRows> {
        if !matrices.any(|matrix| self.weights.layout(matrix).is_some()) {
            return None;
        }
        let mut rounded = self.integers.rounded.lock().unpoisoned().pop().unwrap_or_default();
        let parts = rounded.parts(x.len() / n_cols.max(1), n_cols);
        self.workers.install(|| {
            parts.into_par_iter().for_each(|part| {
                self.clock.time(WorkKind::Product, || part.round(self.weights.level, x));
            });
        });
        Some(rounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_choices_are_read() {
        assert_eq!("AUTO".parse(), Ok(ArithmeticChoice::Auto));
        assert_eq!("integer".parse(), Ok(ArithmeticChoice::Integer));
        assert_eq!("f32".parse(), Ok(ArithmeticChoice::F32));
        assert!("int".parse::<ArithmeticChoice>().unwrap_err().to_string().contains("`int`"));
        assert_eq!(Arithmetic::from(ArithmeticChoice::Auto), Arithmetic::Integer);
        assert!(Arithmetic::Integer.is_integer(GgmlType::Q4K) && !Arithmetic::F32.is_integer(GgmlType::Q4K));
        assert!(!Arithmetic::Integer.is_integer(GgmlType::Bf16));
    }
}
