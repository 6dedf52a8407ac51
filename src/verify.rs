//! May this file be shipped? Structure, tensors, tokenizer, perplexity, and against a baseline the divergence.
//!
//! [`verify`] runs the checks in that order and returns a [`Report`] with a [`Verdict`].

mod baseline;
mod chat;
mod encoder;
mod error;
mod imatrix;
mod imatrix_file;
mod integrity;
mod judge;
mod kld;
mod measure;
mod origin;
mod perplexity;
mod prompts;
mod report;
mod round_trip;
mod samples;
mod vocabulary;
mod windows;

pub use chat::{ChatError, ChatTemplate};
pub use encoder::TextEncoder;
pub use error::{PromptError, VerifyError};
pub use imatrix::{Importance, ImportanceOptions, collect_importance};
pub use integrity::{StructureOptions, check_structure};
pub use judge::{Model, VerifyOptions, last_logits, verify};
pub use kld::{Divergence, WorstToken};
pub use measure::{Position, Recall, Reference};
pub use origin::OriginTokenizer;
pub use perplexity::{Estimate, Perplexity};
pub use prompts::{Prompt, PromptSource, read_prompts};
pub use report::{Finding, PromptReport, Report, Severity, Thresholds, Verdict};
pub use windows::{Scoring, Span, Window, windows};
