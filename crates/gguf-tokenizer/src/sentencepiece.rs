//! SentencePiece model files (`tokenizer.model`, `spiece.model`): the few protobuf fields that are needed here.

use super::TokenizerError;
use super::files::Directory;
use crate::Result;

/// Message `sentencepiece.ModelProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelProto {
    /// Tokens by id.
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<Piece>,
    /// Settings of the training.
    #[prost(message, optional, tag = "2")]
    pub trainer_spec: Option<TrainerSpec>,
    /// Settings of text normalization.
    #[prost(message, optional, tag = "3")]
    pub normalizer_spec: Option<NormalizerSpec>,
}

/// Message `sentencepiece.ModelProto.SentencePiece`. The text is stored as bytes: UTF-8 is checked with the piece's
/// index.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Piece {
    /// Text.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub piece: Option<Vec<u8>>,
    /// Score.
    #[prost(float, optional, tag = "2")]
    pub score: Option<f32>,
    /// Number of the `PieceKind`.
    #[prost(int32, optional, tag = "3", default = "1")]
    pub kind: Option<i32>,
}

/// Message `sentencepiece.TrainerSpec`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrainerSpec {
    /// Model type: 1 unigram, 2 BPE, 3 word, 4 char.
    #[prost(int32, optional, tag = "3", default = "1")]
    pub model_type: Option<i32>,
    /// True if the blank of a word is behind it, not in front of it.
    #[prost(bool, optional, tag = "24", default = "false")]
    pub treat_whitespace_as_suffix: Option<bool>,
    /// True if unknown characters become byte tokens.
    #[prost(bool, optional, tag = "35", default = "false")]
    pub byte_fallback: Option<bool>,
}

/// Message `sentencepiece.NormalizerSpec`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NormalizerSpec {
    /// Name of the rules that the table was made of.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Compiled table of character replacements.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub precompiled_charsmap: Option<Vec<u8>>,
    /// True if a space is put in front of the text.
    #[prost(bool, optional, tag = "3", default = "true")]
    pub add_dummy_prefix: Option<bool>,
    /// True if spaces at both ends are removed, and repeated ones are collapsed.
    #[prost(bool, optional, tag = "4", default = "true")]
    pub remove_extra_whitespaces: Option<bool>,
    /// True if blanks are written as `▁`.
    #[prost(bool, optional, tag = "5", default = "true")]
    pub escape_whitespaces: Option<bool>,
}

/// Value of `model_type` for a unigram model.
pub(crate) const UNIGRAM: i32 = 1;
/// Value of `model_type` for a BPE model.
pub(crate) const BPE: i32 = 2;

/// Kinds of pieces: `sentencepiece.ModelProto.SentencePiece.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// A piece of text.
    Normal,
    /// The unknown token.
    Unknown,
    /// A token that never occurs in text.
    Control,
    /// A text that is split off before anything else.
    UserDefined,
    /// One byte.
    Byte,
    /// A piece that is never used.
    Unused,
}

impl Piece {
    /// Returns the kind of the piece; unknown numbers count as normal.
    pub(crate) fn piece_kind(&self) -> PieceKind {
        match self.kind() {
            2 => PieceKind::Unknown,
            3 => PieceKind::Control,
            4 => PieceKind::UserDefined,
            5 => PieceKind::Unused,
            6 => PieceKind::Byte,
            _ => PieceKind::Normal,
        }
    }
}

/// Returns true for the text of a vocabulary of tiktoken: a token in base 64 and its rank in each line.
fn are_ranks(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.trim_ascii().split(|byte| *byte == b' ');
    let is_base64 =
        |word: &[u8]| word.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(byte));
    words.next().is_some_and(|word| !word.is_empty() && is_base64(word))
        && words.next().is_some_and(|rank| !rank.is_empty() && rank.iter().all(u8::is_ascii_digit))
        && words.next().is_none()
}

impl ModelProto {
    /// Reads a model file; `None` if it does not exist.
    ///
    /// # Errors
    /// I/O errors, a malformed message, no pieces, a piece that is not UTF-8.
    pub fn read(directory: &Directory<'_>, name: &str) -> Result<Option<Self>> {
        let Some(bytes) = directory.bytes(name)? else { return Ok(None) };
        let path = || directory.join(name);
        if are_ranks(&bytes) {
            return Err(TokenizerError::RanksAsPieces { path: path() });
        }
        let model: Self = prost::Message::decode(bytes.as_slice())
            .map_err(|source| TokenizerError::SentencePiece { path: path(), source })?;
        if model.pieces.is_empty() {
            return Err(TokenizerError::NoPieces { path: path() });
        }
        for (index, piece) in model.pieces.iter().enumerate() {
            if let Err(error) = std::str::from_utf8(piece.piece()) {
                let offset = error.valid_up_to();
                return Err(TokenizerError::PieceNotUtf8 { path: path(), index, offset });
            }
        }
        Ok(Some(model))
    }

    /// Returns `trainer_spec.model_type`.
    pub fn model_type(&self) -> i32 {
        self.trainer_spec.as_ref().map_or(UNIGRAM, TrainerSpec::model_type)
    }

    /// Returns true if unknown characters become byte tokens.
    pub(crate) fn falls_back_to_bytes(&self) -> bool {
        self.trainer_spec.as_ref().is_some_and(TrainerSpec::byte_fallback)
    }

    /// Returns true if the blank of a word is behind it.
    pub(crate) fn has_blank_suffixes(&self) -> bool {
        self.trainer_spec.as_ref().is_some_and(TrainerSpec::treat_whitespace_as_suffix)
    }

    /// Returns the normalizer's settings, or their defaults.
    pub fn normalizer(&self) -> NormalizerSpec {
        self.normalizer_spec.clone().unwrap_or_default()
    }
}

/// Reads the first SentencePiece model of a directory under one of these names.
pub fn first_of<'n>(directory: &Directory<'_>, names: &[&'n str]) -> Result<Option<(&'n str, ModelProto)>> {
    for &name in names {
        if let Some(model) = ModelProto::read(directory, name)? {
            return Ok(Some((name, model)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn defaults_are_those_of_the_schema() {
        let model = ModelProto { pieces: vec![Piece::default()], ..ModelProto::default() };
        let model = ModelProto::decode(model.encode_to_vec().as_slice()).unwrap();
        assert_eq!(model.model_type(), UNIGRAM);
        assert!(model.normalizer().add_dummy_prefix());
        assert!(model.normalizer().remove_extra_whitespaces());
        assert_eq!(model.pieces[0].piece_kind(), PieceKind::Normal);
    }

    #[test]
    fn a_length_beyond_the_file_is_an_error() {
        // Field 1, length 2^31, no bytes.
        assert!(ModelProto::decode(&[0x0a, 0x80, 0x80, 0x80, 0x80, 0x08][..]).is_err());
    }
}
