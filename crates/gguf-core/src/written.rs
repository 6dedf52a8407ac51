//! Values of reports as JSON has them: functions for `#[serde(serialize_with = "…")]`.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

/// Writes a value as its text.
pub fn as_text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Writes a path as text; bytes that are not UTF-8 become U+FFFD.
pub fn as_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Writes paths as texts.
pub fn as_paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    let texts: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    texts.serialize(serializer)
}
