//! Values that a runtime uses regardless of the configuration.

use crate::Result;
use serde_json::Value as Json;

use crate::attributes::AttributeDefault;
use crate::error::ArchError;
use crate::graph::{AttnScale, Cap, FfnKind, GraphFeatures, MaskKind, NormTopk, WindowKind, WindowPattern};
use crate::judge::carried::{CarriedCheck, effects, repeated};
use crate::judge::loader;
use crate::language::names::Captures;
use gguf_format::Value;

/// Attributes with the activation of the feed-forward.
const ACTIVATIONS: [&str; 5] =
    ["activation", "activation_function", "hidden_act", "hidden_activation", "mlp_hidden_act"];
/// Attributes that enable the normalization of the chosen experts' weights.
const NORM_TOPK: [&str; 2] = ["moe_renormalize", "norm_topk_prob"];
/// Attribute with the activation of mixers, and its only value that runtimes compute.
const MIXER: (&str, &str) = ("mamba_hidden_act", "silu");

/// Attribute, and the values for which the runtime computes correctly. Without values it is not checked.
pub(super) struct Assumption {
    pub(super) name: String,
    pub(super) values: Vec<Json>,
    /// True if it applies even when the attribute changes a key: the runtime does not read that key.
    pub(super) is_firm: bool,
}

impl CarriedCheck<'_, '_> {
    /// Returns the assumptions of the card, then those of its graph.
    pub(super) fn assumptions(&self) -> Result<Vec<Assumption>> {
        let mut all = Vec::new();
        for (name, values) in &self.card.assumes {
            let at = || format!("[assumes] `{name}`");
            let mut kept = Vec::new();
            for value in values {
                let value = self
                    .scope
                    .eval(value, Captures::default())
                    .map_err(|source| ArchError::Eval { card: self.card.name(), at: at(), source })?;
                kept.extend(Some(value.to_json()).filter(|value| !value.is_null()));
            }
            all.push(Assumption { name: name.clone(), values: kept, is_firm: true });
        }
        let mut add = |name: &str, value: Json, is_firm: bool| {
            let is_known = self.attributes.is_none_or(|known| known.default_of(name).is_some());
            if is_known && !all.iter().any(|assumption| assumption.name == name) {
                all.push(Assumption { name: name.to_owned(), values: vec![value], is_firm });
            }
        };
        let Some(graph) = &self.card.graph else { return Ok(all) };
        for name in ACTIVATIONS {
            add(name, activation(graph.ffn).into(), false);
        }
        add(MIXER.0, MIXER.1.into(), false);
        if graph.attention.mask == MaskKind::Full {
            add("use_bidirectional_attention", true.into(), false);
            add("is_decoder", false.into(), false);
        }
        if let Some(scalar) = self.score_divisor(&graph.attention.scale) {
            add("query_pre_attn_scalar", scalar.into(), false);
        }
        if let Some(layers) = self.windowed_layers(graph) {
            add("layer_types", layers, false);
        }
        if let (NormTopk::Always(is_normed), true) = (graph.moe.norm_topk, self.has_experts()) {
            for name in NORM_TOPK {
                add(name, is_normed.into(), false);
            }
        }
        let [n_blocks, n_drafts] =
            ["block_count", "nextn_predict_layers"].map(|key| self.count(key).unwrap_or(0));
        let n_layers = n_blocks.saturating_sub(n_drafts);
        if graph.window.kind != WindowKind::None && !loader::has_windows(&self.card.gguf, n_layers) {
            add("sliding_window", Json::Null, true);
        }
        // Without the key, the runtime uses its own cap or window.
        for (name, value) in own_numbers(graph) {
            if self.given(name).is_some_and(Json::is_null) {
                add(name, value, true);
            }
        }
        Ok(all)
    }

    /// Returns true if the runtime gives any layer a window that is shorter than the context.
    pub(super) fn has_window(&self) -> bool {
        let Some(graph) = &self.card.graph else { return true };
        match graph.window.kind {
            WindowKind::None => false,
            WindowKind::Chunked => true,
            WindowKind::Sliding | WindowKind::Symmetric => {
                let context = self.count("context_length").unwrap_or(u64::MAX);
                let size = self.count("attention.sliding_window");
                size.or(graph.window.size.map(u64::from)).is_some_and(|size| size > 0 && size < context)
            }
        }
    }

    /// Returns the size of a head, if keys determine it.
    pub(super) fn head_size(&self) -> Option<u64> {
        let width = || self.count("embedding_length")?.checked_div(self.count("attention.head_count")?);
        self.count("attention.key_length").or_else(width)
    }

    pub(super) fn count(&self, key: &str) -> Option<u64> {
        self.plan.metadata.get(&format!("{}.{key}", self.card.gguf)).and_then(Value::as_u64)
    }

    fn has_experts(&self) -> bool {
        self.count("expert_count").is_some_and(|count| count > 0)
    }

    /// Returns the number whose square root divides the scores in the runtime.
    fn score_divisor(&self, scale: &AttnScale) -> Option<u64> {
        let width = || self.count("embedding_length")?.checked_div(self.count("attention.head_count")?);
        match scale {
            AttnScale::Dk => self.head_size(),
            AttnScale::EmbdOverHeadsAt(depths) => {
                let n_layers = self.count("block_count")?;
                if depths.iter().any(|&depth| u64::from(depth) == n_layers) {
                    width()
                } else {
                    self.head_size()
                }
            }
            _ => None,
        }
    }

    /// Returns the value in the configuration, or the one that the class derives from other attributes.
    pub(super) fn taken(&self, name: &str) -> Option<Json> {
        let by_class = || if name == "layer_types" { self.layers_of_class() } else { None };
        self.effective(name).or_else(by_class)
    }

    /// Returns the class's layer types if the configuration has no rule for them.
    fn layers_of_class(&self) -> Option<Json> {
        if effects::rules_of("layer_types").iter().any(|name| self.given(name).is_some()) {
            return None;
        }
        let Some(AttributeDefault::Period(beginning)) = self.attributes?.default_of("layer_types") else {
            return None;
        };
        let n_layers = usize::try_from(self.count("block_count")?).ok()?;
        Some(repeated(&beginning, n_layers))
    }

    /// Returns the layer types of the runtime for a file without a pattern key, if the configuration lists only the
    /// usual two types.
    fn windowed_layers(&self, graph: &GraphFeatures) -> Option<Json> {
        let windowed = match graph.window.kind {
            WindowKind::None => return None,
            WindowKind::Chunked => "chunked_attention",
            WindowKind::Sliding | WindowKind::Symmetric => "sliding_attention",
        };
        let rule = graph.window.pattern?;
        let (WindowPattern::DenseLast(2..) | WindowPattern::DenseFirst { dense_first: 2.. }) = rule else {
            return None;
        };
        let layer_types = self.taken("layer_types")?;
        let given = layer_types.as_array()?;
        let is_usual = |layer: &Json| layer == windowed || layer == "full_attention";
        let layer = |at: usize| if rule.is_windowed(at) { windowed } else { "full_attention" };
        given.iter().all(is_usual).then(|| (0..given.len()).map(layer).collect())
    }
}

fn activation(ffn: FfnKind) -> &'static str {
    match ffn {
        FfnKind::Swiglu | FfnKind::SwigluOai => "silu",
        FfnKind::GegluTanh | FfnKind::GeluTanh => "gelu_pytorch_tanh",
        FfnKind::GegluErf | FfnKind::GeluErf => "gelu",
        FfnKind::Reglu | FfnKind::Relu => "relu",
        FfnKind::Relu2 => "relu2",
        FfnKind::Xielu => "xielu",
        FfnKind::Situ => "situ",
    }
}

/// Returns the values that the runtime uses for absent keys, by attribute.
fn own_numbers(graph: &GraphFeatures) -> Vec<(&'static str, Json)> {
    let mut numbers = Vec::new();
    for (name, cap) in
        [("attn_logit_softcapping", graph.attention.cap), ("final_logit_softcapping", graph.head.cap)]
    {
        if let Cap::Number(cap) = cap {
            numbers.push((name, cap.into()));
        }
    }
    numbers.extend(graph.window.size.map(|window| ("sliding_window", window.into())));
    numbers
}
