//! Element-wise arithmetic that cards request.

use super::exp;
use gguf_arch::MathOp;
use gguf_core::numeric::{f16_to_f32, f32_to_f16};

/// Applies an operation in place to elements, of which the first has the index `first`; `in_f16` rounds every result to
/// F16.
///
/// # Exactness
/// The reference computes in the type the checkpoint stores if that is F16, and in F32 otherwise: each step on an
/// F16 weight rounds to F16, and BF16 is widened first.
pub(super) fn apply(op: MathOp, first: u64, values: &mut [f32], in_f16: bool) {
    match op {
        MathOp::Add(v) => values.iter_mut().for_each(|x| *x += v as f32),
        MathOp::Scale(v) => values.iter_mut().for_each(|x| *x *= v as f32),
        MathOp::NegExp => values.iter_mut().for_each(|x| *x = -exp::exp(*x)),
        MathOp::Exp => values.iter_mut().for_each(|x| *x = exp::exp(*x)),
        MathOp::Softplus => values.iter_mut().for_each(|x| *x = softplus(*x)),
        MathOp::LnNeg => values.iter_mut().for_each(|x| *x = (-*x).ln()),
        MathOp::Ln => values.iter_mut().for_each(|x| *x = x.ln()),
        MathOp::AddIndex => (first..).zip(values.iter_mut()).for_each(|(place, x)| *x += place as f32),
        MathOp::SubIndex => (first..).zip(values.iter_mut()).for_each(|(place, x)| *x -= place as f32),
    }
    if in_f16 {
        for x in values {
            *x = f16_to_f32(f32_to_f16(*x));
        }
    }
}

/// Limit above which torch's softplus returns its argument.
const LINEAR_ABOVE: f32 = 20.0;

fn softplus(x: f32) -> f32 {
    // Rounded in between like torch, which gives results nearer to its own.
    let exp = f64::from(x).exp() as f32;
    if x > LINEAR_ABOVE { x } else { f64::from(exp).ln_1p() as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_linear_far_out() {
        let mut values = [0.0f32, 25.0, -30.0];
        apply(MathOp::Softplus, 0, &mut values, false);
        assert_eq!(values, [std::f32::consts::LN_2, 25.0, 9.357_623e-14]);
    }

    #[test]
    fn an_f16_weight_rounds_after_every_step() {
        let mut narrow = [0.000_4f32, 1.0];
        apply(MathOp::Add(1.0), 0, &mut narrow, true);
        assert_eq!(narrow, [1.0, 2.0]);
        let mut wide = [0.000_4f32, 1.0];
        apply(MathOp::Add(1.0), 0, &mut wide, false);
        assert_eq!(wide, [1.000_4, 2.0]);
    }

    #[test]
    fn numbers_are_rounded_before_they_are_used() {
        let mut values = [1.0f32];
        apply(MathOp::Scale(0.1), 0, &mut values, false);
        assert_eq!(values, [0.1f32]);
        apply(MathOp::NegExp, 0, &mut values, false);
        assert_eq!(values, [-exp::exp(0.1)]);
    }
}
