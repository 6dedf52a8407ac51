//! Account of a `tokenizer.json`: each of its steps and flags is in the keys, has no effect on ids, or is reported.
//!
//! llama.cpp has one algorithm per kind of vocabulary, with a few switches. The steps of a file are compared with those
//! that the algorithm stands for. What it does not stand for is a warning that names the step: the file is loaded, but
//! some texts get other ids than in transformers.

mod added;
mod config;
mod known;
mod model;
mod pieces;
mod settings;
mod steps;
mod template;

pub(super) use pieces::pieces;
pub(super) use settings::settings;
pub(super) use template::Around;

use crate::Result;
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};
use serde_json::Value as Json;

use super::emit::TokenType;
use super::encode::Vocab;
use super::files::{CONFIG, Directory};
use super::hf_json::{FILE, HfJson, VocabTable};
use super::modes::MODEL_FILES;
use super::{Mode, TokenizerRequest, TokenizerWarning};

/// Algorithms of llama.cpp, by `tokenizer.ggml.model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    /// SentencePiece pieces, merged by score.
    Pieces,
    /// SentencePiece pieces, merged by rank.
    RankedPieces,
    ByteLevel,
    Whitespace,
    Unigram,
    WordPiece,
}

impl Algorithm {
    fn named(model: &str) -> Option<Self> {
        Some(match model {
            "llama" => Self::Pieces,
            "gemma4" => Self::RankedPieces,
            "gpt2" | "hybriddna" => Self::ByteLevel,
            "whitespace" => Self::Whitespace,
            "t5" => Self::Unigram,
            "bert" => Self::WordPiece,
            _ => return None,
        })
    }
}

/// A `tokenizer.json` next to the vocabulary that was written for it.
struct Account<'a> {
    hf: &'a HfJson,
    config: &'a Json,
    algorithm: Algorithm,
    vocab: &'a Vocab,
    request: &'a TokenizerRequest,
    /// True if the pieces come from a SentencePiece model, whose own settings are the keys.
    has_model: bool,
    found: Vec<TokenizerWarning>,
}

/// Compares `tokenizer.json` with the keys that were written.
pub(super) fn check(
    directory: &Directory<'_>,
    hf: &HfJson,
    mode: Mode,
    request: &TokenizerRequest,
    rows: &Metadata,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<()> {
    if reads_json(mode) {
        known::check(hf, request, &directory.join(FILE))?;
    }
    let model = rows.get("tokenizer.ggml.model").and_then(Value::as_str);
    let Some(algorithm) = model.and_then(Algorithm::named).filter(|_| reads_json(mode)) else {
        return Ok(());
    };
    // Not a file that the library could load.
    let is_empty = match &hf.model.vocab {
        VocabTable::Ids(ids) => ids.is_empty(),
        VocabTable::Scores(scores) => scores.is_empty(),
    };
    if is_empty || hf.kind().is_none() {
        return Ok(());
    }
    let Ok(mut vocab) = Vocab::from_metadata(rows) else { return Ok(()) };
    vocab.set_strips(&request.architecture, &request.name);
    let config = directory.tree(CONFIG)?;
    let has_model = is_of_pieces(mode) && hf.kind().is_some() && has_pieces(directory)?;
    let mut account =
        Account { hf, config: &config, algorithm, vocab: &vocab, request, has_model, found: Vec::new() };
    account.steps(warnings);
    account.model();
    account.template(warnings);
    account.added();
    account.missing_from_added(directory)?;
    account.config();
    warnings.append(&mut account.found);
    Ok(())
}

/// Returns true for modes that write what `tokenizer.json` declares, or that have the same vocabulary from another file.
fn reads_json(mode: Mode) -> bool {
    is_of_pieces(mode)
        || matches!(
            mode,
            Mode::Bpe
                | Mode::BpePlainAdded
                | Mode::HybridDna
                | Mode::Whitespace
                | Mode::LlamaHf
                | Mode::SpmXverse
                | Mode::Unigram
                | Mode::Xlmr
                | Mode::WordPiece
                | Mode::Gemma4
        )
}

fn is_of_pieces(mode: Mode) -> bool {
    matches!(
        mode,
        Mode::Spm
            | Mode::SpmPhi3
            | Mode::SpmArctic
            | Mode::SpmInternlm2
            | Mode::SpmInternlm3
            | Mode::Unigram
            | Mode::Xlmr
    )
}

/// Returns true if a SentencePiece model is next to the file.
fn has_pieces(directory: &Directory<'_>) -> Result<bool> {
    for name in MODEL_FILES {
        if directory.bytes(name)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Account<'_> {
    /// Reports a member of the file that llama.cpp reads otherwise than transformers.
    fn say(&mut self, member: &str, effect: impl Into<String>) {
        let (file, member, effect) = (FILE, member.to_owned(), effect.into());
        self.found.push(TokenizerWarning::ReadOtherwise { file, member, effect });
    }

    /// Returns true if the user sets a key.
    fn is_by_hand(&self, key: &str) -> bool {
        self.request.by_hand.iter().any(|own| own == key)
    }

    /// Formats tokens for messages: their texts, or ids that no token has.
    fn shown(&self, ids: &[u32]) -> String {
        let token = |&id: &u32| match self.vocab.token(id) {
            Some(text) => format!("`{}`", escape(&String::from_utf8_lossy(text))),
            None => format!("token {id}"),
        };
        if ids.is_empty() {
            "nothing".to_owned()
        } else {
            ids.iter().map(token).collect::<Vec<_>>().join(", ")
        }
    }

    /// Returns true if a token is plain text: `▁` after its first character crosses the start of a word.
    fn has_piece_across_words(&self) -> bool {
        let crosses = |id: u32| {
            let text = std::str::from_utf8(self.vocab.token(id).unwrap_or_default()).unwrap_or_default();
            self.vocab.kind(id) == TokenType::Normal && text.chars().skip(1).any(|c| c == '\u{2581}')
        };
        (0..=u32::MAX).take(self.vocab.len()).any(crosses)
    }
}
