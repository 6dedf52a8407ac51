//! Check of the header: flaws that readers tolerate.

use crate::{Check, Finding};
use gguf_format::GgufFile;

pub(super) fn check(file: &GgufFile) -> Vec<Finding> {
    let tolerated = file.tolerated();
    tolerated
        .map(|(path, error)| Finding::warning(Check::Header, format!("{}: {error}", path.display())))
        .collect()
}
