//! Why a checkpoint cannot be converted.

use crate::arch::ArchError;
use crate::checkpoint::CheckpointError;
use crate::core::{Hint, SourceError};
use crate::tokenizer::TokenizerError;
use crate::transform::RecipeError;
use crate::transform::dequant::DequantError;
use crate::transform::dequant::msmodelslim::MsModelSlimError;

/// Any error while a conversion is planned.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The card, or what it makes of the checkpoint.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// The tokenizer files.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// What the quantization of the checkpoint says about itself.
    #[error(transparent)]
    Dequant(#[from] DequantError),
    /// Scales or codes of a quantized checkpoint could not be read while planning.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Codes, scales and description of an msModelSlim checkpoint.
    #[error(transparent)]
    MsModelSlim(#[from] MsModelSlimError),
    /// An operation that does not fit its tensor.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A tokenizer mode that cards may name but that is not known.
    #[error("card `{card}`: unknown tokenizer mode `{mode}`")]
    TokenizerMode {
        /// The card.
        card: String,
        /// The mode.
        mode: String,
    },
    /// The description of how an embedding model pools.
    #[error("{}: {reason}", path.display())]
    Pooling {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file given as an option.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Hint for ConvertError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Checkpoint(error) => error.hints(),
            Self::Arch(error) => error.hints(),
            Self::Tokenizer(error) => error.hints(),
            Self::Dequant(error) => error.hints(),
            Self::MsModelSlim(error) => error.hints(),
            Self::Source(_)
            | Self::Recipe(_)
            | Self::TokenizerMode { .. }
            | Self::Pooling { .. }
            | Self::Io(_) => Vec::new(),
        }
    }
}
