//! SentencePiece-style BPE with byte fallback from `tokenizer.json`, for checkpoints without `tokenizer.model`.
//!
//! The runtime merges the pair whose result has the highest score; the file ranks merges. In files converted from
//! SentencePiece, all merges that make one token have adjacent ranks. So a score that falls with the rank of a token's
//! first merge makes the runtime merge in the file's order. (The reference writes -1000 for every token, or no scores
//! at all, and the runtime then merges whatever comes first in the text.)

use crate::Result;
use std::collections::HashMap;

use serde_json::Value as Json;

use super::super::TokenizerError;
use super::super::emit::{TokenList, TokenType, is_byte_token, n_tokens};
use super::super::hf_json::{FILE, HfJson, HfKind};
use super::super::hf_vocab::HfVocabulary;
use super::spm::{self, ADDED_SCORE, PAD_SCORE};
use super::{Attempt, Context};

const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// Writes the keys for Llama and similar models.
pub(super) fn run_llama_hf(context: &mut Context<'_>) -> Result<Attempt> {
    let Some(hf) = context.hf else { return Ok(Attempt::Absent(format!("{FILE} is missing"))) };
    if !hf.is_byte_fallback() {
        return Ok(Attempt::Absent(format!("{FILE} is not BPE with byte fallback")));
    }
    let path = context.directory.join(FILE);
    let vocabulary =
        HfVocabulary::new(&context.directory, hf, context.n_rows(), context.n_kept(), context.warnings)?;
    let scores = MergeScores::new(context, hf, &vocabulary)?;
    let by_id = dense(context, &vocabulary)?;
    let added: HashMap<&str, bool> =
        vocabulary.added.iter().map(|added| (added.token.content.as_str(), added.token.special)).collect();
    let mut tokens = TokenList { scores: Some(Vec::new()), ..TokenList::default() };
    for (id, text) in by_id.into_iter().enumerate() {
        let kind = match added.get(text) {
            _ if is_byte_token(text) => TokenType::Byte,
            _ if vocabulary.is_special(text) => TokenType::Control,
            Some(true) => TokenType::Control,
            Some(false) => TokenType::UserDefined,
            None => TokenType::Normal,
        };
        let is_new = id >= vocabulary.base.len();
        let score = if is_new { ADDED_SCORE } else { scores.of(text, kind) };
        tokens.push(text, score, kind);
    }
    tokens.retype(context.request);
    let size = n_tokens(context.request, tokens.len());
    tokens.pad(&path, size, Some(PAD_SCORE))?;
    finish(context, hf, tokens)
}

/// Writes the keys for XVERSE.
pub(super) fn run_xverse(context: &mut Context<'_>) -> Result<Attempt> {
    let Some(hf) = context.hf else { return Ok(Attempt::Absent(format!("{FILE} is missing"))) };
    if matches!(hf.kind(), Some(HfKind::Unigram | HfKind::WordPiece))
        || hf.decoder_kind() == Some("ByteLevel")
    {
        return Ok(Attempt::Absent(format!("{FILE} is not BPE over text")));
    }
    let path = context.directory.join(FILE);
    let vocabulary =
        HfVocabulary::new(&context.directory, hf, context.n_places(), context.n_kept(), context.warnings)?;
    let scores = MergeScores::new(context, hf, &vocabulary)?;
    let by_id = dense(context, &vocabulary)?;
    let size = n_tokens(context.request, by_id.len() as u64);
    if (by_id.len() as u64) > size {
        let (token, id) = (by_id.last().copied().unwrap_or_default().to_owned(), by_id.len() as u64 - 1);
        return Err(TokenizerError::IdBeyondVocabulary { path, key: "model.vocab", token, id, size });
    }
    let added: HashMap<&str, bool> =
        vocabulary.added.iter().map(|added| (added.token.content.as_str(), added.token.special)).collect();
    let mut tokens = TokenList { scores: Some(Vec::new()), ..TokenList::default() };
    for text in by_id {
        let kind = match added.get(text) {
            _ if text == "\0" || is_byte_token(text) => TokenType::Byte,
            Some(true) => TokenType::Control,
            Some(false) => TokenType::UserDefined,
            None => TokenType::Normal,
        };
        let score = scores.of(text, kind);
        // The reference's spelling of the NUL token, which would be an empty string in C.
        tokens.push(if text == "\0" { r"<b'\x00'>" } else { text }, score, kind);
    }
    tokens.retype(context.request);
    tokens.pad(&path, size, Some(PAD_SCORE))?;
    finish(context, hf, tokens)
}

/// Writes tokens and special tokens, and disables the space prefix if the normalizer adds none.
fn finish(context: &mut Context<'_>, hf: &HfJson, tokens: TokenList) -> Result<Attempt> {
    let mut special = context.special(&tokens)?;
    if let Some(id) = spm::chat_end(context, &tokens) {
        special.force("eos", id);
    }
    tokens.write("llama", "default", context.out);
    if !prepends_blank(&hf.normalizer) && !prepends_blank(&hf.pre_tokenizer) {
        context.out.set(ADD_SPACE_PREFIX, false);
    }
    special.write(context.out);
    Ok(Attempt::Done)
}

/// Returns the texts of all tokens by id; every id must have one.
pub(super) fn dense<'v>(context: &Context<'_>, vocabulary: &'v HfVocabulary<'_>) -> Result<Vec<&'v str>> {
    let path = || context.directory.join(FILE);
    let size = vocabulary.n_tokens();
    let mut by_id: Vec<Option<&str>> = vec![None; usize::try_from(size).unwrap_or(usize::MAX)];
    let base = vocabulary.base.iter().map(|(text, id)| (text.as_str(), *id));
    let added = vocabulary.added.iter().map(|added| (added.token.content.as_str(), added.id));
    for (text, id) in base.chain(added) {
        match usize::try_from(id).ok().and_then(|at| by_id.get_mut(at)) {
            Some(slot) => *slot = Some(text),
            None => {
                let token = text.to_owned();
                return Err(TokenizerError::IdBeyondVocabulary {
                    path: path(),
                    key: "model.vocab",
                    token,
                    id,
                    size,
                });
            }
        }
    }
    let missing = |at: usize| TokenizerError::MissingId { path: path(), id: at as u64, size };
    by_id.into_iter().enumerate().map(|(at, text)| text.ok_or_else(|| missing(at))).collect()
}

/// Returns true if a step of a normalizer or pre-tokenizer puts a space (`▁`) in front of the text.
pub(super) fn prepends_blank(step: &Json) -> bool {
    let parts = ["normalizers", "pretokenizers"].iter().find_map(|key| step.get(key)?.as_array());
    match step.get("type").and_then(Json::as_str) {
        Some("Prepend") => step.get("prepend").and_then(Json::as_str) == Some("\u{2581}"),
        Some("Metaspace") => step.get("prepend_scheme").and_then(Json::as_str).map_or_else(
            || step.get("add_prefix_space").and_then(Json::as_bool) != Some(false),
            |scheme| scheme != "never",
        ),
        // A sequence contains steps, not sequences.
        Some("Sequence") => parts
            .into_iter()
            .flatten()
            .any(|part| part.get("type").and_then(Json::as_str) != Some("Sequence") && prepends_blank(part)),
        _ => false,
    }
}

/// Scores that make the runtime merge in the order of the file's ranks.
struct MergeScores<'a> {
    by_text: HashMap<&'a str, f32>,
}

impl<'a> MergeScores<'a> {
    /// Assigns scores: tokens made by merges get 0, -1, -2, … in the order of their first merge. The model's other text
    /// tokens follow below them in order of their ids, as SentencePiece ranks its characters.
    fn new(context: &Context<'_>, hf: &HfJson, vocabulary: &HfVocabulary<'a>) -> Result<Self> {
        let mut by_text = HashMap::with_capacity(vocabulary.base.len());
        let mut next = 0u32;
        let mut take = |text: &'a str| {
            by_text.entry(text).or_insert_with(|| {
                let score = 0.0 - next as f32;
                next += 1;
                score
            });
        };
        vocabulary.each_merge(hf, &context.directory, &mut take)?;
        let mut rest: Vec<&(String, u64)> = vocabulary.base.iter().collect();
        rest.sort_unstable_by_key(|entry| entry.1);
        for (text, _) in rest {
            if !is_byte_token(text) && !vocabulary.is_added(text) {
                take(text);
            }
        }
        Ok(Self { by_text })
    }

    /// Returns the score of a token of the model; control and byte tokens have 0, as in SentencePiece's files.
    fn of(&self, text: &str, kind: TokenType) -> f32 {
        match self.by_text.get(text) {
            Some(&score) => score,
            None if kind == TokenType::UserDefined => ADDED_SCORE,
            None => 0.0,
        }
    }
}
