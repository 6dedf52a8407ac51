//! Splitting of a file into parts, and joining of parts.

use std::path::{Path, PathBuf};

use crate::EditError;
use gguf_core::TensorSource;
use gguf_core::progress::Progress;
use gguf_format::split::merged_metadata;
use gguf_format::split_keys::SPLIT_COUNT;
use gguf_format::{GgufFile, PlannedFile, SplitSpec, WriteOptions, WriteReport, plan_files, write_gguf};

/// Plans the parts that [`split_file`] would write, with their contents.
pub fn plan_split(file: &GgufFile, output: &Path, spec: &SplitSpec) -> Result<Vec<PlannedFile>, EditError> {
    let metadata = merged_metadata(file.metadata());
    Ok(plan_files(output, &metadata, file.tensors(), &file.layout(), Some(spec))?)
}

/// Splits a model into parts named after `output`.
///
/// # Errors
/// [`EditError`]; then there are no parts.
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

/// Joins the parts of a split model, given one or more of them.
///
/// The `split.*` keys are removed, so splitting and merging restores the original bytes.
///
/// # Errors
/// [`EditError`]; then there is no output.
pub fn merge(
    parts: &[PathBuf],
    output: &Path,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, EditError> {
    let no_part = |path: &Path| EditError::NotAPart { path: path.to_owned() };
    let Some(first) = parts.first() else { return Err(no_part(Path::new(""))) };
    let file = GgufFile::open(first)?;
    if !file.metadata().contains(SPLIT_COUNT) {
        return Err(no_part(first));
    }
    let of_model: Vec<_> = file.paths().iter().filter_map(|path| fs_err::canonicalize(path).ok()).collect();
    let is_other = |path: &&PathBuf| !fs_err::canonicalize(path).is_ok_and(|path| of_model.contains(&path));
    if let Some(other) = parts[1..].iter().find(is_other) {
        return Err(EditError::OtherModel { path: other.clone(), first: first.clone() });
    }
    let options = WriteOptions { layout: file.layout(), inputs: file.paths(), ..options.clone() };
    let metadata = merged_metadata(file.metadata());
    Ok(write_gguf(output, &metadata, &file, &options, progress)?)
}
