//! Differences between the stored embedding and head and their declaration.

use std::fmt;

use gguf_core::text::escape;

/// Embedding and head that are stored differently than the configuration declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tie {
    /// Declared as tied, but with different values.
    Differ {
        /// The embedding.
        embedding: String,
        /// The head.
        head: String,
        /// True if the head is written.
        is_written: bool,
    },
    /// Declared as untied, but no head is stored.
    NoHead {
        /// The embedding.
        embedding: String,
    },
}

impl fmt::Display for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differ { embedding, head, is_written: true } => write!(
                f,
                "embedding and head are one by `tie_word_embeddings` of config.json, or its default, but `{}` and `{}` hold \
                 different numbers: both are written, as transformers 5 takes them; `false` in config.json says the same",
                escape(embedding),
                escape(head)
            ),
            Self::Differ { embedding, head, is_written: false } => write!(
                f,
                "embedding and head are one by `tie_word_embeddings` of config.json, or its default, but `{0}` and `{1}` hold \
                 different numbers: `{1}` is left out, where transformers 5 takes both",
                escape(embedding),
                escape(head)
            ),
            Self::NoHead { embedding } => write!(
                f,
                "`tie_word_embeddings` of config.json is false, but no head (`lm_head.weight`) is stored: the runtime takes `{}` \
                 in its place",
                escape(embedding)
            ),
        }
    }
}
