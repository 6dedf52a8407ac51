//! Builder of `tokenizer.json` for a byte-level BPE vocabulary.

use crate::Result;
use serde_json::{Map, Value as Json, json};

use super::super::emit::TokenType;
use super::super::pretokenizer::{HINT, PreTable, step_json};
use super::super::{TokenizerError, byte_alphabet};
use super::source::GgufVocabulary;
use super::{AddedByDefault, added_tokens, post_processor};

/// Builds the file.
///
/// The model's own vocabulary ends with its last text token; the rest are added tokens, as in released files. Added
/// tokens before that end are in both tables, which preserves all ids.
pub(super) fn tokenizer(vocabulary: &GgufVocabulary, config: &mut Map<String, Json>) -> Result<Json> {
    let table = PreTable::get();
    let name = vocabulary.pre.as_deref().unwrap_or("default");
    let unknown = || TokenizerError::NoInversePre { found: name.to_owned() };
    let pre = table.pre(name).ok_or_else(unknown)?;
    // Only text in the byte alphabet is decoded like by this file.
    let byte_level = |steps: &&[String]| steps.iter().any(|step| step.starts_with("byte_level"));
    let steps = table.steps(pre).filter(byte_level).ok_or_else(unknown)?;
    let pretokenizers: Vec<Json> = steps.iter().filter_map(|step| step_json(step)).collect();
    let pre_tokenizer = match <[Json; 1]>::try_from(pretokenizers) {
        Ok([only]) => only,
        Err(several) => json!({"type": "Sequence", "pretokenizers": several}),
    };
    let normalizer = match pre.normalizer.as_deref() {
        Some("nfc") => json!({"type": "NFC"}),
        _ => Json::Null,
    };
    config.insert(HINT.into(), name.into());
    config.insert("clean_up_tokenization_spaces".into(), pre.clean_spaces.into());

    let is_text = |id: usize| !vocabulary.is_added(id) && !vocabulary.is_padding(id);
    let end = (0..vocabulary.tokens.len()).rev().find(|&id| is_text(id)).map_or(0, |id| id + 1);
    // Added tokens get the next free id, which is correct only without gaps.
    let mut rest = end..vocabulary.tokens.len();
    let n_added = rest.clone().take_while(|&id| vocabulary.is_added(id)).count();
    let gapless = (0..end).all(|id| !vocabulary.is_padding(id))
        && rest.all(|id| id < end + n_added || !vocabulary.is_added(id));
    let end = if gapless { end } else { vocabulary.tokens.len() };
    let vocab: Map<String, Json> = vocabulary.tokens[..end]
        .iter()
        .enumerate()
        .filter(|(id, _)| !vocabulary.is_padding(*id))
        .map(|(id, text)| (text.clone(), json!(id)))
        .collect();

    let decodes = |text: &str| byte_alphabet::decoded(text) == text;
    let unk = vocabulary.types.iter().position(|&kind| kind == TokenType::Unknown);
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary, decodes),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor(vocabulary, AddedByDefault::Nothing),
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unk.map(|id| &vocabulary.tokens[id]),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab,
            "merges": vocabulary.merges,
        },
    }))
}
