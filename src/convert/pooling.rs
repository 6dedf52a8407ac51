//! How an embedding model pools its token vectors, as sentence-transformers describes it.

use std::path::{Component, Path};

use serde_json::Value as Json;

use crate::arch::Pooling;
use crate::checkpoint::ModelDir;
use crate::convert::ConvertError;

const MODULES: &str = "modules.json";

/// Reads `modules.json` and the configuration of its pooling module; `None` for a model without one.
///
/// # Errors
/// A broken file, a path that leaves the directory, a way of pooling that GGUF has no number for.
pub(super) fn read(dir: &ModelDir) -> Result<Option<Pooling>, ConvertError> {
    let Some(text) = dir.bytes(MODULES)? else { return Ok(None) };
    let wrong = |file: &str, reason: String| ConvertError::Pooling { path: dir.path().join(file), reason };
    let modules: Vec<Json> =
        serde_json::from_slice(&text).map_err(|error| wrong(MODULES, error.to_string()))?;
    let is_pooling = |module: &&Json| module["type"].as_str().is_some_and(|ty| ty.ends_with("Pooling"));
    let Some(module) = modules.iter().find(is_pooling) else { return Ok(None) };
    let folder = module["path"].as_str().unwrap_or_default();
    if !Path::new(folder).components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(wrong(MODULES, format!("`{folder}` leaves the directory")));
    }
    let file = format!("{folder}/config.json");
    let config = dir.json(&file)?.ok_or_else(|| wrong(&file, "file not found".to_owned()))?;
    let is_set = |key: &str| config.get(key).and_then(Json::as_bool) == Some(true);
    let found = if is_set("pooling_mode_mean_tokens") {
        Pooling::Mean
    } else if is_set("pooling_mode_cls_token") {
        Pooling::Cls
    } else if is_set("pooling_mode_lasttoken") {
        Pooling::Last
    } else {
        match config.get("pooling_mode").and_then(Json::as_str) {
            Some("mean") => Pooling::Mean,
            Some("cls") => Pooling::Cls,
            Some("lasttoken") => Pooling::Last,
            _ => return Err(wrong(&file, "neither mean, cls nor last-token pooling".to_owned())),
        }
    };
    Ok(Some(found))
}
