//! Errors of reading a quantized checkpoint.
//!
//! The kinds are stable; every message names the tensor or key, the value found, and the value expected.

use crate::flm::RangeError;
use crate::msmodelslim::MsModelSlimError;
use gguf_core::text::escape;
use gguf_core::{ElementType, Hint, Shape, SourceError};

pub(crate) type Result<T, E = DequantError> = std::result::Result<T, E>;

/// Reasons why a quantized checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum DequantError {
    #[error("{file}: unknown quantization method `{}`; known are {known}", escape(method))]
    UnknownMethod { file: String, method: String, known: String },
    #[error("{file}: unsupported quantization `{}`: {reason}", escape(method))]
    UnsupportedMethod { file: String, method: String, reason: String },
    #[error("{place}: unsupported variant `{}`: {reason}", escape(found))]
    UnsupportedVariant { place: String, found: String, reason: String },
    #[error("{file}: `{}` {problem}", escape(key))]
    BadConfig { file: String, key: String, problem: String },
    #[error("module `{}`: tensor `{}` is missing", escape(module), escape(tensor))]
    MissingTensor { module: String, tensor: String },
    #[error("tensor `{}`: {problem}", escape(tensor))]
    OrphanTensor { tensor: String, problem: String },
    #[error("module `{}`: both `{}` and `{}` are there", escape(module), escape(first), escape(second))]
    AmbiguousModule { module: String, first: String, second: String },
    #[error("tensor `{}`: elements are {found}, expected {expected}", escape(tensor))]
    DtypeMismatch { tensor: String, found: ElementType, expected: String },
    #[error("tensor `{}`: shape is {found}, expected {expected}", escape(tensor))]
    ShapeMismatch { tensor: String, found: Shape, expected: String },
    #[error("tensor `{}`: element {index} is {found}, expected {expected}", escape(tensor))]
    IndexOutOfRange { tensor: String, index: u64, found: i64, expected: String },
    #[error("tensor `{}`: element {index} is {found}", escape(tensor))]
    NonFinite { tensor: String, index: u64, found: String },
    #[error("{file}: `{}` is {configured}, but tensor `{}` has {found}", escape(key), escape(tensor))]
    ConfigTensorConflict { file: String, key: String, configured: String, tensor: String, found: String },
    #[error("tensor `{}`: {problem}", escape(tensor))]
    BadMetadata { tensor: String, problem: String },
    #[error(transparent)]
    MsModelSlim(MsModelSlimError),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl From<MsModelSlimError> for DequantError {
    fn from(error: MsModelSlimError) -> Self {
        match error {
            MsModelSlimError::Source(error) => Self::Source(error),
            error => Self::MsModelSlim(error),
        }
    }
}

impl DequantError {
    /// Returns the kind of the error, a stable identifier for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::UnknownMethod { .. } => "unknown-method",
            Self::UnsupportedMethod { .. } => "unsupported-method",
            Self::UnsupportedVariant { .. } => "unsupported-variant",
            Self::BadConfig { .. } => "bad-config",
            Self::MissingTensor { .. } => "missing-tensor",
            Self::OrphanTensor { .. } => "orphan-tensor",
            Self::AmbiguousModule { .. } => "ambiguous-module",
            Self::DtypeMismatch { .. } => "dtype-mismatch",
            Self::ShapeMismatch { .. } => "shape-mismatch",
            Self::IndexOutOfRange { .. } => "index-out-of-range",
            Self::NonFinite { .. } => "non-finite",
            Self::ConfigTensorConflict { .. } => "config-tensor-conflict",
            Self::BadMetadata { .. } => "bad-metadata",
            Self::MsModelSlim(_) => "msmodelslim",
            Self::Range(_) => "value-range",
            Self::Source(_) => "source",
        }
    }

    /// Returns true if the checkpoint may be valid but is stored in an unsupported way; false if it is broken.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::UnknownMethod { .. } | Self::UnsupportedMethod { .. } | Self::UnsupportedVariant { .. } => {
                true
            }
            Self::MsModelSlim(error) => error.is_unsupported(),
            _ => false,
        }
    }

    /// Converts the error to the one that a layer reports while reading rows of `weight`.
    pub fn reading(self, weight: &str) -> SourceError {
        match self {
            Self::Source(error) => error,
            error => SourceError { tensor: weight.to_owned(), source: error.into() },
        }
    }
}

impl Hint for DequantError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::UnknownMethod { .. } | Self::UnsupportedMethod { .. } | Self::UnsupportedVariant { .. } => {
                vec!["convert from the checkpoint in its original float weights".to_owned()]
            }
            Self::BadConfig { key, .. } if key.ends_with("quant_method") => vec![
                "name the tool that quantized the model as `quant_method`; where the weights are plain floats, delete \
                 `quantization_config`"
                    .to_owned(),
            ],
            Self::BadConfig { key, problem, .. } if key == "quantization" && problem.starts_with("is missing") => {
                vec!["take config.json of the quantized model: MLX writes `group_size` and `bits` into it".to_owned()]
            }
            Self::BadConfig { file, problem, .. } if problem.starts_with("has the pattern") => {
                vec![format!("list the modules that the pattern means in {file}, by name or by simpler patterns")]
            }
            Self::MissingTensor { .. } | Self::OrphanTensor { .. } => vec![
                "the download may be incomplete, or a program has dropped `quantization_config` of config.json: take all files \
                 of the quantized model from one place"
                    .to_owned(),
            ],
            Self::DtypeMismatch { .. }
            | Self::ShapeMismatch { .. }
            | Self::NonFinite { .. }
            | Self::BadMetadata { .. } => {
                vec![
                    "the file may be damaged, or written by a program that is not known: fetch it again, or convert the \
                     checkpoint in its original float weights"
                        .to_owned(),
                ]
            }
            Self::MsModelSlim(error) => error.hints(),
            _ => Vec::new(),
        }
    }
}
