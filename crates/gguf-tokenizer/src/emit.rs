//! Token list of a GGUF file: texts, scores, types, and their keys.

use crate::Result;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use gguf_format::{Array, Metadata, Value};

use super::{TokenizerError, TokenizerRequest, TokenizerWarning};

/// Maximum number of tokens that are written: four times the largest known vocabulary. An untrusted `vocab_size` must
/// not allocate more memory.
pub(crate) const MAX_TOKENS: u64 = 1 << 22;

/// Checks that a vocabulary of `size` tokens may be written.
pub(crate) fn check_size(path: &Path, size: u64) -> Result<()> {
    if size > MAX_TOKENS {
        return Err(TokenizerError::TooManyTokens { path: path.into(), size, limit: MAX_TOKENS });
    }
    Ok(())
}

/// Type of a token, with the format's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum TokenType {
    /// Text.
    Normal = 1,
    /// Token for unknown text.
    Unknown = 2,
    /// Not text: begin, end, roles of a chat.
    Control = 3,
    /// Text that is recognized before anything else.
    UserDefined = 4,
    /// A row of the embedding without a token.
    Unused = 5,
    /// One byte.
    Byte = 6,
}

/// Tokens by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenList {
    /// Texts.
    pub tokens: Vec<Vec<u8>>,
    /// Scores, if the kind of vocabulary has them.
    pub scores: Option<Vec<f32>>,
    /// Types.
    pub types: Vec<TokenType>,
}

impl TokenList {
    /// Creates a list of `n` unused tokens `[PADi]`, with the given score if any.
    pub(crate) fn unused(path: &Path, n: u64, score: Option<f32>) -> Result<Self> {
        let mut list = Self { scores: score.map(|_| Vec::new()), ..Self::default() };
        list.pad(path, n, score)?;
        Ok(list)
    }

    pub(crate) fn len(&self) -> u64 {
        self.tokens.len() as u64
    }

    pub(crate) fn push(&mut self, text: impl Into<Vec<u8>>, score: f32, kind: TokenType) {
        self.tokens.push(text.into());
        if let Some(scores) = &mut self.scores {
            scores.push(score);
        }
        self.types.push(kind);
    }

    /// Sets the token of an existing id; returns false if the list is shorter.
    pub(crate) fn set(&mut self, id: u64, text: impl Into<Vec<u8>>, score: f32, kind: TokenType) -> bool {
        let Some(at) = usize::try_from(id).ok().filter(|&at| at < self.tokens.len()) else { return false };
        self.tokens[at] = text.into();
        if let Some(score_at) = self.scores.as_mut().and_then(|scores| scores.get_mut(at)) {
            *score_at = score;
        }
        self.types[at] = kind;
        true
    }

    /// Appends unused tokens `[PADi]` up to `n` tokens.
    pub(crate) fn pad(&mut self, path: &Path, n: u64, score: Option<f32>) -> Result<()> {
        check_size(path, n)?;
        for id in self.len()..n {
            self.push(format!("[PAD{id}]"), score.unwrap_or(0.0), TokenType::Unused);
        }
        Ok(())
    }

    pub(crate) fn id(&self, text: &str) -> Option<u64> {
        self.tokens.iter().position(|token| token == text.as_bytes()).map(|at| at as u64)
    }

    /// Changes the types of the tokens that the card names.
    pub(crate) fn retype(&mut self, request: &TokenizerRequest) {
        for (names, kind) in
            [(&request.control, TokenType::Control), (&request.user_defined, TokenType::UserDefined)]
        {
            for name in names {
                for (text, of_text) in self.tokens.iter().zip(&mut self.types) {
                    if text == name.as_bytes() {
                        *of_text = kind;
                    }
                }
            }
        }
    }

    /// Writes model, pre-tokenizer, tokens, scores and types, in the reference's order.
    pub(crate) fn write(self, model: &str, pre: &str, out: &mut Metadata) {
        out.set("tokenizer.ggml.model", model);
        out.set("tokenizer.ggml.pre", pre);
        self.write_tokens(out);
    }

    /// Writes the list like [`TokenList::write`], for a kind of vocabulary without a pre-tokenizer.
    pub(crate) fn write_model(self, model: &str, out: &mut Metadata) {
        out.set("tokenizer.ggml.model", model);
        self.write_tokens(out);
    }

    /// Writes tokens, scores and types.
    pub(crate) fn write_tokens(mut self, out: &mut Metadata) {
        let scores = self.scores.take().map(Value::from);
        self.write_scored(scores, out);
    }

    /// Writes tokens, the given scores, and types.
    pub(crate) fn write_scored(self, scores: Option<Value>, out: &mut Metadata) {
        out.set("tokenizer.ggml.tokens", Value::Array(Array::String(self.tokens)));
        if let Some(scores) = scores {
            out.set("tokenizer.ggml.scores", scores);
        }
        let types: Vec<i32> = self.types.into_iter().map(|kind| kind as i32).collect();
        out.set("tokenizer.ggml.token_type", types);
    }
}

/// Refuses a vocabulary in which two tokens have one text: llama.cpp aborts when it loads one. It renames empty tokens.
pub(crate) fn check_texts(path: &Path, rows: &Metadata) -> Result<()> {
    let Some(Array::String(tokens)) = rows.get("tokenizer.ggml.tokens").and_then(Value::as_array) else {
        return Ok(());
    };
    let mut first = HashMap::with_capacity(tokens.len());
    for (second, token) in tokens.iter().enumerate().filter(|(_, token)| !token.is_empty()) {
        if let Some(first) = first.insert(token.as_slice(), second) {
            let (path, token) = (path.into(), String::from_utf8_lossy(token).into_owned());
            return Err(TokenizerError::TextTwice { path, token, first, second });
        }
    }
    Ok(())
}

/// Returns a warning about a vocabulary of pieces that lacks some of the 256 byte tokens.
pub fn missing_bytes(rows: &Metadata) -> Option<TokenizerWarning> {
    let is_of_pieces = rows.get("tokenizer.ggml.model").and_then(Value::as_str) == Some("llama");
    let Some(Array::String(tokens)) = rows.get("tokenizer.ggml.tokens").and_then(Value::as_array) else {
        return None;
    };
    let tokens: HashSet<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    // The runtime takes the character for its byte, where there is one.
    let has =
        |byte: u8| tokens.contains(format!("<0x{byte:02X}>").as_bytes()) || tokens.contains(&[byte][..]);
    let lacks: Vec<u8> = (0..=u8::MAX).filter(|&byte| !has(byte)).collect();
    let first = lacks.first().filter(|_| is_of_pieces)?;
    Some(TokenizerWarning::BytesMissing { first: format!("<0x{first:02X}>"), n: lacks.len() })
}

/// Returns the number of tokens: `size` of the request, or the files' own count, rounded up as the card requires.
pub(crate) fn n_tokens(request: &TokenizerRequest, own: u64) -> u64 {
    let size = request.size.unwrap_or(own);
    match request.pad_multiple {
        Some(multiple) if multiple > 0 => size.checked_next_multiple_of(multiple).unwrap_or(u64::MAX),
        _ => size,
    }
}

/// Returns the byte of a token `<0xNN>`.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let two = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| two)
}

/// Returns true for `<0xNN>`.
pub(crate) fn is_byte_token(text: &str) -> bool {
    byte_token(text).is_some()
}

/// Returns true for tokens that llama.cpp's converter treats as special although their file does not declare it.
pub(crate) fn looks_special(text: &str) -> bool {
    let between = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_byte_tokens_are_told() {
        let warning = |model: &str, lacks: std::ops::Range<u16>| {
            let bytes = (0..=u8::MAX).filter(|&byte| !lacks.contains(&byte.into()));
            let tokens = bytes.map(|byte| format!("<0x{byte:02X}>").into_bytes());
            let mut rows = Metadata::new();
            rows.set("tokenizer.ggml.model", model);
            rows.set(
                "tokenizer.ggml.tokens",
                Value::Array(Array::String(tokens.chain([b"a".to_vec()]).collect())),
            );
            missing_bytes(&rows).map(|warning| warning.to_string())
        };
        let said = warning("llama", 10..12).unwrap();
        assert!(said.contains("2 of the 256") && said.contains("<0x0A>"), "{said}");
        // `a` stands for its byte.
        assert_eq!(warning("llama", 97..98), None);
        assert!(warning("llama", 0..256).unwrap().contains("255 of the 256"));
        assert_eq!((warning("llama", 0..0), warning("gpt2", 10..12)), (None, None));
    }

    #[test]
    fn padding_names_the_id_and_has_a_limit() {
        let path = Path::new("d");
        let mut list = TokenList::default();
        list.push("a", 0.0, TokenType::Normal);
        list.pad(path, 3, None).unwrap();
        assert_eq!(list.tokens, [b"a".to_vec(), b"[PAD1]".to_vec(), b"[PAD2]".to_vec()]);
        assert_eq!(list.types, [TokenType::Normal, TokenType::Unused, TokenType::Unused]);
        let error = list.pad(path, u64::MAX, None).unwrap_err().to_string();
        assert_eq!(
            error,
            "d: a vocabulary of 18446744073709551615 tokens is asked for, at most 4194304 are written"
        );
        assert!(!list.set(3, "x", 0.0, TokenType::Normal));
    }

    #[test]
    fn a_byte_is_two_hexadecimal_digits() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        for text in ["<0xA>", "<0x+1>", "0x0A", "<0x0AA>"] {
            assert_eq!(byte_token(text), None, "{text}");
        }
    }

    #[test]
    fn special_looks() {
        for text in ["<|im_end|>", "<pad>", "<\u{ff5c}User\u{ff5c}>", "<unused7>"] {
            assert!(looks_special(text), "{text}");
        }
        for text in ["<s>", "<|x", "unused", "[PAD]"] {
            assert!(!looks_special(text), "{text}");
        }
    }
}
