//! A vocabulary that a container carries itself: tokens in memory instead of tokenizer files.

use super::Mode;

/// How tokens stand for text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GivenKind {
    /// SentencePiece pieces that merge by score.
    #[default]
    Pieces,
    /// SentencePiece pieces of a unigram model.
    Unigram,
    /// Byte-level BPE, bytes written as GPT-2's letters.
    Letters,
    /// Byte-level BPE, bytes as they are; the id is the rank.
    Bytes,
    /// WordPiece.
    WordPiece,
}

impl GivenKind {
    /// The mode of the same kind, and its kin among the modes of cards.
    pub(super) fn modes(self) -> &'static [Mode] {
        match self {
            Self::Pieces => &[
                Mode::Spm,
                Mode::SpmPhi3,
                Mode::SpmInternlm2,
                Mode::SpmInternlm3,
                Mode::SpmArctic,
                Mode::SpmChatglm3,
                Mode::SpmXverse,
                Mode::LlamaHf,
            ],
            Self::Unigram => &[Mode::Unigram, Mode::SpmChatglm1],
            Self::Letters | Self::Bytes => &[Mode::Bpe, Mode::BpePlainAdded, Mode::Tiktoken],
            Self::WordPiece => &[Mode::WordPiece],
        }
    }
}

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenToken {
    /// Its text.
    pub text: Vec<u8>,
    /// Its id. Of two tokens with one id the later counts.
    pub id: u64,
    /// Its score: of a piece its own; of a byte-level token minus the rank of the merge that makes it, above zero if
    /// none does.
    pub score: Option<f32>,
}

/// A vocabulary with what is known about it.
#[derive(Clone, Debug, Default)]
pub struct GivenVocabulary {
    /// How tokens stand for text.
    pub kind: GivenKind,
    /// Tokens, in the order of the container.
    pub tokens: Vec<GivenToken>,
    /// Texts that are no text: control tokens. Some may not be among the tokens.
    pub special: Vec<Vec<u8>>,
    /// Control tokens that follow the last token by number, as far as the embedding has rows.
    pub appended: Vec<String>,
    /// Whether a blank is put in front of text, if it is known.
    pub add_space_prefix: Option<bool>,
    /// Whether blanks at the ends go, if it is known.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.pre`, if the model's family tells.
    pub pre: Option<String>,
    /// Files that the container holds as they were (`tokenizer.model`), and what stands in for others: `config.json`
    /// names special ids. A SentencePiece model among them counts more than the tokens.
    pub files: Vec<(String, Vec<u8>)>,
}
