//! Towers with fewer blocks than their configuration says, where the architecture takes what the checkpoint has.

use crate::arch::{Mapping, block_number};
use crate::gguf::Value;

/// What to say of a tower whose file counts blocks that it does not have.
pub(super) fn warning(mapping: &Mapping) -> Option<String> {
    let key = "clip.vision.block_count";
    let said = mapping.metadata.get(key).and_then(Value::as_u64)?;
    let found = mapping.outputs.iter().filter_map(|output| block_number(&output.name, "v.blk."));
    // Towers without numbered blocks of this kind count something else.
    let is_numbered = mapping.outputs.iter().any(|output| output.name.starts_with("v.blk.0.attn"));
    let n_found = found.max().map_or(0, |last| last + 1);
    (is_numbered && n_found < said).then(|| {
        format!(
            "config.json says {said} blocks of the vision tower, and the checkpoint has {n_found}: `{key}` is {said}, and no \
             runtime loads the file"
        )
    })
}
