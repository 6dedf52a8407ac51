//! Vocabulary stored in a container: tokens in memory instead of tokenizer files.

use super::Mode;

/// Representation of text by tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GivenKind {
    /// SentencePiece pieces that merge by score.
    #[default]
    Pieces,
    /// SentencePiece pieces of a unigram model.
    Unigram,
    /// Byte-level BPE, with bytes as GPT-2's letters.
    Letters,
    /// Byte-level BPE, with raw bytes; the id is the rank.
    Bytes,
    /// WordPiece.
    WordPiece,
}

impl GivenKind {
    /// Returns the mode of the same kind, followed by related modes of cards.
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
    /// Text.
    pub text: Vec<u8>,
    /// Id. If two tokens have the same id, the later one applies.
    pub id: u64,
    /// Score. For a piece, it is the piece's own. For a byte-level token, it is minus the rank of the merge that makes
    /// it, or above zero without such a merge.
    pub score: Option<f32>,
}

/// A vocabulary and its known properties.
#[derive(Clone, Debug, Default)]
pub struct GivenVocabulary {
    /// Representation of text by tokens.
    pub kind: GivenKind,
    /// Tokens, in the order of the container.
    pub tokens: Vec<GivenToken>,
    /// Control tokens, by text. Some may be missing from the tokens.
    pub special: Vec<Vec<u8>>,
    /// Control tokens whose ids follow the last token, as far as the embedding has rows.
    pub appended: Vec<String>,
    /// True if a space is put in front of text; `None` if unknown.
    pub add_space_prefix: Option<bool>,
    /// True if spaces at both ends are removed; `None` if unknown.
    pub remove_extra_whitespaces: Option<bool>,
    /// Value of `tokenizer.ggml.pre`, if it follows from the model's family.
    pub pre: Option<String>,
    /// Files stored in the container (`tokenizer.model`), and substitutes for others: `config.json` names special ids.
    /// A SentencePiece model among them takes precedence over the tokens.
    pub files: Vec<(String, Vec<u8>)>,
}
