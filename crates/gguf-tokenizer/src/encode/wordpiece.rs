//! BERT's WordPiece (`tokenizer.ggml.model` = `bert`).

use unicode_categories::UnicodeCategories;
use unicode_normalization::UnicodeNormalization;

use super::EncodeError;
use super::normalizer::BLANK;
use super::trie::{Trie, tokens_of_kinds};
use super::vocab::Vocab;
use crate::emit::TokenType;

/// Maximum length of a word in characters; longer ones are unknown as a whole.
const MAX_WORD_CHARACTERS: usize = 100;
/// Maximum length in bytes of a token of such a word.
const MAX_TOKEN_BYTES: usize = 4 * MAX_WORD_CHARACTERS;

/// Encoder that splits words, from their start, into the longest tokens.
///
/// # Exactness
/// `BertNormalizer`, `BertPreTokenizer` and `WordPiece` of Hugging Face's tokenizers 0.23. The file has `▁` before
/// tokens that start a word and nothing before the others, which `vocab.txt` marks with `##`. llama.cpp differs: it
/// keeps words of any length, and its character categories are of another Unicode version.
pub(crate) struct WordPiece {
    /// Tokens that start a word.
    first: Trie,
    /// Tokens that continue a word.
    later: Trie,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
}

impl WordPiece {
    /// Takes the settings of a vocabulary.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, EncodeError> {
        let tokens = |first: bool| {
            tokens_of_kinds(vocab, &[TokenType::Normal, TokenType::UserDefined])
                // The bare `▁` can only be a word's inner character, because a word-initial token would be empty.
                .filter_map(move |(text, id)| match text.strip_prefix(BLANK) {
                    Some(text) if !text.is_empty() => first.then_some((text, id)),
                    _ => (!first).then_some((text, id)),
                })
                .filter(|token| token.0.len() <= MAX_TOKEN_BYTES)
        };
        Ok(Self {
            first: Trie::new(tokens(true))?,
            later: Trie::new(tokens(false))?,
            unknown: vocab.unk.ok_or(EncodeError::NoUnknownToken)?,
            lowercase: vocab.lowercase,
            strip_accents: vocab.strip_accents,
        })
    }

    /// Appends the ids of a text without special tokens.
    pub(crate) fn encode_fragment(&self, text: &str, out: &mut Vec<u32>) {
        let text = self.normalize(text);
        for word in text.split(char::is_whitespace) {
            for part in word.split_inclusive(is_punctuation) {
                let mark = part.char_indices().next_back().filter(|(_, last)| is_punctuation(*last));
                let (word, mark) = part.split_at(mark.map_or(part.len(), |(at, _)| at));
                self.word(word, out);
                self.word(mark, out);
            }
        }
    }

    /// Normalizes text: spaces around ideographs, no control characters, and no accents or upper case if so configured.
    fn normalize(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '\t' | '\n' | '\r' => clean.push(' '),
                '\0' | '\u{fffd}' => {}
                _ if character.is_other() => {}
                _ if is_ideograph(character) => clean.extend([' ', character, ' ']),
                _ => clean.push(character),
            }
        }
        if self.strip_accents {
            clean = clean.nfd().filter(|character| !character.is_mark_nonspacing()).collect();
        }
        if self.lowercase {
            // Character by character: the form of a final sigma is ignored.
            clean = clean.chars().flat_map(char::to_lowercase).collect();
        }
        clean
    }

    /// Appends the ids of one word.
    fn word(&self, word: &str, out: &mut Vec<u32>) {
        let start = out.len();
        let mut rest = word.as_bytes();
        let mut trie = &self.first;
        let known = word.chars().nth(MAX_WORD_CHARACTERS).is_none();
        while known && let Some((n_bytes, id)) = trie.longest_prefix(rest) {
            out.push(id);
            rest = &rest[n_bytes..];
            trie = &self.later;
        }
        if !rest.is_empty() {
            out.truncate(start);
            out.push(self.unknown);
        }
    }
}

fn is_punctuation(character: char) -> bool {
    character.is_ascii_punctuation() || character.is_punctuation()
}

/// Returns true for the blocks of CJK ideographs, as listed by the reference (its sixth range starts 256 too high).
fn is_ideograph(character: char) -> bool {
    matches!(u32::from(character),
        0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f | 0x2b740..=0x2b81f
        | 0x2b920..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}
