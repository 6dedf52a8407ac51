//! Text to token ids and back, from the keys of a GGUF file alone.

mod charsmap;
mod error;
mod fallback;
mod normalizer;
mod spm;
mod trie;
mod unigram;
mod vocab;
mod wordpiece;

pub use error::EncodeError;
