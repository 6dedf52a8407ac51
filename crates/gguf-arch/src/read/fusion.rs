//! Joins of output tensors that cards allow and options ask for.

/// Kind of join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    /// Queries, keys and values of a block, concatenated.
    Qkv,
    /// Gate and up projections of all experts of a block, concatenated per expert.
    GateUpExps,
}

/// Joins that the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fuse {
    /// [`Fusion::Qkv`].
    pub qkv: bool,
    /// [`Fusion::GateUpExps`].
    pub gate_up_exps: bool,
}

impl Fusion {
    /// Words of cards for the joins.
    pub(crate) const WORDS: [(&'static str, Self); 2] =
        [("qkv", Self::Qkv), ("gate_up_exps", Self::GateUpExps)];

    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Qkv => "--fuse-qkv",
            Self::GateUpExps => "--fuse-gate-up-exps",
        }
    }

    /// Returns the parts in order, and the name of the joined tensor.
    pub(crate) fn names(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Qkv => (&["attn_q", "attn_k", "attn_v"], "attn_qkv"),
            Self::GateUpExps => (&["ffn_gate_exps", "ffn_up_exps"], "ffn_gate_up_exps"),
        }
    }

    /// Returns the name of the tensor in which a part is joined.
    pub(crate) fn joined(self, part: &str) -> Option<String> {
        let (parts, joined) = self.names();
        let (stem, ending) = self.endings().iter().find_map(|end| Some((part.strip_suffix(end)?, end)))?;
        parts.contains(&stem).then(|| format!("{joined}{ending}"))
    }

    /// Returns the endings of joined tensors. Biases without weights, or of only some parts, are not joined.
    pub(crate) fn endings(self) -> &'static [&'static str] {
        match self {
            Self::Qkv => &[".weight", ".bias"],
            Self::GateUpExps => &[".weight"],
        }
    }

    pub(crate) fn axis(self) -> usize {
        match self {
            Self::Qkv => 0,
            Self::GateUpExps => 1,
        }
    }
}
