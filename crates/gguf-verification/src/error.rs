//! Errors of verification.

use std::path::PathBuf;

use crate::{ChatError, LogitFileError, PromptPlace, TaskError};
use gguf_core::Hint;
use gguf_core::text::escape;
use gguf_engine::EngineError;

/// Errors in a file of prompts.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum PromptError {
    #[error("{}: line {line}: invalid UTF-8 at byte {column}", path.display())]
    Utf8 { path: PathBuf, line: usize, column: usize },
    #[error("{}: {what}; expected text in UTF-8", path.display())]
    Binary { path: PathBuf, what: &'static str },
    #[error("{}: {place}: {source}", path.display())]
    Json { path: PathBuf, place: PromptPlace, source: serde_json::Error },
    #[error("{}: {place}: {}; expected {expected}", path.display(), escape(found))]
    Form { path: PathBuf, place: PromptPlace, found: String, expected: &'static str },
    #[error("{}: looks like JSON, but is not valid: {}", path.display(), escape(reason))]
    NotJson { path: PathBuf, reason: String },
    #[error("{}: a table ({form}); expected text, or prompts as JSON", path.display())]
    Table { path: PathBuf, form: &'static str },
    #[error("{}: no prompts", path.display())]
    Empty { path: PathBuf },
    #[error("prompt {prompt}: {tokens} tokens with its completion, the context holds {n_ctx}")]
    TooLong { prompt: usize, tokens: usize, n_ctx: usize },
    #[error("prompt {prompt}: {reason}")]
    Encode { prompt: usize, reason: String },
    #[error("prompt {prompt}: messages: {reason}")]
    Template { prompt: usize, reason: ChatError },
}

/// Reasons why a verification could not run.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum VerifyError {
    #[error(transparent)]
    Prompts(#[from] PromptError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("text cannot be encoded: {reason}")]
    NoEncoder { reason: String },
    #[error("the model is an encoder: it has no logits")]
    NoPredictions,
    #[error("no token to score: every prompt has fewer than two tokens")]
    NothingToScore,
    #[error("stride {stride}: expected 1 to {}, less than the context of {n_ctx}", n_ctx.saturating_sub(1))]
    Stride { stride: usize, n_ctx: usize },
    #[error("context of {n_ctx} tokens: expected at least 4")]
    Context { n_ctx: usize },
    #[error("source: {0}")]
    OriginFiles(#[from] gguf_tokenizer::TokenizerError),
    #[error("source: {}: {}", path.display(), gguf_core::text::escape(reason))]
    OriginTokenizer { path: PathBuf, reason: String },
    #[error("source: {}: no tokenizer: neither tokenizer.json nor a SentencePiece model, nor one that can be converted", path.display())]
    NoOriginTokenizer { path: PathBuf },
    #[error(transparent)]
    LogitFile(#[from] LogitFileError),
    #[error(transparent)]
    Tasks(#[from] TaskError),
    #[error(transparent)]
    Imatrix(#[from] gguf_format::ImatrixError),
    #[error(
        "chunks {first} to {last}: what `{}` is multiplied with is not finite",
        gguf_core::text::escape(tensor)
    )]
    NonFiniteActivations { tensor: String, first: usize, last: usize },
    #[error("no chunk is left behind the first {first}: the prompts have {n_chunks}")]
    NoChunksLeft { first: usize, n_chunks: usize },
    #[error(
        "the model has no `output.weight`: its output is computed with `{}`",
        gguf_core::text::escape(head)
    )]
    NoOutputTensor { head: String },
    #[error("there are no parts of {what}")]
    NoParts { what: String },
    #[error("part {share}: the prompts have {n_windows} chunks, and no part may be empty")]
    FewWindows { share: gguf_format::Share, n_windows: usize },
    #[error("baseline: {0}")]
    Baseline(#[source] EngineError),
}

impl Hint for PromptError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::TooLong { tokens, .. } => vec![format!("pass `--ctx {tokens}` or more")],
            Self::Template { reason: ChatError::Missing, .. } => vec![
                "give the prompts as text, or the model a template: `gguf-inspect template MODEL --set FILE`"
                    .to_owned(),
            ],
            Self::Empty { .. } => {
                vec!["a text file is one document; a file named `*.jsonl` is one prompt a line".to_owned()]
            }
            Self::Json { .. } | Self::Form { .. } | Self::NotJson { .. } => {
                vec![FORMS.to_owned(), PLAIN.to_owned()]
            }
            Self::Table { .. } => vec![
                "make the column of texts lines of JSON: `{\"text\": \"..\"}`, in a file named `*.jsonl`"
                    .to_owned(),
                PLAIN.to_owned(),
            ],
            Self::Binary { what: "a GGUF file", .. } => {
                vec!["models are given by themselves, a reference behind `--baseline`".to_owned()]
            }
            _ => Vec::new(),
        }
    }
}

/// Hint about the JSON forms of prompts.
const FORMS: &str = "prompts as JSON are an array, or a value a line, of texts, `{\"text\": ..}`, `{\"tokens\": [..]}`, \
    `{\"prompt\": .., \"completion\": ..}` and `{\"messages\": [..]}`";
/// Hint about reading data as prose.
const PLAIN: &str = "`--plain-text` reads every prompt file as one text, whatever it looks like";

impl Hint for VerifyError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Prompts(error) => error.hints(),
            Self::LogitFile(error) => error.hints(),
            Self::Tasks(error) => error.hints(),
            Self::Engine(error) | Self::Baseline(error) => error.hints(),
            Self::Imatrix(error) => error.hints(),
            Self::Io(error) => gguf_core::output::io_hints(error),
            Self::NonFiniteActivations { .. } => {
                vec!["the weights are damaged: `gguf-verify MODEL --structure-only` looks at each".to_owned()]
            }
            Self::NoOutputTensor { .. } => vec![
                "leave `--process-output` out: the token embedding is quantized without an importance matrix"
                    .to_owned(),
            ],
            Self::NoParts { .. } => vec!["leave `--part` out: one run gives the verdict".to_owned()],
            Self::FewWindows { n_windows, .. } => {
                vec![format!("cut the run into {n_windows} parts at most, or give more text")]
            }
            Self::NoEncoder { .. } => {
                vec!["give token ids: a file named `*.jsonl` with lines `{\"tokens\": [..]}`".to_owned()]
            }
            _ => Vec::new(),
        }
    }
}
