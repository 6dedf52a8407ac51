//! Functions of single values, row by row: all threads take part, and the loops are compiled for the level.

use rayon::prelude::*;

use crate::core::simd::{SimdLevel, VectorLoop};
use crate::engine::ops::logs::softplus;
use crate::engine::ops::math;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;

/// Rows that one task works on.
const ROWS_PER_TASK: usize = 64;

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueFunction {
    /// The value itself.
    Same,
    /// The hyperbolic tangent.
    Tanh,
    /// The logistic function.
    Sigmoid,
    /// `x sig(x)`.
    Silu,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `max(x, 0)²`.
    Relu2,
    /// `e^(-e^x)`.
    ExpOfExp,
    /// `e^(c sig(x))`.
    ExpOfSigmoid(f32),
}

/// `x = f(x + bias)`.
struct MapLoop<'a> {
    function: ValueFunction,
    bias: Option<&'a [f32]>,
    x: &'a mut [f32],
}

impl VectorLoop for MapLoop<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { function, bias, x } = self;
        if let Some(bias) = bias {
            x.iter_mut().zip(bias).for_each(|(x, &bias)| *x += bias);
        }
        // A loop for each, so that nothing is asked inside of it.
        match function {
            ValueFunction::Same => {}
            ValueFunction::Tanh => x.iter_mut().for_each(|x| *x = math::tanh(*x)),
            ValueFunction::Sigmoid => x.iter_mut().for_each(|x| *x = math::sigmoid(*x)),
            ValueFunction::Silu => x.iter_mut().for_each(|x| *x *= math::sigmoid(*x)),
            ValueFunction::Softplus => x.iter_mut().for_each(|x| *x = softplus(*x)),
            ValueFunction::Relu2 => x.iter_mut().for_each(|x| *x = if *x > 0.0 { *x * *x } else { 0.0 }),
            ValueFunction::ExpOfExp => x.iter_mut().for_each(|x| *x = math::exp(-math::exp(*x))),
            ValueFunction::ExpOfSigmoid(c) => {
                for x in x {
                    *x = math::exp(c * math::sigmoid(*x));
                }
            }
        }
    }
}

/// `x = f(x + bias)`, value by value.
pub(super) fn map(level: SimdLevel, function: ValueFunction, bias: Option<&[f32]>, x: &mut [f32]) {
    level.vectorize(MapLoop { function, bias, x });
}

impl Runner<'_> {
    /// `x = f(x + bias)` for all rows of `n_cols`; the bias is a row.
    pub(super) fn map_rows(
        &self,
        function: ValueFunction,
        bias: Option<&[f32]>,
        x: &mut [f32],
        n_cols: usize,
    ) {
        if function == ValueFunction::Same && bias.is_none() {
            return;
        }
        let (level, n_cols) = (self.weights.level, n_cols.max(1));
        self.workers.install(|| {
            x.par_chunks_mut(ROWS_PER_TASK * n_cols).for_each(|rows| {
                self.clock.time(WorkKind::Activation, || {
                    rows.chunks_mut(n_cols).for_each(|row| map(level, function, bias, row));
                });
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_equals_its_formula_at_every_level() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let all: [(ValueFunction, &dyn Fn(f64) -> f64); 8] = [
            (ValueFunction::Same, &|x| x),
            (ValueFunction::Tanh, &f64::tanh),
            (ValueFunction::Sigmoid, &sigmoid),
            (ValueFunction::Silu, &|x| x * sigmoid(x)),
            (ValueFunction::Softplus, &|x| x.exp().ln_1p()),
            (ValueFunction::Relu2, &|x| x.max(0.0) * x.max(0.0)),
            (ValueFunction::ExpOfExp, &|x| (-x.exp()).exp()),
            (ValueFunction::ExpOfSigmoid(-0.6), &|x| (-0.6 * sigmoid(x)).exp()),
        ];
        let x: Vec<f32> = (0..201).map(|i| i as f32 / 10.0 - 10.0).collect();
        let bias = vec![0.25; x.len()];
        for (function, formula) in all {
            let run = |level| {
                let mut y = x.clone();
                map(level, function, Some(&bias), &mut y);
                y
            };
            let y = run(SimdLevel::Scalar);
            for (x, y) in x.iter().zip(&y) {
                let expected = formula(f64::from(*x) + 0.25);
                assert!((f64::from(*y) - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{function:?} {x}");
            }
            for level in SimdLevel::available() {
                assert_eq!(run(level), y, "{function:?} {level}");
            }
        }
    }
}
