//! Vocabularies: read from tokenizer files, identified, written as `tokenizer.*` keys.
