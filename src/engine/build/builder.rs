//! Builds the plan: the card's features, the file's numbers, the tensors present.

use std::ops::Range;

use crate::arch::graph::{
    Cap, CapName, EmbedNorm, EmbedScale, EmbedScaleName, GraphFeatures, LogitScale, LogitScaleName, NormKind,
    ResidualScale, ResidualScaleName,
};
use crate::core::TensorMeta;
use crate::core::text::escape;
use crate::engine::EngineError;
use crate::engine::build::arch_keys::ArchKeys;
use crate::engine::build::claims::{TensorClaims, fits};
use crate::engine::build::features::{BuiltFeatures, PositionRule, Sight, WiringRule};
use crate::engine::ops::prefix::Prefix;
use crate::engine::plan::{
    GraphPlan, MaskedHead, Matrix, ModelKind, Norm, NormFormula, Pooling, Rope, Vector,
};
use crate::gguf::Metadata;

/// Keys that a warning names at most.
const MAX_UNREAD: usize = 3;
const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";
const LAYER_EPS: &str = "attention.layer_norm_epsilon";

/// What the parts of the builder share.
pub(super) struct Builder<'a> {
    pub(super) features: &'a GraphFeatures,
    /// The features that are narrower here than in the card.
    pub(super) built: BuiltFeatures,
    pub(super) keys: ArchKeys<'a>,
    pub(super) tensors: TensorClaims<'a>,
    pub(super) n_embd: usize,
    /// Layers that are run.
    pub(super) n_layers: usize,
    pub(super) eps: f32,
    pub(super) residual_scale: f32,
    pub(super) ropes: Vec<Rope>,
    /// Longest chunk that every layer so far is built for.
    pub(super) chunk_limit: Option<usize>,
    pub(super) warnings: Vec<String>,
}

impl GraphPlan {
    /// Resolves the graph of a file.
    ///
    /// # Errors
    /// Features that are not built, missing or contradictory keys and tensors, tensors that nothing uses.
    pub fn new(
        features: &GraphFeatures,
        metadata: &Metadata,
        tensors: &[TensorMeta],
    ) -> Result<Self, EngineError> {
        let key = "general.architecture";
        let arch = metadata
            .get(key)
            .and_then(|v| v.as_str())
            .ok_or_else(|| EngineError::MissingKey { key: key.to_owned() })?;
        let mut built = BuiltFeatures::of(arch, features)?;
        let keys = ArchKeys::new(metadata, arch);
        built.see(keys.flag("attention.causal")?);
        if built.wiring == WiringRule::PostIfSwinNorm {
            let is_post = keys.flag("swin_norm")?.unwrap_or(false);
            built.wiring = if is_post { WiringRule::Post } else { WiringRule::Serial };
        }
        let mut builder = Builder {
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
        builder.n_layers = builder.n_layers()?;
        builder.residual_scale = builder.residual_scale()? as f32;
        builder.plan(arch).map_err(|error| builder.tensors.with_name_in_file(error))
    }
}

impl Builder<'_> {
    pub(super) fn formula(&self) -> NormFormula {
        match self.features.norm {
            NormKind::RmsByKey if self.keys.nonzero(RMS_EPS).ok().flatten().is_some() => NormFormula::Rms,
            NormKind::Rms | NormKind::RmsFree => NormFormula::Rms,
            NormKind::RmsByKey | NormKind::Layer | NormKind::LayerFree => NormFormula::Layer,
        }
    }

    fn norm_eps(&mut self) -> Result<f32, EngineError> {
        let implied = match self.formula() {
            NormFormula::Rms => [RMS_EPS, LAYER_EPS],
            NormFormula::Layer => [LAYER_EPS, RMS_EPS],
        };
        let named: Vec<&str> = self.features.norm_eps.iter().map(String::as_str).collect();
        let keys = if named.is_empty() { &implied[..] } else { &named[..] };
        for (at, key) in keys.iter().enumerate() {
            if let Some(eps) = self.keys.number(key)? {
                if at > 0 && named.is_empty() {
                    // Some converters write the other norm's key; the number is meant all the same.
                    self.warnings.push(format!(
                        "`{}` is used in place of `{}`",
                        self.keys.key(key),
                        self.keys.key(keys[0])
                    ));
                }
                return Ok(eps as f32);
            }
        }
        Err(EngineError::MissingKey { key: self.keys.key(keys[0]) })
    }

    /// A norm of the residual stream that must be there (or has no tensors by its kind).
    pub(super) fn need_norm(&mut self, name: &str) -> Result<Norm, EngineError> {
        if matches!(self.features.norm, NormKind::RmsFree | NormKind::LayerFree) {
            return Ok(Norm { formula: self.formula(), weight: None, bias: None, eps: self.eps });
        }
        self.norm(name)?.ok_or_else(|| EngineError::MissingTensor { tensor: format!("{name}.weight") })
    }

    /// A norm of the residual stream, if its tensor is there.
    pub(super) fn norm(&mut self, name: &str) -> Result<Option<Norm>, EngineError> {
        self.tensors.norm(name, self.n_embd, self.formula(), self.eps)
    }

    /// Layers that are run: those that only predict further tokens are not.
    fn n_layers(&self) -> Result<usize, EngineError> {
        if self.has_cycles() {
            return self.n_cycled_layers();
        }
        let n_predict = self.keys.count("nextn_predict_layers")?.unwrap_or(0);
        self.keys.need_count("block_count")?.checked_sub(n_predict).filter(|&n| n > 0).ok_or_else(|| {
            self.keys.unknown("nextn_predict_layers", "fewer than block_count", &n_predict.to_string())
        })
    }

    fn residual_scale(&self) -> Result<f64, EngineError> {
        let n_layers = self.n_layers as f64;
        Ok(match (self.keys.number("residual_scale")?, self.features.residual_scale) {
            (Some(scale), _) if scale > 0.0 => scale,
            (_, ResidualScale::Named(ResidualScaleName::One)) => 1.0,
            (_, ResidualScale::Named(ResidualScaleName::Depth)) => 1.4 / n_layers.sqrt(),
            (_, ResidualScale::Named(ResidualScaleName::Sqrt2l)) => (2.0 * n_layers).sqrt(),
            (_, ResidualScale::Number(scale)) => scale,
        })
    }

    fn plan(&mut self, arch: &str) -> Result<GraphPlan, EngineError> {
        let embedding = self.rows_of("token_embd")?;
        let switch = self.switch(embedding.n_rows)?;
        let positions = match self.built.positions {
            PositionRule::Learned => Some(self.rows_of("position_embd")?),
            PositionRule::AlibiKey if self.tensors.has("position_embd.weight") => {
                Some(self.rows_of("position_embd")?)
            }
            PositionRule::AlibiKey
            | PositionRule::None
            | PositionRule::Rope
            | PositionRule::Rope2d
            | PositionRule::Alibi
            | PositionRule::Relative
            | PositionRule::ByDepth => None,
        };
        let token_types = self.first_row("token_types")?;
        let embed_norm = match self.features.embed_norm {
            EmbedNorm::None => None,
            EmbedNorm::RmsFree => {
                Some(Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: self.eps })
            }
            EmbedNorm::TokenEmbdNorm => Some(self.need_norm("token_embd_norm")?),
        };
        let encoder = self.encoder()?;
        let layer_embeddings = self.layer_embeddings()?;
        let altup = self.altup()?;
        let layers = (0..self.n_layers).map(|layer| self.layer(layer)).collect::<Result<_, _>>()?;
        let layers = self.run_layers(layers)?;
        let final_mix = self.final_mix()?;
        let final_norm = match self.features.final_norm.as_str() {
            "none" => None,
            name => Some(self.need_norm(name)?),
        };
        let kind = self.outputs(encoder.is_some())?;
        let (pooling, masked) = match kind {
            ModelKind::Encoder => self.pooling()?,
            ModelKind::Diffusion => (Pooling::default(), Some(MaskedHead::default())),
            ModelKind::Decoder => (Pooling::default(), None),
        };
        let (streams, held) = (self.streams()?, self.held_state()?);
        let head = self.head(&embedding)?;
        let logit_scale = self.logit_scale(head.tensor == embedding.tensor)?;
        let prefix = self.prefix();
        let unsaid = self.unsaid(head.n_rows);
        let final_cap = self.cap(self.features.final_cap, "final_logit_softcapping")?;
        self.refuse_left_over()?;
        self.name_unread();
        Ok(GraphPlan {
            arch: arch.to_owned(),
            kind,
            n_embd: self.n_embd,
            n_vocab: head.n_rows,
            n_ctx_train: self.keys.count("context_length")?,
            chunk_limit: self.chunk_limit,
            embedding,
            positions,
            token_types,
            embed_scale: self.embed_scale()?,
            embed_norm,
            switch,
            layer_embeddings,
            altup,
            prefix,
            streams,
            held,
            ropes: std::mem::take(&mut self.ropes),
            encoder,
            layers,
            final_mix,
            final_norm,
            pooling,
            masked,
            head,
            logit_scale,
            final_cap,
            unsaid,
            warnings: std::mem::take(&mut self.warnings),
        })
    }

    /// A matrix with as many rows of the stream's width as its tensor has.
    fn rows_of(&mut self, name: &str) -> Result<Matrix, EngineError> {
        let tensor = format!("{name}.weight");
        let n_rows = self.tensors.shape(&tensor).and_then(|shape| usize::try_from(shape.n_rows()).ok());
        match n_rows {
            Some(n_rows) => self.tensors.need_matrix(name, n_rows, self.n_embd),
            None => Err(EngineError::MissingTensor { tensor }),
        }
    }

    /// The first row of a matrix of the stream's width, if there is one.
    fn first_row(&mut self, name: &str) -> Result<Option<Vector>, EngineError> {
        if !self.tensors.has(&format!("{name}.weight")) {
            return Ok(None);
        }
        let matrix = self.rows_of(name)?;
        Ok(Some(Vector { tensor: matrix.tensor, first: 0, len: self.n_embd }))
    }

    fn embed_scale(&self) -> Result<f32, EngineError> {
        Ok(match (self.keys.number("embedding_scale")?, self.features.embed_scale) {
            (Some(scale), _) if scale > 0.0 => scale as f32,
            (_, EmbedScale::Named(EmbedScaleName::None)) => 1.0,
            (_, EmbedScale::Named(EmbedScaleName::SqrtEmbd)) => (self.n_embd as f32).sqrt(),
            (_, EmbedScale::Number(scale)) => scale as f32,
        })
    }

    /// The head: a matrix of its own, else the embedding.
    fn head(&mut self, embedding: &Matrix) -> Result<Matrix, EngineError> {
        if self.tensors.has("output.weight") {
            return self.rows_of("output");
        }
        let bias = self.tensors.vector("output.bias", embedding.n_rows)?;
        Ok(Matrix { bias, ..embedding.clone() })
    }

    fn logit_scale(&self, is_tied: bool) -> Result<f32, EngineError> {
        let key = self.keys.nonzero("logit_scale")?;
        let n_embd = self.n_embd as f64;
        let scale = match (self.features.logit_scale, key) {
            (LogitScale::Named(LogitScaleName::RsqrtEmbdIfTied), _) if is_tied => n_embd.powf(-0.5),
            (LogitScale::Named(LogitScaleName::None | LogitScaleName::RsqrtEmbdIfTied), _)
            | (LogitScale::Named(LogitScaleName::Multiply | LogitScaleName::Divide), None) => 1.0,
            // Files of models with a base hold the quotient D / base, by which the reference divides.
            (LogitScale::Named(LogitScaleName::Divide) | LogitScale::BaseOverEmbd { .. }, Some(scale)) => {
                1.0 / scale
            }
            (LogitScale::Named(LogitScaleName::Multiply) | LogitScale::Number(_), Some(scale))
            | (LogitScale::Number(scale), None) => scale,
            (LogitScale::BaseOverEmbd { base_over_embd }, None) => base_over_embd / n_embd,
        };
        Ok(scale as f32)
    }

    fn prefix(&mut self) -> Option<Prefix> {
        match self.built.sight {
            Sight::Causal | Sight::Full => None,
            Sight::Prefix => {
                let begin = self.keys.token_id("bos");
                if begin.is_none() {
                    let text = "the file names no begin token: the last token of each prompt ends the prefix";
                    self.warnings.push(text.to_owned());
                }
                Some(Prefix { begin })
            }
        }
    }

    /// The tokens that are never said, as far as there are so many.
    fn unsaid(&self, n_vocab: usize) -> Range<usize> {
        let [first, end] = self.features.unsaid_tokens.unwrap_or_default();
        let end = (end as usize).min(n_vocab);
        (first as usize).min(end)..end
    }

    /// Warns of keys of the architecture that no part of the plan has read.
    fn name_unread(&mut self) {
        let unread = self.keys.unread();
        if unread.is_empty() {
            return;
        }
        let (shown, others) = unread.split_at(unread.len().min(MAX_UNREAD));
        let names = shown.iter().map(|key| format!("`{}`", escape(key))).collect::<Vec<_>>().join(", ");
        let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        let what = "this program does not evaluate them, the figures are computed without";
        self.warnings.push(format!("{names}{others}: {what}"));
    }

    /// Refuses tensors that no part of the plan has claimed, except those that the card leaves aside and those of layers
    /// that are not run.
    fn refuse_left_over(&self) -> Result<(), EngineError> {
        // Layers that run again are counted, but have no tensors of their own.
        let n_blocks = if self.has_cycles() { self.n_layers } else { self.keys.need_count("block_count")? };
        let is_unused = |name: &str| {
            let stripped = name.strip_suffix(".weight").unwrap_or(name);
            let local = match stripped.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
                Some((layer, local)) => {
                    if layer.parse().is_ok_and(|layer: usize| (self.n_layers..n_blocks).contains(&layer)) {
                        return true;
                    }
                    local
                }
                None => stripped,
            };
            self.features.unused.iter().any(|pattern| fits(pattern, local) || fits(pattern, name))
        };
        let tensors = self.tensors.left_over(is_unused);
        if tensors.is_empty() { Ok(()) } else { Err(EngineError::LeftOver { tensors }) }
    }

    /// A soft cap: the file's key where the card allows one, else the card's number.
    pub(super) fn cap(&self, cap: Cap, key: &str) -> Result<Option<f32>, EngineError> {
        let found = self.keys.nonzero(key)?.map(|v| v as f32);
        Ok(match cap {
            Cap::Named(CapName::Off) => None,
            Cap::Named(CapName::Key) => found,
            Cap::Number(default) => Some(found.unwrap_or(default as f32)),
        })
    }
}
