//! An adapter of PEFT or MLX: `adapter_config.json`, and its matrices in one file.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::config::ModelDir;
use crate::pieces::of_notes;
use crate::shards::SafetensorsShards;
use crate::torch::TorchFiles;
use crate::wrappers::{self, Owner};
use crate::{CheckpointError, Container};
use gguf_core::WeightMeta;
use gguf_core::account::Piece;
use gguf_core::limits::Limits;
use gguf_core::text::shell_path;

/// File name of the adapter's configuration.
const CONFIG: &str = "adapter_config.json";
/// File names of the matrices; the first that exists is read.
const SAFETENSORS: &str = "adapter_model.safetensors";
const TORCH: &str = "adapter_model.bin";
/// File name of the matrices of MLX, and that of older ones, which is refused.
const MLX: &str = "adapters.safetensors";
const MLX_OLD: &str = "adapters.npz";
/// End of the names under which MLX saves the matrices during a training.
const MLX_STEP: &str = "_adapters.safetensors";
/// Configuration keys that only MLX writes.
const MLX_KEYS: [&str; 2] = ["lora_parameters", "fine_tune_type"];
/// Hint for users of an MLX adapter that cannot be read.
pub const MLX_WAY_OUT: &str = "`mlx_lm.fuse --model BASE --adapter-path ADAPTER --dequantize --save-path OUT` merges it \
                                      into its base model: convert OUT";

/// Hint for users that give a file in place of an adapter's folder.
const FOLDER: &str = "give the folder with `adapter_config.json` and `adapter_model.safetensors`; an adapter of an image model \
                      is loaded as it is, next to the GGUF of the model";

/// Returns a warning if the directory of a model also holds an adapter: transformers loads both.
pub fn unmerged_adapter(dir: &ModelDir) -> Option<String> {
    dir.file(CONFIG)?;
    let file = [SAFETENSORS, TORCH, MLX].into_iter().find(|name| dir.file(name).is_some())?;
    let path = shell_path(&dir.path().display().to_string());
    Some(format!(
        "the directory also has an adapter (`{file}`), which is not merged: if its base is this model, \
         `gguf-convert merge-lora {path} {path}` merges it"
    ))
}

/// An adapter directory; as a [`WeightSource`](gguf_core::WeightSource) it lists the matrices in file order.
#[derive(Debug)]
pub struct AdapterDir {
    dir: ModelDir,
    container: Box<dyn Container>,
    file: &'static str,
    weights: Vec<WeightMeta>,
    warnings: Vec<String>,
}

impl AdapterDir {
    /// Opens an adapter directory; reads its configuration and the header of the file with the matrices.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, CheckpointError> {
        let found = fs_err::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => CheckpointError::NotFound { path: path.to_owned() },
            _ => error.into(),
        })?;
        if !found.is_dir() {
            let what = "a file in place of an adapter's folder";
            return Err(CheckpointError::Unsupported { path: path.to_owned(), what, way_out: FOLDER });
        }
        let dir = ModelDir::without_config(path, None, limits);
        let missing = |name| CheckpointError::FileMissing { dir: path.to_owned(), name };
        let config = dir.json(CONFIG)?.ok_or_else(|| missing(CONFIG))?;
        let dir = dir.with_config(config);
        let is_of_mlx = MLX_KEYS.iter().any(|key| dir.config().contains_key(*key));
        if dir.file(MLX).is_some() && (is_of_mlx || dir.file(SAFETENSORS).is_none()) {
            let container = Box::new(SafetensorsShards::in_data_order(&dir, MLX)?);
            return Ok(Self::over(dir, container, MLX));
        }
        if dir.file(SAFETENSORS).is_some() {
            let container = Box::new(SafetensorsShards::in_data_order(&dir, SAFETENSORS)?);
            return Ok(Self::over(dir, container, SAFETENSORS));
        }
        let refused = |name: &str, what, way_out| {
            Err(CheckpointError::Unsupported { path: path.join(name), what, way_out })
        };
        if dir.file(MLX_OLD).is_some() {
            return refused(MLX_OLD, "an adapter of an old MLX", MLX_WAY_OUT);
        }
        if dir.file(TORCH).is_none() {
            let whole = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"];
            if let Some(name) = whole.into_iter().find(|name| dir.file(name).is_some()) {
                let way_out = "`gguf-convert hf2gguf DIR` converts the whole model that is there";
                return refused(name, "a whole model in place of an adapter", way_out);
            }
            let names = dir.file_names()?;
            if let Some(name) = names.iter().rfind(|name| name.ends_with(MLX_STEP)) {
                return refused(
                    name,
                    "a step of a training by MLX",
                    "copy the file to `adapters.safetensors`",
                );
            }
            if let Some(name) = names.iter().find(|name| **name == format!("{SAFETENSORS}.index.json")) {
                let way_out =
                    "PEFT reads one file, too: save the tensors of all files as `adapter_model.safetensors`";
                return refused(name, "an adapter in several files", way_out);
            }
            return Err(missing(SAFETENSORS));
        }
        let chosen = ModelDir::without_config(path, Some(TORCH.to_owned()), limits);
        let container = TorchFiles::find(&chosen, &[])?.ok_or_else(|| missing(TORCH))?;
        Ok(Self::over(dir, Box::new(container), TORCH))
    }

    fn over(dir: ModelDir, container: Box<dyn Container>, file: &'static str) -> Self {
        let mut weights = container.weights().to_vec();
        let mut warnings = container.warnings().to_vec();
        warnings.extend(wrappers::unwrap(&mut weights, Owner::Adapter));
        Self { dir, container, file, weights, warnings }
    }

    /// Returns true if MLX saved the matrices.
    pub fn is_of_mlx(&self) -> bool {
        self.file == MLX
    }

    /// Gives the matrices other names, and shapes of as many elements.
    pub fn reshape(&mut self, original: impl Fn(&WeightMeta) -> WeightMeta) {
        for meta in &mut self.weights {
            *meta = original(meta);
        }
    }

    /// The directory and its small files.
    pub fn dir(&self) -> &ModelDir {
        &self.dir
    }

    /// The content of `adapter_config.json`.
    pub fn config(&self) -> &Map<String, Json> {
        self.dir.config()
    }

    /// Path of `adapter_config.json`.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join(CONFIG)
    }

    /// Paths of the files that are read.
    pub fn paths(&self) -> Vec<PathBuf> {
        vec![self.config_path(), self.dir.path().join(self.file)]
    }

    /// Returns what becomes of the notes in the header of the matrices' file.
    pub fn notes(&self) -> Vec<Piece> {
        of_notes(&self.container.parts())
    }

    /// Warnings about oddities in the files that do not prevent reading them.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

crate::read_through_container!(AdapterDir, |own| &own.weights);
