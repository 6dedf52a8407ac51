//! SentencePiece BPE, unigram and WordPiece encoders, compared with Hugging Face's models and simple test
//! implementations, and with extreme vocabularies.

use std::collections::BTreeSet;

use gguf_format::{Array, Metadata, Value};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_tokenizer::Encoder;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tokenizers::Tokenizer;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Token with its score and type.
type Row = (Vec<u8>, f32, i32);

fn keys(model: &str, rows: &[Row]) -> Metadata {
    let mut keys = Metadata::new();
    keys.set("tokenizer.ggml.model", model);
    keys.set(
        "tokenizer.ggml.tokens",
        Value::Array(Array::String(rows.iter().map(|row| row.0.clone()).collect())),
    );
    keys.set("tokenizer.ggml.scores", Value::Array(Array::F32(rows.iter().map(|row| row.1).collect())));
    keys.set("tokenizer.ggml.token_type", Value::Array(Array::I32(rows.iter().map(|row| row.2).collect())));
    keys.set("tokenizer.ggml.unknown_token_id", 0u32);
    keys.set("tokenizer.ggml.add_space_prefix", false);
    keys
}

fn row(text: &str, score: f32, kind: i32) -> Row {
    (text.as_bytes().to_vec(), score, kind)
}

fn encode(keys: &Metadata, text: &str) -> Vec<u32> {
    Encoder::from_metadata(keys).unwrap().encode(text, false)
}

/// Rows of the unknown token, optionally the byte tokens, and pieces with scores whose sums are exact.
fn rows(pieces: &[(String, i8)], bytes: bool) -> Vec<Row> {
    let mut seen = BTreeSet::new();
    let pieces = pieces.iter().filter(|piece| seen.insert(piece.0.clone()));
    let bytes = (0..=u8::MAX).filter(|_| bytes).map(|byte| row(&format!("<0x{byte:02X}>"), 0.0, BYTE));
    let pieces = pieces.map(|(text, score)| row(text, f32::from(*score) / 8.0 - 16.0, NORMAL));
    [row("<unk>", 0.0, UNKNOWN)].into_iter().chain(bytes).chain(pieces).collect()
}

/// Pieces of few different characters, so that many match.
fn pieces() -> impl Strategy<Value = Vec<(String, i8)>> {
    prop::collection::vec(("[abé▁]{1,4}", any::<i8>()), 1..40)
}

/// Ids from Hugging Face's tokenizer of a `tokenizer.json`.
fn reference(file: &Json, text: &str) -> Vec<u32> {
    let tokenizer: Tokenizer = file.to_string().parse().unwrap();
    tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
}

/// Merges the best pair as long as there is one, comparing all pairs each time.
fn merge_slowly(rows: &[Row], text: &str) -> Vec<u32> {
    let token = |text: &[u8]| (0u32..).zip(rows).find(|(_, row)| row.0 == text && row.2 == NORMAL);
    let mut parts: Vec<Vec<u8>> =
        text.replace(' ', "▁").chars().map(|character| character.to_string().into_bytes()).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for (at, pair) in parts.windows(2).enumerate() {
            if let Some((_, row)) = token(&pair.concat())
                && best.is_none_or(|(score, _)| row.1 > score)
            {
                best = Some((row.1, at));
            }
        }
        let Some((_, at)) = best else { break };
        let right = parts.remove(at + 1);
        parts[at].extend(right);
    }
    let has_bytes = rows.iter().any(|row| row.2 == BYTE);
    let mut ids = Vec::new();
    for part in &parts {
        match token(part) {
            Some((id, _)) => ids.push(id),
            None if has_bytes => ids.extend(part.iter().map(|byte| u32::from(*byte) + 1)),
            None if ids.last() == Some(&0) => {}
            None => ids.push(0),
        }
    }
    ids
}

proptest! {
    #[test]
    fn unigram_ids_equal_hugging_faces(pieces in pieces(), bytes: bool, text in "[abcé \u{1f642}]{0,40}") {
        let rows = rows(&pieces, bytes);
        let vocab: Vec<Json> =
            rows.iter().map(|row| json!([String::from_utf8_lossy(&row.0), row.1])).collect();
        let file = json!({
            "version": "1.0", "added_tokens": [], "truncation": null, "padding": null, "post_processor": null,
            "decoder": null, "pre_tokenizer": null,
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": bytes, "vocab": vocab},
        });
        prop_assert_eq!(encode(&keys("t5", &rows), &text), reference(&file, &text));
    }

    #[test]
    fn pairs_are_merged_as_by_looking_at_all_of_them(
        pieces in pieces(), bytes: bool, text in "[abcé \u{1f642}]{0,40}",
    ) {
        let rows = rows(&pieces, bytes);
        prop_assert_eq!(encode(&keys("llama", &rows), &text), merge_slowly(&rows, &text));
    }

    #[test]
    fn word_piece_ids_equal_hugging_faces(
        pieces in prop::collection::vec("(##)?[aeuß中가.]{1,3}|(##)?\\PC", 1..60),
        text in "([aeuàéÄßẞİΣς中가．. \t]|\\PC|.){0,40}",
        lowercase: bool,
    ) {
        let mut seen = BTreeSet::from(["[UNK]"]);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).filter(|piece| seen.insert(piece)).collect();
        // In a GGUF file, a blank's sign within a word looks like the beginning of a word.
        prop_assume!(pieces.iter().all(|piece| !piece.contains('▁')) && !text.contains('▁'));
        let file_form = |piece: &&str| match piece.strip_prefix("##") {
            Some(later) => row(later, 0.0, NORMAL),
            None => row(&format!("▁{piece}"), 0.0, NORMAL),
        };
        let rows: Vec<Row> =
            [row("[UNK]", 0.0, 3)].into_iter().chain(pieces.iter().map(file_form)).collect();
        let vocab: serde_json::Map<String, Json> =
            ["[UNK]"].iter().chain(&pieces).zip(0u32..).map(|(piece, id)| ((*piece).to_owned(), id.into())).collect();
        let file = json!({
            "version": "1.0", "added_tokens": [], "truncation": null, "padding": null, "post_processor": null,
            "decoder": null, "pre_tokenizer": {"type": "BertPreTokenizer"},
            "normalizer": {
                "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": lowercase,
            },
            "model": {
                "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": vocab,
            },
        });
        let mut keys = keys("bert", &rows);
        keys.set("tokenizer.ggml.normalizer.lowercase", lowercase);
        prop_assert_eq!(encode(&keys, &text), reference(&file, &text));
    }

    #[test]
    fn no_vocabulary_breaks_an_encoder(
        model in prop::sample::select(&["llama", "t5", "bert"][..]),
        rows in prop::collection::vec(
            (prop::collection::vec(prop::sample::select(&b"ab <>0x\xe2\x96\x81\xc3\xa9\0\xff"[..]), 0..5),
             prop_oneof![any::<f32>(), Just(f32::NAN), Just(f32::INFINITY), Just(-0.0)],
             -1..8i32),
            1..60,
        ),
        charsmap in damaged_map(),
        flags: [bool; 3],
        text in "([ab <>0x▁é\0]|.){0,60}",
    ) {
        let mut keys = keys(model, &rows);
        for (key, flag) in ["add_space_prefix", "remove_extra_whitespaces", "normalizer.lowercase"].iter().zip(flags) {
            keys.set(format!("tokenizer.ggml.{key}"), flag);
        }
        keys.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(charsmap)));
        if let Ok(encoder) = Encoder::from_metadata(&keys) {
            let ids = encoder.encode(&text, true);
            prop_assert!(ids.iter().all(|id| (*id as usize) < rows.len()));
            let _ = encoder.decode(&ids);
        }
    }
}

/// Character maps whose size field is often right, with units that often lead to others.
fn damaged_map() -> impl Strategy<Value = Vec<u8>> {
    let unit = (0..300u32, any::<[bool; 2]>(), prop::sample::select(&b"ab \xc3\0"[..])).prop_map(
        |(offset, [leaf, far], label)| {
            offset << 10 | u32::from(far) << 9 | u32::from(leaf) << 8 | u32::from(label)
        },
    );
    let tail = prop::collection::vec(prop::sample::select(&b"ab \0\xff"[..]), 0..30);
    let fitting = (prop::collection::vec(unit, 0..300), tail).prop_map(|(units, tail)| map(&units, &tail));
    prop_oneof![fitting, prop::collection::vec(any::<u8>(), 0..40), Just(Vec::new())]
}

fn map(units: &[u32], replacements: &[u8]) -> Vec<u8> {
    let size = 4 * units.len() as u32;
    let units = units.iter().flat_map(|unit| unit.to_le_bytes());
    size.to_le_bytes().into_iter().chain(units).chain(replacements.iter().copied()).collect()
}

/// Map that replaces `a` by `bb` and `ab` by nothing.
fn small_map() -> Vec<u8> {
    let mut units = vec![0u32; 512];
    let (leaf, label) = (1 << 8, u32::from);
    units[0] = 1 << 10;
    let at_a = 1 ^ usize::from(b'a');
    units[at_a] = 3 << 10 | leaf | label(b'a');
    let below_a = at_a ^ 3;
    units[below_a] = 1 << 31;
    let at_ab = below_a ^ usize::from(b'b');
    units[at_ab] = 256 << 10 | leaf | label(b'b');
    units[at_ab ^ 256] = 1 << 31 | 2;
    map(&units, b"bb\0")
}

fn unigram(map: Vec<u8>) -> Metadata {
    let rows =
        [row("<unk>", 0.0, UNKNOWN), row("b", -1.0, NORMAL), row("▁", -2.0, NORMAL), row("a", -1.0, NORMAL)];
    let mut keys = keys("t5", &rows);
    keys.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(map)));
    keys
}

#[test]
fn the_longest_source_text_of_the_map_is_replaced() {
    let keys = unigram(small_map());
    assert_eq!(encode(&keys, "a"), [1, 1]);
    assert_eq!(encode(&keys, "bab"), [1]);
    assert_eq!(encode(&keys, "aab"), [1, 1]);
    assert_eq!(encode(&keys, "b c d"), [1, 2, 0, 2, 0]);
}

#[test]
fn broken_maps_are_named() {
    let error = |map| Encoder::from_metadata(&unigram(map)).err().unwrap().to_string();
    let key = "`tokenizer.ggml.precompiled_charsmap`";
    assert_eq!(error(vec![1, 0]), format!("{key}: byte 2: ends within the size of the double array"));
    let mut cut = small_map();
    cut.truncate(100);
    assert_eq!(error(cut), format!("{key}: byte 100: ends within the double array"));
    let long = map(&[0], &[b'x'; 300]);
    assert_eq!(error(long), format!("{key}: byte 8: a replacement is longer than 256 bytes"));
}

#[test]
fn blanks_follow_the_keys() {
    let ids = |prefix: bool, remove: bool, text: &str| {
        let mut keys = unigram(Vec::new());
        keys.set("tokenizer.ggml.add_space_prefix", prefix);
        keys.set("tokenizer.ggml.remove_extra_whitespaces", remove);
        encode(&keys, text)
    };
    let text = "  a  b ";
    assert_eq!(ids(false, false, text), [2, 2, 3, 2, 2, 1, 2]);
    assert_eq!(ids(true, false, text), [2, 2, 2, 3, 2, 2, 1, 2]);
    assert_eq!(ids(false, true, text), [3, 2, 1]);
    assert_eq!(ids(true, true, text), [2, 3, 2, 1]);
    assert_eq!(ids(true, true, "   "), [0u32; 0]);
    assert_eq!(ids(true, false, ""), [0u32; 0]);
}

#[test]
fn unused_tokens_fall_apart_and_cannot_be_chosen() {
    let rows = [
        row("<unk>", 0.0, UNKNOWN),
        row("a", -4.0, NORMAL),
        row("b", -5.0, NORMAL),
        row("ab", -1.0, UNUSED),
        row("aba", -2.0, NORMAL),
    ];
    assert_eq!(encode(&keys("llama", &rows), "abaab"), [4, 1, 2]);
    assert_eq!(encode(&keys("t5", &rows), "abaab"), [4, 1, 2]);
}

#[test]
fn control_and_byte_tokens_never_come_out_of_plain_text() {
    let mut rows = rows(&[], true);
    rows.extend(
        ["<", "0", "x", "A", ">", "<0", "<0x", "<0x0", "<0x0A", "s", "<s"]
            .map(|text| row(text, -1.0, NORMAL)),
    );
    rows.push(row("<s>", 0.0, 3));
    for model in ["llama", "t5"] {
        let encoder = Encoder::from_metadata(&keys(model, &rows)).unwrap();
        for text in ["<0x0A>", "<s>", "<unk>"] {
            let ids = encoder.encode(text, false);
            assert!(ids.len() > 1, "{model}: {text}: {ids:?}");
            assert_eq!(encoder.decode(&ids), text.as_bytes());
        }
    }
}

#[test]
fn without_unknown_or_byte_tokens_there_is_no_encoder() {
    for model in ["llama", "t5", "bert"] {
        let mut keys = keys(model, &[row("a", 0.0, NORMAL)]);
        keys.remove("tokenizer.ggml.unknown_token_id");
        // The format's default for `llama` is token 0.
        let error = Encoder::from_metadata(&keys).err().map(|error| error.to_string());
        let expected = "the vocabulary has neither a token for the unknown nor one for each byte";
        assert_eq!(error.as_deref(), Some(expected).filter(|_| model != "llama"), "{model}");
    }
}

two_tiers!(many_equal_letters_take_a_moment);
/// A quadratic time would show in both sizes.
fn many_equal_letters_take_a_moment(tier: Tier) {
    let run = |n: usize| row(&"a".repeat(n), -(n as f32), NORMAL);
    for model in ["llama", "t5", "bert"] {
        let mut rows = rows(&[], true);
        rows.extend([1, 2, 4, 8, 500].map(run));
        rows.extend([1, 64].map(|n| row(&"▁".repeat(n), -3.0, NORMAL)));
        let encoder = Encoder::from_metadata(&keys(model, &rows)).unwrap();
        for text in ["a", " ", "\u{1f642}", "b", "a ", "\u{301}"] {
            let long = text.repeat((1 << tier.of(13, 16)) / text.len());
            let ids = encoder.encode(&long, false);
            if model != "bert" {
                assert!(encoder.decode(&ids) == long.as_bytes(), "{model}: {text:?}");
            }
        }
    }
}
