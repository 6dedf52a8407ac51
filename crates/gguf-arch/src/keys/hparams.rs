//! From a configuration to the one that expressions see.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::attributes::Attributes;
use crate::error::ArchError;
use crate::error::warning::ArchWarning;
use crate::keys::resaved;
use crate::language::eval::{Root, Scope};
use crate::language::expr::Expr;
use crate::language::names::Captures;
use crate::read::schema::{Card, CardKind, DefaultValue};
use crate::read::visit;

/// Members of a configuration.
pub(crate) type ConfigMap = Map<String, Json>;

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

/// Members of a configuration that describe towers.
const TOWER_PARTS: [&str; 2] = ["audio_config", "vision_config"];

/// Keys of the rope base outside `rope_parameters`; the first present one is used.
pub(crate) const ROPE_BASES: [&str; 5] =
    ["global_rope_theta", "rope_global_theta", "rope_theta_global", "rope_theta", "rotary_emb_base"];
/// Keys of the rotated fraction of a head outside `rope_parameters`; the first present one is used.
pub(crate) const ROPE_PARTS: [&str; 3] = ["partial_rotary_factor", "rope_pct", "rope_percent"];

/// Keys of `config.json` that [`rope`] reads.
pub(crate) const ROPE_KEYS: &[&str] = &[
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
pub(crate) fn complete(card: &Card, config: &ConfigMap, scope: &Scope<'_>) -> Result<ConfigMap> {
    let mut config = config.clone();
    if card.kind == CardKind::Mmproj {
        return with_part_defaults(card, config, scope);
    }
    Attributes::spell(&mut config, &|key| visit::mentions(card, key));
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
fn with_part_defaults(card: &Card, config: ConfigMap, scope: &Scope<'_>) -> Result<ConfigMap> {
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
        for key in SQUARE {
            if let Some(side) = members.get(key).and_then(side) {
                members.insert(key.to_owned(), side);
            }
        }
        let members = with_defaults(card, members, scope)?;
        config.insert(part.to_owned(), Json::Object(members));
    }
    Ok(config)
}

/// Sizes of towers that some configurations give as height and width.
const SQUARE: [&str; 2] = ["image_size", "patch_size"];

/// Returns the side of a square whose height and width are given.
fn side(size: &Json) -> Option<Json> {
    let [height, width] = size.as_array()?.as_slice() else { return None };
    (height == width && height.is_number()).then(|| height.clone())
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

fn with_defaults(card: &Card, mut config: ConfigMap, scope: &Scope<'_>) -> Result<ConfigMap> {
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
    config: &ConfigMap,
    outer: &Scope<'_>,
) -> Result<Json> {
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
pub(crate) fn rope(config: &ConfigMap) -> ConfigMap {
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

/// Returns a warning if the configuration has both descriptions of the rope, and they differ.
pub(crate) fn two_ropes(config: &ConfigMap) -> Option<ArchWarning> {
    let of = |name: &str| config.get(name).and_then(Json::as_object);
    let (taken, other) = of("rope_parameters").zip(of("rope_scaling"))?;
    let is_same = |key: &str, value: &Json| {
        let taken = taken.get(if key == "type" { "rope_type" } else { key }).or_else(|| taken.get(key));
        taken.is_some_and(|taken| taken == value || value.is_number() && taken.as_f64() == value.as_f64())
    };
    (!other.iter().all(|(key, value)| value.is_null() || is_same(key, value)))
        .then_some(ArchWarning::TwoRopes)
}

/// Returns the roots `rope`, `rope_full` and `rope_swa`, after checking the rope type.
pub(crate) fn rope_roots(config: &ConfigMap) -> Result<[(&'static str, Root<'static>); 3]> {
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

/// Applies the changes of the configuration that metadata sees and tensors do not.
pub(crate) fn set_for_metadata(card: &Card, scope: &mut Scope<'_>) -> Result<()> {
    change(card, "`metadata_set`", &card.metadata_set, &card.metadata_drop, scope)
}

/// Changes the configuration of a scope: sets values that are not null, then removes keys. `section` names the table of
/// `set` in errors.
pub(crate) fn change(
    card: &Card,
    section: &str,
    set: &[(String, Expr)],
    drop: &[String],
    scope: &mut Scope<'_>,
) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_descriptions_of_the_rope_may_not_differ() {
        let both = |json: &str| two_ropes(&serde_json::from_str(json).unwrap()).is_some();
        let taken = r#""rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 1e4}"#;
        for (other, differs) in [
            (r#"{"type": "yarn", "factor": 4.0}"#, false),
            ("null", false),
            ("{}", false),
            (r#"{"type": "linear", "factor": 4.0}"#, true),
            (r#"{"rope_type": "yarn", "factor": 8}"#, true),
            (r#"{"rope_type": "yarn", "factor": 4, "beta_fast": 1}"#, true),
        ] {
            assert_eq!(both(&format!(r#"{{{taken}, "rope_scaling": {other}}}"#)), differs, "{other}");
        }
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
}
