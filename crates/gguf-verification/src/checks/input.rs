//! Inputs of checks: a file by itself, or texts for the tokenizer of a model.

use crate::checks::{adapter, control_vector, images, towers, vocabulary};
use crate::{Finding, Model};
use gguf_core::progress::{Progress, Silent};
use gguf_core::simd::SimdLevel;
use gguf_core::{TensorMeta, TensorSource};
use gguf_format::{GgufFile, Metadata};

/// Kind of content of a file, which decides what it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileContent {
    Model,
    /// Matrices that change another file's weights.
    Adapter,
    /// Directions that a runtime adds to the hidden state.
    ControlVector,
    /// Vision and audio towers of a model.
    Towers,
    /// An image or video model.
    Image,
    /// A vocabulary without tensors.
    Vocabulary,
}

impl FileContent {
    fn of(metadata: &Metadata, tensors: &[TensorMeta]) -> Self {
        match () {
            () if towers::is_towers(metadata) => Self::Towers,
            () if adapter::is_one(metadata) => Self::Adapter,
            () if control_vector::is_one(metadata) => Self::ControlVector,
            () if vocabulary::is_alone(metadata, tensors) => Self::Vocabulary,
            () if images::is_one(metadata, tensors) => Self::Image,
            () => Self::Model,
        }
    }
}

/// File that is checked by itself.
#[derive(Clone, Copy)]
pub(crate) struct CheckedFile<'a> {
    /// Blocks of the tensors; `None` if only the header is judged.
    pub(super) source: Option<&'a dyn TensorSource>,
    tensors: &'a [TensorMeta],
    pub(super) metadata: &'a Metadata,
    pub(super) gguf: Option<&'a GgufFile>,
    pub(crate) content: FileContent,
    pub(super) level: SimdLevel,
    pub(super) progress: &'a dyn Progress,
}

impl<'a> CheckedFile<'a> {
    pub(crate) fn new(
        source: &'a dyn TensorSource,
        metadata: &'a Metadata,
        gguf: Option<&'a GgufFile>,
        level: SimdLevel,
        progress: &'a dyn Progress,
    ) -> Self {
        let tensors = source.tensors();
        let content = FileContent::of(metadata, tensors);
        Self { source: Some(source), tensors, metadata, gguf, content, level, progress }
    }

    /// A file of which only keys and the list of tensors are known.
    pub(crate) fn header(metadata: &'a Metadata, tensors: &'a [TensorMeta]) -> Self {
        let content = FileContent::of(metadata, tensors);
        let level = SimdLevel::Scalar;
        Self { source: None, tensors, metadata, gguf: None, content, level, progress: &Silent }
    }

    pub(super) fn tensors(&self) -> &'a [TensorMeta] {
        self.tensors
    }
}

/// Texts for the tokenizer of a model.
pub(super) struct CheckedTexts<'a> {
    pub(super) model: &'a Model<'a>,
    pub(super) texts: &'a [&'a str],
    pub(super) earlier: &'a [Finding],
}
