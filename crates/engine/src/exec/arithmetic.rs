//! Arithmetic of products: which matrices are multiplied in integers.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::exec::matmul::integer::PanelLayout;
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
    /// Name, as `--arithmetic` accepts it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Integer => "integer",
        }
    }

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
    Auto,
    /// Integers for the types that have them; an error if no matrix has such a type.
    Integer,
    /// F32 for all weights.
    #[default]
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
