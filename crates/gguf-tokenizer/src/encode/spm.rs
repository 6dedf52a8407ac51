//! SentencePiece's BPE with byte fallback (`tokenizer.ggml.model` = `llama`).

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::EncodeError;
use super::fallback::Fallback;
use super::normalizer::{Normalizer, character_bytes};
use super::trie::tokens_of_kinds;
use super::vocab::Vocab;
use crate::emit::TokenType;

/// Encoder that joins neighbours, always the pair whose token has the highest score, until no pair makes a token.
///
/// # Exactness
/// `bpe::Model` of sentencepiece 0.2: unused pieces are split into the parts that they were made of; control and byte
/// tokens never result from text.
pub(crate) struct Spm {
    normalizer: Normalizer,
    fallback: Fallback,
    /// Maximum length in bytes of a token that a pair can make.
    max_token_bytes: usize,
}

/// A range of the text, linked to its neighbours. `n_bytes` is 0 after it was joined to its left neighbour.
struct SpmSymbol {
    start: usize,
    n_bytes: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that make a token.
struct SymbolPair {
    score: f32,
    left: usize,
    right: usize,
    n_bytes: usize,
}

impl Ord for SymbolPair {
    /// Compares by score; of equal scores, the pair further left is greater.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for SymbolPair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SymbolPair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SymbolPair {}

impl Spm {
    /// Takes the settings of a vocabulary.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, EncodeError> {
        let kinds = [TokenType::Normal, TokenType::UserDefined, TokenType::Unused];
        let max_token_bytes = tokens_of_kinds(vocab, &kinds).map(|token| token.0.len()).max().unwrap_or(0);
        Ok(Self { normalizer: Normalizer::new(vocab)?, fallback: Fallback::new(vocab)?, max_token_bytes })
    }

    /// Checks that a text stays within bounds when it is normalized.
    pub(crate) fn check(&self, text: &str) -> Result<(), usize> {
        self.normalizer.check(text)
    }

    /// Appends the ids of a text without special tokens.
    pub(crate) fn encode_fragment(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let text = self.normalizer.normalize(text);
        let mut merging = Merging {
            vocab,
            text: &text,
            max_token_bytes: self.max_token_bytes,
            symbols: characters(&text),
            pairs: BinaryHeap::new(),
            unused: HashMap::new(),
        };
        merging.run();
        let mut in_unknown = false;
        let mut at = merging.symbols.first();
        while let Some(symbol) = at {
            merging.emit(symbol, &self.fallback, &mut in_unknown, out);
            at = symbol.next.and_then(|next| merging.symbols.get(next));
        }
    }
}

fn characters(text: &[u8]) -> Vec<SpmSymbol> {
    let mut symbols = Vec::with_capacity(text.len());
    let mut start = 0;
    while let Some(lead) = text.get(start) {
        let n_bytes = character_bytes(*lead).min(text.len() - start);
        let at = symbols.len();
        let next = Some(at + 1).filter(|_| start + n_bytes < text.len());
        symbols.push(SpmSymbol { start, n_bytes, previous: at.checked_sub(1), next });
        start += n_bytes;
    }
    symbols
}

struct Merging<'a> {
    vocab: &'a Vocab,
    text: &'a [u8],
    max_token_bytes: usize,
    symbols: Vec<SpmSymbol>,
    pairs: BinaryHeap<SymbolPair>,
    /// Length of the left part of the last pair seen that makes an unused token.
    unused: HashMap<u32, usize>,
}

impl Merging<'_> {
    fn run(&mut self) {
        for right in 1..self.symbols.len() {
            self.offer(Some(right - 1), Some(right));
        }
        while let Some(pair) = self.pairs.pop() {
            let (left, right) = (&self.symbols[pair.left], &self.symbols[pair.right]);
            // One of the two has since been joined to another.
            if left.n_bytes == 0 || right.n_bytes == 0 || left.n_bytes + right.n_bytes != pair.n_bytes {
                continue;
            }
            let next = right.next;
            self.symbols[pair.right].n_bytes = 0;
            self.symbols[pair.left].n_bytes = pair.n_bytes;
            self.symbols[pair.left].next = next;
            if let Some(next) = next {
                self.symbols[next].previous = Some(pair.left);
            }
            self.offer(self.symbols[pair.left].previous, Some(pair.left));
            self.offer(Some(pair.left), next);
        }
    }

    /// Queues two neighbours if they make a token.
    fn offer(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let (first, second) = (&self.symbols[left], &self.symbols[right]);
        let (start, n_left) = (first.start, first.n_bytes);
        let n_bytes = n_left + second.n_bytes;
        if n_bytes > self.max_token_bytes {
            return;
        }
        let Some((id, kind)) = self.piece(start, n_bytes) else { return };
        let score = self.vocab.score(id);
        // Zeros of both signs are equal, and NaN ranks below all scores.
        let score = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
        self.pairs.push(SymbolPair { score, left, right, n_bytes });
        if kind == TokenType::Unused {
            self.unused.insert(id, n_left);
        }
    }

    fn piece(&self, start: usize, n_bytes: usize) -> Option<(u32, TokenType)> {
        let id = self.vocab.id(&self.text[start..start + n_bytes])?;
        let kind = self.vocab.kind(id);
        matches!(kind, TokenType::Normal | TokenType::UserDefined | TokenType::Unused).then_some((id, kind))
    }

    /// Appends a symbol's token, or the tokens of its parts.
    fn emit(&self, symbol: &SpmSymbol, fallback: &Fallback, in_unknown: &mut bool, out: &mut Vec<u32>) {
        let mut parts = vec![(symbol.start, symbol.n_bytes)];
        while let Some((start, n_bytes)) = parts.pop() {
            match self.piece(start, n_bytes) {
                Some((id, TokenType::Unused)) if self.unused.contains_key(&id) => {
                    let n_left = self.unused[&id];
                    parts.push((start + n_left, n_bytes - n_left));
                    parts.push((start, n_left));
                }
                Some((id, _)) => {
                    out.push(id);
                    *in_unknown = false;
                }
                None => fallback.push(&self.text[start..start + n_bytes], in_unknown, out),
            }
        }
    }
}
