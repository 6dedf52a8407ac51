//! Tokenizer files to keys, keys to encoders, text to ids and back.

use std::path::Path;
use std::sync::LazyLock;

use gguf_foundry::core::limits::Limits;
use gguf_foundry::gguf::{Array, Metadata, Strictness, Value, parse_header};
use gguf_foundry::tokenizer::{
    self, Encoder, GivenKind, GivenVocabulary, HfJson, Mode, RankCode, TokenizerRequest, char_of, to_hf,
};

use super::bundle::{self, Directory, accepted};

pub(super) fn tokenizer_json(data: &[u8]) -> bool {
    serde_json::from_slice::<HfJson>(data).is_ok()
}

const TEXTS: [&str; 3] =
    ["Hello world, it's 2026!\n\n  x", "<s> ▁é\u{1f642}\u{0301}</s>", "aaabbbaaa\tab\r\n"];

/// Builds an encoder from any keys: ids must be tokens, and must decode to bytes without a panic.
fn try_keys(keys: &Metadata, texts: &[&str]) -> bool {
    let Some(Array::String(tokens)) = keys.get("tokenizer.ggml.tokens").and_then(Value::as_array) else {
        return false;
    };
    let Some(encoder) = accepted(Encoder::from_metadata(keys)) else { return false };
    for text in texts {
        for special in [false, true] {
            let ids = encoder.encode(text, special);
            assert!(ids.iter().all(|&id| (id as usize) < tokens.len()), "{ids:?}");
            let _ = encoder.decode(&ids);
        }
    }
    let _ = (encoder.start_of_text(), encoder.end_of_text());
    true
}

pub(super) fn sentencepiece(data: &[u8]) -> bool {
    let files = vec![("tokenizer.model".to_owned(), data.to_vec())];
    let given = GivenVocabulary { kind: GivenKind::Pieces, files, ..GivenVocabulary::default() };
    let request = TokenizerRequest::of(&[Mode::Spm]);
    let Some(built) = accepted(tokenizer::build_given(Path::new("fuzz"), &given, &request)) else {
        return false;
    };
    try_keys(&built.rows, &TEXTS) | to_hf(&built.rows).is_ok()
}

const FILES: &[&str] = &[
    "mode",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "ice_text.model",
    "merges.txt",
    "qwen.tiktoken",
    "rwkv_vocab_v20230424.txt",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.jsonl",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model.v3",
];

/// Reads a directory of tokenizer files in the mode that the file `mode` names: keys, their conversion back, an
/// encoder.
pub(super) fn files(data: &[u8]) -> bool {
    let files = bundle::split(data, FILES);
    let name = bundle::find(&files, "mode").map(<[u8]>::trim_ascii);
    let mode = Mode::ALL.iter().find(|mode| Some(mode.name().as_bytes()) == name);
    let dir = Directory::of(&files);
    let mut request = TokenizerRequest::of(&[*mode.unwrap_or(&Mode::Bpe)]);
    for mode in &mut request.modes {
        mode.rank_code = (mode.mode == Mode::Tiktoken).then_some(RankCode::Qwen);
    }
    request.pad_multiple = (data.len() % 2 == 1).then_some(8);
    let Some(built) = accepted(tokenizer::build(dir.path(), &request)) else { return false };
    for warning in &built.warnings {
        assert!(!warning.to_string().is_empty());
    }
    let _ = accepted(to_hf(&built.rows));
    try_keys(&built.rows, &TEXTS);
    true
}

/// Reads the keys of a GGUF file with an untrusted vocabulary, and a text for it.
pub(super) fn encoder(data: &[u8]) -> bool {
    let files = bundle::split(data, &["keys", "text"]);
    let Some(keys) = bundle::find(&files, "keys") else { return false };
    let Some(header) = accepted(parse_header(keys, &Limits::default(), Strictness::LlamaCpp)) else {
        return false;
    };
    let text = String::from_utf8_lossy(bundle::find(&files, "text").unwrap_or_default());
    let _ = accepted(to_hf(&header.metadata));
    try_keys(&header.metadata, &[&text])
}

/// Encoder of byte-level BPE with all bytes and some merges.
static LETTERS: LazyLock<Encoder> = LazyLock::new(|| {
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| char_of(byte).to_string()).collect();
    let merges =
        [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "a"), ("aa", "a"), ("Ã", "©"), ("Ġ", "Ġ"), ("1", "2")];
    tokens.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let n_tokens = tokens.len();
    let bytes =
        |texts: Vec<String>| Value::Array(Array::String(texts.into_iter().map(String::into_bytes).collect()));
    let mut keys = Metadata::new();
    keys.set("tokenizer.ggml.model", "gpt2");
    keys.set("tokenizer.ggml.pre", "llama-bpe");
    keys.set("tokenizer.ggml.tokens", bytes(tokens));
    keys.set("tokenizer.ggml.token_type", vec![1i32; n_tokens]);
    keys.set("tokenizer.ggml.merges", bytes(merges.map(|(a, b)| format!("{a} {b}")).to_vec()));
    Encoder::from_metadata(&keys).expect("a vocabulary of ours")
});

/// Checks that any text is restored from its ids.
pub(super) fn text(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let ids = LETTERS.encode(text, false);
    assert_eq!(LETTERS.decode(&ids), data, "{ids:?}");
    // A text never has more ids than bytes, nor fewer than the longest merge allows.
    assert!(ids.len() <= data.len() && ids.len() * 8 >= data.len());
    true
}
