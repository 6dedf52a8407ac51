//! Output gate of attention: `context *= f(gate x)`, with one gate per value or per head.

use rayon::prelude::*;

use crate::Result;
use crate::exec::activation::GateFunction;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::product::Product;
use crate::exec::timings::WorkKind;
use crate::exec::weights::Matrix;
use crate::exec::workers::{ROWS_PER_TASK, Tasks};
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::AttnGate;

/// Gate of the heads' outputs, before they are projected.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputGate {
    /// Projection of the layer's normed input; one row per value or per head.
    pub matrix: Matrix,
    /// Function of the product.
    pub function: GateFunction,
}

impl OutputGate {
    /// Computes `context *= f(gate x)`, value by value or head by head. `x` is the layer's normed input, with the same
    /// rows as `context`, `[n_tokens, n_cols]`.
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        x: &[f32],
        n_tokens: usize,
        context: &mut [f32],
        n_cols: usize,
    ) -> Result<()> {
        let (level, width) = (cx.weights.level, self.matrix.n_rows);
        let mut gates = cx.take(n_tokens * width);
        cx.products(x, n_tokens, vec![Product::plain(&self.matrix, &mut gates)])?;
        cx.workers.install(|| {
            let tasks = context.par_chunks_mut(ROWS_PER_TASK * n_cols);
            tasks.zip(gates.par_chunks_mut(ROWS_PER_TASK * width)).run(&|(context, gates)| {
                cx.clock.time(WorkKind::Activation, || {
                    math::gate(level, self.function, gates);
                    scale_parts(context, gates, n_cols / width);
                });
            });
        });
        cx.give([gates]);
        Ok(())
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

impl OutputGate {
    /// Resolves the gate of the heads' outputs, with one row per value or per head.
    pub(crate) fn resolve(
        b: &mut Resolver<'_>,
        layer: usize,
        n_heads: usize,
        n_cols: usize,
    ) -> Result<Option<OutputGate>> {
        let function = match b.features.attention.gate {
            AttnGate::None => return Ok(None),
            AttnGate::Sigmoid => GateFunction::Sigmoid,
            AttnGate::Softplus => GateFunction::Softplus,
        };
        let name = format!("blk.{layer}.attn_gate");
        let n_rows = b.tensors.shape(&format!("{name}.weight")).map(gguf_core::Shape::n_rows);
        let per_head = n_rows == Some(n_heads as u64);
        let matrix = b.tensors.matrix(&name, if per_head { n_heads } else { n_cols }, b.n_embd)?;
        Ok(matrix.map(|matrix| OutputGate { matrix, function }))
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
