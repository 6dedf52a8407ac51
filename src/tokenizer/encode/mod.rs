//! Text to token ids and back, from the keys of a GGUF file alone.

mod error;
mod vocab;

pub use error::EncodeError;
