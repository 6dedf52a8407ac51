//! Byte-level BPE from `tokenizer.json`.

use crate::Result;
use serde_json::Value as Json;

use super::super::emit::{TokenList, TokenType, check_size, looks_special, n_tokens};
use super::super::files::CONFIG;
use super::super::hf_decoder::HfDecoder;
use super::super::hf_json::{AddedToken, FILE, HfJson, HfKind, Merge};
use super::super::hf_vocab::HfVocabulary;
use super::super::special::{class_adds_bos, token_text};
use super::super::{Mode, TokenizerError, TokenizerWarning, pretokenizer};
use super::{Attempt, Context, byte_fallback};

/// Writes the keys of a byte-level BPE vocabulary.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let Some(hf) = context.hf else { return Ok(Attempt::Absent(format!("{FILE} is missing"))) };
    if hf.is_byte_fallback() {
        // Text pieces with byte tokens are SentencePiece's, regardless of the mode (Gemma 3 without tokenizer.model).
        // Written as byte-level BPE, llama.cpp would not find the pieces of any text.
        return byte_fallback::run_llama_hf(context);
    }
    let whitespace = context.mode.mode == Mode::Whitespace;
    let kind = hf.pre_tokenizer.get("type").and_then(Json::as_str);
    if whitespace && kind != Some("Whitespace") {
        return Ok(Attempt::Absent(format!("{FILE} splits text by other rules than `Whitespace`")));
    }
    let path = context.directory.join(FILE);
    if matches!(hf.kind(), Some(HfKind::Unigram | HfKind::WordPiece)) {
        let kind = hf.model.kind.as_deref().unwrap_or_default();
        return Ok(Attempt::Absent(format!("{FILE} is {kind}, not BPE")));
    }
    hf.bpe_vocab(path.clone())?;
    let vocabulary =
        HfVocabulary::new(&context.directory, hf, context.n_places(), context.n_kept(), context.warnings)?;
    vocabulary.each_merge(hf, &context.directory, |_| ())?;
    let mut tokens = list(context, hf, &vocabulary)?;
    tokens.retype(context.request);
    let pre = match &context.request.pre {
        _ if whitespace => "whitespace".to_owned(),
        Some(name) => pretokenizer::accept(name)?,
        None => {
            let config = context.directory.tree(CONFIG)?;
            let flag = |name: &str| config.get(name).and_then(Json::as_bool);
            let setting = pretokenizer::HashSettings {
                bos: config.get("bos_token").and_then(token_text).and_then(|text| vocabulary.id(text)),
                class_adds_bos: class_adds_bos(&config),
                clean_up: flag("clean_up_tokenization_spaces"),
                hint: config.get(pretokenizer::HINT).and_then(Json::as_str).map(str::to_owned),
            };
            let text = context.directory.bytes(FILE)?.unwrap_or_default();
            let found = pretokenizer::identify(&path, hf, &text, &setting)?;
            context.warnings.extend(found.warnings);
            found.name
        }
    };
    let merges = merges(context, hf)?;
    let special = context.special(&tokens)?;
    tokens.write(if whitespace { "whitespace" } else { "gpt2" }, &pre, context.out);
    let unmade =
        || vocabulary.base.iter().map(|(text, _)| text).filter(|text| needs_merges(text, &vocabulary));
    if let (true, Some(token)) = (merges.is_empty() && !hf.ignores_merges(), unmade().next()) {
        let (n, token) = (unmade().count(), token.clone());
        return Err(TokenizerError::MergesMissing { path, n, token });
    }
    // An empty list, too: llama.cpp requires the key.
    context.out.set("tokenizer.ggml.merges", merges);
    special.write(context.out);
    Ok(Attempt::Done)
}

/// Returns true for a token of several letters that is found in texts only if merges make it.
fn needs_merges(text: &str, vocabulary: &HfVocabulary<'_>) -> bool {
    text.chars().nth(1).is_some() && !vocabulary.is_added(text) && !vocabulary.is_special(text)
}

/// Returns the tokens by id. Added ones are decoded as the runtime expects, and the remaining rows are padded.
pub(super) fn list(context: &Context<'_>, hf: &HfJson, vocabulary: &HfVocabulary<'_>) -> Result<TokenList> {
    let path = context.directory.join(FILE);
    let size = n_tokens(context.request, vocabulary.n_tokens());
    check_size(&path, size)?;
    let mut by_id: Vec<Option<(&str, Option<&AddedToken>)>> = vec![None; size as usize];
    let base = vocabulary.base.iter().map(|(text, id)| (text.as_str(), *id, None));
    let added =
        vocabulary.added.iter().map(|added| (added.token.content.as_str(), added.id, Some(&added.token)));
    for (text, id, token) in base.chain(added) {
        let Some(slot) = usize::try_from(id).ok().and_then(|at| by_id.get_mut(at)) else {
            if let Some(moved) = token.filter(|token| token.id != id) {
                let moved = vocabulary.moved(text.to_owned(), moved.id, id);
                return Err(TokenizerError::MovedBeyondVocabulary { path, moved, size });
            }
            let key = if token.is_some() { "added_tokens" } else { "model.vocab" };
            return Err(TokenizerError::IdBeyondVocabulary { path, key, token: text.to_owned(), id, size });
        };
        match slot {
            Some((first, _)) if *first != text => {
                let (first, second) = ((*first).to_owned(), text.to_owned());
                return Err(TokenizerError::DuplicateId { path, id, first, second });
            }
            _ => *slot = Some((text, token)),
        }
    }
    let decoder = added_decoder(context, hf)?;
    let plain = context.mode.mode == Mode::BpePlainAdded;
    let mut list = TokenList::default();
    for (id, entry) in by_id.into_iter().enumerate() {
        match entry {
            None => list.push(format!("[PAD{id}]"), 0.0, TokenType::Unused),
            Some((text, None)) => list.push(text, 0.0, TokenType::Normal),
            Some((text, Some(added))) if plain => {
                let kind = if added.special { TokenType::Control } else { TokenType::UserDefined };
                list.push(text, 0.0, kind);
            }
            Some((text, Some(added))) => {
                // The runtime searches plain text for these, so they are written as text, not as letters of bytes.
                let mut text = text.to_owned();
                if !added.is_normalized()
                    && let Some(decoder) = &decoder
                {
                    text = added_text(&text, decoder);
                }
                if added.special || looks_special(&text) {
                    list.push(text, 0.0, TokenType::Control);
                } else {
                    list.push(text.replace('\u{2581}', " "), 0.0, TokenType::UserDefined);
                }
            }
        }
    }
    Ok(list)
}

/// Returns the text of an added token that is written in letters of bytes. Letters that are no UTF-8 are its text: `é` is
/// also the letter of a byte.
fn added_text(text: &str, decoder: &HfDecoder) -> String {
    let decoded = decoder.decode(text);
    if decoded.contains(char::REPLACEMENT_CHARACTER) { text.to_owned() } else { decoded }
}

/// Returns the decoder of the file, if it has one.
fn added_decoder(context: &Context<'_>, hf: &HfJson) -> Result<Option<HfDecoder>> {
    if hf.decoder.is_null() {
        return Ok(None);
    }
    HfDecoder::read(&hf.decoder)
        .map(Some)
        .map_err(|found| TokenizerError::Decoder { path: context.directory.join(FILE), found })
}

/// Returns the merges of the file, else those of `merges.txt`.
pub(super) fn merges(context: &mut Context<'_>, hf: &HfJson) -> Result<Vec<String>> {
    if !hf.model.merges.is_empty() {
        return Ok(hf.model.merges.iter().map(Merge::to_text).collect());
    }
    let Some(text) = context.directory.text("merges.txt")? else { return Ok(Vec::new()) };
    let mut merges = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || (at == 0 && line.starts_with('#')) {
            continue;
        }
        let parts: Vec<&str> = line.split_whitespace().collect();
        match parts.as_slice() {
            [left, right] => merges.push(format!("{left} {right}")),
            _ => context.warnings.push(TokenizerWarning::MalformedMergeLine { line: at + 1 }),
        }
    }
    Ok(merges)
}
