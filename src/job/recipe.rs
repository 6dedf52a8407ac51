//! Recipe of a quantized file: how it was made of a source, enough to make it again byte for byte.
//!
//! A tensor is copied from the source, or quantized with or without importance. What differs from that is kept in the
//! recipe, so that the file is made again from source and recipe.
//!
//! | file | subject |
//! |---|---|
//! | `source` | the model that files were made of, with its digest |
//! | `trial` `near` `examine` | how each tensor was made, by trying; how near it is if nothing reproduces it |
//! | `keys` `layout` | keys that a run of our own would not write; bytes between and after the tensors |
//! | `report` | findings as plain data |
//! | `file` `write` | the recipe as a GGUF file |
//! | `compression` `delta` | its parts: compressed frames, a header as differences from another |
//! | `rebuild` `bounds` | the file, made again; sizes that a recipe may declare |

mod bounds;
mod compression;
mod delta;
mod error;
mod examine;
mod file;
mod keys;
mod layout;
mod near;
mod rebuild;
mod report;
mod source;
mod trial;
mod write;

use std::path::Path;
use std::time::Instant;

use crate::core::output::{Destination, OutputKind};
use crate::core::progress::Progress;
use crate::core::sha256::{DigestError, sha256_of_file};
use crate::gguf::{GgufFile, Metadata, OpenOptions, WriteError};
use crate::job::input::must_be_model;
use crate::job::{Guard, Result};

pub use error::RecipeError;
pub use report::{
    BlockDifference, FileRecipe, ImportanceFinding, ImportanceKey, ImportanceUse, KeyFinding, PaddingFinding,
    TensorFinding, TensorStatus, WrittenRecipe,
};
pub use source::RecipeSource;

use examine::examine;
use file::RecipeFile;
use rebuild::Rebuild;

/// Options of writing.
#[derive(Clone, Copy, Debug)]
pub struct RecipeOutput {
    /// True to sync the output to disk before it gets its final name.
    pub sync: bool,
    /// Memory for chunks in flight in bytes, over all threads.
    pub memory_bytes: u64,
}

impl Default for RecipeOutput {
    fn default() -> Self {
        Self { sync: true, memory_bytes: 128 << 20 }
    }
}

/// File that was made again.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RebuiltFile {
    /// Path of the file.
    #[serde(serialize_with = "crate::core::written::as_path")]
    pub file: std::path::PathBuf,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// SHA-256 of the file, the same as that of the original.
    pub sha256: String,
    /// Duration of the run in seconds.
    pub seconds: f64,
}

/// Finds out how a file was made, and writes its recipe if a path is given. A part of a split model is a file of its
/// own.
pub fn find_recipe(
    path: &Path,
    source: &RecipeSource,
    recipe: Option<&Path>,
    options: &RecipeOutput,
    progress: &dyn Progress,
) -> Result<FileRecipe> {
    let start = Instant::now();
    let file = open(path)?;
    must_be_model(&file)?;
    if let Some(recipe) = recipe {
        let mut guard = Guard::new(progress, false);
        guard.read("the file", path)?;
        source.guard(&mut guard)?;
        guard.write("-o", recipe, OutputKind::Recipe)?;
        Destination::of(recipe)?;
    }
    progress.steps(if recipe.is_some() { 4 } else { 2 });
    let sha256 = digest(path, progress)?;
    let examined = examine(&file, source, progress)?;
    let mut report = examined.report(path, sha256);
    if let Some(target) = recipe {
        let output = Destination::of(target)?.create()?;
        let packed = write::Packed::new(&file, source, &examined, &report, target, progress)?;
        report.recipe = Some(packed.write(&output, target)?);
        output.commit(options.sync)?;
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// Makes a file again from its recipe. Its digest is compared with that of the original before it gets its name.
///
/// # Errors
/// A recipe for another source or another importance matrix, a damaged recipe, a file that cannot be written. Then
/// nothing is written.
pub fn rebuild(
    recipe: &Path,
    source: &RecipeSource,
    target: &Path,
    options: &RecipeOutput,
    progress: &dyn Progress,
) -> Result<RebuiltFile> {
    let start = Instant::now();
    let mut guard = Guard::new(progress, false);
    guard.read("the recipe", recipe)?;
    source.guard(&mut guard)?;
    guard.write("-o", target, OutputKind::Model)?;
    progress.steps(2);
    let opened = RecipeFile::open(recipe)?;
    let rebuild = Rebuild::new(&opened, source, progress)?;
    let mut destination = Destination::of(target)?;
    // What a killed run left takes space, too.
    Destination::clear_all(std::slice::from_mut(&mut destination))?;
    if let Some(free) = destination.free_bytes().filter(|&free| free < opened.file_bytes) {
        let path = target.to_owned();
        return Err(WriteError::NoSpace { path, needed: opened.file_bytes, free }.into());
    }
    let output = destination.create()?;
    rebuild.write(&output, options, progress)?;
    output.commit(options.sync)?;
    Ok(RebuiltFile {
        file: target.to_owned(),
        file_bytes: opened.file_bytes,
        sha256: opened.sha256.clone(),
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Opens one file, not its other parts.
fn open(path: &Path) -> Result<GgufFile> {
    Ok(GgufFile::open_with(path, &OpenOptions { join_parts: false, ..OpenOptions::default() })?)
}

fn digest(path: &Path, progress: &dyn Progress) -> Result<String> {
    progress.begin("computing the checksum", fs_err::metadata(path)?.len());
    let digest = sha256_of_file(path, progress).map_err(of_digest);
    progress.end();
    Ok(digest?)
}

fn of_digest(error: DigestError) -> WriteError {
    match error {
        DigestError::Io(error) => WriteError::Io(error),
        DigestError::Cancelled { .. } => WriteError::Cancelled,
    }
}

/// Returns the value of a key that is a string of UTF-8.
fn text_key<'m>(metadata: &'m Metadata, key: &str) -> Option<&'m str> {
    metadata.get(key).and_then(crate::gguf::Value::as_str)
}
