//! Forms of checkpoints that are recognized by name but have no reader here. A reader that is added takes its form
//! out of this file and gets an arm in [`super::Checkpoint::open`].

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::checkpoint::{CheckpointError, msmodelslim};
use crate::core::text::escape;

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
    /// `quantization_config` in `config.json`.
    #[error("weights quantized by `{}`", escape(.0))]
    Quantized(String),
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
            Self::Quantized(_) => "use the checkpoint in its original float weights",
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

/// Refuses a configuration whose weights are quantized.
///
/// # Errors
/// [`CheckpointError::Unsupported`] with the method's name.
pub fn refuse_quantized(config_path: &Path, config: &Map<String, Value>) -> Result<(), CheckpointError> {
    // Multi-modal configurations carry it beside the text model's.
    let nested = config.get("text_config").and_then(|text| text.get("quantization_config"));
    let Some(Value::Object(quantization)) = config.get("quantization_config").or(nested) else {
        return Ok(());
    };
    let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("quantization_config");
    Err(CheckpointError::Unsupported {
        path: config_path.to_owned(),
        what: Unsupported::Quantized(method.to_owned()),
    })
}
