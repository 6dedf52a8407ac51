//! What `statistics.json` says.

use serde::{Deserialize, Serialize};

use crate::engine::TokenChunk;
use crate::verify::Window;

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
    /// Digest of the sequences that were run, of a whole; earlier versions did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
    /// Of a part: what it is a part of. The kinds are those of all parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) part: Option<PartEntry>,
    pub(super) layers: Vec<LayerEntry>,
}

impl Manifest {
    /// Matrices that there are moments of, and layers.
    pub(super) fn counts(&self) -> (usize, usize) {
        let inputs = self.layers.iter().flat_map(|layer| &layer.inputs);
        (inputs.map(|input| input.matrices.len()).sum(), self.layers.len())
    }
}

/// Which part of a text statistics are of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartEntry {
    /// Its number, from 1.
    pub(super) number: usize,
    /// How many there are.
    pub(super) count: usize,
    /// The program that wrote it.
    pub(super) program: String,
    /// Digest of the sequences of all parts.
    pub(super) text: String,
    /// First of its batches of sequences among those of all parts.
    pub(super) first_batch: usize,
    /// How many it has, and how many all parts have.
    pub(super) batches: usize,
    pub(super) all_batches: usize,
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
    /// How many other kinds it weighs as much as.
    pub(super) weight: u32,
    /// Of text that a model wrote.
    pub(super) seed: Option<u64>,
    /// What was held back.
    pub(super) check: Vec<CheckEntry>,
}

/// A window of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::calibrate) struct CheckEntry {
    /// Number of its prompt, and of its first token there.
    pub(super) prompt: usize,
    pub(super) start: usize,
    pub(super) tokens: Vec<u32>,
    /// Tokens at the front that an encoder reads.
    pub(super) source: usize,
    /// First row whose prediction is computed, and the one behind the last.
    pub(super) rows: [usize; 2],
    /// The same of those that count.
    pub(super) scored: [usize; 2],
}

impl CheckEntry {
    pub(in crate::calibrate) fn of(window: &Window) -> Self {
        let Window { prompt, start, chunk, scored, .. } = window;
        Self {
            prompt: *prompt,
            start: *start,
            tokens: chunk.tokens.clone(),
            source: chunk.n_source,
            rows: [chunk.rows.start, chunk.rows.end],
            scored: [scored.start, scored.end],
        }
    }

    /// The window; `None` if its parts do not fit together.
    pub(in crate::calibrate) fn window(&self) -> Option<Window> {
        let ([first, end], [from, to]) = (self.rows, self.scored);
        // A row predicts the token behind it.
        let targets = self.tokens.get(first.checked_add(1)?..end.checked_add(1)?)?.to_vec();
        let is_whole = self.source < self.tokens.len() && first <= from && from <= to && to <= end;
        let chunk = TokenChunk { tokens: self.tokens.clone(), rows: first..end, n_source: self.source };
        let window = Window { prompt: self.prompt, start: self.start, chunk, targets, scored: from..to };
        is_whole.then_some(window)
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MomentsEntry {
    /// Number in the name of the tensor.
    pub(super) at: usize,
    pub(super) rows: u64,
}
