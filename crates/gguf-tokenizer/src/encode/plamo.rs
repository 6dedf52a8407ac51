//! PLaMo 2's unigram model (`tokenizer.ggml.model` = `plamo2`).

use super::EncodeError;
use super::trie::Trie;
use super::vocab::Vocab;
use crate::emit::{TokenType, byte_token};

/// Cost of a character that no token covers, or of one whose score is not finite.
const UNKNOWN_COST: i64 = 10_000_000;
/// Cost from which on tokens are never used.
const MAX_COST: i64 = 20_000_000;
/// Factor by which scores are multiplied before rounding.
const SCALE: f64 = 1e4;

/// Encoder that splits a text into the tokens with the greatest sum of scores; of equal sums, the longest token first.
///
/// # Exactness
/// The tokenizer in the Python file of the checkpoint, and llama.cpp 0.5.0: scores are integers, the search runs from
/// the end of the text, and characters without a token become bytes.
pub(crate) struct Plamo {
    trie: Trie,
    costs: Vec<i64>,
    bytes: Vec<Option<u32>>,
}

/// Best path from a position to the end of the text.
#[derive(Clone, Copy)]
struct PathToEnd {
    cost: i64,
    /// Length of the first token in bytes.
    n_bytes: usize,
    /// Id of the first token; `None` for a character without one.
    token: Option<u32>,
}

impl Plamo {
    /// Takes the tokens of a vocabulary.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, EncodeError> {
        let ids = || (0u32..).take(vocab.len());
        let mut bytes = vec![None; 256];
        for id in ids().filter(|id| vocab.kind(*id) == TokenType::Byte) {
            let text = vocab.token(id).and_then(|text| std::str::from_utf8(text).ok());
            if let Some(byte) = text.and_then(byte_token) {
                bytes[usize::from(byte)] = Some(id);
            }
        }
        if bytes.iter().any(Option::is_none) {
            return Err(EncodeError::NoUnknownToken);
        }
        let text_kinds = [TokenType::Normal, TokenType::Unknown, TokenType::Control, TokenType::UserDefined];
        let trie = Trie::of_kinds(vocab, &text_kinds)?;
        Ok(Self { trie, costs: ids().map(|id| cost(vocab.score(id))).collect(), bytes })
    }

    /// Appends the ids of a text without special tokens.
    pub(crate) fn encode_fragment(&self, text: &str, out: &mut Vec<u32>) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let end = PathToEnd { cost: 0, n_bytes: 0, token: None };
        let mut ways = vec![end; text.len() + 1];
        for (at, c) in text.char_indices().rev() {
            let rest = text.as_bytes().get(at..).unwrap_or_default();
            let n_bytes = c.len_utf8();
            let mut best = PathToEnd { cost: i64::MAX, n_bytes, token: None };
            for (n_bytes, id) in self.trie.prefixes(rest) {
                let own = self.costs.get(id as usize).copied().unwrap_or(MAX_COST);
                let cost = own.saturating_add(ways[at + n_bytes].cost);
                // Prefixes come shortest first: of equal sums, the longest is kept.
                if own < MAX_COST && cost <= best.cost {
                    best = PathToEnd { cost, n_bytes, token: Some(id) };
                }
            }
            let unknown = ways[at + n_bytes].cost.saturating_add(UNKNOWN_COST);
            if unknown < best.cost {
                best = PathToEnd { cost: unknown, n_bytes, token: None };
            }
            ways[at] = best;
        }
        let mut at = 0;
        while let Some(best) = ways.get(at).filter(|best| best.n_bytes > 0) {
            match best.token {
                Some(id) => out.push(id),
                None => {
                    let character = text.as_bytes().get(at..at + best.n_bytes).unwrap_or_default();
                    out.extend(character.iter().filter_map(|&byte| self.bytes[usize::from(byte)]));
                }
            }
            at += best.n_bytes;
        }
    }
}

fn cost(score: f32) -> i64 {
    if score.is_finite() { -((f64::from(score) * SCALE).round() as i64) } else { MAX_COST }
}
