//! Checks the shape of a source against the target that its name suggests.

use serde_json::{Map, Value as Json};

use super::KindsByName;
use crate::judge::kinds::TensorKind;
use crate::read::base;

/// Matrices that read the residual stream, and matrices that write it.
const READERS: &[&str] =
    &["attn_q", "attn_k", "attn_v", "attn_qkv", "ffn_gate", "ffn_up", "ffn_gate_inp", "output"];
const WRITERS: &[&str] = &["attn_output", "ffn_down"];

/// Returns the width of the model, if the configuration declares it.
pub(super) fn width(config: &Map<String, Json>) -> Option<u64> {
    let text = config.get("text_config").and_then(Json::as_object);
    let parts = text.into_iter().chain([config]);
    parts.flat_map(|part| base().widths.iter().filter_map(|key| part.get(key))).find_map(Json::as_u64)
}

/// Returns the target of a matrix in a module of a name like `mlp` whose only two matrices lead from the residual stream
/// to another width and back: the names say nothing that the shapes do not.
pub(super) fn feed_forward(
    base: &str,
    sources: &KindsByName<'_>,
    width: Option<u64>,
) -> Option<&'static str> {
    let module = base.rsplit_once('.')?.0;
    let is_feed_forward =
        |part: &str| part.contains("mlp") || part.contains("ffn") || part.contains("feed_forward");
    let matrix = |kinds: &[(&str, &TensorKind)]| {
        let (_, kind) = kinds.iter().find(|(suffix, _)| *suffix == ".weight")?;
        <[u64; 2]>::try_from(kind.dims.as_slice()).ok()
    };
    let [rows, cols] = matrix(sources.get(base)?)?;
    let is_beside = |other: &str| other != base && other.rsplit_once('.').is_some_and(|row| row.0 == module);
    let others = sources.iter().filter(|(other, _)| is_beside(other));
    let others: Vec<_> = others.filter_map(|(_, kinds)| matrix(kinds)).collect();
    let is_pair =
        rows != cols && others == [[cols, rows]] && module.rsplit('.').next().is_some_and(is_feed_forward);
    match width.filter(|_| is_pair)? {
        width if width == cols => Some("ffn_up"),
        width if width == rows => Some("ffn_down"),
        _ => None,
    }
}

/// Returns the reason why a tensor of these dimensions cannot become the target without operations. `is_part`: it is
/// one part of a stack.
pub(super) fn objection(
    target: &str,
    suffix: &str,
    dims: &[u64],
    is_part: bool,
    width: Option<u64>,
) -> Option<String> {
    let is_norm = target.ends_with("_norm");
    let is_matrix = READERS.contains(&target) || WRITERS.contains(&target) || target == "token_embd";
    let rank = match suffix {
        ".bias" => 1,
        ".weight" if target.ends_with("_exps") => 3 - usize::from(is_part),
        ".weight" if is_norm => 1,
        ".weight" if is_matrix => 2,
        _ => return None,
    };
    if dims.len() != rank && !(is_norm && dims.len() == 2) {
        return Some(format!("`{target}` has {rank} dimension{}", if rank == 1 { "" } else { "s" }));
    }
    let (Some(width), ".weight", false) = (width, suffix, is_norm) else { return None };
    let wrong = match dims {
        [_, cols] if (READERS.contains(&target) || target == "token_embd") && *cols != width => "columns",
        [rows, _] if WRITERS.contains(&target) && *rows != width => "rows",
        _ => return None,
    };
    Some(format!("`{target}` has {width} {wrong}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_object() {
        let object = |target: &str, dims: &[u64]| objection(target, ".weight", dims, false, Some(64));
        assert_eq!(object("attn_q", &[128, 64]), None);
        assert_eq!(object("attn_q", &[64, 128]).as_deref(), Some("`attn_q` has 64 columns"));
        assert_eq!(object("attn_output", &[128, 64]).as_deref(), Some("`attn_output` has 64 rows"));
        assert_eq!(object("attn_norm", &[4, 4, 4]).as_deref(), Some("`attn_norm` has 1 dimension"));
        assert_eq!(object("ffn_up_exps", &[8, 64]).as_deref(), Some("`ffn_up_exps` has 3 dimensions"));
        assert_eq!(objection("ffn_up_exps", ".weight", &[8, 64], true, Some(64)), None);
        assert_eq!(objection("attn_q", ".bias", &[64], false, Some(64)), None);
        assert_eq!(object("attn_sinks", &[8]), None);
    }
}
