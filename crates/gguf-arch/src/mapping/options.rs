//! Options of the user for applying a card.

use crate::mapping::heads::DraftHeads;
use crate::mapping::types::OutType;
use crate::read::fusion::Fuse;

/// Decoder that ranks documents by the probabilities of two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rerank {
    /// Token id for a relevant document, if the vocabulary has it.
    pub yes: Option<u32>,
    /// Token id for an irrelevant document, if the vocabulary has it.
    pub no: Option<u32>,
    /// True if the user asked for it; else it was detected in the files, and cards without rerankers ignore it.
    pub asked: bool,
}

/// Options of the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolveOptions {
    /// Type of the file; `None` selects the one that suits the checkpoint.
    pub file_type: Option<OutType>,
    /// True if the configuration is in Mistral's own format, which names no class.
    pub mistral_format: bool,
    /// Treatment of draft heads.
    pub heads: DraftHeads,
    /// Joins of tensors after mapping.
    pub fuse: Fuse,
    /// Reranker settings, if the model ranks documents.
    pub rerank: Option<Rerank>,
    /// True to plan only keys; there may be no weights.
    pub metadata_only: bool,
    /// True to plan the keys of the card's `annotate` too.
    pub annotate: bool,
    /// True if norms include the one that cards add to them.
    pub norms_have_one: bool,
    /// True if the weights are only those that an adapter changes: missing ones are no error, and no keys or generated
    /// tensors are planned.
    pub is_part: bool,
}
