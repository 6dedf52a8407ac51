//! Builder of `tokenizer.json` for Gemma 4: text pieces that merge by rank.

use serde_json::{Map, Value as Json, json};

use super::source::GgufVocabulary;
use super::{AddedByDefault, added_tokens, other_special_tokens, post_processor};

/// Builds the file. Tokens after the last text piece are added tokens, as in released files.
pub(super) fn tokenizer(vocabulary: &GgufVocabulary, config: &mut Map<String, Json>) -> Json {
    let is_text = |id: usize| !vocabulary.is_added(id) && !vocabulary.is_padding(id);
    let end = (0..vocabulary.tokens.len()).rev().find(|&id| is_text(id)).map_or(0, |id| id + 1);
    let own = vocabulary.tokens.iter().enumerate().take(end).filter(|(id, _)| !vocabulary.is_padding(*id));
    let vocab: Map<String, Json> = own.map(|(id, text)| (text.clone(), json!(id))).collect();
    // A space at the start of the first token is not the separator.
    let merges: Vec<Json> = vocabulary
        .merges
        .iter()
        .filter_map(|merge| {
            let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ')?.0;
            Some(json!([&merge[..at], &merge[at + 1..]]))
        })
        .collect();
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    other_special_tokens(vocabulary, config);
    let unk = vocabulary.special("tokenizer.ggml.unknown_token_id");
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary, |_| true),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false,
        },
        "post_processor": post_processor(vocabulary, AddedByDefault::Begin),
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unk.and_then(|id| vocabulary.tokens.get(id)),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": merges,
        },
    })
}
