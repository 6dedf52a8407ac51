//! Functions of single values, applied row by row on all threads; the loops are compiled for every SIMD level.

use rayon::prelude::*;

use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::scalar::{self, softplus};
use crate::exec::timings::WorkKind;
use crate::exec::workers::{ROWS_PER_TASK, Tasks};
use gguf_core::simd::{SimdLevel, VectorLoop};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ValueFunction {
    /// The value itself.
    Same,
    /// The hyperbolic tangent.
    Tanh,
    /// The logistic function.
    Sigmoid,
    /// SiLU, `x sig(x)`.
    Silu,
    /// Softplus, `ln(1 + e^x)`.
    Softplus,
    /// Squared ReLU, `max(x, 0)²`.
    Relu2,
    /// `e^(-e^x)`.
    ExpOfExp,
    /// `e^(c sig(x))`.
    ExpOfSigmoid(f32),
}

/// Loop of `x = f(x + bias)`.
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
        // One loop per function, so that there is no branch inside of it.
        match function {
            ValueFunction::Same => {}
            ValueFunction::Tanh => x.iter_mut().for_each(|x| *x = scalar::tanh(*x)),
            ValueFunction::Sigmoid => x.iter_mut().for_each(|x| *x = scalar::sigmoid(*x)),
            ValueFunction::Silu => x.iter_mut().for_each(|x| *x *= scalar::sigmoid(*x)),
            ValueFunction::Softplus => x.iter_mut().for_each(|x| *x = softplus(*x)),
            ValueFunction::Relu2 => x.iter_mut().for_each(|x| *x = if *x > 0.0 { *x * *x } else { 0.0 }),
            ValueFunction::ExpOfExp => x.iter_mut().for_each(|x| *x = scalar::exp(-scalar::exp(*x))),
            ValueFunction::ExpOfSigmoid(c) => {
                for x in x {
                    *x = scalar::exp(c * scalar::sigmoid(*x));
                }
            }
        }
    }
}

/// Computes `x = f(x + bias)`, value by value.
pub(crate) fn map(level: SimdLevel, function: ValueFunction, bias: Option<&[f32]>, x: &mut [f32]) {
    level.vectorize(MapLoop { function, bias, x });
}

impl Context<'_> {
    /// Computes `x = f(x + bias)` for all rows of `n_cols`; the bias is a row.
    pub(crate) fn map_rows(
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
            x.par_chunks_mut(ROWS_PER_TASK * n_cols).run(&|rows| {
                self.clock.time(WorkKind::Activation, || {
                    rows.chunks_mut(n_cols).for_each(|row| map(level, function, bias, row));
                });
            });
        });
    }

    /// Calls `task` for each pair of a row of `out`, `n_out` wide, and a row of `x`, `n_x` wide.
    pub(crate) fn each_row(
        &self,
        out: &mut [f32],
        n_out: usize,
        x: &[f32],
        n_x: usize,
        task: impl Fn(&mut [f32], &[f32]) + Sync,
    ) {
        self.workers.install(|| {
            let rows = out.par_chunks_mut(ROWS_PER_TASK * n_out).zip(x.par_chunks(ROWS_PER_TASK * n_x));
            rows.run(&|(out, x)| {
                self.clock.time(WorkKind::Activation, || {
                    out.chunks_mut(n_out).zip(x.chunks(n_x)).for_each(|(out, x)| task(out, x));
                });
            });
        });
    }

    pub(crate) fn scale_rows(&self, x: &mut [f32], factor: f32) {
        let level = self.weights.level;
        self.workers.install(|| {
            x.par_chunks_mut(1 << 14).run(&|x| math::scale_and_cap(level, x, factor, None));
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
