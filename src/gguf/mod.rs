//! The GGUF file format: metadata values, reading, writing, split files.

mod value;

pub use value::{Array, Metadata, Value, ValueType};
