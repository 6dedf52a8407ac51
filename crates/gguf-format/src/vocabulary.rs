//! Requests for a vocabulary: the closed list of ways to read one, and the keys other than its tokens.
//!
//! Architecture cards make requests and `gguf-tokenizer` fulfils them; this module has their common types.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::Metadata;
use gguf_core::limits::Limits;

macro_rules! named {
    ($(#[$type_doc:meta])* $name:ident { $( $(#[$doc:meta])* $variant:ident = $text:literal, )* }) => {
        $(#[$type_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$doc])* $variant, )*
        }

        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// Name used by cards.
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

named! {
    /// Source of a vocabulary and the keys made from it; a closed list. Each mode has its own key order.
    Mode {
        /// No vocabulary.
        None = "none",
        /// Byte-level BPE from tokenizer.json.
        Bpe = "bpe",
        /// As `Bpe`, but added tokens are neither decoded nor guessed to be special.
        BpePlainAdded = "bpe_plain_added",
        /// Byte-level BPE of words without merges across them.
        Whitespace = "whitespace",
        /// Llama with k-mers of DNA.
        HybridDna = "hybriddna",
        /// Byte-level BPE from tiktoken ranks.
        Tiktoken = "tiktoken",
        /// SentencePiece model file.
        Spm = "spm",
        /// SentencePiece in the form of Phi 3.
        SpmPhi3 = "spm_phi3",
        /// SentencePiece in the form of InternLM 2.
        SpmInternlm2 = "spm_internlm2",
        /// SentencePiece in the form of InternLM 3.
        SpmInternlm3 = "spm_internlm3",
        /// SentencePiece in the form of Arctic.
        SpmArctic = "spm_arctic",
        /// SentencePiece unigram model of ChatGLM-6B.
        SpmChatglm1 = "spm_chatglm1",
        /// SentencePiece in the form of ChatGLM 2 and 3.
        SpmChatglm3 = "spm_chatglm3",
        /// Byte-fallback vocabulary from tokenizer.json, written without scores.
        SpmXverse = "spm_xverse",
        /// Byte-fallback vocabulary from tokenizer.json, with scores from the merge ranks.
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
        /// Vocabulary that is built into the converter.
        Builtin = "builtin",
    }
}

named! {
    /// Facts about a rank vocabulary that only its Python code contains, by model family.
    RankCode {
        /// Qwen, first generation.
        Qwen = "qwen",
        /// GLM-4 under its own names.
        Glm4 = "glm4",
        /// StableLM 2, before it had a tokenizer.json.
        StableLm = "stablelm",
        /// Hunyuan, dense and with experts.
        Hunyuan = "hunyuan",
        /// Kimi K2 and related models, including Moonlight and Kimi-VL.
        KimiK2 = "kimi-k2",
        /// Kimi Linear and K3: as `KimiK2`, but with the tokenizer's own end token.
        KimiLinear = "kimi-linear",
    }
}

impl Mode {
    /// Returns true for a mode whose files may have other names than usual.
    pub fn takes_files(self) -> bool {
        matches!(
            self,
            Self::Spm
                | Self::SpmPhi3
                | Self::SpmArctic
                | Self::SpmInternlm2
                | Self::SpmInternlm3
                | Self::Tiktoken
                | Self::Unigram
                | Self::Xlmr
                | Self::RwkvWorld
                | Self::Plamo
        )
    }

    /// Returns true for a mode whose special tokens may be defined in Python code.
    pub fn takes_rank_code(self) -> bool {
        matches!(self, Self::Bpe | Self::BpePlainAdded | Self::Tiktoken)
    }
}

/// Roles of special tokens that are read from the files of a checkpoint, in order.
pub const FILE_ROLES: [&str; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];

/// A special token, by its text or its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecialToken {
    /// Text, looked up among the tokens.
    Text(String),
    /// Id.
    Id(u32),
}

/// One mode to try.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeRequest {
    /// Mode.
    pub mode: Mode,
    /// File names instead of the mode's own.
    pub files: Vec<String>,
    /// Special tokens by role, used in order if the files name none.
    pub special: Vec<(String, SpecialToken)>,
    /// Python code of a rank vocabulary.
    pub rank_code: Option<RankCode>,
    /// Keys after this mode's own.
    pub after: Metadata,
}

impl ModeRequest {
    /// Creates a request for a mode without other settings.
    pub fn new(mode: Mode) -> Self {
        Self { mode, files: Vec::new(), special: Vec::new(), rank_code: None, after: Metadata::new() }
    }
}

/// Source of the chat template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Template {
    /// The files of the checkpoint.
    #[default]
    Files,
    /// No template is written.
    None,
    /// This text.
    Given(String),
}

/// Files of another directory that replace those of a model's directory: all with these names, even if the other
/// directory lacks them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherFiles {
    /// Other directory.
    pub dir: PathBuf,
    /// Names of the files.
    pub names: Vec<String>,
}

impl OtherFiles {
    /// Returns the directory that supplies the file with this name.
    pub fn dir_of<'a>(own: &'a Path, others: Option<&'a Self>, name: &str) -> &'a Path {
        others
            .filter(|others| others.names.iter().any(|other| other == name))
            .map_or(own, |others| &others.dir)
    }
}

/// Settings for making the `tokenizer.*` keys of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct TokenizerRequest {
    /// Modes in order; the first whose files exist and parse wins.
    pub modes: Vec<ModeRequest>,
    /// Number of tokens to write (the rows of the embedding); by default, the count of the files.
    pub size: Option<u64>,
    /// Number of rows of the embedding, if the weights are known; token ids must be below it.
    pub rows: Option<u64>,
    /// Multiple to which the number of tokens is rounded up.
    pub pad_multiple: Option<u64>,
    /// Special tokens by role that override the files.
    pub force: Vec<(String, SpecialToken)>,
    /// Special tokens by role whose ids are written after all other keys, if the vocabulary has them.
    pub last: Vec<(String, SpecialToken)>,
    /// Roles that are read from the files; by default all of [`FILE_ROLES`].
    pub types: Option<Vec<String>>,
    /// Tokens that become control tokens.
    pub control: Vec<String>,
    /// Tokens that become user-defined tokens.
    pub user_defined: Vec<String>,
    /// Source of the chat template.
    pub template: Template,
    /// Name of the pre-tokenizer instead of the identified one (`--pre`).
    pub pre: Option<String>,
    /// Keys before the vocabulary.
    pub before: Metadata,
    /// Keys after the vocabulary.
    pub after: Metadata,
    /// Keys set by the user; the files' values for them are ignored.
    pub by_hand: Vec<String>,
    /// Value of `general.architecture`: a few vocabularies depend on it, and it is the prefix of a key.
    pub architecture: String,
    /// Value of `general.name`: the runtime treats special tokens of a few models by their name.
    pub name: String,
    /// True if the checkpoint is in Mistral's own format.
    pub mistral_format: bool,
    /// Limits on file sizes.
    pub limits: Limits,
    /// Files that are not the model's own.
    pub others: Option<OtherFiles>,
}

impl TokenizerRequest {
    /// Creates a request for these modes without other settings.
    pub fn of(modes: &[Mode]) -> Self {
        Self { modes: modes.iter().copied().map(ModeRequest::new).collect(), ..Self::default() }
    }
}
