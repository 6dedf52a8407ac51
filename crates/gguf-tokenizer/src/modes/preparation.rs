//! Preparation of a text by a unigram model.

use gguf_format::{Array, Metadata, Value};

use super::super::sentencepiece::ModelProto;

/// Settings of text normalization.
pub(super) struct Preparation {
    /// True if a space is put in front of the text.
    pub(super) prefix: bool,
    /// True if repeated spaces are collapsed.
    pub(super) remove_blanks: bool,
    /// Precompiled character map; may be empty.
    pub(super) charsmap: Vec<u8>,
}

impl Preparation {
    /// Returns the settings of a SentencePiece model.
    pub(super) fn of(model: &ModelProto) -> Self {
        let normalizer = model.normalizer();
        Self {
            prefix: normalizer.add_dummy_prefix(),
            remove_blanks: normalizer.remove_extra_whitespaces(),
            charsmap: normalizer.precompiled_charsmap.unwrap_or_default(),
        }
    }

    /// Writes the keys of all settings except the prefix.
    pub(super) fn write_cleaning(self, out: &mut Metadata) {
        out.set("tokenizer.ggml.remove_extra_whitespaces", self.remove_blanks);
        if !self.charsmap.is_empty() {
            let charsmap = Value::Array(Array::U8(self.charsmap));
            out.set("tokenizer.ggml.precompiled_charsmap", charsmap);
        }
    }
}
