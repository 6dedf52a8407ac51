//! Conversion of tokens to bytes.

use crate::byte_alphabet::bytes_of;
use crate::emit::{TokenType, byte_token, is_byte_token};

use super::hybrid_dna::MARK;
use super::vocab::{Vocab, VocabModel};
use crate::python_literal;

/// Spelling of a vocabulary's normal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    Bytes,
    /// Plain text, with `▁` for a space.
    Metaspace,
    /// Plain text.
    Plain,
    /// Python's notation of bytes.
    Python,
}

impl Vocab {
    /// Returns the bytes of a token as a text contains them.
    pub(crate) fn piece(&self, id: u32) -> Vec<u8> {
        let spelling = match self.model {
            VocabModel::Rwkv => Spelling::Python,
            VocabModel::Plamo => Spelling::Plain,
            VocabModel::Bpe if !self.escape_whitespaces => Spelling::Bytes,
            _ => Spelling::Metaspace,
        };
        let mut out = Vec::new();
        piece(self, spelling, id, &mut out);
        out
    }

    /// Returns true for a token that is found in a text before the text is split.
    pub(crate) fn is_parsed(&self, id: u32) -> bool {
        matches!(self.kind(id), TokenType::Control | TokenType::UserDefined | TokenType::Unknown)
    }
}

/// Appends the bytes of a token: special tokens are written out, unused ones give nothing.
pub(super) fn piece(vocab: &Vocab, spelling: Spelling, id: u32, out: &mut Vec<u8>) {
    let Some(text) = vocab.token(id) else { return };
    match (vocab.kind(id), std::str::from_utf8(text)) {
        (TokenType::Unused, _) => {}
        (TokenType::Byte, Ok(written)) if is_byte_token(written) => out.extend(byte_token(written)),
        (TokenType::Normal, Ok(written)) if spelling == Spelling::Bytes => {
            // Words of DNA consist only of letters.
            let written = written.strip_suffix(MARK).filter(|_| vocab.has_dna).unwrap_or(written);
            // A token with a character outside the alphabet was added as plain text.
            match bytes_of(written) {
                Some(bytes) => out.extend(bytes),
                None => out.extend(written.bytes()),
            }
        }
        (TokenType::Normal, _) if spelling == Spelling::Python => out.extend(python_literal::read(text)),
        (TokenType::Normal, Ok(written)) if spelling == Spelling::Metaspace => {
            out.extend(written.replace('\u{2581}', " ").bytes());
        }
        _ => out.extend(text),
    }
}
