//! Tokenizer files in an adapter's directory, as used in its training.

use serde_json::{Map, Value as Json};

use gguf_checkpoint::{AdapterDir, CheckpointError, ModelDir};

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
/// Files that hold a vocabulary.
const VOCABULARIES: [&str; 7] = [
    TOKENIZER,
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
];
/// Files with chat templates, in addition to `tokenizer_config.json`.
const TEMPLATES: [&str; 2] = ["chat_template.jinja", "chat_template.json"];
const OTHERS: [&str; 4] = [CONFIG, "special_tokens_map.json", "added_tokens.json", "merges.txt"];
/// Special tokens that are compared.
const ROLES: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// Tokenizer files of an adapter that differ from its base model's.
#[derive(Debug)]
pub(super) struct AdapterTokenizer {
    pub(super) names: Vec<String>,
    /// Description of the differences.
    pub(super) warning: String,
}

/// Returns the tokenizer files that replace the base model's; `None` if the adapter has none, or the same.
pub(super) fn of_adapter(
    base: &ModelDir,
    adapter: &AdapterDir,
) -> Result<Option<AdapterTokenizer>, CheckpointError> {
    let own = adapter.dir();
    let mut differences = differences(base, own)?;
    if differences.is_empty() {
        return Ok(None);
    }
    let mut names: Vec<&str> = Vec::new();
    // Added tokens belong to their vocabulary. The configuration's special tokens hold until the adapter's declares
    // others.
    let is_other = has_other_vocabulary(base, own)?;
    names.extend(VOCABULARIES.iter().filter(|_| is_other));
    names.extend(OTHERS.iter().filter(|name| (is_other && **name != CONFIG) || own.file(name).is_some()));
    if template(own)?.is_some() {
        names.extend(TEMPLATES);
    } else if names.contains(&CONFIG)
        && base.json(CONFIG)?.is_some_and(|map| map.contains_key("chat_template"))
    {
        differences.push("no chat template, where the base model has one".to_owned());
    }
    let names = names.into_iter().map(str::to_owned).collect();
    let warning = format!(
        "the adapter's tokenizer files take the place of the base model's: {}",
        differences.join(", ")
    );
    Ok(Some(AdapterTokenizer { names, warning }))
}

/// Returns a warning if an adapter's tokenizer differs from its base model's, for a file that holds no tokenizer.
pub(super) fn not_in_adapter(base: &ModelDir, adapter: &AdapterDir) -> Option<String> {
    // A base without tokenizer files cannot be compared.
    if [CONFIG, TOKENIZER, TEMPLATES[0]].iter().all(|name| base.file(name).is_none()) {
        return None;
    }
    let differences = differences(base, adapter.dir()).ok().filter(|differences| !differences.is_empty())?;
    Some(format!(
        "the adapter was trained with another tokenizer than its base model's, and a GGUF adapter holds none: {}",
        differences.join(", ")
    ))
}

/// Describes the differences for the user.
fn differences(base: &ModelDir, own: &ModelDir) -> Result<Vec<String>, CheckpointError> {
    let mut found = Vec::new();
    if let (Some(ours), Some(theirs)) = (own.json(TOKENIZER)?, base.json(TOKENIZER)?) {
        let (ours, theirs) = (n_tokens(&ours), n_tokens(&theirs));
        if ours != theirs {
            found.push(format!("{ours} tokens in place of {theirs}"));
        }
    }
    if found.is_empty() && has_other_vocabulary(base, own)? {
        found.push("another vocabulary".to_owned());
    }
    let config = own.json(CONFIG)?;
    let base_config = base.json(CONFIG)?.unwrap_or_default();
    for role in ROLES {
        let ours = config.as_ref().and_then(|config| token(config, role));
        let theirs = token(&base_config, role);
        match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                found.push(format!("`{role}` `{ours}` in place of `{theirs}`"));
            }
            (Some(ours), None) => found.push(format!("`{role}` `{ours}`, where the base model names none")),
            _ => {}
        }
    }
    match (template(own)?, template(base)?) {
        (Some(ours), Some(theirs)) if ours != theirs => found.push("another chat template".to_owned()),
        (Some(_), None) => found.push("a chat template, where the base model has none".to_owned()),
        _ => {}
    }
    Ok(found)
}

/// Returns true if the vocabulary itself differs, as far as files of the same name show.
fn has_other_vocabulary(base: &ModelDir, own: &ModelDir) -> Result<bool, CheckpointError> {
    let mut n_shared = 0;
    for name in VOCABULARIES.into_iter().filter(|name| own.file(name).is_some()) {
        if base.file(name).is_none() {
            continue;
        }
        n_shared += 1;
        let is_same = if name == TOKENIZER {
            let part =
                |map: &Map<String, Json>| [map.get("model").cloned(), map.get("added_tokens").cloned()];
            own.json(name)?.as_ref().map(part) == base.json(name)?.as_ref().map(part)
        } else {
            own.bytes(name)? == base.bytes(name)?
        };
        if !is_same {
            return Ok(true);
        }
    }
    Ok(n_shared == 0 && VOCABULARIES.iter().any(|name| own.file(name).is_some()))
}

/// Returns the chat template of a directory; a separate file takes precedence over the configuration.
fn template(dir: &ModelDir) -> Result<Option<Json>, CheckpointError> {
    if let Some(text) = dir.text(TEMPLATES[0])? {
        return Ok(Some(text.into()));
    }
    let member =
        |name| Ok::<_, CheckpointError>(dir.json(name)?.and_then(|map| map.get("chat_template").cloned()));
    let found = member(TEMPLATES[1])?.filter(|value| !value.is_null());
    Ok(found.or(member(CONFIG)?.filter(|value| !value.is_null())))
}

/// Returns the text of a token, which may be stored in an object.
fn token(config: &Map<String, Json>, role: &str) -> Option<String> {
    let value = config.get(role)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// Returns the number of tokens of `tokenizer.json`: one more than the largest id.
fn n_tokens(tokenizer: &Map<String, Json>) -> u64 {
    let added = tokenizer.get("added_tokens").and_then(Json::as_array).into_iter().flatten();
    let added = added.filter_map(|token| token.get("id")?.as_u64()).map(|id| id.saturating_add(1)).max();
    let vocabulary = tokenizer.get("model").and_then(|model| model.get("vocab"));
    let n = match vocabulary {
        Some(Json::Array(items)) => items.len() as u64,
        Some(Json::Object(map)) => map.len() as u64,
        _ => 0,
    };
    n.max(added.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::limits::Limits;

    fn dir(files: &[(&str, &str)]) -> (tempfile::TempDir, ModelDir) {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("config.json"), "{}").unwrap();
        for (name, text) in files {
            fs_err::write(dir.path().join(name), text).unwrap();
        }
        let opened = ModelDir::open(dir.path(), &Limits::default()).unwrap();
        (dir, opened)
    }

    #[test]
    fn differences_are_named_with_both_values() {
        let base = dir(&[
            (TOKENIZER, r#"{"model": {"vocab": {"a": 0}}, "added_tokens": []}"#),
            (CONFIG, r#"{"eos_token": "<a>", "chat_template": "A"}"#),
        ]);
        for (files, want) in [
            (&[][..], &[][..]),
            (&[(CONFIG, r#"{"eos_token": {"content": "<a>"}, "model_max_length": 7}"#)], &[]),
            (&[(CONFIG, r#"{"eos_token": "<b>"}"#)], &["`eos_token` `<b>` in place of `<a>`"]),
            (&[(CONFIG, r#"{"pad_token": "<p>"}"#)], &["`pad_token` `<p>`, where the base model names none"]),
            (&[("chat_template.jinja", "A")], &[]),
            (&[("chat_template.jinja", "B")], &["another chat template"]),
            (&[(TOKENIZER, r#"{"padding": {}, "model": {"vocab": {"a": 0}}, "added_tokens": []}"#)], &[]),
            (
                &[(TOKENIZER, r#"{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 2}]}"#)],
                &["3 tokens in place of 1"],
            ),
            (&[("tokenizer.model", "x")], &["another vocabulary"]),
        ] {
            let own = dir(files);
            assert_eq!(differences(&base.1, &own.1).unwrap(), want, "{files:?}");
        }
    }
}
