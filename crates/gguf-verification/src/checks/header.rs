//! Check of the header: flaws that readers tolerate.

use crate::{Check, Finding};
use gguf_arch::diffusion::header_flaws;
use gguf_format::{GgufFile, Metadata, TensorLimits, Value};

/// Bytes at whose multiples llama.cpp wants the data of tensors.
const DATA_ALIGNMENT: u64 = 32;

pub(super) fn check(file: &GgufFile) -> Vec<Finding> {
    let mut found: Vec<Finding> = header_flaws(file)
        .into_iter()
        .map(|(path, error)| Finding::warning(Check::Header, format!("{}: {error}", path.display())))
        .collect();
    if !file.data_offset().is_multiple_of(DATA_ALIGNMENT) {
        found.extend(narrow_alignment(file.metadata()));
    }
    found
}

/// Returns the error about an alignment with which data may begin where llama.cpp does not map it; the runtimes of image
/// models read it anywhere.
pub(crate) fn narrow_alignment(metadata: &Metadata) -> Option<Finding> {
    const KEY: &str = "general.alignment";
    let found = metadata.get(KEY).and_then(Value::as_u64).filter(|&found| found < DATA_ALIGNMENT)?;
    (TensorLimits::of(metadata) == TensorLimits::of_language()).then(|| {
        let text = format!(
            "key `{KEY}` is {found}: llama.cpp stops unless the data begins at a multiple of {DATA_ALIGNMENT} bytes; \
             `gguf-inspect set FILE {KEY}={DATA_ALIGNMENT}` moves it there"
        );
        Finding::error(Check::Header, text)
    })
}
