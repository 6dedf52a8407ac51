//! Opening what is to be converted: the directory, its container, and the layers that turn codes into floats.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, ModelDir, detect};
use crate::convert::{ConvertError, ConvertOptions};
use crate::core::{WeightMeta, WeightSource};
use crate::tokenizer::GivenVocabulary;

/// Where the vocabulary of a model comes from.
#[derive(Clone, Debug, Default)]
pub enum Vocabulary {
    /// Files of the directory.
    #[default]
    Files,
    /// The container carries it.
    Given(Box<GivenVocabulary>),
    /// There is none.
    Absent,
}

/// A model as cards want it: a configuration, and numbers under plain names.
pub struct ModelSource {
    /// Configuration and small files.
    pub dir: ModelDir,
    /// The weights; `None` where only the vocabulary is wanted.
    pub weights: Option<Box<dyn WeightSource + Send>>,
    /// Where the vocabulary comes from.
    pub vocabulary: Vocabulary,
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
        let mut source = Self {
            dir,
            weights: None,
            vocabulary: Vocabulary::Files,
            paths: Vec::new(),
            warnings: Vec::new(),
        };
        if !options.vocab_only {
            detect::refuse_quantized(&source.dir.path().join("config.json"), source.dir.config())?;
            let checkpoint = Checkpoint::with_dir(source.dir.clone())?;
            source.paths = checkpoint.paths();
            source.weights = Some(Box::new(checkpoint));
        }
        Ok(source)
    }

    /// The tensors of the weights.
    #[must_use]
    pub fn metas(&self) -> &[WeightMeta] {
        self.weights.as_ref().map_or(&[], |weights| weights.weights())
    }
}
