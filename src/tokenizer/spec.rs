//! The `[tokenizer]` table of a card as data, and the request that `build` takes.

use std::fmt;

use indexmap::IndexMap;
use serde::Deserialize;

use crate::core::limits::Limits;
use crate::gguf::Value;

macro_rules! modes {
    ($( $(#[$doc:meta])* $variant:ident = $name:literal, )*) => {
        /// Where a vocabulary comes from and which keys it becomes; a closed list. Each mode owns its key order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
        pub enum Mode {
            $( $(#[$doc])* #[serde(rename = $name)] $variant, )*
        }

        impl Mode {
            /// Every mode.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The name that cards use.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )*
                }
            }
        }
    };
}

modes! {
    /// No vocabulary.
    None = "none",
    /// Byte-level BPE from tokenizer.json.
    Bpe = "bpe",
    /// As `Bpe`; added tokens are neither decoded nor guessed to be special.
    BpePlainAdded = "bpe_plain_added",
    /// Byte-level BPE of words without merges over them.
    Whitespace = "whitespace",
    /// Llama with k-mers of DNA.
    HybridDna = "hybriddna",
    /// Byte-level BPE from tiktoken ranks.
    Tiktoken = "tiktoken",
    /// SentencePiece model file.
    Spm = "spm",
    /// SentencePiece as Phi 3 has it.
    SpmPhi3 = "spm_phi3",
    /// SentencePiece as InternLM 2 has it.
    SpmInternlm2 = "spm_internlm2",
    /// SentencePiece as InternLM 3 has it.
    SpmInternlm3 = "spm_internlm3",
    /// SentencePiece as Arctic has it.
    SpmArctic = "spm_arctic",
    /// SentencePiece as ChatGLM 3 has it.
    SpmChatglm3 = "spm_chatglm3",
    /// tokenizer.json with byte fallback, written without scores.
    SpmXverse = "spm_xverse",
    /// tokenizer.json with byte fallback, scores from the merge ranks.
    LlamaHf = "llama_hf",
    /// Gemma 4: raw UTF-8 pieces and merges.
    Gemma4 = "gemma4",
    /// SentencePiece unigram model (T5).
    Unigram = "unigram",
    /// XLM-RoBERTa's reordered SentencePiece model.
    Xlmr = "xlmr",
    /// WordPiece (BERT).
    WordPiece = "wordpiece",
    /// RWKV's world vocabulary.
    RwkvWorld = "rwkv_world",
    /// PLaMo's tokenizer.jsonl.
    Plamo = "plamo",
    /// Mistral's tekken.json or versioned SentencePiece file.
    Mistral = "mistral",
    /// A vocabulary that comes with the converter.
    Builtin = "builtin",
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The `[tokenizer]` table as a card holds it: expressions are still text.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerSpec {
    /// Modes in order; the first whose files exist and parse wins.
    #[serde(rename = "try")]
    pub modes: Vec<ModeEntry>,
    /// Expression: tokens to write, the rest padded. Without it `vocab_size`, else the file's own count.
    pub size: Option<String>,
    /// The number of tokens is rounded up to a multiple of this.
    pub pad_multiple: Option<u64>,
    /// Expression: rows of the token type embedding (BERT).
    pub token_type_count: Option<String>,
    /// Special ids by role, used where the files name none.
    pub special: IndexTable<SpecialValue>,
    /// Special ids by role that win over the files.
    pub force: IndexTable<SpecialValue>,
    /// Roles that are read from the files, instead of all.
    pub types: Option<Vec<String>>,
    /// Tokens that become control tokens.
    pub control: Vec<String>,
    /// Tokens that become user-defined tokens.
    pub user_defined: Vec<String>,
    /// Name of a list of special tokens (tiktoken).
    pub specials_list: Option<String>,
    /// Where the chat template comes from: `file` (default) or `none`.
    pub template: Option<String>,
    /// `target`: read from the directory of the target model.
    pub from: Option<String>,
    /// Rows before the vocabulary.
    pub before: Vec<Row>,
    /// Rows after the vocabulary.
    pub after: Vec<Row>,
}

/// One entry of `try`: a mode, or a mode with conditions.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ModeEntry {
    /// Just the mode.
    Plain(Mode),
    /// A mode with more.
    Detailed(ModeDetails),
}

impl ModeEntry {
    /// The mode of either form.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Plain(mode) => *mode,
            Self::Detailed(details) => details.mode,
        }
    }
}

/// The long form of an entry of `try`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeDetails {
    /// The mode.
    pub mode: Mode,
    /// Expression: the mode is tried if it is true.
    pub when: Option<String>,
    /// File names instead of the mode's own.
    #[serde(default)]
    pub files: Vec<String>,
    /// Special ids of this mode, before the table's.
    #[serde(default)]
    pub special: IndexTable<SpecialValue>,
    /// Name of a list of special tokens (tiktoken).
    pub specials_list: Option<String>,
    /// Name of the built-in vocabulary.
    pub name: Option<String>,
    /// Rows after this mode's keys.
    #[serde(default)]
    pub after: Vec<Row>,
}

/// A token named by text, or by id.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum SpecialValue {
    /// Its id.
    Id(u64),
    /// Its text, looked up among the added tokens.
    Token(String),
}

/// `[key, expression]` or `[key, expression, condition]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct Row {
    /// The full GGUF key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The row counts if this is true.
    pub when: Option<String>,
}

impl TryFrom<Vec<String>> for Row {
    type Error = String;

    fn try_from(row: Vec<String>) -> Result<Self, String> {
        match <[String; 2]>::try_from(row) {
            Ok([key, value]) => Ok(Self { key, value, when: None }),
            Err(row) => match <[String; 3]>::try_from(row) {
                Ok([key, value, when]) => Ok(Self { key, value, when: Some(when) }),
                Err(row) => Err(format!("a row has two or three members, found {}", row.len())),
            },
        }
    }
}

/// An ordered table with text keys.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexTable<T>(pub IndexMap<String, T>);

impl<T> Default for IndexTable<T> {
    fn default() -> Self {
        Self(IndexMap::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for IndexTable<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
            type Value = IndexTable<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut table = IndexMap::new();
                while let Some((key, value)) = map.next_entry()? {
                    table.insert(key, value);
                }
                Ok(IndexTable(table))
            }
        }
        deserializer.deserialize_map(Visitor(std::marker::PhantomData))
    }
}

/// Evaluates what a card leaves as text. The owner of the expression language implements it.
pub trait Evaluator {
    /// Its error.
    type Error;

    /// Truth of a condition.
    ///
    /// # Errors
    /// The expression's.
    fn truth(&mut self, expression: &str) -> Result<bool, Self::Error>;

    /// The count that an expression gives, if any.
    ///
    /// # Errors
    /// The expression's.
    fn count(&mut self, expression: &str) -> Result<Option<u64>, Self::Error>;

    /// The value of a metadata row in the type of its key; nothing for null.
    ///
    /// # Errors
    /// The expression's.
    fn value(&mut self, key: &str, expression: &str) -> Result<Option<Value>, Self::Error>;
}

impl TokenizerSpec {
    /// Evaluates the table into a request: modes whose condition is false are gone, rows are values. A `size` that
    /// the card does not give stays empty: the caller sets it to the configuration's `vocab_size`.
    ///
    /// # Errors
    /// Those of the expressions.
    pub fn request<E: Evaluator>(&self, eval: &mut E) -> Result<BuildRequest, E::Error> {
        fn rows<E: Evaluator>(rows: &[Row], eval: &mut E) -> Result<Vec<(String, Value)>, E::Error> {
            let mut values = Vec::with_capacity(rows.len());
            for row in rows {
                if row.when.as_deref().map_or(Ok(true), |when| eval.truth(when))?
                    && let Some(value) = eval.value(&row.key, &row.value)?
                {
                    values.push((row.key.clone(), value));
                }
            }
            Ok(values)
        }
        let mut request = BuildRequest {
            size: self.size.as_deref().map_or(Ok(None), |size| eval.count(size))?,
            pad_multiple: self.pad_multiple,
            force: self.force.0.clone().into_iter().collect(),
            types: self.types.clone(),
            control: self.control.clone(),
            user_defined: self.user_defined.clone(),
            no_template: self.template.as_deref() == Some("none"),
            before: rows(&self.before, eval)?,
            after: rows(&self.after, eval)?,
            ..BuildRequest::default()
        };
        for entry in &self.modes {
            let mut mode = ModeRequest::new(entry.mode());
            mode.special = self.special.0.clone().into_iter().collect();
            if let ModeEntry::Detailed(details) = entry {
                if !details.when.as_deref().map_or(Ok(true), |when| eval.truth(when))? {
                    continue;
                }
                mode.files.clone_from(&details.files);
                mode.special.splice(0..0, details.special.0.clone());
                mode.after = rows(&details.after, eval)?;
            }
            request.modes.push(mode);
        }
        Ok(request)
    }
}

/// One mode to try.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeRequest {
    /// The mode.
    pub mode: Mode,
    /// File names instead of the mode's own.
    pub files: Vec<String>,
    /// Special ids by role, used where the files name none, in order.
    pub special: Vec<(String, SpecialValue)>,
    /// Rows after this mode's keys.
    pub after: Vec<(String, Value)>,
}

impl ModeRequest {
    /// The mode with nothing else.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self { mode, files: Vec::new(), special: Vec::new(), after: Vec::new() }
    }
}

/// Everything `build` needs besides the directory.
#[derive(Clone, Debug, Default)]
pub struct BuildRequest {
    /// Modes in order; the first whose files exist and parse wins.
    pub modes: Vec<ModeRequest>,
    /// Tokens to write (the rows of the embedding); the file's own count if empty.
    pub size: Option<u64>,
    /// The number of tokens is rounded up to a multiple of this.
    pub pad_multiple: Option<u64>,
    /// Special ids by role that win over the files.
    pub force: Vec<(String, SpecialValue)>,
    /// Roles that are read from the files, instead of all.
    pub types: Option<Vec<String>>,
    /// Tokens that become control tokens.
    pub control: Vec<String>,
    /// Tokens that become user-defined tokens.
    pub user_defined: Vec<String>,
    /// No chat template is written.
    pub no_template: bool,
    /// A chat template that replaces the files' own (`--chat-template`).
    pub chat_template: Option<String>,
    /// Name of the pre-tokenizer instead of the identified one (`--pre`).
    pub pre: Option<String>,
    /// Rows before the vocabulary.
    pub before: Vec<(String, Value)>,
    /// Rows after the vocabulary.
    pub after: Vec<(String, Value)>,
    /// Caps on file sizes.
    pub limits: Limits,
}

impl BuildRequest {
    /// A request for these modes and nothing special.
    #[must_use]
    pub fn of(modes: &[Mode]) -> Self {
        Self { modes: modes.iter().copied().map(ModeRequest::new).collect(), ..Self::default() }
    }
}
