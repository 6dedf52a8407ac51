//! SentencePiece models: `tokenizer.model`.

use crate::Result;
use std::path::Path;

use serde_json::Value as Json;

use super::super::account::settings;
use super::super::emit::{TokenList, TokenType, looks_special, n_tokens};
use super::super::files::CONFIG;
use super::super::hf_json::{self, HfJson, VocabTable};
use super::super::hf_vocab;
use super::super::sentencepiece::{BPE, ModelProto, Piece, PieceKind, UNIGRAM, first_of};
use super::super::{Mode, TokenizerError, TokenizerWarning};
use super::added_tokens_decoder::{TokenOverride, decoder_entries};
use super::{Attempt, Context, unigram};

pub(crate) const MODEL_FILES: [&str; 3] = ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"];
/// Start of the names of T5's sentinels, which mark gaps during training. llama.cpp's converter leaves their rows empty.
pub(crate) const SENTINEL: &str = "<extra_id_";
/// Score of a row without a token.
pub(super) const PAD_SCORE: f32 = -10000.0;
/// Score of a token that was added after training.
pub(super) const ADDED_SCORE: f32 = -1000.0;
/// End token of InternLM's chat models.
const CHAT_END: &str = "<|im_end|>";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// Writes the keys of a SentencePiece vocabulary.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let own: Vec<&str> = context.mode.files.iter().map(String::as_str).collect();
    let names = if own.is_empty() { vec!["tokenizer.model"] } else { own };
    match first_of(&context.directory, &names)? {
        Some((name, model)) => write(context, &context.directory.join(name), &model).map(|()| Attempt::Done),
        None => Ok(Attempt::Absent(format!("{} is missing", names.join(" or ")))),
    }
}

/// Writes the keys of a model that was read, of either kind.
pub(super) fn write(context: &mut Context<'_>, path: &Path, model: &ModelProto) -> Result<()> {
    let mode = context.mode.mode;
    check_type(path, model)?;
    let mut tokens = pieces(context, path, model)?;
    let (mut chat_end, mut named) = (None, Vec::new());
    match mode {
        Mode::SpmInternlm2 => chat_end = internlm2_tokens(context, &mut tokens)?,
        Mode::SpmPhi3 => phi3_tokens(context, &mut tokens)?,
        Mode::SpmArctic => arctic_tokens(context, &mut tokens)?,
        _ => {
            set_added_tokens(context, &mut tokens)?;
            added_tokens_decoder(context, &mut tokens)?;
            tokens_of_json(context, path, &mut tokens)?;
            named = named_tokens(context, model.pieces.len() as u64, &mut tokens)?;
        }
    }
    tokens.retype(context.request);
    let config = context.directory.tree(CONFIG)?;
    let mut special = context.special(&tokens)?;
    for (role, id) in named {
        special.force(&role, id);
    }
    if mode == Mode::SpmInternlm3 {
        let added = config.get("added_tokens_decoder").and_then(Json::as_object);
        chat_end = added.into_iter().flatten().find_map(|(id, token)| {
            let is_end = token.get("content")?.as_str()? == CHAT_END && token.get("special")?.as_bool()?;
            id.parse().ok().filter(|_| is_end && special.id("eos").is_some())
        });
    }
    if let Some(id) = chat_end {
        special.force("eos", id);
    }
    // transformers takes the settings of tokenizer.json, if there is one.
    if context.hf.is_none() {
        context.warnings.extend(settings(name_of(path), model));
    }
    if model.model_type() == UNIGRAM {
        // The defaults of the classes that read such a model, not those of T5.
        special.add_default("bos", true);
        special.add_default("eos", false);
        unigram::write(context, tokens, model, &special);
        return Ok(());
    }
    tokens.write("llama", "default", context.out);
    match mode {
        Mode::SpmInternlm2 => context.out.set(ADD_SPACE_PREFIX, model.normalizer().add_dummy_prefix()),
        Mode::SpmInternlm3 => {
            if let Some(prefix) = config.get("add_prefix_space").and_then(Json::as_bool) {
                context.out.set(ADD_SPACE_PREFIX, prefix);
            }
        }
        // A card states the key for its own models.
        _ if [&*context.out, &context.mode.after, &context.request.after]
            .iter()
            .any(|keys| keys.contains(ADD_SPACE_PREFIX)) => {}
        _ if !model.normalizer().add_dummy_prefix() => context.out.set(ADD_SPACE_PREFIX, false),
        _ => {}
    }
    special.write(context.out);
    Ok(())
}

/// Refuses a model whose algorithm llama.cpp does not have.
pub(super) fn check_type(path: &Path, model: &ModelProto) -> Result<()> {
    match model.model_type() {
        UNIGRAM | BPE => Ok(()),
        found => {
            let (path, expected) = (path.to_owned(), "1 (unigram) or 2 (BPE)");
            Err(TokenizerError::ModelType { path, found, expected })
        }
    }
}

/// Returns the name of a model file, for messages.
pub(super) fn name_of(path: &Path) -> &'static str {
    MODEL_FILES.into_iter().find(|name| path.ends_with(name)).unwrap_or("the SentencePiece model")
}

/// Returns the token that ends a turn of InternLM's chat models, if the card's mode uses it as the end of text. It
/// applies to the same vocabulary from another file.
pub(super) fn chat_end(context: &Context<'_>, tokens: &TokenList) -> Option<u64> {
    let ends = |mode| matches!(mode, Mode::SpmInternlm2 | Mode::SpmInternlm3);
    let is_internlm = context.request.modes.iter().any(|asked| ends(asked.mode));
    tokens.id(CHAT_END).filter(|_| is_internlm)
}

/// Returns the pieces of the model, padded to the requested size. Pieces beyond it are dropped with a warning.
pub(super) fn pieces(context: &mut Context<'_>, path: &Path, model: &ModelProto) -> Result<TokenList> {
    let size = n_tokens(context.request, model.pieces.len() as u64);
    let mut tokens = TokenList::unused(path, size, Some(PAD_SCORE))?;
    let internlm2 = context.mode.mode == Mode::SpmInternlm2;
    for (id, piece) in model.pieces.iter().enumerate() {
        let mut text = piece.piece();
        let mut kind = token_type(piece);
        if internlm2 && text.starts_with(b"[UNUSED") {
            kind = TokenType::Unused;
        }
        if internlm2 && text == b"\0" {
            // The token would be an empty string in C.
            text = "\u{1f409}".as_bytes();
        }
        if !tokens.set(id as u64, text, piece.score(), kind) {
            let token = String::from_utf8_lossy(text).into_owned();
            let id = id as u64;
            context.warnings.push(TokenizerWarning::TokenOutOfRange {
                file: "tokenizer.model",
                token,
                id,
                size,
            });
            break;
        }
    }
    Ok(tokens)
}

pub(super) fn token_type(piece: &Piece) -> TokenType {
    match piece.piece_kind() {
        PieceKind::Unknown => TokenType::Unknown,
        PieceKind::Control => TokenType::Control,
        PieceKind::Unused => TokenType::Unused,
        PieceKind::Byte => TokenType::Byte,
        // As llama.cpp's converter writes user-defined pieces; `added_tokens_decoder` names the relevant ones.
        PieceKind::Normal | PieceKind::UserDefined => TokenType::Normal,
    }
}

/// Name of the file of tokens that were added after training.
const ADDED_TOKENS: &str = "added_tokens.json";

/// Sets the tokens of `added_tokens.json` at their ids.
pub(super) fn set_added_tokens(context: &mut Context<'_>, tokens: &mut TokenList) -> Result<()> {
    let added = context.directory.tree(ADDED_TOKENS)?;
    for (token, id) in added.as_object().into_iter().flatten() {
        let id = id.as_u64().ok_or_else(|| TokenizerError::BadId {
            path: context.directory.join(ADDED_TOKENS),
            key: "added token",
            found: id.to_string(),
        })?;
        let size = tokens.len();
        if !tokens.set(id, token.as_str(), ADDED_SCORE, TokenType::UserDefined) {
            let (file, token) = (ADDED_TOKENS, token.clone());
            context.warnings.push(TokenizerWarning::TokenOutOfRange { file, token, id, size });
        }
    }
    Ok(())
}

/// Appends the tokens of `added_tokens.json` in the order of the file.
fn append_added_tokens(context: &Context<'_>, tokens: &mut TokenList) -> Result<()> {
    let added = context.directory.tree(ADDED_TOKENS)?;
    for (token, _) in added.as_object().into_iter().flatten() {
        tokens.push(token.as_str(), ADDED_SCORE, TokenType::UserDefined);
    }
    Ok(())
}

/// Replaces tokens of the model by those of `added_tokens_decoder`.
fn added_tokens_decoder(context: &mut Context<'_>, tokens: &mut TokenList) -> Result<()> {
    let (size, mut replaced) = (tokens.len(), Vec::new());
    for TokenOverride { id, text, special } in decoder_entries(context, u64::MAX)? {
        let (written, other) = if special || looks_special(&text) {
            replace(tokens, (id, text.clone()), ADDED_SCORE, TokenType::Control)
        } else {
            replace(tokens, (id, text.replace('\u{2581}', " ")), ADDED_SCORE, TokenType::UserDefined)
        }
        .unwrap_or_default();
        replaced.extend(other.map(|piece| (id, piece, text.clone())));
        if !written {
            context.warnings.push(TokenizerWarning::TokenOutOfRange { file: CONFIG, token: text, id, size });
        }
    }
    if let Some((id, piece, token)) = replaced.first().cloned() {
        context.warnings.push(TokenizerWarning::PiecesReplaced { n: replaced.len(), id, piece, token });
    }
    Ok(())
}

/// Sets added tokens that only `tokenizer.json` has, at rows without a token: transformers reads that file. Other
/// differences between the two files are reported.
///
/// # Exactness
/// llama.cpp 0.5.0's converter leaves such rows without a token.
pub(super) fn tokens_of_json(context: &mut Context<'_>, path: &Path, tokens: &mut TokenList) -> Result<()> {
    let Some(hf) = context.hf.filter(|hf| hf.kind().is_some()) else { return Ok(()) };
    let taken = name_of(path);
    let mut new = Vec::new();
    for token in &hf.added_tokens {
        let Ok(at) = usize::try_from(token.id) else { continue };
        let is_free = tokens.types.get(at) == Some(&TokenType::Unused) && !token.content.is_empty();
        if !is_free || token.content.starts_with(SENTINEL) {
            continue;
        }
        let is_control = token.special || looks_special(&token.content);
        let kind = if is_control { TokenType::Control } else { TokenType::UserDefined };
        if tokens.id(&token.content).is_none()
            && tokens.set(token.id, token.content.as_str(), ADDED_SCORE, kind)
        {
            new.push(token.content.clone());
        }
    }
    if !new.is_empty() {
        context.warnings.push(TokenizerWarning::TokensOfJson { lacks: taken, tokens: new });
    }
    match files_differ(taken, hf, tokens) {
        // Files of two models: nothing says which is this one's.
        Some(TokenizerWarning::FilesDiffer { taken, n, .. }) if n > tokens.tokens.len() / 2 => {
            Err(TokenizerError::FilesOfTwoModels { path: context.directory.join(hf_json::FILE), taken, n })
        }
        differ => {
            context.warnings.extend(differ);
            Ok(())
        }
    }
}

/// Sets special tokens that only the configuration names behind all others, as transformers adds them. Returns the roles
/// that they have, and no card gives to another token.
///
/// # Exactness
/// llama.cpp 0.5.0's converter leaves such rows without a token.
fn named_tokens(
    context: &mut Context<'_>,
    n_pieces: u64,
    tokens: &mut TokenList,
) -> Result<Vec<(String, u64)>> {
    let (mut roles, mut lost) = (Vec::new(), Vec::new());
    if context.hf.is_some() {
        return Ok(roles);
    }
    let config = context.directory.tree(CONFIG)?;
    let last = tokens.types.iter().rposition(|kind| *kind != TokenType::Unused);
    let mut next = last.map_or(0, |last| last as u64 + 1).max(n_pieces);
    for (file, key, text) in hf_vocab::named_tokens(&context.directory, &config)? {
        let is_known = tokens.id(&text).or_else(|| tokens.id(&text.replace('\u{2581}', " "))).is_some();
        if is_known || text.starts_with(SENTINEL) {
            continue;
        }
        if !tokens.set(next, text.as_str(), ADDED_SCORE, TokenType::Control) {
            lost.push((file, key, text));
            continue;
        }
        let role = key.strip_suffix("_token").filter(|role| {
            let is_read =
                context.request.types.as_ref().is_none_or(|types| types.iter().any(|own| own == role));
            is_read && !context.request.force.iter().any(|own| own.0 == *role)
        });
        roles.extend(role.map(|role| (role.to_owned(), next)));
        next += 1;
    }
    lost.retain(|(_, key, _)| !hf_vocab::is_role(key));
    hf_vocab::say_without_row(lost, tokens.len(), context.warnings);
    Ok(roles)
}

/// Sets a token; returns the piece that had its id, if that was in use under another text.
fn replace(
    tokens: &mut TokenList,
    token: (u64, String),
    score: f32,
    kind: TokenType,
) -> Option<(bool, Option<String>)> {
    let at = usize::try_from(token.0).ok()?;
    let plain = |text: &[u8]| String::from_utf8_lossy(text).replace('\u{2581}', " ");
    let own = tokens.tokens.get(at).map(|own| plain(own));
    let in_use = tokens.types.get(at).is_some_and(|own| *own != TokenType::Unused);
    let other = own.filter(|own| in_use && *own != plain(token.1.as_bytes()));
    Some((tokens.set(token.0, token.1, score, kind), other))
}

/// Returns a warning about ids under which the written tokens are others than those of `tokenizer.json`.
fn files_differ(taken: &'static str, hf: &HfJson, tokens: &TokenList) -> Option<TokenizerWarning> {
    let added = hf.added_tokens.iter().map(|token| (token.content.as_str(), token.id));
    let base: Vec<(&str, u64)> = match &hf.model.vocab {
        VocabTable::Ids(ids) => ids.iter().map(|(text, id)| (text.as_str(), *id)).collect(),
        VocabTable::Scores(pieces) => (0..).zip(pieces).map(|(id, piece)| (piece.0.as_str(), id)).collect(),
    };
    let mut differing = base.into_iter().chain(added).filter_map(|(text, id)| {
        let own = tokens.tokens.get(usize::try_from(id).ok()?)?;
        let is_same = own == text.as_bytes() || own == text.replace('\u{2581}', " ").as_bytes();
        (!is_same && !text.starts_with(SENTINEL)).then_some((id, own, text))
    });
    let (id, own, other) = differing.next()?;
    let own = String::from_utf8_lossy(own).into_owned();
    Some(TokenizerWarning::FilesDiffer { taken, n: 1 + differing.count(), id, own, other: other.to_owned() })
}

/// Sets Phi 3's tokens of the configuration and of tokenizer.json: these files define their types, and the texts stay
/// unchanged.
fn phi3_tokens(context: &mut Context<'_>, tokens: &mut TokenList) -> Result<()> {
    set_added_tokens(context, tokens)?;
    let of_config = decoder_entries(context, u64::MAX)?.into_iter().map(|token| (CONFIG, token));
    let added = context.hf.map_or(&[][..], |hf| hf.added_tokens.as_slice()).iter().map(|token| {
        let (text, special) = (token.content.clone(), token.special);
        (hf_json::FILE, TokenOverride { id: token.id, text, special })
    });
    let size = tokens.len();
    for (file, TokenOverride { id, text, special }) in of_config.chain(added) {
        let kind = if special { TokenType::Control } else { TokenType::UserDefined };
        if !tokens.set(id, text.as_str(), ADDED_SCORE, kind) {
            context.warnings.push(TokenizerWarning::TokenOutOfRange { file, token: text, id, size });
        }
    }
    Ok(())
}

/// Sets Arctic's special tokens of the configuration, some of which replace pieces; they get the scores of the model's
/// own.
fn arctic_tokens(context: &mut Context<'_>, tokens: &mut TokenList) -> Result<()> {
    let config = context.directory.tree(CONFIG)?;
    let unknown = config.get("unk_token").and_then(Json::as_str);
    let size = tokens.len();
    for TokenOverride { id, text, special } in decoder_entries(context, u64::MAX)? {
        let (score, kind) = match special {
            true if unknown == Some(text.as_str()) => (0.0, TokenType::Unknown),
            true => (0.0, TokenType::Control),
            false => (PAD_SCORE, TokenType::UserDefined),
        };
        if !tokens.set(id, text.as_str(), score, kind) {
            context.warnings.push(TokenizerWarning::TokenOutOfRange { file: CONFIG, token: text, id, size });
        }
    }
    Ok(())
}

/// Sets InternLM 2's tokens in its own order: appended tokens, then the configuration's, then those of tokenizer.json.
/// Returns the id of the chat's end token.
fn internlm2_tokens(context: &mut Context<'_>, tokens: &mut TokenList) -> Result<Option<u64>> {
    append_added_tokens(context, tokens)?;
    let mut overrides = decoder_entries(context, u64::MAX)?;
    for token in context.hf.map_or(&[][..], |hf| hf.added_tokens.as_slice()) {
        overrides.push(TokenOverride { id: token.id, text: token.content.clone(), special: token.special });
    }
    let mut chat_end = None;
    let size = tokens.len();
    for TokenOverride { id, text, special } in overrides {
        let kind = if special { TokenType::Control } else { TokenType::UserDefined };
        if !tokens.set(id, text.as_str(), ADDED_SCORE, kind) {
            return Err(TokenizerError::IdBeyondVocabulary {
                path: context.directory.join(hf_json::FILE),
                key: "added_tokens",
                token: text,
                id,
                size,
            });
        }
        if text == CHAT_END {
            chat_end = Some(id);
        }
    }
    Ok(chat_end)
}
