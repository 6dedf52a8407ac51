//! Keys that llama.cpp's loader reads under every architecture, with a default if they are absent: rope base and
//! scaling, width of a head, windowed layers. A card's rows write what llama.cpp's converter writes. Other values of
//! the configuration are added here, for all cards alike, if they differ from the loader's default.
//!
//! # Exactness
//! The attention factor is that of `_compute_yarn_parameters` in transformers 5.24, divided by the one that llama.cpp
//! 0.5.0 computes.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::error::ArchError;
use crate::graph::{GraphFeatures, Magnitudes, Positions, WindowKind, WindowPattern, log_magnitude};
use crate::keys::shapes::MAX_BLOCKS;
use crate::keys::windows;
use crate::language::eval::{Root, Scope};
use crate::read::schema::{Card, CardKind};

use gguf_checkpoint::json;
use gguf_core::numeric::held_by_f32;
use gguf_format::{Array, Metadata, Value, ValueType};

/// Rope base if a file has none.
const ASSUMED_BASE: f32 = 10_000.0;
/// Difference from one up to which factors are left out.
const FACTOR_TOLERANCE: f64 = 1e-6;
/// Values of `layer_types` for layers with a window.
const WINDOWED: [&str; 1] = ["sliding_attention"];
/// Keys of the period at whose end a layer has no window.
const PERIODS: [&str; 3] =
    ["sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"];

/// Adds the keys whose defaults in the runtime would be wrong.
pub(crate) fn add(card: &Card, scope: &Scope<'_>, early: &Metadata, metadata: &mut Metadata) -> Result<()> {
    let (CardKind::Text, Some(graph)) = (card.kind, &card.graph) else { return Ok(()) };
    let mut keys = RuntimeKeys { arch: &card.gguf, early, metadata };
    if !keys.attends() {
        return Ok(());
    }
    head_width(&scope.config, &mut keys);
    if matches!(graph.positions, Positions::Rope | Positions::ByDepth)
        && keys.flag("rope.scaling.finetuned") != Some(false)
    {
        let rope = scope.roots.iter().find_map(|(name, root)| match root {
            Root::Value(Json::Object(rope)) if *name == "rope_full" => Some(rope),
            _ => None,
        });
        if let Some(rope) = rope {
            rotation(rope, &scope.config, graph, &mut keys)?;
        }
    }
    window_layers(&scope.config, graph, &mut keys);
    windows::settle_absent(&card.gguf, graph.window.pattern, metadata);
    Ok(())
}

/// Keys `<arch>.<name>` of a planned file.
struct RuntimeKeys<'a> {
    arch: &'a str,
    early: &'a Metadata,
    metadata: &'a mut Metadata,
}

impl RuntimeKeys<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        let key = format!("{}.{name}", self.arch);
        self.metadata.get(&key).or_else(|| self.early.get(&key))
    }

    fn number(&self, name: &str) -> Option<f64> {
        let value = self.get(name)?;
        value.as_f64().or_else(|| value.as_u64().map(|value| value as f64))
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.metadata.set(format!("{}.{name}", self.arch), value);
    }

    fn set_if_absent(&mut self, name: &str, value: impl Into<Value>) {
        if self.get(name).is_none() {
            self.set(name, value);
        }
    }

    fn remove(&mut self, name: &str) {
        self.metadata.remove(&format!("{}.{name}", self.arch));
    }

    /// Returns true if a layer has attention heads.
    fn attends(&self) -> bool {
        match self.get("attention.head_count") {
            Some(Value::Array(_)) => true,
            Some(count) => count.as_u64() != Some(0),
            None => false,
        }
    }

    /// Returns true if the rows write this type of rope scaling with an effective factor.
    fn scales(&self, kind: &str) -> bool {
        let factor = self.number("rope.scaling.factor").filter(|&factor| kind == "yarn" || factor != 1.0);
        self.get("rope.scaling.type").and_then(Value::as_str) == Some(kind) && factor.is_some()
    }
}

fn number(of: &Map<String, Json>, name: &str) -> Option<f64> {
    of.get(name).and_then(Json::as_f64).filter(|number| number.is_finite())
}

fn held(of: &Map<String, Json>, name: &str) -> Result<Option<f32>> {
    let Some(value) = of.get(name).filter(|value| !value.is_null()).and_then(json::as_f64) else {
        return Ok(None);
    };
    let wrong =
        || ArchError::KeyValue { key: name.to_owned(), value: value.to_string(), expected: ValueType::F32 };
    held_by_f32(value).map(Some).ok_or_else(wrong)
}

fn count(of: &Map<String, Json>, name: &str) -> Option<u32> {
    of.get(name).and_then(Json::as_u64).and_then(|count| u32::try_from(count).ok())
}

/// Adds the width of heads that is not the embedding length divided by the number of heads.
fn head_width(config: &Map<String, Json>, keys: &mut RuntimeKeys<'_>) {
    let sizes =
        (count(config, "head_dim"), keys.number("attention.head_count"), keys.number("embedding_length"));
    let (Some(width), Some(n_heads), Some(n_embd)) = sizes else { return };
    let is_stated =
        ["attention.key_length", "attention.value_length"].iter().any(|key| keys.get(key).is_some());
    if !is_stated && width > 0 && f64::from(width) != (n_embd / n_heads).floor() {
        keys.set("attention.key_length", width);
        keys.set("attention.value_length", width);
    }
}

fn rotation(
    rope: &Map<String, Json>,
    config: &Map<String, Json>,
    graph: &GraphFeatures,
    keys: &mut RuntimeKeys<'_>,
) -> Result<()> {
    if let Some(base) = held(rope, "rope_theta")?.filter(|&base| base != ASSUMED_BASE) {
        keys.set_if_absent("rope.freq_base", base);
    }
    // Factors per pair have their own tensors, regardless of the type's name.
    let has_factors = rope.get("long_factor").is_some_and(Json::is_array);
    let kind = rope.get("rope_type").and_then(Json::as_str).filter(|_| !has_factors).unwrap_or_default();
    let original = count(rope, "original_max_position_embeddings").filter(|&length| length > 0);
    let stretched = || Some(number(config, "max_position_embeddings")? / f64::from(original?));
    let factor = match kind {
        "linear" => number(rope, "factor").filter(|&factor| factor != 1.0),
        "yarn" => number(rope, "factor").or_else(stretched),
        _ => None,
    };
    held(rope, "factor")?;
    let Some(factor) = factor.filter(|&factor| factor > 0.0) else { return Ok(()) };
    if !keys.scales(kind) {
        keys.set("rope.scaling.type", kind);
        keys.set("rope.scaling.factor", factor as f32);
        if kind == "yarn" {
            if let Some(original) = original {
                keys.set_if_absent("rope.scaling.original_context_length", original);
            }
            for (key, name) in
                [("rope.scaling.yarn_beta_fast", "beta_fast"), ("rope.scaling.yarn_beta_slow", "beta_slow")]
            {
                if let Some(beta) = held(rope, name)?.filter(|&beta| beta != 0.0) {
                    keys.set_if_absent(key, beta);
                }
            }
        }
    }
    let is_yarn = keys.get("rope.scaling.type").and_then(Value::as_str) == Some("yarn");
    magnitudes(wanted_magnitudes(rope, config, is_yarn, factor), is_yarn, factor, graph, keys);
    Ok(())
}

/// Adds the keys without which the runtime computes other magnitudes.
fn magnitudes(
    wanted: Magnitudes,
    is_yarn: bool,
    factor: f64,
    graph: &GraphFeatures,
    keys: &mut RuntimeKeys<'_>,
) {
    const MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
    let mu = graph.rope.yarn_mu;
    let near = |one: f64, other: f64| (one / other - 1.0).abs() <= FACTOR_TOLERANCE;
    let stated = keys.number(MULTIPLIER);
    let key = mu.key_for(is_yarn, factor, wanted);
    let magnitude = |key: Option<f64>| log_magnitude(factor, key.unwrap_or(0.0) * 10.0);
    let key = if mu.scales_scores() && !near(magnitude(key), magnitude(stated)) {
        match key {
            Some(key) => keys.set(MULTIPLIER, key as f32),
            None => keys.remove(MULTIPLIER),
        }
        key
    } else {
        stated
    };
    let ratio = wanted.angles / mu.magnitudes(is_yarn, factor, key, 1.0).angles;
    if !near(ratio, 1.0) && ratio.is_finite() && ratio > 0.0 {
        keys.set_if_absent("rope.scaling.attn_factor", ratio as f32);
    }
}

/// Returns the magnitudes that a class computes. Latent attention scales its scores by a number of the rotations'
/// parameters.
pub(crate) fn wanted_magnitudes(
    rope: &Map<String, Json>,
    config: &Map<String, Json>,
    is_yarn: bool,
    factor: f64,
) -> Magnitudes {
    let is_latent = config.get("qk_rope_head_dim").is_some_and(|width| !width.is_null());
    let of_scores = number(rope, "mscale_all_dim").filter(|_| is_latent);
    Magnitudes {
        angles: if is_yarn { yarn_magnitude(rope, factor) } else { 1.0 },
        scores: log_magnitude(factor, of_scores.unwrap_or(0.0)),
    }
}

/// Returns the factor of sine and cosine under YaRN by the configuration.
fn yarn_magnitude(rope: &Map<String, Json>, factor: f64) -> f64 {
    if let Some(given) = number(rope, "attention_factor") {
        return given;
    }
    let nonzero = |name| number(rope, name).filter(|&value| value != 0.0);
    match (nonzero("mscale"), nonzero("mscale_all_dim")) {
        (Some(one), Some(all)) => log_magnitude(factor, one) / log_magnitude(factor, all),
        _ => log_magnitude(factor, 1.0),
    }
}

/// Adds the list of windowed layers if they differ from the architecture's rule.
fn window_layers(config: &Map<String, Json>, graph: &GraphFeatures, keys: &mut RuntimeKeys<'_>) {
    const KEY: &str = "attention.sliding_window_pattern";
    let (WindowKind::Sliding | WindowKind::Symmetric, Some(rule)) = (graph.window.kind, graph.window.pattern)
    else {
        return;
    };
    if graph.window.size.is_none() && keys.number("attention.sliding_window").is_none_or(|size| size == 0.0) {
        return;
    }
    // An excessive number of layers is reported elsewhere; it must not allocate memory here.
    let n_layers =
        keys.number("block_count").map(|count| count as usize).filter(|&count| count <= MAX_BLOCKS);
    let Some(n_layers) = n_layers else { return };
    let rule = match keys.get(KEY) {
        Some(Value::Array(_)) => return,
        Some(period) => rule.with_period(period_of(period)),
        None => rule,
    };
    // Draft heads follow the configuration's layers, and have no window.
    let drafts = keys.number("nextn_predict_layers").map_or(0, |count| count as usize);
    let periodic = || match rule {
        WindowPattern::DenseLast(_) => periodic(config, n_layers.saturating_sub(drafts)),
        WindowPattern::DenseFirst { .. } => None,
    };
    let listed = listed(config).or_else(periodic);
    let Some(mut windowed) = listed.filter(|layers| layers.len() <= n_layers) else { return };
    if windowed.iter().enumerate().any(|(layer, &windowed)| windowed != rule.is_windowed(layer)) {
        windowed.resize(n_layers, false);
        keys.set(KEY, Value::Array(Array::Bool(windowed)));
    }
}

fn period_of(value: &Value) -> u32 {
    value.as_u64().and_then(|period| u32::try_from(period).ok()).unwrap_or(0)
}

/// Returns which layers have a window, if the configuration lists the layer types.
fn listed(config: &Map<String, Json>) -> Option<Vec<bool>> {
    let words = config.get("layer_types")?.as_array()?;
    words.iter().map(|word| Some(WINDOWED.contains(&word.as_str()?))).collect()
}

/// Returns which layers have a window, if the configuration declares a period.
fn periodic(config: &Map<String, Json>, n_layers: usize) -> Option<Vec<bool>> {
    let period = PERIODS.iter().find_map(|name| count(config, name)).filter(|&period| period > 0)?;
    Some((1..=n_layers).map(|layer| !layer.is_multiple_of(period as usize)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{Inputs, Registry, ResolveOptions, resolve};

    #[test]
    fn a_number_of_layers_that_no_file_has_makes_no_list() {
        let registry = Registry::embedded().unwrap();
        let pattern = |n_layers: u64| {
            let config = json!({
                "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 8,
                "intermediate_size": 16, "num_hidden_layers": n_layers, "num_attention_heads": 2,
                "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 4, "sliding_window": 4,
                "sliding_window_pattern": 3,
            });
            let inputs = Inputs::of_headers(config.as_object().unwrap(), &[]);
            let options = ResolveOptions { metadata_only: true, ..ResolveOptions::default() };
            let mapping = resolve(&registry, &inputs, &options).unwrap();
            mapping.metadata.get("gemma3.attention.sliding_window_pattern").cloned()
        };
        assert_eq!(pattern(4), Some(vec![true, true, false, true].into()));
        assert_eq!(pattern(u64::from(u32::MAX)), None);
    }
}
