//! Gradient of a dense feed-forward network.

use rayon::prelude::*;

use crate::Result;
use crate::exec::activation::Activation;
use crate::exec::context::Context;
use crate::exec::gradient::Gradients;
use crate::exec::math;
use crate::exec::product::Product;
use crate::exec::workers::Tasks;
use crate::ops::dense::Dense;

const VALUES: usize = 1 << 14;

impl Dense {
    /// Returns a part that has no gradient, if there is one.
    pub(crate) fn without_gradient(&self) -> Option<&'static str> {
        let sub_norm = self.sub_norm.as_ref().map(|_| "a norm inside the feed-forward");
        sub_norm.or(self.sparsity.map(|_| "a sparse gate"))
    }

    /// Adds the gradient of the input `x` to `dx`, and hands out those of the weights; `dy` is that of the output.
    pub(crate) fn gradient(
        &self,
        cx: &Context<'_>,
        to: &mut dyn Gradients,
        x: &[f32],
        dy: &[f32],
        dx: &mut [f32],
    ) -> Result<()> {
        let (n_tokens, level) = (dy.len() / self.down.n_rows.max(1), cx.weights.level);
        let len = n_tokens * self.up.n_rows;
        let (mut up, mut inner, mut d_inner) = (cx.take(len), cx.take(len), cx.zeros(len));
        match &self.act {
            Activation::Plain(act) => {
                cx.products(x, n_tokens, vec![Product::plain(&self.up, &mut up)])?;
                inner.copy_from_slice(&up);
                cx.workers.install(|| {
                    inner.par_chunks_mut(VALUES).run(&|values| math::activate(level, *act, values));
                });
                cx.product_gradient(to, &self.down, &inner, dy, &mut d_inner)?;
                cx.workers.install(|| {
                    let parts = up.par_chunks(VALUES).zip(d_inner.par_chunks_mut(VALUES));
                    parts.run(&|(up, d)| act.gradient(up, d));
                });
                cx.product_gradient(to, &self.up, x, &d_inner, dx)?;
            }
            Activation::Gated { act, gate } => {
                let mut gates = cx.take(len);
                let products = vec![Product::plain(&self.up, &mut up), Product::plain(gate, &mut gates)];
                cx.products(x, n_tokens, products)?;
                inner.copy_from_slice(&up);
                cx.workers.install(|| {
                    let parts = inner.par_chunks_mut(VALUES).zip(gates.par_chunks(VALUES));
                    parts.run(&|(inner, gates)| math::gated(level, *act, gates, inner));
                });
                cx.product_gradient(to, &self.down, &inner, dy, &mut d_inner)?;
                cx.workers.install(|| {
                    let pairs = gates.par_chunks_mut(VALUES).zip(up.par_chunks_mut(VALUES));
                    pairs
                        .zip(d_inner.par_chunks(VALUES))
                        .run(&|((gates, ups), d)| act.gradient(gates, ups, d));
                });
                cx.product_gradient(to, gate, x, &gates, dx)?;
                cx.product_gradient(to, &self.up, x, &up, dx)?;
                cx.give([gates]);
            }
        }
        cx.give([up, inner, d_inner]);
        Ok(())
    }
}
