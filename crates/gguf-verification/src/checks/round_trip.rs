//! Round trip of texts through token ids.
//!
//! A vocabulary with a token for every byte, and no normalizer, must return every text. Any change is a lost or wrong
//! token and an error. WordPiece drops white space, and case and accents if its keys declare it: only other changes are
//! reported. Vocabularies that normalize (T5's SentencePiece folds compatibility forms and runs of blanks), or that lack
//! tokens for some bytes, change text by design: this is a warning. A change of only
//! the Unicode normal form is a warning for all vocabularies, since many byte-level tokenizers compose text first.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::checks::vocabulary::{is_expected, strings};
use crate::{Check, Finding, Model, TextEncoder};
use gguf_core::text::escape_bytes;
use gguf_format::{Array, Metadata, Value};

const CHECK: Check = Check::RoundTrip;
/// Token type of the 256 byte tokens of a SentencePiece vocabulary.
const BYTE: i32 = 6;
/// Number of bytes of a text that are shown around a difference.
const SHOWN: usize = 24;

/// Reports a tokenizer that is missing without reason, or that does not return texts.
pub(super) fn check(model: &Model<'_>, texts: &[&str]) -> Option<Finding> {
    match model.encoder {
        Ok(encoder) => check_round_trip(encoder, model.metadata, texts),
        Err(reason) => is_expected(model.metadata).then(|| Finding::unchecked(Check::Tokenizer, reason)),
    }
}

/// Encodes and decodes texts. Returns at most one finding: the first error, otherwise the first change that may be by
/// design.
fn check_round_trip(encoder: &dyn TextEncoder, metadata: &Metadata, texts: &[&str]) -> Option<Finding> {
    let is_exact = gives_every_text_back(metadata);
    let folds = folding(metadata);
    let mut warning = None;
    for text in texts {
        let tokens = match encoder.encode(text, false) {
            Ok(tokens) => tokens,
            Err(reason) if is_exact => return Some(Finding::error(CHECK, reason)),
            Err(reason) => {
                warning.get_or_insert_with(|| Finding::warning(CHECK, reason));
                continue;
            }
        };
        let decoded = encoder.decode(&tokens);
        if folds.is_some_and(|lowercase| {
            folded(&String::from_utf8_lossy(&decoded), lowercase) == folded(text, lowercase)
        }) {
            continue;
        }
        // SentencePiece vocabularies put a blank in front of a text.
        let trimmed = decoded.strip_prefix(b" ").unwrap_or(&decoded);
        if decoded == text.as_bytes() || trimmed == text.as_bytes() {
            continue;
        }
        let found = std::str::from_utf8(trimmed).unwrap_or_default().trim_start_matches(' ');
        if found.nfc().eq(text.trim_start_matches(' ').nfc()) {
            let message = format!("{}, in its Unicode normal form only", change(text, &decoded));
            warning.get_or_insert_with(|| Finding::warning(CHECK, message));
        } else if is_exact {
            return Some(Finding::error(CHECK, change(text, &decoded)));
        } else {
            let message = format!("{}: this vocabulary does not keep every text", change(text, &decoded));
            warning.get_or_insert_with(|| Finding::warning(CHECK, message));
        }
    }
    warning
}

/// Returns true or false if a vocabulary drops white space by design, with or without upper case and accents.
fn folding(metadata: &Metadata) -> Option<bool> {
    let is_word_piece = metadata.get("tokenizer.ggml.model").and_then(Value::as_str) == Some("bert");
    let lowercase = metadata.get("tokenizer.ggml.normalizer.lowercase").and_then(Value::as_bool);
    is_word_piece.then(|| lowercase.unwrap_or(true))
}

/// Returns a text without white space and, with `lowercase`, without upper case and accents.
fn folded(text: &str, lowercase: bool) -> String {
    let dropped = |c: char| c.is_whitespace() || c.is_control() || (lowercase && is_combining_mark(c));
    let text: String = text.nfd().filter(|c| !dropped(*c)).collect();
    if lowercase { text.to_lowercase() } else { text }
}

/// Describes the first difference with the text around it.
fn change(text: &str, decoded: &[u8]) -> String {
    let same = decoded.iter().zip(text.as_bytes()).take_while(|(a, b)| a == b).count();
    let around = |bytes: &[u8]| {
        // Not in the middle of a character.
        let whole = |mut at: usize| {
            while at > 0 && bytes.get(at).is_some_and(|byte| byte & 0xc0 == 0x80) {
                at -= 1;
            }
            at
        };
        let start = whole(same.saturating_sub(SHOWN / 3).min(bytes.len()));
        escape_bytes(&bytes[start..whole(bytes.len().min(start + SHOWN))])
    };
    let (before, after) = (around(text.as_bytes()), around(decoded));
    format!("text changes on its way through the ids at byte {same}: `{before}` becomes `{after}`")
}

/// Returns true if a vocabulary can represent every text and changes none.
fn gives_every_text_back(metadata: &Metadata) -> bool {
    let get = |key: &str| metadata.get(&format!("tokenizer.ggml.{key}"));
    let Some(tokens) = strings(metadata, "tokenizer.ggml.tokens") else { return false };
    match get("model").and_then(Value::as_str) {
        Some("gpt2") => {
            let mut have = [false; 256];
            for token in tokens {
                if let Some(byte) = byte_of(token) {
                    have[usize::from(byte)] = true;
                }
            }
            // Bytes that occur in no UTF-8 text need no token.
            let in_text = |byte: usize| !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff);
            (0..256).all(|byte| have[byte] || !in_text(byte))
        }
        Some("llama") => {
            let types = match get("token_type").and_then(Value::as_array) {
                Some(Array::I32(types)) => types.as_slice(),
                _ => return false,
            };
            let removes = get("remove_extra_whitespaces").and_then(Value::as_bool) == Some(true);
            types.iter().filter(|&&ty| ty == BYTE).count() == 256
                && !removes
                && get("precompiled_charsmap").is_none()
        }
        Some("rwkv") => true,
        _ => false,
    }
}

/// Returns the byte that a token of one character represents in the byte-level alphabet.
fn byte_of(token: &[u8]) -> Option<u8> {
    let mut chars = std::str::from_utf8(token).ok()?.chars();
    gguf_tokenizer::byte_of(chars.next().filter(|_| chars.next().is_none())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encoder with one token per byte; may lower the case or decompose characters.
    struct ByteEncoder {
        lowers: bool,
        decomposes: bool,
    }

    impl TextEncoder for ByteEncoder {
        fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
            let text: String = if self.decomposes { text.nfd().collect() } else { text.to_owned() };
            let text = if self.lowers { text.to_lowercase() } else { text };
            Ok(text.bytes().map(u32::from).collect())
        }

        fn decode(&self, tokens: &[u32]) -> Vec<u8> {
            [b" ".to_vec(), tokens.iter().map(|&id| id as u8).collect()].concat()
        }

        fn start_of_text(&self) -> Option<u32> {
            None
        }
    }

    fn byte_level() -> Metadata {
        let mut metadata = Metadata::new();
        let chars = (0x21..=0x7e).chain(0xa1..=0xac).chain(0xae..=0xff).chain(0x100..=0x143);
        let tokens = chars.map(|c| char::from_u32(c).unwrap().to_string().into_bytes()).collect();
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        metadata
    }

    #[test]
    fn losses_are_errors_where_every_byte_has_a_token() {
        let metadata = byte_level();
        assert!(gives_every_text_back(&metadata));
        let check = |metadata: &Metadata, lowers, decomposes| {
            let found =
                check_round_trip(&ByteEncoder { lowers, decomposes }, metadata, &["plain", "an É here"]);
            found.map(|f| format!("{}: {}", f.severity.name(), f.message))
        };
        assert_eq!(check(&metadata, false, false), None);
        let found = check(&metadata, true, false).unwrap();
        assert!(found.starts_with("error: text changes on its way through the ids at byte"), "{found}");
        let found = check(&metadata, false, true).unwrap();
        assert!(found.starts_with("warning: ") && found.ends_with("normal form only"), "{found}");
        let mut lossy = metadata;
        lossy.set("tokenizer.ggml.model", "bert");
        assert_eq!(check(&lossy, true, true), None);
        lossy.set("tokenizer.ggml.normalizer.lowercase", false);
        let found = check(&lossy, true, false).unwrap();
        assert!(found.starts_with("warning: ") && found.ends_with("does not keep every text"), "{found}");
    }

    #[test]
    fn the_byte_alphabet_is_gpt2s() {
        assert_eq!(byte_of("A".as_bytes()), Some(b'A'));
        assert_eq!(byte_of("Ġ".as_bytes()), Some(b' '));
        assert_eq!(byte_of("Ċ".as_bytes()), Some(b'\n'));
        assert_eq!(byte_of("Ń".as_bytes()), Some(0xad));
        assert_eq!(byte_of("ń".as_bytes()), None);
        assert_eq!(byte_of("ab".as_bytes()), None);
    }
}
