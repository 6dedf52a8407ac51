//! A file cut into parts, and parts joined.

use std::path::Path;

use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::gguf::split::{SPLIT_COUNT, merged_metadata};
use crate::gguf::{GgufFile, PlannedFile, SplitSpec, WriteOptions, WriteReport, plan_files, write_gguf};
use crate::inspect::EditError;

/// The parts that [`split_file`] would write, with what goes into each.
///
/// # Errors
/// [`EditError`].
pub fn plan_split(file: &GgufFile, output: &Path, spec: &SplitSpec) -> Result<Vec<PlannedFile>, EditError> {
    let metadata = merged_metadata(file.metadata());
    Ok(plan_files(output, &metadata, file.tensors(), &file.layout(), Some(spec))?)
}

/// Cuts a model into parts called after `output`.
///
/// # Errors
/// [`EditError`]; then no part has appeared.
pub fn split_file(
    file: &GgufFile,
    output: &Path,
    spec: SplitSpec,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, EditError> {
    let options =
        WriteOptions { layout: file.layout(), split: Some(spec), inputs: file.paths(), ..options.clone() };
    let metadata = merged_metadata(file.metadata());
    Ok(write_gguf(output, &metadata, file, &options, progress)?)
}

/// Joins the parts of a split model, given any of them. The `split.*` keys are gone afterwards, so merging what was
/// split gives the original bytes.
///
/// # Errors
/// [`EditError`]; then no output has appeared.
pub fn merge(
    input: &Path,
    output: &Path,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, EditError> {
    let file = GgufFile::open(input)?;
    if !file.metadata().contains(SPLIT_COUNT) {
        return Err(EditError::NotAPart { path: input.to_owned() });
    }
    let options = WriteOptions { layout: file.layout(), inputs: file.paths(), ..options.clone() };
    let metadata = merged_metadata(file.metadata());
    Ok(write_gguf(output, &metadata, &file, &options, progress)?)
}
