//! Tokens at which the runtime ends an answer.

use gguf_format::Metadata;

use super::encode::{Vocab, ends_generation};

/// Keys of tokens at which the runtime ends an answer.
const KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// The tokens of a file at which the runtime ends an answer.
///
/// # Exactness
/// `special_eog_ids` of llama.cpp 0.5.0, without the tokens for filling in code, which no chat contains, and with `<|end|>` of
/// harmony: it ends a message, and the model decides whether another follows.
#[derive(Debug)]
pub struct EndTokens {
    vocab: Vocab,
    ids: Vec<u32>,
}

impl EndTokens {
    /// Reads the `tokenizer.*` keys; `None` if they describe no vocabulary that can be read.
    pub fn of(metadata: &Metadata) -> Option<Self> {
        let vocab = Vocab::from_metadata(metadata).ok()?;
        let key = |key: &&str| {
            let id = metadata.get(key)?.as_u64().and_then(|id| u32::try_from(id).ok())?;
            vocab.token(id).map(|_| id)
        };
        let by_key = vocab.eos.into_iter().chain(KEYS.iter().filter_map(key));
        let mut ids: Vec<u32> = Vec::new();
        for id in by_key.chain(vocab.known_ends()) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        Some(Self { vocab, ids })
    }

    /// Returns the texts of the tokens as an answer contains them; that of `eos` is the first.
    pub fn texts(&self) -> Vec<String> {
        let texts = self.ids.iter().map(|&id| String::from_utf8_lossy(&self.vocab.piece(id)).into_owned());
        texts.filter(|text| !text.is_empty()).collect()
    }

    /// Returns the id of the token with this text that is found in a chat; `None` if the text is no single token there.
    pub fn special(&self, text: &str) -> Option<u32> {
        self.vocab.id(text.as_bytes()).filter(|&id| self.vocab.is_parsed(id))
    }
}

impl Vocab {
    /// Ids of the tokens that end an answer because of their text.
    fn known_ends(&self) -> Vec<u32> {
        let id = |text: &str| self.id(text.as_bytes());
        let all = (0..).map_while(|id| Some((id, self.token(id)?)));
        // ref: of tokens with the same text, the last one is found
        let all = all.filter(|(id, text)| ends_generation(text) && self.id(text) == Some(*id));
        let normal_s = id("<|tool_response>").or_else(|| id("<|plamo:eos|>")).and_then(|_| id("</s>"));
        all.map(|(id, _)| id).filter(|&id| Some(id) != normal_s).collect()
    }
}
