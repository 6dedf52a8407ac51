//! SentencePiece vocabularies of the three ChatGLM generations. Special tokens are defined in the tokenizer's Python
//! file and not in the model file, and the first generation's ids start after those of images.

use crate::Result;
use serde_json::Value as Json;

use super::super::TokenizerError;
use super::super::emit::{TokenList, TokenType, n_tokens};
use super::super::files::CONFIG;
use super::super::sentencepiece::{BPE, UNIGRAM, first_of};
use super::{Attempt, Context, spm, unigram};

/// Special tokens of the second and third generation, in the order of their ids after the pieces.
const SPECIAL: [&str; 5] = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"];
/// Roles of a conversation, which follow them in the third generation.
const ROLES: [&str; 4] = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"];
/// Pieces of the first generation's model that are not text.
const FIRST_SPECIAL: [&str; 8] =
    ["[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>"];
/// Default number of ids before the first generation's pieces.
const IMAGE_TOKENS: u64 = 20_000;

/// Writes the keys of ChatGLM 2 and 3.
///
/// # Exactness
/// Equals `set_vocab_chatglm3` of llama.cpp 0.5.0, which supports only ChatGLM 3; ChatGLM 2 lacks the roles.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    const NAME: &str = "tokenizer.model";
    let Some((_, model)) = first_of(&context.directory, &[NAME])? else {
        return Ok(Attempt::Absent(format!("{NAME} is missing")));
    };
    let path = context.directory.join(NAME);
    let config = context.directory.tree("config.json")?;
    let origin = config.get("_name_or_path").and_then(Json::as_str).unwrap_or_default();
    let roles = if origin.contains("chatglm2") { &[][..] } else { &ROLES[..] };
    let n_pieces = model.pieces.len() as u64;
    let size = n_tokens(context.request, n_pieces + (SPECIAL.len() + roles.len()) as u64);
    let mut tokens = TokenList::unused(&path, size, Some(0.0))?;
    for (id, piece) in (0u64..).zip(&model.pieces) {
        // The tokenizer displays these three as empty; the converter names them.
        let text: &[u8] = match id {
            0 => b"<unk>",
            1 => b"<bos>",
            2 => b"<eos>",
            _ => piece.piece(),
        };
        let kind = spm::token_type(piece);
        set(&path, &mut tokens, "model", id, text, piece.score(), kind)?;
    }
    for (id, token) in (n_pieces..).zip(SPECIAL.iter().chain(roles)) {
        set(&path, &mut tokens, "special", id, token.as_bytes(), 0.0, TokenType::Control)?;
    }
    tokens.retype(context.request);
    let special = context.special(&tokens)?;
    tokens.write("llama", "chatglm-spm", context.out);
    special.write(context.out);
    Ok(Attempt::Done)
}

/// Writes the keys of ChatGLM-6B: a unigram model whose pieces follow the slots of image tokens.
pub(super) fn run_first(context: &mut Context<'_>) -> Result<Attempt> {
    const NAMES: [&str; 2] = ["ice_text.model", "tokenizer.model"];
    let Some((name, model)) = first_of(&context.directory, &NAMES)? else {
        return Ok(Attempt::Absent(format!("{} is missing", NAMES.join(" or "))));
    };
    let path = context.directory.join(name);
    if !matches!(model.model_type(), UNIGRAM | BPE) {
        let found = model.model_type();
        return Err(TokenizerError::ModelType { path, found, expected: "1 (unigram) or 2 (BPE)" });
    }
    let config = context.directory.tree(CONFIG)?;
    let images = match config.get("num_image_tokens") {
        None => IMAGE_TOKENS,
        Some(n) => n.as_u64().ok_or_else(|| TokenizerError::BadId {
            path: context.directory.join(CONFIG),
            key: "num_image_tokens",
            found: n.to_string(),
        })?,
    };
    let size = n_tokens(context.request, images.saturating_add(model.pieces.len() as u64));
    let mut tokens = TokenList::unused(&path, size, Some(spm::PAD_SCORE))?;
    for id in 0..images.min(size) {
        let text = format!("<image_{id}>");
        set(&path, &mut tokens, "image", id, text.as_bytes(), spm::PAD_SCORE, TokenType::Unused)?;
    }
    for (at, piece) in (0u64..).zip(&model.pieces) {
        let is_special = FIRST_SPECIAL.iter().any(|token| token.as_bytes() == piece.piece());
        let kind = if is_special { TokenType::Control } else { spm::token_type(piece) };
        set(&path, &mut tokens, "model", images.saturating_add(at), piece.piece(), piece.score(), kind)?;
    }
    tokens.retype(context.request);
    let special = context.special(&tokens)?;
    unigram::write(context, tokens, &model, &special);
    Ok(Attempt::Done)
}

fn set(
    path: &std::path::Path,
    tokens: &mut TokenList,
    key: &'static str,
    id: u64,
    text: &[u8],
    score: f32,
    kind: TokenType,
) -> Result<()> {
    let size = tokens.len();
    if tokens.set(id, text, score, kind) {
        return Ok(());
    }
    let token = String::from_utf8_lossy(text).into_owned();
    Err(TokenizerError::IdBeyondVocabulary { path: path.to_owned(), key, token, id, size })
}
