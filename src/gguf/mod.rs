//! The GGUF file format: metadata values, reading, writing, split files.

pub mod keys;
mod value;

pub use value::{Array, Metadata, Value, ValueType};
