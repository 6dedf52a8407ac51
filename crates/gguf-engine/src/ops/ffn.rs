//! Feed-forward network of a layer: one variant per operation.

mod gradient;

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::ops::channel_mix::ChannelMix;
use crate::ops::dense::{Dense, DenseNames, FfnInputs};
use crate::ops::dense_and_moe::DenseAndMoe;
use crate::ops::mixer::BranchEnd;
use crate::ops::moe::{Moe, RouterSource};
use crate::ops::switched_dense::SwitchedDense;
use crate::resolve::resolver::Resolver;

/// Feed-forward network of a layer.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one value per layer")]
pub enum Ffn {
    /// No feed-forward network.
    None,
    /// Dense network.
    Dense(Dense),
    /// Dense network with adapters (LoRA) that tokens switch on.
    Switched(Box<SwitchedDense>),
    /// Routed experts.
    Moe(Box<Moe>),
    /// Channel mix of RWKV.
    ChannelMix(Box<ChannelMix>),
    /// Dense network in parallel with routed experts.
    Both(Box<DenseAndMoe>),
}

impl Ffn {
    /// Returns the routed experts, if there are any.
    pub fn moe(&self) -> Option<&Moe> {
        match self {
            Self::Moe(moe) => Some(moe),
            Self::Both(both) => Some(&both.moe),
            Self::None | Self::Dense(_) | Self::Switched(_) | Self::ChannelMix(_) => None,
        }
    }

    /// Returns the last matrix, if its product is the whole output. Experts are weighted by token, and the other
    /// variants are gated or summed first.
    pub(crate) fn end(&self) -> Option<BranchEnd<'_>> {
        match self {
            Self::Dense(dense) => BranchEnd::of(&dense.down, 1.0),
            _ => None,
        }
    }

    /// Returns the number of floats that a sequence keeps.
    pub(crate) fn remembered(&self) -> usize {
        match self {
            Self::ChannelMix(mix) => mix.key.n_cols,
            Self::None | Self::Dense(_) | Self::Switched(_) | Self::Moe(_) | Self::Both(_) => 0,
        }
    }

    /// Returns the number of values between up and down projections, of all experts that a token uses.
    pub(crate) fn width(&self) -> usize {
        let of_moe = |moe: &Moe| {
            let routed = moe.experts.first().map_or(0, |expert| expert.up.n_rows);
            let shared = moe.shared.as_ref().map_or(0, |shared| shared.up.n_rows);
            routed.saturating_mul(moe.n_used).max(shared)
        };
        match self {
            Self::None => 0,
            Self::Dense(dense) => dense.up.n_rows,
            Self::Switched(switched) => switched.dense.up.n_rows,
            Self::Moe(moe) => of_moe(moe),
            Self::ChannelMix(mix) => mix.key.n_rows,
            Self::Both(both) => both.dense.up.n_rows.max(of_moe(&both.moe)),
        }
    }

    /// Returns true if it reads the residual stream before the layer.
    pub(crate) fn needs_entry(&self) -> bool {
        let reads_entry = self.moe().is_some_and(|moe| moe.router_source == RouterSource::Entry);
        reads_entry || matches!(self, Self::Both(both) if both.moe_from_entry)
    }

    /// Returns true if experts are chosen by token id.
    pub(crate) fn needs_tokens(&self) -> bool {
        matches!(self, Self::Moe(moe) if moe.by_token.is_some())
    }

    /// Returns true if a token's result depends on other tokens.
    pub(crate) fn looks_back(&self) -> bool {
        matches!(self, Self::ChannelMix(_))
    }

    /// Runs the feed-forward network into `out`, `[n_tokens, n_embd]`.
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        batch: &ChunkBatch,
        inputs: FfnInputs<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let n_tokens = batch.n_wanted();
        match self {
            Ffn::None => {
                out.fill(0.0);
                Ok(())
            }
            Ffn::Dense(dense) => dense.run(cx, inputs.input, n_tokens, out),
            Ffn::Switched(switched) => switched.run(cx, batch, inputs.input, out),
            Ffn::ChannelMix(mix) => mix.run(cx, batch, inputs.input, out),
            Ffn::Moe(moe) => moe.run(cx, inputs, batch, out),
            Ffn::Both(both) => both.run(cx, inputs, batch, out),
        }
    }

    /// Resolves the feed-forward network of a layer from the tensors that it has.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Ffn> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        if let Some(mix) = ChannelMix::resolve(b, layer)? {
            return Ok(Ffn::ChannelMix(Box::new(mix)));
        }
        if b.tensors.has(&at("ffn_gate_inp.weight")) {
            if b.tensors.has(&at("ffn_up.weight")) {
                return DenseAndMoe::resolve(b, layer).map(|both| Ffn::Both(Box::new(both)));
            }
            return Moe::resolve(b, layer).map(|moe| Ffn::Moe(Box::new(moe)));
        }
        let width = b.keys.layer_count("feed_forward_length", layer)?.filter(|&n| n > 0);
        if width.is_none() && !b.tensors.has(&at("ffn_up.weight")) {
            return Ok(Ffn::None);
        }
        let names = DenseNames { gate: at("ffn_gate"), up: at("ffn_up"), down: at("ffn_down"), width };
        let dense = Dense::resolve(b, layer, &names)?;
        Ok(match SwitchedDense::resolve(b, layer, &dense)? {
            Some(switched) => Ffn::Switched(Box::new(switched)),
            None => Ffn::Dense(dense),
        })
    }
}
