//! Errors of the choice of types for a target size.

use crate::{OptionError, QuantizeError};
use gguf_core::text::{bytes, escape};
use gguf_core::{GgmlType, Hint, SourceError};
use gguf_format::PlanError;

/// Errors that prevent the choice of types for a target size.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum AllocateError {
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Rule(#[from] OptionError),
    #[error("type {ty}: nothing can be quantized to it")]
    NotATarget { ty: GgmlType },
    #[error("type {ty} needs an importance matrix, none given")]
    NeedsImatrix { ty: GgmlType },
    #[error("tensor `{}`: none of the types fits its {n_cols} columns", escape(tensor))]
    NoType { tensor: String, n_cols: u64 },
    #[error("no tensor is left whose type could be chosen")]
    NothingToChoose,
    #[error(
        "a file of at most {target_bytes} bytes ({}) is asked for; with the smallest types it has {least_bytes} ({})",
        bytes(*target_bytes),
        bytes(*least_bytes)
    )]
    TooSmall { target_bytes: u64, least_bytes: u64, bits_per_weight: f64 },
    #[error(
        "a file of at most {target_bytes} bytes is asked for, the plan has {file_bytes}: that is a fault of this program"
    )]
    TooLarge { target_bytes: u64, file_bytes: u64 },
}

impl Hint for AllocateError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Quantize(error) => error.hints(),
            Self::Rule(error) => error.hints(),
            Self::NeedsImatrix { .. } => vec!["give one with `--imatrix FILE`; `gguf-verify imatrix MODEL --prompts TEXT -o FILE` measures it".to_owned()],
            Self::NoType { .. } => {
                vec![
                    "add a type of shorter blocks to `--types`: `q8_0` and `q4_0` have 32 elements"
                        .to_owned(),
                ]
            }
            Self::NothingToChoose => vec!["leave out options that name types".to_owned()],
            Self::TooSmall { least_bytes, bits_per_weight, .. } => {
                let least = (bits_per_weight * 1000.0).ceil() / 1000.0;
                vec![
                    format!(
                        "the smallest possible are `--target-size {least_bytes}` and `--target-bpw {least}`"
                    ),
                    "add smaller types to `--types`".to_owned(),
                ]
            }
            _ => Vec::new(),
        }
    }
}
