//! Forms of checkpoints that are recognized by name but have no reader here. A reader that is added takes its form
//! out of this file and gets an arm in [`super::Checkpoint::open`].

use std::path::{Path, PathBuf};

use crate::checkpoint::{CheckpointError, msmodelslim};

/// A form of weights without a reader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// Meta's own layout: `consolidated.NN.pth` with `params.json`.
    #[error("a checkpoint in Meta's own layout")]
    Meta,
    /// Mistral's own layout: `consolidated*.safetensors` with `params.json`.
    #[error("a checkpoint in Mistral's own layout")]
    Mistral,
    /// A FastLLM file.
    #[error("a FastLLM `.flm` file")]
    FastLlm,
    /// A GGUF file where a checkpoint is expected.
    #[error("a GGUF file as a checkpoint")]
    Gguf,
    /// Weights of an adapter alone.
    #[error("an adapter without its base model")]
    Adapter,
}

impl Unsupported {
    /// What to try.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Meta => {
                "use the repository's Hugging Face files, or make them with transformers' `convert_llama_weights_to_hf.py`"
            }
            Self::Mistral => "use the repository's `model*.safetensors` and `config.json`",
            Self::Gguf => "use gguf-quantize to change the types of a GGUF file",
            Self::Adapter => "merge the adapter into its base model first",
            Self::FastLlm => "use `gguf-convert flm2gguf FILE`",
        };
        vec![hint.to_owned()]
    }
}

/// Names a form by a file; `None` for forms that are read and files that say nothing.
pub(super) fn form_of(name: &str) -> Option<Unsupported> {
    let lower = name.to_ascii_lowercase();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| lower.ends_with(suffix));
    if lower.starts_with("consolidated") && ends(&[".safetensors"]) {
        Some(Unsupported::Mistral)
    } else if lower.starts_with("consolidated") && ends(&[".pth", ".pt"]) {
        Some(Unsupported::Meta)
    } else if ends(&[".flm"]) {
        Some(Unsupported::FastLlm)
    } else if lower.starts_with("adapter_model") {
        Some(Unsupported::Adapter)
    } else if ends(&[".gguf"]) {
        Some(Unsupported::Gguf)
    } else {
        None
    }
}

/// The error for a path that is a file, or for a directory whose weights no reader takes. `names` are the files of
/// the directory, sorted.
pub(super) fn unreadable(dir: &Path, names: &[String]) -> CheckpointError {
    for name in names {
        if let Some(what) = form_of(name) {
            return CheckpointError::Unsupported { path: dir.join(name), what };
        }
    }
    if names.iter().any(|name| msmodelslim::is_weights(name)) {
        // Whoever opens these finds the description first.
        return CheckpointError::FileMissing { dir: dir.to_owned(), name: "quant_model_description.json" };
    }
    CheckpointError::NoWeights { dir: dir.to_owned() }
}

/// Whether a file of this name can be PyTorch's.
pub(super) fn is_torch(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension
        .is_some_and(|own| ["bin", "pth", "pt", "ckpt"].iter().any(|known| own.eq_ignore_ascii_case(known)))
}

/// The directory and name of a weight file that stands for its checkpoint.
///
/// # Errors
/// The path is neither a directory nor a file of a form that is read so.
pub(super) fn single_file(path: &Path) -> Result<(&Path, String), CheckpointError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let owned: PathBuf = path.to_owned();
    match form_of(name) {
        Some(what) => Err(CheckpointError::Unsupported { path: owned, what }),
        None if is_torch(name) => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            Ok((dir.unwrap_or(Path::new(".")), name.to_owned()))
        }
        None => Err(CheckpointError::NotADirectory { path: owned }),
    }
}
