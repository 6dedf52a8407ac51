//! Builds what some models have besides the plain two branches: numbers of activations, gates, a layer's own
//! embeddings, stacks that are run again.

use crate::arch::graph::{AttnGate, Extra, FfnLimit};
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::build::features::ActivationKind;
use crate::engine::plan::{
    GateFunction, GatedActivation, KvSource, LayerEmbedding, LayerEmbeddings, LayerExtras, LayerPlan, Mask,
    Mixer, Norm, NormFormula, OutputGate, PlainActivation, Xielu,
};

/// Which feed-forward of a layer an activation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FfnPart {
    /// Dense, or shared experts.
    Dense,
    /// Routed experts.
    Experts,
}

/// An activation with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LayerActivation {
    /// Of the up projection alone.
    Plain(PlainActivation),
    /// Of a gate, times the up projection.
    Gated(GatedActivation),
}

impl Builder<'_> {
    /// The activation of a layer's feed-forward, with the layer's numbers.
    pub(super) fn activation(&self, layer: usize, part: FfnPart) -> Result<LayerActivation, EngineError> {
        let kind = match part {
            FfnPart::Dense => self.built.ffn,
            FfnPart::Experts => self.built.experts,
        };
        Ok(match kind {
            ActivationKind::Plain(act) => LayerActivation::Plain(act),
            ActivationKind::Gated(GatedActivation::Swiglu) => {
                LayerActivation::Gated(self.swiglu(layer, part)?)
            }
            ActivationKind::Gated(act) => LayerActivation::Gated(act),
            ActivationKind::Xielu => LayerActivation::Plain(PlainActivation::Xielu(self.xielu(layer)?)),
            ActivationKind::Situ => {
                let beta = self.keys.nonzero("activation.situ_beta")?;
                let beta = beta.ok_or_else(|| self.keys.missing("activation.situ_beta"))? as f32;
                let linear_beta = self.keys.number("activation.situ_linear_beta")?.unwrap_or(0.0) as f32;
                LayerActivation::Gated(GatedActivation::Situ { beta, linear_beta })
            }
        })
    }

    fn swiglu(&self, layer: usize, part: FfnPart) -> Result<GatedActivation, EngineError> {
        /// Smaller limits mean none.
        const NONE: f64 = 1e-6;
        let key = match part {
            FfnPart::Dense => "swiglu_clamp_shexp",
            FfnPart::Experts => "swiglu_clamp_exp",
        };
        let limit = match self.features.ffn_limit {
            FfnLimit::None => None,
            FfnLimit::Before | FfnLimit::After => {
                self.keys.layer_number(key, layer)?.filter(|&limit| limit > NONE).map(|limit| limit as f32)
            }
        };
        Ok(match (limit, self.features.ffn_limit) {
            (None, _) | (_, FfnLimit::None) => GatedActivation::Swiglu,
            (Some(limit), FfnLimit::Before) => GatedActivation::SwigluLimitBefore(limit),
            (Some(limit), FfnLimit::After) => GatedActivation::SwigluLimitAfter(limit),
        })
    }

    /// The file holds the parameters as they are trained: the factors are made of their softplus.
    fn xielu(&self, layer: usize) -> Result<Xielu, EngineError> {
        let number = |key| {
            let found = self.keys.global_layer_number(key, layer)?;
            found.ok_or_else(|| EngineError::MissingKey { key: key.to_owned() })
        };
        let softplus = |x: f64| if x > 20.0 { x } else { x.exp().ln_1p() };
        let beta = number("xielu.beta")?;
        Ok(Xielu {
            positive: softplus(number("xielu.alpha_p")?) as f32,
            negative: (beta + softplus(number("xielu.alpha_n")?)) as f32,
            beta: beta as f32,
            eps: number("xielu.eps")? as f32,
        })
    }

    /// The gate on the heads' outputs, a row per value or per head.
    pub(super) fn output_gate(
        &mut self,
        layer: usize,
        n_heads: usize,
        n_cols: usize,
    ) -> Result<Option<OutputGate>, EngineError> {
        let function = match self.features.attn_gate {
            AttnGate::None => return Ok(None),
            AttnGate::Sigmoid => GateFunction::Sigmoid,
            AttnGate::Softplus => GateFunction::Softplus,
        };
        let name = format!("blk.{layer}.attn_gate");
        let n_rows = self.tensors.shape(&format!("{name}.weight")).map(crate::core::Shape::n_rows);
        let per_head = n_rows == Some(n_heads as u64);
        let matrix = self.tensors.matrix(&name, if per_head { n_heads } else { n_cols }, self.n_embd)?;
        Ok(matrix.map(|matrix| OutputGate { matrix, function }))
    }

    /// A norm without weight or bias, root mean square.
    pub(super) fn free_norm(&self) -> Norm {
        Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: self.eps }
    }

    /// Where a layer's keys and values come from: the last layers of some models take those of the last earlier layer
    /// that sees the same keys.
    pub(super) fn kv_source(&self, layer: usize, mask: Mask) -> Result<KvSource, EngineError> {
        if !self.features.kv_share {
            return Ok(KvSource::Own);
        }
        let key = "attention.shared_kv_layers";
        let n_shared = self.keys.count(key)?.unwrap_or(0);
        let first = self.n_layers.checked_sub(n_shared).filter(|&first| first > 0);
        let first = first.ok_or_else(|| {
            self.keys.unknown(key, "fewer layers than the model has", &n_shared.to_string())
        })?;
        if layer < first {
            return Ok(KvSource::Own);
        }
        for earlier in (0..first).rev() {
            if self.mask(earlier)? == mask {
                return Ok(KvSource::From(earlier));
            }
        }
        Err(self.keys.unknown(key, "an earlier layer of the same kind for each", &n_shared.to_string()))
    }

    pub(super) fn layer_embeddings(&mut self) -> Result<Option<LayerEmbeddings>, EngineError> {
        if !self.features.extras.contains(&Extra::Ple) {
            return Ok(None);
        }
        let width = self.keys.count("embedding_length_per_layer_input")?.unwrap_or(0);
        if width == 0 {
            return Ok(None);
        }
        let name = "per_layer_token_embd";
        let tensor = format!("{name}.weight");
        let n_rows = self.tensors.shape(&tensor).and_then(|shape| usize::try_from(shape.n_rows()).ok());
        let n_rows = n_rows.ok_or(EngineError::MissingTensor { tensor })?;
        let embedding = self.tensors.need_matrix(name, n_rows, width.saturating_mul(self.n_layers))?;
        let norm = self.tensors.norm("per_layer_proj_norm", width, self.formula(), self.eps)?;
        let tensor = "per_layer_proj_norm.weight".to_owned();
        Ok(Some(LayerEmbeddings {
            embedding,
            norm: norm.ok_or(EngineError::MissingTensor { tensor })?,
            width,
        }))
    }

    /// What follows the branches of a layer.
    pub(super) fn layer_extras(&mut self, layer: usize) -> Result<LayerExtras, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let (n_embd, n_layers) = (self.n_embd, self.n_layers);
        let width = self.keys.count("embedding_length_per_layer_input")?.unwrap_or(0);
        let embedding = if self.features.extras.contains(&Extra::Ple) && width > 0 {
            let n_rows = width.saturating_mul(n_layers);
            let model = self.tensors.need_matrix("per_layer_model_proj", n_rows, n_embd)?;
            let post = at("post_norm");
            let first = layer * width;
            Some(LayerEmbedding {
                first,
                model: model.rows(first, width),
                gate: self.tensors.need_matrix(&at("inp_gate"), width, n_embd)?,
                proj: self.tensors.need_matrix(&at("proj"), n_embd, width)?,
                post: self.need_norm(&post)?,
            })
        } else {
            None
        };
        let out_scale = if self.features.extras.contains(&Extra::OutScale) {
            self.tensors.vector(&at("layer_output_scale.weight"), 1)?
        } else {
            None
        };
        let start_scale = if self.features.extras.contains(&Extra::StartScale) {
            Some(self.need_vector(&at("layer_output_scale.weight"), 1)?)
        } else {
            None
        };
        let (altup, laurel) = (self.layer_altup(layer)?, self.laurel(layer)?);
        let ngrams = self.stream_ngrams(layer)?;
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

    /// The layers as they are run: some models run their stack several times, with a norm between.
    pub(super) fn run_layers(&mut self, mut layers: Vec<LayerPlan>) -> Result<Vec<LayerPlan>, EngineError> {
        let sources: Vec<usize> = layers
            .iter()
            .filter_map(|layer| match &layer.mixer {
                Mixer::Attention(a) => match a.kv {
                    KvSource::From(source) => Some(source),
                    KvSource::Own | KvSource::Kept => None,
                },
                _ => None,
            })
            .collect();
        for source in sources {
            if let Some(Mixer::Attention(a)) = layers.get_mut(source).map(|layer| &mut layer.mixer) {
                a.kv = KvSource::Kept;
            }
        }
        if self.has_cycles() {
            return self.cycled(&layers);
        }
        if !self.features.extras.contains(&Extra::Loops) {
            return Ok(layers);
        }
        let n_loops = self.keys.need_count("num_loops")?;
        if n_loops.saturating_mul(layers.len()) > 1 << 16 {
            let expected = "fewer than 65537 layers in all";
            return Err(self.keys.unknown("num_loops", expected, &n_loops.to_string()));
        }
        let mut again = layers.clone();
        if !self.keys.flag("skip_loop_final_norm")?.unwrap_or(false) {
            let norm = self.features.final_norm.clone();
            let norm = if norm == "none" { None } else { Some(self.need_norm(&norm)?) };
            if let Some(last) = again.last_mut() {
                last.extras.exit_norm = norm;
            }
        }
        let repeated = (1..n_loops).flat_map(|_| again.clone());
        Ok(repeated.chain(layers).collect())
    }
}
