//! Keys of `tokenizer_config.json` that contradict `tokenizer.json`.

use serde_json::Value as Json;

use super::{Account, Algorithm};
use crate::TokenizerWarning;
use crate::pretokenizer::flatten;

/// Keys with which classes of transformers change a step of `tokenizer.json`: key, member and step, its field.
const OVERRIDES: [(&str, Algorithm, &str, &str); 3] = [
    ("do_lower_case", Algorithm::WordPiece, "BertNormalizer", "lowercase"),
    ("strip_accents", Algorithm::WordPiece, "BertNormalizer", "strip_accents"),
    ("tokenize_chinese_chars", Algorithm::WordPiece, "BertNormalizer", "handle_chinese_chars"),
];

impl Account<'_> {
    /// Reports keys that contradict a step: classes of transformers follow the configuration, the runtime the keys.
    pub(super) fn config(&mut self) {
        for (key, algorithm, step, field) in OVERRIDES {
            let Some(declared) = self.config.get(key).and_then(Json::as_bool) else { continue };
            let mut own = None;
            flatten(&self.hf.normalizer, "normalizers", 0, &mut |part| {
                if part.get("type").and_then(Json::as_str) == Some(step) {
                    own = part.get(field).and_then(Json::as_bool).or_else(|| {
                        // Accents follow case if the field is null.
                        part.get("lowercase").filter(|_| field == "strip_accents")?.as_bool()
                    });
                }
            });
            if algorithm == self.algorithm && own.is_some_and(|own| own != declared) {
                self.contradicts(key, declared);
            }
        }
        let prefix = match self.algorithm {
            // Only a step that is not in a sequence is changed.
            Algorithm::ByteLevel => self.hf.pre_tokenizer.get("add_prefix_space").and_then(Json::as_bool),
            // The vocabulary is converted again from the SentencePiece model.
            Algorithm::Pieces => Some(self.vocab.add_space_prefix),
            _ => None,
        };
        let declared = self.config.get("add_prefix_space").and_then(Json::as_bool);
        if let (Some(own), Some(declared)) = (prefix, declared)
            && own != declared
        {
            self.contradicts("add_prefix_space", declared);
        }
    }

    fn contradicts(&mut self, key: &'static str, value: bool) {
        self.found.push(TokenizerWarning::ConfigContradicts { key, value });
    }
}
