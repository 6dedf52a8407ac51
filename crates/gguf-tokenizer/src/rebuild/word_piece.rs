//! Builder of `tokenizer.json` for a WordPiece vocabulary.

use serde_json::{Map, Value as Json, json};

use super::super::emit::TokenType;
use super::added_tokens;
use super::source::GgufVocabulary;

/// Builds the file. GGUF marks word-initial tokens; this file marks tokens inside words.
pub(super) fn tokenizer(vocabulary: &GgufVocabulary, config: &mut Map<String, Json>) -> Json {
    let lowercase = vocabulary.flag("tokenizer.ggml.normalizer.lowercase").unwrap_or(true);
    config.insert("do_lower_case".into(), lowercase.into());
    config.insert("clean_up_tokenization_spaces".into(), true.into());
    // The generic class has no other source of these roles.
    for (role, token) in [("cls", begin(vocabulary)), ("sep", end(vocabulary)), ("unk", unknown(vocabulary))]
    {
        config.extend(token.map(|(text, _)| (format!("{role}_token"), text.into())));
    }
    let rows = vocabulary.tokens.iter().enumerate().filter(|(id, _)| !is_padding(vocabulary, *id));
    let vocab: Map<String, Json> =
        rows.map(|(id, text)| (spelled(vocabulary, id, text), json!(id))).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary, |_| true),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": true,
            "strip_accents": vocabulary.flag("tokenizer.ggml.normalizer.strip_accents"),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post_processor(vocabulary),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown(vocabulary).map_or("[UNK]", |token| token.0),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    })
}

/// Returns the spelling of a token in the files.
fn spelled(vocabulary: &GgufVocabulary, id: usize, text: &str) -> String {
    match (vocabulary.types.get(id), text.strip_prefix('\u{2581}')) {
        (Some(TokenType::Control), _) => text.to_owned(),
        (_, Some(first)) => first.to_owned(),
        (_, None) => format!("##{text}"),
    }
}

fn is_padding(vocabulary: &GgufVocabulary, id: usize) -> bool {
    vocabulary.types.get(id) == Some(&TokenType::Unused)
        && vocabulary.tokens.get(id).is_some_and(|text| *text == format!("\u{2581}[PAD{id}]"))
}

fn token<'v>(vocabulary: &'v GgufVocabulary, key: &str, text: &str) -> Option<(&'v str, usize)> {
    let id = vocabulary.special(key).or_else(|| vocabulary.tokens.iter().position(|own| own == text))?;
    Some((vocabulary.tokens.get(id)?.as_str(), id))
}

fn begin(vocabulary: &GgufVocabulary) -> Option<(&str, usize)> {
    token(vocabulary, "tokenizer.ggml.bos_token_id", "[CLS]")
}

fn end(vocabulary: &GgufVocabulary) -> Option<(&str, usize)> {
    token(vocabulary, "tokenizer.ggml.seperator_token_id", "[SEP]")
}

fn unknown(vocabulary: &GgufVocabulary) -> Option<(&str, usize)> {
    token(vocabulary, "tokenizer.ggml.unknown_token_id", "[UNK]")
}

/// Returns a post-processor that adds a token at both ends of a text, regardless of flags, like the runtime.
fn post_processor(vocabulary: &GgufVocabulary) -> Json {
    let (Some(begin), Some(end)) = (begin(vocabulary), end(vocabulary)) else { return Json::Null };
    let piece =
        |(text, _): (&str, usize), segment: u32| json!({"SpecialToken": {"id": text, "type_id": segment}});
    let sequence = |name: &str, segment: u32| json!({"Sequence": {"id": name, "type_id": segment}});
    let single = [piece(begin, 0), sequence("A", 0), piece(end, 0)];
    let pair = [piece(begin, 0), sequence("A", 0), piece(end, 0), sequence("B", 1), piece(end, 1)];
    let special: Map<String, Json> = [begin, end]
        .into_iter()
        .map(|(text, id)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
}
