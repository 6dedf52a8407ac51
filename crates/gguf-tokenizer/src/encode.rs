//! Conversion of text to token ids and back, from the keys of a GGUF file alone.
//!
//! [`Encoder`] finds the special tokens of a text and passes the text between them to the algorithm of the file's kind
//! of vocabulary.

mod bpe;
mod charsmap;
mod decode;
mod error;
mod fallback;
mod hybrid_dna;
mod normalizer;
mod partition;
mod plamo;
mod rwkv;
mod splitter;
mod spm;
mod trie;
mod unigram;
mod vocab;
mod wordpiece;

pub use error::EncodeError;
#[cfg(test)]
pub(super) use splitter::Splitter;

use gguf_format::Metadata;

use self::bpe::Bpe;
use self::decode::Spelling;
use self::hybrid_dna::HybridDna;
use self::partition::{Fragment, Partition};
use self::plamo::Plamo;
use self::rwkv::Rwkv;
use self::spm::Spm;
use self::unigram::Unigram;
use self::vocab::VocabModel;
pub(super) use self::vocab::{Strip, Vocab, ends_generation};
use self::wordpiece::WordPiece;

/// Returns true if a character map replaces a character by a blank.
pub(super) fn reads_as_blank(charsmap: &[u8], character: char) -> bool {
    let map = charsmap::Charsmap::new(charsmap);
    map.is_ok_and(|map| {
        map.replace(character.encode_utf8(&mut [0; 4]).as_bytes()).is_some_and(|(text, _)| text == b" ")
    })
}

/// Returns true if the keys of two files describe the same vocabulary, except merges, with defaults filled in. `None`
/// if neither can be read.
pub fn read_alike(a: &Metadata, b: &Metadata) -> Option<bool> {
    match (Vocab::from_metadata(a), Vocab::from_metadata(b)) {
        (Ok(a), Ok(b)) => Some(a == b),
        (Err(_), Err(_)) => None,
        _ => Some(false),
    }
}

/// Vocabulary of a GGUF file, ready to encode.
///
/// # Exactness
/// The ids are those of the original tokenizer if the keys are sufficient; `docs/differences.md` lists where
/// llama.cpp's differ. Special tokens are found, and added to texts, by the rules of llama.cpp 0.5.0.
pub struct Encoder {
    vocab: Vocab,
    partition: Partition,
    algorithm: Algorithm,
}

enum Algorithm {
    Bpe(Bpe),
    HybridDna(HybridDna),
    Spm(Spm),
    Unigram(Unigram),
    WordPiece(WordPiece),
    Rwkv(Rwkv),
    Plamo(Plamo),
}

impl Encoder {
    /// Reads the `tokenizer.*` keys.
    ///
    /// # Errors
    /// Keys that are missing, of another type or too short; an unknown kind of vocabulary or pre-tokenizer.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, EncodeError> {
        let vocab = Vocab::from_metadata(metadata)?;
        let algorithm = match vocab.model {
            VocabModel::Bpe if vocab.has_dna => {
                Algorithm::HybridDna(HybridDna::new(&vocab, Bpe::new(&vocab, metadata)?))
            }
            VocabModel::Bpe => Algorithm::Bpe(Bpe::new(&vocab, metadata)?),
            VocabModel::Spm => Algorithm::Spm(Spm::new(&vocab)?),
            VocabModel::Unigram => Algorithm::Unigram(Unigram::new(&vocab)?),
            VocabModel::WordPiece => Algorithm::WordPiece(WordPiece::new(&vocab)?),
            VocabModel::Rwkv => Algorithm::Rwkv(Rwkv::new(&vocab)?),
            VocabModel::Plamo => Algorithm::Plamo(Plamo::new(&vocab)?),
        };
        Ok(Self { partition: Partition::new(&vocab), vocab, algorithm })
    }

    /// Checks that a text stays within bounds when it is encoded. The character map of an untrusted file may make any
    /// text hundreds of times as long. [`Encoder::encode`] does not check this.
    ///
    /// # Errors
    /// A text that becomes too long.
    pub fn check(&self, text: &str) -> Result<(), EncodeError> {
        let checked = match &self.algorithm {
            Algorithm::Spm(spm) => spm.check(text),
            Algorithm::Unigram(unigram) => unigram.check(text),
            Algorithm::Bpe(_)
            | Algorithm::HybridDna(_)
            | Algorithm::WordPiece(_)
            | Algorithm::Rwkv(_)
            | Algorithm::Plamo(_) => Ok(()),
        };
        checked.map_err(|limit| EncodeError::Growth { n_bytes: text.len(), limit })
    }

    /// Encodes a text as token ids, without the tokens that start and end it. User-defined tokens in the text are
    /// always found; with `parse_special` all special tokens are.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let mut out = Vec::new();
        for fragment in self.partition.cut(&self.vocab, text, parse_special) {
            match (fragment, &self.algorithm) {
                (Fragment::Token(id), _) => out.push(id),
                (Fragment::Text(text), Algorithm::Bpe(bpe)) => {
                    bpe.encode_fragment(&self.vocab, text, &mut out);
                }
                (Fragment::Text(text), Algorithm::HybridDna(dna)) => {
                    dna.encode_fragment(&self.vocab, text, &mut out);
                }
                (Fragment::Text(text), Algorithm::Rwkv(rwkv)) => rwkv.encode_fragment(text, &mut out),
                (Fragment::Text(text), Algorithm::Plamo(plamo)) => plamo.encode_fragment(text, &mut out),
                (Fragment::Text(text), Algorithm::Spm(spm)) => {
                    spm.encode_fragment(&self.vocab, text, &mut out);
                }
                (Fragment::Text(text), Algorithm::Unigram(unigram)) => {
                    unigram.encode_fragment(&self.vocab, text, &mut out);
                }
                (Fragment::Text(text), Algorithm::WordPiece(word_piece)) => {
                    word_piece.encode_fragment(text, &mut out);
                }
            }
        }
        out
    }

    /// Decodes ids to bytes; special tokens are written out. Ids that the vocabulary lacks give nothing.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let spelling = match &self.algorithm {
            Algorithm::Bpe(bpe) if bpe.is_byte_level() => Spelling::Bytes,
            Algorithm::HybridDna(_) => Spelling::Bytes,
            Algorithm::Rwkv(_) => Spelling::Python,
            Algorithm::Plamo(_) => Spelling::Plain,
            Algorithm::Bpe(_) if !self.vocab.escape_whitespaces => Spelling::Plain,
            _ => Spelling::Metaspace,
        };
        let mut out = Vec::new();
        for &id in ids {
            decode::piece(&self.vocab, spelling, id, &mut out);
        }
        out
    }

    /// Id of the token that starts a text, if the file requires one.
    pub fn start_of_text(&self) -> Option<u32> {
        self.vocab.start_of_text()
    }

    /// Id of the token that ends a text, if the file requires one.
    pub fn end_of_text(&self) -> Option<u32> {
        self.vocab.end_of_text()
    }
}
