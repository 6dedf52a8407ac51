//! What is asked of a vocabulary: the closed list of ways to read one, and what goes beside its tokens.
//!
//! Cards say it, `tokenizer` does it; here are the nouns that both speak of.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::core::limits::Limits;
use crate::gguf::Metadata;

macro_rules! named {
    ($(#[$type_doc:meta])* $name:ident { $( $(#[$doc:meta])* $variant:ident = $text:literal, )* }) => {
        $(#[$type_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$doc])* $variant, )*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The name that cards use.
            #[must_use]
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
    /// Where a vocabulary comes from and which keys it becomes; a closed list. Each mode owns its key order.
    Mode {
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
        /// SentencePiece unigram model of ChatGLM-6B.
        SpmChatglm1 = "spm_chatglm1",
        /// SentencePiece as ChatGLM 2 and 3 have it.
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
}

named! {
    /// What the Python code of a vocabulary of ranks says and none of its files does.
    RankCode {
        /// Qwen, the first generation.
        Qwen = "qwen",
        /// GLM-4 under its own names.
        Glm4 = "glm4",
        /// StableLM 2, before it had a tokenizer.json.
        StableLm = "stablelm",
        /// Hunyuan, dense and with experts.
        Hunyuan = "hunyuan",
        /// Kimi K2 and its kin, Moonlight and Kimi-VL among them.
        KimiK2 = "kimi-k2",
        /// Kimi Linear and K3: as `KimiK2`, the end token is the tokenizer's own.
        KimiLinear = "kimi-linear",
    }
}

impl Mode {
    /// True for a mode whose files may have other names than usual.
    #[must_use]
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

    /// True for a mode that can lack special tokens which stand in code.
    #[must_use]
    pub fn takes_rank_code(self) -> bool {
        matches!(self, Self::Bpe | Self::BpePlainAdded | Self::Tiktoken)
    }
}

/// Roles of special tokens that are read from the files of a checkpoint, in order.
pub const FILE_ROLES: [&str; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];

/// A special token: its text or its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecialToken {
    /// Text, looked up among the tokens.
    Text(String),
    /// Number.
    Id(u32),
}

/// One mode to try.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeRequest {
    /// The mode.
    pub mode: Mode,
    /// File names instead of the mode's own.
    pub files: Vec<String>,
    /// Special tokens by role, used where the files name none, in order.
    pub special: Vec<(String, SpecialToken)>,
    /// The code of a vocabulary of ranks.
    pub rank_code: Option<RankCode>,
    /// Keys after this mode's own.
    pub after: Metadata,
}

impl ModeRequest {
    /// The mode with nothing else.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self { mode, files: Vec::new(), special: Vec::new(), rank_code: None, after: Metadata::new() }
    }
}

/// Where the chat template comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Template {
    /// The files of the checkpoint.
    #[default]
    Files,
    /// None is written.
    None,
    /// This text.
    Given(String),
}

/// Files of another directory that take the place of those of a model's directory: those with these names, also where the
/// other directory has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherFiles {
    /// The other directory.
    pub dir: PathBuf,
    /// Names of the files.
    pub names: Vec<String>,
}

impl OtherFiles {
    /// The directory that has a file of this name.
    #[must_use]
    pub fn dir_of<'a>(own: &'a Path, others: Option<&'a Self>, name: &str) -> &'a Path {
        others
            .filter(|others| others.names.iter().any(|other| other == name))
            .map_or(own, |others| &others.dir)
    }
}

/// How to make the `tokenizer.*` keys of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct TokenizerRequest {
    /// Modes in order; the first whose files exist and parse wins.
    pub modes: Vec<ModeRequest>,
    /// Tokens to write (the rows of the embedding); the files' own count without it.
    pub size: Option<u64>,
    /// Rows of the embedding, where the weights are known: no token can have an id beyond.
    pub rows: Option<u64>,
    /// The number of tokens is rounded up to a multiple of this.
    pub pad_multiple: Option<u64>,
    /// Special tokens by role that win over the files.
    pub force: Vec<(String, SpecialToken)>,
    /// Special tokens by role whose ids are written behind everything else; those that the vocabulary lacks are not.
    pub last: Vec<(String, SpecialToken)>,
    /// Roles that are read from the files; all of [`FILE_ROLES`] without it.
    pub types: Option<Vec<String>>,
    /// Tokens that become control tokens.
    pub control: Vec<String>,
    /// Tokens that become user-defined tokens.
    pub user_defined: Vec<String>,
    /// Where the chat template comes from.
    pub template: Template,
    /// Name of the pre-tokenizer instead of the identified one (`--pre`).
    pub pre: Option<String>,
    /// Keys before the vocabulary.
    pub before: Metadata,
    /// Keys after the vocabulary.
    pub after: Metadata,
    /// Keys that are set by hand: what the files say of them does not count.
    pub by_hand: Vec<String>,
    /// `general.architecture`: the few vocabularies that differ by it, and a key that begins with it.
    pub architecture: String,
    /// The checkpoint is in Mistral's own format.
    pub mistral_format: bool,
    /// Caps on file sizes.
    pub limits: Limits,
    /// Files that are not the model's own.
    pub others: Option<OtherFiles>,
}

impl TokenizerRequest {
    /// A request for these modes and nothing special.
    #[must_use]
    pub fn of(modes: &[Mode]) -> Self {
        Self { modes: modes.iter().copied().map(ModeRequest::new).collect(), ..Self::default() }
    }
}
