//! Inputs of checks: a file by itself, or texts for the tokenizer of a model.

use crate::checks::{adapter, images, towers, vocabulary};
use crate::{Finding, Model};
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_core::{TensorMeta, TensorSource};
use gguf_format::{GgufFile, Metadata};

/// Kind of content of a file, which decides what it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileContent {
    Model,
    /// Matrices that change another file's weights.
    Adapter,
    /// Vision and audio towers of a model.
    Towers,
    /// An image or video model.
    Image,
    /// A vocabulary without tensors.
    Vocabulary,
}

/// File that is checked by itself.
#[derive(Clone, Copy)]
pub(crate) struct CheckedFile<'a> {
    pub(super) source: &'a dyn TensorSource,
    pub(super) metadata: &'a Metadata,
    pub(super) gguf: Option<&'a GgufFile>,
    pub(super) content: FileContent,
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
        let content = if towers::is_towers(metadata) {
            FileContent::Towers
        } else if adapter::is_one(metadata) {
            FileContent::Adapter
        } else if vocabulary::is_alone(metadata, source.tensors()) {
            FileContent::Vocabulary
        } else if images::is_one(metadata, source.tensors()) {
            FileContent::Image
        } else {
            FileContent::Model
        };
        Self { source, metadata, gguf, content, level, progress }
    }

    pub(super) fn tensors(&self) -> &'a [TensorMeta] {
        self.source.tensors()
    }
}

/// Texts for the tokenizer of a model.
pub(super) struct CheckedTexts<'a> {
    pub(super) model: &'a Model<'a>,
    pub(super) texts: &'a [&'a str],
    pub(super) earlier: &'a [Finding],
}
