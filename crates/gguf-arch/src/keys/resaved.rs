//! Completes a configuration saved by transformers 5 with the keys of older versions.
//!
//! transformers 5 moves the rope parameters into `rope_parameters`, nested by layer type if types differ, and lists per
//! layer which feed-forward networks are dense. Cards read the older keys, so absent ones are added.

use serde_json::{Map, Value as Json};

/// Names of the layer types in `rope_parameters` that attend to all tokens.
const FULL: &str = "full_attention";
const ALSO_FULL: [&str; 2] = ["main", "indexed_attention"];
/// Layer type that attends to compressed keys.
const COMPRESSED: &str = "compress";

/// Older keys outside of `rope_parameters`, and the equivalent members of it.
const ROPE: [(&str, &str); 3] = [
    ("rope_theta", "rope_theta"),
    ("partial_rotary_factor", "partial_rotary_factor"),
    ("rotary_pct", "partial_rotary_factor"),
];

/// Adds the older keys.
pub(crate) fn complete(config: &mut Map<String, Json>) {
    if let Some(Json::Object(rope)) = config.get_mut("rope_parameters") {
        let rope = lifted(rope);
        for (key, member) in ROPE {
            add(config, key, rope.get(member).cloned());
        }
        let compressed = rope.get(COMPRESSED).and_then(|part| part.get("rope_theta")).cloned();
        add(config, "compress_rope_theta", compressed);
    }
    let kinds = config.get("mlp_layer_types").and_then(Json::as_array);
    let n_dense = kinds.map(|kinds| kinds.iter().take_while(|kind| *kind == "dense").count());
    add(config, "first_k_dense_replace", n_dense.map(Json::from));
}

/// Returns the parameters with those of full-attention layers under one name, and also copied to the top level.
fn lifted(rope: &mut Map<String, Json>) -> Map<String, Json> {
    for name in ALSO_FULL {
        if let (false, Some(part)) =
            (rope.contains_key(FULL), rope.get(name).filter(|part| part.is_object()).cloned())
        {
            rope.insert(FULL.to_owned(), part);
        }
    }
    if let Some(Json::Object(full)) = rope.get(FULL).cloned() {
        for (key, value) in full {
            rope.entry(key).or_insert(value);
        }
    }
    rope.clone()
}

fn add(config: &mut Map<String, Json>, key: &str, value: Option<Json>) {
    let is_absent = config.get(key).is_none_or(Json::is_null);
    if let Some(value) = value.filter(|value| is_absent && !value.is_null()) {
        config.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn completed(config: &Json) -> Json {
        let mut config = config.as_object().cloned().unwrap_or_default();
        complete(&mut config);
        Json::Object(config)
    }

    #[test]
    fn rope_keys_come_back() {
        let config =
            completed(&json!({"rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": 0.5}}));
        assert_eq!((&config["rope_theta"], &config["rotary_pct"]), (&json!(7.0), &json!(0.5)));
        let config = completed(&json!({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 7.0}}));
        assert_eq!(config["rope_theta"], json!(5.0));
        assert_eq!(config.get("rotary_pct"), None);
    }

    #[test]
    fn kinds_of_layers_have_their_own() {
        let config = completed(&json!({"rope_parameters": {
            "main": {"rope_theta": 7.0, "partial_rotary_factor": 0.25}, "compress": {"rope_theta": 9.0},
        }}));
        assert_eq!(config["rope_theta"], json!(7.0));
        assert_eq!(config["compress_rope_theta"], json!(9.0));
        assert_eq!(config["rope_parameters"]["full_attention"]["rope_theta"], json!(7.0));
        assert_eq!(config["rope_parameters"]["partial_rotary_factor"], json!(0.25));
    }

    #[test]
    fn dense_layers_are_counted() {
        assert_eq!(
            completed(&json!({"mlp_layer_types": ["dense", "sparse"]}))["first_k_dense_replace"],
            json!(1)
        );
        let both = json!({"mlp_layer_types": ["dense", "sparse"], "first_k_dense_replace": 3});
        assert_eq!(completed(&both)["first_k_dense_replace"], json!(3));
    }
}
