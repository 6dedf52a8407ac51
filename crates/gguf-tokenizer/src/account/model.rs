//! Flags of the model.

use std::collections::{HashMap, HashSet};

use super::{Account, Algorithm};
use crate::byte_alphabet;
use crate::emit::is_byte_token;
use crate::hf_json::{HfModel, Merge, VocabTable};
use gguf_core::text::escape;

/// Greatest length in bytes of tokens to which the merges are applied: the work grows with the square.
const MAX_MERGED: usize = 256;
/// Greatest length of a word of a WordPiece model that has tokens.
const MAX_WORD: u64 = 100;

impl Account<'_> {
    /// Compares the model's flags with what the runtime does.
    pub(super) fn model(&mut self) {
        let model = &self.hf.model;
        if model.dropout.is_some_and(|dropout| dropout != 0.0) {
            self.say("model.dropout", "llama.cpp drops no merges");
        }
        let inner = model.continuing_subword_prefix.as_deref().unwrap_or_default();
        let usual = if self.algorithm == Algorithm::WordPiece { "##" } else { "" };
        if inner != usual {
            let effect = format!(
                "llama.cpp expects `{usual}` in front of tokens inside words, found `{}`",
                escape(inner)
            );
            self.say("model.continuing_subword_prefix", effect);
        }
        if let Some(suffix) = model.end_of_word_suffix.as_deref().filter(|suffix| !suffix.is_empty()) {
            self.say(
                "model.end_of_word_suffix",
                format!("llama.cpp puts no `{}` at the end of words", escape(suffix)),
            );
        }
        match self.algorithm {
            Algorithm::WordPiece => self.of_words(model),
            Algorithm::Unigram => self.of_scores(model),
            Algorithm::ByteLevel => self.of_bytes(model),
            Algorithm::Whitespace => self.unknown_token(model),
            Algorithm::Pieces | Algorithm::RankedPieces => {
                let bytes = (0..=u8::MAX).filter(|&byte| self.vocab.byte(byte).is_some()).count();
                if bytes < 256 && model.unk_token.is_some() {
                    self.unknown_token(model);
                    if model.fuse_unk != Some(true) {
                        self.say(
                            "model.fuse_unk",
                            "llama.cpp writes one unknown token for several unknown characters",
                        );
                    }
                }
            }
        }
        let ignores = match self.algorithm {
            Algorithm::ByteLevel => self.vocab.pre.is_some_and(|pre| pre.ignore_merges),
            Algorithm::Pieces | Algorithm::RankedPieces | Algorithm::Whitespace => false,
            Algorithm::Unigram | Algorithm::WordPiece => return,
        };
        if ignores != self.hf.ignores_merges() && self.has_token_beyond_merges() {
            let does = if ignores {
                "takes a word that is a token as a whole"
            } else {
                "merges words that are tokens, too"
            };
            self.say("model.ignore_merges", format!("llama.cpp {does}, contrary to the file"));
        }
    }

    /// Returns true if a token is not what the merges make of its own text: only then does it matter whether they are
    /// applied to it.
    fn has_token_beyond_merges(&self) -> bool {
        let VocabTable::Ids(tokens) = &self.hf.model.vocab else { return false };
        let merges = self.hf.model.merges.iter().filter_map(Merge::parts);
        let ranks: HashMap<(&str, &str), usize> = merges.zip(0..).collect();
        let added: HashSet<&str> = self.hf.added_tokens.iter().map(|token| token.content.as_str()).collect();
        let is_text = |text: &str| text.len() <= MAX_MERGED && !added.contains(text) && !is_byte_token(text);
        tokens.iter().any(|(text, _)| is_text(text) && !is_merged(text, &ranks))
    }

    fn of_words(&mut self, model: &HfModel) {
        let limit = model.max_input_chars_per_word.unwrap_or(MAX_WORD);
        if limit != MAX_WORD {
            self.say(
                "model.max_input_chars_per_word",
                format!("llama.cpp splits words of any length, the file up to {limit} characters"),
            );
        }
        self.unknown_token(model);
    }

    fn of_scores(&mut self, model: &HfModel) {
        let unk = self.vocab.unk.map(u64::from);
        if model.unk_id.is_some() && model.unk_id != unk {
            let id = model.unk_id.unwrap_or_default();
            self.say(
                "model.unk_id",
                format!(
                    "llama.cpp writes {} for unknown characters, the file token {id}",
                    self.shown(&self.vocab.unk.into_iter().collect::<Vec<_>>())
                ),
            );
        }
        if model.byte_fallback == Some(true) {
            self.say(
                "model.byte_fallback",
                "llama.cpp writes the unknown token, not bytes, for unknown characters",
            );
        }
        if self.vocab.precompiled_charsmap.is_empty()
            && self.hf.normalizer.to_string().contains("precompiled_charsmap\":\"")
        {
            self.say("normalizer", "the character map of the step `Precompiled` is not in the keys");
        }
    }

    fn of_bytes(&mut self, model: &HfModel) {
        // With a token for each byte, no character is unknown.
        let known = |byte: u8| {
            let letter = byte_alphabet::char_of(byte);
            self.vocab.id(letter.encode_utf8(&mut [0; 4]).as_bytes()).is_some()
        };
        let all_known = (0..=u8::MAX).filter(|byte| !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff)).all(known);
        if all_known || self.vocab.escape_whitespaces {
            return;
        }
        if model.unk_token.is_some() {
            self.say("model.unk_token", "llama.cpp leaves out bytes that have no token");
        }
        if model.byte_fallback == Some(true) {
            self.say("model.byte_fallback", "llama.cpp leaves out bytes that have no token");
        }
    }

    fn unknown_token(&mut self, model: &HfModel) {
        let declared = model.unk_token.as_deref();
        let written = self.vocab.unk.and_then(|id| self.vocab.token(id));
        let is_same = match (declared, written) {
            (Some(declared), Some(written)) => {
                let piece = format!("\u{2581}{declared}");
                written == declared.as_bytes()
                    || (self.algorithm == Algorithm::WordPiece && written == piece.as_bytes())
            }
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            let unk: Vec<u32> = self.vocab.unk.into_iter().collect();
            let effect = format!(
                "llama.cpp writes {} for unknown text, the file `{}`",
                self.shown(&unk),
                escape(declared.unwrap_or("nothing"))
            );
            self.say("model.unk_token", effect);
        }
        if self.algorithm == Algorithm::Whitespace && model.fuse_unk == Some(true) {
            self.say("model.fuse_unk", "llama.cpp writes an unknown token for each unknown character");
        }
    }
}

/// Returns true if the merges make one token of a text.
fn is_merged(text: &str, ranks: &HashMap<(&str, &str), usize>) -> bool {
    let mut parts: Vec<(usize, usize)> = text.char_indices().map(|(at, c)| (at, at + c.len_utf8())).collect();
    while parts.len() > 1 {
        let rank = |at: usize| {
            let ((start, middle), (_, end)) = (parts[at], parts[at + 1]);
            ranks.get(&(text.get(start..middle)?, text.get(middle..end)?)).copied()
        };
        let best = (0..parts.len() - 1).filter_map(|at| Some((rank(at)?, at))).min();
        let Some((_, at)) = best else { return false };
        parts[at].1 = parts[at + 1].1;
        parts.remove(at + 1);
    }
    true
}
