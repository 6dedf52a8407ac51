//! Groups the tensors of a checkpoint by kind: names that differ only in numbers.

use indexmap::IndexMap;

use crate::language::names;
use crate::mapping::matching::kind_of;
use crate::read::is_multimodal;
use gguf_core::WeightMeta;

/// Tensors whose names differ only in numbers.
#[derive(Clone, Debug)]
pub(crate) struct TensorKind {
    /// Index of the first weight, and its name after the rewriting that all cards share.
    pub(crate) first: usize,
    pub(crate) first_name: String,
    pub(crate) last_name: String,
    pub(crate) n_tensors: u64,
    /// Dimensions of the first weight, and whether all weights have the same.
    pub(crate) dims: Vec<u64>,
    pub(crate) same_dims: bool,
}

/// Returns the kinds of a text model's tensors, by their names with `#` for each number, in the order of the
/// checkpoint. Tensors of other modalities and buffers are left out, as in all cards.
pub(crate) fn kinds(weights: &[WeightMeta]) -> IndexMap<String, TensorKind> {
    let mut kinds: IndexMap<String, TensorKind> = IndexMap::new();
    for (at, weight) in weights.iter().enumerate() {
        let name = names::shared_rewrite(&weight.name);
        if is_multimodal(&name) || names::is_recomputed(&name) {
            continue;
        }
        let dims = weight.shape.dims();
        match kinds.entry(kind_of(&name)) {
            indexmap::map::Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.n_tensors += 1;
                known.same_dims &= known.dims == dims;
                known.last_name = name;
            }
            indexmap::map::Entry::Vacant(new) => {
                let (first_name, last_name) = (name.clone(), name);
                let dims = dims.to_vec();
                new.insert(TensorKind {
                    first: at,
                    first_name,
                    last_name,
                    n_tensors: 1,
                    dims,
                    same_dims: true,
                });
            }
        }
    }
    kinds
}

/// Returns the text before the first number in most kinds: `model.layers.`.
pub(crate) fn block_prefix<'k>(kinds: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let mut votes: IndexMap<&str, usize> = IndexMap::new();
    for kind in kinds {
        if let Some((prefix, _)) = kind.split_once('#').filter(|(_, rest)| rest.starts_with('.')) {
            *votes.entry(prefix).or_default() += 1;
        }
    }
    // Among equals, the first is used.
    votes.into_iter().rev().max_by_key(|vote| vote.1).map(|vote| vote.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{ElementType, Shape};

    #[test]
    fn names_that_differ_in_numbers_are_of_a_kind() {
        let weight = |name: &str, dims: &[u64]| WeightMeta {
            name: name.to_owned(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: ElementType::Bf16,
        };
        let weights = [
            weight("model.layers.0.q.weight", &[4, 4]),
            weight("model.layers.10.q.weight", &[4, 8]),
            weight("vision_tower.blocks.0.q.weight", &[4, 4]),
            weight("model.norm.weight", &[4]),
            weight("model.layers.0.self_attn.rotary_emb.inv_freq", &[4]),
        ];
        let found = kinds(&weights);
        let rows: Vec<_> =
            found.iter().map(|(kind, row)| (kind.as_str(), row.n_tensors, row.same_dims)).collect();
        assert_eq!(rows, [("model.layers.#.q.weight", 2, false), ("model.norm.weight", 1, true)]);
        assert_eq!(found[0].last_name, "model.layers.10.q.weight");
        assert_eq!(block_prefix(found.keys().map(String::as_str)), Some("model.layers."));
        assert_eq!(block_prefix(["a", "b.1x"].into_iter()), None);
    }
}
