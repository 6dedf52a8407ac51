//! Comparison of the numbers of a tower with the shapes of its tensors.

use crate::{Check, Finding};
use gguf_core::TensorMeta;
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};

/// Tensor, its number of dimensions, the dimension that a key gives (the outermost is 0), and the key.
const SIZES: [(&str, usize, usize, &str); 2] = [
    ("v.blk.0.ln1.weight", 1, 0, "clip.vision.embedding_length"),
    ("v.patch_embd.weight", 4, 3, "clip.vision.patch_size"),
];
/// Projectors of towers that read images of one size; others compute positions for the image that they read.
const OF_ONE_SIZE: [&str; 7] = ["mlp", "gemma3", "idefics3", "internvl", "janus_pro", "llama4", "cogvlm"];

/// Projectors whose configurations may lack the width: converters write that of the released models.
const WITHOUT_WIDTH: [&str; 2] = ["step3vl", "nemotron_v2_vl"];

fn projector(metadata: &Metadata) -> Option<&str> {
    let own = metadata.get("clip.vision.projector_type").or_else(|| metadata.get("clip.projector_type"));
    own.and_then(Value::as_str)
}

/// Returns an error for each number that contradicts a tensor.
pub(super) fn check(metadata: &Metadata, tensors: &[TensorMeta]) -> Vec<Finding> {
    let number = |key: &str| metadata.get(key).and_then(Value::as_u64);
    let dims =
        |name: &str| tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.shape.dims());
    let mut findings = Vec::new();
    let is_judged = |key: &str| {
        !key.ends_with("embedding_length")
            || !projector(metadata).is_some_and(|name| WITHOUT_WIDTH.contains(&name))
    };
    for (name, rank, axis, key) in SIZES.into_iter().filter(|row| is_judged(row.3)) {
        if let Some(found) = dims(name).filter(|dims| dims.len() == rank)
            && let Some(expected) = number(key)
            && found[axis] != expected
        {
            let message = format!("`{key}` is {expected}, and `{name}` has {}", found[axis]);
            findings.push(Finding::error(Check::Towers, message));
        }
    }
    findings.extend(positions(metadata, number, dims));
    findings
}

/// Compares the positions of a tower that reads images of one size with that size.
fn positions<'t>(
    metadata: &Metadata,
    number: impl Fn(&str) -> Option<u64>,
    dims: impl Fn(&str) -> Option<&'t [u64]>,
) -> Option<Finding> {
    let projector = projector(metadata).filter(|name| OF_ONE_SIZE.contains(name))?;
    let (size, patch) = ("clip.vision.image_size", "clip.vision.patch_size");
    let side = number(size)? / number(patch).filter(|&patch| patch > 0)?;
    let found = dims("v.position_embd.weight").filter(|dims| dims.len() >= 2)?;
    // The class token's position may stand in a list of one list.
    let found = found[found.len() - 2];
    let of_class = u64::from(dims("v.class_embd").is_some());
    let expected = side.saturating_mul(side).saturating_add(of_class);
    (found != expected).then(|| {
        let message = format!(
            "`v.position_embd.weight` has {found} positions, {expected} expected by `{size}`, `{patch}` and the projector `{}`",
            escape(projector)
        );
        Finding::error(Check::Towers, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    fn found(key: &str, value: u32) -> Vec<String> {
        let mut metadata = Metadata::new();
        metadata.set("clip.projector_type", "gemma3");
        for (name, own) in
            [("vision.image_size", 56u32), ("vision.patch_size", 14), ("vision.embedding_length", 64)]
        {
            metadata.set(format!("clip.{name}"), if name == key { value } else { own });
        }
        let tensor = |(name, dims): (&str, &[u64])| TensorMeta {
            name: name.to_owned(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: GgmlType::F32,
        };
        let tensors: [(&str, &[u64]); 3] = [
            ("v.blk.0.ln1.weight", &[64]),
            ("v.patch_embd.weight", &[64, 3, 14, 14]),
            ("v.position_embd.weight", &[16, 64]),
        ];
        check(&metadata, &tensors.map(tensor)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn numbers_are_those_of_the_tensors() {
        assert_eq!(found("", 0), Vec::<String>::new());
        assert_eq!(
            found("vision.embedding_length", 65),
            ["`clip.vision.embedding_length` is 65, and `v.blk.0.ln1.weight` has 64"]
        );
        assert_eq!(found("vision.image_size", 112).len(), 1);
        assert_eq!(found("vision.patch_size", 28).len(), 2);
    }
}
