//! Pooling of an embedding model's token vectors, as described by sentence-transformers.

use serde_json::{Map, Value as Json};

use crate::{ConvertError, modules};
use gguf_arch::Pooling;
use gguf_checkpoint::ModelDir;

/// Reads `modules.json` and the configuration of its pooling module; `None` for a model without one.
///
/// # Errors
/// A broken file, a path that leaves the directory, a pooling for which GGUF has no number.
///
/// # Exactness
/// Equals `_try_set_pooling_type` of llama.cpp 0.5.0.
pub(super) fn read(dir: &ModelDir) -> Result<Option<Pooling>, ConvertError> {
    let Some(module) = modules::of_kind(dir, "Pooling")?.into_iter().next() else { return Ok(None) };
    let file = module.file("config.json");
    let missing = || modules::wrong(dir, &file, "file not found".to_owned());
    let config = dir.json(&file)?.ok_or_else(missing)?;
    let refused = || {
        let reason = "pools neither by mean, nor by the first (cls) or last token; GGUF has no number for it";
        modules::wrong(dir, &file, reason.to_owned())
    };
    of(&config).ok_or_else(refused).map(Some)
}

/// Returns the modes that a configuration sets, whose results sentence-transformers concatenates.
pub(super) fn modes(config: &Map<String, Json>) -> Vec<&str> {
    match config.get("pooling_mode") {
        Some(Json::String(mode)) => vec![mode],
        Some(Json::Array(modes)) => modes.iter().filter_map(Json::as_str).collect(),
        _ => config
            .keys()
            .filter(|key| is_set(config, key))
            .filter_map(|key| key.strip_prefix("pooling_mode_"))
            .collect(),
    }
}

fn is_set(config: &Map<String, Json>, key: &str) -> bool {
    match config.get(key) {
        Some(Json::Bool(is_set)) => *is_set,
        Some(Json::Number(number)) => number.as_f64() != Some(0.0),
        _ => false,
    }
}

/// Returns the first pooling mode that is set, in the reference's order.
pub(super) fn of(config: &Map<String, Json>) -> Option<Pooling> {
    let flags = [
        ("pooling_mode_mean_tokens", Pooling::Mean),
        ("pooling_mode_cls_token", Pooling::Cls),
        ("pooling_mode_lasttoken", Pooling::Last),
    ];
    // The default of sentence-transformers.
    if !config.keys().any(|key| key.starts_with("pooling_mode")) {
        return Some(Pooling::Mean);
    }
    let by_flag = flags.into_iter().find(|(key, _)| is_set(config, key)).map(|(_, pooling)| pooling);
    let listed = match config.get("pooling_mode") {
        Some(Json::Array(modes)) => modes.iter().filter_map(Json::as_str).collect(),
        mode => Vec::from_iter(mode.and_then(Json::as_str)),
    };
    let words = [("mean", Pooling::Mean), ("cls", Pooling::Cls), ("lasttoken", Pooling::Last)];
    by_flag.or(words.into_iter().find(|row| listed.contains(&row.0)).map(|row| row.1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_flag_counts_and_what_has_no_number_is_refused() {
        let found = |config: Json| of(config.as_object().unwrap());
        assert_eq!(
            found(json!({"pooling_mode_cls_token": true, "pooling_mode": "mean"})),
            Some(Pooling::Cls)
        );
        let both = json!({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": 1});
        assert_eq!(found(both), Some(Pooling::Mean));
        let new = json!({"pooling_mode": "lasttoken", "pooling_mode_cls_token": false});
        assert_eq!(found(new), Some(Pooling::Last));
        assert_eq!(found(json!({"pooling_mode_max_tokens": true})), None);
        assert_eq!(found(json!({"pooling_mode": "weightedmean"})), None);
        assert_eq!(found(json!({"pooling_mode": ["cls", "max"]})), Some(Pooling::Cls));
        assert_eq!(found(json!({"word_embedding_dimension": 64})), Some(Pooling::Mean));
    }
}
