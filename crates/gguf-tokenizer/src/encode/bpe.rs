//! Byte-level BPE: within a piece of text, the pair of lowest rank is merged until no pair is left.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use unicode_normalization::{UnicodeNormalization, is_nfc};

use super::EncodeError;
use super::splitter::Splitter;
use super::vocab::{KIMI, Vocab, strings};
use crate::byte_alphabet::char_of;
use crate::pretokenizer::PreTable;
use gguf_core::text::escape_bytes;
use gguf_format::Metadata;

const MERGES: &str = "tokenizer.ggml.merges";

/// Normalization of text before it is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BpeNormalization {
    None,
    Nfc,
    /// Spaces become `▁`.
    Metaspace,
    Lowercase,
}

/// Merges, and the splitter of text into the pieces within which they apply.
#[derive(Debug)]
pub(crate) struct Bpe {
    splitter: Splitter,
    normalizer: BpeNormalization,
    /// True if a piece that is a token needs no merges.
    ignore_merges: bool,
    /// Rank and result of each pair.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Tokens of the 256 bytes, in the byte alphabet or as `<0xNN>`.
    bytes: Vec<Option<u32>>,
}

/// A token of a piece during merging, linked to its neighbours.
struct BpeSymbol {
    id: u32,
    prev: Option<usize>,
    next: Option<usize>,
    merged: bool,
}

impl Bpe {
    /// Reads the merges and compiles the pre-tokenizer of the vocabulary.
    pub(crate) fn new(vocab: &Vocab, metadata: &Metadata) -> Result<Self, EncodeError> {
        let table = PreTable::get();
        let pre =
            vocab.pre.ok_or(EncodeError::MissingKey { key: "tokenizer.ggml.pre", expected: "string" })?;
        let splitter = table.steps(pre).and_then(Splitter::new);
        let splitter = splitter.ok_or_else(|| EncodeError::Pre { found: pre.name.clone(), nearest: None })?;
        let missing = EncodeError::MissingKey { key: MERGES, expected: "array of strings" };
        let rows = match strings(metadata, MERGES)? {
            Some(rows) => rows,
            // ref: without merges, pieces that are not tokens are split into bytes
            None if pre.name == KIMI => &[],
            None => return Err(missing),
        };
        let mut merges = HashMap::with_capacity(rows.len());
        for (rank, row) in rows.iter().enumerate() {
            // ref: a space at the start of the first token is not the separator
            let at = row.iter().skip(1).position(|&byte| byte == b' ').map(|at| at + 1);
            let malformed = || EncodeError::Merge { rank, merge: escape_bytes(row) };
            let (first, second) = row.split_at(at.ok_or_else(malformed)?);
            let second = second.get(1..).unwrap_or_default();
            let ids = (vocab.id(first), vocab.id(second), vocab.id(&[first, second].concat()));
            // A merge of texts that are not tokens can never apply.
            if let ((Some(first), Some(second), Some(merged)), Ok(rank)) = (ids, u32::try_from(rank)) {
                merges.entry((first, second)).or_insert((rank, merged));
            }
        }
        let normalizer = match pre.normalizer.as_deref() {
            Some("nfc") => BpeNormalization::Nfc,
            Some("metaspace") => BpeNormalization::Metaspace,
            Some("lowercase") if vocab.lowercase => BpeNormalization::Lowercase,
            _ => BpeNormalization::None,
        };
        let byte_level = |byte| vocab.id(char_of(byte).encode_utf8(&mut [0; 4]).as_bytes());
        let bytes =
            (0..=255).map(|byte| if splitter.byte_level { byte_level(byte) } else { vocab.byte(byte) });
        Ok(Self { normalizer, ignore_merges: pre.ignore_merges, merges, bytes: bytes.collect(), splitter })
    }

    /// Appends the ids of a text without special tokens. Bytes without tokens are omitted, as by the original.
    pub(crate) fn encode_fragment(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let text = match self.normalizer {
            BpeNormalization::None => Cow::Borrowed(text),
            BpeNormalization::Nfc if is_nfc(text) => Cow::Borrowed(text),
            BpeNormalization::Nfc => Cow::Owned(text.nfc().collect()),
            BpeNormalization::Metaspace => Cow::Owned(text.replace(' ', "\u{2581}")),
            BpeNormalization::Lowercase => Cow::Owned(text.to_lowercase()),
        };
        let mut symbols = Vec::new();
        // Where in `out` the ids of a piece are that came before: words are often the same.
        let mut known: HashMap<&[u8], Range<usize>> = HashMap::new();
        for range in self.splitter.split(&text) {
            let piece = text.as_bytes().get(range.clone()).unwrap_or_default();
            if let Some(ids) = known.get(piece) {
                out.extend_from_within(ids.clone());
                continue;
            }
            let start = out.len();
            if let Some(id) = self.whole(vocab, piece) {
                out.push(id);
            } else {
                symbols.clear();
                if self.splitter.byte_level {
                    for id in piece.iter().filter_map(|&byte| self.byte(byte)) {
                        link(&mut symbols, id);
                    }
                } else {
                    for c in text.get(range).unwrap_or_default().chars() {
                        self.link_char(vocab, c, &mut symbols);
                    }
                }
                self.merge(&mut symbols);
                out.extend(symbols.iter().filter(|symbol| !symbol.merged).map(|symbol| symbol.id));
            }
            known.insert(piece, start..out.len());
        }
    }

    /// Returns the id of a piece that is a token, if such a piece needs no merges.
    fn whole(&self, vocab: &Vocab, piece: &[u8]) -> Option<u32> {
        if !self.ignore_merges {
            None
        } else if self.splitter.byte_level {
            vocab.id(piece.iter().map(|&byte| char_of(byte)).collect::<String>().as_bytes())
        } else {
            vocab.id(piece)
        }
    }

    /// Returns true if tokens are written in the byte alphabet.
    pub(super) fn is_byte_level(&self) -> bool {
        self.splitter.byte_level
    }

    fn byte(&self, byte: u8) -> Option<u32> {
        self.bytes.get(usize::from(byte)).copied().flatten()
    }

    /// Appends a character as its token, else as the tokens of its bytes, else as the unknown token.
    fn link_char(&self, vocab: &Vocab, c: char, symbols: &mut Vec<BpeSymbol>) {
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        if let Some(id) = vocab.id(bytes) {
            link(symbols, id);
        } else if bytes.iter().all(|&byte| self.byte(byte).is_some()) {
            for id in bytes.iter().filter_map(|&byte| self.byte(byte)) {
                link(symbols, id);
            }
        } else if let Some(unk) = vocab.unk {
            link(symbols, unk);
        }
    }

    /// Merges pairs by rank, lowest first; of equal ranks, the leftmost. A heap holds the pairs, so the time for `n`
    /// symbols is `n log n`.
    fn merge(&self, symbols: &mut [BpeSymbol]) {
        let mut heap = BinaryHeap::new();
        let candidate = |symbols: &[BpeSymbol], left: usize| {
            let first = symbols.get(left)?;
            let second = symbols.get(first.next?)?;
            let &(rank, id) = self.merges.get(&(first.id, second.id))?;
            Some(Reverse((rank, left, id)))
        };
        heap.extend((0..symbols.len()).filter_map(|left| candidate(symbols, left)));
        while let Some(top) = heap.pop() {
            let Reverse((_, left, id)) = top;
            // The pair may be outdated: one side was merged with its other neighbour.
            if symbols[left].merged || candidate(symbols, left) != Some(top) {
                continue;
            }
            let Some(right) = symbols[left].next else { continue };
            symbols[right].merged = true;
            let after = symbols[right].next;
            symbols[left].id = id;
            symbols[left].next = after;
            if let Some(after) = after {
                symbols[after].prev = Some(left);
            }
            heap.extend(symbols[left].prev.and_then(|before| candidate(symbols, before)));
            heap.extend(candidate(symbols, left));
        }
    }
}

fn link(symbols: &mut Vec<BpeSymbol>, id: u32) {
    let at = symbols.len();
    let prev = at.checked_sub(1);
    if let Some(last) = symbols.last_mut() {
        last.next = Some(at);
    }
    symbols.push(BpeSymbol { id, prev, next: None, merged: false });
}
