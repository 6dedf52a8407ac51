//! Builds the plan of one layer: its two branches, their norms, how they are wired.

use crate::arch::graph::EmbedNorm;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::build::features::WiringRule;
use crate::engine::plan::{Ffn, LayerPlan, Mixer, ModelKind, Norm, Wiring};

/// What the norm behind the feed-forward network is called where the card's name is not in the file.
const POST_FFN: &str = "post_ffw_norm";

impl Builder<'_> {
    pub(super) fn layer(&mut self, layer: usize) -> Result<LayerPlan, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let features = self.features;
        let wiring = self.wiring(layer)?;
        let mixer = self.mixer(layer)?;
        let ffn = self.ffn(layer)?;
        let cross = self.cross_attention(layer)?;
        let two_norms = self.tensors.has(&at("attn_norm_2.weight"));
        let connections = self.connections(layer)?;
        // What is read of several streams may be normed already.
        let reads_normed = connections.as_ref().is_some_and(|both| both.mixer.norms());
        let own_norms = !reads_normed && !matches!(self.built.wiring, WiringRule::Post | WiringRule::PostLn);
        // A layer of one branch has one norm, whatever the branch is.
        let (has_mixer, is_single) = (!matches!(mixer, Mixer::None), self.is_single());
        let pre_ffn_name = if is_single { "attn_norm" } else { features.pre_ffn.as_str() };
        let pre_mixer = match (&mixer, own_norms) {
            (Mixer::None, _) if is_single => None,
            (Mixer::None, _) => self.norm(&at("attn_norm"))?,
            (_, false) => None,
            // Falcon's two norms: the mixer reads the second, the feed-forward the first.
            _ if wiring == Wiring::Parallel && two_norms => Some(self.need_norm(&at("attn_norm_2"))?),
            // The embedding's norm is the one in front of the first layer.
            _ if layer == 0 && self.built.kind == ModelKind::Encoder => self.first_norm()?,
            _ => Some(self.need_norm(&at("attn_norm"))?),
        };
        let pre_ffn = match (&ffn, own_norms) {
            _ if is_single && has_mixer => None,
            (Ffn::None, _) => self.norm(&at(pre_ffn_name))?,
            (_, false) => None,
            _ if wiring == Wiring::Parallel && two_norms => Some(self.need_norm(&at("attn_norm"))?),
            _ if wiring == Wiring::Parallel => self.norm(&at(pre_ffn_name))?,
            _ => Some(self.need_norm(&at(pre_ffn_name))?),
        };
        let post_mixer = self.post_norm(layer, &features.post_attn)?;
        let post_input = match wiring {
            Wiring::PostLn => self.norm(&at("attn_norm_2"))?,
            Wiring::Serial | Wiring::Parallel | Wiring::Normed => None,
        };
        let post_ffn = match self.post_norm(layer, &features.post_ffn)? {
            // Grok 1 and 2 name it differently.
            None => self.post_norm(layer, POST_FFN)?,
            named => named,
        };
        let extras = self.layer_extras(layer)?;
        let mix = self.stream_mix(layer, wiring)?;
        let tensors = self.tensors.claimed_under(&at(""));
        let residual_scale = self.residual_scale;
        Ok(LayerPlan {
            wiring,
            mix,
            pre_mixer,
            mixer,
            post_mixer,
            post_input,
            cross,
            pre_ffn,
            ffn,
            post_ffn,
            residual_scale,
            rescale: self.rescale(layer)?,
            extras,
            connections,
            tensors,
        })
    }

    /// The norm before the first mixer, which models that norm the embedding may do without.
    fn first_norm(&mut self) -> Result<Option<Norm>, EngineError> {
        match self.features.embed_norm {
            EmbedNorm::None => self.need_norm("blk.0.attn_norm").map(Some),
            EmbedNorm::RmsFree | EmbedNorm::TokenEmbdNorm => self.norm("blk.0.attn_norm"),
        }
    }

    fn wiring(&self, layer: usize) -> Result<Wiring, EngineError> {
        let parallel = match self.built.wiring {
            WiringRule::Normed => return Ok(Wiring::Normed),
            WiringRule::PostLn => return Ok(Wiring::PostLn),
            WiringRule::Serial | WiringRule::Post | WiringRule::PostIfSwinNorm => false,
            WiringRule::Parallel => true,
            WiringRule::ParallelKey => self.keys.flag("use_parallel_residual")?.unwrap_or(true),
            WiringRule::ParallelIfNoFfnNorm => {
                !self.tensors.has(&format!("blk.{layer}.{}.weight", self.features.pre_ffn))
            }
        };
        Ok(if parallel { Wiring::Parallel } else { Wiring::Serial })
    }

    /// The norm after a branch, unless the tensor of that name is the norm before one.
    fn post_norm(&mut self, layer: usize, name: &str) -> Result<Option<Norm>, EngineError> {
        if self.built.wiring == WiringRule::PostLn {
            return self.need_norm(&format!("blk.{layer}.{name}")).map(Some);
        }
        if self.built.wiring != WiringRule::Post && (name == self.features.pre_ffn || name == "attn_norm") {
            return Ok(None);
        }
        let mut norm = self.norm(&format!("blk.{layer}.{name}"))?;
        if let (Some(norm), Some(eps)) = (&mut norm, self.features.post_norm_eps) {
            norm.eps = eps as f32;
        }
        Ok(norm)
    }
}
