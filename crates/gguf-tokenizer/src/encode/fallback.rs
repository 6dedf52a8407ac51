//! Encoding of characters that no token covers.

use super::EncodeError;
use super::trie::tokens_of_kinds;
use super::vocab::Vocab;
use crate::emit::TokenType;

/// Byte tokens, and the unknown token.
pub(super) struct Fallback {
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
}

impl Fallback {
    /// Collects the tokens.
    pub(super) fn new(vocab: &Vocab) -> Result<Self, EncodeError> {
        let mut bytes = Box::new([None; 256]);
        for (slot, byte) in bytes.iter_mut().zip(0..=u8::MAX) {
            *slot = vocab.byte(byte);
        }
        // A file made from a SentencePiece model may lack the id of the unknown token, but its type marks it.
        let unknown = tokens_of_kinds(vocab, &[TokenType::Unknown]).next().map(|token| token.1).or(vocab.unk);
        if unknown.is_none() && bytes.iter().any(Option::is_none) {
            return Err(EncodeError::NoUnknownToken);
        }
        Ok(Self { bytes, unknown })
    }

    /// Appends the byte tokens of a character, or the unknown token if one of them is missing. `in_unknown` is true if
    /// the last token was the unknown one: consecutive characters share one.
    pub(super) fn push(&self, character: &[u8], in_unknown: &mut bool, out: &mut Vec<u32>) {
        let start = out.len();
        out.extend(character.iter().map_while(|byte| self.bytes[usize::from(*byte)]));
        if out.len() - start == character.len() {
            *in_unknown = false;
            return;
        }
        out.truncate(start);
        if !*in_unknown {
            out.extend(self.unknown);
        }
        *in_unknown = true;
    }
}
