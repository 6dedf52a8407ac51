//! PLaMo 2 and 3: `tokenizer.jsonl`, with one token per line.

use crate::Result;
use serde_json::Value as Json;

use super::super::TokenizerError;
use super::super::emit::{MAX_TOKENS, TokenList, TokenType, check_size, n_tokens};
use super::super::files::CONFIG;
use super::super::special::token_text;
use super::{Attempt, Context};

/// Id of the token that ends a turn: `<|plamo:op|>`.
const END_OF_TURN: u32 = 4;
/// Score of a row without a token.
const PAD_SCORE: f32 = -1000.0;

/// Special tokens that the configuration may name, in the order of their keys.
const ROLES: [(&str, &str); 5] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
];

/// Writes the keys.
///
/// # Exactness
/// Equals `_set_vocab_plamo` of llama.cpp 0.5.0's converter, which writes neither chat templates nor ids from
/// `config.json`, and counts rows without a token from 1.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let name = context.mode.files.first().map_or("tokenizer.jsonl", String::as_str);
    let Some(text) = context.directory.text(name)? else {
        return Ok(Attempt::Absent(format!("{name} is missing")));
    };
    let path = context.directory.join(name);
    let mut tokens = TokenList { scores: Some(Vec::new()), ..TokenList::default() };
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        let bad = |problem| TokenizerError::Line { path: path.clone(), line, problem };
        if tokens.len() >= MAX_TOKENS {
            return Err(bad("more tokens than any vocabulary has"));
        }
        let (text, score, kind) = token(text).map_err(bad)?;
        tokens.push(text, score, kind);
    }
    let n_own = tokens.len();
    let size = n_tokens(context.request, n_own);
    check_size(&path, size)?;
    for at in 1..=size.saturating_sub(n_own) {
        tokens.push(format!("[PAD{at}]"), PAD_SCORE, TokenType::Unused);
    }
    tokens.retype(context.request);
    let config = context.directory.tree(CONFIG)?;
    let mut ids = Vec::new();
    for (role, key) in ROLES {
        let id = config.get(role).and_then(token_text).and_then(|text| tokens.id(text));
        // `settle` reports texts that are not tokens.
        ids.extend(id.and_then(|id| u32::try_from(id).ok()).map(|id| (key, id)));
    }
    tokens.write("plamo2", "default", context.out);
    for (key, id) in ids {
        context.out.set(key, id);
    }
    context.out.set("tokenizer.ggml.eot_token_id", END_OF_TURN);
    context.out.set("tokenizer.ggml.add_space_prefix", false);
    Ok(Attempt::Done)
}

/// Parses a line: a list of text, score, type, and further elements that are ignored.
fn token(line: &str) -> Result<(String, f32, TokenType), &'static str> {
    let row: Vec<Json> = serde_json::from_str(line).map_err(|_| "not a JSON list")?;
    let text = row.first().and_then(Json::as_str).ok_or("the first element is not the text of a token")?;
    let score = row.get(1).and_then(Json::as_f64).ok_or("the second element is not a score")?;
    let kind = match row.get(2).and_then(Json::as_str) {
        Some("UNKNOWN") => TokenType::Unknown,
        Some("CONTROL") => TokenType::Control,
        Some("BYTE") => TokenType::Byte,
        _ if text.starts_with("<|plamo:") && text.ends_with("|>") => TokenType::Control,
        _ => TokenType::Normal,
    };
    Ok((text.to_owned(), score as f32, kind))
}
