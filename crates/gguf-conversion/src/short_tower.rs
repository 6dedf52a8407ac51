//! Warning about vision towers with fewer blocks than their configuration declares.

use gguf_arch::{Mapping, block_count};
use gguf_format::Value;

/// Returns a warning if `clip.vision.block_count` exceeds the blocks of the output.
pub(super) fn warning(mapping: &Mapping) -> Option<String> {
    let key = "clip.vision.block_count";
    let declared = mapping.metadata.get(key).and_then(Value::as_u64)?;
    // Towers without `v.blk.0.attn*` count something else under this key.
    let is_numbered = mapping.outputs.iter().any(|output| output.name.starts_with("v.blk.0.attn"));
    let n_found = block_count(mapping.outputs.iter().map(|output| output.name.as_str()), "v.blk.");
    (is_numbered && n_found < declared).then(|| {
        format!(
            "config.json says {declared} blocks of the vision tower, and the checkpoint has {n_found}: `{key}` is {declared}, and no \
             runtime loads the file"
        )
    })
}
