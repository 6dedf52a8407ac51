//! Errors of reading an msModelSlim checkpoint.

use gguf_core::text::escape;
use gguf_core::{ElementType, Hint, Shape, SourceError};

/// Reasons why the tensors and their description do not form a model.
#[derive(Debug, thiserror::Error)]
pub enum MsModelSlimError {
    #[error("tensor `{}`: unknown quantization type `{}`", escape(tensor), escape(label))]
    UnknownLabel { tensor: String, label: String },
    #[error("tensor `{}`: `{}` cannot be converted: {why}", escape(tensor), escape(label))]
    Refused { tensor: String, label: String, why: &'static str },
    #[error("tensor `{}` cannot be converted: {why}", escape(tensor))]
    RunTime { tensor: String, why: &'static str },
    #[error("tensor `{}`: {ty} codes without a quantization type in the description", escape(tensor))]
    NoLabel { tensor: String, ty: ElementType },
    #[error("tensor `{}`: described as `{}`, but its elements are {ty}", escape(tensor), escape(label))]
    Contradiction { tensor: String, label: String, ty: ElementType },
    #[error("tensor `{}`: `{}` needs `{parameter}`, which is missing", escape(tensor), escape(label))]
    ParameterMissing { tensor: String, label: String, parameter: &'static str },
    #[error("tensor `{}`: no quantized weight belongs to it", escape(tensor))]
    Orphan { tensor: String },
    #[error("tensor `{}`: {found} elements, expected {expected}", escape(tensor))]
    ParameterType { tensor: String, found: ElementType, expected: &'static str },
    #[error("tensor `{}`: shape {found} does not fit {expected}", escape(tensor))]
    ParameterShape { tensor: String, found: Shape, expected: String },
    #[error("tensor `{}`: shape {found} is no matrix of codes", escape(tensor))]
    WeightShape { tensor: String, found: Shape },
    #[error("tensor `{}` is there twice, once behind a wrapper", escape(tensor))]
    Duplicate { tensor: String },
    #[error("tensor `{}`: element {index} is {value}", escape(tensor))]
    NonFinite { tensor: String, index: u64, value: f64 },
    #[error("tensor `{}`: value {value}, expected a positive number", escape(tensor))]
    InputScale { tensor: String, value: f64 },
    #[error("tensor `{}`: element {index} is {value:#x}, expected the bits of an F32", escape(tensor))]
    HighBits { tensor: String, index: u64, value: u64 },
    #[error("tensor `{}`: element {index} is {value}, but `{}` is symmetric", escape(tensor), escape(label))]
    OffsetOfSymmetric { tensor: String, label: String, index: u64, value: f64 },
    #[error("tensor `{}`: element {index} is {value}, expected -8 to 7", escape(tensor))]
    Code { tensor: String, index: u64, value: i8 },
    #[error(
        "`{}` feeds quantized and float layers, and `weight` differs from `module.weight`: no single norm serves both",
        escape(norm)
    )]
    MixedNorm { norm: String },
    #[error("`{}`: {why}", escape(norm))]
    NormBias { norm: String, why: &'static str },
    /// An error of the inner source.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl MsModelSlimError {
    /// Returns true if the checkpoint may be valid but is quantized in an unsupported way.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::UnknownLabel { .. }
                | Self::Refused { .. }
                | Self::RunTime { .. }
                | Self::MixedNorm { .. }
                | Self::NormBias { .. }
        )
    }
}

impl Hint for MsModelSlimError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Refused { .. } | Self::RunTime { .. } | Self::MixedNorm { .. } | Self::NormBias { .. } => {
                "convert the float checkpoint, or quantize it again without this feature"
            }
            Self::NoLabel { .. } | Self::Contradiction { .. } | Self::Orphan { .. } => {
                "`quant_model_description*.json` and the weights belong to different exports: fetch both again"
            }
            Self::UnknownLabel { .. } => {
                "convert the float checkpoint: the type is of a newer msModelSlim than is known here"
            }
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}
