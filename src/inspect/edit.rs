//! Changes to files: metadata set or removed, a file cut into parts, parts joined.

use std::path::{Path, PathBuf};

use crate::core::progress::Progress;
use crate::gguf::split::merged_metadata;
use crate::gguf::{
    GgufError, GgufFile, Metadata, OpenOptions, SplitSpec, Value, WriteError, WriteOptions, WriteReport,
    write_gguf,
};

/// Why an edit was not made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum EditError {
    /// The input cannot be opened.
    #[error(transparent)]
    Open(#[from] GgufError),
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A key to remove that is not there.
    #[error("{}: no key `{}`", path.display(), crate::core::text::escape(key))]
    NoKey { path: PathBuf, key: String },
    /// A file to merge that is whole.
    #[error("{}: not a part of a split file", path.display())]
    NotAPart { path: PathBuf },
}

impl crate::core::Hint for EditError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Open(error) => error.hints(),
            Self::Write(error) => error.hints(),
            Self::NoKey { .. } => vec!["list the keys with `gguf-inspect FILE`".to_owned()],
            Self::NotAPart { .. } => Vec::new(),
        }
    }
}

/// Sets keys: in place where a key is there, at the end where it is not. `output` may be the input itself, which is
/// then replaced when the new file is complete. Of a split model only the given part is rewritten.
///
/// # Errors
/// [`EditError`]; the input is then as it was.
pub fn set(
    input: &Path,
    output: &Path,
    values: Vec<(String, Value)>,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, EditError> {
    let file = open_alone(input)?;
    let mut metadata = file.metadata().clone();
    for (key, value) in values {
        metadata.set(key, value);
    }
    rewrite(&file, output, &metadata, options, progress)
}

/// Removes keys; otherwise as [`set`].
///
/// # Errors
/// [`EditError`]; the input is then as it was.
pub fn remove(
    input: &Path,
    output: &Path,
    keys: &[String],
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, EditError> {
    let file = open_alone(input)?;
    let mut metadata = file.metadata().clone();
    for key in keys {
        if metadata.remove(key).is_none() {
            return Err(EditError::NoKey { path: input.to_owned(), key: key.clone() });
        }
    }
    rewrite(&file, output, &metadata, options, progress)
}

/// Cuts a model into parts called after `output`.
///
/// # Errors
/// [`EditError`]; then no part has appeared.
pub fn split_file(
    input: &Path,
    output: &Path,
    spec: SplitSpec,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, EditError> {
    let file = GgufFile::open(input)?;
    let options =
        WriteOptions { layout: file.layout(), split: Some(spec), inputs: file.paths(), ..options.clone() };
    let metadata = merged_metadata(file.metadata());
    Ok(write_gguf(output, &metadata, &file, &options, progress)?)
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
    if !file.metadata().contains(crate::gguf::split::SPLIT_COUNT) {
        return Err(EditError::NotAPart { path: input.to_owned() });
    }
    let options = WriteOptions { layout: file.layout(), inputs: file.paths(), ..options.clone() };
    let metadata = merged_metadata(file.metadata());
    Ok(write_gguf(output, &metadata, &file, &options, progress)?)
}

fn open_alone(input: &Path) -> Result<GgufFile, GgufError> {
    GgufFile::open_with(input, &OpenOptions { join_parts: false, ..OpenOptions::default() })
}

/// Writes a file again with other metadata. The mapped input stays readable while another file takes its name.
fn rewrite(
    file: &GgufFile,
    output: &Path,
    metadata: &Metadata,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, EditError> {
    if file.trailing_bytes() > 0 {
        progress.warn(&format!(
            "{}: {} bytes after the last tensor are left out",
            file.path().display(),
            file.trailing_bytes()
        ));
    }
    // A link is edited where it leads, not replaced by a file.
    let target = match fs_err::canonicalize(output) {
        Ok(target) => target,
        Err(_) => output.to_owned(),
    };
    let before = fs_err::metadata(&target).map(|metadata| metadata.permissions());
    let options = WriteOptions { layout: file.layout(), inputs: Vec::new(), ..options.clone() };
    let report = write_gguf(&target, metadata, file, &options, progress)?;
    if let Ok(permissions) = before {
        // Whoever could not read the old file should not read the new one. Not our file: then not our choice.
        let _ = fs_err::set_permissions(&target, permissions);
    }
    Ok(report)
}
