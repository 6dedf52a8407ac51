//! The description of a checkpoint: its class, its tensors, their files.

use serde_json::{Value as Json, json};

use crate::checkpoint::Checkpoint;
use crate::core::{ElementType, WeightMeta, WeightSource};

/// How much of a checkpoint one element type holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementShare {
    /// The type.
    pub ty: ElementType,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Number of elements.
    pub n_elems: u64,
    /// Number of bytes.
    pub n_bytes: u64,
}

/// Bytes of a weight; those narrower than a byte are packed.
#[must_use]
pub fn weight_bytes(weight: &WeightMeta) -> u64 {
    let bits = u128::from(weight.shape.n_elems()) * u128::from(weight.ty.bits());
    u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
}

/// Adds up the tensors of a checkpoint by type, the one with the most bytes first.
#[must_use]
pub fn element_shares(checkpoint: &Checkpoint) -> Vec<ElementShare> {
    let mut shares: Vec<ElementShare> = Vec::new();
    for weight in checkpoint.weights() {
        let (n_elems, n_bytes) = (weight.shape.n_elems(), weight_bytes(weight));
        match shares.iter_mut().find(|share| share.ty == weight.ty) {
            Some(share) => {
                share.n_tensors += 1;
                share.n_elems += n_elems;
                share.n_bytes += n_bytes;
            }
            None => shares.push(ElementShare { ty: weight.ty, n_tensors: 1, n_elems, n_bytes }),
        }
    }
    shares.sort_by_key(|share| (std::cmp::Reverse(share.n_bytes), share.ty));
    shares
}

/// The classes that `config.json` names.
#[must_use]
pub fn classes(checkpoint: &Checkpoint) -> Vec<&str> {
    let listed = checkpoint.dir().config().get("architectures").and_then(Json::as_array);
    listed.map(|list| list.iter().filter_map(Json::as_str).collect()).unwrap_or_default()
}

/// The whole description as JSON.
#[must_use]
pub fn checkpoint_json(checkpoint: &Checkpoint) -> Json {
    let tensors: Vec<_> = checkpoint
        .weights()
        .iter()
        .enumerate()
        .map(|(index, weight)| {
            json!({
                "name": weight.name,
                "type": weight.ty.name(),
                "shape": weight.shape.dims(),
                "bytes": weight_bytes(weight),
                "file": checkpoint.part_of(index),
            })
        })
        .collect();
    let types: Vec<_> = element_shares(checkpoint)
        .iter()
        .map(|share| {
            json!({
                "type": share.ty.name(),
                "tensors": share.n_tensors,
                "elements": share.n_elems,
                "bytes": share.n_bytes,
            })
        })
        .collect();
    json!({
        "path": checkpoint.dir().path().to_string_lossy(),
        "classes": classes(checkpoint),
        "types": types,
        "tensors": tensors,
    })
}
