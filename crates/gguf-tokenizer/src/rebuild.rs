//! Conversion of a GGUF file's `tokenizer.*` keys back to the tokenizer files of a checkpoint.
//!
//! Byte-level BPE gets its steps from the pre-tokenizer table, in reverse. SentencePiece vocabularies get a
//! `tokenizer.json` with merges derived from the scores, and a `tokenizer.model` with unchanged pieces and scores.
//! WordPiece and Gemma 4's pieces get a `tokenizer.json`, RWKV's vocabulary its list of tokens.

mod byte_level;
mod gemma4;
mod pieces;
mod rwkv;
mod source;
mod word_piece;

use crate::Result;
use serde_json::{Map, Value as Json, json};

use gguf_format::{Array, Metadata, Value};

use super::TokenizerError;
use super::emit::TokenType;
use source::GgufVocabulary;

/// Tokenizer files of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct HfTokenizerFiles {
    /// Contents of `tokenizer.json`; RWKV has none.
    pub tokenizer_json: Option<String>,
    /// Contents of `tokenizer_config.json`.
    pub tokenizer_config_json: String,
    /// Name and bytes of a SentencePiece model or RWKV's list of tokens, for vocabularies of these kinds.
    pub sentencepiece_model: Option<(&'static str, Vec<u8>)>,
    /// Contents of `added_tokens.json`, if needed.
    pub added_tokens_json: Option<String>,
    /// Contents of `generation_config.json`, if there are special ids for it.
    pub generation_config_json: Option<String>,
    /// Special ids for `config.json`: `bos_token_id` and similar.
    pub config_ids: Vec<(&'static str, u64)>,
    /// Keys of the file that these files cannot hold.
    pub lost: Vec<String>,
}

/// A role of a single special token.
struct SpecialRole {
    /// Name in `tokenizer_config.json`.
    name: &'static str,
    config_key: &'static str,
    /// Key in GGUF.
    key: &'static str,
}

const ROLES: [SpecialRole; 6] = [
    SpecialRole { name: "bos", config_key: "bos_token_id", key: "tokenizer.ggml.bos_token_id" },
    SpecialRole { name: "eos", config_key: "eos_token_id", key: "tokenizer.ggml.eos_token_id" },
    SpecialRole { name: "unk", config_key: "unk_token_id", key: "tokenizer.ggml.unknown_token_id" },
    SpecialRole { name: "sep", config_key: "sep_token_id", key: "tokenizer.ggml.seperator_token_id" },
    SpecialRole { name: "pad", config_key: "pad_token_id", key: "tokenizer.ggml.padding_token_id" },
    SpecialRole { name: "mask", config_key: "mask_token_id", key: "tokenizer.ggml.mask_token_id" },
];

/// Returns the special ids of a vocabulary under their names in `config.json`, even if no tokenizer files can be made.
pub fn special_ids(metadata: &Metadata) -> Vec<(&'static str, u64)> {
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    let n_tokens = tokens.map_or(0, Array::len) as u64;
    let id = |role: &SpecialRole| metadata.get(role.key)?.as_u64().filter(|&id| id < n_tokens);
    ROLES.iter().filter_map(|role| Some((role.config_key, id(role)?))).collect()
}

/// Rebuilds the tokenizer files; `None` for a file without a vocabulary.
///
/// # Exactness
/// transformers encodes with these files as the runtime does with the keys, and [`super::build`] restores the same
/// values, except for [`HfTokenizerFiles::lost`].
///
/// # Errors
/// A kind of vocabulary or a pre-tokenizer without an inverse, keys of the wrong type or length, token texts that are
/// not UTF-8 or occur twice.
pub fn to_hf(metadata: &Metadata) -> Result<Option<HfTokenizerFiles>> {
    let Some(vocabulary) = GgufVocabulary::read(metadata)? else { return Ok(None) };
    let mut config = Map::new();
    let (tokenizer, sentencepiece_model) = match vocabulary.model.as_str() {
        "gpt2" => (Some(byte_level::tokenizer(&vocabulary, &mut config)?), None),
        "llama" => {
            let model = pieces::model(&vocabulary, pieces::PieceAlgorithm::Bpe);
            (Some(pieces::bpe(&vocabulary, &mut config)), Some(("tokenizer.model", model)))
        }
        "t5" if is_encoder(&vocabulary.architecture) => (Some(pieces::xlmr(&vocabulary, &mut config)), None),
        "t5" => {
            let model = pieces::model(&vocabulary, pieces::PieceAlgorithm::Unigram);
            (Some(pieces::unigram(&vocabulary)), Some(("spiece.model", model)))
        }
        "bert" => (Some(word_piece::tokenizer(&vocabulary, &mut config)), None),
        "gemma4" => (Some(gemma4::tokenizer(&vocabulary, &mut config)), None),
        "rwkv" => (None, Some((rwkv::FILE, rwkv::vocabulary_file(&vocabulary)))),
        found => return Err(TokenizerError::NoInverse { found: found.to_owned() }),
    };
    let added = if sentencepiece_model.is_some() && tokenizer.is_some() {
        pieces::added_tokens_file(&vocabulary)
    } else {
        None
    };
    write_config(&vocabulary, &mut config);
    let config_ids = special_ids(metadata);
    let generation: Map<String, Json> = config_ids
        .iter()
        .filter(|(key, _)| ["bos_token_id", "eos_token_id", "pad_token_id"].contains(key))
        .map(|(key, id)| ((*key).to_owned(), json!(id)))
        .collect();
    Ok(Some(HfTokenizerFiles {
        tokenizer_json: tokenizer.as_ref().map(pretty),
        tokenizer_config_json: pretty(&Json::Object(config)),
        sentencepiece_model,
        added_tokens_json: added.as_ref().map(pretty),
        generation_config_json: (!generation.is_empty()).then(|| pretty(&Json::Object(generation))),
        config_ids,
        lost: lost(metadata),
    }))
}

/// Returns true for architectures with XLM-RoBERTa's unigram vocabulary.
fn is_encoder(architecture: &str) -> bool {
    matches!(architecture, "bert" | "nomic-bert" | "nomic-bert-moe" | "jina-bert-v3")
}

/// Adds control tokens whose role has no GGUF key: without their names in the configuration they would be text.
fn other_special_tokens(vocabulary: &GgufVocabulary, config: &mut Map<String, Json>) {
    let roles: Vec<usize> = ROLES.iter().filter_map(|role| vocabulary.special(role.key)).collect();
    let others: Vec<&String> = (0..vocabulary.tokens.len())
        .filter(|id| vocabulary.types.get(*id) == Some(&TokenType::Control) && !roles.contains(id))
        .filter_map(|id| vocabulary.tokens.get(id))
        .collect();
    if !others.is_empty() {
        config.insert("additional_special_tokens".into(), json!(others));
    }
}

fn pretty(value: &Json) -> String {
    // A tree of strings, numbers and lists always serializes, because all map keys are strings.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn write_config(vocabulary: &GgufVocabulary, config: &mut Map<String, Json>) {
    for SpecialRole { name, key, .. } in ROLES {
        let Some(id) = vocabulary.special(key) else { continue };
        if let Some(token) = vocabulary.tokens.get(id)
            && vocabulary.is_added(id)
        {
            config.insert(format!("{name}_token"), token.as_str().into());
        }
    }
    for role in ["bos", "eos", "sep"] {
        if let Some(add) = vocabulary.flag(&format!("tokenizer.ggml.add_{role}_token")) {
            config.insert(format!("add_{role}_token"), add.into());
        }
    }
    if !matches!(vocabulary.model.as_str(), "t5" | "gemma4")
        && let Some(prefix) = vocabulary.flag("tokenizer.ggml.add_space_prefix")
    {
        config.insert("add_prefix_space".into(), prefix.into());
    }
    if vocabulary.model != "rwkv" {
        // RWKV's tokenizer is code that is part of a checkpoint.
        config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    }
    // The generic class would also return `token_type_ids`, which decoders refuse.
    config.insert("model_input_names".into(), json!(["input_ids", "attention_mask"]));
    if let Some(length) = vocabulary.context_length {
        config.insert("model_max_length".into(), length.into());
    }
    if let Some(template) = chat_template(vocabulary) {
        config.insert("chat_template".into(), template);
    }
}

/// Returns the plain template as text, or a list if there are named ones.
fn chat_template(vocabulary: &GgufVocabulary) -> Option<Json> {
    let plain = vocabulary.plain_template.as_ref();
    if vocabulary.named_templates.is_empty() {
        return plain.map(|text| text.as_str().into());
    }
    let default = plain.map(|text| json!({"name": "default", "template": text}));
    let named = vocabulary.named_templates.iter().map(|(name, text)| json!({"name": name, "template": text}));
    Some(default.into_iter().chain(named).collect())
}

/// Returns `added_tokens` of `tokenizer.json`: control and user-defined tokens. `decodes` returns whether the file's
/// decoder leaves a text unchanged. A text that it changes is marked as normalized, which protects it.
fn added_tokens(vocabulary: &GgufVocabulary, decodes: impl Fn(&str) -> bool) -> Json {
    let added = vocabulary.tokens.iter().enumerate().filter(|(id, _)| vocabulary.is_added(*id));
    added
        .map(|(id, text)| {
            let special = vocabulary.types[id] != TokenType::UserDefined;
            json!({
                "id": id,
                "content": text,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": !decodes(text),
                "special": special,
            })
        })
        .collect()
}

/// Special token that a vocabulary adds without a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AddedByDefault {
    Nothing,
    Begin,
    End,
}

/// Returns the post-processor that adds the special tokens required by the flags; null if there are none.
fn post_processor(vocabulary: &GgufVocabulary, default: AddedByDefault) -> Json {
    let token = |role: &str, key: &str, default: bool| {
        let add = vocabulary.flag(&format!("tokenizer.ggml.add_{role}_token")).unwrap_or(default);
        let id = vocabulary.special(key).filter(|_| add)?;
        Some((vocabulary.tokens.get(id)?.as_str(), id))
    };
    let bos = token("bos", "tokenizer.ggml.bos_token_id", default == AddedByDefault::Begin);
    let eos = token("eos", "tokenizer.ggml.eos_token_id", default == AddedByDefault::End);
    let sep =
        token("sep", "tokenizer.ggml.seperator_token_id", false).filter(|_| bos.is_some() || eos.is_some());
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }
    let piece = |entry: Option<(&str, usize)>| {
        entry.map(|(text, _)| json!({"SpecialToken": {"id": text, "type_id": 0}}))
    };
    let sequence = |name: &str| Some(json!({"Sequence": {"id": name, "type_id": 0}}));
    let single: Json = [piece(bos), sequence("A"), piece(eos)].into_iter().flatten().collect();
    let pair: Json = [piece(bos), sequence("A"), piece(sep), piece(sep), sequence("B"), piece(eos)]
        .into_iter()
        .flatten()
        .collect();
    let mut special = Map::new();
    for (text, id) in [bos, eos, sep].into_iter().flatten() {
        special.insert(text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}));
    }
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
}

/// Returns the keys that no file of a checkpoint can hold.
fn lost(metadata: &Metadata) -> Vec<String> {
    const KEPT: [&str; 16] = [
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_sep_token",
        "tokenizer.ggml.add_space_prefix",
        "tokenizer.ggml.remove_extra_whitespaces",
        "tokenizer.ggml.precompiled_charsmap",
        "tokenizer.ggml.normalizer.lowercase",
        "tokenizer.ggml.normalizer.strip_accents",
        // `type_vocab_size`, which the card converts back.
        "tokenizer.ggml.token_type_count",
        "tokenizer.chat_templates",
    ];
    let keys = metadata.iter().map(|(key, _)| key).filter(|key| key.starts_with("tokenizer."));
    let is_template = |key: &str| {
        key.starts_with("tokenizer.chat_template") && matches!(metadata.get(key), Some(Value::String(_)))
    };
    let is_kept =
        |key: &str| KEPT.contains(&key) || is_template(key) || ROLES.iter().any(|role| role.key == key);
    keys.filter(|key| !is_kept(key)).map(str::to_owned).collect()
}
