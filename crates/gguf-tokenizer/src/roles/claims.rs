//! Claims of files on the roles of special tokens: the files and the tokens that they name.

use serde_json::Value as Json;

use crate::Result;
use crate::encode::Vocab;
use crate::files::{CONFIG, Directory};
use crate::hf_json::HfJson;
use crate::special::token_text;
use gguf_core::text::escape;

const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
pub(super) const GENERATION_CONFIG: &str = "generation_config.json";
pub(super) const MODEL_CONFIG: &str = "config.json";

/// Existing files that name roles.
pub(super) struct RoleFiles {
    pub(super) tokenizer: Json,
    special_map: Json,
    model: Json,
    generation: Json,
}

/// Tokens that one file declares for one role.
#[derive(Debug, PartialEq)]
pub(super) struct Claim {
    pub(super) file: &'static str,
    /// Key in the file.
    pub(super) key: String,
    /// Ids of tokens of the vocabulary, in the order of the file.
    pub(super) ids: Vec<u32>,
    /// Values that are not tokens of the vocabulary, as JSON, with the reason.
    pub(super) rejected: Vec<(String, Rejection)>,
}

/// Reasons why a value does not denote a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// A text that no token has.
    NoSuchText,
    /// A negative number.
    Negative,
    /// A number beyond the vocabulary.
    Beyond,
    /// Neither a number nor a list of numbers.
    Kind,
}

impl RoleFiles {
    /// Reads the files. A malformed one counts as absent: its actual users report the error.
    pub(super) fn read(directory: &Directory<'_>) -> Result<Self> {
        let tokenizer = directory.lenient_tree(CONFIG)?;
        // A configuration that lists its added tokens is complete.
        let has_decoder = tokenizer.get("added_tokens_decoder").is_some();
        let special_map =
            if has_decoder { Json::Null } else { directory.lenient_tree(SPECIAL_TOKENS_MAP)? };
        let (model, generation) =
            (directory.lenient_tree(MODEL_CONFIG)?, directory.lenient_tree(GENERATION_CONFIG)?);
        Ok(Self { tokenizer, special_map, model, generation })
    }

    /// Returns the claims on a role, in the files' order of precedence for the keys: the tokenizer's, the model's, that
    /// of generation. `null` counts as absent.
    pub(super) fn claims(&self, role: &str, vocab: &Vocab, hf: Option<&HfJson>) -> Vec<Claim> {
        let (text_key, id_key) = (format!("{role}_token"), format!("{role}_token_id"));
        let mut claims = Vec::new();
        for (file, json) in [(CONFIG, &self.tokenizer), (SPECIAL_TOKENS_MAP, &self.special_map)] {
            let Some(text) = json.get(&text_key).and_then(token_text) else { continue };
            let mut claim = Claim::new(file, &text_key);
            match id_of(text, vocab, hf) {
                Some(id) => claim.ids.push(id),
                None => claim.rejected.push((format!("`{}`", escape(text)), Rejection::NoSuchText)),
            }
            claims.push(claim);
        }
        let model = declared(&self.model, &id_key)
            .or_else(|| self.model.get("text_config").and_then(|text| declared(text, &id_key)));
        for (file, found) in [(MODEL_CONFIG, model), (GENERATION_CONFIG, declared(&self.generation, &id_key))]
        {
            let Some(found) = found else { continue };
            let mut claim = Claim::new(file, &id_key);
            let one = std::slice::from_ref(found);
            for value in found.as_array().map_or(one, Vec::as_slice) {
                claim.take(value, vocab);
            }
            claims.push(claim);
        }
        claims
    }
}

impl Claim {
    fn new(file: &'static str, key: &str) -> Self {
        Self { file, key: key.to_owned(), ids: Vec::new(), rejected: Vec::new() }
    }

    fn take(&mut self, value: &Json, vocab: &Vocab) {
        let whole = value.as_f64().filter(|number| number.fract() == 0.0);
        let rejection = match (value.as_u64(), whole) {
            (None, None) => Rejection::Kind,
            (None, Some(number)) if number < 0.0 => Rejection::Negative,
            (id, number) => {
                // Ids of tokens in floating point are below 2^24.
                let id = id.unwrap_or_else(|| number.unwrap_or(f64::MAX) as u64);
                match u32::try_from(id).ok().filter(|&id| (id as usize) < vocab.len()) {
                    Some(id) => return self.ids.push(id),
                    None => Rejection::Beyond,
                }
            }
        };
        let found = value.to_string();
        self.rejected.push((format!("`{}`", escape(&found)), rejection));
    }
}

/// Returns a value that exists and is not null.
fn declared<'a>(json: &'a Json, key: &str) -> Option<&'a Json> {
    json.get(key).filter(|value| !value.is_null())
}

/// Returns the token of a text: as spelled in the file, or by its id in `tokenizer.json`.
fn id_of(text: &str, vocab: &Vocab, hf: Option<&HfJson>) -> Option<u32> {
    let of_file = || {
        let token = hf?.added_tokens.iter().find(|token| token.content == text)?;
        u32::try_from(token.id).ok().filter(|&id| (id as usize) < vocab.len())
    };
    vocab.id(text.as_bytes()).or_else(of_file).or_else(|| vocab.id(text.replace('\u{2581}', " ").as_bytes()))
}
