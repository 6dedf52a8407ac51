//! Flags of added tokens.

use serde::Deserialize;
use serde_json::Value as Json;
use unicode_normalization::UnicodeNormalization;

use super::Account;
use crate::emit::TokenType;
use crate::encode::Strip;
use crate::files::Directory;
use crate::hf_json::AddedToken;
use crate::hf_vocab::special_texts;
use crate::modes::SENTINEL;
use crate::pretokenizer::flatten;
use crate::{Result, TokenizerWarning};

/// Texts of mask tokens: models that generate text or vectors meet none.
const MASKS: [&str; 2] = ["<mask>", "[MASK]"];

/// Flags of tokens, with what the runtime does instead.
const FLAGS: [(&str, &str); 4] = [
    ("lstrip", "llama.cpp keeps white space in front of"),
    ("rstrip", "llama.cpp keeps white space behind"),
    ("single_word", "llama.cpp also finds inside words"),
    ("normalized", "llama.cpp finds by their own text, not by that after the normalizer,"),
];
/// Maximum number of tokens of each kind that are compared with one another.
const MAX_COMPARED: usize = 2048;

impl Account<'_> {
    /// Reports tokens that the runtime finds elsewhere in a text than the file does.
    pub(super) fn added(&mut self) {
        // transformers replaces flags by those of the configuration.
        let of_config = self.config.get("added_tokens_decoder").and_then(Json::as_object);
        let of_config: Vec<AddedToken> = of_config
            .into_iter()
            .flatten()
            .filter_map(|(_, token)| AddedToken::deserialize(token).ok())
            .collect();
        for (flag, effect) in FLAGS {
            let mut tokens: Vec<String> = Vec::new();
            // Tokens that only a configuration adds are `normalized` unless it declares the opposite, which few mean.
            let of_config = if flag == "normalized" { &[][..] } else { of_config.as_slice() };
            for token in self.hf.added_tokens.iter().chain(of_config) {
                if self.is_lost(flag, token) && !tokens.contains(&token.content) {
                    tokens.push(token.content.clone());
                }
            }
            if !tokens.is_empty() {
                self.found.push(TokenizerWarning::AddedFlag { flag, effect, tokens });
            }
        }
        // Other modes follow llama.cpp's converter in what they look for in texts.
        let plain = self.hf.added_tokens.iter().filter(|token| self.has_model && self.is_plain(token));
        let plain: Vec<String> = plain.map(|token| token.content.clone()).collect();
        if !plain.is_empty() {
            self.found.push(TokenizerWarning::AddedAsText { tokens: plain });
        }
        if let Some((first, second)) = self.found_first() {
            self.found.push(TokenizerWarning::AddedInside { first, second });
        }
    }

    /// Returns true if a flag of a token changes where it is found, and the runtime ignores it.
    fn is_lost(&self, flag: &str, token: &AddedToken) -> bool {
        let is_mask = MASKS.contains(&token.content.as_str());
        let Some(id) = self.vocab.id(token.content.as_bytes()) else { return false };
        let strip = || self.vocab.strip(id);
        match flag {
            "lstrip" => token.lstrip && !is_mask && strip() != Some(Strip::Left),
            "rstrip" => token.rstrip && strip() != Some(Strip::Right),
            "single_word" => token.single_word,
            _ => token.is_normalized() && !is_mask && is_changed(&self.hf.normalizer, &token.content),
        }
    }

    /// Returns true if the runtime does not look for a token in texts: its row is plain text, or empty.
    fn is_plain(&self, token: &AddedToken) -> bool {
        let is_text = |id: u32| matches!(self.vocab.kind(id), TokenType::Normal | TokenType::Unused);
        let own = u32::try_from(token.id).ok().filter(|&id| (id as usize) < self.vocab.len());
        let by_text = self.vocab.id(token.content.as_bytes());
        own.is_some_and(is_text) && by_text.is_none_or(is_text) && !token.content.starts_with(SENTINEL)
    }

    /// Returns a token that is matched before normalization, and so is found inside a longer one that is matched after it.
    fn found_first(&self) -> Option<(String, String)> {
        let of = |normalized: bool| {
            let tokens = self.hf.added_tokens.iter().filter(move |token| token.is_normalized() == normalized);
            tokens.map(|token| token.content.as_str()).filter(|text| !text.is_empty()).take(MAX_COMPARED)
        };
        let pair = of(false).find_map(|first| Some((first, of(true).find(|second| second.contains(first))?)));
        pair.map(|(first, second)| (first.to_owned(), second.to_owned()))
    }

    /// Reports special tokens of the configuration that `tokenizer.json` has as plain text, or not at all.
    pub(super) fn missing_from_added(&mut self, directory: &Directory<'_>) -> Result<()> {
        let added = &self.hf.added_tokens;
        if added.is_empty() {
            return Ok(());
        }
        let is_missing = |text: &String| {
            !added.iter().any(|token| token.content == *text) && self.vocab.id(text.as_bytes()).is_some()
        };
        let tokens: Vec<String> =
            special_texts(directory, self.config)?.into_iter().filter(is_missing).collect();
        if !tokens.is_empty() {
            self.found.push(TokenizerWarning::SpecialNotAdded { tokens });
        }
        Ok(())
    }
}

fn is_changed(normalizer: &Json, text: &str) -> bool {
    let mut changed = false;
    flatten(normalizer, "normalizers", 0, &mut |step| changed |= step_changes(step, text));
    changed
}

fn step_changes(step: &Json, text: &str) -> bool {
    let string = |key: &str| step.get(key).and_then(Json::as_str);
    let flag = |key: &str| step.get(key).and_then(Json::as_bool) == Some(true);
    let pattern = || step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
    let has_upper = || text.chars().any(|c| !c.to_lowercase().eq([c]));
    match string("type") {
        Some("NFC") => !text.nfc().eq(text.chars()),
        Some("NFD") => !text.nfd().eq(text.chars()),
        Some("NFKC") => !text.nfkc().eq(text.chars()),
        Some("NFKD") => !text.nfkd().eq(text.chars()),
        Some("Lowercase") => has_upper(),
        Some("StripAccents" | "Precompiled" | "Nmt") => !text.is_ascii(),
        Some("BertNormalizer") => !text.is_ascii() || (flag("lowercase") && has_upper()),
        // Blanks around a token are removed with those around the whole text, or with those around each part of it.
        Some("Strip") => flag("strip_left") || flag("strip_right"),
        Some("Replace") => match pattern() {
            Some(pattern) => text.contains(pattern),
            // Joined blanks.
            None => !step.to_string().contains(" {2,}") || text.contains("  "),
        },
        _ => true,
    }
}
