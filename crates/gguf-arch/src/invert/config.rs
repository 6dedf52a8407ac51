//! Rebuilds the configuration that a file's keys came from, or may have come from.

use crate::Result;
use serde_json::{Map, Value as Json, json};

use super::inverse_rows;
use super::member::{set_member, set_members};
use super::tensors::blocks;
use crate::attributes::{AttributeDefault, Attributes};
use crate::error::ArchError;
use crate::graph::{YarnMu, log_magnitude, log_multiplier};
use crate::language::datum::Datum;
use crate::language::eval::Scope;
use crate::language::names::Captures;
use crate::mapping::RopeFreqsLlama3;
use crate::read::base;
use crate::read::schema::{Card, EACH_BLOCK};
use crate::registry::model_types;
use gguf_core::WeightMeta;
use gguf_format::Value;
use gguf_format::keys::ANNOTATION_PREFIX;

pub(super) const LONG_FACTORS: &str = "rope_factors_long.weight";
const SHORT_FACTORS: &str = "rope_factors_short.weight";

const YARN_FACTOR: &str = "rope.scaling.yarn_attn_factor";
/// Relative difference up to which factors of YaRN are equal.
const FACTOR_TOLERANCE: f64 = 1e-6;

/// Members of `rope_scaling` after the type, and the metadata keys that restore them.
const ROPE_SCALING: &[(&str, &str)] = &[
    ("factor", "rope.scaling.factor"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("extrapolation_factor", "rope.scaling.yarn_ext_factor"),
    ("attention_factor", YARN_FACTOR),
    ("beta_fast", "rope.scaling.yarn_beta_fast"),
    ("beta_slow", "rope.scaling.yarn_beta_slow"),
];

/// Returns the configuration from the keys that most decoders have, the card's rows, and the tensors.
pub(super) fn rebuilt(
    card: &Card,
    scope: &Scope<'_>,
    tensors: &[WeightMeta],
    rope_freqs: Option<&RopeFreqsLlama3>,
) -> Map<String, Json> {
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([card.classes.first()]));
    config.insert("model_type".to_owned(), json!(card.gguf));
    for (key, gguf) in &base().inverse {
        let value = scope.kv(gguf);
        if !value.is_null() {
            config.insert(key.clone(), of_all_layers(value.to_json()));
        }
    }
    inverse_rows::take_back(card, scope, &mut config);
    // Some drafts have no embedding of their own; their tokens are those of the target model.
    let tokens = scope.gguf.and_then(|(_, metadata)| metadata.get("tokenizer.ggml.tokens"));
    if let (Some(Value::Array(tokens)), false) = (tokens, config.contains_key("vocab_size")) {
        config.insert("vocab_size".to_owned(), json!(tokens.len()));
    }
    let embedding = tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    if let Some(rows) = embedding.and_then(|tensor| tensor.shape.dims().first()) {
        config.insert("vocab_size".to_owned(), json!(rows));
    }
    config.insert("tie_word_embeddings".to_owned(), json!(!scope.tensors.contains("output.weight")));
    let has_rule = card.graph.as_ref().is_some_and(|graph| graph.window.pattern.is_some());
    if let (Datum::List(windows), true) = (scope.kv("attention.sliding_window_pattern"), has_rule) {
        let drafts =
            scope.kv("nextn_predict_layers").as_int().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let layers = windows.iter().take(windows.len().saturating_sub(drafts));
        let word = |windowed: &Datum| if windowed.truth() { "sliding_attention" } else { "full_attention" };
        config.insert("layer_types".to_owned(), layers.map(word).collect());
    }
    let truncate = match scope.kv(&format!("{ANNOTATION_PREFIX}rope.scaling.yarn_truncate")) {
        Datum::Bool(truncate) => Some(truncate),
        // The default value means the same as an absent key.
        _ => card.graph.as_ref().and_then(|graph| (!graph.rope.yarn_truncate).then_some(false)),
    };
    let factor_name = yarn_factor_name(card, scope);
    let yarn_mu = card.graph.as_ref().map_or(YarnMu::None, |graph| graph.rope.yarn_mu);
    if let Some(scaling) = rope_scaling(scope, truncate, factor_name, yarn_mu, rope_freqs) {
        if scaling.get("long_factor").is_some() {
            let first = scope.kv("rope.scaling.original_context_length");
            if !first.is_null() {
                config.insert("original_max_position_embeddings".to_owned(), first.to_json());
            }
        }
        config.insert("rope_scaling".to_owned(), scaling);
    }
    config
}

/// Returns the value that a list by layer has throughout, which the key may as well be; any other value as it is.
pub(super) fn of_all_layers(value: Json) -> Json {
    match value.as_array().and_then(|items| items.split_first()) {
        Some((first, others)) if others.iter().all(|other| other == first) => first.clone(),
        _ => value,
    }
}

/// Returns the scope's configuration with the card's `[inverse]` applied. Its expressions see the unchanged
/// configuration.
pub(super) fn with_own(card: &Card, scope: &Scope<'_>) -> Result<Map<String, Json>> {
    let mut config = scope.config.clone();
    for (key, rule) in card.inverse.iter().filter(|(_, rule)| rule.tensor.is_none()) {
        let failed = |source| ArchError::Eval { card: card.name(), at: format!("[inverse] `{key}`"), source };
        let value = |captures| {
            let value = scope.eval(&rule.value, captures).map_err(failed)?;
            Ok(if value.is_null() && !rule.writes_null { None } else { Some(value.to_json()) })
        };
        match key.split_once(EACH_BLOCK) {
            None => set_member(&mut config, key, value(Captures::default())?),
            Some((list, member)) => {
                let blocks = blocks(scope).map_err(failed)?;
                let values = blocks.into_iter().map(value).collect::<Result<Vec<_>>>()?;
                set_members(&mut config, list, member, values);
            }
        }
    }
    let class = config.get("architectures").and_then(|classes| classes.get(0)).and_then(Json::as_str);
    if let (Some(class), Some(found)) = (class, config.get("model_type").and_then(Json::as_str)) {
        let own = json!(model_types::type_of(class, found));
        config.insert("model_type".to_owned(), own);
    }
    leave_padding_out(&mut config);
    Ok(config)
}

/// Writes that a model has no padding token, where the class would take one beyond the vocabulary and then not load.
fn leave_padding_out(config: &mut Map<String, Json>) {
    const KEY: &str = "pad_token_id";
    let default = Attributes::of_text(config).and_then(|attributes| attributes.default_of(KEY));
    let Some(AttributeDefault::Value(default)) = default else { return };
    let rows = config.get("vocab_size").and_then(Json::as_u64);
    if !config.contains_key(KEY) && default.as_u64() >= rows.or(Some(u64::MAX)) {
        config.insert(KEY.to_owned(), Json::Null);
    }
}

/// Returns the configuration's name for the number in `rope.scaling.yarn_attn_factor`. Models compute with
/// `attention_factor`; the runtime reads it from `rope.scaling.attn_factor`, which is absent if the factor is the
/// default one. If that key is absent and the number differs from the default, the number was `attn_factor`, which
/// nothing reads.
fn yarn_factor_name(card: &Card, scope: &Scope<'_>) -> &'static str {
    const READ: &str = "attention_factor";
    let keys = [YARN_FACTOR, "rope.scaling.factor", "rope.scaling.attn_factor"];
    let has_key = card.graph.as_ref().is_some_and(|graph| graph.rope.yarn_mu == YarnMu::None);
    match keys.map(|key| scope.kv(key).as_float()) {
        [Some(stated), Some(factor), None]
            if has_key && (stated / log_magnitude(factor, 1.0) - 1.0).abs() > FACTOR_TOLERANCE =>
        {
            "attn_factor"
        }
        _ => READ,
    }
}

fn rope_scaling(
    scope: &Scope<'_>,
    truncate: Option<bool>,
    factor_name: &str,
    yarn_mu: YarnMu,
    rope_freqs: Option<&RopeFreqsLlama3>,
) -> Option<Json> {
    if let Some(params) = rope_freqs {
        let context =
            if params.context.fract() == 0.0 { json!(params.context as u64) } else { json!(params.context) };
        return Some(json!({
            "rope_type": "llama3",
            "factor": params.factor,
            "low_freq_factor": params.low_freq_factor,
            "high_freq_factor": params.high_freq_factor,
            "original_max_position_embeddings": context,
        }));
    }
    let factors = |name: &str| match scope.values.values(name, None) {
        Ok(Datum::List(items)) => Some(Json::Array(items.iter().map(short_decimal).collect())),
        _ => None,
    };
    if let (Some(long), Some(short)) = (factors(LONG_FACTORS), factors(SHORT_FACTORS)) {
        // No other members: some classes count them.
        return Some(json!({ "type": "longrope", "long_factor": long, "short_factor": short }));
    }
    let sections = match scope.kv("rope.dimension_sections") {
        Datum::List(items) if items.iter().any(Datum::truth) => Some(items),
        _ => None,
    };
    let kind = scope.kv("rope.scaling.type");
    let kind: &str = match (&kind, &sections) {
        (Datum::Text(kind), _) if &**kind != "none" => kind,
        (_, Some(_)) => "default",
        _ => return None,
    };
    let mut scaling = Map::new();
    scaling.insert("rope_type".to_owned(), json!(kind));
    if let Some(sections) = sections {
        // A fourth section may be there only to fill the key.
        let used = sections.iter().rposition(Datum::truth).map_or(0, |last| last + 1).max(3);
        let used: Vec<Json> = sections.iter().take(used).map(Datum::to_json).collect();
        scaling.insert("mrope_section".to_owned(), Json::Array(used));
    }
    magnitudes(scope, yarn_mu, kind, &mut scaling);
    // GGUF has no key for it: an annotation or the model's graph declares it.
    if kind == "yarn" && truncate == Some(false) {
        scaling.insert("truncate".to_owned(), json!(false));
    }
    for (key, gguf) in ROPE_SCALING {
        let value = scope.kv(gguf);
        if !value.is_null() {
            let key = if *gguf == YARN_FACTOR { factor_name } else { *key };
            scaling.insert(key.to_owned(), value.to_json());
        }
    }
    Some(Json::Object(scaling))
}

/// Adds the members with which a class computes the magnitudes that the runtime does.
fn magnitudes(scope: &Scope<'_>, yarn_mu: YarnMu, kind: &str, scaling: &mut Map<String, Json>) {
    let number = |key: &str| scope.kv(&format!("rope.scaling.{key}")).as_float();
    let (Some(factor), "linear" | "yarn") = (number("factor"), kind) else { return };
    let (is_yarn, attn_factor) = (kind == "yarn", number("attn_factor"));
    let found =
        yarn_mu.magnitudes(is_yarn, factor, number("yarn_log_multiplier"), attn_factor.unwrap_or(1.0));
    let near = |other: f64| (found.angles / other - 1.0).abs() <= FACTOR_TOLERANCE;
    let all = (log_multiplier(factor, found.scores) * 1e6).round() / 1e6;
    if all != 0.0 {
        scaling.insert("mscale_all_dim".to_owned(), json!(all));
    }
    if !is_yarn || (attn_factor.is_none() && !yarn_mu.scales_scores()) || near(log_magnitude(factor, 1.0)) {
        return;
    }
    // One number for both means that the angles have no magnitude.
    let (member, value) =
        if near(1.0) && all != 0.0 { ("mscale", all) } else { ("attention_factor", found.angles) };
    scaling.insert(member.to_owned(), json!(value));
}

/// Returns a number of an F32 tensor as the shortest decimal that reads back as the same number.
fn short_decimal(number: &Datum) -> Json {
    match number.as_float() {
        Some(number) => json!((number as f32).to_string().parse::<f64>().unwrap_or(number)),
        None => Json::Null,
    }
}
