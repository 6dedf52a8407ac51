//! RWKV's world vocabulary (`tokenizer.ggml.model` = `rwkv`).

use super::EncodeError;
use super::trie::{Trie, tokens_of_kinds};
use super::vocab::Vocab;
use crate::emit::TokenType;
use crate::python_literal;

/// Encoder that splits a text, from its start, into the longest tokens.
///
/// # Exactness
/// `TRIE_TOKENIZER` of RWKV's own code. The file stores bytes in Python's notation. llama.cpp differs for texts with
/// the name of a row without a token (`[PAD65530]`), which it encodes as that row.
pub(crate) struct Rwkv {
    trie: Trie,
    unknown: Option<u32>,
}

impl Rwkv {
    /// Takes the tokens of a vocabulary.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, EncodeError> {
        let tokens: Vec<(Vec<u8>, u32)> =
            tokens_of_kinds(vocab, &[TokenType::Normal, TokenType::UserDefined])
                .map(|(text, id)| (python_literal::read(text), id))
                .collect();
        let trie = Trie::new(tokens.iter().map(|(text, id)| (text.as_slice(), *id)))?;
        Ok(Self { trie, unknown: vocab.unk })
    }

    /// Appends the ids of a text without special tokens. Bytes without tokens are omitted if there is no unknown token.
    pub(crate) fn encode_fragment(&self, text: &str, out: &mut Vec<u32>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (n_bytes, id) = match self.trie.longest_prefix(rest) {
                Some((n_bytes, id)) => (n_bytes, Some(id)),
                None => (1, self.unknown),
            };
            out.extend(id);
            rest = rest.get(n_bytes..).unwrap_or_default();
        }
    }
}
