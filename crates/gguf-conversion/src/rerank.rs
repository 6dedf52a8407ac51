//! Detection of rerankers: decoders whose answer is the choice between two words.

use serde_json::Value as Json;

use crate::model_card::is_ladder_page;
use crate::{ConvertError, ConvertOptions};
use gguf_arch::Rerank;
use gguf_checkpoint::ModelDir;

/// Names of rerankers, in lower case.
const NAMES: [&str; 2] = ["qwen3-reranker", "qwen3-vl-reranker"];
const TOKENIZER: &str = "tokenizer.json";

/// Detects a reranker by `--rerank`, a title in README.md, or a name. The ids of its two words are read from
/// `tokenizer.json`.
pub(super) fn find(dir: &ModelDir, options: &ConvertOptions) -> Result<Option<Rerank>, ConvertError> {
    if !options.rerank && !is_named(dir)? {
        return Ok(None);
    }
    let vocabulary = dir.json(TOKENIZER)?.map(Json::Object).unwrap_or_default();
    Ok(Some(Rerank { yes: token(&vocabulary, "yes"), no: token(&vocabulary, "no"), asked: options.rerank }))
}

/// Returns true if a name or a title in README.md is that of a reranker.
///
/// # Exactness
/// Equals `_is_qwen3_reranker` of llama.cpp 0.5.0.
fn is_named(dir: &ModelDir) -> Result<bool, ConvertError> {
    let config = dir.config();
    let text = |value: Option<&Json>| value.and_then(Json::as_str).unwrap_or_default().to_lowercase();
    let class = text(config.get("architectures").and_then(|classes| classes.get(0)));
    let hints =
        [dir.name()?.to_lowercase(), text(config.get("_name_or_path")), text(config.get("model_type"))];
    if hints.iter().chain([&class]).any(|hint| NAMES.iter().any(|name| hint.contains(name))) {
        return Ok(true);
    }
    // README.md need not be valid UTF-8.
    let readme = dir.bytes("README.md")?.unwrap_or_default();
    let readme = String::from_utf8_lossy(&readme);
    let titles = if is_ladder_page(&readme) { String::new() } else { readme.to_lowercase() };
    let is_title = |name: &&str| titles.contains(&format!("# {name}"));
    Ok(NAMES.iter().any(is_title) || class.contains("sequenceclassification"))
}

/// Returns the id of an added token or of a piece of the model.
fn token(vocabulary: &Json, text: &str) -> Option<u32> {
    let added = vocabulary["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter(|token| token["content"] == text).find_map(|token| token["id"].as_u64());
    let id = added.or_else(|| vocabulary["model"]["vocab"][text].as_u64());
    id.and_then(|id| u32::try_from(id).ok())
}
