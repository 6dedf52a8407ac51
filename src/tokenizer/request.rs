//! What `build` is asked for, and the closed list of ways to read a vocabulary.

use std::fmt;

use crate::core::limits::Limits;
use crate::gguf::Value;

macro_rules! modes {
    ($( $(#[$doc:meta])* $variant:ident = $name:literal, )*) => {
        /// Where a vocabulary comes from and which keys it becomes; a closed list. Each mode owns its key order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Mode {
            $( $(#[$doc])* $variant, )*
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

            /// The mode of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|mode| mode.name() == name)
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

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A token named by text, or by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecialValue {
    /// Its id.
    Id(u32),
    /// Its text, looked up among the added tokens.
    Token(String),
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
    /// Name of the list of special tokens that the files lack.
    pub specials_list: Option<String>,
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
