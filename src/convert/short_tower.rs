//! Towers with fewer blocks than their configuration says, where the architecture takes what the checkpoint has.

use crate::arch::{Mapping, block_count};
use crate::gguf::Value;

/// What to say of a tower whose file counts blocks that it does not have.
pub(super) fn warning(mapping: &Mapping) -> Option<String> {
    let key = "clip.vision.block_count";
    let said = mapping.metadata.get(key).and_then(Value::as_u64)?;
    // Towers without numbered blocks of this kind count something else.
    let is_numbered = mapping.outputs.iter().any(|output| output.name.starts_with("v.blk.0.attn"));
    let n_found = block_count(mapping.outputs.iter().map(|output| output.name.as_str()), "v.blk.");
    (is_numbered && n_found < said).then(|| {
        format!(
            "config.json says {said} blocks of the vision tower, and the checkpoint has {n_found}: `{key}` is {said}, and no \
             runtime loads the file"
        )
    })
}
