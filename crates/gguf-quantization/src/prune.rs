//! Layer pruning: names of the remaining layers, and the metadata that counts or lists layers.

use std::collections::{BTreeMap, BTreeSet};

use crate::QuantizeError;
use gguf_arch::GraphFeatures;
use gguf_arch::graph::{MixerRule, RopeOn, WindowPattern};
use gguf_core::TensorMeta;
use gguf_format::keys::{ValueCount, annotation_row, key_info};
use gguf_format::{Array, Metadata, Value};

/// New names for the tensors of a model with pruned layers.
///
/// # Exactness
/// ref: layers before the first pruned one keep their numbers. Later ones get the next free number in the order in
/// which they come. The number after any `blk.` in a name counts, not only at its beginning.
pub(crate) struct Pruned<'a> {
    layers: &'a BTreeSet<u32>,
    renumbered: BTreeMap<u32, Option<u32>>,
    next: u32,
}

impl<'a> Pruned<'a> {
    /// Prunes these layers; nothing if the set is empty.
    pub(crate) fn new(layers: &'a BTreeSet<u32>) -> Self {
        Self { layers, renumbered: BTreeMap::new(), next: 0 }
    }

    /// Name in the output; `None` if the tensor is pruned. Must be called in file order.
    pub(crate) fn rename(&mut self, name: &str) -> Option<String> {
        let Some(&first) = self.layers.first() else { return Some(name.to_owned()) };
        let Some((before, layer, after)) = split_at_layer(name) else { return Some(name.to_owned()) };
        let next = &mut self.next;
        let renumbered = *self.renumbered.entry(layer).or_insert_with(|| {
            if self.layers.contains(&layer) {
                return None;
            }
            let number = if layer < first { layer } else { *next };
            *next = number.saturating_add(1);
            Some(number)
        });
        renumbered.map(|number| format!("{before}{number}{after}"))
    }

    /// Number of remaining layers among the names so far.
    pub(crate) fn n_layers(&self) -> Option<u32> {
        (!self.layers.is_empty()).then_some(self.next)
    }
}

/// Keys of an architecture that count layers from the first one.
const FROM_THE_FIRST: [&str; 4] =
    ["leading_dense_block_count", "n_deepstack_layers", "hash_layer_count", "decoder_block_count"];
/// Keys of an architecture that count layers from the last one backwards.
const FROM_THE_LAST: [&str; 2] = ["nextn_predict_layers", "attention.shared_kv_layers"];
/// Arrays of an architecture, of any length, that do not have an entry for each layer.
const NOT_BY_LAYER: [&str; 2] = ["target_layers", "classifier.output_labels"];
/// Array of an architecture that names layers by number.
const NAMES_LAYERS: &str = "ple.layers";
/// Keys of an architecture with a period: every n-th layer is different.
const PERIODS: [&str; 5] = [
    "full_attention_interval",
    "interleave_moe_layer_step",
    "moe_every_n_layers",
    "attention.sliding_window_pattern",
    "rescale_every_n_layers",
];

/// Layers of a model, some of which are pruned.
pub(crate) struct PrunedLayers<'a> {
    layers: &'a BTreeSet<u32>,
    arch: &'a str,
    n_before: u32,
}

impl<'a> PrunedLayers<'a> {
    /// Counts the layers of a model by its metadata, otherwise by its tensors.
    pub(crate) fn new(
        layers: &'a BTreeSet<u32>,
        metadata: &'a Metadata,
        tensors: &[TensorMeta],
    ) -> Result<Option<Self>, QuantizeError> {
        let Some(&last) = layers.last() else { return Ok(None) };
        let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        let count = |name: &str| {
            let value = metadata.get(&format!("{arch}.{name}"))?.as_u64()?;
            u32::try_from(value).ok()
        };
        let blocks: BTreeSet<u32> =
            tensors.iter().filter_map(|tensor| Some(split_at_layer(&tensor.name)?.1)).collect();
        let by_name = || blocks.last().map_or(0, |last| last.saturating_add(1));
        let n_before =
            count("block_count").unwrap_or_else(by_name).max(count("decoder_block_count").unwrap_or(0));
        // The layers of a tower are counted under other keys, for each of its parts.
        let n_before = if arch == "clip" { 0 } else { n_before };
        if last >= n_before {
            return Err(QuantizeError::NoLayer { layer: last, n_layers: n_before });
        }
        if layers.len() as u64 >= u64::from(n_before) {
            return Err(QuantizeError::AllLayers { n_layers: n_before });
        }
        // Keys that count passes or other layers would no longer fit, nor would numbers without tensors stay free.
        let odd = (0..n_before).find(|layer| !blocks.contains(layer));
        if let Some(layer) = odd.or_else(|| blocks.last().copied().filter(|&layer| layer >= n_before)) {
            return Err(QuantizeError::NotByLayer { layer, n_layers: n_before });
        }
        if metadata.contains(&format!("{arch}.{NAMES_LAYERS}")) {
            return Err(QuantizeError::LayersByNumber { key: format!("{arch}.{NAMES_LAYERS}") });
        }
        Ok(Some(Self { layers, arch, n_before }))
    }

    fn n_below(&self, layer: u64) -> u64 {
        self.layers.iter().filter(|&&pruned| u64::from(pruned) < layer).count() as u64
    }

    /// Removes the pruned layers from arrays with one entry per layer, and subtracts them from counts of layers. The
    /// total number of layers is set elsewhere.
    pub(crate) fn apply(&self, metadata: &mut Metadata) {
        let n_heads =
            metadata.get(&format!("{}.nextn_predict_layers", self.arch)).and_then(Value::as_u64).unwrap_or(0);
        let n_before = u64::from(self.n_before);
        let changes: Vec<(String, Value)> = metadata
            .iter()
            .filter_map(|(key, value)| {
                let name = key.strip_prefix(self.arch).and_then(|rest| rest.strip_prefix('.'));
                if let Value::Array(array) = value {
                    // Some lists omit the draft heads after the model's own layers.
                    let n = array.len() as u64;
                    let fits = n == n_before || (n_heads > 0 && n_before.checked_sub(n_heads) == Some(n));
                    let is_by_layer = fits && self.may_go_by_layer(key, name);
                    return is_by_layer.then(|| (key.to_owned(), Value::Array(self.filtered(array))));
                }
                let name = name?;
                let value = match value {
                    value if FROM_THE_FIRST.contains(&name) => {
                        let n = value.as_u64()?;
                        number_like(value, n - self.n_below(n))?
                    }
                    value if FROM_THE_LAST.contains(&name) => {
                        let n = value.as_u64()?.min(n_before);
                        let n_pruned = self.layers.len() as u64 - self.n_below(n_before - n);
                        number_like(value, n - n_pruned)?
                    }
                    _ => return None,
                };
                Some((key.to_owned(), value))
            })
            .collect();
        for (key, value) in changes {
            metadata.set(key, value);
        }
    }

    /// Returns true for arrays that have one entry per layer if their length is the number of layers. `name` is the key
    /// without the architecture prefix, for keys of the architecture.
    fn may_go_by_layer(&self, key: &str, name: Option<&str>) -> bool {
        match key_info(key, self.arch).or_else(|| annotation_row(key)).map(|row| row.count) {
            Some(ValueCount::PerBlock | ValueCount::PerOwnBlock) => true,
            Some(ValueCount::Any) | None => name.is_some_and(|name| !NOT_BY_LAYER.contains(&name)),
            Some(ValueCount::One | ValueCount::Exactly(_) | ValueCount::AtLeast(_) | ValueCount::AsIn(_)) => {
                false
            }
        }
    }

    fn filtered(&self, array: &Array) -> Array {
        let stays = |index: usize| !u32::try_from(index).is_ok_and(|index| self.layers.contains(&index));
        array.filtered(stays)
    }

    /// Patterns that the pruned file cannot express: those of every n-th layer in which renumbered layers count
    /// differently.
    pub(crate) fn lost_patterns(&self, metadata: &Metadata) -> Vec<String> {
        let stated = |name: &str| metadata.get(&format!("{}.{name}", self.arch));
        let mut periods: Vec<(String, u64)> = PERIODS
            .iter()
            .filter_map(|name| Some((format!("key `{}.{name}`", self.arch), stated(name)?.as_u64()?)))
            .collect();
        if let Some(features) = GraphFeatures::of(self.arch) {
            let mut implied = |what: &str, period: u32| {
                periods.push((format!("{what} of architecture `{}`", self.arch), u64::from(period)));
            };
            if let MixerRule::Every { every, .. } = features.mixer
                && stated("full_attention_interval").is_none()
            {
                implied("the order of kinds of layers", every);
            }
            let has_windows = stated("attention.sliding_window").is_some();
            match features.window.pattern {
                Some(WindowPattern::DenseLast(n) | WindowPattern::DenseFirst { dense_first: n })
                    if has_windows && stated("attention.sliding_window_pattern").is_none() =>
                {
                    implied("the order of layers with a window", n);
                }
                _ => {}
            }
            if let RopeOn::SkipEvery(n) | RopeOn::SkipFirstOf(n) = features.rope.on {
                implied("the order of layers without rotation", n);
            }
        }
        periods.retain(|(_, period)| *period > 1 && self.moves_within(*period));
        periods.into_iter().map(|(what, period)| format!("{what}: every {period}")).collect()
    }

    /// Returns true if a remaining layer gets another place in its period.
    fn moves_within(&self, period: u64) -> bool {
        let mut stay = (0..u64::from(self.n_before)).filter(|&layer| !self.layers.contains(&(layer as u32)));
        stay.any(|layer| !self.n_below(layer).is_multiple_of(period))
    }
}

/// Converts a number to the type of another value.
fn number_like(like: &Value, number: u64) -> Option<Value> {
    Some(match like {
        Value::U64(_) => Value::U64(number),
        Value::I32(_) => Value::I32(i32::try_from(number).ok()?),
        Value::I64(_) => Value::I64(i64::try_from(number).ok()?),
        _ => Value::U32(u32::try_from(number).ok()?),
    })
}

/// Splits a name around the number of the first `blk.N.` in it.
pub(crate) fn split_at_layer(name: &str) -> Option<(&str, u32, &str)> {
    name.match_indices("blk.").find_map(|(at, prefix)| {
        let start = at + prefix.len();
        let n_digits = name[start..].bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = name[start..].split_at(n_digits);
        let layer = number.parse().ok().filter(|_| after.starts_with('.'))?;
        Some((&name[..start], layer, after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(layers: &[u32], names: &[&str]) -> (Vec<Option<String>>, Option<u32>) {
        let layers = layers.iter().copied().collect();
        let mut pruned = Pruned::new(&layers);
        let names = names.iter().map(|name| pruned.rename(name)).collect();
        (names, pruned.n_layers())
    }

    #[test]
    fn later_layers_move_up() {
        let names = ["output.weight", "blk.0.a", "blk.1.a", "blk.1.b", "blk.2.a", "blk.3.a", "blk.4.a"];
        let (names, n_layers) = renamed(&[1, 3], &names);
        let names: Vec<_> = names.iter().map(Option::as_deref).collect();
        let some = Some::<&str>;
        assert_eq!(
            names,
            [some("output.weight"), some("blk.0.a"), None, None, some("blk.1.a"), None, some("blk.2.a")]
        );
        assert_eq!(n_layers, Some(3));
    }

    #[test]
    fn nothing_to_prune() {
        let (names, n_layers) = renamed(&[], &["blk.5.a"]);
        assert_eq!((names[0].as_deref(), n_layers), (Some("blk.5.a"), None));
    }

    #[test]
    fn the_first_layer_and_odd_names() {
        let (names, n_layers) = renamed(&[0], &["blk.x", "blk.0.a", "v.blk.1.a", "blk.99999999999.a"]);
        assert_eq!(names[0].as_deref(), Some("blk.x"));
        assert_eq!((names[1].as_deref(), names[2].as_deref()), (None, Some("v.blk.0.a")));
        assert_eq!((names[3].as_deref(), n_layers), (Some("blk.99999999999.a"), Some(1)));
    }

    fn layers(numbers: impl IntoIterator<Item = u32>) -> Vec<TensorMeta> {
        let tensor = |number| TensorMeta {
            name: format!("blk.{number}.attn_norm.weight"),
            shape: gguf_core::Shape::new(vec![1]).unwrap(),
            ty: gguf_core::GgmlType::F32,
        };
        numbers.into_iter().map(tensor).collect()
    }

    fn model(arch: &str, keys: &[(&str, Value)]) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", arch);
        for (key, value) in keys {
            metadata.set(format!("{arch}.{key}"), value.clone());
        }
        metadata
    }

    #[test]
    fn lists_and_counts_of_layers_follow() {
        let keys = [
            ("block_count", Value::U32(6)),
            ("nextn_predict_layers", Value::U32(1)),
            ("leading_dense_block_count", Value::U32(2)),
            ("attention.head_count_kv", Value::from(vec![0i32, 1, 2, 3, 4, 5])),
            ("feed_forward_length", Value::from(vec![10u32, 11, 12, 13, 14])),
            ("rope.dimension_sections", Value::from(vec![1i32, 2, 3, 4])),
            ("attention.head_count", Value::U32(8)),
        ];
        let metadata = model("deepseek2", &keys);
        let pruned: BTreeSet<u32> = [1, 3].into();
        let pruned = PrunedLayers::new(&pruned, &metadata, &layers(0..6)).unwrap().unwrap();
        let mut after = metadata.clone();
        pruned.apply(&mut after);
        let get = |name: &str| after.get(&format!("deepseek2.{name}")).cloned();
        assert_eq!(get("attention.head_count_kv"), Some(Value::from(vec![0i32, 2, 4, 5])));
        assert_eq!(get("feed_forward_length"), Some(Value::from(vec![10u32, 12, 14])));
        assert_eq!(get("leading_dense_block_count"), Some(Value::U32(1)));
        assert_eq!(get("nextn_predict_layers"), Some(Value::U32(1)));
        assert_eq!(get("rope.dimension_sections"), Some(Value::from(vec![1i32, 2, 3, 4])));
        assert_eq!(get("attention.head_count"), Some(Value::U32(8)));
        let head: BTreeSet<u32> = [5].into();
        let mut after = metadata.clone();
        PrunedLayers::new(&head, &metadata, &layers(0..6)).unwrap().unwrap().apply(&mut after);
        assert_eq!(after.get("deepseek2.nextn_predict_layers"), Some(&Value::U32(0)));
    }

    #[test]
    fn lists_of_layers_outside_the_architecture_follow() {
        let pattern = "gguf_foundry.attention.sliding_window_pattern";
        let mut metadata = model(
            "apertus",
            &[("block_count", Value::U32(3)), ("rope.dimension_sections", Value::from(vec![1i32, 2, 3]))],
        );
        metadata.set("xielu.alpha_p", Value::from(vec![0.5f32, 1.5, 2.5]));
        metadata.set(pattern, Value::from(vec![true, false, true]));
        metadata.set("tokenizer.ggml.scores", Value::from(vec![0.0f32, 1.0, 2.0]));
        let pruned: BTreeSet<u32> = [1].into();
        let mut after = metadata.clone();
        PrunedLayers::new(&pruned, &metadata, &layers(0..3)).unwrap().unwrap().apply(&mut after);
        assert_eq!(after.get("xielu.alpha_p"), Some(&Value::from(vec![0.5f32, 2.5])));
        assert_eq!(after.get(pattern), Some(&Value::from(vec![true, true])));
        for key in ["tokenizer.ggml.scores", "apertus.rope.dimension_sections"] {
            assert_eq!(after.get(key), metadata.get(key), "{key}");
        }
    }

    #[test]
    fn a_number_of_draft_heads_that_no_file_has_is_no_panic() {
        let keys = [
            ("block_count", Value::U32(3)),
            ("nextn_predict_layers", Value::U64(u64::MAX)),
            ("feed_forward_length", Value::from(vec![10u32, 11])),
        ];
        let metadata = model("deepseek2", &keys);
        let pruned: BTreeSet<u32> = [1].into();
        let mut after = metadata.clone();
        PrunedLayers::new(&pruned, &metadata, &layers(0..3)).unwrap().unwrap().apply(&mut after);
        assert_eq!(after.get("deepseek2.feed_forward_length"), Some(&Value::from(vec![10u32, 11])));
    }

    #[test]
    fn layers_that_are_not_there_are_refused() {
        let metadata = model("llama", &[("block_count", Value::U32(3))]);
        let error_of = |pruned: &[u32], found: &[u32]| {
            let (pruned, found) = (pruned.iter().copied().collect(), layers(found.iter().copied()));
            PrunedLayers::new(&pruned, &metadata, &found).err().map(|error| error.to_string())
        };
        let error = |pruned: &[u32]| error_of(pruned, &[0, 1, 2]);
        assert_eq!(error(&[1]), None);
        assert_eq!(error(&[]), None);
        assert_eq!(error(&[1, 3]).unwrap(), "layer 3 cannot be pruned: the model has layers 0 to 2");
        assert_eq!(error(&[0, 1, 2]).unwrap(), "no layer would be left: the model has layers 0 to 2");
        // A key that counts passes; a layer without tensors; a file of draft heads.
        for (found, said) in [
            (&[0, 1][..], "no tensors of layer 2"),
            (&[0, 2], "no tensors of layer 1"),
            (&[0, 1, 2, 5], "tensors of layer 5"),
        ] {
            let error = error_of(&[2], found).unwrap();
            assert!(error.ends_with(&format!("layers 0 to 2 by its keys, and {said}")), "{error}");
        }
    }

    #[test]
    fn patterns_that_no_longer_hold_are_found() {
        let lost = |arch: &str, keys: &[(&str, Value)], pruned: &[u32]| {
            let metadata = model(arch, keys);
            let pruned = pruned.iter().copied().collect();
            PrunedLayers::new(&pruned, &metadata, &layers(0..12))
                .unwrap()
                .unwrap()
                .lost_patterns(&metadata)
                .len()
        };
        let n_layers = ("block_count", Value::U32(12));
        let interval = ("full_attention_interval", Value::U32(4));
        assert_eq!(lost("qwen3next", &[n_layers.clone(), interval.clone()], &[2]), 1);
        assert_eq!(lost("qwen3next", &[n_layers.clone(), interval.clone()], &[4, 5, 6, 7]), 0);
        assert_eq!(lost("qwen3next", &[n_layers.clone(), interval], &[10, 11]), 0);
        let window = ("attention.sliding_window", Value::U32(512));
        assert_eq!(lost("gemma2", &[n_layers.clone(), window.clone()], &[3]), 1);
        assert_eq!(lost("gemma2", &[n_layers.clone(), window], &[3, 4]), 0);
        assert_eq!(lost("llama", &[n_layers], &[3]), 0);
    }
}
