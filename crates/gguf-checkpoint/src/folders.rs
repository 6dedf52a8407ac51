//! Folders inside of a directory that may be meant in its place.

use std::iter;
use std::path::{Path, PathBuf};

/// Maximum number of folders, and of files in each, that are searched for the signs of another format.
const MAX_FOLDERS: usize = 64;
const MAX_FILES: usize = 1024;
/// Maximum number of folders that a hint names.
const MAX_NAMED: usize = 3;
/// Ends of the names of weights.
const WEIGHTS: [&str; 5] = [".safetensors", ".bin", ".pt", ".pth", ".ckpt"];

/// Returns the folders inside of a directory with the names in each, sorted.
pub(crate) fn folders(dir: &Path, names: &[String]) -> impl Iterator<Item = (PathBuf, Vec<String>)> {
    let paths = names.iter().map(|name| dir.join(name)).filter(|path| path.is_dir()).take(MAX_FOLDERS);
    paths.filter_map(|folder| {
        let entries = fs_err::read_dir(&folder).ok()?.take(MAX_FILES);
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Some((folder, names))
    })
}

/// Returns the folders with tensors, up to two levels inside of a directory without its own.
pub(crate) fn folders_of_tensors(dir: &Path) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(dir).into_iter().flatten().flatten().take(MAX_FILES);
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    if names.iter().any(|name| WEIGHTS.iter().any(|end| name.ends_with(end))) {
        return Vec::new();
    }
    names.sort_unstable();
    let nested = folders(dir, &names).flat_map(|(folder, names)| {
        let inner: Vec<_> = folders(&folder, &names).collect();
        iter::once((folder, names)).chain(inner)
    });
    let with_tensors = nested.filter(|(_, names)| names.iter().any(|name| name.ends_with(WEIGHTS[0])));
    with_tensors.map(|(folder, _)| folder).take(MAX_NAMED).collect()
}
