//! Gates on the heads' outputs.

use rayon::prelude::*;

use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::plan::OutputGate;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;

/// Rows that one task works on.
const ROWS_PER_TASK: usize = 64;

impl Runner<'_> {
    /// `context *= f(gate x)`, value by value or head by head. `x` is the layer's normed input, of the same rows as
    /// `context`, which is `[n_tokens, n_cols]`.
    pub(crate) fn gate_heads(
        &self,
        gate: &OutputGate,
        x: &[f32],
        n_tokens: usize,
        context: &mut [f32],
        n_cols: usize,
    ) -> Result<(), EngineError> {
        let (level, width) = (self.weights.level, gate.matrix.n_rows);
        let mut gates = self.take(n_tokens * width);
        self.products(x, n_tokens, vec![Product::plain(&gate.matrix, &mut gates)])?;
        self.workers.install(|| {
            let tasks = context.par_chunks_mut(ROWS_PER_TASK * n_cols);
            tasks.zip(gates.par_chunks_mut(ROWS_PER_TASK * width)).for_each(|(context, gates)| {
                self.clock.time(WorkKind::Activation, || {
                    math::gate(level, gate.function, gates);
                    scale_parts(context, gates, n_cols / width);
                });
            });
        });
        self.give([gates]);
        Ok(())
    }

    /// `x *= factor`.
    pub(crate) fn scale_rows(&self, x: &mut [f32], factor: f32) {
        let level = self.weights.level;
        self.workers.install(|| {
            x.par_chunks_mut(1 << 14).for_each(|x| math::scale_and_cap(level, x, factor, None));
        });
    }
}

/// Multiplies each part of `width` values by its factor.
fn scale_parts(x: &mut [f32], factors: &[f32], width: usize) {
    for (part, factor) in x.chunks_mut(width.max(1)).zip(factors) {
        for x in part.iter_mut() {
            *x *= factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_goes_to_its_head() {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        scale_parts(&mut x, &[2.0, 10.0], 2);
        assert_eq!(x, [2.0, 4.0, 30.0, 40.0]);
        scale_parts(&mut x, &[1.0, 0.5, 1.0, 0.25], 1);
        assert_eq!(x, [2.0, 2.0, 30.0, 10.0]);
    }
}
