//! Memory that a model needs to run: weights, keys and values, states, and what a runtime computes with.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::arch::graph::GraphFeatures;
use crate::core::text::{bytes, escape};
use crate::core::written::as_text;
use crate::core::{GgmlType, Hint, TensorMeta, TensorSource};
use crate::engine::{EngineError, GraphPlan, KeptBySequence, KeptRows, Reach, STEP_TOKENS};
use crate::gguf::{GgufFile, Metadata, Value};
use crate::job::beside_text;
use crate::verify::has_only_draft_heads;

/// Lengths of context that are shown if none is asked for.
const CONTEXTS: [u64; 2] = [8192, 32768];

/// Memory that a model needs besides its weights.
#[derive(Clone, Debug)]
pub(crate) struct ModelMemory {
    /// What a sequence keeps.
    pub(crate) kept: KeptBySequence,
    /// Length of context that the model declares.
    pub(crate) declared: Option<u64>,
    /// Values that are computed at once, for each token of a step.
    work_width: u64,
}

/// Memory for one length of context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ContextMemory {
    /// Tokens of context.
    pub(crate) tokens: u64,
    /// Bytes of keys and values, as llama.cpp's cache has them.
    pub(crate) kv_bytes: u64,
    /// Bytes of recurrent states, which do not grow with the context.
    pub(crate) state_bytes: u64,
    /// Estimated bytes of what a runtime computes with.
    pub(crate) compute_bytes: u64,
    /// Bytes of weights and of all the above.
    pub(crate) total_bytes: u64,
}

/// Keys and values that layers keep of every token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct KeptByLayers {
    /// Number of layers that keep these.
    pub(crate) layers: usize,
    /// Number of heads of keys and values.
    pub(crate) heads: usize,
    /// Width of a head's key.
    pub(crate) key: usize,
    /// Width of a head's value; 0 where values are computed from the keys, as with latent attention (MLA).
    pub(crate) value: usize,
    /// Tokens that are kept: `all`, `the last N`, or `one row per N`.
    #[serde(rename = "tokens", serialize_with = "as_text")]
    pub(crate) reach: ReachText,
}

/// Words for the tokens that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReachText(Reach);

impl std::fmt::Display for ReachText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Reach::All => f.pad("all"),
            Reach::Last(n) => write!(f, "the last {n}"),
            Reach::OnePer(n) => write!(f, "one row per {n}"),
        }
    }
}

/// Reason why the memory of a context is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("how much memory a context takes is not known for the architecture `{}`", escape(arch))]
    Unknown { arch: String },
    #[error(
        "the file has only draft heads of a model of `{}`, which run together with the model",
        escape(arch)
    )]
    Drafts { arch: String },
    #[error("the file is {what}: its tensors take {}, and what it runs with comes in addition", bytes(*own_bytes))]
    Beside { what: &'static str, own_bytes: u64 },
    #[error("how much memory a context takes is not known: {0}")]
    NoGraph(EngineError),
    #[error(
        "keys and values cannot be kept as {ty}, in blocks of {block}: those of a head have {key} and {value} values"
    )]
    Blocks { ty: GgmlType, key: usize, value: usize, block: usize },
    #[error("a context of {n_ctx} tokens is larger than any memory")]
    TooLong { n_ctx: u64 },
}

impl Hint for MemoryError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Blocks { .. } => vec!["`--kv f16` fits every model".to_owned()],
            Self::Drafts { .. } => {
                vec!["`gguf-inspect memory` of the model's own file; the draft's layers keep as much again each".to_owned()]
            }
            Self::NoGraph(error) => error.hints(),
            Self::Unknown { .. } | Self::Beside { .. } | Self::TooLong { .. } => Vec::new(),
        }
    }
}

impl ModelMemory {
    /// Reads it off the keys and the shapes of a model's tensors; no weights are read.
    ///
    /// # Errors
    /// If the architecture has no graph, or keys and tensors do not fit it.
    pub(crate) fn of(metadata: &Metadata, tensors: &[TensorMeta]) -> Result<Self, MemoryError> {
        let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        if let Some(what) = beside_text(metadata, tensors) {
            let own_bytes = tensors.iter().filter_map(TensorMeta::n_bytes).sum();
            return Err(MemoryError::Beside { what, own_bytes });
        }
        let unknown = || MemoryError::Unknown { arch: arch.to_owned() };
        if has_only_draft_heads(metadata, tensors) {
            return Err(MemoryError::Drafts { arch: arch.to_owned() });
        }
        let features = GraphFeatures::of(arch).ok_or_else(unknown)?;
        let plan = GraphPlan::new(&features, metadata, tensors).map_err(MemoryError::NoGraph)?;
        let mut kept = plan.kept();
        as_llama_cpp(&mut kept, arch, &plan, tensors);
        Ok(Self {
            kept,
            declared: metadata.get(&format!("{arch}.context_length")).and_then(Value::as_u64),
            work_width: plan.work_width(),
        })
    }

    /// Lengths of context worth showing: those of [`CONTEXTS`] that the model was made for, or its own.
    pub(crate) fn usual_contexts(&self) -> Vec<u64> {
        let Some(declared) = self.declared.filter(|&n| n > 0) else { return CONTEXTS.to_vec() };
        let mut found: Vec<u64> = CONTEXTS.into_iter().filter(|&n| n <= declared).collect();
        if found.len() < CONTEXTS.len() {
            found.push(declared);
            found.dedup();
        }
        found
    }

    /// Returns the memory for a context of `tokens` tokens, with `weights` bytes of weights and keys and values kept
    /// as `kv`.
    ///
    /// # Errors
    /// If keys and values cannot be kept in that type, or need more than any memory.
    pub(crate) fn at(&self, tokens: u64, kv: GgmlType, weights: u64) -> Result<ContextMemory, MemoryError> {
        if let Some((rows, _)) = self.kept.rows.iter().find(|(rows, _)| !rows.fits(kv)) {
            let block = kv.block_elems();
            return Err(MemoryError::Blocks { ty: kv, key: rows.key, value: rows.value, block });
        }
        let too_long = || MemoryError::TooLong { n_ctx: tokens };
        let kv_bytes = self.kept.kv_bytes(tokens, kv).ok_or_else(too_long)?;
        let state_bytes = self.kept.state_bytes();
        let compute_bytes = self.compute_bytes(tokens).ok_or_else(too_long)?;
        let parts = [weights, kv_bytes, state_bytes, compute_bytes];
        let total_bytes =
            parts.iter().try_fold(0_u64, |sum, &part| sum.checked_add(part)).ok_or_else(too_long)?;
        Ok(ContextMemory { tokens, kv_bytes, state_bytes, compute_bytes, total_bytes })
    }

    /// Estimates what a runtime computes with: F32 values of a step's tokens, and a mask with a row for each of them.
    fn compute_bytes(&self, tokens: u64) -> Option<u64> {
        let step = tokens.min(STEP_TOKENS);
        let values = self.work_width.checked_mul(4)?;
        let masks = self.kept.rows.iter().map(|(rows, _)| rows.reach.n_rows(tokens)).max().unwrap_or(0);
        let mask = masks.checked_mul(MASK_BYTES)?;
        values.checked_add(mask)?.checked_mul(step)
    }

    /// Returns the memory of a file for contexts of the usual lengths, with keys and values as F16; nothing if the model
    /// keeps nothing of a sequence.
    pub(crate) fn of_file(file: &GgufFile) -> Result<Vec<ContextMemory>, MemoryError> {
        let memory = Self::of(file.metadata(), file.tensors())?;
        if memory.kept.rows.is_empty() && memory.kept.n_states == 0 {
            return Ok(Vec::new());
        }
        let weights = weight_bytes(file);
        memory.usual_contexts().into_iter().map(|n| memory.at(n, GgmlType::F16, weights)).collect()
    }

    /// Returns what layers keep, in the words of a report.
    pub(crate) fn by_layers(&self) -> Vec<KeptByLayers> {
        let rows = self.kept.rows.iter();
        rows.map(|&(rows, layers)| KeptByLayers {
            layers,
            heads: rows.heads,
            key: rows.key,
            value: rows.value,
            reach: ReachText(rows.reach),
        })
        .collect()
    }
}

/// Architectures for which llama.cpp keeps nothing, because they see a text as a whole.
const WITHOUT_CACHE: [&str; 14] = [
    "bert",
    "dream",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "llada",
    "llada-moe",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "rnd1",
    "wavtokenizer-dec",
];

/// Changes what a computation has to keep to what llama.cpp does keep.
fn as_llama_cpp(kept: &mut KeptBySequence, arch: &str, plan: &GraphPlan, tensors: &[TensorMeta]) {
    if WITHOUT_CACHE.contains(&arch) {
        *kept = KeptBySequence::default();
        return;
    }
    // Its caches follow the number of the encoder's layers.
    if let Some(encoder) = &plan.encoder {
        kept.rows.iter_mut().for_each(|(_, layers)| *layers = encoder.layers.len());
    }
    // Sparse attention finds its tokens by a key of its own.
    let is_key =
        |name: &str| name.ends_with(".indexer.attn_k.weight") || name.ends_with(".indexer.k_proj.weight");
    let n_layers = plan.layers.len();
    let is_main = |name: &str| {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        layer.is_some_and(|layer| layer < n_layers)
    };
    let keys = tensors.iter().filter(|tensor| is_key(&tensor.name) && is_main(&tensor.name));
    let keys = keys.filter_map(|tensor| usize::try_from(tensor.shape.n_rows()).ok());
    let keys = keys.map(|key| (KeptRows { heads: 1, key, value: 0, reach: Reach::All }, 1));
    kept.rows = merged(kept.rows.iter().copied().chain(keys));
}

/// Puts layers that keep the same together.
fn merged(all: impl Iterator<Item = (KeptRows, usize)>) -> Vec<(KeptRows, usize)> {
    let mut found: BTreeMap<KeptRows, usize> = BTreeMap::new();
    all.for_each(|(rows, layers)| *found.entry(rows).or_default() += layers);
    found.into_iter().collect()
}

/// Bytes of all tensors of a file.
pub(crate) fn weight_bytes(file: &GgufFile) -> u64 {
    file.tensors().iter().filter_map(TensorMeta::n_bytes).fold(0, u64::saturating_add)
}

/// Bytes of a mask's entry: F16.
const MASK_BYTES: u64 = 2;
