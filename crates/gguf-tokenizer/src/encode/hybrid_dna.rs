//! Byte-level BPE with words of DNA between tags (`tokenizer.ggml.model` = `hybriddna`).

use super::bpe::Bpe;
use super::vocab::Vocab;

const OPEN: &str = "<dna>";
const CLOSE: &str = "</dna>";
const WORD: usize = 6;
/// Suffix of a word's text, to distinguish it from a text token with the same letters.
pub(super) const MARK: char = '\u{e000}';

/// Encoder that splits the text between tags into words of six letters, and pads the last one with `A`.
///
/// # Exactness
/// `HybridDNATokenizer` of HuggingFaceBio/Carbon. llama.cpp differs: it keeps spaces at both ends of the tagged text,
/// and treats text before an unopened closing tag as plain text.
pub(crate) struct HybridDna {
    bpe: Bpe,
    tags: Option<Tags>,
}

#[derive(Clone, Copy)]
struct Tags {
    open: u32,
    close: u32,
    unknown: u32,
}

impl HybridDna {
    /// Takes the tokens of a vocabulary; without tags, this is plain byte-level BPE.
    pub(crate) fn new(vocab: &Vocab, bpe: Bpe) -> Self {
        let id = |text: &str| vocab.id(text.as_bytes());
        let tags = match (id(OPEN), id(CLOSE), id("<oov>")) {
            (Some(open), Some(close), Some(unknown)) => Some(Tags { open, close, unknown }),
            _ => None,
        };
        Self { bpe, tags }
    }

    /// Appends the ids of a text without special tokens.
    pub(crate) fn encode_fragment(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let Some(tags) = self.tags else { return self.bpe.encode_fragment(vocab, text, out) };
        let mut rest = text;
        while !rest.is_empty() {
            let (open, close) = (rest.find(OPEN), rest.find(CLOSE));
            let opens = open.filter(|open| close.is_none_or(|close| *open < close));
            // All text before a closing tag without an opening one is DNA.
            let start = match (opens, close) {
                (Some(open), _) => open,
                (None, Some(_)) => 0,
                (None, None) => rest.len(),
            };
            let (before, region) = rest.split_at(start);
            self.bpe.encode_fragment(vocab, before, out);
            let inner = region.strip_prefix(OPEN);
            if inner.is_some() {
                out.push(tags.open);
            }
            let (inner, closed, after) = match inner.unwrap_or(region).split_once(CLOSE) {
                Some((inner, after)) => (inner, true, after),
                None => (inner.unwrap_or(region), false, ""),
            };
            words(vocab, tags, inner.trim(), out);
            if closed {
                out.push(tags.close);
            }
            rest = after;
        }
    }
}

fn words(vocab: &Vocab, tags: Tags, inner: &str, out: &mut Vec<u32>) {
    let letters: Vec<char> = inner.chars().flat_map(char::to_uppercase).collect();
    for word in letters.chunks(WORD) {
        let filled = word.iter().copied().chain(std::iter::repeat_n('A', WORD - word.len()));
        let text: String = filled.chain([MARK]).collect();
        out.push(vocab.id(text.as_bytes()).unwrap_or(tags.unknown));
    }
}
