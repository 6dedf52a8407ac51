//! Where the branches of a layer end: the matrices whose products are added to the residual stream as they are.

use crate::engine::plan::{Ffn, LayerPlan, Matrix, Mixer, Wiring};

/// The last matrix of a branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BranchEnd<'a> {
    /// The matrix.
    pub(crate) matrix: &'a Matrix,
    /// What its product is multiplied with.
    pub(crate) factor: f32,
}

impl<'a> BranchEnd<'a> {
    /// A matrix that has a factor of its own tells nothing here: it is read with the weights.
    fn of(matrix: &'a Matrix, factor: f32) -> Option<Self> {
        matrix.scale.is_none().then_some(Self { matrix, factor })
    }
}

impl LayerPlan {
    /// True if branches are added to the one stream that the layer reads.
    fn adds_plainly(&self) -> bool {
        matches!(self.wiring, Wiring::Serial | Wiring::Parallel)
            && self.mix.is_none()
            && self.connections.is_none()
    }

    /// The last matrix of the mixer, if its product is added to the stream.
    pub(crate) fn mixer_end(&self) -> Option<BranchEnd<'_>> {
        if !self.adds_plainly() || self.post_mixer.is_some() || self.extras.laurel.is_some() {
            return None;
        }
        match &self.mixer {
            Mixer::None | Mixer::Twin(_) => None,
            Mixer::Linear(matrix) => BranchEnd::of(matrix, 1.0),
            // What tokens turn on is added to the product.
            Mixer::Attention(a) if a.switched.is_some() => None,
            Mixer::Attention(a) => BranchEnd::of(&a.out, a.out_scale.unwrap_or(1.0)),
            Mixer::Mla(a) => BranchEnd::of(&a.out, 1.0),
            Mixer::Mamba(m) => BranchEnd::of(&m.out, 1.0),
            Mixer::Mamba2(m) => BranchEnd::of(&m.out, 1.0),
            Mixer::Plamo2(m) => BranchEnd::of(&m.out, 1.0),
            Mixer::ShortConv(m) => BranchEnd::of(&m.out, 1.0),
            Mixer::DeltaNet(m) => BranchEnd::of(&m.out, 1.0),
            Mixer::Kda(m) => BranchEnd::of(&m.out, 1.0),
            Mixer::Compressed(a) => BranchEnd::of(&a.out, 1.0),
            Mixer::Lightning(m) => BranchEnd::of(&m.out, 1.0),
            Mixer::Rwkv6(m) => BranchEnd::of(&m.out, 1.0),
            Mixer::Rwkv7(m) => BranchEnd::of(&m.out, 1.0),
        }
    }

    /// The last matrix of the feed-forward, if its product is added to the stream.
    pub(crate) fn ffn_end(&self) -> Option<BranchEnd<'_>> {
        if !self.adds_plainly() || self.post_ffn.is_some() {
            return None;
        }
        match &self.ffn {
            Ffn::Dense(dense) if dense.switched.is_none() => BranchEnd::of(&dense.down, 1.0),
            // Experts are weighed by token, the others are gated or added up first.
            _ => None,
        }
    }
}
