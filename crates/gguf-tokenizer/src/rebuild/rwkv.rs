//! Builder of RWKV's vocabulary file.

use std::fmt::Write as _;

use super::super::emit::TokenType;
use super::super::python_literal;
use super::source::GgufVocabulary;

pub(super) const FILE: &str = "rwkv_vocab_v20230424.txt";

/// Builds the file with one token per line: id, literal, length. The first token, which starts and ends texts, has no
/// line.
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
