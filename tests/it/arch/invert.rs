//! Cards run backwards: what `hf2gguf` makes of a fixture becomes the fixture again.

use gguf_foundry::arch::{Inverse, Mapping, OutType, Registry, invert};
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{ElementType, Hint, Shape, SourceError, WeightMeta, WeightSource};
use gguf_foundry::gguf::Metadata;
use gguf_foundry::views::{match_rope_freqs, recipe};
use serde_json::{Value as Json, json};

use super::{Synthetic, keys, load, names_in, resolve_with};
use crate::support::fixture;

/// Tensors in memory, as F32.
struct Memory {
    weights: Vec<WeightMeta>,
    values: Vec<Vec<f32>>,
}

impl WeightSource for Memory {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let first = usize::try_from(first).unwrap();
        for (value, bytes) in self.values[weight][first..].iter().zip(out.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
}

/// The tensors of a plan, computed.
fn computed(outputs: &[gguf_foundry::arch::OutputSpec], source: &dyn WeightSource) -> Memory {
    let values = |output| {
        let recipe = recipe(output, source.weights()).unwrap();
        let mut values = vec![0.0; usize::try_from(recipe.shape().n_elems()).unwrap()];
        recipe.read_f32(source, SimdLevel::Scalar, 0, &mut values).unwrap();
        values
    };
    let weight = |output: &gguf_foundry::arch::OutputSpec| WeightMeta {
        name: output.name.clone(),
        shape: output.shape.clone(),
        ty: ElementType::F32,
    };
    Memory { weights: outputs.iter().map(weight).collect(), values: outputs.iter().map(values).collect() }
}

fn metadata(mapping: &Mapping) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", mapping.card.gguf.as_str());
    for (key, value) in mapping.early.iter().chain(mapping.metadata.iter()) {
        metadata.set(key, value.clone());
    }
    metadata
}

fn inverted(registry: &Registry, mapping: &Mapping, gguf: &Memory) -> Inverse {
    let metadata = metadata(mapping);
    let theta = metadata
        .get(&format!("{}.rope.freq_base", mapping.card.gguf))
        .and_then(gguf_foundry::gguf::Value::as_f64);
    let rope = gguf.weights.iter().position(|weight| weight.name == "rope_freqs.weight");
    let rope = rope.map(|at| match_rope_freqs(&gguf.values[at], theta.unwrap()).unwrap());
    invert(registry, &metadata, &gguf.weights, rope.as_ref()).unwrap_or_else(|error| panic!("{error}"))
}

/// Name, shape and values of each tensor, sorted; names without what some checkpoints leave out in front.
fn tensors(source: &dyn WeightSource, values: impl Fn(usize) -> Vec<f32>) -> Vec<(String, String, Vec<f32>)> {
    let weights = source.weights().iter().enumerate();
    let row = |(index, weight): (usize, &WeightMeta)| {
        let front = ["model.", "transformer."].iter().find_map(|front| weight.name.strip_prefix(front));
        (front.unwrap_or(&weight.name).to_owned(), weight.shape.to_string(), values(index))
    };
    let mut rows: Vec<_> = weights.map(row).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

fn synthetic_values(source: &Synthetic, weight: usize) -> Vec<f32> {
    let mut bytes = vec![0; usize::try_from(source.weights[weight].shape.n_elems()).unwrap() * 2];
    source.read_elems(weight, 0, &mut bytes).unwrap();
    bytes.as_chunks::<2>().0.iter().map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)).collect()
}

#[test]
fn every_fixture_comes_back() {
    let registry = Registry::embedded().unwrap();
    for arch in names_in(&fixture("cards")) {
        for case in names_in(&fixture("cards").join(&arch)) {
            let at = format!("{arch}/{case}");
            let content = load(&fixture("cards").join(&arch).join(&case));
            let source = Synthetic::new(&content["tensors"]);
            let there = resolve_with(&registry, &content["config"], &source, OutType::F32).unwrap();
            let gguf = computed(&there.outputs, &source);
            let inverse = inverted(&registry, &there, &gguf);
            let back = computed(&inverse.outputs, &gguf);
            assert!(inverse.inexact.is_empty(), "{at}");
            let mut wanted = tensors(&source, |index| synthetic_values(&source, index));
            wanted.retain(|row| !row.0.ends_with("inv_freq"));
            assert!(tensors(&back, |index| back.values[index].clone()) == wanted, "{at}: tensors differ");

            // The rebuilt configuration gives the same keys. Classes that leave the head size out come back as one
            // that writes it, which says the same.
            let config = Json::Object(inverse.config.clone());
            let weights = Synthetic { weights: back.weights.clone() };
            let again = resolve_with(&registry, &config, &weights, OutType::F32).unwrap();
            let without_head_size = |mapping: &Mapping| -> Vec<Json> {
                let head = |row: &Json| {
                    row[0].as_str().is_some_and(|key| key.ends_with("_length") && key.contains("attention."))
                };
                keys(&mapping.metadata).into_iter().filter(|row| !head(row)).collect()
            };
            assert_eq!(without_head_size(&again), without_head_size(&there), "{at}");
            let names = |mapping: &Mapping| {
                let mut names: Vec<String> =
                    mapping.outputs.iter().map(|output| output.name.clone()).collect();
                names.sort();
                names
            };
            assert_eq!(names(&again), names(&there), "{at}");
        }
    }
}

#[test]
fn the_way_back_is_refused_by_name() {
    let registry = Registry::embedded().unwrap();
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "lama");
    let refusal = |metadata: &Metadata, tensors: &[WeightMeta]| {
        let error = invert(&registry, metadata, tensors, None).unwrap_err();
        error.hints().iter().fold(error.to_string(), |all, hint| all + "\nhint: " + hint)
    };
    assert_eq!(refusal(&metadata, &[]), "no architecture card for `general.architecture` `lama`");
    metadata.set("general.architecture", "llama");
    let tensor = |name: &str| WeightMeta {
        name: name.to_owned(),
        shape: Shape::new(vec![4, 4]).unwrap(),
        ty: ElementType::F32,
    };
    assert_eq!(
        refusal(&metadata, &[tensor("blk.0.attn_norn.weight")]),
        "1 of the checkpoint's tensors is unknown to card `llama`: `blk.0.attn_norn.weight`\n\
         hint: `blk.0.attn_norn.weight` is nearest to `blk.0.attn_norm`\n\
         hint: add entries or ignore rules in a card of your own with `--card FILE`"
    );
    metadata.set("llama.attention.head_count", 3u32);
    assert_eq!(
        refusal(&metadata, &[tensor("blk.0.attn_q.weight")]),
        "tensor `blk.0.attn_q.weight` [4, 4]: `permute_rope`: 3 heads of pairs do not make 4 rows"
    );
}

#[test]
fn a_configuration_is_rebuilt_in_full() {
    let registry = Registry::embedded().unwrap();
    let content = load(&fixture("cards/llama/rope_llama3.json"));
    let source = Synthetic::new(&content["tensors"]);
    let there = resolve_with(&registry, &content["config"], &source, OutType::F32).unwrap();
    let inverse = inverted(&registry, &there, &computed(&there.outputs, &source));
    assert_eq!(
        Json::Object(inverse.config),
        json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": 96,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 500000.0,
            "tie_word_embeddings": false,
            "rope_scaling": content["config"]["rope_scaling"],
            "attention_bias": false,
            "mlp_bias": false,
        })
    );
    let dropped: Vec<String> = inverse.dropped.iter().map(|dropped| dropped.why.to_string()).collect();
    assert_eq!(dropped, ["computed from the configuration"]);
}
