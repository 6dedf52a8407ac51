//! Builds the mixers and the feed-forward of RWKV.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{ChannelMix, LowRank, Matrix, Norm, NormFormula, Rwkv6, Rwkv7, Vector};

/// Under the root of the norm of a head's output, of which no key tells.
const HEAD_NORM_EPS: f32 = 64e-5;

/// Heads of a mixer, and their width.
struct Heads {
    n: usize,
    dim: usize,
}

impl Builder<'_> {
    fn wkv_heads(&self) -> Result<Heads, EngineError> {
        let dim = self.divisor("wkv.head_size", self.n_embd)?;
        Ok(Heads { n: self.n_embd / dim, dim })
    }

    /// Two matrices of which the second has the stream's width.
    fn low_rank(&mut self, first: &str, second: &str, rank: usize) -> Result<LowRank, EngineError> {
        let n_embd = self.n_embd;
        let first = self.tensors.need_matrix(first, rank, n_embd)?;
        let second = self.tensors.need_matrix(second, n_embd, rank)?;
        Ok(LowRank { first, second: Some(second) })
    }

    /// The shares of `n` uses, in one tensor.
    fn lerps(&mut self, name: &str, n: usize) -> Result<Vec<Vector>, EngineError> {
        let n_embd = self.n_embd;
        let all = self.need_vector(name, n.saturating_mul(n_embd))?;
        Ok((0..n).map(|at| Vector { tensor: all.tensor, first: at * n_embd, len: n_embd }).collect())
    }

    fn wkv_norm(&mut self, layer: usize) -> Result<Option<Norm>, EngineError> {
        let name = format!("blk.{layer}.time_mix_ln");
        self.tensors.norm(&name, self.n_embd, NormFormula::Layer, HEAD_NORM_EPS)
    }

    fn square(&mut self, name: &str) -> Result<Matrix, EngineError> {
        self.tensors.need_matrix(name, self.n_embd, self.n_embd)
    }

    pub(super) fn rwkv6(&mut self, layer: usize) -> Result<Rwkv6, EngineError> {
        let at = |name: &str| format!("blk.{layer}.time_mix_{name}");
        let n_embd = self.n_embd;
        let Heads { n: n_heads, dim: head_dim } = self.wkv_heads()?;
        let kv_key = "attention.head_count_kv";
        let n_kv_heads = match self.keys.layer_count(kv_key, layer)?.filter(|&n| n > 0) {
            Some(n) if !n_heads.is_multiple_of(n) => {
                return Err(self.keys.unknown(kv_key, "a divisor of the number of heads", &n.to_string()));
            }
            found => found.unwrap_or(n_heads),
        };
        let rank = self.keys.need_count("time_mix_extra_dim")?;
        let decay_rank = self.keys.need_count("time_decay_extra_dim")?;
        let shares = self.lerps(&at("lerp_fused.weight"), 5)?;
        let mix_in = self.cut(&at("w1"), [rank; 5], n_embd)?;
        let mix_out = self.tensors.experts(&at("w2"), 5, n_embd, rank)?;
        let five = || EngineError::MissingTensor { tensor: at("w2.weight") };
        let kv_width = n_kv_heads * head_dim;
        Ok(Rwkv6 {
            lerp_x: self.need_vector(&at("lerp_x.weight"), n_embd)?,
            lerp: shares.try_into().map_err(|_| five())?,
            mix_in,
            mix_out: mix_out.try_into().map_err(|_| five())?,
            r: self.square(&at("receptance"))?,
            k: self.tensors.need_matrix(&at("key"), kv_width, n_embd)?,
            v: self.tensors.need_matrix(&at("value"), kv_width, n_embd)?,
            g: self.square(&at("gate"))?,
            decay: self.low_rank(&at("decay_w1"), &at("decay_w2"), decay_rank)?,
            decay_bias: self.need_vector(&at("decay.weight"), n_embd)?,
            first: self.tensors.vector(&at("first.weight"), n_embd)?,
            norm: self.wkv_norm(layer)?,
            out: self.square(&at("output"))?,
            n_heads,
            n_kv_heads,
            head_dim,
        })
    }

    pub(super) fn rwkv7(&mut self, layer: usize) -> Result<Rwkv7, EngineError> {
        let at = |name: &str| format!("blk.{layer}.time_mix_{name}");
        let n_embd = self.n_embd;
        let Heads { n: n_heads, dim: head_dim } = self.wkv_heads()?;
        let has_gate = self.tensors.has(&at("g1.weight"));
        let lerp = self.lerps(&at("lerp_fused.weight"), if has_gate { 6 } else { 5 })?;
        let rank =
            |builder: &Self, name: &str| builder.keys.need_count(&format!("attention.{name}_lora_rank"));
        let part = |builder: &mut Self, name: &str, key: &str| {
            let rank = rank(builder, key)?;
            let low_rank = builder.low_rank(&at(&format!("{name}1")), &at(&format!("{name}2")), rank)?;
            Ok::<_, EngineError>((low_rank, builder.need_vector(&at(&format!("{name}0.weight")), n_embd)?))
        };
        let v_mix = if layer == 0 {
            // The first layer's values are what the others are mixed with; files have the tensors all the same.
            for name in ["v0.weight", "v1.weight", "v2.weight"] {
                let _ = self.tensors.claim(&at(name));
            }
            None
        } else {
            Some(part(self, "v", "value_residual_mix")?)
        };
        let g = if has_gate {
            let rank = rank(self, "gate")?;
            Some(self.low_rank(&at("g1"), &at("g2"), rank)?)
        } else {
            None
        };
        Ok(Rwkv7 {
            lerp,
            r: self.square(&at("receptance"))?,
            k: self.square(&at("key"))?,
            v: self.square(&at("value"))?,
            w: part(self, "w", "decay")?,
            v_mix,
            a: part(self, "a", "iclr")?,
            g,
            k_k: self.need_vector(&at("k_k.weight"), n_embd)?,
            k_a: self.need_vector(&at("k_a.weight"), n_embd)?,
            r_k: self.need_vector(&at("r_k.weight"), n_embd)?,
            norm: self.wkv_norm(layer)?,
            out: self.square(&at("output"))?,
            n_heads,
            head_dim,
        })
    }

    /// The feed-forward of RWKV, if a layer has it.
    pub(super) fn channel_mix(&mut self, layer: usize) -> Result<Option<ChannelMix>, EngineError> {
        let at = |name: &str| format!("blk.{layer}.channel_mix_{name}");
        if !self.tensors.has(&at("key.weight")) {
            return Ok(None);
        }
        let n_embd = self.n_embd;
        let width = self.keys.need_count("feed_forward_length")?;
        let receptance = match self.tensors.vector(&at("lerp_r.weight"), n_embd)? {
            Some(lerp) => Some((lerp, self.square(&at("receptance"))?)),
            None => None,
        };
        Ok(Some(ChannelMix {
            lerp_k: self.need_vector(&at("lerp_k.weight"), n_embd)?,
            key: self.tensors.need_matrix(&at("key"), width, n_embd)?,
            value: self.tensors.need_matrix(&at("value"), n_embd, width)?,
            receptance,
        }))
    }

    /// Factor of the stream behind a layer: some models halve it every few layers.
    pub(super) fn rescale(&self, layer: usize) -> Result<f32, EngineError> {
        let every = self.keys.count("rescale_every_n_layers")?.filter(|&n| n > 0);
        Ok(if every.is_some_and(|n| (layer + 1).is_multiple_of(n)) { 0.5 } else { 1.0 })
    }
}
