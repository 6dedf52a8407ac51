//! Builds adapters that tokens turn on.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{
    Activation, Dense, Matrix, Switch, SwitchToken, Switched, SwitchedAttention, SwitchedDense,
};

const COUNT: &str = "adapters.count";
const ACTIVATE: &str = "adapters.token_ids_activate";
const SUBSTITUTE: &str = "adapters.token_ids_substitute";

impl Builder<'_> {
    /// The tokens that turn adapters on, for models that have such.
    pub(super) fn switch(&self, n_vocab: usize) -> Result<Option<Switch>, EngineError> {
        let Some(n) = self.keys.count(COUNT)?.filter(|&n| n > 0) else { return Ok(None) };
        let ids = |name| {
            let ids = self.keys.ids(name)?.ok_or_else(|| self.keys.missing(name))?;
            if ids.len() != n {
                return Err(self.keys.unknown(name, "a token for each adapter", &ids.len().to_string()));
            }
            match ids.iter().find(|&&id| id as usize >= n_vocab) {
                Some(id) => Err(self.keys.unknown(name, "tokens of the vocabulary", &id.to_string())),
                None => Ok(ids),
            }
        };
        let pairs = ids(ACTIVATE)?.into_iter().zip(ids(SUBSTITUTE)?);
        let gain = self.keys.number("adapters.router_gain")?;
        let gain = gain.ok_or_else(|| self.keys.missing("adapters.router_gain"))? as f32;
        let tokens = pairs.map(|(token, substitute)| SwitchToken { token, substitute }).collect();
        Ok(Some(Switch { tokens, gain }))
    }

    /// Slots of adapters and their rank; slot 0 is no adapter.
    fn slots(&self) -> Result<Option<(usize, usize)>, EngineError> {
        let Some(n) = self.keys.count(COUNT)?.filter(|&n| n > 0) else { return Ok(None) };
        Ok(Some((n.saturating_add(1), self.keys.need_count("adapters.lora_rank")?)))
    }

    /// The additions to the product with `base`.
    fn additions(
        &mut self,
        name: &str,
        (n_slots, rank): (usize, usize),
        base: &Matrix,
    ) -> Result<Switched, EngineError> {
        Ok(Switched {
            down: self.tensors.stack(&format!("{name}.lora_a"), n_slots, rank, base.n_cols)?,
            up: self.tensors.stack(&format!("{name}.lora_b"), n_slots, base.n_rows, rank)?,
        })
    }

    /// The additions to an attention.
    pub(super) fn switched_attention(
        &mut self,
        layer: usize,
        [q, k, v, out]: [&Matrix; 4],
    ) -> Result<Option<Box<SwitchedAttention>>, EngineError> {
        let Some(slots) = self.slots()? else { return Ok(None) };
        let at = |name: &str| format!("blk.{layer}.{name}");
        Ok(Some(Box::new(SwitchedAttention {
            q: self.additions(&at("attn_q"), slots, q)?,
            k: self.additions(&at("attn_k"), slots, k)?,
            v: self.additions(&at("attn_v"), slots, v)?,
            out: self.additions(&at("attn_output"), slots, out)?,
        })))
    }

    /// The additions to a feed-forward.
    pub(super) fn switched_dense(
        &mut self,
        layer: usize,
        dense: &Dense,
    ) -> Result<Option<Box<SwitchedDense>>, EngineError> {
        let Some(slots) = self.slots()? else { return Ok(None) };
        if dense.sparsity.is_some() {
            let expected = "none beside adapters";
            return Err(self.keys.unknown("activation_sparsity_scale", expected, "one"));
        }
        let at = |name: &str| format!("blk.{layer}.{name}");
        let gate = match &dense.act {
            Activation::Gated { gate, .. } => Some(self.additions(&at("ffn_gate"), slots, gate)?),
            Activation::Plain(_) => None,
        };
        Ok(Some(Box::new(SwitchedDense {
            gate,
            up: self.additions(&at("ffn_up"), slots, &dense.up)?,
            down: self.additions(&at("ffn_down"), slots, &dense.down)?,
        })))
    }
}
