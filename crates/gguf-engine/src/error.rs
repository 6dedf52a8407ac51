//! Errors of building or running a graph.

use gguf_core::text::escape;
use gguf_core::{Hint, Shape, SourceError};
use gguf_format::ollama::without_towers;

pub(crate) type Result<T, E = EngineError> = std::result::Result<T, E>;

/// Errors of the reference engine.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum EngineError {
    #[error("architecture `{}`: no graph: {reason}", escape(arch))]
    NoGraph { arch: String, reason: String },
    #[error("card `{}`: `{feature} = {value}` is not built yet", escape(arch))]
    Unsupported { arch: String, feature: &'static str, value: String },
    #[error("[graph]: mixer `{}`: {}", escape(mixer), escape(problem))]
    MixerWords { mixer: String, problem: String },
    #[error("key `{}` is missing", escape(key))]
    MissingKey { key: String },
    #[error("key `{}`: expected {expected}, found {}", escape(key), escape(found))]
    BadKey { key: String, expected: &'static str, found: String },
    #[error("tensor `{}` is missing", escape(tensor))]
    MissingTensor { tensor: String },
    #[error("tensor `{}`: expected shape {expected}, found {found}", escape(tensor))]
    TensorShape { tensor: String, expected: String, found: Shape },
    #[error("{} tensors are not used by the graph: {}", tensors.len(), names(tensors))]
    LeftOver { tensors: Vec<String> },
    #[error("prompt {prompt}: token {token} is outside the vocabulary of {vocabulary}")]
    Token { prompt: usize, token: u32, vocabulary: usize },
    #[error(
        "prompt {prompt}: row {row} is in the prefix, which ends at token {end} and sees the tokens it would predict"
    )]
    PrefixRow { prompt: usize, row: usize, end: usize },
    #[error("the model answers what its encoder reads: a chunk has no tokens for one of the two")]
    NoSource,
    #[error("chunk of {tokens} tokens: the file's rope scaling covers {limit}")]
    ChunkTooLong { tokens: usize, limit: usize },
    #[error(
        "chunk of {tokens} tokens: beyond {limit} the model looks at chosen keys only, which is not built yet"
    )]
    ChunkNotDense { tokens: usize, limit: usize },
    #[error("memory budget of {budget_bytes} bytes: one chunk of {tokens} tokens needs {needed_bytes}")]
    Memory { budget_bytes: u64, needed_bytes: u64, tokens: usize },
    #[error("sequence {sequence} of {tokens} tokens: the limit is {limit}")]
    SequenceTooLong { sequence: usize, tokens: usize, limit: usize },
    #[error("the model cannot go on from where it stopped, token by token: {what}")]
    NotContinued { what: &'static str },
    #[error("the model has no gradient: {what}")]
    NoGradient { what: &'static str },
    #[error("logits are not finite: there is no distribution to draw a token from")]
    NoDistribution,
    #[error("vocabularies differ: {model} and {baseline} rows")]
    Vocabulary { model: usize, baseline: usize },
    #[error(
        "tensor `{}`: token {token}: expected experts from 0 to less than {n_experts}, found {found}",
        escape(tensor)
    )]
    ExpertOfToken { tensor: String, token: u32, found: f32, n_experts: usize },
    #[error(
        "tensor `{}`: element {index}: expected 1 behind the divisors of {n_pairs} pairs, found {found}",
        escape(tensor)
    )]
    RopeFactor { tensor: String, index: usize, found: f32, n_pairs: usize },
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("tensor `{}`: {source}", escape(tensor))]
    Decode { tensor: String, source: gguf_blocks::QuantError },
    #[error("tensor `{}`: rows are not whole blocks of `{ty}`", escape(tensor))]
    Blocks { tensor: String, ty: gguf_core::GgmlType },
    #[error("cannot start {threads} threads: {source}")]
    Threads { threads: usize, source: rayon::ThreadPoolBuildError },
    #[error("hidden states cannot be kept on disk: {0}")]
    Spill(std::io::Error),
    #[error("stopped by the observer of the run")]
    Stopped,
    #[error("interrupted")]
    Cancelled,
}

fn names(tensors: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> =
        tensors.iter().take(SHOWN).map(|name| format!("`{}`", escape(name))).collect();
    if tensors.len() > SHOWN {
        text.push("…".to_owned());
    }
    text.join(", ")
}

impl Hint for EngineError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::NoGraph { .. } | Self::Unsupported { .. } => {
                vec![
                    "`gguf-verify FILE --structure-only` checks structure and tokenizer all the same"
                        .to_owned(),
                ]
            }
            Self::LeftOver { tensors } => {
                let in_card =
                    || "list tensors that the graph ignores on purpose under `unused` in the card".to_owned();
                vec![without_towers(tensors).unwrap_or_else(in_card)]
            }
            Self::Memory { needed_bytes, .. } => {
                vec![format!(
                    "pass `--memory {}M` or more, or a smaller `--ctx`",
                    needed_bytes.div_ceil(1 << 20)
                )]
            }
            Self::PrefixRow { .. } => {
                vec!["the begin token ends the prefix: put it in front of what is to be predicted".to_owned()]
            }
            Self::NotContinued { .. } => {
                vec!["no text of its own can be had: give a text".to_owned()]
            }
            Self::ChunkTooLong { limit, .. } | Self::ChunkNotDense { limit, .. } => {
                vec![format!("pass `--ctx {limit}` or less")]
            }
            Self::Spill(error) => {
                let more =
                    "free space in that folder, or pass a larger `--memory`, so that they stay in memory"
                        .to_owned();
                gguf_core::output::io_hints(error).into_iter().chain([more]).collect()
            }
            _ => Vec::new(),
        }
    }
}
