//! Element-wise arithmetic that cards ask for.

use crate::core::numeric::{f16_to_f32, f32_to_f16};

/// One step applied to every element.
///
/// # Exactness
/// The reference computes in the type the checkpoint stores if that is F16, and in F32 otherwise: each step on an
/// F16 weight rounds to F16, and BF16 is widened first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Math {
    /// `x + v`.
    Add(f32),
    /// `x * v`.
    Scale(f32),
    /// `-exp(x)`.
    NegExp,
    /// `exp(x)`.
    Exp,
    /// `ln(-x)`, the inverse of [`Math::NegExp`]; not bit exact.
    LogNeg,
    /// `ln(x)`, the inverse of [`Math::Exp`]; not bit exact.
    Log,
}

impl Math {
    /// Applies the step in place; `in_f16` rounds every result to F16.
    pub fn apply(self, values: &mut [f32], in_f16: bool) {
        match self {
            Self::Add(v) => values.iter_mut().for_each(|x| *x += v),
            Self::Scale(v) => values.iter_mut().for_each(|x| *x *= v),
            Self::NegExp => values.iter_mut().for_each(|x| *x = -x.exp()),
            Self::Exp => values.iter_mut().for_each(|x| *x = x.exp()),
            Self::LogNeg => values.iter_mut().for_each(|x| *x = (-*x).ln()),
            Self::Log => values.iter_mut().for_each(|x| *x = x.ln()),
        }
        if in_f16 {
            for x in values {
                *x = f16_to_f32(f32_to_f16(*x));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_f16_weight_rounds_after_every_step() {
        let mut narrow = [0.000_4f32, 1.0];
        Math::Add(1.0).apply(&mut narrow, true);
        assert_eq!(narrow, [1.0, 2.0]);
        let mut wide = [0.000_4f32, 1.0];
        Math::Add(1.0).apply(&mut wide, false);
        assert_eq!(wide, [1.000_4, 2.0]);
    }

    #[test]
    fn logarithms_undo_exponentials() {
        let mut values = [0.25f32, -1.5];
        Math::NegExp.apply(&mut values, false);
        assert!(values.iter().all(|&x| x < 0.0));
        Math::LogNeg.apply(&mut values, false);
        assert!((values[0] - 0.25).abs() < 1e-6 && (values[1] + 1.5).abs() < 1e-6);
    }
}
