//! Architecture cards: what a checkpoint of each architecture is called in GGUF, as data.
