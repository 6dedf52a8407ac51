//! Search for special tokens in text, before any other processing.

use crate::emit::TokenType;

use super::vocab::{Strip, Vocab};

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Text without special tokens.
    Text(&'a str),
    /// A special token.
    Token(u32),
}

/// Texts of special tokens, in byte order.
#[derive(Debug)]
pub(super) struct Partition {
    texts: Vec<(Box<str>, u32)>,
    /// True for each byte with which a special token starts.
    starts: [bool; 256],
}

impl Partition {
    /// Collects the special tokens.
    pub(super) fn new(vocab: &Vocab) -> Self {
        let is_special =
            |kind| matches!(kind, TokenType::Control | TokenType::UserDefined | TokenType::Unknown);
        let text_of = |id| std::str::from_utf8(vocab.token(id)?).ok().filter(|text| !text.is_empty());
        let ids = (0..=u32::MAX).take(vocab.len()).filter(|&id| is_special(vocab.kind(id)));
        let mut texts: Vec<(Box<str>, u32)> = ids.filter_map(|id| Some((text_of(id)?.into(), id))).collect();
        texts.sort_unstable();
        texts.dedup_by(|next, own| next.0 == own.0);
        let mut starts = [false; 256];
        for (text, _) in &texts {
            if let Some(&first) = text.as_bytes().first() {
                starts[usize::from(first)] = true;
            }
        }
        Self { texts, starts }
    }

    /// Splits a text at special tokens. User-defined tokens are always found, control tokens and the unknown token only
    /// with `parse_special`. At each position, the longest token is taken.
    pub(super) fn cut<'a>(&self, vocab: &Vocab, text: &'a str, parse_special: bool) -> Vec<Fragment<'a>> {
        let mut fragments = Vec::new();
        let (mut done, mut at) = (0, 0);
        while let Some(&byte) = text.as_bytes().get(at) {
            let rest = text.as_bytes().get(at..).unwrap_or_default();
            let starts = self.starts[usize::from(byte)];
            let Some((length, id)) = starts.then(|| self.longest(vocab, rest, parse_special)).flatten()
            else {
                at += 1;
                continue;
            };
            let mut before = text.get(done..at).unwrap_or_default();
            if vocab.strip(id) == Some(Strip::Left) {
                before = before.trim_end();
            }
            fragments.extend(Some(before).filter(|text| !text.is_empty()).map(Fragment::Text));
            fragments.push(Fragment::Token(id));
            at += length;
            if vocab.strip(id) == Some(Strip::Right) {
                at = text.len() - text.get(at..).unwrap_or_default().trim_start().len();
            }
            done = at;
        }
        let rest = text.get(done..).unwrap_or_default();
        fragments.extend(Some(rest).filter(|text| !text.is_empty()).map(Fragment::Text));
        fragments
    }

    /// Returns length and id of the longest special token with which a text starts.
    fn longest(&self, vocab: &Vocab, text: &[u8], parse_special: bool) -> Option<(usize, u32)> {
        let usable = |id| parse_special || vocab.kind(id) == TokenType::UserDefined;
        let mut same = self.texts.as_slice();
        let mut best = None;
        // `same` are the texts that agree with this one in the first `n` bytes.
        for (n, &byte) in text.iter().enumerate() {
            let at = |row: &(Box<str>, u32)| row.0.as_bytes().get(n).copied();
            let from = same.partition_point(|row| at(row) < Some(byte));
            let to = same.partition_point(|row| at(row) <= Some(byte));
            same = same.get(from..to)?;
            let Some((first, id)) = same.first() else { break };
            if first.len() == n + 1 && usable(*id) {
                best = Some((n + 1, *id));
            }
        }
        best
    }
}
