//! Vocabularies given as tokens in memory: pieces with scores, or byte-level tokens whose merges are rebuilt.

use crate::Result;
use std::borrow::Cow;

use serde_json::Value as Json;

use super::super::byte_alphabet::written;
use super::super::emit::{TokenList, TokenType, is_byte_token, looks_special, n_tokens};
use super::super::given::{GivenKind, GivenToken, GivenVocabulary};
use super::super::merges::{Ranked, merges};
use super::super::rank_code::CodeFacts;
use super::super::{TokenizerError, TokenizerWarning, pretokenizer};
use super::spm::PAD_SCORE;
use super::{Attempt, Context, wordpiece};

/// Texts that SentencePiece vocabularies use for control tokens.
const CONTROL: [&str; 15] = [
    "<s>",
    "</s>",
    "<pad>",
    "[PAD]",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "sop",
    "eop",
    "<|endoftext|>",
    "<unused_0>",
    "<ENC>",
    "<dBLOCK>",
];

pub(super) fn run(context: &mut Context<'_>, given: &GivenVocabulary) -> Result<Attempt> {
    let own = given.tokens.iter().map(|token| token.id + 1).max().unwrap_or(0);
    let size = n_tokens(context.request, own);
    match given.kind {
        GivenKind::Pieces | GivenKind::Unigram => pieces(context, given, size)?,
        GivenKind::Letters | GivenKind::Bytes => byte_level(context, given, size)?,
        GivenKind::WordPiece => word_piece(context, given, size)?,
    }
    Ok(Attempt::Done)
}

fn pieces(context: &mut Context<'_>, given: &GivenVocabulary, size: u64) -> Result<()> {
    let special_ids = special_ids(context)?;
    let mut tokens = TokenList::unused(context.directory.path(), size, Some(PAD_SCORE))?;
    for (index, token) in given.tokens.iter().enumerate() {
        // Without scores, earlier tokens take precedence.
        let score = token.score.unwrap_or(-(index as f32));
        let is_listed = given.special.contains(&token.text) || special_ids.contains(&token.id);
        let kind = match std::str::from_utf8(&token.text) {
            Ok("<unk>") => TokenType::Unknown,
            Ok(text) if is_byte_token(text) => TokenType::Byte,
            Ok(text) if is_listed || CONTROL.contains(&text) => TokenType::Control,
            Err(_) if is_listed => TokenType::Control,
            _ => TokenType::Normal,
        };
        put(context, &mut tokens, token, token.text.clone(), score, kind);
    }
    append(given, &mut tokens);
    tokens.retype(context.request);
    let special = context.special(&tokens)?;
    let is_unigram = given.kind == GivenKind::Unigram;
    let pre =
        context.request.pre.as_deref().map(pretokenizer::accept).transpose()?.or_else(|| given.pre.clone());
    tokens.write(if is_unigram { "t5" } else { "llama" }, pre.as_deref().unwrap_or("default"), context.out);
    if let Some(prefix) = given.add_space_prefix.filter(|prefix| is_unigram || !prefix) {
        context.out.set("tokenizer.ggml.add_space_prefix", prefix);
    }
    if let Some(remove) = given.remove_extra_whitespaces.filter(|_| is_unigram) {
        context.out.set("tokenizer.ggml.remove_extra_whitespaces", remove);
    }
    special.write(context.out);
    Ok(())
}

fn byte_level(context: &mut Context<'_>, given: &GivenVocabulary, size: u64) -> Result<()> {
    let pre = match (&context.request.pre, &given.pre) {
        (Some(name), _) => pretokenizer::accept(name)?,
        (None, Some(name)) => name.clone(),
        (None, None) => {
            return Err(TokenizerError::PreNotSaid { path: context.directory.path().to_owned() });
        }
    };
    let special_ids = special_ids(context)?;
    let mut tokens = TokenList::unused(context.directory.path(), size, None)?;
    let mut ranked: Vec<Ranked> = Vec::new();
    // Scores are the ranks of merges, unless all are positive: some exporters wrote the same score for all tokens.
    let has_ranks = given.kind == GivenKind::Letters
        && given.tokens.iter().any(|token| token.score.is_some_and(|score| score <= 0.0));
    for token in &given.tokens {
        let is_control = given.special.contains(&token.text)
            || std::str::from_utf8(&token.text).is_ok_and(looks_special)
            || (special_ids.contains(&token.id) && !is_text(token));
        if is_control {
            put(context, &mut tokens, token, token.text.clone(), 0.0, TokenType::Control);
            continue;
        }
        let text = match given.kind {
            GivenKind::Bytes => Cow::Owned(written(&token.text)),
            _ => String::from_utf8_lossy(&token.text),
        };
        if text.contains(char::REPLACEMENT_CHARACTER) {
            context.warnings.push(TokenizerWarning::TokenNotUtf8 { id: token.id });
        }
        let rank = match token.score {
            Some(score) if has_ranks => (score <= 0.0).then_some(-f64::from(score)),
            _ => Some(token.id as f64),
        };
        if put(context, &mut tokens, token, text.as_bytes().to_vec(), 0.0, TokenType::Normal) {
            ranked.push(Ranked { text: text.into_owned(), rank });
        }
    }
    if !has_ranks && given.kind == GivenKind::Letters {
        context.warnings.push(TokenizerWarning::RanksFromIds);
    }
    append(given, &mut tokens);
    // Rank vocabularies lack their special tokens, whose ids follow.
    if let (GivenKind::Bytes, Some(code)) = (given.kind, context.mode.rank_code) {
        let end = given.tokens.iter().map(|token| token.id + 1).max().unwrap_or(0);
        for (id, text) in CodeFacts::of(code).special(end, Some(size)) {
            let is_free = tokens.id(&text).is_none();
            if !is_free || !tokens.set(id, text, 0.0, TokenType::Control) {
                break;
            }
        }
    }
    tokens.retype(context.request);
    let found = merges(&mut ranked);
    if found.n_unexplained > 0 {
        context.warnings.push(TokenizerWarning::TokensWithoutMerge { n: found.n_unexplained });
    }
    let special = context.special(&tokens)?;
    tokens.write("gpt2", &pre, context.out);
    context.out.set("tokenizer.ggml.merges", found.merges);
    special.write(context.out);
    Ok(())
}

fn word_piece(context: &mut Context<'_>, given: &GivenVocabulary, size: u64) -> Result<()> {
    let special_ids = special_ids(context)?;
    let mut tokens = TokenList::unused(context.directory.path(), size, None)?;
    for token in &given.tokens {
        let own =
            ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"].iter().any(|own| own.as_bytes() == token.text);
        let is_control = own || given.special.contains(&token.text) || special_ids.contains(&token.id);
        let kind = if is_control { TokenType::Control } else { TokenType::Normal };
        put(context, &mut tokens, token, token.text.clone(), 0.0, kind);
    }
    append(given, &mut tokens);
    wordpiece::respell(&mut tokens);
    tokens.retype(context.request);
    let pre = context.request.pre.as_deref().map(pretokenizer::accept).transpose()?;
    let special = context.special(&tokens)?;
    tokens.write("bert", pre.as_deref().unwrap_or("jina-v2-en"), context.out);
    special.write(context.out);
    Ok(())
}

/// Returns true if a byte-level token is certainly text: one letter, or made by a merge. Configurations name ids that
/// the vocabulary uses for something else.
fn is_text(token: &GivenToken) -> bool {
    String::from_utf8_lossy(&token.text).chars().count() == 1 || token.score.is_some_and(|score| score <= 0.0)
}

/// Sets a token. A token beyond the size is dropped with a warning; replacing another one also causes a warning.
fn put(
    context: &mut Context<'_>,
    tokens: &mut TokenList,
    token: &GivenToken,
    text: Vec<u8>,
    score: f32,
    kind: TokenType,
) -> bool {
    let at = usize::try_from(token.id).unwrap_or(usize::MAX);
    let is_taken = tokens.types.get(at).is_some_and(|kind| *kind != TokenType::Unused);
    let lossy = || String::from_utf8_lossy(&token.text).into_owned();
    if is_taken {
        let first = String::from_utf8_lossy(&tokens.tokens[at]).into_owned();
        context.warnings.push(TokenizerWarning::IdTwice { id: token.id, first, second: lossy() });
    }
    if tokens.set(token.id, text, score, kind) {
        return true;
    }
    let (id, size) = (token.id, tokens.len());
    context.warnings.push(TokenizerWarning::TokenOutOfRange { file: "vocabulary", token: lossy(), id, size });
    false
}

/// Appends the tokens whose ids follow the last one.
fn append(given: &GivenVocabulary, tokens: &mut TokenList) {
    let first = given.tokens.iter().map(|token| token.id + 1).max().unwrap_or(0);
    for (id, text) in (first..).zip(&given.appended) {
        if !tokens.set(id, text.as_str(), PAD_SCORE, TokenType::Control) {
            break;
        }
    }
}

/// Returns ids that the configuration assigns to roles of special tokens.
fn special_ids(context: &Context<'_>) -> Result<Vec<u64>> {
    let config = context.directory.tree("config.json")?;
    let mut ids = Vec::new();
    for key in ["bos_token_id", "eos_token_id", "pad_token_id", "gmask_token_id", "mask_token_id"] {
        match config.get(key) {
            Some(Json::Array(several)) => ids.extend(several.iter().filter_map(Json::as_u64)),
            Some(id) => ids.extend(id.as_u64()),
            None => {}
        }
    }
    Ok(ids)
}
