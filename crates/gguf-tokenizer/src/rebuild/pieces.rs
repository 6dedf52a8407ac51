//! Builder of the files of SentencePiece vocabularies: `tokenizer.json` and the model file.

use std::collections::HashMap;

use prost::Message;
use serde_json::{Map, Value as Json, json};

use super::super::emit::{TokenType, looks_special};
use super::super::sentencepiece::{BPE, ModelProto, NormalizerSpec, Piece, TrainerSpec, UNIGRAM};
use super::source::GgufVocabulary;
use super::{AddedByDefault, added_tokens, other_special_tokens, post_processor};

/// Maximum length in bytes of a piece for which merges are derived; each position in it may be a merge.
const MAX_PIECE_BYTES: usize = 1024;
/// Score that the converter gives to tokens of `added_tokens_decoder`.
const ADDED_SCORE: f32 = -1000.0;

/// Kind of SentencePiece model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceAlgorithm {
    Bpe,
    Unigram,
}

/// Builds the model file: unchanged pieces, scores and types, without the padding at the end.
pub(super) fn model(vocabulary: &GgufVocabulary, kind: PieceAlgorithm) -> Vec<u8> {
    let end =
        (0..vocabulary.tokens.len()).rev().find(|&id| !vocabulary.is_padding(id)).map_or(0, |id| id + 1);
    let pieces = (0..end)
        .map(|id| Piece {
            piece: Some(match vocabulary.types[id] {
                // Found in text whose blanks are `▁` already.
                TokenType::UserDefined => vocabulary.tokens[id].replace(' ', "\u{2581}").into_bytes(),
                _ => vocabulary.tokens[id].clone().into_bytes(),
            }),
            score: Some(score(vocabulary, id)),
            kind: Some(match vocabulary.types[id] {
                TokenType::Normal => 1,
                TokenType::Unknown => 2,
                TokenType::Control => 3,
                TokenType::UserDefined => 4,
                TokenType::Unused => 5,
                TokenType::Byte => 6,
            }),
        })
        .collect();
    let flag = |key: &str, default: bool| Some(vocabulary.flag(key).unwrap_or(default));
    let charsmap = Some(vocabulary.charsmap.clone()).filter(|map| !map.is_empty());
    ModelProto {
        pieces,
        trainer_spec: Some(TrainerSpec {
            model_type: Some(if kind == PieceAlgorithm::Bpe { BPE } else { UNIGRAM }),
            byte_fallback: Some(vocabulary.types.contains(&TokenType::Byte)),
            ..TrainerSpec::default()
        }),
        normalizer_spec: Some(NormalizerSpec {
            precompiled_charsmap: charsmap,
            add_dummy_prefix: flag("tokenizer.ggml.add_space_prefix", true),
            remove_extra_whitespaces: flag(
                "tokenizer.ggml.remove_extra_whitespaces",
                kind == PieceAlgorithm::Unigram,
            ),
            ..NormalizerSpec::default()
        }),
    }
    .encode_to_vec()
}

fn score(vocabulary: &GgufVocabulary, id: usize) -> f32 {
    vocabulary.scores.as_ref().and_then(|scores| scores.get(id)).copied().unwrap_or(0.0)
}

/// Builds `tokenizer.json` as BPE with byte fallback, with merges derived from the scores: every split of a piece into
/// two pieces is a merge, in the order of the scores.
pub(super) fn bpe(vocabulary: &GgufVocabulary, config: &mut Map<String, Json>) -> Json {
    let prefix = vocabulary.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let mut normalizers = vec![replace];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    added_tokens_decoder(vocabulary, config);
    let unk = vocabulary.types.iter().position(|&kind| kind == TokenType::Unknown);
    let bytes = vocabulary.types.contains(&TokenType::Byte);
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary, |_| true),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": post_processor(vocabulary, AddedByDefault::Begin),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unk.map(|id| &vocabulary.tokens[id]),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": bytes,
            "ignore_merges": false,
            "vocab": table(vocabulary),
            "merges": merges(vocabulary),
        },
    })
}

/// Builds `tokenizer.json` as a unigram model.
pub(super) fn unigram(vocabulary: &GgufVocabulary) -> Json {
    let unk = vocabulary.types.iter().position(|&kind| kind == TokenType::Unknown);
    let pieces: Vec<Json> = (0..vocabulary.end())
        .map(|id| json!([vocabulary.tokens[id], f64::from(score(vocabulary, id))]))
        .collect();
    let mut normalizers = Vec::new();
    if !vocabulary.charsmap.is_empty() {
        let charsmap = base64(&vocabulary.charsmap);
        normalizers.push(json!({"type": "Precompiled", "precompiled_charsmap": charsmap}));
    }
    if vocabulary.flag("tokenizer.ggml.remove_extra_whitespaces").unwrap_or(true) {
        normalizers.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
        normalizers.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
    }
    let scheme =
        if vocabulary.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true) { "always" } else { "never" };
    let metaspace =
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": true});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary, |_| true),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": metaspace,
        "post_processor": post_processor(vocabulary, AddedByDefault::End),
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": unk, "vocab": pieces, "byte_fallback": false},
    })
}

/// Builds `tokenizer.json` like XLM-RoBERTa's: a unigram model that first splits words at spaces, and whose normalizer
/// is only the character map, as the converter expects.
pub(super) fn xlmr(vocabulary: &GgufVocabulary, config: &mut Map<String, Json>) -> Json {
    let mut file = unigram(vocabulary);
    let charsmap = Some(&vocabulary.charsmap).filter(|map| !map.is_empty());
    file["normalizer"] = charsmap
        .map_or(Json::Null, |map| json!({"type": "Precompiled", "precompiled_charsmap": base64(map)}));
    let metaspace = file["pre_tokenizer"].take();
    let split = json!({"type": "WhitespaceSplit"});
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, metaspace]});
    for (name, key) in [
        ("add_prefix_space", "tokenizer.ggml.add_space_prefix"),
        ("clean_up_tokenization_spaces", "tokenizer.ggml.remove_extra_whitespaces"),
    ] {
        config.insert(name.into(), vocabulary.flag(key).unwrap_or(false).into());
    }
    other_special_tokens(vocabulary, config);
    file
}

/// Returns texts and ids, without padding.
fn table(vocabulary: &GgufVocabulary) -> Map<String, Json> {
    let rows = vocabulary.tokens.iter().enumerate().filter(|(id, _)| !vocabulary.is_padding(*id));
    rows.map(|(id, text)| (text.clone(), json!(id))).collect()
}

/// Returns every split of a text piece into two pieces, by decreasing score of the piece, then by its id, then by the
/// ids of the two.
fn merges(vocabulary: &GgufVocabulary) -> Vec<Json> {
    let usable = |id: usize| {
        matches!(vocabulary.types[id], TokenType::Normal | TokenType::Unused) && !vocabulary.is_padding(id)
    };
    let mut order: Vec<usize> = (0..vocabulary.tokens.len()).filter(|&id| usable(id)).collect();
    order.sort_by(|&a, &b| score(vocabulary, b).total_cmp(&score(vocabulary, a)));
    let ids: HashMap<&str, usize> = order.iter().map(|&id| (vocabulary.tokens[id].as_str(), id)).collect();
    let mut merges = Vec::new();
    for id in order {
        let piece = &vocabulary.tokens[id];
        if piece.len() > MAX_PIECE_BYTES {
            continue;
        }
        let mut cuts: Vec<(usize, usize)> = piece
            .char_indices()
            .skip(1)
            .filter_map(|(at, _)| Some((*ids.get(&piece[..at])?, *ids.get(&piece[at..])?)))
            .collect();
        cuts.sort_unstable();
        merges.extend(
            cuts.into_iter().map(|(left, right)| json!([vocabulary.tokens[left], vocabulary.tokens[right]])),
        );
    }
    merges
}

/// Returns true for tokens that were added after training.
fn is_late(vocabulary: &GgufVocabulary, id: usize) -> bool {
    matches!(vocabulary.types[id], TokenType::Control | TokenType::UserDefined)
        && score(vocabulary, id) == ADDED_SCORE
}

/// Returns true for late tokens that the converter would treat as control tokens if they were in
/// `tokenizer_config.json`.
fn is_mistakable(vocabulary: &GgufVocabulary, id: usize) -> bool {
    vocabulary.types[id] == TokenType::UserDefined
        && looks_special(&vocabulary.tokens[id])
        // InternLM 2's converter follows the configuration and appends the tokens of `added_tokens.json`.
        && vocabulary.architecture != "internlm2"
}

/// Builds `added_tokens.json`, for late tokens that keep their type only in this file.
pub(super) fn added_tokens_file(vocabulary: &GgufVocabulary) -> Option<Json> {
    let rows = vocabulary.tokens.iter().enumerate();
    let rows: Map<String, Json> = rows
        .filter(|&(id, _)| is_late(vocabulary, id) && is_mistakable(vocabulary, id))
        .map(|(id, text)| (text.clone(), json!(id)))
        .collect();
    (!rows.is_empty()).then_some(Json::Object(rows))
}

/// Adds the other late tokens to `tokenizer_config.json`, where the converter reads them.
fn added_tokens_decoder(vocabulary: &GgufVocabulary, config: &mut Map<String, Json>) {
    let decoder: Map<String, Json> = (0..vocabulary.tokens.len())
        .filter(|&id| is_late(vocabulary, id) && !is_mistakable(vocabulary, id))
        .map(|id| {
            let special = vocabulary.types[id] == TokenType::Control;
            let token = json!({
                "content": vocabulary.tokens[id], "lstrip": false, "normalized": false, "rstrip": false,
                "single_word": false, "special": special,
            });
            (id.to_string(), token)
        })
        .collect();
    if !decoder.is_empty() {
        config.insert("added_tokens_decoder".into(), Json::Object(decoder));
    }
}

/// Encodes bytes as base64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0u32, |group, &byte| (group << 8) | u32::from(byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            if digit <= chunk.len() {
                text.push(char::from(DIGITS[(group >> (18 - 6 * digit)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{ff}", "w78="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
