//! Check that a file ends with its last tensor.

use crate::{Check, Finding};
use gguf_format::GgufFile;

pub(super) fn check(file: &GgufFile) -> Option<Finding> {
    let n_bytes = file.trailing_bytes();
    (n_bytes > 0)
        .then(|| Finding::warning(Check::TrailingBytes, format!("{n_bytes} bytes after the last tensor")))
}
