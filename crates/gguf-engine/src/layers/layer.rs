//! Layer: its two branches, their norms and their wiring.

use crate::Result;
use crate::exec::weights::{Norm, Vector};
use crate::ops::Mixer;
use crate::ops::altup::LayerAltUp;
use crate::ops::cross_attention::CrossAttention;
use crate::ops::cycles::StackEntry;
use crate::ops::ffn::Ffn;
use crate::ops::hyper::{LayerConnections, stream_ngrams};
use crate::ops::laurel::Laurel;
use crate::ops::layer_embedding::LayerEmbedding;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::ngrams::Ngrams;
use crate::ops::stream_mix::StreamMix;
use crate::resolve::features::ModelKind;
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::{EmbedNorm, Extra, ResidualRule};

/// Wiring of mixer and feed-forward with the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wiring {
    /// One branch after the other.
    Serial,
    /// Both branches read the layer's input, with one norm or each with its own.
    Parallel,
    /// One branch after the other; the stream continues from the scaled normed input of each.
    Normed,
    /// One branch after the other; the stream itself is normed after each branch is added (post-LN).
    PostLn,
}

/// Plan of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// Wiring of the two branches with the residual stream.
    pub(crate) wiring: Wiring,
    /// Stream mixes that the branches read instead of the stream.
    pub mix: Option<StreamMix>,
    /// Norm before the mixer.
    pub(crate) pre_mixer: Option<Norm>,
    /// Branch that mixes positions.
    pub mixer: Mixer,
    /// Norm of the mixer's output; with post-LN wiring, of the stream after the output is added.
    pub(crate) post_mixer: Option<Norm>,
    /// Norm of the stream after the layer's input is added a second time.
    pub(crate) post_input: Option<Norm>,
    /// Attention to the encoder's states, between mixer and feed-forward.
    pub cross: Option<CrossAttention>,
    /// Norm before the feed-forward; with parallel wiring, the mixer's norm is used if it is absent.
    pub pre_ffn: Option<Norm>,
    /// Branch that processes each position separately.
    pub ffn: Ffn,
    /// Norm of the feed-forward's output; with post-LN wiring, of the stream after the output is added.
    pub post_ffn: Option<Norm>,
    /// Factor of both branches; with normed wiring, of their inputs.
    pub residual_scale: f32,
    /// Factor of the stream after the layer.
    pub rescale: f32,
    /// Parts in addition to the branches.
    pub extras: LayerExtras,
    /// Hyper-connections of the branches, for models with several streams.
    pub connections: Option<Box<LayerConnections>>,
    /// Tensors of the layer, by index, for prefetching and releasing.
    pub tensors: Vec<usize>,
}

/// Parts of a layer in addition to its two branches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerExtras {
    /// Per-layer embedding of the token.
    pub embedding: Option<LayerEmbedding>,
    /// Factor of the layer's output stream.
    pub(crate) out_scale: Option<Vector>,
    /// Factor of the stream before the first layer, which is added again.
    pub(crate) start_scale: Option<Vector>,
    /// AltUp of the layer, for models with AltUp streams.
    pub altup: Option<LayerAltUp>,
    /// N-gram embedding that is added to the streams before the branches.
    pub(crate) ngrams: Option<Box<Ngrams>>,
    /// Low-rank residual in parallel with the mixer.
    pub laurel: Option<Laurel>,
    /// Norm of the stream at the end of a stack that is run again.
    pub(crate) exit_norm: Option<Norm>,
    /// Stack entry before the branches, in the first layer of a stack that runs in turn with another.
    pub entry: Option<StackEntry>,
}

/// Name of the norm after the feed-forward if the file has no tensor of the card's name.
const POST_FFN: &str = "post_ffw_norm";

impl LayerPlan {
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<LayerPlan> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let features = b.features;
        let wiring = wiring(b, layer)?;
        let mixer = Mixer::resolve(b, layer)?;
        let ffn = Ffn::resolve(b, layer)?;
        let cross = CrossAttention::resolve(b, layer)?;
        let two_norms = b.tensors.has(&at("attn_norm_2.weight"));
        let connections = LayerConnections::resolve(b, layer)?;
        // The connections may norm the branches' inputs already.
        let reads_normed = connections.as_ref().is_some_and(|both| both.mixer.norms());
        let own_norms = !reads_normed && !matches!(b.built.wiring, ResidualRule::Post | ResidualRule::PostLn);
        // A layer with one branch has one norm, whatever the branch is.
        let (has_mixer, is_single) = (!matches!(mixer, Mixer::None), b.is_single());
        let pre_ffn_name = if is_single { "attn_norm" } else { features.norms.pre_ffn.as_str() };
        let pre_mixer = match (&mixer, own_norms) {
            (Mixer::None, _) if is_single => None,
            (Mixer::None, _) => b.norm(&at("attn_norm"))?,
            (_, false) => None,
            // Falcon has two norms: the mixer reads the second, the feed-forward the first.
            _ if wiring == Wiring::Parallel && two_norms => Some(b.need_norm(&at("attn_norm_2"))?),
            // In encoders, the embedding's norm replaces the norm before the first layer.
            _ if layer == 0 && b.built.kind == ModelKind::Encoder => first_norm(b)?,
            _ => Some(b.need_norm(&at("attn_norm"))?),
        };
        let pre_ffn = match (&ffn, own_norms) {
            _ if is_single && has_mixer => None,
            (Ffn::None, _) => b.norm(&at(pre_ffn_name))?,
            (_, false) => None,
            _ if wiring == Wiring::Parallel && two_norms => Some(b.need_norm(&at("attn_norm"))?),
            _ if wiring == Wiring::Parallel => b.norm(&at(pre_ffn_name))?,
            _ => Some(b.need_norm(&at(pre_ffn_name))?),
        };
        let post_mixer = post_norm(b, layer, &features.norms.post_attn)?;
        let post_input = match wiring {
            Wiring::PostLn => b.norm(&at("attn_norm_2"))?,
            Wiring::Serial | Wiring::Parallel | Wiring::Normed => None,
        };
        let post_ffn = match post_norm(b, layer, &features.norms.post_ffn)? {
            // Grok 1 and 2 use another name.
            None => post_norm(b, layer, POST_FFN)?,
            named => named,
        };
        let extras = LayerExtras::resolve(b, layer)?;
        let mix = StreamMix::resolve(b, layer, wiring == Wiring::Serial)?;
        let tensors = b.tensors.claimed_under(&at(""));
        let residual_scale = b.residual_scale;
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
            rescale: rescale(b, layer)?,
            extras,
            connections,
            tensors,
        })
    }
}

/// Claims the norm before the first mixer, which is optional in models that norm the embedding.
fn first_norm(b: &mut Resolver<'_>) -> Result<Option<Norm>> {
    match b.features.embed_norm {
        EmbedNorm::None => b.need_norm("blk.0.attn_norm").map(Some),
        EmbedNorm::RmsFree | EmbedNorm::TokenEmbdNorm => b.norm("blk.0.attn_norm"),
    }
}

/// Returns the wiring of a layer, by the card's rule.
pub(crate) fn wiring(b: &Resolver<'_>, layer: usize) -> Result<Wiring> {
    let parallel = match b.built.wiring {
        ResidualRule::Normed => return Ok(Wiring::Normed),
        ResidualRule::PostLn => return Ok(Wiring::PostLn),
        // Twin mixers and single branches are chosen layer by layer.
        ResidualRule::Serial
        | ResidualRule::Post
        | ResidualRule::PostIfSwinNorm
        | ResidualRule::Twin
        | ResidualRule::Single
        | ResidualRule::Arctic
        | ResidualRule::Hyper => false,
        // The presence of the second norm distinguishes the two.
        ResidualRule::Parallel | ResidualRule::Parallel2 => true,
        ResidualRule::ParallelKey => b.keys.flag("use_parallel_residual")?.unwrap_or(true),
        ResidualRule::ParallelIfNoFfnNorm => {
            !b.tensors.has(&format!("blk.{layer}.{}.weight", b.features.norms.pre_ffn))
        }
    };
    Ok(if parallel { Wiring::Parallel } else { Wiring::Serial })
}

/// Claims the norm after a branch, unless the tensor of that name is a norm before a branch.
pub(crate) fn post_norm(b: &mut Resolver<'_>, layer: usize, name: &str) -> Result<Option<Norm>> {
    if b.built.wiring == ResidualRule::PostLn {
        return b.need_norm(&format!("blk.{layer}.{name}")).map(Some);
    }
    if b.built.wiring != ResidualRule::Post && (name == b.features.norms.pre_ffn || name == "attn_norm") {
        return Ok(None);
    }
    let mut norm = b.norm(&format!("blk.{layer}.{name}"))?;
    if let (Some(norm), Some(eps)) = (&mut norm, b.features.norms.post_eps) {
        norm.eps = eps as f32;
    }
    Ok(norm)
}

impl LayerExtras {
    /// Resolves the parts of a layer in addition to its branches.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<LayerExtras> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let embedding = LayerEmbedding::resolve(b, layer)?;
        let out_scale = if b.features.extras.contains(&Extra::OutScale) {
            b.tensors.vector(&at("layer_output_scale.weight"), 1)?
        } else {
            None
        };
        let start_scale = if b.features.extras.contains(&Extra::StartScale) {
            Some(b.need_vector(&at("layer_output_scale.weight"), 1)?)
        } else {
            None
        };
        let (altup, laurel) = (LayerAltUp::resolve(b, layer)?, Laurel::resolve(b, layer)?);
        let ngrams = stream_ngrams(b, layer)?;
        Ok(LayerExtras {
            embedding,
            out_scale,
            start_scale,
            altup,
            ngrams,
            laurel,
            exit_norm: None,
            entry: None,
        })
    }
}

/// Returns the factor of the stream after a layer: some models halve it every few layers.
pub(crate) fn rescale(b: &Resolver<'_>, layer: usize) -> Result<f32> {
    let every = b.keys.count("rescale_every_n_layers")?.filter(|&n| n > 0);
    Ok(if every.is_some_and(|n| (layer + 1).is_multiple_of(n)) { 0.5 } else { 1.0 })
}

impl LayerPlan {
    /// Returns true if the branches are added to the single stream that the layer reads.
    fn adds_plainly(&self) -> bool {
        matches!(self.wiring, Wiring::Serial | Wiring::Parallel)
            && self.mix.is_none()
            && self.connections.is_none()
    }

    /// Returns the last matrix of the mixer, if its product is added to the stream.
    pub(crate) fn mixer_end(&self) -> Option<BranchEnd<'_>> {
        if !self.adds_plainly() || self.post_mixer.is_some() || self.extras.laurel.is_some() {
            return None;
        }
        self.mixer.op().and_then(MixerOp::end)
    }

    /// Returns the last matrix of the feed-forward, if its product is added to the stream.
    pub(crate) fn ffn_end(&self) -> Option<BranchEnd<'_>> {
        if !self.adds_plainly() || self.post_ffn.is_some() {
            return None;
        }
        self.ffn.end()
    }

    /// Returns the number of floats that a sequence keeps for the layer, or the reason why it cannot be continued.
    pub(crate) fn remembered(&self, n_ctx: usize) -> Result<usize, &'static str> {
        if self.extras.ngrams.is_some() {
            return Err("it looks up n-grams of its tokens");
        }
        let mixer = self.mixer.op().map_or(Ok(0), |mixer| mixer.remembered(n_ctx))?;
        Ok(mixer.saturating_add(self.ffn.remembered()))
    }

    /// Returns true if the layer reads the stream before the first layer.
    pub(crate) fn needs_start(&self) -> bool {
        self.extras.embedding.is_some() || self.extras.start_scale.is_some()
    }

    /// Returns true if the layer looks up n-grams or experts by token id.
    pub(crate) fn needs_tokens(&self) -> bool {
        self.extras.ngrams.is_some() || self.ffn.needs_tokens()
    }

    /// Returns true if the feed-forward reads the residual stream before the layer.
    pub(crate) fn needs_entry(&self) -> bool {
        self.ffn.needs_entry()
    }
}
