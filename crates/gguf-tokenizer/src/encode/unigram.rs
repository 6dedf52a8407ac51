//! SentencePiece's unigram model (`tokenizer.ggml.model` = `t5`).

use super::EncodeError;
use super::fallback::Fallback;
use super::normalizer::{Normalizer, character_bytes};
use super::trie::Trie;
use super::vocab::Vocab;
use crate::emit::TokenType;

/// Distance of an unknown character's score below the least likely token.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Encoder that splits a text into the tokens with the greatest sum of scores.
///
/// # Exactness
/// `unigram::Model::EncodeOptimized` of sentencepiece 0.2. Sums are f64 as in Hugging Face's tokenizers and llama.cpp
/// (sentencepiece adds f32). They restart where no token crosses, so they do not lose digits in long texts.
pub(crate) struct Unigram {
    normalizer: Normalizer,
    fallback: Fallback,
    trie: Trie,
    /// Greatest score of a normal token, or `f32::MIN_POSITIVE` if that is greater.
    max_score: f64,
    /// Score of a character that no token covers.
    unknown_score: f64,
}

/// Best path to a position in the text.
#[derive(Clone, Copy)]
struct BestPath {
    score: f64,
    /// Length of the last token in bytes.
    n_bytes: usize,
    /// Id of the last token; `None` for an unknown character.
    token: Option<u32>,
}

impl Unigram {
    /// Takes the settings of a vocabulary.
    ///
    /// # Errors
    /// A broken character map, a token that is too long, no representation of unknown characters.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, EncodeError> {
        let normal = (0u32..).take(vocab.len()).filter(|id| vocab.kind(*id) == TokenType::Normal);
        // ref: the greatest score starts a hair above 0, not at the lowest number
        let (mut min_score, mut max_score) = (f64::INFINITY, f64::from(f32::MIN_POSITIVE));
        for score in normal.map(|id| finite(vocab.score(id))) {
            min_score = min_score.min(score);
            max_score = max_score.max(score);
        }
        Ok(Self {
            normalizer: Normalizer::new(vocab)?,
            fallback: Fallback::new(vocab)?,
            trie: Trie::of_kinds(vocab, &[TokenType::Normal, TokenType::UserDefined])?,
            max_score,
            unknown_score: min_score.min(f64::from(f32::MAX)) - UNKNOWN_PENALTY,
        })
    }

    /// Checks that a text stays within bounds when it is normalized.
    pub(crate) fn check(&self, text: &str) -> Result<(), usize> {
        self.normalizer.check(text)
    }

    /// Appends the ids of a text without special tokens.
    pub(crate) fn encode_fragment(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let text = self.normalizer.normalize(text);
        let mut in_unknown = false;
        let mut start = 0;
        // Paths to the positions from `start` on.
        let mut ways: Vec<Option<BestPath>> = Vec::new();
        let mut at = 0;
        while let Some(lead) = text.get(at) {
            if at - start + 1 >= ways.len() {
                // No token crosses this position: every best path leads through it, so the text before it is decided.
                self.emit(&text[start..at], &ways, &mut in_unknown, out);
                start = at;
                ways.clear();
                ways.push(None);
            }
            let so_far = ways[at - start].map_or(0.0, |best| best.score);
            let n_character = character_bytes(*lead).min(text.len() - at);
            let mut offer = |n_bytes: usize, score: f64, token: Option<u32>| {
                let place = at - start + n_bytes;
                if ways.len() <= place {
                    ways.resize(place + 1, None);
                }
                let score = so_far + score;
                if ways[place].is_none_or(|best| score > best.score) {
                    ways[place] = Some(BestPath { score, n_bytes, token });
                }
            };
            let mut covered = false;
            for (n_bytes, id) in self.trie.prefixes(&text[at..]) {
                let score = match vocab.kind(id) {
                    // A bonus that grows with the length: such a token always wins.
                    TokenType::UserDefined => n_bytes as f64 * self.max_score - 0.1,
                    _ => finite(vocab.score(id)),
                };
                offer(n_bytes, score, Some(id));
                covered |= n_bytes == n_character;
            }
            if !covered {
                offer(n_character, self.unknown_score, None);
            }
            at += n_character;
        }
        self.emit(&text[start..], &ways, &mut in_unknown, out);
    }

    /// Appends the tokens of the best path through `text`.
    fn emit(&self, text: &[u8], ways: &[Option<BestPath>], in_unknown: &mut bool, out: &mut Vec<u32>) {
        let mut steps = Vec::new();
        let mut end = text.len();
        while let Some(best) = ways.get(end).copied().flatten() {
            end -= best.n_bytes;
            steps.push((end, best));
        }
        for (start, best) in steps.into_iter().rev() {
            match best.token {
                Some(id) => {
                    out.push(id);
                    *in_unknown = false;
                }
                None => self.fallback.push(&text[start..start + best.n_bytes], in_unknown, out),
            }
        }
    }
}

/// Replaces a score that would make sums unordered.
fn finite(score: f32) -> f64 {
    if score.is_finite() { f64::from(score) } else { f64::from(f32::MIN) }
}
