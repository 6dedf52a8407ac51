//! Carbon: Qwen's byte-level BPE followed by six-letter words of DNA. The words are defined in the tokenizer's Python
//! file, which also downloads Qwen's vocabulary.

use crate::Result;
use serde_json::Value as Json;

use super::super::emit::{MAX_TOKENS, TokenList, TokenType, looks_special, n_tokens};
use super::super::files::CONFIG;
use super::super::hf_json::FILE;
use super::super::hf_vocab::HfVocabulary;
use super::super::special::token_text;
use super::super::{TokenizerError, pretokenizer};
use super::{Attempt, Context, bpe};

/// Letters in the counting order of words.
const LETTERS: [char; 4] = ['A', 'T', 'C', 'G'];
const WORD: u32 = 6;
/// Suffix that distinguishes a word of DNA from a text token with the same letters.
const MARK: char = '\u{e000}';
const SPECIAL: [&str; 3] = ["<dna>", "</dna>", "<oov>"];
/// Multiple to which the vocabulary is padded.
const MULTIPLE: u64 = 128;

/// Writes the keys.
///
/// # Exactness
/// Equals `_set_vocab_hybriddna` of llama.cpp 0.5.0's converter for HuggingFaceBio/Carbon, if tokenizer.json of
/// Qwen/Qwen3-4B-Base is next to the checkpoint.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let Some(hf) = context.hf else {
        return Ok(Attempt::Absent(format!(
            "{FILE} is missing: the tokenizer's code takes that of Qwen/Qwen3-4B-Base, which must be in the same directory"
        )));
    };
    let path = context.directory.join(FILE);
    hf.bpe_vocab(path.clone())?;
    // The code reads only texts and ids from the file; the configuration defines the special tokens.
    let vocabulary = HfVocabulary::of_file(hf, path.clone(), context.warnings)?;
    vocabulary.each_merge(hf, &context.directory, |_| ())?;
    let config = context.directory.tree(CONFIG)?;
    let named = config.get("added_tokens_decoder").and_then(Json::as_object);
    let special = |text: &str| {
        let of_config = named.and_then(|all| all.values().find(|token| token_text(token) == Some(text)));
        let is_end = |role: &str| config.get(role).and_then(token_text).unwrap_or("<|endoftext|>") == text;
        match of_config.and_then(|token| token.get("special")).and_then(Json::as_bool) {
            _ if is_end("eos_token") || is_end("pad_token") => Some(true),
            None => of_config.map(|_| false),
            declared => declared,
        }
    };
    let base = vocabulary.n_tokens();
    let words = words();
    let own = (base + SPECIAL.len() as u64 + words.len() as u64).next_multiple_of(MULTIPLE);
    let size = n_tokens(context.request, own);
    if size > MAX_TOKENS || own > size {
        return Err(TokenizerError::TooManyTokens { path, size: own.max(size), limit: size.min(MAX_TOKENS) });
    }
    let mut tokens = TokenList::unused(&path, size, None)?;
    let mut put = |id: u64, text: &str| {
        let kind = match special(text) {
            Some(declared) if declared || looks_special(text) => TokenType::Control,
            Some(_) => TokenType::UserDefined,
            None => TokenType::Normal,
        };
        tokens.set(id, text, 0.0, kind)
    };
    let of_text = vocabulary.base.iter().map(|(text, id)| (text.as_str(), *id));
    let added = vocabulary.added.iter().map(|added| (added.token.content.as_str(), added.id));
    for (text, id) in of_text.chain(added) {
        if id >= base || !put(id, text) {
            let (key, token) = ("model.vocab", text.to_owned());
            return Err(TokenizerError::IdBeyondVocabulary { path, key, token, id, size: base });
        }
    }
    let behind = SPECIAL.iter().map(|&text| text.to_owned()).chain(words);
    let fill = (0..).map(|at| format!("<unused_{at}>"));
    for (id, text) in (base..own).zip(behind.chain(fill)) {
        put(id, &text);
    }
    tokens.retype(context.request);
    let pre = match &context.request.pre {
        Some(name) => pretokenizer::accept(name)?,
        None => {
            let text = context.directory.bytes(FILE)?.unwrap_or_default();
            let found = pretokenizer::identify(&path, hf, &text, &pretokenizer::HashSettings::default())?;
            context.warnings.extend(found.warnings);
            found.name
        }
    };
    let merges = bpe::merges(context, hf)?;
    let special = context.special(&tokens)?;
    tokens.write("hybriddna", &pre, context.out);
    if !merges.is_empty() {
        context.out.set("tokenizer.ggml.merges", merges);
    }
    special.write(context.out);
    Ok(Attempt::Done)
}

/// Returns the words of DNA, each with the mark.
fn words() -> Vec<String> {
    (0..4u32.pow(WORD))
        .map(|number| {
            let letter = |place: u32| LETTERS[(number >> (2 * place) & 3) as usize];
            (0..WORD).rev().map(letter).chain([MARK]).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_through_the_letters_from_behind() {
        let words = words();
        assert_eq!(words.len(), 4096);
        assert_eq!(words[0], "AAAAAA\u{e000}");
        assert_eq!(words[1], "AAAAAT\u{e000}");
        assert_eq!(words[4], "AAAATA\u{e000}");
        assert_eq!(words[4095], "GGGGGG\u{e000}");
    }
}
