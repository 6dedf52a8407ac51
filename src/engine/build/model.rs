//! Builds the plan: the card's features, the file's numbers, the tensors present.

use crate::arch::graph::{
    Cap, CapName, EmbedNorm, EmbedScale, EmbedScaleName, GraphFeatures, GraphKind, LogitScale,
    LogitScaleName, MaskKind, MixerName, MixerRule, NormKind, Positions, QkvOrder, ResidualRule,
    ResidualScale, ResidualScaleName, RopeAt,
};
use crate::core::TensorMeta;
use crate::engine::EngineError;
use crate::engine::build::hparams::Hparams;
use crate::engine::build::tensors::{Tensors, fits};
use crate::engine::ops::prefix::Prefix;
use crate::engine::plan::{GraphPlan, Norm, NormFormula, Rope};
use crate::gguf::Metadata;

/// What the parts of the builder share.
pub(crate) struct Builder<'a> {
    pub(crate) features: &'a GraphFeatures,
    pub(crate) hparams: Hparams<'a>,
    pub(crate) tensors: Tensors<'a>,
    pub(crate) n_embd: usize,
    pub(crate) eps: f32,
    pub(crate) ropes: Vec<Rope>,
    pub(crate) warnings: Vec<String>,
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
        refuse_unbuilt(arch, features)?;
        let hparams = Hparams::new(metadata, arch);
        let tensors = Tensors::new(tensors);
        let n_embd = hparams.need_count("embedding_length")?;
        let mut builder =
            Builder { features, hparams, tensors, n_embd, eps: 0.0, ropes: Vec::new(), warnings: Vec::new() };
        builder.eps = builder.norm_eps()?;
        builder.plan(arch)
    }
}

/// Refuses, by name, what the vocabulary has and the engine has not.
fn refuse_unbuilt(arch: &str, f: &GraphFeatures) -> Result<(), EngineError> {
    if f.kind == GraphKind::None {
        let reason = f.reason.clone().unwrap_or_else(|| "its card describes none".to_owned());
        return Err(EngineError::NoGraph { arch: arch.to_owned(), reason });
    }
    let default = GraphFeatures::default();
    let refuse = |feature, value: &dyn std::fmt::Debug| {
        Err(EngineError::Unsupported { arch: arch.to_owned(), feature, value: format!("{value:?}") })
    };
    if f.kind != GraphKind::Decoder {
        return refuse("kind", &f.kind);
    }
    if f.mask == MaskKind::Full {
        return refuse("mask", &f.mask);
    }
    if f.mixer != MixerRule::All(MixerName::Attention) {
        return refuse("mixer", &f.mixer);
    }
    if f.rope_at != RopeAt::Start {
        return refuse("rope_at", &f.rope_at);
    }
    if f.qkv != QkvOrder::Blocks {
        return refuse("qkv", &f.qkv);
    }
    if !f.extras.is_empty() {
        return refuse("extras", &f.extras);
    }
    match f.residual {
        ResidualRule::Serial
        | ResidualRule::Post
        | ResidualRule::Parallel
        | ResidualRule::Parallel2
        | ResidualRule::ParallelKey
        | ResidualRule::ParallelIfNoFfnNorm
        | ResidualRule::Normed => {}
        other => return refuse("residual", &other),
    }
    if matches!(f.positions, Positions::Relative | Positions::AlibiKey) {
        return refuse("positions", &f.positions);
    }
    let later: [(&'static str, bool, &dyn std::fmt::Debug); 9] = [
        ("v_norm", f.v_norm != default.v_norm, &f.v_norm),
        ("gated_q", f.gated_q != default.gated_q, &f.gated_q),
        ("kv_share", f.kv_share != default.kv_share, &f.kv_share),
        ("attn_gate", f.attn_gate != default.attn_gate, &f.attn_gate),
        ("ffn_limit", f.ffn_limit != default.ffn_limit, &f.ffn_limit),
        ("weigh", f.weigh != default.weigh, &f.weigh),
        ("router_input", f.router_input != default.router_input, &f.router_input),
        ("router_select", f.router_select != default.router_select, &f.router_select),
        ("shared_combine", f.shared_combine != default.shared_combine, &f.shared_combine),
    ];
    match later.iter().find(|row| row.1) {
        Some((feature, _, value)) => refuse(feature, value),
        None => Ok(()),
    }
}

impl Builder<'_> {
    pub(crate) fn formula(&self) -> NormFormula {
        match self.features.norm {
            NormKind::Rms | NormKind::RmsFree => NormFormula::Rms,
            NormKind::Layer | NormKind::LayerFree => NormFormula::Layer,
        }
    }

    fn norm_eps(&mut self) -> Result<f32, EngineError> {
        const RMS: &str = "attention.layer_norm_rms_epsilon";
        const LAYER: &str = "attention.layer_norm_epsilon";
        let implied = match self.formula() {
            NormFormula::Rms => [RMS, LAYER],
            NormFormula::Layer => [LAYER, RMS],
        };
        let named: Vec<&str> = self.features.norm_eps.iter().map(String::as_str).collect();
        let keys = if named.is_empty() { &implied[..] } else { &named[..] };
        for (at, key) in keys.iter().enumerate() {
            if let Some(eps) = self.hparams.number(key)? {
                if at > 0 && named.is_empty() {
                    // Some converters write the other norm's key; the number is meant all the same.
                    self.warnings.push(format!(
                        "`{}` is used in place of `{}`",
                        self.hparams.key(key),
                        self.hparams.key(keys[0])
                    ));
                }
                return Ok(eps as f32);
            }
        }
        Err(EngineError::MissingKey { key: self.hparams.key(keys[0]) })
    }

    /// A norm of the residual stream that must be there (or has no tensors by its kind).
    pub(crate) fn need_norm(&mut self, name: &str) -> Result<Norm, EngineError> {
        if matches!(self.features.norm, NormKind::RmsFree | NormKind::LayerFree) {
            return Ok(Norm { formula: self.formula(), weight: None, bias: None, eps: self.eps });
        }
        self.norm(name)?.ok_or_else(|| EngineError::MissingTensor { tensor: format!("{name}.weight") })
    }

    /// A norm of the residual stream, if its tensor is there.
    pub(crate) fn norm(&mut self, name: &str) -> Result<Option<Norm>, EngineError> {
        self.tensors.norm(name, self.n_embd, self.formula(), self.eps)
    }

    fn plan(mut self, arch: &str) -> Result<GraphPlan, EngineError> {
        let features = self.features;
        let n_embd = self.n_embd;
        let missing = || EngineError::MissingTensor { tensor: "token_embd.weight".to_owned() };
        let rows = self.tensors.shape("token_embd.weight").ok_or_else(missing)?.n_rows();
        let n_rows = usize::try_from(rows).map_err(|_| missing())?;
        let embedding = self.tensors.need_matrix("token_embd", n_rows, n_embd)?;
        let positions = match features.positions {
            Positions::Learned => {
                let name = "position_embd";
                let rows = self.tensors.shape("position_embd.weight").map_or(0, crate::core::Shape::n_rows);
                Some(self.tensors.need_matrix(name, usize::try_from(rows).unwrap_or(0), n_embd)?)
            }
            _ => None,
        };
        let embed_norm = match features.embed_norm {
            EmbedNorm::None => None,
            EmbedNorm::RmsFree => {
                Some(Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: self.eps })
            }
            EmbedNorm::TokenEmbdNorm => Some(self.need_norm("token_embd_norm")?),
        };
        let embed_scale = match (self.hparams.number("embedding_scale")?, features.embed_scale) {
            (Some(scale), _) if scale > 0.0 => scale as f32,
            (_, EmbedScale::Named(EmbedScaleName::None)) => 1.0,
            (_, EmbedScale::Named(EmbedScaleName::SqrtEmbd)) => (n_embd as f32).sqrt(),
            (_, EmbedScale::Number(scale)) => scale as f32,
        };

        let n_blocks = self.hparams.need_count("block_count")?;
        let n_predict = self.hparams.count("nextn_predict_layers")?.unwrap_or(0);
        let n_layers = n_blocks.checked_sub(n_predict).filter(|&n| n > 0).ok_or_else(|| {
            self.hparams.unknown("nextn_predict_layers", "fewer than block_count", &n_predict.to_string())
        })?;
        let residual_scale = match (self.hparams.number("residual_scale")?, features.residual_scale) {
            (Some(scale), _) if scale > 0.0 => scale,
            (_, ResidualScale::Named(ResidualScaleName::One)) => 1.0,
            (_, ResidualScale::Named(ResidualScaleName::Depth)) => 1.4 / (n_layers as f64).sqrt(),
            (_, ResidualScale::Named(ResidualScaleName::Sqrt2l)) => (2.0 * n_layers as f64).sqrt(),
            (_, ResidualScale::Number(scale)) => scale,
        };
        let mut layers = Vec::new();
        for layer in 0..n_layers {
            layers.push(self.layer(layer, n_layers, residual_scale as f32)?);
        }

        let final_norm = match features.final_norm.as_str() {
            "none" => None,
            name => Some(self.need_norm(name)?),
        };
        let head = match self.tensors.shape("output.weight") {
            Some(shape) => {
                let n_rows = usize::try_from(shape.n_rows()).unwrap_or(0);
                self.tensors.need_matrix("output", n_rows, n_embd)?
            }
            None => {
                let bias = self.tensors.vector("output.bias", n_rows)?;
                crate::engine::plan::Matrix { bias, ..embedding.clone() }
            }
        };
        let tied = head.tensor == embedding.tensor;
        let logit_key = self.hparams.nonzero("logit_scale")?;
        let logit_scale = match (features.logit_scale, logit_key) {
            (LogitScale::Named(LogitScaleName::None), _)
            | (LogitScale::Named(LogitScaleName::Multiply | LogitScaleName::Divide), None) => 1.0,
            (LogitScale::Named(LogitScaleName::RsqrtEmbdIfTied), _) => {
                if tied {
                    (n_embd as f64).powf(-0.5)
                } else {
                    1.0
                }
            }
            // Files of models with a base hold the quotient D / base, by which the reference divides.
            (LogitScale::Named(LogitScaleName::Divide) | LogitScale::BaseOverEmbd { .. }, Some(scale)) => {
                1.0 / scale
            }
            (_, Some(scale)) | (LogitScale::Number(scale), None) => scale,
            (LogitScale::BaseOverEmbd { base_over_embd }, None) => base_over_embd / n_embd as f64,
        };
        let final_cap = self.cap(features.final_cap, "final_logit_softcapping")?;
        let n_ctx_train = self.hparams.count("context_length")?;

        let prefix =
            (features.mask == MaskKind::Prefix).then(|| Prefix { begin: self.hparams.token_id("bos") });
        if prefix.is_some_and(|prefix| prefix.begin.is_none()) {
            let text = "the file names no begin token: the last token of each prompt ends the prefix";
            self.warnings.push(text.to_owned());
        }

        let unused = |name: &str| {
            let stripped = name.strip_suffix(".weight").unwrap_or(name);
            let local = match stripped.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
                Some((layer, local)) => {
                    if layer.parse::<usize>().is_ok_and(|layer| layer >= n_layers && layer < n_blocks) {
                        return true;
                    }
                    local
                }
                None => stripped,
            };
            features.unused.iter().any(|pattern| fits(pattern, local) || fits(pattern, name))
        };
        let left_over = self.tensors.left_over(unused);
        if !left_over.is_empty() {
            return Err(EngineError::LeftOver { tensors: left_over });
        }
        Ok(GraphPlan {
            arch: arch.to_owned(),
            n_embd,
            n_vocab: head.n_rows,
            n_ctx_train,
            embedding,
            positions,
            embed_scale,
            embed_norm,
            prefix,
            ropes: self.ropes,
            layers,
            final_norm,
            head,
            logit_scale: logit_scale as f32,
            final_cap,
            warnings: self.warnings,
        })
    }

    /// A soft cap: the file's key where the card allows one, else the card's number.
    pub(crate) fn cap(&self, cap: Cap, key: &str) -> Result<Option<f32>, EngineError> {
        let found = self.hparams.nonzero(key)?.map(|v| v as f32);
        Ok(match cap {
            Cap::Named(CapName::Off) => None,
            Cap::Named(CapName::Key) => found,
            Cap::Number(default) => Some(found.unwrap_or(default as f32)),
        })
    }
}
