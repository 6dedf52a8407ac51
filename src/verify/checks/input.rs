//! Inputs of checks: a file by itself, or texts for the tokenizer of a model.

use crate::core::progress::Progress;
use crate::core::simd::SimdLevel;
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::{GgufFile, Metadata};
use crate::verify::checks::{adapter, towers, vocabulary};
use crate::verify::{Finding, Model};

/// Kind of content of a file, which decides what it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileContent {
    Model,
    /// Matrices that change another file's weights.
    Adapter,
    /// Vision and audio towers of a model.
    Towers,
    /// A vocabulary without tensors.
    Vocabulary,
}

/// File that is checked by itself.
#[derive(Clone, Copy)]
pub(in crate::verify) struct CheckedFile<'a> {
    pub(super) source: &'a dyn TensorSource,
    pub(super) metadata: &'a Metadata,
    pub(super) gguf: Option<&'a GgufFile>,
    pub(super) content: FileContent,
    pub(super) level: SimdLevel,
    pub(super) progress: &'a dyn Progress,
}

impl<'a> CheckedFile<'a> {
    pub(in crate::verify) fn new(
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
    /// Findings of earlier checks.
    pub(super) earlier: &'a [Finding],
}
