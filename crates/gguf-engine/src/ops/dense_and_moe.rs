//! Dense feed-forward network in parallel with routed experts: `(P1 dense(x) + P2 moe(x')) scale`.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::weights::Norm;
use crate::ops::dense::{Dense, DenseNames, FfnInputs};
use crate::ops::moe::Moe;
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::{ResidualRule, SharedCombine};

/// Dense feed-forward network in parallel with routed experts.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseAndMoe {
    /// Dense branch.
    pub dense: Dense,
    /// Norm of the dense branch's output.
    pub(crate) dense_post: Option<Norm>,
    /// Routed experts.
    pub moe: Moe,
    /// Norm before the experts, if it differs from the norm before the dense branch.
    pub(crate) moe_pre: Option<Norm>,
    /// True if the experts read the residual stream before the layer, not the stream before the feed-forward.
    pub(crate) moe_from_entry: bool,
    /// Norm of the experts' output.
    pub(crate) moe_post: Option<Norm>,
    /// Factor of the sum.
    pub scale: f32,
}

impl DenseAndMoe {
    /// Computes `(P1 dense(x) + P2 moe(x')) scale`, each branch with its own norms if it has any.
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        inputs: FfnInputs<'_>,
        batch: &ChunkBatch,
        out: &mut [f32],
    ) -> Result<()> {
        let n_tokens = batch.n_wanted();
        let n_embd = self.dense.up.n_cols;
        self.dense.run(cx, inputs.input, n_tokens, out)?;
        cx.norm_in_place(self.dense_post.as_ref(), out, n_embd)?;
        let mut own = cx.take(n_tokens * n_embd);
        let input = match &self.moe_pre {
            Some(norm) => {
                let from = if self.moe_from_entry { inputs.entry } else { inputs.stream };
                cx.norm_rows(&cx.weights.norm(norm)?, from, &mut own, n_embd);
                &own
            }
            None => inputs.input,
        };
        let mut routed = cx.take(n_tokens * n_embd);
        self.moe.run(cx, FfnInputs { input, ..inputs }, batch, &mut routed)?;
        let post = self.moe_post.as_ref().map(|norm| cx.weights.norm(norm)).transpose()?;
        cx.add_rows(out, &mut routed, post.as_ref(), 1.0, n_embd);
        cx.scale_rows(out, self.scale);
        cx.give([own, routed]);
        Ok(())
    }

    /// Resolves the two branches; both read the stream, each through its own norm if it has one.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<DenseAndMoe> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        // The width of the dense branch has no key: the tensor declares it.
        let names = DenseNames { gate: at("ffn_gate"), up: at("ffn_up"), down: at("ffn_down"), width: None };
        let moe_from_entry = b.features.residual == ResidualRule::Arctic;
        let moe_pre = match b.norm(&at("pre_ffw_norm_2"))? {
            None if moe_from_entry => Some(b.need_norm(&at("ffn_norm_exps"))?),
            other => other,
        };
        Ok(DenseAndMoe {
            dense: Dense::resolve(b, layer, &names)?,
            dense_post: b.norm(&at("post_ffw_norm_1"))?,
            moe: Moe::resolve(b, layer)?,
            moe_pre,
            moe_from_entry,
            moe_post: b.norm(&at("post_ffw_norm_2"))?,
            scale: match b.features.moe.shared {
                SharedCombine::Add => 1.0,
                SharedCombine::HalfSum => 0.5,
                SharedCombine::SumOverSqrt2 => std::f32::consts::FRAC_1_SQRT_2,
            },
        })
    }
}
