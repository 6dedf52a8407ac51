//! Beginnings and ends of sequences, from the vocabulary and the chat template of the file.

use serde_json::json;

use crate::Result;
use crate::sampler::chance::Chance;
use gguf_core::isolated::IsolatedError;
use gguf_core::text::escape;
use gguf_engine::{EngineError, GraphPlan};
use gguf_format::{Array, Metadata, Value};
use gguf_verification::{ChatError, Model, TextEncoder};

/// Value for a text token in `tokenizer.ggml.token_type`.
const NORMAL: i128 = 1;
/// Value for a control token.
const CONTROL: i128 = 3;
/// Placeholder for the model's answer.
const ANSWER: &str = "ANSWER";

/// Form of a sequence's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartForm {
    /// Answer to an empty turn.
    Chat,
    /// Beginning of a text.
    Text,
    /// Ordinary token.
    Ordinary,
}

impl StartForm {
    /// Form of sequence `number`: the three forms in turn.
    pub(super) fn of(number: usize) -> Self {
        match number % 3 {
            0 => Self::Chat,
            1 => Self::Text,
            _ => Self::Ordinary,
        }
    }
}

/// Beginnings and ends of sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Starts {
    /// Chat up to the answer, if the model has a template.
    chat: Option<Vec<u32>>,
    /// Token that begins a text.
    start: Option<u32>,
    /// Ordinary text tokens.
    ordinary: Vec<u32>,
    /// Tokens that end a text or a turn.
    pub(super) ends: Vec<u32>,
    pub(super) notes: Vec<String>,
}

impl Starts {
    /// Reads the beginnings of a model; a chat of more than `longest` tokens is left out.
    pub(super) fn of(model: &Model<'_>, plan: &GraphPlan, longest: usize) -> Result<Self> {
        let n_vocab = plan.n_vocab.min(plan.embedding.n_rows);
        let id = |key: &str| {
            let id = model.metadata.get(&format!("tokenizer.ggml.{key}_token_id"))?.as_u64()?;
            u32::try_from(id).ok().filter(|&id| (id as usize) < n_vocab)
        };
        let declared = model.encoder.ok().and_then(TextEncoder::start_of_text);
        let start = declared.filter(|&id| (id as usize) < n_vocab);
        // A text that follows the end of another one also begins with that token.
        let start = start.or_else(|| id("bos")).or_else(|| id("eos")).or_else(|| id("eot"));
        let kinds = kinds(model.metadata);
        let mut starts = Self { start, ..Self::default() };
        starts.ends = ["eos", "eot", "eom"].into_iter().filter_map(id).collect();
        let special: Vec<u32> =
            ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "cls"]
                .into_iter()
                .filter_map(id)
                .collect();
        let is_ordinary = |id: &u32| {
            let is_text = kinds.as_ref().is_none_or(|kinds| kinds.get(*id as usize) == Some(&NORMAL));
            is_text && !special.contains(id) && !plan.never_generated.contains(&(*id as usize))
        };
        starts.ordinary = (0..u32::try_from(n_vocab).unwrap_or(u32::MAX)).filter(is_ordinary).collect();
        match chat(model) {
            Ok((tokens, behind)) => {
                if tokens.is_empty()
                    || tokens.len() > longest
                    || tokens.iter().any(|&t| t as usize >= n_vocab)
                {
                    let n = tokens.len();
                    starts.notes.push(format!(
                        "an empty chat takes {n} tokens, of {longest} at most: no sequence begins with it"
                    ));
                } else {
                    starts.chat = Some(tokens);
                }
                // The control token behind the answer ends the turn of the model.
                let is_end =
                    |id: &u32| kinds.as_ref().is_some_and(|kinds| kinds.get(*id as usize) == Some(&CONTROL));
                starts.ends.extend(behind.filter(is_end));
            }
            Err(None) => {}
            Err(Some(NoChat::Reason(reason))) => {
                starts.notes.push(format!("no sequence begins as a chat: {}", escape(&reason)));
            }
            Err(Some(NoChat::Cancelled)) => return Err(EngineError::Cancelled.into()),
        }
        Ok(starts)
    }

    /// Number of tokens of the longest beginning.
    pub(super) fn longest(&self) -> usize {
        self.chat.as_ref().map_or(0, Vec::len).max(2)
    }

    /// Tokens of a beginning of this form, or of the next form that the model supports.
    pub(super) fn tokens(&self, form: StartForm, chance: &mut Chance) -> Vec<u32> {
        let start = self.start.into_iter();
        match (form, &self.chat) {
            (StartForm::Chat, Some(chat)) => chat.clone(),
            (StartForm::Chat | StartForm::Text, _) if self.start.is_some() => start.collect(),
            _ => {
                let tokens: Vec<u32> = start.chain(chance.one_of(&self.ordinary)).collect();
                // A vocabulary without known tokens begins with token 0.
                if tokens.is_empty() { vec![0] } else { tokens }
            }
        }
    }
}

/// Types of the tokens, if the file has them.
fn kinds(metadata: &Metadata) -> Option<Vec<i128>> {
    let kinds = metadata.get("tokenizer.ggml.token_type").and_then(Value::as_array)?;
    match kinds {
        Array::I32(kinds) => Some(kinds.iter().map(|&kind| i128::from(kind)).collect()),
        Array::U32(kinds) => Some(kinds.iter().map(|&kind| i128::from(kind)).collect()),
        _ => None,
    }
}

/// Reason that there is no chat, other than a missing template.
enum NoChat {
    Reason(String),
    Cancelled,
}

/// Tokens of a chat with an empty user turn up to the model's answer, and the token that follows the answer.
///
/// The template renders a placeholder answer. The model's text begins where the placeholder is, whatever the template
/// calls the model.
fn chat(model: &Model<'_>) -> Result<(Vec<u32>, Option<u32>), Option<NoChat>> {
    let Ok(encoder) = model.encoder else { return Err(None) };
    let user = json!({"role": "user", "content": ""});
    let answer = json!({"role": "assistant", "content": ANSWER});
    let text = match model.template.render(&json!([user, answer])) {
        Ok(text) => text,
        Err(ChatError::Missing) => return Err(None),
        Err(ChatError::Isolated(IsolatedError::Cancelled)) => return Err(Some(NoChat::Cancelled)),
        Err(reason) => return Err(Some(NoChat::Reason(reason.to_string()))),
    };
    let Some((before, behind)) = text.rsplit_once(ANSWER) else {
        return Err(Some(NoChat::Reason("the template leaves the model's turn out".to_owned())));
    };
    let reason = |reason: String| Some(NoChat::Reason(reason));
    let behind = encoder.encode(behind, true).map_err(reason)?.first().copied();
    let mut tokens: Vec<u32> = encoder.start_of_text().into_iter().collect();
    let encoded = encoder.encode(before, true).map_err(reason)?;
    // Many templates write BOS themselves.
    if encoded.first() == tokens.first() {
        tokens.clear();
    }
    tokens.extend(encoded);
    Ok((tokens, behind))
}
