//! Facts about a model that its mixture depends on.

use std::collections::BTreeSet;

use crate::TensorClass;
use crate::class::{TensorRole, file_order, is_quantizable, layer_of};
use crate::options::{Override, OverrideValue};
use gguf_arch::diffusion::DiffusionRules;
use gguf_arch::tower_fixed;
use gguf_core::TensorMeta;
use gguf_format::{Metadata, Value};

/// Facts from metadata. Unknown architectures have them too, since the keys are prefixed with the architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Value of `general.architecture`.
    pub architecture: String,
    /// Number of all layers.
    pub n_layers: i32,
    /// Number of experts per layer.
    pub n_experts: u32,
    /// Number of query heads that share one key head in the first layer; 0 without key heads.
    pub(crate) n_gqa: u32,
    /// True for models whose value projections are small compared with the rest.
    pub(crate) is_70b: bool,
    /// Rules of an image or video model, which replace those of language models.
    pub diffusion: Option<DiffusionRules>,
    /// Tensors of a tower that keep their type, by its card.
    pub(crate) fixed: BTreeSet<String>,
}

/// Architectures and layer counts of models that count as 70 B.
static LAYERS_OF_70B: &[(&str, i64)] =
    &[("llama", 80), ("llama-embed", 80), ("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)];

impl ModelFacts {
    /// Reads the facts. A missing layer count is derived from the tensor names.
    ///
    /// # Exactness
    /// Overrides count as in llama-quantize: the first one for a key, and for head counts only if the file has a single
    /// number for all layers. Head counts are those of the first layer.
    pub fn new(metadata: &Metadata, overrides: &[Override], tensors: &[TensorMeta]) -> Self {
        let architecture =
            metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default().to_owned();
        let keys = ModelKeys { metadata, overrides, architecture: &architecture };

        let from_tensors =
            || tensors.iter().filter_map(|t| layer_of(&t.name)).max().map_or(0, |last| i64::from(last) + 1);
        let n_layers = keys.number("block_count").unwrap_or_else(from_tensors);
        let n_extra = keys.number("nextn_predict_layers").unwrap_or(0);
        let n_regular = n_layers.saturating_sub(n_extra);
        let n_experts = keys.number("expert_count").unwrap_or(0);
        let n_heads = keys.first_of("attention.head_count").unwrap_or(0);
        let n_kv_heads = keys.first_of("attention.head_count_kv").unwrap_or(n_heads);
        let n_counted = match architecture.as_str() {
            // Layers that are run several times count each time.
            "nanbeige" => {
                keys.number("num_loops").filter(|&n| n > 1).map_or(n_layers, |n| n_regular.saturating_mul(n))
            }
            // The router of the adapters counts as a layer.
            "graniteswitch" => n_regular.saturating_add(1),
            _ => n_layers,
        };
        let is_llama = architecture == "llama" || architecture == "llama-embed";
        let is_70b = LAYERS_OF_70B.contains(&(architecture.as_str(), n_regular))
            && !(is_llama && (n_experts == 8 || n_heads == n_kv_heads));
        Self {
            n_layers: i32::try_from(n_counted).unwrap_or(i32::MAX),
            n_experts: u32::try_from(n_experts).unwrap_or(u32::MAX),
            n_gqa: n_heads.checked_div(n_kv_heads).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX)),
            is_70b,
            // Embedded cards are valid.
            diffusion: DiffusionRules::of_file(metadata, tensors).ok().flatten(),
            fixed: if architecture == "clip" { tower_fixed(metadata, tensors) } else { BTreeSet::new() },
            architecture,
        }
    }

    /// Returns true for weights that are quantized.
    pub fn is_quantized(&self, tensor: &TensorMeta) -> bool {
        match &self.diffusion {
            Some(rules) => rules.is_quantized(tensor),
            None => is_quantizable(&self.architecture, tensor) && !self.fixed.contains(&tensor.name),
        }
    }

    pub(crate) fn roles(&self, tensors: &[TensorMeta]) -> Vec<TensorRole> {
        let role = |tensor: &TensorMeta| TensorRole {
            class: TensorClass::of(&tensor.name),
            is_matrix: self.is_quantized(tensor),
        };
        tensors.iter().map(role).collect()
    }

    /// Returns the indices of the tensors in the order of a quantized file. Files of image and video models keep their
    /// order.
    pub fn file_order(&self, tensors: &[TensorMeta]) -> Vec<usize> {
        match &self.diffusion {
            Some(_) => (0..tensors.len()).collect(),
            None => file_order(tensors),
        }
    }

    /// Returns true for mixtures of eight experts, which have separate rules.
    pub(crate) fn has_eight_experts(&self) -> bool {
        self.n_experts == 8
    }
}

struct ModelKeys<'a> {
    metadata: &'a Metadata,
    overrides: &'a [Override],
    architecture: &'a str,
}

impl ModelKeys<'_> {
    fn overridden(&self, key: &str) -> Option<i64> {
        match self.overrides.iter().find(|item| item.key == key)?.value {
            OverrideValue::Int(value) => Some(value).filter(|&value| value >= 0),
            _ => None,
        }
    }

    /// Number for the whole model.
    fn number(&self, name: &str) -> Option<i64> {
        let key = format!("{}.{name}", self.architecture);
        let stored = || self.metadata.get(&key).and_then(Value::as_u64).and_then(|n| i64::try_from(n).ok());
        self.overridden(&key).or_else(stored)
    }

    /// Number for the first layer of a key that may differ between layers.
    fn first_of(&self, name: &str) -> Option<i64> {
        let key = format!("{}.{name}", self.architecture);
        let number = match self.metadata.get(&key)? {
            Value::Array(array) => array.get(0)?.as_u64()?,
            value => return self.overridden(&key).or_else(|| i64::try_from(value.as_u64()?).ok()),
        };
        i64::try_from(number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    fn metadata(architecture: &str, numbers: &[(&str, u32)]) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", architecture);
        for (key, number) in numbers {
            metadata.set(format!("{architecture}.{key}"), *number);
        }
        metadata
    }

    #[test]
    fn big_llamas_with_shared_key_heads() {
        let facts = |heads, kv_heads, experts| {
            let numbers = [
                ("block_count", 80),
                ("attention.head_count", heads),
                ("attention.head_count_kv", kv_heads),
                ("expert_count", experts),
            ];
            ModelFacts::new(&metadata("llama", &numbers), &[], &[])
        };
        assert_eq!((facts(64, 8, 0).is_70b, facts(64, 8, 0).n_gqa), (true, 8));
        assert!(!facts(64, 64, 0).is_70b);
        assert!(!facts(64, 8, 8).is_70b);
        assert_eq!(facts(64, 0, 0).n_gqa, 0);
    }

    #[test]
    fn an_unknown_architecture_has_facts_too() {
        let shape = Shape::new(vec![4, 4]).unwrap();
        let tensors: Vec<_> = ["blk.0.a", "blk.6.a", "enc.blk.9.a"]
            .map(|name| TensorMeta { name: name.to_owned(), shape: shape.clone(), ty: GgmlType::F16 })
            .into();
        let mut metadata = metadata("nobody", &[]);
        metadata.set("nobody.attention.head_count", vec![12u32, 1]);
        metadata.set("nobody.attention.head_count_kv", 3u32);
        let facts = ModelFacts::new(&metadata, &[], &tensors);
        assert_eq!((facts.n_layers, facts.n_gqa, facts.is_70b), (7, 4, false));
    }

    /// The runtime transposes the first and convolves with the second: it does neither with blocks.
    #[test]
    fn tensors_of_towers_keep_the_type_that_their_card_fixes() {
        for (projector, kept) in [
            ("gemma3", "mm.input_projection.weight"),
            ("lfm2a", "a.blk.3.conv_dw.weight"),
            ("deepseekocr", "v.sam.blk.0.attn.pos_h.weight"),
        ] {
            let mut metadata = metadata("clip", &[]);
            metadata.set("clip.projector_type", projector);
            let shape = Shape::new(vec![64, 64]).unwrap();
            let tensors: Vec<_> = [kept, "v.blk.0.attn_q.weight"]
                .map(|name| TensorMeta { name: name.to_owned(), shape: shape.clone(), ty: GgmlType::F32 })
                .into();
            let facts = ModelFacts::new(&metadata, &[], &tensors);
            let quantized: Vec<bool> = tensors.iter().map(|tensor| facts.is_quantized(tensor)).collect();
            assert_eq!(quantized, [false, true], "{projector}");
        }
    }

    #[test]
    fn overrides_change_the_facts() {
        let metadata = metadata("llama", &[("attention.head_count", 8), ("block_count", 2)]);
        let overrides = [
            Override::parse("llama.attention.head_count=int:4").unwrap(),
            Override::parse("llama.attention.head_count_kv=int:1").unwrap(),
            Override::parse("llama.expert_count=int:6").unwrap(),
            Override::parse("llama.block_count=str:9").unwrap(),
        ];
        let facts = ModelFacts::new(&metadata, &overrides, &[]);
        assert_eq!((facts.n_gqa, facts.n_experts, facts.n_layers), (1, 6, 2));
    }
}
