//! Gemma 4: text pieces that merge by rank, from `tokenizer.json`.

use super::super::emit::{TokenList, TokenType, is_byte_token, n_tokens};
use super::super::hf_json::FILE;
use super::super::hf_vocab::HfVocabulary;
use super::spm::{ADDED_SCORE, PAD_SCORE};
use super::{Attempt, Context, bpe, byte_fallback};
use crate::Result;

/// Parts of a conversation that must be visible in the model's output.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Writes the keys.
///
/// # Exactness
/// Equals `Gemma4Model.set_vocab` of llama.cpp 0.5.0's converter: no pre-tokenizer is named, and all scores are equal,
/// since the runtime merges by rank.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let Some(hf) = context.hf else { return Ok(Attempt::Absent(format!("{FILE} is missing"))) };
    if !hf.is_byte_fallback() {
        return Ok(Attempt::Absent(format!("{FILE} is not BPE with byte fallback")));
    }
    let vocabulary =
        HfVocabulary::new(&context.directory, hf, context.n_rows(), context.n_kept(), context.warnings)?;
    vocabulary.each_merge(hf, &context.directory, |_| ())?;
    let n_base = vocabulary.base.len();
    let mut tokens = TokenList { scores: Some(Vec::new()), ..TokenList::default() };
    for (id, text) in byte_fallback::dense(context, &vocabulary)?.into_iter().enumerate() {
        let kind = match text {
            text if VISIBLE.contains(&text) => TokenType::UserDefined,
            text if id < n_base && is_byte_token(text) => TokenType::Byte,
            text if vocabulary.is_special(text) => TokenType::Control,
            _ if id < n_base => TokenType::Normal,
            _ => TokenType::UserDefined,
        };
        tokens.push(text, ADDED_SCORE, kind);
    }
    tokens.retype(context.request);
    let path = context.directory.join(FILE);
    let size = n_tokens(context.request, tokens.len());
    tokens.pad(&path, size, Some(PAD_SCORE))?;
    let merges = bpe::merges(context, hf)?;
    let special = context.special(&tokens)?;
    tokens.write_model("gemma4", context.out);
    if !merges.is_empty() {
        context.out.set("tokenizer.ggml.merges", merges);
    }
    special.write(context.out);
    context.out.set("tokenizer.ggml.add_space_prefix", false);
    context.out.set("tokenizer.ggml.add_bos_token", true);
    Ok(Attempt::Done)
}
