//! Which graphs can go on token by token, and what their sequences remember.

use crate::engine::EngineError;
use crate::engine::ops::attention::{Scores, kept_floats};
use crate::engine::ops::columns::state_floats;
use crate::engine::ops::mamba::CHANNELS;
use crate::engine::plan::{Conv, Ffn, GraphPlan, LayerPlan, Mask, Mixer, ModelKind};

/// Floats of a convolution's last inputs.
fn conv_floats(conv: &Conv, n_channels: usize) -> usize {
    conv.n_taps.saturating_sub(1).saturating_mul(n_channels)
}

fn heads(a: &Scores<'_>, n_ctx: usize) -> Result<usize, &'static str> {
    match a.mask {
        Mask::Full | Mask::Symmetric(_) => Err("its tokens see those behind them"),
        Mask::Causal | Mask::Window(_) | Mask::Chunked(_) => Ok(kept_floats(a, n_ctx)),
    }
}

impl Mixer {
    /// Floats that a sequence of at most `n_ctx` tokens remembers, or why the mixer cannot go on.
    fn remembered(&self, n_ctx: usize) -> Result<usize, &'static str> {
        Ok(match self {
            Self::None | Self::Linear(_) => 0,
            Self::Attention(a) => heads(&a.scores(), n_ctx)?,
            Self::Mla(a) => heads(&a.scores(), n_ctx)?,
            Self::Twin(twin) => twin.first.remembered(n_ctx)?.saturating_add(twin.second.remembered(n_ctx)?),
            Self::Mamba(m) => {
                let n_parts = m.x.n_rows.div_ceil(CHANNELS);
                conv_floats(&m.conv, m.x.n_rows) + n_parts * CHANNELS * m.n_states
            }
            Self::Mamba2(m) => {
                conv_floats(&m.conv, m.xbc.n_rows) + m.n_heads * state_floats(m.n_states, m.head_dim)
            }
            Self::Plamo2(m) => {
                conv_floats(&m.conv, m.out.n_cols) + m.n_heads * state_floats(m.n_states, m.head_dim)
            }
            Self::ShortConv(m) => conv_floats(&m.conv, m.x.n_rows),
            Self::DeltaNet(m) => conv_floats(&m.conv, m.qkv.n_rows) + m.n_heads * state_floats(m.dk, m.dv),
            Self::Kda(m) => {
                let convs: usize = m.convs.iter().map(|conv| conv_floats(conv, m.q.n_rows)).sum();
                convs + m.n_heads * state_floats(m.head_dim, m.head_dim)
            }
            Self::Lightning(m) => m.n_heads * state_floats(m.head_dim, m.head_dim),
            Self::Rwkv6(m) => m.r.n_cols + m.n_heads * state_floats(m.head_dim, m.head_dim),
            Self::Rwkv7(m) => m.r.n_cols + m.n_heads * state_floats(m.head_dim, m.head_dim),
            Self::Compressed(_) => return Err("its attention looks at compressed rows of earlier tokens"),
        })
    }
}

impl LayerPlan {
    fn remembered(&self, n_ctx: usize) -> Result<usize, &'static str> {
        if self.extras.ngrams.is_some() {
            return Err("it looks up n-grams of its tokens");
        }
        let ffn = match &self.ffn {
            Ffn::ChannelMix(mix) => mix.key.n_cols,
            Ffn::None | Ffn::Dense(_) | Ffn::Moe(_) | Ffn::Both(_) => 0,
        };
        Ok(self.mixer.remembered(n_ctx)?.saturating_add(ffn))
    }
}

impl GraphPlan {
    /// Floats that a sequence of at most `n_ctx` tokens remembers.
    ///
    /// # Errors
    /// [`EngineError::NotContinued`] for models without a next token, models of two stacks, prefixes whose tokens see one
    /// another, attention to compressed rows, and n-grams; chunks longer than the graph is defined for.
    pub(crate) fn remembered(&self, n_ctx: usize) -> Result<usize, EngineError> {
        let refused = match self.kind {
            ModelKind::Encoder => Some("it predicts no next token"),
            ModelKind::Diffusion => Some("it predicts masked tokens, not the next one"),
            ModelKind::Decoder if self.encoder.is_some() => Some("it answers what an encoder reads"),
            ModelKind::Decoder if self.prefix.is_some() => Some("tokens of its prefix see those behind them"),
            ModelKind::Decoder => None,
        };
        if let Some(what) = refused {
            return Err(EngineError::NotContinued { what });
        }
        self.check_length(n_ctx)?;
        let add = |sum: usize, layer: &LayerPlan| Ok(layer.remembered(n_ctx)?.saturating_add(sum));
        self.layers.iter().try_fold(0, add).map_err(|what| EngineError::NotContinued { what })
    }

    /// # Errors
    /// Chunks longer than the graph is defined for.
    pub(crate) fn check_length(&self, tokens: usize) -> Result<(), EngineError> {
        if let Some(positions) = self.positions.as_ref().filter(|p| p.n_rows < tokens) {
            return Err(EngineError::ChunkTooLong { tokens, limit: positions.n_rows });
        }
        if let Some(limit) = self.chunk_limit.filter(|&limit| limit < tokens) {
            return Err(EngineError::ChunkNotDense { tokens, limit });
        }
        Ok(())
    }
}
