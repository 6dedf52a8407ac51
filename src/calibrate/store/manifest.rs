//! What `statistics.json` says.

use serde::{Deserialize, Serialize};

/// Version of the format.
pub(super) const VERSION: u64 = 1;
/// What the file says that it is.
pub(super) const FORMAT: &str = "gguf-foundry statistics";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) version: u64,
    /// Digest of the model.
    pub(super) model: String,
    /// Digest of its tokenizer.
    pub(super) tokenizer: String,
    pub(super) architecture: String,
    /// Tokens of a sequence.
    pub(super) n_ctx: usize,
    /// Of text that was sampled.
    pub(super) seed: Option<u64>,
    pub(super) kinds: Vec<KindEntry>,
    pub(super) layers: Vec<LayerEntry>,
}

/// A kind of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KindEntry {
    pub(super) name: String,
    /// Tokens that were run.
    pub(super) tokens: u64,
    /// Sequences that they were in.
    pub(super) sequences: u64,
    /// Tokens that were held back.
    pub(super) check_tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayerEntry {
    pub(super) layer: Option<usize>,
    pub(super) inputs: Vec<InputEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InputEntry {
    pub(super) columns: usize,
    pub(super) matrices: Vec<MatrixEntry>,
    /// One per kind.
    pub(super) moments: Vec<Option<MomentsEntry>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MatrixEntry {
    pub(super) tensor: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expert: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MomentsEntry {
    /// Number in the name of the tensor.
    pub(super) at: usize,
    pub(super) rows: u64,
}
