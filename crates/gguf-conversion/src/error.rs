//! Errors of converting a checkpoint.

use crate::{AdapterError, DiffusionError, KeysError, SizesError};
use gguf_arch::ArchError;
use gguf_checkpoint::CheckpointError;
use gguf_checkpoint::pickle::PickleError;
use gguf_checkpoint::torch::TorchError;
use gguf_core::text::escape;
use gguf_core::{Hint, SourceError};
use gguf_dequant::{DequantError, LoraError};
use gguf_tokenizer::TokenizerError;
use gguf_views::RecipeError;

/// Errors while a conversion is planned.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ConvertError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Arch(#[from] ArchError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Dequant(#[from] DequantError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error("card `{}`: the vocabulary is that of the target model", escape(card))]
    NoTarget { card: String },
    #[error("{}: {reason}", path.display())]
    Pooling { path: std::path::PathBuf, reason: String },
    #[error("{}: the file holds adapters ({}), their matrices change the model", path.display(), listed(names))]
    Adapters { path: std::path::PathBuf, names: Vec<String> },
    #[error("{}: {reason}", path.display())]
    Adapter { path: std::path::PathBuf, reason: String },
    #[error(transparent)]
    Peft(Box<AdapterError>),
    #[error(transparent)]
    Lora(Box<LoraError>),
    #[error(transparent)]
    Sizes(#[from] Box<SizesError>),
    #[error("{}: MLX saved these weights, and {source}", path.display())]
    SavedByMlx { path: std::path::PathBuf, source: Box<ConvertError> },
    /// An error about the configuration of a FastLLM file.
    #[error(transparent)]
    Dictionary(Box<ConvertError>),
    #[error(transparent)]
    Keys(#[from] Box<KeysError>),
    #[error("{}: no architecture card for `{}`", path.display(), escape(arch))]
    UnknownArch { path: std::path::PathBuf, arch: String },
    #[error(transparent)]
    Diffusion(Box<DiffusionError>),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl From<DiffusionError> for ConvertError {
    fn from(error: DiffusionError) -> Self {
        Self::Diffusion(Box::new(error))
    }
}

impl From<LoraError> for ConvertError {
    fn from(error: LoraError) -> Self {
        Self::Lora(Box::new(error))
    }
}

/// Formats names for a message.
fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "without a dictionary".to_owned();
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("`{}`", escape(name))).collect();
    quoted.join(", ")
}

impl ConvertError {
    /// Returns true if the checkpoint may be sound but has an unsupported form. Otherwise it is faulty or could not be
    /// read.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Checkpoint(CheckpointError::Torch { source, .. }) => matches!(
                **source,
                TorchError::Tar
                    | TorchError::TorchScript
                    | TorchError::Pickle(PickleError::Name { .. } | PickleError::Opcode { .. })
            ),
            Self::Checkpoint(error) => matches!(error, CheckpointError::Unsupported { .. }),
            Self::Arch(error) => matches!(
                error,
                ArchError::NoClass { .. }
                    | ArchError::UnknownClass { .. }
                    | ArchError::AmbiguousClass { .. }
                    | ArchError::Required { .. }
                    | ArchError::RopeType { .. }
                    | ArchError::Leftover { .. }
                    | ArchError::ElementType { .. }
            ),
            Self::Tokenizer(error) => matches!(
                error,
                TokenizerError::UnknownPreTokenizer { .. }
                    | TokenizerError::PreNotSaid { .. }
                    | TokenizerError::BuiltinVocabulary { .. }
                    | TokenizerError::NothingFits { .. }
            ),
            Self::Dequant(error) => error.is_unsupported(),
            Self::Diffusion(error) => error.is_unsupported(),
            Self::SavedByMlx { source, .. } | Self::Dictionary(source) => source.is_unsupported(),
            Self::Adapters { .. } | Self::UnknownArch { .. } | Self::NoTarget { .. } => true,
            Self::Source(_)
            | Self::Recipe(_)
            | Self::Pooling { .. }
            | Self::Adapter { .. }
            | Self::Peft(_)
            | Self::Lora(_)
            | Self::Sizes(_)
            | Self::Keys(_)
            | Self::Io(_) => false,
        }
    }
}

impl Hint for ConvertError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Checkpoint(error) => error.hints(),
            Self::Arch(error) => error.hints(),
            Self::Tokenizer(error) => error.hints(),
            Self::Dequant(error) => error.hints(),
            Self::Peft(error) => error.hints(),
            Self::Diffusion(error) => error.hints(),
            Self::Sizes(error) => error.hints(),
            Self::Keys(error) => error.hints(),
            Self::Adapters { .. } => {
                vec!["`--merge-adapters` merges a LoRA adapter into the weights".to_owned()]
            }
            Self::Dictionary(error) => {
                let hint = "a FastLLM file has its dictionary in place of config.json: `--config FILE` gives what is missing there or \
                            `None`; another value takes a new export";
                error.hints().into_iter().chain([hint.to_owned()]).collect()
            }
            Self::SavedByMlx { .. } => {
                vec!["convert the model that MLX was given, as transformers saves it".to_owned()]
            }
            Self::NoTarget { .. } => vec![
                "`--target-model-dir DIR` names the directory of the model that this draft model works for"
                    .to_owned(),
                "`--no-tokenizer` writes no vocabulary".to_owned(),
            ],
            Self::UnknownArch { .. } => vec!["`gguf-convert archs` lists the architectures".to_owned()],
            Self::Lora(_) => {
                vec!["check that the base is the model that the adapter was made for".to_owned()]
            }
            Self::Pooling { path, .. } if path.ends_with("config.json") => vec![
                "without `modules.json` in the folder the transformer alone is converted: `--pooling` of llama.cpp then chooses the \
                 pooling"
                    .to_owned(),
            ],
            Self::Adapter { .. } | Self::Source(_) | Self::Recipe(_) | Self::Pooling { .. } | Self::Io(_) => {
                Vec::new()
            }
        }
    }
}
