//! A first card for a checkpoint.

use std::path::Path;

use crate::arch::{self, Draft, Inputs, Registry};
use crate::convert::conversion::optional_json;
use crate::convert::{ConvertError, ConvertOptions, ModelSource, pooling, token_counts};
use crate::core::WeightSource;

/// Drafts a card from a checkpoint's headers, its tensors put together as cards see them. What is odd about the files
/// goes to `warnings`.
///
/// # Errors
/// The checkpoint cannot be opened, or its configuration names no class.
pub fn draft(
    path: &Path,
    options: &ConvertOptions,
    warnings: &mut Vec<String>,
) -> Result<Draft, ConvertError> {
    let source = ModelSource::open(path, options)?;
    warnings.extend(source.warnings.iter().cloned());
    let dir = &source.dir;
    let mut optional = |name| optional_json(dir, name, warnings);
    let tokenizer_config = optional("tokenizer_config.json")?;
    let generation_config = optional("generation_config.json")?;
    let files = dir.file_names()?;
    let inputs = Inputs {
        config: dir.config(),
        weights: source.metas(),
        vocabulary: Some(&|| token_counts::count(dir)),
        values: source.weights.as_deref().map(|weights| weights as &dyn WeightSource),
        stored: &source.stored,
        tokenizer_config: tokenizer_config.as_ref(),
        generation_config: generation_config.as_ref(),
        files: &files,
        pooling: pooling::read(dir)?,
        target: None,
    };
    Ok(arch::draft(&Registry::embedded()?, &inputs)?)
}
