//! Plan of a graph: every tensor, width and constant, resolved once from the card, the metadata and the tensors
//! present. Running a plan never reads metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::exec::math;
use crate::exec::rope::Rope;
use crate::exec::weights::{Matrix, Norm, NormFormula, Vector};
use crate::layers::encoder::EncoderPlan;
use crate::layers::layer::LayerPlan;
use crate::layers::repeat::run_layers;
use crate::ops::cycles::{has_cycles, n_cycled_layers};
use crate::ops::model_extra::ModelExtraOp;
use crate::ops::pooling::{MaskedHead, Pooling, outputs, pooling};
use crate::ops::{Mixer, ModelExtra, stream_mix};
use crate::resolve::features::{BuiltFeatures, ModelKind};
use crate::resolve::keys::ArchKeys;
use crate::resolve::resolver::Resolver;
use crate::resolve::tensors::{TensorClaims, fits};
use crate::{EngineError, Result};
use gguf_arch::graph::{
    EmbedNorm, EmbedScale, EmbedScaleName, GraphFeatures, LogitScale, LogitScaleName, Positions,
    ResidualRule, ResidualScale, ResidualScaleName,
};
use gguf_core::TensorMeta;
use gguf_core::simd::SimdLevel;
use gguf_core::text::escape;
use gguf_format::Metadata;

/// Plan of the whole graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPlan {
    /// Architecture, `general.architecture`.
    pub arch: String,
    /// Kind of outputs: the next token's logits, or states of all tokens.
    pub kind: ModelKind,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Number of rows of the head.
    pub n_vocab: usize,
    /// Trained context length, if the file declares it.
    pub n_ctx_train: Option<usize>,
    /// Length of the longest chunk for which the plan computes what the model does, if it is limited.
    pub chunk_limit: Option<usize>,
    /// Embedding, `[n_vocab, n_embd]`.
    pub embedding: Matrix,
    /// Learned position embeddings, `[positions, n_embd]`.
    pub positions: Option<Matrix>,
    /// Token type embedding of the first type, which is used for all tokens.
    pub token_types: Option<Vector>,
    /// Factor of the embedding.
    pub embed_scale: f32,
    /// Norm of the embedding.
    pub embed_norm: Option<Norm>,
    /// Extras of the model, in the order in which a run begins with them.
    pub extras: Vec<ModelExtra>,
    /// Rotations that layers refer to by index.
    pub(crate) ropes: Vec<Rope>,
    /// Encoder, for encoder-decoder models.
    pub encoder: Option<EncoderPlan>,
    /// Layers, in the order in which they run.
    pub layers: Vec<LayerPlan>,
    /// Norm for the scores of the stream mix that replaces the last layer's output.
    pub(crate) final_mix: Option<Norm>,
    /// Norm of the last layer's output.
    pub final_norm: Option<Norm>,
    /// Pooling of a text's states, for encoders.
    pub pooling: Pooling,
    /// Prediction of masked tokens, for models that have it.
    pub masked: Option<MaskedHead>,
    /// Matrix of the logits; the embedding if the file has no separate one.
    pub head: Matrix,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Logits become `cap * tanh(z / cap)`.
    pub final_cap: Option<f32>,
    /// Tokens that are never generated, whatever their logits.
    pub never_generated: Range<usize>,
    /// Warnings for the reader of a report.
    pub warnings: Vec<String>,
}

impl GraphPlan {
    /// Iterates over the layers of all stacks.
    pub fn all_layers(&self) -> impl Iterator<Item = &LayerPlan> + Clone {
        self.encoder.iter().flat_map(|encoder| &encoder.layers).chain(&self.layers)
    }

    /// Iterates over the extras of the model.
    pub(crate) fn extras(&self) -> impl DoubleEndedIterator<Item = &dyn ModelExtraOp> {
        self.extras.iter().map(ModelExtra::op)
    }
}

/// Largest number of keys that a warning names.
const MAX_UNREAD: usize = 3;

impl GraphPlan {
    /// Resolves the graph that the keys describe, if possible, and returns the names of the architecture's keys that this
    /// read, without its prefix. No other key of the architecture has an effect on the result.
    pub fn with_read_keys(
        features: &GraphFeatures,
        metadata: &Metadata,
        tensors: &[TensorMeta],
    ) -> (Option<Self>, BTreeSet<String>) {
        let Ok(arch) = arch_of(metadata) else { return (None, BTreeSet::new()) };
        let none = BTreeMap::new();
        let keys = ArchKeys::new(metadata, arch, &none);
        let plan = resolve_file(features, &keys, tensors).ok();
        (plan, keys.into_read())
    }
}

pub(super) fn arch_of(metadata: &Metadata) -> Result<&str> {
    let key = "general.architecture";
    let arch = metadata.get(key).and_then(|v| v.as_str());
    arch.ok_or_else(|| EngineError::MissingKey { key: key.to_owned() })
}

pub(super) fn resolve_file(
    features: &GraphFeatures,
    keys: &ArchKeys<'_>,
    tensors: &[TensorMeta],
) -> Result<GraphPlan> {
    let arch = keys.arch();
    let mut built = BuiltFeatures::of(arch, features)?;
    Mixer::check_words(arch, &features.mixer)?;
    built.see(keys.flag("attention.causal")?);
    if built.wiring == ResidualRule::PostIfSwinNorm {
        let is_post = keys.flag("swin_norm")?.unwrap_or(false);
        built.wiring = if is_post { ResidualRule::Post } else { ResidualRule::Serial };
    }
    let mut builder = Resolver {
        features,
        built,
        n_embd: keys.need_count("embedding_length")?,
        n_layers: 0,
        keys,
        tensors: TensorClaims::new(tensors),
        eps: 0.0,
        residual_scale: 1.0,
        ropes: Vec::new(),
        chunk_limit: None,
        warnings: Vec::new(),
    };
    builder.eps = builder.norm_eps()?;
    builder.n_layers = n_layers(&builder)?;
    builder.residual_scale = residual_scale(&builder)? as f32;
    resolve_graph(&mut builder, arch).map_err(|error| builder.tensors.with_name_in_file(error))
}

/// Returns the number of layers that are run: layers that only predict further tokens (MTP) are not.
pub(crate) fn n_layers(b: &Resolver<'_>) -> Result<usize> {
    if has_cycles(b) {
        return n_cycled_layers(b);
    }
    let n_predict = b.keys.count("nextn_predict_layers")?.unwrap_or(0);
    b.keys.need_count("block_count")?.checked_sub(n_predict).filter(|&n| n > 0).ok_or_else(|| {
        b.keys.unknown("nextn_predict_layers", "fewer than block_count", &n_predict.to_string())
    })
}

/// Returns the factor of branches: the file's key `residual_scale`, else the card's.
pub(crate) fn residual_scale(b: &Resolver<'_>) -> Result<f64> {
    let n_layers = b.n_layers as f64;
    Ok(match (b.keys.number("residual_scale")?, b.features.residual_scale) {
        (Some(scale), _) if scale > 0.0 => scale,
        (_, ResidualScale::Named(ResidualScaleName::One)) => 1.0,
        (_, ResidualScale::Named(ResidualScaleName::Depth)) => 1.4 / n_layers.sqrt(),
        (_, ResidualScale::Named(ResidualScaleName::Sqrt2l)) => (2.0 * n_layers).sqrt(),
        (_, ResidualScale::Number(scale)) => scale,
    })
}

fn resolve_graph(b: &mut Resolver<'_>, arch: &str) -> Result<GraphPlan> {
    let embedding = b.stream_matrix("token_embd")?;
    let positions = match b.built.positions {
        Positions::Learned => Some(b.stream_matrix("position_embd")?),
        Positions::AlibiKey if b.tensors.has("position_embd.weight") => {
            Some(b.stream_matrix("position_embd")?)
        }
        Positions::AlibiKey
        | Positions::None
        | Positions::Rope
        | Positions::Rope2d
        | Positions::Alibi
        | Positions::Relative
        | Positions::ByDepth => None,
    };
    let token_types = b.first_row("token_types")?;
    let embed_norm = match b.features.embed_norm {
        EmbedNorm::None => None,
        EmbedNorm::RmsFree => Some(Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: b.eps }),
        EmbedNorm::TokenEmbdNorm => Some(b.need_norm("token_embd_norm")?),
    };
    let encoder = EncoderPlan::resolve(b)?;
    let extras = ModelExtra::resolve(b)?;
    let layers = (0..b.n_layers).map(|layer| LayerPlan::resolve(b, layer)).collect::<Result<_, _>>()?;
    let layers = run_layers(b, layers)?;
    let final_mix = stream_mix::final_mix(b)?;
    let final_norm = match b.features.norms.output.as_str() {
        "none" => None,
        name => Some(b.need_norm(name)?),
    };
    let kind = outputs(b, encoder.is_some())?;
    let (pooling, masked) = match kind {
        ModelKind::Encoder => pooling(b)?,
        ModelKind::Diffusion => (Pooling::default(), Some(MaskedHead::default())),
        ModelKind::Decoder => (Pooling::default(), None),
    };
    let head = head(b, &embedding)?;
    let logit_scale = logit_scale(b, head.tensor == embedding.tensor)?;
    let never_generated = never_generated(b, head.n_rows);
    let final_cap = b.cap(b.features.head.cap, "final_logit_softcapping")?;
    refuse_left_over(b)?;
    let embed_scale = embed_scale(b)?;
    name_unread(b);
    Ok(GraphPlan {
        arch: arch.to_owned(),
        kind,
        n_embd: b.n_embd,
        n_vocab: head.n_rows,
        n_ctx_train: b.keys.count("context_length")?,
        chunk_limit: b.chunk_limit,
        embedding,
        positions,
        token_types,
        embed_scale,
        embed_norm,
        extras,
        ropes: std::mem::take(&mut b.ropes),
        encoder,
        layers,
        final_mix,
        final_norm,
        pooling,
        masked,
        head,
        logit_scale,
        final_cap,
        never_generated,
        warnings: std::mem::take(&mut b.warnings),
    })
}

/// Returns the factor of the embedding: the file's key `embedding_scale`, else the card's.
pub(crate) fn embed_scale(b: &Resolver<'_>) -> Result<f32> {
    Ok(match (b.keys.number("embedding_scale")?, b.features.embed_scale) {
        (Some(scale), _) if scale > 0.0 => scale as f32,
        (_, EmbedScale::Named(EmbedScaleName::None)) => 1.0,
        (_, EmbedScale::Named(EmbedScaleName::SqrtEmbd)) => (b.n_embd as f32).sqrt(),
        (_, EmbedScale::Number(scale)) => scale as f32,
    })
}

/// Claims the head: its own matrix, else the embedding.
pub(crate) fn head(b: &mut Resolver<'_>, embedding: &Matrix) -> Result<Matrix> {
    if b.tensors.has("output.weight") {
        return b.stream_matrix("output");
    }
    let bias = b.tensors.vector("output.bias", embedding.n_rows)?;
    Ok(Matrix { bias, ..embedding.clone() })
}

/// Returns the factor of the logits, by the card's rule and the key `logit_scale`.
pub(crate) fn logit_scale(b: &Resolver<'_>, is_tied: bool) -> Result<f32> {
    let key = b.keys.nonzero("logit_scale")?;
    let n_embd = b.n_embd as f64;
    let scale = match (b.features.head.scale, key) {
        (LogitScale::Named(LogitScaleName::RsqrtEmbdIfTied), _) if is_tied => n_embd.powf(-0.5),
        (LogitScale::Named(LogitScaleName::None | LogitScaleName::RsqrtEmbdIfTied), _)
        | (LogitScale::Named(LogitScaleName::Multiply | LogitScaleName::Divide), None) => 1.0,
        // Files of models with a base store the quotient D / base, by which the reference divides.
        (LogitScale::Named(LogitScaleName::Divide) | LogitScale::BaseOverEmbd { .. }, Some(scale)) => {
            1.0 / scale
        }
        (LogitScale::Named(LogitScaleName::Multiply) | LogitScale::Number(_), Some(scale))
        | (LogitScale::Number(scale), None) => scale,
        (LogitScale::BaseOverEmbd { base_over_embd }, None) => base_over_embd / n_embd,
    };
    Ok(scale as f32)
}

/// Returns the tokens that are never generated, clipped to the vocabulary.
pub(crate) fn never_generated(b: &Resolver<'_>, n_vocab: usize) -> Range<usize> {
    let [first, end] = b.features.head.unsaid.unwrap_or_default();
    let end = (end as usize).min(n_vocab);
    (first as usize).min(end)..end
}

/// Warns of the architecture's keys that no part of the plan has read.
fn name_unread(b: &mut Resolver<'_>) {
    let unread = b.keys.unread();
    if unread.is_empty() {
        return;
    }
    let what = "this program does not evaluate them, the figures are computed without";
    b.warnings.push(format!("{}: {what}", named(unread.iter().copied())));
}

/// Names the first keys of a list, and how many more there are.
pub(super) fn named<'k>(keys: impl ExactSizeIterator<Item = &'k str>) -> String {
    let more = keys.len().saturating_sub(MAX_UNREAD);
    let shown: Vec<_> = keys.take(MAX_UNREAD).map(|key| format!("`{}`", escape(key))).collect();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    shown.join(", ") + &more
}

/// Returns an error for tensors that no part of the plan has claimed, except those that the card lists as unused and
/// those of layers that are not run.
fn refuse_left_over(b: &Resolver<'_>) -> Result<()> {
    // Layers that run again are counted, but have no tensors of their own.
    let n_blocks = if has_cycles(b) { b.n_layers } else { b.keys.need_count("block_count")? };
    let is_unused = |name: &str| {
        let stripped = name.strip_suffix(".weight").unwrap_or(name);
        let local = match stripped.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, local)) => {
                if layer.parse().is_ok_and(|layer: usize| (b.n_layers..n_blocks).contains(&layer)) {
                    return true;
                }
                local
            }
            None => stripped,
        };
        b.features.unused.iter().any(|pattern| fits(pattern, local) || fits(pattern, name))
    };
    let tensors = b.tensors.left_over(is_unused);
    if tensors.is_empty() { Ok(()) } else { Err(EngineError::LeftOver { tensors }) }
}

impl GraphPlan {
    /// Returns true if a layer reads the stream before the first layer.
    pub(crate) fn needs_start(&self) -> bool {
        self.layers.iter().any(LayerPlan::needs_start)
    }

    /// Returns true if a layer looks something up by token id.
    pub(crate) fn needs_tokens(&self) -> bool {
        self.needs_start() || self.layers.iter().any(LayerPlan::needs_tokens)
    }

    /// Returns the number of values per token between layers.
    pub(crate) fn stream_width(&self) -> usize {
        self.n_embd * self.extras().find_map(ModelExtraOp::n_streams).unwrap_or(1)
    }

    /// Returns the number of floats that a sequence of at most `n_ctx` tokens keeps.
    ///
    /// # Errors
    /// [`EngineError::NotContinued`] for models without a next token, encoder-decoder models, prefixes whose tokens see
    /// one another, attention to compressed rows, and n-grams; also if `n_ctx` is longer than the graph is defined for.
    pub(crate) fn remembered(&self, n_ctx: usize) -> Result<usize> {
        let refused = match self.kind {
            ModelKind::Encoder => Some("it predicts no next token"),
            ModelKind::Diffusion => Some("it predicts masked tokens, not the next one"),
            ModelKind::Decoder if self.encoder.is_some() => Some("it answers what an encoder reads"),
            ModelKind::Decoder => self.extras().find_map(ModelExtraOp::not_continued),
        };
        if let Some(what) = refused {
            return Err(EngineError::NotContinued { what });
        }
        self.check_length(n_ctx)?;
        let add = |sum: usize, layer: &LayerPlan| Ok(layer.remembered(n_ctx)?.saturating_add(sum));
        self.layers.iter().try_fold(0, add).map_err(|what| EngineError::NotContinued { what })
    }

    /// Checks that a chunk is not longer than the graph is defined for.
    ///
    /// # Errors
    /// If the chunk is longer than the learned positions or the plan's limit.
    pub(crate) fn check_length(&self, tokens: usize) -> Result<()> {
        if let Some(positions) = self.positions.as_ref().filter(|p| p.n_rows < tokens) {
            return Err(EngineError::ChunkTooLong { tokens, limit: positions.n_rows });
        }
        if let Some(limit) = self.chunk_limit.filter(|&limit| limit < tokens) {
            return Err(EngineError::ChunkNotDense { tokens, limit });
        }
        Ok(())
    }

    /// Scales and caps rows of `n` logits, of vocabulary rows `first ..`. Logits of tokens that are never generated
    /// become `f32::MIN`, so that they do not contribute to the sums.
    pub(crate) fn finish_logits(&self, level: SimdLevel, logits: &mut [f32], n: usize, first: usize) {
        if self.logit_scale != 1.0 || self.final_cap.is_some() {
            math::scale_and_cap(level, logits, self.logit_scale, self.final_cap);
        }
        let never_generated = self.never_generated.start.clamp(first, first + n) - first
            ..self.never_generated.end.clamp(first, first + n) - first;
        if !never_generated.is_empty() {
            logits.chunks_mut(n).for_each(|row| row[never_generated.clone()].fill(f32::MIN));
        }
    }
}
