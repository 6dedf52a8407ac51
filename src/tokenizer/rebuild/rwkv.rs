//! The vocabulary file of RWKV.

use std::fmt::Write as _;

use super::super::emit::TokenType;
use super::super::python_literal;
use super::source::GgufVocabulary;

/// Name of the file.
pub(super) const FILE: &str = "rwkv_vocab_v20230424.txt";

/// A line a token: number, literal, length. The first token, which begins and ends texts, is no line.
pub(super) fn vocabulary_file(vocabulary: &GgufVocabulary) -> Vec<u8> {
    let mut file = String::new();
    for (id, text) in vocabulary.tokens.iter().enumerate().skip(1) {
        if vocabulary.types.get(id) != Some(&TokenType::Normal) {
            continue;
        }
        let bytes = python_literal::read(text.as_bytes());
        let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
        let written = python_literal::written(&bytes);
        let _ = writeln!(file, "{id} b{quote}{written}{quote} {}", bytes.len());
    }
    file.into_bytes()
}
