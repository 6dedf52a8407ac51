//! From a configuration to the one that expressions see, and from rows to metadata keys and values.

use std::sync::LazyLock;

use serde_json::{Map, Value as Json};

use crate::arch::datum::Datum;
use crate::arch::error::ArchError;
use crate::arch::eval::{Root, Scope};
use crate::arch::expr::Expr;
use crate::arch::names::Captures;
use crate::arch::read;
use crate::arch::resaved;
use crate::arch::schema::{Card, CardKind, DefaultValue, Row};
use crate::core::numeric::held_by_f32;
use crate::gguf::keys::{ANNOTATION_PREFIX, KeyInfo, annotation_info, key_info, key_type};
use crate::gguf::{Array, Metadata, Value, ValueType};

type Config = Map<String, Json>;

/// Known rope types. Those that need a key or tensor of their own get it in rows or cards.
const ROPE_TYPES: &[&str] = &[
    "default",
    "linear",
    "yarn",
    "su",
    "longrope",
    "dynamic",
    "llama3",
    "mrope",
    "proportional",
    "xdrope",
    "none",
];

/// The rows of `["include", "base"]`: key, expression, condition.
///
/// # Exactness
/// Equals `TextModel.set_gguf_parameters` of llama.cpp 0.5.0, in its order.
#[rustfmt::skip]
const BASE: &[(&str, &str, &str)] = &[
    ("block_count", "block_count", ""),
    ("context_length", "first(max_position_embeddings, n_ctx, n_positions, max_length, max_sequence_length, model_max_length)", ""),
    ("embedding_length", "first(hidden_size, n_embd, dim)", ""),
    ("feed_forward_length", "first(prefix_dense_intermediate_size, dense_intermediate_size, intermediate_size, n_inner, hidden_dim)", ""),
    ("attention.head_count", "first(num_attention_heads, n_head, n_heads)", ""),
    ("attention.head_count_kv", "first(num_key_value_heads, n_kv_heads)", ""),
    ("attention.causal", "false", "is_causal? == false"),
    ("rope.scaling.type", "rope_full.rope_type", "rope_full.rope_type? in ['linear', 'yarn'] and rope_full.factor? != null"),
    ("rope.scaling.type", "'longrope'", "rope_full.rope_type? in ['su', 'longrope']"),
    ("rope.scaling.factor", "rope_full.factor?", "rope_full.rope_type? in ['linear', 'yarn']"),
    ("rope.scaling.original_context_length", "rope_full.original_max_position_embeddings?", "rope_full.rope_type? == 'yarn' and rope_full.factor? != null"),
    ("rope.scaling.yarn_ext_factor", "rope_full.extrapolation_factor?", "rope_full.rope_type? == 'yarn' and rope_full.factor? != null"),
    ("rope.scaling.yarn_attn_factor", "first(rope_full.attention_factor, rope_full.attn_factor)", "rope_full.rope_type? == 'yarn' and rope_full.factor? != null"),
    ("rope.scaling.yarn_beta_fast", "rope_full.beta_fast?", "rope_full.rope_type? == 'yarn' and rope_full.factor? != null"),
    ("rope.scaling.yarn_beta_slow", "rope_full.beta_slow?", "rope_full.rope_type? == 'yarn' and rope_full.factor? != null"),
    ("rope.dimension_sections", "layers(if(bid < len(rope.mrope_section), rope.mrope_section[bid], 0), 4)", "rope.mrope_section? != null"),
    ("rope.freq_base", "rope_full.rope_theta?", ""),
    ("rope.freq_base_swa", "rope_swa.rope_theta?", ""),
    ("attention.layer_norm_rms_epsilon", "first(rms_norm_eps, norm_eps)", ""),
    ("attention.layer_norm_epsilon", "first(layer_norm_eps, layer_norm_epsilon, norm_epsilon)", ""),
    ("expert_count", "first(num_local_experts, num_experts, n_routed_experts)", ""),
    ("expert_used_count", "first(num_experts_per_tok, num_experts_per_token, top_k_experts)", ""),
    ("expert_group_count", "n_group?", ""),
    ("expert_group_used_count", "topk_group?", ""),
    ("expert_gating_func", "lookup(gating, first(score_function, scoring_func, score_func, moe_router_activation, moe_router_activation_func, expert_selection_fn))", ""),
    ("attention.key_length", "head_dim?", ""),
    ("attention.value_length", "head_dim?", ""),
    ("general.file_type", "file_type", ""),
];

/// Members of a configuration that describe towers.
const TOWER_PARTS: [&str; 2] = ["audio_config", "vision_config"];

/// Keys of the rope base outside `rope_parameters`; the first present one is used.
pub(super) const ROPE_BASES: [&str; 5] =
    ["global_rope_theta", "rope_global_theta", "rope_theta_global", "rope_theta", "rotary_emb_base"];
/// Keys of the rotated fraction of a head outside `rope_parameters`; the first present one is used.
pub(super) const ROPE_PARTS: [&str; 3] = ["partial_rotary_factor", "rope_pct", "rope_percent"];

/// Keys of `config.json` that [`rope`] reads.
pub(super) const ROPE_KEYS: &[&str] = &[
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "global_rope_theta",
    "rope_global_theta",
    "rope_theta_global",
    "rotary_emb_base",
    "local_rope_theta",
    "rope_local_theta",
    "rope_theta_local",
    "swa_rope_theta",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "rope_pct",
    "rope_percent",
    "original_max_position_embeddings",
];

/// Returns the configuration for expressions: the text part on top, defaults filled in.
///
/// # Exactness
/// Equals what llama.cpp's converter reads through transformers 4.57.6, for the keys a card lists.
pub(super) fn complete(card: &Card, config: &Config, scope: &Scope<'_>) -> Result<Config, ArchError> {
    let mut config = config.clone();
    if card.kind == CardKind::Mmproj {
        return with_part_defaults(card, config, scope);
    }
    resaved::complete(&mut config);
    if let Some(Json::Object(text)) = config.get_mut("text_config") {
        resaved::complete(text);
    }
    if !card.raw_config {
        config = with_defaults(card, config, scope)?;
        if let Some(Json::Object(text)) = config.get("text_config").cloned() {
            let text = with_defaults(card, text, scope)?;
            config.insert("text_config".to_owned(), Json::Object(text));
        }
    }
    if let Some(Json::Object(text)) = config.get("text_config").cloned() {
        config.extend(text);
    }
    Ok(config)
}

/// Returns the configuration for a card of towers: its parts stay nested, each with the defaults of its own type. A
/// part without a type has that of the card's only defaults.
fn with_part_defaults(card: &Card, config: Config, scope: &Scope<'_>) -> Result<Config, ArchError> {
    let mut config = config;
    let only = match card.defaults.keys().collect::<Vec<_>>()[..] {
        [only] => Some(only),
        _ => None,
    };
    for part in TOWER_PARTS {
        let Some(Json::Object(members)) = config.get(part) else { continue };
        let mut members = members.clone();
        if let (false, Some(only)) = (members.contains_key("model_type"), only) {
            members.insert("model_type".to_owned(), only.as_str().into());
        }
        let members = with_defaults(card, members, scope)?;
        config.insert(part.to_owned(), Json::Object(members));
    }
    Ok(config)
}

/// Keys whose null has a meaning of its own in transformers' classes. Any other null counts as absent.
const NULLABLE: &[&str] = &[
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "layer_types",
    "n_group",
    "pad_token_id",
    "q_lora_rank",
    "rope_scaling",
    "sliding_window",
    "sliding_window_pattern",
    "topk_group",
];

fn with_defaults(card: &Card, mut config: Config, scope: &Scope<'_>) -> Result<Config, ArchError> {
    let Some(model_type) = config.get("model_type").and_then(Json::as_str).map(str::to_owned) else {
        return Ok(config);
    };
    for (alias, key) in card.aliases.get(&model_type).into_iter().flatten() {
        if let Some(value) = config.remove(alias) {
            config.insert(key.clone(), value);
        }
    }
    for (key, default) in card.defaults.get(&model_type).into_iter().flatten() {
        let value = match config.get(key) {
            None => &default.value,
            Some(Json::Null) => match &default.null {
                Some(null) => null,
                None if NULLABLE.contains(&key.as_str()) => continue,
                None => &default.value,
            },
            Some(Json::String(text)) if default.auto && text == "auto" => &default.value,
            Some(_) => continue,
        };
        let value = evaluate_default(card, key, value, &config, scope)?;
        config.insert(key.clone(), value);
    }
    Ok(config)
}

/// Evaluates a default. Its expression sees the configuration as completed so far.
fn evaluate_default(
    card: &Card,
    key: &str,
    value: &DefaultValue,
    config: &Config,
    outer: &Scope<'_>,
) -> Result<Json, ArchError> {
    match value {
        DefaultValue::Literal(json) => Ok(json.clone()),
        DefaultValue::Expr(expr) => {
            let scope = Scope { config: config.clone(), roots: outer.roots.clone(), ..Scope::default() };
            let value = scope.eval(expr, Captures::default());
            let at = || format!("default of `{key}`");
            Ok(value.map_err(|source| ArchError::Eval { card: card.name(), at: at(), source })?.to_json())
        }
    }
}

/// Returns one description of the rope from the many forms in configurations.
///
/// # Exactness
/// Equals the constructor of `TextModel` in llama.cpp 0.5.0, except that a null counts as absent.
pub(super) fn rope(config: &Config) -> Config {
    let is_given = |name: &str| config.get(name).is_some_and(|value| !value.is_null());
    let given = if is_given("rope_parameters") { "rope_parameters" } else { "rope_scaling" };
    let mut rope = config.get(given).and_then(Json::as_object).cloned().unwrap_or_default();
    if rope.contains_key("full_attention") || rope.contains_key("sliding_attention") {
        return rope;
    }
    let first = |keys: &[&str]| {
        keys.iter().find_map(|key| config.get(*key)).filter(|value| !value.is_null()).cloned()
    };
    let sliding = first(&[
        "local_rope_theta",
        "rope_local_theta",
        "rope_theta_local",
        "swa_rope_theta",
        "rope_local_base_freq",
    ]);
    if let Some(theta) = sliding {
        let sliding = Map::from_iter([("rope_theta".to_owned(), theta)]);
        rope.insert("sliding_attention".to_owned(), Json::Object(sliding));
    }
    let mut fill = |key: &str, value: Option<Json>| {
        if let (false, Some(value)) = (rope.contains_key(key), value) {
            rope.insert(key.to_owned(), value);
        }
    };
    fill("rope_theta", first(&ROPE_BASES));
    let own_type = config.get(given).and_then(|rope| rope.get("type")).filter(|own| !own.is_null()).cloned();
    fill("rope_type", own_type);
    fill("partial_rotary_factor", first(&ROPE_PARTS));
    fill("original_max_position_embeddings", first(&["original_max_position_embeddings"]));
    rope
}

/// Returns the roots `rope`, `rope_full` and `rope_swa`, after checking the rope type.
pub(super) fn rope_roots(config: &Config) -> Result<[(&'static str, Root<'static>); 3], ArchError> {
    let rope = rope(config);
    let member = |name: &str| rope.get(name).and_then(Json::as_object).cloned();
    let full = member("full_attention").unwrap_or_else(|| rope.clone());
    let sliding = member("sliding_attention").unwrap_or_default();
    let mut full = full;
    if let Some(found) = full.get("rope_type").and_then(Json::as_str).map(str::to_lowercase) {
        if !ROPE_TYPES.contains(&found.as_str()) {
            return Err(ArchError::RopeType { found, known: ROPE_TYPES });
        }
        if found == "llama3" {
            full.insert("rope_type".to_owned(), Json::from(found));
        }
    }
    Ok([
        ("rope", Root::Value(Json::Object(rope))),
        ("rope_full", Root::Value(Json::Object(full))),
        ("rope_swa", Root::Value(Json::Object(sliding))),
    ])
}

/// Returns the full key of a row: with the architecture in front if the table of well-known keys has it so.
#[must_use]
pub(super) fn full_key(key: &str, arch: &str) -> Option<String> {
    let prefixed = format!("{arch}.{key}");
    if key_type(&prefixed, arch).is_some() {
        return Some(prefixed);
    }
    key_type(key, arch).map(|_| key.to_owned())
}

/// Returns true if a row of the card may write `key`, a full GGUF key.
pub(super) fn has_row(card: &Card, key: &str) -> bool {
    has_own_row(card, key)
        || (card.metadata.contains(&Row::Base) && base_rows().iter().any(|row| is_of(row, key, &card.gguf)))
}

/// Returns the first configuration name in the row of a card that writes `key`, a full GGUF key.
pub(super) fn name_in_row(card: &Card, key: &str) -> Option<String> {
    let own = card.early.iter().chain(&card.metadata);
    let base = base_rows().iter().filter(|_| card.metadata.contains(&Row::Base));
    own.chain(base).filter(|row| is_of(row, key, &card.gguf)).find_map(|row| {
        let Row::Key { value, .. } = row else { return None };
        let mut found = None;
        value.walk(&mut |expr| {
            if let (Expr::Path(path), None) = (expr, &found)
                && !card.lets.contains_key(&path.root)
            {
                found = Some(path.to_string());
            }
        });
        found
    })
}

/// As [`has_row`], without the rows of `["include", "base"]`.
pub(super) fn has_own_row(card: &Card, key: &str) -> bool {
    card.early.iter().chain(&card.metadata).any(|row| is_of(row, key, &card.gguf))
}

/// Returns true if the row writes this key in files of the architecture.
fn is_of(row: &Row, wanted: &str, arch: &str) -> bool {
    matches!(row, Row::Key { key, .. } if full_key(key, arch).is_some_and(|full| full == wanted))
}

/// Returns the keys that `["include", "base"]` may write.
pub(super) fn base_keys() -> impl Iterator<Item = &'static str> {
    BASE.iter().map(|row| row.0)
}

/// Returns the rows of `["include", "base"]`.
pub(super) fn base_rows() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
        // All rows parse: a test covers each.
        BASE.iter().filter_map(|(key, value, when)| read::key_row(key, value, when).ok()).collect()
    });
    &ROWS
}

/// Returns every key that a card may write: its rows, its annotations, the rows around its tokenizer.
#[cfg(test)]
pub(crate) fn derived_keys(card: &Card) -> Vec<String> {
    let names = |row: &Row| match row {
        Row::Base => base_keys().map(str::to_owned).collect(),
        Row::Key { key, .. } => vec![key.clone()],
    };
    let tokenizer = card.tokenizer.before.iter().chain(&card.tokenizer.after);
    let rows = card.early.iter().chain(&card.metadata).chain(tokenizer).flat_map(names);
    let full = rows.map(|key| full_key(&key, &card.gguf).unwrap_or(key));
    full.chain(card.annotate.iter().flat_map(names).map(|key| format!("{ANNOTATION_PREFIX}{key}"))).collect()
}

/// Applies the changes of the configuration that metadata sees and tensors do not.
pub(super) fn set_for_metadata(card: &Card, scope: &mut Scope<'_>) -> Result<(), ArchError> {
    change(card, "`metadata_set`", &card.metadata_set, &card.metadata_drop, scope)
}

/// Changes the configuration of a scope: sets values that are not null, then removes keys. `section` names the table of
/// `set` in errors.
pub(super) fn change(
    card: &Card,
    section: &str,
    set: &[(String, Expr)],
    drop: &[String],
    scope: &mut Scope<'_>,
) -> Result<(), ArchError> {
    for (key, value) in set {
        let failed = |source| ArchError::Eval { card: card.name(), at: section.to_owned(), source };
        let value = scope.eval(value, Captures::default()).map_err(failed)?;
        if !value.is_null() {
            scope.config.insert(key.clone(), value.to_json());
        }
    }
    for key in drop {
        scope.config.remove(key);
    }
    Ok(())
}

/// Evaluates the card's `annotate`: keys under `gguf_foundry.`, in the order of the rows.
pub(super) fn annotations(card: &Card, scope: &Scope<'_>) -> Result<Metadata, ArchError> {
    let mut metadata = Metadata::new();
    for row in &card.annotate {
        let Row::Key { key, .. } = row else { continue };
        if let (Some(info), Some(datum)) = (annotation_info(key), row_value(card, "annotate", row, scope)?) {
            let full = format!("{ANNOTATION_PREFIX}{key}");
            if let Some(value) = typed(&full, info, &datum)? {
                metadata.set(full, value);
            }
        }
    }
    Ok(metadata)
}

/// Evaluates rows into `metadata`. Null, empty texts and empty lists write nothing; an existing key is replaced.
pub(super) fn apply_rows(
    card: &Card,
    section: &str,
    rows: &[Row],
    scope: &Scope<'_>,
    metadata: &mut Metadata,
) -> Result<(), ArchError> {
    for row in rows {
        match row {
            Row::Base => {
                for (key, value, when) in BASE {
                    // A test parses the table, so no card can make this fail.
                    let row = read::key_row(key, value, when).map_err(|problem| ArchError::Card {
                        card: card.name(),
                        problem: Box::new(problem),
                    })?;
                    apply_row(card, section, &row, scope, metadata)?;
                }
            }
            row @ Row::Key { .. } => apply_row(card, section, row, scope, metadata)?,
        }
    }
    Ok(())
}

fn apply_row(
    card: &Card,
    section: &str,
    row: &Row,
    scope: &Scope<'_>,
    metadata: &mut Metadata,
) -> Result<(), ArchError> {
    let Row::Key { key, .. } = row else { return Ok(()) };
    if let Some(datum) = row_value(card, section, row, scope)?
        && let Some(full) = full_key(key, &card.gguf)
        && let Some(info) = key_info(&full, &card.gguf)
        && let Some(value) = typed(&full, info, &datum)?
    {
        metadata.set(full, value);
    }
    Ok(())
}

/// Returns a row's value; `None` if its condition is false.
fn row_value(card: &Card, section: &str, row: &Row, scope: &Scope<'_>) -> Result<Option<Datum>, ArchError> {
    let Row::Key { key, value, when } = row else { return Ok(None) };
    let failed = |source| ArchError::Eval { card: card.name(), at: format!("{section} `{key}`"), source };
    if !scope.holds(when.as_ref(), Captures::default()).map_err(failed)? {
        return Ok(None);
    }
    scope.eval(value, Captures::default()).map(Some).map_err(failed)
}

/// Returns the GGUF value of a datum under a well-known key; `None` if nothing is written.
///
/// A scalar takes the type of its key. A list takes the type of its first element (integers are I32), as in gguf-py,
/// unless the key's elements have a type of 64 bits.
fn typed(key: &str, info: &KeyInfo, datum: &Datum) -> Result<Option<Value>, ArchError> {
    let wrong = |datum: &Datum, expected| ArchError::KeyValue {
        key: key.to_owned(),
        value: datum.to_string(),
        expected,
    };
    match datum {
        Datum::Null => Ok(None),
        Datum::Text(text) if text.is_empty() => Ok(None),
        Datum::List(items) => {
            let element = match (info.value_type, items.first()) {
                (_, None) => return Ok(None),
                (wide @ (ValueType::U64 | ValueType::I64), _) => wide,
                (_, Some(Datum::Bool(_))) => ValueType::Bool,
                (_, Some(Datum::Int(_))) => ValueType::I32,
                (_, Some(Datum::Float(_))) => ValueType::F32,
                (_, Some(Datum::Text(_))) => ValueType::String,
                (_, Some(other)) => return Err(wrong(other, info.value_type)),
            };
            array(items, element).map(Some).ok_or_else(|| wrong(datum, element))
        }
        _ => scalar(datum, info.value_type).map(Some).ok_or_else(|| wrong(datum, info.value_type)),
    }
}

fn scalar(datum: &Datum, ty: ValueType) -> Option<Value> {
    Some(match ty {
        ValueType::Bool => match datum {
            Datum::Bool(value) => Value::Bool(*value),
            Datum::Int(value @ (0 | 1)) => Value::Bool(*value == 1),
            _ => return None,
        },
        ValueType::String => match datum {
            Datum::Text(text) => Value::from(&**text),
            _ => return None,
        },
        ValueType::F32 => match datum {
            Datum::Bool(_) => return None,
            _ => Value::F32(held_by_f32(datum.as_float()?)?),
        },
        ValueType::F64 => Value::F64(datum.as_float()?),
        ValueType::U8 => Value::U8(datum.as_int()?.try_into().ok()?),
        ValueType::I8 => Value::I8(datum.as_int()?.try_into().ok()?),
        ValueType::U16 => Value::U16(datum.as_int()?.try_into().ok()?),
        ValueType::I16 => Value::I16(datum.as_int()?.try_into().ok()?),
        ValueType::U32 => Value::U32(datum.as_int()?.try_into().ok()?),
        ValueType::I32 => Value::I32(datum.as_int()?.try_into().ok()?),
        ValueType::U64 => Value::U64(datum.as_int()?.try_into().ok()?),
        ValueType::I64 => Value::I64(datum.as_int()?.try_into().ok()?),
        ValueType::Array => return None,
    })
}

/// Converts to F32. Unlike a configuration, a card may compute an infinity, which runtimes accept (Gemma 3n: the
/// threshold of a share of 0).
fn held_or_infinite(value: f64) -> Option<f32> {
    if value.is_infinite() { Some(value as f32) } else { held_by_f32(value) }
}

fn array(items: &[Datum], ty: ValueType) -> Option<Value> {
    // All of one kind: gguf-py refuses a mixture of integers and floats.
    let ints = || items.iter().map(|item| matches!(item, Datum::Int(_)).then(|| item.as_int()).flatten());
    Some(Value::Array(match ty {
        ValueType::Bool => Array::Bool(
            items
                .iter()
                .map(|item| if let Datum::Bool(value) = item { Some(*value) } else { None })
                .collect::<Option<_>>()?,
        ),
        ValueType::I32 => Array::I32(ints().map(|int| int?.try_into().ok()).collect::<Option<_>>()?),
        ValueType::U64 => Array::U64(ints().map(|int| int?.try_into().ok()).collect::<Option<_>>()?),
        ValueType::I64 => Array::I64(ints().map(|int| int?.try_into().ok()).collect::<Option<_>>()?),
        ValueType::F32 => Array::F32(
            items
                .iter()
                .map(|item| if let Datum::Float(value) = item { held_or_infinite(*value) } else { None })
                .collect::<Option<_>>()?,
        ),
        ValueType::String => Array::String(
            items
                .iter()
                .map(|item| if let Datum::Text(text) = item { Some(text.as_bytes().to_vec()) } else { None })
                .collect::<Option<_>>()?,
        ),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_rows_parse_and_have_known_keys() {
        for (key, value, when) in BASE {
            read::key_row(key, value, when).unwrap();
            assert!(full_key(key, "llama").is_some(), "{key}");
        }
        assert_eq!(full_key("block_count", "llama").as_deref(), Some("llama.block_count"));
        assert_eq!(
            full_key("tokenizer.ggml.add_bos_token", "llama").as_deref(),
            Some("tokenizer.ggml.add_bos_token")
        );
        assert_eq!(full_key("no_such_key", "llama"), None);
    }

    #[test]
    fn rope_is_normalized() {
        let rope = |json: &str| Json::Object(rope(&serde_json::from_str(json).unwrap())).to_string();
        assert_eq!(rope(r#"{"rope_theta": 1e4, "rope_scaling": null}"#), r#"{"rope_theta":10000.0}"#);
        assert_eq!(
            rope(r#"{"rope_scaling": {"type": "yarn", "factor": 2}, "original_max_position_embeddings": 9}"#),
            r#"{"type":"yarn","factor":2,"rope_type":"yarn","original_max_position_embeddings":9}"#
        );
        assert_eq!(
            rope(r#"{"rope_parameters": {"full_attention": {"rope_theta": 1}}, "rope_theta": 5}"#),
            r#"{"full_attention":{"rope_theta":1}}"#
        );
        assert_eq!(
            rope(r#"{"rope_theta": 5, "rope_local_base_freq": 7}"#),
            r#"{"sliding_attention":{"rope_theta":7},"rope_theta":5}"#
        );
        let unknown = serde_json::from_str(r#"{"rope_scaling": {"rope_type": "spiral"}}"#).unwrap();
        assert!(matches!(rope_roots(&unknown), Err(ArchError::RopeType { found, .. }) if found == "spiral"));
    }

    #[test]
    fn values_take_the_type_of_their_key() {
        let value = |key: &str, json: &str| {
            let info = key_info(key, "llama").unwrap();
            typed(key, info, &Datum::from_json(&serde_json::from_str(json).unwrap()))
                .map_err(|e| e.to_string())
        };
        assert_eq!(value("llama.block_count", "7"), Ok(Some(Value::U32(7))));
        assert_eq!(value("llama.rope.freq_base", "10000"), Ok(Some(Value::F32(1e4))));
        assert_eq!(value("llama.block_count", "null"), Ok(None));
        assert_eq!(value("llama.block_count", "[]"), Ok(None));
        assert_eq!(value("llama.attention.head_count_kv", "[1, 2]"), Ok(Some(Value::from(vec![1i32, 2]))));
        assert_eq!(value("llama.ple.layer_multipliers", "[1]"), Ok(Some(Value::from(vec![1u64]))));
        assert_eq!(
            value("llama.block_count", "7.5"),
            Err("`llama.block_count`: 7.5 is not a u32".to_owned())
        );
        assert_eq!(value("llama.block_count", "-1"), Err("`llama.block_count`: -1 is not a u32".to_owned()));
        assert_eq!(
            value("llama.block_count", "[1, 2.0]"),
            Err("`llama.block_count`: a list of 2 is not a i32".to_owned())
        );
    }
}
