//! May this file be shipped? Structure, tensors, tokenizer, perplexity, and against a baseline the divergence.
//!
//! [`verify`] runs the checks in that order and returns a [`Verification`]: a [`Report`] with a [`Verdict`], and every position that was computed.

mod baseline_keys;
mod chat;
mod divergence;
mod encoder;
mod error;
mod imatrix;
mod logits;
mod measure;
mod model;
mod origin;
mod perplexity;
mod prompts;
mod report;
mod round_trip;
mod running;
mod samples;
mod structure;
mod thresholds;
mod verification;
mod vocabulary;
mod windows;

pub use chat::{ChatError, ChatTemplate};
pub use divergence::{Divergence, WorstToken};
pub use encoder::TextEncoder;
pub use error::{PromptError, VerifyError};
pub use imatrix::{Importance, ImportanceOptions, collect_importance};
pub use logits::last_logits;
pub use measure::{Position, Recall, Reference};
pub use model::Model;
pub use origin::OriginTokenizer;
pub use perplexity::{Estimate, Perplexity};
pub use prompts::{
    Prompt, PromptFile, PromptFileReport, PromptForm, PromptPlace, PromptSource, read_prompts,
};
pub use report::{Finding, PromptReport, Report, Severity, Verdict};
pub use structure::{StructureOptions, check_structure};
pub use thresholds::Thresholds;
pub use verification::{Verification, VerifyOptions, verify};
pub use windows::{Cut, Rows, Scoring, Span, Window, cut};
