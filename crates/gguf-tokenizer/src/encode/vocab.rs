//! Vocabulary described by the keys of a GGUF file: tokens by id and by text, special ids, tokens added to text.
//!
//! # Exactness
//! Defaults and corrections of `llama_vocab::impl::load`, llama.cpp 0.5.0: ids of special tokens by kind of vocabulary,
//! tokens that become control tokens because of their text.

use std::collections::HashMap;

use gguf_format::name_fault::PHI_3;
use gguf_format::{Array, Metadata, Value};

use super::EncodeError;
use crate::byte_alphabet::char_of;
use crate::emit::{MAX_TOKENS, TokenType};
use crate::pretokenizer::{PreTable, PreTokenizer, nearest_name};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
/// A kind of vocabulary with a pre-tokenizer of the same name.
const GEMMA4: &str = "gemma4";
/// Byte-level BPE with words of DNA.
const HYBRID_DNA: &str = "hybriddna";
/// A pre-tokenizer whose file may lack merges.
pub(super) const KIMI: &str = "kimi-k2";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

const SPECIAL: [&str; 4] = [
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.seperator_token_id",
];

/// Algorithm that converts text to tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VocabModel {
    /// Pairs merged by score (SentencePiece BPE): `llama`.
    Spm,
    /// Pairs merged by rank: `gpt2`, `gemma4`.
    Bpe,
    /// Longest match within words: `bert`.
    WordPiece,
    /// Best sum of scores: `t5`.
    Unigram,
    /// Longest match: `rwkv`.
    Rwkv,
    /// Best sum of whole-numbered scores: `plamo2`.
    Plamo,
}

/// Texts of tokens that end a text; they are control tokens regardless of their type.
const ENDS: [&str; 23] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
];

/// Returns true if the runtime ends a text at a token because of the token's text.
pub(crate) fn ends_generation(token: &[u8]) -> bool {
    ENDS.iter().any(|end| end.as_bytes() == token)
}

/// Texts of control tokens of code models, with the keys of their ids: searched if none of these keys exists.
const FILL_IN: [(&[&str], &[&str]); 6] = [
    (
        &["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        &["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        &["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (&["tokenizer.ggml.fim_pad_token_id"], &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (
        &["tokenizer.ggml.fim_rep_token_id"],
        &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    ),
    (&["tokenizer.ggml.fim_sep_token_id"], &["<|file_sep|>"]),
];

/// Texts of tokens that become user-defined, so that they are always recognized: visible parts of a chat.
const SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Whitespace that a special token absorbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strip {
    /// Whitespace before the token.
    Left,
    /// Whitespace after the token.
    Right,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Vocab {
    /// Algorithm that converts text to tokens.
    pub(crate) model: VocabModel,
    /// True if tagged text consists of words of DNA.
    pub(crate) has_dna: bool,
    /// Table row of the pre-tokenizer, for [`VocabModel::Bpe`].
    pub(crate) pre: Option<&'static PreTokenizer>,
    tokens: Vec<Box<[u8]>>,
    scores: Vec<f32>,
    kinds: Vec<TokenType>,
    ids: HashMap<Box<[u8]>, u32>,
    strips: HashMap<u32, Strip>,
    /// Id of the token that starts a text.
    pub(crate) bos: Option<u32>,
    /// Id of the token that ends a text.
    pub(crate) eos: Option<u32>,
    /// Id of the token for text without tokens.
    pub(crate) unk: Option<u32>,
    /// Id of the token between two texts.
    pub(crate) sep: Option<u32>,
    /// True if a text starts with `bos`.
    pub(crate) add_bos: bool,
    /// True if a text ends with `eos`.
    pub(crate) add_eos: bool,
    /// True if a text ends with `sep`.
    pub(crate) add_sep: bool,
    /// True if a space is put in front of a text.
    pub(crate) add_space_prefix: bool,
    /// True if runs of spaces are collapsed, and spaces at both ends removed.
    pub(crate) remove_extra_whitespaces: bool,
    /// True if spaces are written as `▁` in tokens.
    pub(crate) escape_whitespaces: bool,
    /// True if text is converted to lower case.
    pub(crate) lowercase: bool,
    pub(crate) strip_accents: bool,
    /// SentencePiece's normalization map, as stored; empty if the file has none.
    pub(crate) precompiled_charsmap: Vec<u8>,
}

fn model_of(name: &str) -> Result<VocabModel, EncodeError> {
    match name {
        "llama" => Ok(VocabModel::Spm),
        "gpt2" | "whitespace" | GEMMA4 | HYBRID_DNA => Ok(VocabModel::Bpe),
        "bert" => Ok(VocabModel::WordPiece),
        "t5" => Ok(VocabModel::Unigram),
        "rwkv" => Ok(VocabModel::Rwkv),
        "plamo2" => Ok(VocabModel::Plamo),
        _ => {
            let expected =
                "`llama`, `gpt2`, `gemma4`, `whitespace`, `hybriddna`, `bert`, `t5`, `rwkv` and `plamo2`";
            Err(EncodeError::Model { found: name.to_owned(), expected })
        }
    }
}

/// Returns the pre-tokenizer of a vocabulary with merges.
fn pre_of(
    model: VocabModel,
    name: &str,
    metadata: &Metadata,
) -> Result<Option<&'static PreTokenizer>, EncodeError> {
    let name = match model {
        // ref: a file of this kind has the pre-tokenizer of the same name, regardless of its key
        VocabModel::Bpe if name == GEMMA4 => GEMMA4,
        // ref: `default` if the key is missing
        VocabModel::Bpe => optional(metadata, PRE, "string", Value::as_str)?.unwrap_or("default"),
        _ => return Ok(None),
    };
    let table = PreTable::get();
    let pre = table.pre(name).filter(|pre| table.steps(pre).is_some());
    pre.map(Some).ok_or_else(|| EncodeError::Pre { found: name.to_owned(), nearest: nearest_name(name) })
}

fn tokens(metadata: &Metadata) -> Result<Vec<Box<[u8]>>, EncodeError> {
    let missing = EncodeError::MissingKey { key: TOKENS, expected: "array of strings" };
    let tokens = strings(metadata, TOKENS)?.ok_or(missing)?;
    if tokens.len() as u64 > MAX_TOKENS {
        return Err(EncodeError::TooManyTokens { found: tokens.len(), limit: MAX_TOKENS });
    }
    Ok(tokens.iter().map(|token| token.clone().into_boxed_slice()).collect())
}

/// Returns the default ids of [`SPECIAL`].
fn default_ids(model: VocabModel, name: &str, pre: Option<&PreTokenizer>) -> [Option<u32>; 4] {
    match model {
        VocabModel::Spm | VocabModel::Plamo => [Some(1), Some(2), Some(0), None],
        VocabModel::WordPiece => [Some(101), None, Some(100), Some(102)],
        VocabModel::Unigram => [None, Some(1), Some(2), None],
        VocabModel::Rwkv => [None; 4],
        VocabModel::Bpe if name == GEMMA4 => [None; 4],
        VocabModel::Bpe => [Some(11).filter(|_| pre.is_some_and(|pre| pre.has_bos)), Some(11), None, None],
    }
}

/// Returns the ids of [`SPECIAL`] in a vocabulary of `n` tokens.
fn special_ids(
    metadata: &Metadata,
    defaults: [Option<u32>; 4],
    n: usize,
) -> Result<[Option<u32>; 4], EncodeError> {
    let mut special = defaults;
    for (slot, key) in special.iter_mut().zip(SPECIAL) {
        // ref: a default or an id beyond the tokens is ignored
        *slot = slot.filter(|&id: &u32| (id as usize) < n);
        let id = optional(metadata, key, "integer", Value::as_u64)?;
        *slot = id.and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < n).or(*slot);
    }
    Ok(special)
}

impl Vocab {
    /// Reads the keys.
    ///
    /// # Errors
    /// Keys that are missing, of another type or too short; an unknown kind of vocabulary or pre-tokenizer.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<Self, EncodeError> {
        let name = required(metadata, MODEL, "string", Value::as_str)?;
        let model = model_of(name)?;
        let pre = pre_of(model, name, metadata)?;
        let tokens = tokens(metadata)?;
        let n = tokens.len();
        let scores = scores(metadata, n)?;
        let kinds = kinds(metadata, n)?;
        let mut ids = HashMap::with_capacity(n);
        for (id, token) in (0..).zip(&tokens) {
            // ref: of tokens with the same text, the last one is found
            if !token.is_empty() {
                ids.insert(token.clone(), id);
            }
        }
        let is_bpe = model == VocabModel::Bpe;
        let escape = pre.is_some_and(|pre| pre.normalizer.as_deref() == Some("metaspace"));
        let mut defaults = default_ids(model, name, pre);
        if model == VocabModel::WordPiece {
            // ref: the ids of BERT's own vocabularies, regardless of the tokens
            for (id, text) in defaults.iter_mut().zip(["[CLS]", "", "[UNK]", "[SEP]"]) {
                *id = ids.get(text.as_bytes()).copied().or(*id);
            }
        }
        let [bos, eos, unk, sep] = special_ids(metadata, defaults, n)?;
        // With a token for every byte, no text has an unknown part.
        let has_byte = |byte| ids.contains_key(char_of(byte).to_string().as_bytes());
        let unk = unk.filter(|_| !is_bpe || escape || !(0..=u8::MAX).all(has_byte));
        let flag = |key, default| Ok(optional(metadata, key, "bool", Value::as_bool)?.unwrap_or(default));
        let keeps_case = pre.is_some_and(|pre| pre.name == "whitespace");
        let lowercase = flag("tokenizer.ggml.normalizer.lowercase", !keeps_case)?;
        let always_bos = pre.is_some_and(|pre| pre.name == GEMMA4 || pre.name == "granite-embed-multi-311m");
        let add_bos = match model {
            VocabModel::Spm | VocabModel::WordPiece => true,
            VocabModel::Unigram | VocabModel::Rwkv | VocabModel::Plamo => false,
            VocabModel::Bpe => pre.is_some_and(|pre| pre.add_bos),
        };
        // ref: these two kinds add no tokens to texts, regardless of the keys
        let is_bare = matches!(model, VocabModel::Rwkv | VocabModel::Plamo);
        let mut vocab = Self {
            model,
            has_dna: name == HYBRID_DNA,
            pre,
            bos,
            eos,
            unk,
            sep,
            // ref: the key cannot turn it off for Gemma 4
            add_bos: (flag("tokenizer.ggml.add_bos_token", add_bos)? || always_bos) && !is_bare,
            add_eos: flag("tokenizer.ggml.add_eos_token", model == VocabModel::Unigram)? && !is_bare,
            add_sep: flag("tokenizer.ggml.add_sep_token", model == VocabModel::WordPiece)?,
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix", model == VocabModel::Spm)? && !is_bpe,
            remove_extra_whitespaces: flag("tokenizer.ggml.remove_extra_whitespaces", false)?,
            escape_whitespaces: !is_bpe || escape,
            lowercase,
            strip_accents: flag("tokenizer.ggml.normalizer.strip_accents", lowercase)?,
            precompiled_charsmap: charsmap(metadata)?,
            tokens,
            scores,
            kinds,
            ids,
            strips: HashMap::new(),
        };
        vocab.correct_kinds(metadata);
        let text = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
        vocab.set_strips(text("general.architecture"), text("general.name"));
        Ok(vocab)
    }

    /// Corrects types that do not fit the text: files mark tokens that end a text as normal.
    fn correct_kinds(&mut self, metadata: &Metadata) {
        for text in ENDS {
            self.set_kind(text, TokenType::Control);
        }
        for (keys, texts) in FILL_IN {
            if !keys.iter().any(|key| metadata.contains(key)) {
                let first = texts.iter().filter_map(|text| Some((self.id(text.as_bytes())?, text))).min();
                if let Some((_, text)) = first {
                    self.set_kind(text, TokenType::Control);
                }
            }
        }
        for text in SHOWN {
            self.set_kind(text, TokenType::UserDefined);
        }
        let has = |text: &str| self.id(text.as_bytes()).is_some();
        let calls = has("<|call|>") || has("<|calls|>");
        if calls && (has("<|return|>") || has("<|flush|>")) {
            self.set_kind("<|end|>", TokenType::UserDefined);
        }
        if self.id(b"<|tool_response>").is_some() {
            self.set_kind("</s>", TokenType::Normal);
        }
    }

    fn set_kind(&mut self, text: &str, kind: TokenType) {
        if let Some(slot) = self.id(text.as_bytes()).and_then(|id| self.kinds.get_mut(id as usize)) {
            *slot = kind;
        }
    }

    /// Sets the attributes of special tokens, which have no keys: they depend on model names.
    pub(crate) fn set_strips(&mut self, arch: &str, name: &str) {
        let name = name.to_ascii_lowercase();
        let pre = self.pre.map_or("", |pre| pre.name.as_str());
        let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
        if has(pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
            || has(arch, &["nomic-bert-moe", "jina-bert-v3"])
        {
            self.strips.extend(self.id(b"<mask>").map(|id| (id, Strip::Left)));
        } else if has(&name, &PHI_3) {
            let special =
                |kind| matches!(kind, TokenType::Control | TokenType::UserDefined | TokenType::Unknown);
            let plain = ["<unk>", "<s>", "<|endoftext|>"].map(|text| self.id(text.as_bytes()));
            let all = (0..).zip(&self.kinds).filter(|(_, kind)| special(**kind)).map(|(id, _)| id);
            let found = all.chain(self.id(b"</s>")).filter(|&id| !plain.contains(&Some(id)));
            self.strips = found.map(|id| (id, Strip::Right)).collect();
        } else if has(&name, &["modern-bert"]) {
            self.strips.extend(self.id(b"[MASK]").map(|id| (id, Strip::Left)));
        }
    }

    /// Returns the whitespace that a special token absorbs.
    pub(crate) fn strip(&self, id: u32) -> Option<Strip> {
        self.strips.get(&id).copied()
    }

    /// Id of the token that starts a text, if the keys require one.
    pub(crate) fn start_of_text(&self) -> Option<u32> {
        self.bos.filter(|_| self.add_bos)
    }

    /// Id of the token that ends a text, if the keys require one.
    pub(crate) fn end_of_text(&self) -> Option<u32> {
        let separator = self.sep.filter(|_| self.add_sep && self.model == VocabModel::WordPiece);
        separator.or(self.eos.filter(|_| self.add_eos))
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the text of a token as stored in the file.
    pub(crate) fn token(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).map(|token| &**token)
    }

    /// Returns the score of a token; 0 if the file has none.
    pub(crate) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    pub(crate) fn kind(&self, id: u32) -> TokenType {
        self.kinds.get(id as usize).copied().unwrap_or(TokenType::Unused)
    }

    /// Returns true if this kind of vocabulary adds no tokens to texts, regardless of the keys.
    pub(crate) fn is_bare(&self) -> bool {
        matches!(self.model, VocabModel::Rwkv | VocabModel::Plamo)
    }

    /// Returns true if the runtime's default ids of begin and end token have another meaning in most vocabularies of
    /// this kind.
    pub(crate) fn has_arbitrary_defaults(&self) -> bool {
        self.model == VocabModel::Bpe
    }

    /// Returns true for SentencePiece's pieces.
    pub(crate) fn is_of_pieces(&self) -> bool {
        self.model == VocabModel::Spm
    }

    /// Returns true if models with this kind of vocabulary do not generate text.
    pub(crate) fn is_of_encoder(&self) -> bool {
        self.model == VocabModel::WordPiece
    }

    /// Returns the id of a text; the last one if several tokens have it.
    pub(crate) fn id(&self, text: &[u8]) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Returns the id of the token of one byte: `<0xNN>`, or else the byte itself.
    pub(crate) fn byte(&self, byte: u8) -> Option<u32> {
        self.id(format!("<0x{byte:02X}>").as_bytes()).or_else(|| self.id(&[byte]))
    }
}

fn optional<'a, T>(
    metadata: &'a Metadata,
    key: &'static str,
    expected: &'static str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, EncodeError> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    let wrong = || EncodeError::KeyType { key, expected, found: value.value_type().to_string() };
    read(value).ok_or_else(wrong).map(Some)
}

fn required<'a, T>(
    metadata: &'a Metadata,
    key: &'static str,
    expected: &'static str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<T, EncodeError> {
    optional(metadata, key, expected, read)?.ok_or(EncodeError::MissingKey { key, expected })
}

/// Returns an array of strings, if the key exists.
pub(super) fn strings<'a>(
    metadata: &'a Metadata,
    key: &'static str,
) -> Result<Option<&'a [Vec<u8>]>, EncodeError> {
    optional(metadata, key, "array of strings", |value| match value.as_array()? {
        Array::String(strings) => Some(strings.as_slice()),
        _ => None,
    })
}

fn scores(metadata: &Metadata, n: usize) -> Result<Vec<f32>, EncodeError> {
    let found = optional(metadata, SCORES, "array of f32 or i32", |value| match value.as_array()? {
        Array::F32(scores) => Some(scores.clone()),
        Array::I32(scores) => Some(scores.iter().map(|&score| score as f32).collect()),
        _ => None,
    })?;
    at_least(SCORES, found, n)
}

fn kinds(metadata: &Metadata, n: usize) -> Result<Vec<TokenType>, EncodeError> {
    let found = optional(metadata, TYPES, "array of i32", |value| match value.as_array()? {
        Array::I32(types) => Some(types.iter().map(|&number| kind(number)).collect()),
        _ => None,
    })?;
    let kinds = at_least(TYPES, found, n)?;
    Ok(if kinds.is_empty() { vec![TokenType::Normal; n] } else { kinds })
}

/// Converts a number of the format to a type; unknown numbers count as unused.
fn kind(number: i32) -> TokenType {
    use TokenType::{Byte, Control, Normal, Unknown, Unused, UserDefined};
    let all = [Normal, Unknown, Control, UserDefined, Unused, Byte];
    all.into_iter().find(|&kind| kind as i32 == number).unwrap_or(Unused)
}

/// Checks that an array is missing, or has an element for each token.
fn at_least<T>(key: &'static str, found: Option<Vec<T>>, n: usize) -> Result<Vec<T>, EncodeError> {
    match found {
        Some(found) if found.len() < n => Err(EncodeError::Length { key, found: found.len(), expected: n }),
        found => Ok(found.unwrap_or_default()),
    }
}

fn charsmap(metadata: &Metadata) -> Result<Vec<u8>, EncodeError> {
    let found = optional(metadata, CHARSMAP, "array of u8", |value| match value.as_array()? {
        Array::U8(bytes) => Some(bytes.clone()),
        Array::I8(bytes) => Some(bytes.iter().map(|&byte| byte as u8).collect()),
        _ => None,
    })?;
    Ok(found.unwrap_or_default())
}
