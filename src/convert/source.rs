//! Opening what is to be converted: the directory, its container, and the layers that turn codes into floats.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, ModelDir};
use crate::convert::{ConvertError, ConvertOptions};
use crate::core::{WeightMeta, WeightSource};
use crate::transform::dequant;

/// A model as cards want it: a configuration, and numbers under plain names.
pub struct ModelSource {
    /// Configuration and small files.
    pub dir: ModelDir,
    /// The weights; `None` where only the vocabulary is wanted.
    pub weights: Option<Box<dyn WeightSource + Send>>,
    /// Files that are read; an output must not replace them.
    pub paths: Vec<PathBuf>,
    /// What is odd about the weights but does not stop the conversion.
    pub warnings: Vec<String>,
}

impl fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelSource")
            .field("dir", &self.dir)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl ModelSource {
    /// Opens a directory of any form that is read.
    ///
    /// # Errors
    /// The checkpoint cannot be opened, or is quantized in a way that is not read.
    pub fn open(path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let dir = ModelDir::open(path, &options.limits)?;
        let mut source = Self { dir, weights: None, paths: Vec::new(), warnings: Vec::new() };
        if !options.vocab_only {
            let checkpoint = Checkpoint::with_dir(source.dir.clone())?;
            source.paths = checkpoint.paths();
            let opened = dequant::open(&configurations(&source.dir)?, Box::new(checkpoint))?;
            source.warnings.extend(opened.warnings);
            source.weights = Some(opened.source);
        }
        Ok(source)
    }

    /// The tensors of the weights.
    #[must_use]
    pub fn metas(&self) -> &[WeightMeta] {
        self.weights.as_ref().map_or(&[], |weights| weights.weights())
    }
}

/// The files that may describe a quantization.
fn configurations(dir: &ModelDir) -> Result<dequant::Configurations, ConvertError> {
    Ok(dequant::Configurations {
        config: dir.config().clone(),
        hf_quant_config: dir.json(dequant::HF_QUANT_CONFIG)?,
        quantize_config: dir.json(dequant::QUANTIZE_CONFIG)?,
        quanto_qmap: dir.json(dequant::QUANTO_QMAP)?,
    })
}
