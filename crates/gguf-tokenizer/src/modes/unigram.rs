//! Unigram models of SentencePiece (T5): `tokenizer.model`, `spiece.model`, or the model in `tokenizer.json`.

use crate::Result;
use serde_json::Value as Json;

use super::super::account::settings;
use super::super::emit::{TokenList, TokenType, check_size, is_byte_token, n_tokens};
use super::super::files::CONFIG;
use super::super::hf_json::{FILE, HfJson, HfKind};
use super::super::hf_vocab::special_texts;
use super::super::sentencepiece::{ModelProto, UNIGRAM, first_of};
use super::super::special::SpecialTokens;
use super::preparation::Preparation;
use super::spm::PAD_SCORE;
use super::{Attempt, Context, byte_fallback, spm, xlmr};

/// Writes the keys of a unigram vocabulary. A model file of the BPE kind is passed to `spm`.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let own: Vec<&str> = context.mode.files.iter().map(String::as_str).collect();
    let names = if own.is_empty() { vec!["tokenizer.model", "spiece.model"] } else { own };
    let Some((name, model)) = first_of(&context.directory, &names)? else {
        return match context.hf.filter(|hf| hf.kind() == Some(HfKind::Unigram)) {
            Some(hf) => run_json(context, hf),
            None => Ok(Attempt::Absent(format!("{} is missing", names.join(" or ")))),
        };
    };
    let path = context.directory.join(name);
    if model.model_type() != UNIGRAM {
        return spm::write(context, &path, &model).map(|()| Attempt::Done);
    }
    if context.hf.is_none() {
        context.warnings.extend(settings(spm::name_of(&path), &model));
    }
    let mut tokens = spm::pieces(context, &path, &model)?;
    spm::set_added_tokens(context, &mut tokens)?;
    spm::tokens_of_json(context, &path, &mut tokens)?;
    tokens.retype(context.request);
    let special = context.special(&tokens)?;
    write(context, tokens, &model, &special);
    Ok(Attempt::Done)
}

/// Writes the keys of a unigram model with the given tokens.
pub(super) fn write(
    context: &mut Context<'_>,
    tokens: TokenList,
    model: &ModelProto,
    special: &SpecialTokens,
) {
    write_prepared(context, tokens, Preparation::of(model), special);
}

fn write_prepared(
    context: &mut Context<'_>,
    tokens: TokenList,
    preparation: Preparation,
    special: &SpecialTokens,
) {
    tokens.write("t5", "default", context.out);
    context.out.set("tokenizer.ggml.add_space_prefix", preparation.prefix);
    preparation.write_cleaning(context.out);
    special.write(context.out);
}

/// Writes the keys of a `tokenizer.json` of this kind.
fn run_json(context: &mut Context<'_>, hf: &HfJson) -> Result<Attempt> {
    let mut tokens = of_json(context, hf)?;
    tokens.retype(context.request);
    let special = context.special(&tokens)?;
    let preparation = Preparation {
        prefix: byte_fallback::prepends_blank(&hf.pre_tokenizer)
            || byte_fallback::prepends_blank(&hf.normalizer),
        remove_blanks: removes_blanks(&hf.normalizer) || removes_blanks(&hf.pre_tokenizer),
        charsmap: xlmr::charsmap(context, hf)?,
    };
    write_prepared(context, tokens, preparation, &special);
    Ok(Attempt::Done)
}

/// Returns the pieces, then the added tokens by their ids, then padding.
fn of_json(context: &mut Context<'_>, hf: &HfJson) -> Result<TokenList> {
    let path = context.directory.join(FILE);
    let pieces = hf.scored_pieces(&path)?;
    let config = context.directory.tree(CONFIG)?;
    let specials = special_texts(&context.directory, &config)?;
    let is_special = |text: &str| specials.iter().any(|special| special == text);
    let own = hf.added_tokens.iter().map(|token| token.id.saturating_add(1)).max().unwrap_or(0);
    let own = own.max(pieces.len() as u64);
    let size = n_tokens(context.request, own).max(own);
    check_size(&path, size)?;
    let mut list = TokenList { scores: Some(Vec::new()), ..TokenList::default() };
    for (id, (text, score)) in (0u64..).zip(pieces) {
        let kind = match text {
            _ if hf.model.unk_id == Some(id) => TokenType::Unknown,
            text if is_byte_token(text) => TokenType::Byte,
            text if is_special(text) => TokenType::Control,
            _ => TokenType::Normal,
        };
        list.push(text.as_str(), *score as f32, kind);
    }
    list.pad(&path, size, Some(PAD_SCORE))?;
    for token in &hf.added_tokens {
        let text = token.content.as_str();
        let is_piece = usize::try_from(token.id).ok().and_then(|at| pieces.get(at));
        let score = is_piece.map_or(0.0, |piece| piece.1 as f32);
        let kind = match token {
            _ if hf.model.unk_id == Some(token.id) => TokenType::Unknown,
            token if token.special || is_special(text) => TokenType::Control,
            _ => TokenType::UserDefined,
        };
        // All ids of added tokens are below the size.
        let _ = list.set(token.id, text, score, kind);
    }
    Ok(list)
}

/// Returns true if a step of a normalizer or pre-tokenizer collapses repeated spaces.
fn removes_blanks(step: &Json) -> bool {
    let parts = ["normalizers", "pretokenizers"].iter().find_map(|key| step.get(key)?.as_array());
    match step.get("type").and_then(Json::as_str) {
        Some("WhitespaceSplit") => true,
        Some("Replace") => {
            let pattern = step.get("pattern").and_then(|pattern| pattern.get("Regex")?.as_str());
            pattern == Some(" {2,}")
        }
        // A sequence contains steps, not sequences.
        Some("Sequence") => parts
            .into_iter()
            .flatten()
            .any(|part| part.get("type").and_then(Json::as_str) != Some("Sequence") && removes_blanks(part)),
        _ => false,
    }
}
