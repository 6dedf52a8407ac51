//! Dense feed-forward network with adapters (LoRA) that tokens switch on: `down(act(gate x) * up x)`, each product with
//! the addition `B_s A_s x`.

use crate::Result;
use crate::exec::activation::Activation;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::product::Product;
use crate::ops::dense::Dense;
use crate::ops::switched::{AdapterSlots, Switched, add_switched, additions, batch_slots};
use crate::resolve::resolver::Resolver;

/// Dense feed-forward network with the adapters of its products.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchedDense {
    /// Feed-forward network.
    pub dense: Dense,
    /// Adapters of the gate, if there is one.
    pub gate: Option<Switched>,
    /// Adapters of the up projection.
    pub up: Switched,
    /// Adapters of the down projection.
    pub down: Switched,
}

impl SwitchedDense {
    /// Runs the feed-forward network on the wanted rows `x` into `out`.
    pub(crate) fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (n_tokens, width, level) = (batch.n_wanted(), self.dense.up.n_rows, cx.weights.level);
        let slots = batch.select(batch_slots(cx, batch), 1);
        let mut inner = cx.take(n_tokens * width);
        cx.products(x, n_tokens, vec![Product::plain(&self.dense.up, &mut inner)])?;
        add_switched(cx, &self.up, &slots, x, &mut inner)?;
        match &self.dense.act {
            Activation::Plain(act) => math::activate(level, *act, &mut inner),
            Activation::Gated { act, gate } => {
                let mut gates = cx.take(n_tokens * width);
                cx.products(x, n_tokens, vec![Product::plain(gate, &mut gates)])?;
                if let Some(switched) = &self.gate {
                    add_switched(cx, switched, &slots, x, &mut gates)?;
                }
                cx.each_row(&mut inner, width, &gates, width, |inner, gate| {
                    math::gated(level, *act, gate, inner);
                });
                cx.give([gates]);
            }
        }
        cx.norm_in_place(self.dense.sub_norm.as_ref(), &mut inner, width)?;
        cx.products(&inner, n_tokens, vec![Product::plain(&self.dense.down, out)])?;
        add_switched(cx, &self.down, &slots, &inner, out)?;
        cx.give([inner]);
        Ok(())
    }

    /// Resolves the adapters of a feed-forward network, if the model has them.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize, dense: &Dense) -> Result<Option<Self>> {
        let Some(slots) = AdapterSlots::resolve(b)? else { return Ok(None) };
        if dense.sparsity.is_some() {
            let expected = "none with adapters";
            return Err(b.keys.unknown("activation_sparsity_scale", expected, "one"));
        }
        let at = |name: &str| format!("blk.{layer}.{name}");
        let gate = match &dense.act {
            Activation::Gated { gate, .. } => Some(additions(b, &at("ffn_gate"), slots, gate)?),
            Activation::Plain(_) => None,
        };
        let up = additions(b, &at("ffn_up"), slots, &dense.up)?;
        let down = additions(b, &at("ffn_down"), slots, &dense.down)?;
        Ok(Some(SwitchedDense { dense: dense.clone(), gate, up, down }))
    }
}
