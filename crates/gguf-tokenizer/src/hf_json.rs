//! File format `tokenizer.json` of the Hugging Face tokenizers.

use crate::Result;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};

use super::TokenizerError;
use super::files::Directory;

pub(crate) const FILE: &str = "tokenizer.json";

/// A token that is recognized in text before anything else.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct AddedToken {
    /// Id declared by the file; the assigned one may differ.
    #[serde(default)]
    pub id: u64,
    /// Text.
    pub content: String,
    /// True if it is omitted when text is decoded without special tokens.
    #[serde(default)]
    pub special: bool,
    /// True if it is matched in normalized text.
    #[serde(default)]
    pub normalized: Option<bool>,
    /// True if white space before it belongs to it.
    #[serde(default)]
    pub lstrip: bool,
    /// True if white space after it belongs to it.
    #[serde(default)]
    pub rstrip: bool,
    /// True if it is not found inside words.
    #[serde(default)]
    pub single_word: bool,
}

impl AddedToken {
    /// Returns true if the token is matched in normalized text; by default, special tokens are not.
    pub(crate) fn is_normalized(&self) -> bool {
        self.normalized.unwrap_or(!self.special)
    }
}

/// One merge rule: its two tokens, as one text with a space (older files) or as a pair.
#[derive(Clone, Debug, PartialEq)]
pub enum Merge {
    /// `"left right"`.
    Text(String),
    /// `["left", "right"]`; either may contain spaces.
    Pair(String, String),
}

impl Merge {
    /// Returns the two tokens.
    pub fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Self::Text(text) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')),
            Self::Pair(left, right) => Some((left, right)),
        }
    }

    /// Returns the text stored in GGUF: spaces inside the tokens of a pair are written as `Ġ`, as in byte-level text.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Pair(left, right) => {
                format!("{} {}", left.replace(' ', "\u{120}"), right.replace(' ', "\u{120}"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: text or a pair of texts")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                Ok(Merge::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let missing = || serde::de::Error::custom("a merge needs two tokens");
                let left = seq.next_element()?.ok_or_else(missing)?;
                let right = seq.next_element()?.ok_or_else(missing)?;
                if seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
                    return Err(serde::de::Error::custom("a merge has two tokens, this one has more"));
                }
                Ok(Merge::Pair(left, right))
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

/// Contents of `model.vocab`: a table of ids (BPE, WordPiece) or a list of scores (Unigram), in file order.
#[derive(Clone, Debug, PartialEq)]
pub enum VocabTable {
    /// Token and id.
    Ids(Vec<(String, u64)>),
    /// Token and score; the id is the index.
    Scores(Vec<(String, f64)>),
}

impl Default for VocabTable {
    fn default() -> Self {
        Self::Ids(Vec::new())
    }
}

impl<'de> Deserialize<'de> for VocabTable {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor;
        impl<'de> Visitor<'de> for TableVisitor {
            type Value = VocabTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of token ids or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabTable, A::Error> {
                let mut ids = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    ids.push(entry);
                }
                Ok(VocabTable::Ids(ids))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabTable, A::Error> {
                let mut scores = Vec::new();
                while let Some(entry) = seq.next_element()? {
                    scores.push(entry);
                }
                Ok(VocabTable::Scores(scores))
            }
        }
        deserializer.deserialize_any(TableVisitor)
    }
}

/// Contents of `model`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HfModel {
    /// `BPE`, `Unigram`, `WordPiece` or `WordLevel`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Tokens.
    pub vocab: VocabTable,
    /// Merge rules by rank.
    pub merges: Vec<Merge>,
    /// True if unknown characters become byte tokens.
    pub byte_fallback: Option<bool>,
    /// True if a piece that is a token as a whole is not built from merges.
    pub ignore_merges: Option<bool>,
    /// Token of unknown text.
    pub unk_token: Option<String>,
    /// Id of that token, for a Unigram model.
    pub unk_id: Option<u64>,
    /// True if several unknown characters make one unknown token.
    pub fuse_unk: Option<bool>,
    /// Share of the merges that are left out at random.
    pub dropout: Option<f64>,
    /// Text in front of tokens inside words.
    pub continuing_subword_prefix: Option<String>,
    /// Text at the end of tokens that end a word.
    pub end_of_word_suffix: Option<String>,
    /// Length in characters above which a word is unknown, for a WordPiece model.
    pub max_input_chars_per_word: Option<u64>,
    /// The other members.
    #[serde(flatten)]
    pub rest: Map<String, Json>,
}

/// Algorithm by which a model splits text into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HfKind {
    /// BPE over letters that represent bytes (GPT-2).
    ByteLevel,
    /// BPE over text, with byte tokens for missing characters (Llama 2).
    ByteFallback,
    /// Most likely pieces (T5).
    Unigram,
    /// Longest pieces of words (BERT).
    WordPiece,
}

/// Whole file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HfJson {
    /// Tokens recognized before anything else.
    #[serde(deserialize_with = "null_as_default")]
    pub added_tokens: Vec<AddedToken>,
    /// Step that rewrites text.
    pub normalizer: Json,
    /// Step that splits text into pieces.
    pub pre_tokenizer: Json,
    /// Step that puts special tokens around ids.
    pub post_processor: Json,
    /// Step that converts tokens to text.
    pub decoder: Json,
    /// Step that converts a piece to tokens.
    pub model: HfModel,
    /// The other members.
    #[serde(flatten)]
    pub rest: Map<String, Json>,
}

fn null_as_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl HfJson {
    /// Returns the tokens of a Unigram model with their scores. `path` is that of the file.
    pub(super) fn scored_pieces(&self, path: &Path) -> Result<&[(String, f64)]> {
        match &self.model.vocab {
            VocabTable::Scores(pieces) => Ok(pieces),
            VocabTable::Ids(_) => Err(TokenizerError::Member {
                path: path.to_owned(),
                member: "model.vocab",
                problem: "a Unigram model has a list of tokens with scores",
            }),
        }
    }

    /// Reads the file; `None` if it does not exist.
    ///
    /// # Errors
    /// I/O errors, malformed JSON, members of the wrong type, a token or an id twice.
    pub fn read(directory: &Directory<'_>) -> Result<Option<Self>> {
        let Some(file) = directory.json::<Self>(FILE)? else { return Ok(None) };
        file.check(&directory.join(FILE))?;
        Ok(Some(file))
    }

    /// Refuses a token or an id that occurs twice in `model.vocab`.
    fn check(&self, path: &std::path::Path) -> Result<()> {
        let VocabTable::Ids(ids) = &self.model.vocab else { return Ok(()) };
        let mut tokens = HashSet::with_capacity(ids.len());
        let mut owners = HashMap::with_capacity(ids.len());
        for (token, id) in ids {
            if !tokens.insert(token.as_str()) {
                return Err(TokenizerError::DuplicateToken { path: path.into(), token: token.clone() });
            }
            if let Some(first) = owners.insert(*id, token) {
                let (first, second) = (first.clone(), token.clone());
                return Err(TokenizerError::DuplicateId { path: path.into(), id: *id, first, second });
            }
        }
        Ok(())
    }

    /// Returns the table of ids of a BPE model.
    pub(crate) fn bpe_vocab(&self, path: PathBuf) -> Result<&[(String, u64)]> {
        let kind = self.model.kind.as_deref();
        match (&self.model.vocab, kind) {
            // Files from before version 0.8 of the library do not name their kind.
            (VocabTable::Ids(ids), Some("BPE") | None) => Ok(ids),
            _ => {
                let found = kind.unwrap_or("Unigram").to_owned();
                Err(TokenizerError::JsonModel { path, found, expected: "BPE" })
            }
        }
    }

    /// Returns the table of ids of a BPE or WordPiece model.
    pub(crate) fn id_vocab(&self, path: PathBuf) -> Result<&[(String, u64)]> {
        match (&self.model.vocab, self.model.kind.as_deref()) {
            (VocabTable::Ids(ids), Some("WordPiece")) => Ok(ids),
            _ => self.bpe_vocab(path),
        }
    }

    /// Returns `type` of the decoder.
    pub(crate) fn decoder_kind(&self) -> Option<&str> {
        self.decoder.get("type").and_then(Json::as_str)
    }

    /// Returns true for text pieces with byte tokens as a fallback (Llama 2 and similar).
    pub(crate) fn is_byte_fallback(&self) -> bool {
        let steps = self.decoder.get("decoders").and_then(Json::as_array);
        // Letters stand for all bytes: no character is left for the flag.
        let mut kinds = steps.into_iter().flatten().map(|step| step.get("type").and_then(Json::as_str));
        self.model.kind.as_deref() == Some("BPE")
            && self.model.byte_fallback == Some(true)
            && self.decoder_kind() == Some("Sequence")
            && !kinds.any(|kind| kind == Some("ByteLevel"))
    }

    /// Returns the algorithm of the file's model; `None` for one that GGUF does not support.
    pub fn kind(&self) -> Option<HfKind> {
        match (self.model.kind.as_deref(), &self.model.vocab) {
            _ if self.is_byte_fallback() => Some(HfKind::ByteFallback),
            // Files from before version 0.8 of the library do not name their kind.
            (Some("BPE") | None, VocabTable::Ids(_)) => Some(HfKind::ByteLevel),
            (Some("Unigram"), VocabTable::Scores(_)) => Some(HfKind::Unigram),
            (Some("WordPiece"), VocabTable::Ids(_)) => Some(HfKind::WordPiece),
            _ => None,
        }
    }

    /// Returns true if merges are skipped for pieces that are tokens.
    pub(crate) fn ignores_merges(&self) -> bool {
        self.model.ignore_merges == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_in_both_spellings() {
        let merges: Vec<Merge> = serde_json::from_str(r#"["a b", ["c d", "e"]]"#).unwrap();
        assert_eq!(merges[0].parts(), Some(("a", "b")));
        assert_eq!(merges[0].to_text(), "a b");
        assert_eq!(merges[1].parts(), Some(("c d", "e")));
        assert_eq!(merges[1].to_text(), "c\u{120}d e");
        assert_eq!(Merge::Text("a b c".into()).parts(), None);
        assert!(serde_json::from_str::<Merge>(r#"["a"]"#).is_err());
        assert!(serde_json::from_str::<Merge>(r#"["a", "b", "c"]"#).is_err());
        assert!(serde_json::from_str::<Merge>("1").is_err());
    }

    #[test]
    fn ids_and_tokens_must_be_unique() {
        let read = |text: &str| {
            let file: HfJson = serde_json::from_str(text).unwrap();
            file.check(std::path::Path::new("t.json")).unwrap_err().to_string()
        };
        assert_eq!(
            read(r#"{"model": {"vocab": {"a": 0, "a": 1}}}"#),
            "t.json: `model.vocab`: token `a` appears twice"
        );
        assert_eq!(
            read(r#"{"model": {"vocab": {"a": 7, "b": 7}}}"#),
            "t.json: token id 7 belongs to `a` and to `b`"
        );
    }

    #[test]
    fn parts_may_be_null_or_missing() {
        let file: HfJson =
            serde_json::from_str(r#"{"added_tokens": null, "normalizer": null, "model": {"type": "BPE"}}"#)
                .unwrap();
        assert!(file.added_tokens.is_empty());
        assert_eq!(file.pre_tokenizer, Json::Null);
        assert!(!file.is_byte_fallback());
    }

    #[test]
    fn bytes_as_letters_need_no_fallback() {
        let kind = |step: &str| {
            let text = r#"{"model": {"type": "BPE", "byte_fallback": true}, "decoder": {"type": "Sequence", "decoders": [{"type": "STEP"}]}}"#;
            serde_json::from_str::<HfJson>(&text.replace("STEP", step)).unwrap().kind()
        };
        assert_eq!(kind("ByteFallback"), Some(HfKind::ByteFallback));
        assert_eq!(kind("ByteLevel"), Some(HfKind::ByteLevel));
    }
}
