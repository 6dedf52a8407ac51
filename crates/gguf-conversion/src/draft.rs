//! Draft of an architecture card for a checkpoint.

use std::path::Path;

use crate::side_files::SideFiles;
use crate::{ConvertError, ConvertOptions, ModelSource, token_counts};
use gguf_arch::{self, CardKind, Draft, Inputs, Registry};

/// Drafts a card from a checkpoint's headers, with its tensors assembled as cards see them. Oddities of the files are
/// added to `warnings`.
pub fn draft(
    path: &Path,
    options: &ConvertOptions,
    warnings: &mut Vec<String>,
) -> Result<Draft, ConvertError> {
    let source = ModelSource::open(path, options)?;
    warnings.extend(source.warnings.iter().cloned());
    let side_files = SideFiles::read(&source.dir, CardKind::Text, warnings)?;
    let inputs = Inputs {
        vocabulary: Some(&|| token_counts::count(&source.dir)),
        ..side_files.inputs(&source, source.metas())
    };
    Ok(gguf_arch::draft(&Registry::embedded()?, &inputs)?)
}
