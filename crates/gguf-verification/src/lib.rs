//! Verification of a model file: structure, tensors, tokenizer, perplexity, and the divergence from a baseline.
//!
//! [`verify`] runs the checks in that order and returns a [`Verification`]: a [`Report`] with a [`Verdict`], and every
//! position that was computed.

mod answer;
mod answers;
mod chat;
mod checks;
mod cost;
mod coverage;
mod divergence;
mod drafts;
mod embeddings;
mod encoder;
mod error;
mod exact;
mod extras;
mod figures;
mod imatrix;
mod judgement;
mod known;
mod logit_file;
mod logits;
mod masked;
mod measure;
mod model;
mod model_parts;
mod options;
mod parts;
mod perplexity;
mod prompts;
mod quality;
mod reference_twin;
mod report;
mod running;
mod samples;
mod side_by_side;
mod statistics;
mod structure;
mod tasks;
mod texts;
mod verification;
mod weights;
mod windows;

pub use answers::cut_sources;
pub use chat::{Chat, ChatError, ChatRenderer, ChatTemplate, IsolatedChat, NoTemplate, renderer};
pub use checks::Check;
pub use checks::chat_template::findings as chat_template_findings;
pub use checks::label::{FileLabel, Label, label_findings};
pub use checks::source_tokenizer::OriginTokenizer;
pub use cost::Cost;
pub use coverage::{Aspect, Coverage, JudgedAspect, UnjudgedAspect};
pub use divergence::{Divergence, WorstToken};
pub use drafts::are_alone as has_only_draft_heads;
pub use embeddings::{EmbeddingDifference, EmbeddingReport, HealthyVectors};
pub use encoder::TextEncoder;
pub use error::{PromptError, VerifyError};
pub use extras::{Extras, SaveLogits};
use figures::Measured;
pub use figures::{Better, Figure, FigureRow, LimitLine, LimitRange, Subject, Thresholds};
pub use imatrix::{
    Collected, ExactColumns, ExpertCoverage, Fingerprint, ImatrixStatistics, ImportanceOptions,
    ImportanceRun, LayerStatistics, SumCollector, TensorStatistics, expert_coverage, imatrix_statistics,
};
pub use logit_file::read::LogitFile;
pub use logit_file::write::LogitWriter;
pub use logit_file::{LogitFileError, LogitFileSize};
pub use logits::last_logits;
pub use masked::MaskedReport;
pub use measure::{Position, Recall, Reference};
pub use model::Model;
pub use model_parts::ModelParts;
pub use options::VerifyOptions;
pub use parts::{CombinedVerification, PartError, PartLabel, VerificationPart, combine_parts, verify_part};
pub use perplexity::{Estimate, Mean, Perplexity};
pub use prompts::{
    Prompt, PromptFile, PromptFileReport, PromptForm, PromptPlace, PromptSource, read_prompts,
};
pub use quality::{Quality, UnknownQuality};
pub use report::document::ReportDocument;
pub use report::{Finding, HealthyCost, PromptReport, Report, Severity, Verdict};
pub use samples::BUILTIN_TEXT;
pub use side_by_side::divergence_on;
pub use statistics::{Distribution, Spread};
pub use structure::{StructureOptions, check_structure, header_errors};
pub use tasks::{LeftOut, TaskError, TaskKind, TaskOutcome, TaskReport, TaskSet};
pub use verification::{Verification, verify, verify_with};
pub use weights::{
    BadBlock, BadRow, BlockState, Cause, FirstDifference, Marked, RatioHistogram, SOLVER_KEY, TensorWeights,
    WeightOptions, WeightOutcome, WeightReport, compare_weights,
};
pub use windows::{Cut, RowSelection, Scoring, Span, Window, cut};
