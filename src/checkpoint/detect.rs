//! Forms of checkpoints that are recognized by name but have no reader here. A reader that is added takes its form
//! out of this file and gets an arm in [`super::Checkpoint::open`].

use std::path::{Path, PathBuf};

use crate::checkpoint::CheckpointError;

/// A form of weights without a reader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// `pytorch_model*.bin`, `*.pt`, `*.pth`.
    #[error("a PyTorch checkpoint")]
    PyTorch,
    /// Mistral's own layout: `consolidated*.safetensors` with `params.json`.
    #[error("a checkpoint in Mistral's own layout")]
    Mistral,
    /// A FastLLM file.
    #[error("a FastLLM `.flm` file")]
    FastLlm,
    /// Ascend msModelSlim: `quant_model_description*.json`.
    #[error("an msModelSlim checkpoint")]
    MsModelSlim,
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
            Self::PyTorch => {
                "save the model as safetensors: `model.save_pretrained(dir, safe_serialization=True)`"
            }
            Self::Mistral => "use the repository's `model*.safetensors` and `config.json`",
            Self::Gguf => "use gguf-quantize to change the types of a GGUF file",
            Self::Adapter => "merge the adapter into its base model first",
            Self::FastLlm | Self::MsModelSlim => "use the checkpoint in its original float weights",
        };
        vec![hint.to_owned()]
    }
}

/// Names a form by a file; `None` for forms that are read and files that say nothing.
fn form_of(name: &str) -> Option<Unsupported> {
    let lower = name.to_ascii_lowercase();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| lower.ends_with(suffix));
    if lower.starts_with("quant_model_description") || lower.starts_with("quant_model_weight") {
        Some(Unsupported::MsModelSlim)
    } else if lower.starts_with("consolidated") && ends(&[".safetensors"]) {
        Some(Unsupported::Mistral)
    } else if lower.starts_with("pytorch_model") || ends(&[".pt", ".pth"]) {
        Some(Unsupported::PyTorch)
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
    CheckpointError::NoWeights { dir: dir.to_owned() }
}

/// The error for a path that is not a directory.
pub(super) fn not_a_directory(path: &Path) -> CheckpointError {
    let what = path.file_name().and_then(|name| form_of(&name.to_string_lossy()));
    let path: PathBuf = path.to_owned();
    match what {
        Some(what) => CheckpointError::Unsupported { path, what },
        None => CheckpointError::NotADirectory { path },
    }
}
