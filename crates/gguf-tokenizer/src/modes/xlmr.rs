//! XLM-RoBERTa's unigram vocabulary: a SentencePiece model in fairseq's order, or `tokenizer.json`.

use crate::Result;
use serde_json::Value as Json;

use super::super::TokenizerError;
use super::super::emit::{TokenList, TokenType, check_size, n_tokens};
use super::super::files::CONFIG;
use super::super::hf_json::{FILE, HfJson};
use super::super::hf_vocab::special_texts;
use super::super::sentencepiece::{ModelProto, UNIGRAM, first_of};
use super::preparation::Preparation;
use super::spm::{PAD_SCORE, token_type};
use super::tiktoken::base64;
use super::{Attempt, Context};

const TOKEN_TYPE_COUNT: &str = "tokenizer.ggml.token_type_count";
/// Tokens that fairseq puts in front, instead of the model's own three.
const FIRST: [(&str, TokenType); 4] = [
    ("<s>", TokenType::Control),
    ("<pad>", TokenType::Control),
    ("</s>", TokenType::Control),
    ("<unk>", TokenType::Unknown),
];
/// Number of pieces of the model that they replace.
const N_MODEL_FIRST: usize = 3;
/// Architecture and id of a mask token that the model file of Nomic's mixture-of-experts model lacks.
const NOMIC_MASK: (&str, u64) = ("nomic-bert-moe", 250_001);

/// Writes the keys.
///
/// # Exactness
/// Equals `_xlmroberta_set_vocab` of llama.cpp 0.5.0's converter. For a `tokenizer.json`, this derives
/// `add_space_prefix` and `remove_extra_whitespaces` from `add_prefix_space` and `clean_up_tokenization_spaces` of the
/// configuration (false if missing), which have other meanings.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let own: Vec<&str> = context.mode.files.iter().map(String::as_str).collect();
    let names = if own.is_empty() { vec!["sentencepiece.bpe.model"] } else { own };
    let (mut tokens, preparation) = match (first_of(&context.directory, &names)?, context.hf) {
        (Some((name, model)), _) => of_model(context, name, &model)?,
        (None, Some(hf)) if hf.model.kind.as_deref() == Some("Unigram") => of_json(context, hf)?,
        (None, Some(hf)) => {
            let kind = hf.model.kind.as_deref().unwrap_or("of an unnamed kind");
            return Ok(Attempt::Absent(format!("{FILE} is {kind}, not Unigram")));
        }
        (None, None) => return Ok(Attempt::Absent(format!("{} or {FILE} is missing", names.join(" or ")))),
    };
    tokens.retype(context.request);
    let special = context.special(&tokens)?;
    // The number of segments follows the tokens here, instead of preceding them.
    let n_segments = context.out.remove(TOKEN_TYPE_COUNT);
    tokens.write("t5", "default", context.out);
    context.out.set("tokenizer.ggml.add_space_prefix", preparation.prefix);
    if let Some(n_segments) = n_segments {
        context.out.set(TOKEN_TYPE_COUNT, n_segments);
    }
    preparation.write_cleaning(context.out);
    special.write(context.out);
    Ok(Attempt::Done)
}

/// Returns the tokens of a model file, with fairseq's in front. The list would be one longer, so its last row is
/// dropped.
fn of_model(context: &Context<'_>, name: &str, model: &ModelProto) -> Result<(TokenList, Preparation)> {
    let path = context.directory.join(name);
    if model.model_type() != UNIGRAM {
        let found = model.model_type();
        return Err(TokenizerError::ModelType { path, found, expected: "1 (unigram)" });
    }
    let own = model.pieces.len() as u64;
    let size = n_tokens(context.request, own).max(own);
    check_size(&path, size)?;
    let mut list = TokenList { scores: Some(Vec::new()), ..TokenList::default() };
    for (text, kind) in FIRST {
        list.push(text, 0.0, kind);
    }
    // ref: rows without a token keep the number of their position in the model's order
    for at in N_MODEL_FIRST..(size as usize).saturating_sub(1) {
        match model.pieces.get(at) {
            Some(piece) => list.push(piece.piece(), piece.score(), token_type(piece)),
            None => list.push(format!("[PAD{at}]"), PAD_SCORE, TokenType::Unused),
        }
    }
    let (arch, mask) = NOMIC_MASK;
    if context.request.architecture == arch && !list.set(mask, "<mask>", 0.0, TokenType::Control) {
        return Err(TokenizerError::IdBeyondVocabulary {
            path,
            key: "mask",
            token: "<mask>".to_owned(),
            id: mask,
            size: list.len(),
        });
    }
    Ok((list, Preparation::of(model)))
}

fn of_json(context: &Context<'_>, hf: &HfJson) -> Result<(TokenList, Preparation)> {
    let path = context.directory.join(FILE);
    let pieces = hf.scored_pieces(&path)?;
    let config = context.directory.tree(CONFIG)?;
    let specials = special_texts(&context.directory, &config)?;
    let added = |text: &str| hf.added_tokens.iter().find(|token| token.content == text);
    let unknown = config.get("unk_token").and_then(Json::as_str).and_then(added).map(|token| token.id);
    let unknown = unknown.or(hf.model.unk_id).unwrap_or(3);
    let own = pieces.len() as u64;
    let size = n_tokens(context.request, own).max(own);
    let mut list = TokenList { scores: Some(Vec::new()), ..TokenList::default() };
    for (id, (text, score)) in (0u64..).zip(pieces) {
        let kind = match added(text) {
            _ if id == unknown => TokenType::Unknown,
            _ if specials.iter().any(|special| special == text) => TokenType::Control,
            Some(_) => TokenType::UserDefined,
            None => TokenType::Normal,
        };
        list.push(text.as_str(), *score as f32, kind);
    }
    list.pad(&path, size, Some(PAD_SCORE))?;
    let flag = |name: &str| config.get(name).and_then(Json::as_bool).unwrap_or(false);
    let charsmap = charsmap(context, hf)?;
    let preparation = Preparation {
        prefix: flag("add_prefix_space"),
        remove_blanks: flag("clean_up_tokenization_spaces"),
        charsmap,
    };
    Ok((list, preparation))
}

/// Returns the character map of a `tokenizer.json`; empty if it has none.
pub(super) fn charsmap(context: &Context<'_>, hf: &HfJson) -> Result<Vec<u8>> {
    let path = context.directory.join(FILE);
    let Some(text) = charsmap_text(&hf.normalizer).filter(|text| !text.is_empty()) else {
        return Ok(Vec::new());
    };
    let (member, problem) = ("normalizer.precompiled_charsmap", "not base64");
    base64(text.as_bytes()).ok_or(TokenizerError::Member { path, member, problem })
}

/// Returns the character map of a normalizer, or of one of its steps.
fn charsmap_text(normalizer: &Json) -> Option<&str> {
    let own = normalizer.get("precompiled_charsmap").and_then(Json::as_str);
    let steps = normalizer.get("normalizers").and_then(Json::as_array);
    own.or_else(|| steps.into_iter().flatten().find_map(|step| step.get("precompiled_charsmap")?.as_str()))
}
