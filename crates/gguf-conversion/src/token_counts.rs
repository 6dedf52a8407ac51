//! Token counts of a vocabulary, read from its files before it is built, for cards that cut an embedding to them.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use gguf_arch::{TokenCounts, with_text_config};
use gguf_checkpoint::ModelDir;

/// Configuration keys with the length of a SentencePiece vocabulary's token list.
const SIZES: [&str; 2] = ["vocab_size_per_layer_input", "vocab_size"];

/// Counts the tokens of `tokenizer.json`. With a `tokenizer.model`, the configuration declares the length of the list.
///
/// Unreadable files count as nothing: building the vocabulary reports their errors.
pub(super) fn count(dir: &ModelDir) -> TokenCounts {
    let json = dir.json("tokenizer.json").ok().flatten();
    let entries = |value: Option<&Json>| match value? {
        Json::Array(items) => Some(items.len() as u64),
        Json::Object(map) => Some(map.len() as u64),
        _ => None,
    };
    let base = json.as_ref().and_then(|json| entries(json.get("model")?.get("vocab")));
    let added = json.as_ref().and_then(|json| entries(json.get("added_tokens"))).unwrap_or(0);
    let has_model = dir.file_names().is_ok_and(|names| names.iter().any(|name| name == "tokenizer.model"));
    let len = if has_model { configured(dir) } else { base.map(|base| base + added) };
    TokenCounts { base, len, added: added_tokens(dir, json.as_ref()) }
}

/// Returns the added tokens; `tokenizer_config.json` takes precedence over `tokenizer.json`.
fn added_tokens(dir: &ModelDir, json: Option<&Map<String, Json>>) -> BTreeMap<String, u64> {
    let text = |token: &Json| token.get("content").and_then(Json::as_str).map(str::to_owned);
    let listed = json.and_then(|json| json.get("added_tokens")).and_then(Json::as_array);
    let listed = listed.into_iter().flatten();
    let mut all: BTreeMap<String, u64> =
        listed.filter_map(|token| Some((text(token)?, token.get("id")?.as_u64()?))).collect();
    let config = dir.json("tokenizer_config.json").ok().flatten();
    let decoder = config.as_ref().and_then(|config| config.get("added_tokens_decoder")?.as_object());
    all.extend(
        decoder.into_iter().flatten().filter_map(|(id, token)| Some((text(token)?, id.parse().ok()?))),
    );
    all
}

fn configured(dir: &ModelDir) -> Option<u64> {
    let config = with_text_config(dir.config());
    let text = config.get("text_config").and_then(Json::as_object).unwrap_or(&config);
    SIZES.iter().find_map(|key| text.get(*key).or_else(|| config.get(*key))?.as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::limits::Limits;

    #[test]
    fn tokens_are_counted_where_files_have_them() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs_err::write(dir.path().join(name), text).unwrap();
        let counts = || count(&ModelDir::open(dir.path(), &Limits::default()).unwrap());
        write("config.json", r#"{"text_config": {"vocab_size": 9}}"#);
        assert_eq!(counts(), TokenCounts::default());
        let added = r#"[{"id": 2, "content": "<a>"}, {"id": 3, "content": "<b>"}]"#;
        write(
            "tokenizer.json",
            &format!(r#"{{"model": {{"vocab": {{"a": 0, "b": 1}}}}, "added_tokens": {added}}}"#),
        );
        let token = |text: &str, id: u64| (text.to_owned(), id);
        let added = BTreeMap::from([token("<a>", 2), token("<b>", 3)]);
        assert_eq!(counts(), TokenCounts { base: Some(2), len: Some(4), added });
        write("tokenizer.model", "");
        write(
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"7": {"content": "<b>"}, "x": {"content": "<c>"}}}"#,
        );
        let added = BTreeMap::from([token("<a>", 2), token("<b>", 7)]);
        assert_eq!(counts(), TokenCounts { base: Some(2), len: Some(9), added });
    }
}
