//! Contents of `statistics.json`.

use serde::{Deserialize, Serialize};

use crate::LayerMoments;
use gguf_engine::TokenChunk;
use gguf_verification::Window;

pub(super) const VERSION: u64 = 1;
pub(super) const FORMAT: &str = "gguf-foundry statistics";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatisticsManifest {
    pub(super) format: String,
    pub(super) version: u64,
    /// Digest of the model.
    pub(super) model: String,
    /// Digest of its tokenizer.
    pub(super) tokenizer: String,
    pub(super) architecture: String,
    /// Tokens of a sequence.
    pub(super) n_ctx: usize,
    /// Seed of sampled text.
    pub(super) seed: Option<u64>,
    pub(super) kinds: Vec<KindEntry>,
    /// Digest of the sequences that were run.
    pub(super) text: String,
    pub(super) layers: Vec<LayerEntry>,
}

/// Contents of statistics in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatisticsCounts {
    /// Number of layers with moments, including the entry outside of layers.
    #[serde(rename = "layers")]
    pub n_layers: usize,
    /// Number of matrices with moments.
    #[serde(rename = "matrices")]
    pub n_matrices: usize,
}

impl StatisticsCounts {
    /// Counts a layer.
    pub fn add(&mut self, layer: &LayerMoments) {
        self.n_layers += 1;
        self.n_matrices += layer.inputs.iter().map(|input| input.matrices.len()).sum::<usize>();
    }
}

impl StatisticsManifest {
    pub(super) fn counts(&self) -> StatisticsCounts {
        let inputs = self.layers.iter().flat_map(|layer| &layer.inputs);
        let n_matrices = inputs.map(|input| input.matrices.len()).sum();
        StatisticsCounts { n_layers: self.layers.len(), n_matrices }
    }
}

/// Kind of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KindEntry {
    pub(super) name: String,
    /// Number of tokens that were run.
    pub(super) tokens: u64,
    /// Number of sequences that were run.
    pub(super) sequences: u64,
    /// Weight in the mean over kinds, in numbers of ordinary kinds.
    pub(super) weight: u32,
    /// Seed of text that a model wrote.
    pub(super) seed: Option<u64>,
    /// Windows that are held out.
    #[serde(rename = "check")]
    pub(super) held_out: Vec<WindowEntry>,
}

/// Window of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowEntry {
    /// Number of its prompt, and index of its first token there.
    pub(super) prompt: usize,
    pub(super) start: usize,
    pub(super) tokens: Vec<u32>,
    /// Number of tokens at the front that an encoder reads.
    pub(super) source: usize,
    /// First row whose prediction is computed, and the end of these rows.
    pub(super) rows: [usize; 2],
    /// First row that is scored, and the end of these rows.
    pub(super) scored: [usize; 2],
}

impl WindowEntry {
    pub(crate) fn of(window: &Window) -> Self {
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

    /// Rebuilds the window; `None` if its fields contradict each other.
    pub(crate) fn window(&self) -> Option<Window> {
        let ([first, end], [from, to]) = (self.rows, self.scored);
        // A row predicts the next token.
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
    /// One entry per kind.
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
