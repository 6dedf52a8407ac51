//! SentencePiece's normalizer: character map, spaces, prefix.

use super::EncodeError;
use super::charsmap::Charsmap;
use super::trie::Trie;
use super::vocab::Vocab;
use crate::emit::TokenType;

/// U+2581, which represents a space in pieces.
pub(super) const BLANK: &[u8] = "\u{2581}".as_bytes();

/// Maximum growth of a text: this factor, plus `GROWTH_BYTES`. Unicode's own forms reach 13: a ligature of three bytes
/// stands for four Arabic words.
const MAX_GROWTH: usize = 16;
const GROWTH_BYTES: usize = 4096;

/// Normalization of a text before it is split into pieces.
///
/// # Exactness
/// `normalizer::Normalizer` of sentencepiece 0.2. llama.cpp applies only the prefix to BPE vocabularies, and puts a
/// space in front of unigram text even if `add_space_prefix` is false.
pub(super) struct Normalizer {
    charsmap: Option<Charsmap>,
    /// Tokens that pass through unchanged.
    user_defined: Option<Trie>,
    add_prefix: bool,
    remove_extra: bool,
    blank: &'static [u8],
}

impl Normalizer {
    /// Takes the settings of a vocabulary.
    pub(super) fn new(vocab: &Vocab) -> Result<Self, EncodeError> {
        let charsmap = Some(vocab.precompiled_charsmap.as_slice()).filter(|map| !map.is_empty());
        let charsmap = charsmap.map(Charsmap::new).transpose()?;
        let user_defined = Trie::of_kinds(vocab, &[TokenType::UserDefined])?;
        Ok(Self {
            charsmap,
            user_defined: Some(user_defined).filter(|trie| !trie.is_empty()),
            add_prefix: vocab.add_space_prefix,
            remove_extra: vocab.remove_extra_whitespaces,
            blank: if vocab.escape_whitespaces { BLANK } else { b" " },
        })
    }

    /// Checks that a text stays within bounds: an untrusted map may replace every character by hundreds.
    pub(super) fn check(&self, text: &str) -> Result<(), usize> {
        // Without a map, the only growth is from a space of one byte to three bytes.
        if self.charsmap.is_none() {
            return Ok(());
        }
        let limit = text.len().saturating_mul(MAX_GROWTH).saturating_add(GROWTH_BYTES);
        let (mut rest, mut total) = (text.as_bytes(), 0usize);
        while !rest.is_empty() {
            let (chunk, n_bytes) = self.chunk(rest);
            // Each byte may be a space that is written with three.
            let written = |byte: &u8| if *byte == b' ' { self.blank.len() } else { 1 };
            total = total.saturating_add(chunk.iter().map(written).sum());
            if total > limit {
                return Err(limit);
            }
            rest = &rest[n_bytes..];
        }
        Ok(())
    }

    /// Normalizes a text; the result may be invalid UTF-8 if the map is damaged.
    pub(super) fn normalize(&self, text: &str) -> Vec<u8> {
        let mut rest = text.as_bytes();
        if self.remove_extra {
            loop {
                let (chunk, n_bytes) = self.chunk(rest);
                if n_bytes == 0 || chunk != b" " {
                    break;
                }
                rest = &rest[n_bytes..];
            }
        }
        let mut out = Vec::new();
        if rest.is_empty() {
            return out;
        }
        out.reserve(rest.len() + rest.len() / 2 + self.blank.len());
        if self.add_prefix {
            out.extend_from_slice(self.blank);
        }
        let mut after_blank = self.remove_extra;
        while !rest.is_empty() {
            let (mut chunk, n_bytes) = self.chunk(rest);
            while after_blank && let Some(shorter) = chunk.strip_prefix(b" ") {
                chunk = shorter;
            }
            for byte in chunk {
                if *byte == b' ' {
                    out.extend_from_slice(self.blank);
                } else {
                    out.push(*byte);
                }
            }
            if let Some(last) = chunk.last() {
                after_blank = self.remove_extra && *last == b' ';
            }
            rest = &rest[n_bytes..];
        }
        while self.remove_extra && out.ends_with(self.blank) {
            out.truncate(out.len() - self.blank.len());
        }
        out
    }

    /// Returns the next piece of normalized text, and the number of bytes of `rest` that it represents (0 only at the
    /// end).
    fn chunk<'a>(&'a self, rest: &'a [u8]) -> (&'a [u8], usize) {
        let user_defined = self.user_defined.as_ref().and_then(|trie| trie.longest_prefix(rest));
        if let Some((n_bytes, _)) = user_defined {
            return (&rest[..n_bytes], n_bytes);
        }
        if let Some(found) = self.charsmap.as_ref().and_then(|map| map.replace(rest)) {
            return found;
        }
        let n_bytes = rest.first().map_or(0, |lead| character_bytes(*lead)).min(rest.len());
        (&rest[..n_bytes], n_bytes)
    }
}

/// Returns the length in bytes of the UTF-8 character that starts with `lead`; 1 for a byte that starts none.
pub(super) fn character_bytes(lead: u8) -> usize {
    match lead {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
        _ => 1,
    }
}
