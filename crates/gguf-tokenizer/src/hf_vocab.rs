//! Vocabulary of a `tokenizer.json` as presented by transformers: the model's tokens, the added tokens, and the special
//! tokens that only the configuration names.
//!
//! # Exactness
//! Follows transformers 4.57's fast tokenizers. An added token that the model knows keeps the model's id; any other
//! gets the next free one. Tokens of `added_tokens_decoder` follow those of the file, in order of their ids. Special
//! tokens found nowhere come last.

use crate::Result;
use std::collections::HashMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value as Json;

use super::files::{CONFIG, Directory};
use super::hf_json::{AddedToken, FILE, HfJson};
use super::special::token_text;
use super::{Moved, TokenizerError, TokenizerWarning};

/// Roles of single special tokens, in transformers' order.
const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Keys of further special tokens: a list, or a table of the roles that only one model has. Each other key `*_token`
/// names such a role, too.
const LISTS: [&str; 3] =
    ["additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"];

const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
const ADDED_TOKENS: &str = "added_tokens.json";

/// Special tokens that a tokenizer class has by default. (transformers 5 reads a Llama's file without its class.)
const CLASS_DEFAULTS: [(&str, &[(&str, &str)]); 11] = [
    ("CodeLlama", &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")]),
    (
        "GPT2",
        &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")],
    ),
    (
        "GPTNeoX",
        &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")],
    ),
    (
        "CodeGen",
        &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")],
    ),
    (
        "Qwen2",
        &[("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")],
    ),
    (
        "Gemma",
        &[("bos_token", "<bos>"), ("eos_token", "<eos>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
    ),
    ("Bert", BERT),
    ("DistilBert", BERT),
    ("Roberta", ROBERTA),
    ("XLMRoberta", ROBERTA),
    ("T5", &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")]),
];

/// Special tokens of BERT's class.
pub(super) const BERT: &[(&str, &str)] = &[
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];

const ROBERTA: &[(&str, &str)] = &[
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
    ("unk_token", "<unk>"),
    ("sep_token", "</s>"),
    ("pad_token", "<pad>"),
    ("cls_token", "<s>"),
    ("mask_token", "<mask>"),
];

/// An added token with its assigned id.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Added {
    /// Assigned id.
    pub id: u64,
    /// Text and flags.
    pub token: AddedToken,
}

/// Result of adding a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenPlacement {
    /// The token has this id.
    At(u64),
    /// No id is available.
    Nowhere,
    /// The token was added before, or is empty.
    Known,
}

/// All tokens of a `tokenizer.json`.
#[derive(Clone, Debug)]
pub(crate) struct HfVocabulary<'a> {
    /// Tokens of the model, in file order.
    pub base: &'a [(String, u64)],
    /// Added tokens, in the order of their addition.
    pub added: Vec<Added>,
    /// Texts of the tokens with a special role.
    pub special: Vec<String>,
    by_text: HashMap<&'a str, u64>,
    added_ids: HashMap<String, u64>,
    last_added: Option<u64>,
}

impl<'a> HfVocabulary<'a> {
    /// Assembles the vocabulary.
    ///
    /// Tokens that only the configuration names get no id at or above `size`, and added ones of the file none at or above
    /// `rows`, the rows of the embedding: nothing encodes to them. (transformers adds them after the last row.) Those that
    /// no check of roles reports are a warning.
    ///
    /// # Errors
    /// I/O errors, malformed JSON, a model without a table of ids, an id of `added_tokens_decoder` that is not a
    /// number.
    pub(crate) fn new(
        directory: &Directory<'_>,
        hf: &'a HfJson,
        size: Option<u64>,
        rows: Option<u64>,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self> {
        let mut vocabulary = Self::within(hf, directory.join(FILE), rows, warnings)?;
        let config = directory.tree(CONFIG)?;
        let special = special_tokens(directory, &config)?;
        vocabulary.special = special.iter().map(|token| token.text.clone()).collect();
        let (source, mut decoder) = match config.get("added_tokens_decoder") {
            Some(listed) => ((CONFIG, "added_tokens_decoder"), decoder_tokens(listed, directory)?),
            None => ((ADDED_TOKENS, ADDED_TOKENS), added_tokens(directory)?),
        };
        for (_, token) in &mut decoder {
            token.special |= vocabulary.special.contains(&token.content);
        }
        decoder.sort_by_key(|entry| entry.0);
        let (mut without_row, mut moved) = (Vec::new(), Vec::new());
        let is_of_file = |text: &str| hf.added_tokens.iter().any(|token| token.content == text);
        for (stated, token) in decoder {
            let content = token.content.clone();
            match vocabulary.add_within(token, size) {
                TokenPlacement::At(used) if used != stated => {
                    moved.push(vocabulary.moved(content, stated, used));
                }
                TokenPlacement::Nowhere if !vocabulary.is_special(&content) && !is_of_file(&content) => {
                    without_row.push((source.0, source.1.to_owned(), content));
                }
                TokenPlacement::At(_) | TokenPlacement::Nowhere | TokenPlacement::Known => {}
            }
        }
        for NamedToken { text: content, source } in special {
            let token = AddedToken {
                content: content.clone(),
                special: true,
                normalized: Some(false),
                ..AddedToken::default()
            };
            if vocabulary.add_within(token, size) == TokenPlacement::Nowhere
                && let Some((file, key)) = source.filter(|(_, key)| !is_role(key))
                && !is_of_file(&content)
            {
                without_row.push((file, key, content));
            }
        }
        say_moved(source.0, moved, warnings);
        if let Some(size) = size {
            say_without_row(without_row, size, warnings);
        }
        Ok(vocabulary)
    }

    /// Assembles the vocabulary of the file alone: without special tokens, and without tokens that only the
    /// configuration names.
    pub(crate) fn of_file(
        hf: &'a HfJson,
        path: PathBuf,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self> {
        Self::within(hf, path, None, warnings)
    }

    fn within(
        hf: &'a HfJson,
        path: PathBuf,
        rows: Option<u64>,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self> {
        let base = hf.id_vocab(path)?;
        let by_text = base.iter().map(|(text, id)| (text.as_str(), *id)).collect();
        let mut vocabulary = Self {
            base,
            added: Vec::new(),
            special: Vec::new(),
            by_text,
            added_ids: HashMap::new(),
            last_added: None,
        };
        let (mut moved, mut beyond) = (Vec::new(), Vec::new());
        for token in &hf.added_tokens {
            let (text, stated) = (token.content.clone(), token.id);
            // A token that the file has elsewhere is not only one too many.
            let placement = vocabulary.add_within(token.clone(), rows.filter(|&rows| stated >= rows));
            match (placement, vocabulary.added_ids.get(&text)) {
                (TokenPlacement::At(used), _) if used != stated => {
                    moved.push(vocabulary.moved(text, stated, used));
                }
                (TokenPlacement::Nowhere, _) => beyond.push((FILE, "added_tokens".to_owned(), text)),
                (TokenPlacement::Known, Some(&used)) if used != stated => {
                    warnings.push(TokenizerWarning::AddedTokenTwice { token: text, stated, used });
                }
                _ => {}
            }
        }
        say_moved(FILE, moved, warnings);
        if let Some(rows) = rows {
            say_without_row(beyond, rows, warnings);
        }
        Ok(vocabulary)
    }

    /// Describes a token whose id is another one than the file declares.
    pub(crate) fn moved(&self, token: String, stated: u64, used: u64) -> Moved {
        let holder = self.base.iter().find(|(_, id)| *id == stated).map(|(text, _)| text.clone());
        Moved { token, stated, used, holder }
    }

    /// Adds a token unless its text was added before, or its id would be `size` or more.
    fn add_within(&mut self, token: AddedToken, size: Option<u64>) -> TokenPlacement {
        if token.content.is_empty() || self.added_ids.contains_key(&token.content) {
            return TokenPlacement::Known;
        }
        let n_base = self.base.len() as u64;
        let id = match (self.by_text.get(token.content.as_str()), self.last_added) {
            (Some(&id), _) => Some(id),
            (None, Some(last)) if last >= n_base => last.checked_add(1),
            (None, _) => Some(n_base),
        };
        let is_known = self.by_text.contains_key(token.content.as_str());
        let Some(id) = id.filter(|&id| is_known || size.is_none_or(|size| id < size)) else {
            return TokenPlacement::Nowhere;
        };
        self.last_added = self.last_added.max(Some(id));
        self.added_ids.insert(token.content.clone(), id);
        self.added.push(Added { id, token });
        TokenPlacement::At(id)
    }

    /// Returns the id of a token, added or not.
    pub(crate) fn id(&self, text: &str) -> Option<u64> {
        self.added_ids.get(text).or_else(|| self.by_text.get(text)).copied()
    }

    /// Returns true if the text is that of an added token.
    pub(crate) fn is_added(&self, text: &str) -> bool {
        self.added_ids.contains_key(text)
    }

    /// Calls `visit` with the result of each merge, by rank. The parts and the result of every merge must be tokens of
    /// the model, as the format's own reader requires.
    ///
    /// # Errors
    /// A merge that does not consist of two tokens, or whose parts or result are unknown.
    pub(crate) fn each_merge(
        &self,
        hf: &HfJson,
        directory: &Directory<'_>,
        mut visit: impl FnMut(&'a str),
    ) -> Result<()> {
        let path = || directory.join(FILE);
        let mut merged = String::new();
        for (rank, merge) in hf.model.merges.iter().enumerate() {
            let known = |token: &str| {
                let unknown = || TokenizerError::UnknownMerge { path: path(), rank, token: token.to_owned() };
                self.by_text.get_key_value(token).map(|(&text, _)| text).ok_or_else(unknown)
            };
            let malformed = || TokenizerError::MalformedMerge { path: path(), rank, merge: merge.to_text() };
            let (left, right) = merge.parts().ok_or_else(malformed)?;
            known(left)?;
            known(right)?;
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            visit(known(&merged)?);
        }
        Ok(())
    }

    /// Returns true if the text is that of a special token.
    pub(crate) fn is_special(&self, text: &str) -> bool {
        self.special.iter().any(|special| special == text)
    }

    /// Number of tokens; each text counts once.
    pub(crate) fn n_tokens(&self) -> u64 {
        let new = self.added.iter().filter(|added| !self.by_text.contains_key(added.token.content.as_str()));
        self.base.len() as u64 + new.count() as u64
    }
}

fn say_moved(file: &'static str, moved: Vec<Moved>, warnings: &mut Vec<TokenizerWarning>) {
    if !moved.is_empty() {
        warnings.push(TokenizerWarning::AddedTokensMoved { file, moved });
    }
}

/// Warns about tokens without a row, once for each key that names some.
pub(super) fn say_without_row(
    mut lost: Vec<(&'static str, String, String)>,
    size: u64,
    warnings: &mut Vec<TokenizerWarning>,
) {
    while let Some((file, key, _)) = lost.first().cloned() {
        let (own, rest): (Vec<_>, Vec<_>) = lost.into_iter().partition(|row| row.0 == file && row.1 == key);
        let tokens = own.into_iter().map(|row| row.2).collect();
        warnings.push(TokenizerWarning::AddedTokensWithoutRow { file, key, tokens, size });
        lost = rest;
    }
}

/// Returns true for the key of a role whose missing token is reported with the role.
pub(super) fn is_role(key: &str) -> bool {
    ROLES.contains(&key) && key != "cls_token"
}

/// A special token, with the file and the key that name it; `None` for one that the class has by default.
struct NamedToken {
    text: String,
    source: Option<(&'static str, String)>,
}

/// Returns the texts of all special tokens: from the configuration, else `special_tokens_map.json`, else the class's
/// own.
pub(super) fn special_texts(directory: &Directory<'_>, config: &Json) -> Result<Vec<String>> {
    Ok(special_tokens(directory, config)?.into_iter().map(|token| token.text).collect())
}

/// Returns the special tokens that files name: file, key, text.
pub(super) fn named_tokens(
    directory: &Directory<'_>,
    config: &Json,
) -> Result<Vec<(&'static str, String, String)>> {
    let named = special_tokens(directory, config)?.into_iter();
    Ok(named.filter_map(|token| token.source.map(|(file, key)| (file, key, token.text))).collect())
}

/// Returns the special tokens of single roles: of the configuration, else of `special_tokens_map.json`, else `defaults`.
pub(super) fn role_texts(
    directory: &Directory<'_>,
    config: &Json,
    defaults: &[(&'static str, &str)],
) -> Result<Vec<(&'static str, String)>> {
    let map = special_map(directory, config)?;
    let text = |role: &'static str| {
        let text = match map.get(role).or_else(|| config.get(role)) {
            Some(entry) => token_text(entry),
            None => defaults.iter().find(|row| row.0 == role).map(|row| row.1),
        };
        text.map(|text| (role, text.to_owned()))
    };
    Ok(ROLES.into_iter().filter_map(text).collect())
}

/// Returns `special_tokens_map.json`, unless the configuration is complete without it.
fn special_map(directory: &Directory<'_>, config: &Json) -> Result<Json> {
    match config.get("added_tokens_decoder") {
        Some(_) => Ok(Json::Null),
        None => directory.tree(SPECIAL_TOKENS_MAP),
    }
}

fn special_tokens(directory: &Directory<'_>, config: &Json) -> Result<Vec<NamedToken>> {
    let map = special_map(directory, config)?;
    let defaults = match config.get("tokenizer_class").and_then(Json::as_str) {
        Some(class) => class_defaults(class),
        None => model_class(&directory.tree("config.json")?).map_or(&[][..], class_defaults),
    };
    let mut tokens: Vec<NamedToken> = Vec::new();
    let mut push = |text: &str, source: Option<(&'static str, &str)>| {
        if !text.is_empty() && !tokens.iter().any(|known| known.text == text) {
            let source = source.map(|(file, key)| (file, key.to_owned()));
            tokens.push(NamedToken { text: text.to_owned(), source });
        }
    };
    let sources = [(SPECIAL_TOKENS_MAP, &map), (CONFIG, config)];
    for role in ROLES {
        match sources.iter().find_map(|(file, json)| Some((*file, json.get(role)?))) {
            Some((file, entry)) => token_text(entry).map(|text| push(text, Some((file, role)))),
            None => defaults.iter().find(|row| row.0 == role).map(|row| push(row.1, None)),
        };
    }
    for (file, json) in sources {
        let lists = LISTS.iter().filter_map(|&key| Some((key, json.get(key)?)));
        for (key, listed) in lists {
            // A table has roles that only one model has, such as its image token.
            let of_list = listed.as_array().into_iter().flatten();
            let of_table = listed.as_object().into_iter().flatten().map(|(_, entry)| entry);
            of_list.chain(of_table).filter_map(token_text).for_each(|text| push(text, Some((file, key))));
        }
        let own = json.as_object().into_iter().flatten();
        for (key, entry) in own.filter(|(key, _)| key.ends_with("_token") && !ROLES.contains(&key.as_str())) {
            if let Some(text) = token_text(entry) {
                push(text, Some((file, key)));
            }
        }
    }
    Ok(tokens)
}

fn class_defaults(class: &str) -> &'static [(&'static str, &'static str)] {
    let stem = class.strip_suffix("Fast").unwrap_or(class);
    let stem = stem.strip_suffix("Tokenizer").unwrap_or(stem);
    CLASS_DEFAULTS.iter().find(|row| row.0 == stem).map_or(&[], |row| row.1)
}

/// Returns the tokenizer class that transformers selects by `model_type`.
fn model_class(config: &Json) -> Option<&'static str> {
    Some(match config.get("model_type")?.as_str()? {
        "gpt2" | "starcoder2" | "gpt_bigcode" => "GPT2",
        "gpt_neox" | "olmo" | "stablelm" => "GPTNeoX",
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => "Qwen2",
        "gemma" | "gemma2" | "gemma3_text" => "Gemma",
        "phi" => "CodeGen",
        "bert" => "Bert",
        "distilbert" => "DistilBert",
        "roberta" => "Roberta",
        "xlm-roberta" | "xlm_roberta" => "XLMRoberta",
        _ => return None,
    })
}
/// Returns the tokens of `added_tokens_decoder` with their ids.
fn decoder_tokens(listed: &Json, directory: &Directory<'_>) -> Result<Vec<(u64, AddedToken)>> {
    let path = || directory.join(CONFIG);
    let token = |(id, token): (&String, &Json)| {
        let key = "added_tokens_decoder";
        let bad = |_| TokenizerError::BadId { path: path(), key, found: id.clone() };
        let token = AddedToken::deserialize(token);
        Ok((id.parse().map_err(bad)?, token.map_err(|source| TokenizerError::Json { path: path(), source })?))
    };
    listed.as_object().into_iter().flatten().map(token).collect()
}

/// Returns the tokens of `added_tokens.json`, which transformers reads if the configuration lists none.
fn added_tokens(directory: &Directory<'_>) -> Result<Vec<(u64, AddedToken)>> {
    let listed = directory.tree(ADDED_TOKENS)?;
    let token = |(content, id): (&String, &Json)| {
        let bad =
            || TokenizerError::BadId { path: directory.join(ADDED_TOKENS), key: "id", found: id.to_string() };
        Ok((id.as_u64().ok_or_else(bad)?, AddedToken { content: content.clone(), ..AddedToken::default() }))
    };
    listed.as_object().into_iter().flatten().map(token).collect()
}
