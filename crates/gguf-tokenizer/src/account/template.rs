//! Tokens that the post-processor puts around a text.

use serde_json::Value as Json;

use super::{Account, Algorithm};
use crate::TokenizerWarning;
use crate::special::class_adds_bos;

/// Maximum nesting depth of sequences.
const MAX_DEPTH: usize = 8;

/// Maximum number of ids around a text that are compared; a template may repeat a long list without end.
const MOST_IDS: usize = 64;

/// Keys of the tokens around a text.
const BY_HAND: [&str; 6] = [
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_sep_token",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.seperator_token_id",
];

/// Ids before and after a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Around {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
    /// Texts of the tokens, as far as the file states them, with their ids.
    named: Vec<(String, u32)>,
}

impl Around {
    /// Reads a post-processor. The error names a type that is unknown.
    pub(crate) fn of(post: &Json) -> Result<Self, String> {
        let mut around = Self::default();
        around.add(post, 0)?;
        Ok(around)
    }

    /// Adds the tokens of a post-processor outside those of earlier ones. The error names a type that is unknown.
    fn add(&mut self, post: &Json, depth: usize) -> Result<(), String> {
        let kind = post.get("type").and_then(Json::as_str).unwrap_or_default();
        match kind {
            _ if post.is_null() => {}
            "ByteLevel" => {}
            "BertProcessing" | "RobertaProcessing" => {
                let pair =
                    |key: &str| Some((text_of(post.get(key)?.get(0)?)?, id_of(post.get(key)?.get(1)?)?));
                self.before.splice(0..0, pair("cls").map(|own| own.1));
                self.after.extend(pair("sep").map(|own| own.1));
                self.named.extend([pair("cls"), pair("sep")].into_iter().flatten());
            }
            "TemplateProcessing" => {
                let empty = Vec::new();
                let pieces = post.get("single").and_then(Json::as_array).unwrap_or(&empty);
                let at =
                    pieces.iter().position(|piece| piece.get("Sequence").is_some()).unwrap_or(pieces.len());
                let (before, after) = pieces.split_at(at);
                let ids = |pieces: &[Json]| -> Vec<u32> {
                    pieces.iter().flat_map(|piece| ids_of(piece, post).1).take(MOST_IDS).collect()
                };
                self.before.splice(0..0, ids(before));
                self.before.truncate(MOST_IDS);
                self.after.extend(ids(after));
                self.after.truncate(MOST_IDS);
                self.named.extend(pieces.iter().filter_map(|piece| match ids_of(piece, post) {
                    (Some(text), ids) if ids.len() == 1 => Some((text, ids[0])),
                    _ => None,
                }));
            }
            "Sequence" if depth < MAX_DEPTH => {
                for part in post.get("processors").and_then(Json::as_array).into_iter().flatten() {
                    self.add(part, depth + 1)?;
                }
            }
            _ => return Err(kind.to_owned()),
        }
        Ok(())
    }
}

fn id_of(value: &Json) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn text_of(value: &Json) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Returns the name and the ids of a special token of a template; a text has neither.
fn ids_of(piece: &Json, post: &Json) -> (Option<String>, Vec<u32>) {
    let name = piece.get("SpecialToken").and_then(|token| text_of(token.get("id")?));
    let ids = || post.get("special_tokens")?.get(name.as_deref()?)?.get("ids")?.as_array();
    let ids = ids().into_iter().flatten().filter_map(id_of).take(MOST_IDS).collect();
    (name, ids)
}

impl Account<'_> {
    /// Compares the tokens that the file puts around a text with those that the keys make the runtime put there.
    pub(super) fn template(&mut self, earlier: &[TokenizerWarning]) {
        let mut file = match Around::of(&self.hf.post_processor) {
            Ok(file) => file,
            Err(kind) => {
                let kind = gguf_core::text::escape(&kind);
                self.say("post_processor", format!("llama.cpp does not apply a step `{kind}`"));
                return;
            }
        };
        let is_other =
            |(text, id): &&(String, u32)| self.vocab.id(text.as_bytes()).is_some_and(|own| own != *id);
        // Only the ids count from here on.
        let named = std::mem::take(&mut file.named);
        if let Some((text, id)) = named.iter().find(is_other) {
            let text = gguf_core::text::escape(text);
            self.say(
                "post_processor",
                format!("it has `{text}` with id {id}, which is {} in the vocabulary", self.shown(&[*id])),
            );
            return;
        }
        let written = Around {
            before: self.vocab.start_of_text().into_iter().collect(),
            after: self.vocab.end_of_text().into_iter().collect(),
            ..Around::default()
        };
        let is_told = |warning: &TokenizerWarning| {
            matches!(
                warning,
                TokenizerWarning::FlagsDiffer { .. }
                    | TokenizerWarning::FlagIgnored { .. }
                    | TokenizerWarning::AddsNoToken { .. }
            )
        };
        let by_hand = BY_HAND.iter().any(|key| self.is_by_hand(key));
        // Gemma 4 begins with its token in transformers 4, whatever the file has, and no key turns it off in the runtime.
        let is_begun = self.algorithm == Algorithm::RankedPieces
            && class_adds_bos(self.config) == Some(true)
            && file.before.is_empty()
            && file.after == written.after;
        if file == written || is_begun || by_hand || earlier.iter().any(is_told) {
            return;
        }
        let (before, after) = (self.shown(&file.before), self.shown(&file.after));
        let (own_before, own_after) = (self.shown(&written.before), self.shown(&written.after));
        self.say("post_processor", format!(
            "the file puts {before} in front of texts and {after} behind them, llama.cpp {own_before} and {own_after} by the keys \
             `tokenizer.ggml.add_*_token` and `tokenizer.ggml.*_token_id`"
        ));
    }
}
