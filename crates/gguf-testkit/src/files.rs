//! Files of cases and of runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

/// Parses a JSON file.
#[track_caller]
pub fn json(path: impl AsRef<Path>) -> Json {
    let path = path.as_ref();
    let parsed = serde_json::from_slice(&fs_err::read(path).unwrap());
    parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Changes a JSON file.
#[track_caller]
pub fn edit_json(path: impl AsRef<Path>, edit: impl FnOnce(&mut Json)) {
    let mut value = json(path.as_ref());
    edit(&mut value);
    fs_err::write(path.as_ref(), value.to_string()).unwrap();
}

/// Paths of the entries of a directory, sorted.
#[track_caller]
pub fn entries(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(dir.as_ref()).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Paths of the files of a directory and of all directories below it, sorted.
#[track_caller]
pub fn below(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    let entries = entries(dir).into_iter();
    entries.flat_map(|path| if path.is_dir() { below(path) } else { vec![path] }).collect()
}

/// Last part of a path.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Names of the entries of a directory, sorted.
#[track_caller]
pub fn names(dir: impl AsRef<Path>) -> Vec<String> {
    entries(dir).iter().map(|path| name(path)).collect()
}

/// Names and bytes of the files of a directory.
#[track_caller]
pub fn contents(dir: impl AsRef<Path>) -> BTreeMap<String, Vec<u8>> {
    let files = entries(dir).into_iter().filter(|path| path.is_file());
    files.map(|path| (name(&path), fs_err::read(path).unwrap())).collect()
}

/// Copies the files of a directory into another one, which is created if it is missing.
#[track_caller]
pub fn copy(from: impl AsRef<Path>, to: &Path) {
    fs_err::create_dir_all(to).unwrap();
    for path in entries(from).iter().filter(|path| path.is_file()) {
        fs_err::copy(path, to.join(name(path))).unwrap();
    }
}
