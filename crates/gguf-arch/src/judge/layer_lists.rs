//! Lists of a configuration that have an entry for each layer. A model whose layers were removed, or a configuration of
//! another model, has lists of another length; nothing says which entry then belongs to which layer.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::error::ArchError;
use crate::error::warning::ArchWarning;
use crate::mapping::heads::{own_blocks_key, stated_heads};
use crate::read::base;

/// Lists whose length transformers compares with the number of layers.
const STRICT: [&str; 3] = ["layer_types", "layers_block_type", "mlp_layer_types"];

/// Compares the lists by layer with the number of layers, in the configuration and its text part. A list may count the
/// layers of draft heads. Of other longer lists the first entries are kept, as transformers reads them.
///
/// # Errors
/// A list with too few entries, or a longer one that transformers refuses.
pub(crate) fn settle(config: &mut Map<String, Json>) -> Result<Vec<ArchWarning>> {
    let mut warnings = settle_part(config)?;
    if let Some(Json::Object(text)) = config.get_mut("text_config") {
        warnings.extend(settle_part(text)?);
    }
    Ok(warnings)
}

fn settle_part(part: &mut Map<String, Json>) -> Result<Vec<ArchWarning>> {
    let mut warnings = Vec::new();
    let Some((layers_key, n_layers)) = own_blocks_key(part) else { return Ok(warnings) };
    let most = n_layers.saturating_add(stated_heads(part));
    let model_type = part.get("model_type").and_then(Json::as_str).unwrap_or_default();
    let is_by_modality = base().by_modality.iter().any(|own| own == model_type);
    for key in base().by_layer.iter().filter(|key| !(is_by_modality && key.starts_with("moe_"))) {
        let is_strict = STRICT.contains(&key.as_str());
        // Other empty lists count as absent.
        let list = part.get_mut(key).and_then(Json::as_array_mut);
        let Some(list) = list.filter(|list| is_strict || !list.is_empty()) else { continue };
        let n_entries = list.len() as u64;
        if (n_layers..=most).contains(&n_entries) {
            continue;
        }
        if n_entries < n_layers || is_strict {
            return Err(ArchError::LayerList { key: key.clone(), n_entries, layers_key, n_layers });
        }
        list.truncate(usize::try_from(n_layers).unwrap_or(usize::MAX));
        warnings.push(ArchWarning::LongList { key: key.clone(), n_entries, layers_key, n_layers });
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(json: &str) -> Result<(Json, Vec<String>), String> {
        let mut config: Map<String, Json> = serde_json::from_str(json).unwrap();
        let warnings = settle(&mut config).map_err(|error| error.to_string())?;
        Ok((config.into(), warnings.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn lists_have_an_entry_for_each_layer() {
        for json in [
            r#"{"num_hidden_layers": 2, "layer_types": ["a", "b"], "no_rope_layers": []}"#,
            r#"{"n_layer": 2, "num_nextn_predict_layers": 1, "compress_ratios": [0, 4, 0], "layer_types": ["a", "b"]}"#,
            r#"{"num_hidden_layers": 2, "num_attention_heads": 4, "layer_types": null, "eos_token_id": [1, 2, 3]}"#,
            r#"{"layer_types": ["a"], "text_config": {"num_layers": 1, "layer_types": ["a"]}}"#,
        ] {
            let (config, warnings) = settled(json).unwrap();
            assert!(warnings.is_empty(), "{json}");
            assert_eq!(config, serde_json::from_str::<Json>(json).unwrap());
        }
        assert_eq!(
            settled(r#"{"num_hidden_layers": 1, "layer_types": ["a", "b"]}"#).unwrap_err(),
            "config.json: `layer_types` has 2 entries, and `num_hidden_layers` is 1: nothing says which entry belongs to \
             which layer"
        );
        for (json, key) in [
            (r#"{"text_config": {"n_layers": 3, "mlp_layer_types": ["a", "b"]}}"#, "mlp_layer_types"),
            (r#"{"num_hidden_layers": 3, "num_key_value_heads": [1, 2]}"#, "num_key_value_heads"),
            (r#"{"num_hidden_layers": 3, "layer_types": []}"#, "layer_types"),
            (
                r#"{"num_hidden_layers": 3, "num_mtp_layers": 1, "layers_block_type": [1, 1, 1, 1, 1]}"#,
                "layers_block_type",
            ),
        ] {
            assert!(settled(json).unwrap_err().contains(&format!("`{key}` has ")), "{json}");
        }
        let (config, warnings) = settled(r#"{"num_hidden_layers": 2, "no_rope_layers": [1, 1, 0]}"#).unwrap();
        assert_eq!(config["no_rope_layers"], serde_json::json!([1, 1]));
        assert_eq!(
            warnings,
            [
                "config.json: `no_rope_layers` has 3 entries, and `num_hidden_layers` is 2: the first 2 are read, as \
              transformers does"
            ]
        );
    }
}
