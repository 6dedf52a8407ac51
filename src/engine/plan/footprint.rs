//! What the mixers of layers take of memory.

use crate::engine::ops::attention;
use crate::engine::plan::{Attention, Ffn, LayerPlan, Matrix, Mixer, Twin};

/// Memory of a mixer's run.
pub(crate) trait Footprint {
    /// Columns of the widest matrix.
    fn widest(&self) -> usize;

    /// Floats per token that intermediates take at their widest.
    fn floats_per_token(&self) -> usize;

    /// Bytes of a thread's buffers, beside those of products, for chunks of at most `chunk_len` tokens.
    fn thread_bytes(&self, chunk_len: usize) -> usize;
}

impl Mixer {
    /// The mixer's memory; none for no mixer.
    pub(crate) fn footprint(&self) -> Option<&dyn Footprint> {
        match self {
            Self::None => None,
            Self::Linear(matrix) => Some(matrix),
            Self::Attention(mixer) => Some(&**mixer),
            Self::Mla(mixer) => Some(&**mixer),
            Self::Twin(mixer) => Some(&**mixer),
            Self::Mamba(mixer) => Some(&**mixer),
            Self::Mamba2(mixer) => Some(&**mixer),
            Self::Plamo2(mixer) => Some(&**mixer),
            Self::ShortConv(mixer) => Some(&**mixer),
            Self::DeltaNet(mixer) => Some(&**mixer),
            Self::Compressed(mixer) => Some(&**mixer),
            Self::Kda(mixer) => Some(&**mixer),
            Self::Lightning(mixer) => Some(&**mixer),
            Self::Rwkv6(mixer) => Some(&**mixer),
            Self::Rwkv7(mixer) => Some(&**mixer),
        }
    }
}

impl Footprint for Matrix {
    fn widest(&self) -> usize {
        self.n_cols
    }

    fn floats_per_token(&self) -> usize {
        self.n_rows
    }

    fn thread_bytes(&self, _: usize) -> usize {
        0
    }
}

impl Attention {
    /// True if per head a query is followed by the gate of the head's output.
    pub(crate) fn has_gated_queries(&self) -> bool {
        self.q.n_rows == 2 * self.n_heads * self.dk
    }
}

impl Footprint for Attention {
    fn widest(&self) -> usize {
        self.q.n_cols.max(self.out.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        let gated = if self.has_gated_queries() { 3 * self.n_heads * self.dk } else { 0 };
        let gate = self.gate.as_ref().map_or(0, |gate| gate.matrix.n_rows);
        let switched = self.switched.as_ref().map_or(0, |switched| switched.floats_per_token());
        switched + gated + gate + (self.n_heads + self.n_kv_heads) * (self.dk + self.dv)
    }

    fn thread_bytes(&self, chunk_len: usize) -> usize {
        attention::buffer_bytes(&self.scores(), chunk_len)
    }
}

impl Footprint for Twin {
    fn widest(&self) -> usize {
        self.parts().map(Footprint::widest).max().unwrap_or(0)
    }

    fn floats_per_token(&self) -> usize {
        // The second branch has a buffer of its own.
        self.n_embd + self.parts().map(Footprint::floats_per_token).max().unwrap_or(0)
    }

    fn thread_bytes(&self, chunk_len: usize) -> usize {
        self.parts().map(|part| part.thread_bytes(chunk_len)).max().unwrap_or(0)
    }
}

impl Twin {
    fn parts(&self) -> impl Iterator<Item = &dyn Footprint> {
        [&self.first, &self.second].into_iter().filter_map(Mixer::footprint)
    }
}

impl LayerPlan {
    /// Columns of the layer's widest matrix.
    pub(crate) fn widest(&self) -> usize {
        let mixer = self.mixer.footprint().map_or(0, Footprint::widest);
        let cross = self.cross.as_ref().map_or(0, |cross| cross.attention.widest());
        let mixer = mixer.max(cross);
        let ffn = match &self.ffn {
            Ffn::None => 0,
            Ffn::Dense(d) => d.widest(),
            Ffn::ChannelMix(mix) => mix.widest(),
            Ffn::Moe(m) => m.widest(),
            Ffn::Both(both) => both.moe.widest().max(both.dense.widest()),
        };
        let connections = self.connections.as_ref().map_or(0, |both| both.widest());
        mixer.max(ffn).max(connections).max(self.widest_extra())
    }

    /// Floats per token that the layer's intermediates take at their widest.
    pub(crate) fn floats_per_token(&self, n_embd: usize) -> usize {
        let mixer = self.mixer.footprint().map_or(0, Footprint::floats_per_token);
        // Keys and values of the other stack's tokens, which batches count as their own.
        let cross = self.cross.as_ref().map_or(0, |cross| cross.attention.floats_per_token());
        let mixer = mixer.max(cross);
        let ffn = match &self.ffn {
            Ffn::None => 0,
            Ffn::Dense(d) => d.floats_per_token(n_embd),
            Ffn::ChannelMix(mix) => mix.floats_per_token(),
            Ffn::Moe(m) => m.floats_per_token(n_embd),
            Ffn::Both(both) => {
                2 * n_embd + both.moe.floats_per_token(n_embd).max(both.dense.floats_per_token(n_embd))
            }
        };
        let connections = self.connections.as_ref().map_or(0, |both| both.floats_per_token(n_embd));
        3 * n_embd + self.entry_floats(n_embd) + mixer.max(ffn) + connections
    }
}
