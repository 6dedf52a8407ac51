//! Chooses the mixer of a layer, and what builders of mixers with a state share.

use crate::arch::graph::{MixerName, MixerRule, ResidualRule};
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{Conv, Matrix, Mixer, Norm, Twin, Vector};

impl Builder<'_> {
    /// The mixer of a layer.
    pub(super) fn mixer(&mut self, layer: usize) -> Result<Mixer, EngineError> {
        if self.is_single() && self.has_ffn(layer) {
            return Ok(Mixer::None);
        }
        let name = self.mixer_name(layer)?;
        let mixer = self.mixer_of(layer, name)?;
        if self.features.residual != ResidualRule::Twin || name == MixerName::Attention {
            return Ok(mixer);
        }
        let first = self.mixer_of(layer, MixerName::Attention)?;
        Ok(Mixer::Twin(Box::new(Twin { first, second: mixer, n_embd: self.n_embd })))
    }

    /// True if every layer has one branch only.
    pub(super) fn is_single(&self) -> bool {
        self.features.residual == ResidualRule::Single
    }

    /// True if a layer's feed-forward is there.
    fn has_ffn(&self, layer: usize) -> bool {
        ["ffn_up", "ffn_gate_inp"].iter().any(|name| self.tensors.has(&format!("blk.{layer}.{name}.weight")))
    }

    fn mixer_name(&self, layer: usize) -> Result<MixerName, EngineError> {
        const RECURRENT: &str = "attention.recurrent_layers";
        Ok(match self.features.mixer {
            MixerRule::All(name) => name,
            MixerRule::Every { every, full, rest } => {
                let recurrent = match self.keys.layer_flag(RECURRENT, layer)? {
                    Some(recurrent) => recurrent,
                    None => {
                        let every = self.keys.count("full_attention_interval")?.unwrap_or(every as usize);
                        every == 0 || !(layer + 1).is_multiple_of(every)
                    }
                };
                if recurrent { rest } else { full }
            }
            MixerRule::By { full, rest, .. } => {
                let key = "attention.head_count_kv";
                let n = self.keys.layer_count(key, layer)?.ok_or_else(|| self.keys.missing(key))?;
                if n == 0 { rest } else { full }
            }
        })
    }

    fn mixer_of(&mut self, layer: usize, name: MixerName) -> Result<Mixer, EngineError> {
        match name {
            MixerName::Attention => self.attention_mixer(layer),
            MixerName::Mla => self.mla(layer).map(|mixer| Mixer::Mla(Box::new(mixer))),
            MixerName::Mamba => self.mamba(layer).map(|mixer| Mixer::Mamba(Box::new(mixer))),
            MixerName::Mamba2 => self.mamba2(layer).map(|mixer| Mixer::Mamba2(Box::new(mixer))),
            MixerName::Shortconv => self.shortconv(layer).map(|mixer| Mixer::ShortConv(Box::new(mixer))),
            MixerName::Gdn => self.delta_net(layer).map(|mixer| Mixer::DeltaNet(Box::new(mixer))),
            MixerName::Compressed => self.compressed(layer).map(|mixer| Mixer::Compressed(Box::new(mixer))),
            MixerName::Kda => self.kda(layer).map(|mixer| Mixer::Kda(Box::new(mixer))),
            MixerName::Lightning => self.lightning(layer).map(|mixer| Mixer::Lightning(Box::new(mixer))),
            // Presence tells the two apart.
            MixerName::Rwkv6 | MixerName::Rwkv6Qwen2 => {
                self.rwkv6(layer).map(|mixer| Mixer::Rwkv6(Box::new(mixer)))
            }
            MixerName::Rwkv7 => self.rwkv7(layer).map(|mixer| Mixer::Rwkv7(Box::new(mixer))),
            MixerName::Plamo2 => self.plamo2(layer).map(|mixer| Mixer::Plamo2(Box::new(mixer))),
        }
    }

    /// A vector that must be there.
    pub(super) fn need_vector(&mut self, name: &str, len: usize) -> Result<Vector, EngineError> {
        let found = self.tensors.vector(name, len)?;
        found.ok_or_else(|| EngineError::MissingTensor { tensor: name.to_owned() })
    }

    /// A causal convolution of `n_channels`.
    pub(super) fn conv(&mut self, name: &str, n_channels: usize, n_taps: usize) -> Result<Conv, EngineError> {
        let weight = self.need_vector(&format!("{name}.weight"), n_channels.saturating_mul(n_taps))?;
        let bias = self.tensors.vector(&format!("{name}.bias"), n_channels)?;
        Ok(Conv { weight, bias, n_taps })
    }

    /// Some rows of a matrix for each of several uses.
    pub(super) fn cut<const N: usize>(
        &mut self,
        name: &str,
        n_rows: [usize; N],
        n_cols: usize,
    ) -> Result<[Matrix; N], EngineError> {
        let total = n_rows.iter().fold(0usize, |sum, &n| sum.saturating_add(n));
        let all = self.tensors.need_matrix(name, total, n_cols)?;
        let mut first = 0;
        Ok(n_rows.map(|n| {
            let part = all.rows(first, n);
            first += n;
            part
        }))
    }

    /// A norm of rows of `len`, of the kind of the residual stream's.
    pub(super) fn norm_of(&mut self, name: &str, len: usize) -> Result<Option<Norm>, EngineError> {
        self.tensors.norm(name, len, self.formula(), self.eps)
    }

    /// The count of a key, which must divide `whole`.
    pub(super) fn divisor(&self, name: &str, whole: usize) -> Result<usize, EngineError> {
        let n = self.keys.need_count(name)?;
        if whole.is_multiple_of(n) {
            return Ok(n);
        }
        Err(self.keys.unknown(
            name,
            "a divisor of what it divides",
            &format!("{n}, which does not divide {whole}"),
        ))
    }
}
