//! Cards run backwards: what `hf2gguf` makes of a fixture becomes the fixture again.

use std::collections::BTreeMap;

use gguf_foundry::arch::{Inverse, Mapping, OutType, Registry, invert};
use gguf_foundry::convert::{Conversion, ToHfOptions, gguf_to_hf};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{
    ElementType, Hint, Shape, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource,
};
use gguf_foundry::gguf::{GgufFile, Metadata, WriteOptions, write_gguf};
use gguf_foundry::views::{match_rope_freqs, recipe};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use super::fixture::{self, CardFixture};
use super::{Synthetic, keys, load, resolve_with};

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
    invert(registry, &metadata, &gguf.weights, rope.as_ref(), None).unwrap_or_else(|error| panic!("{error}"))
}

/// What has no way back, and which words of the refusal say why.
const NO_WAY_BACK: &[(&str, &str)] = &[
    // Files of drafts do not say whose they are.
    ("dflash/deepseek4_dspark", "unknown to card `dflash`"),
];

/// Tensors by name: type and shape, and the bytes.
type Tensors = BTreeMap<String, (String, Vec<u8>)>;

/// Keys of a file as text, and each tensor's values.
fn content(conversion: &Conversion) -> (Vec<String>, Tensors) {
    // Classes that leave the head size out come back as one that writes it, which says the same.
    let is_compared = |row: &Json| {
        let key = row[0].as_str().unwrap();
        super::is_of_cards(row) && !(key.ends_with("_length") && key.contains("attention."))
    };
    let keys =
        keys(conversion.metadata()).into_iter().filter(is_compared).map(|row| row.to_string()).collect();
    let values = |index: usize, tensor: &TensorMeta| {
        let n_bytes = tensor.ty.row_bytes(tensor.shape.n_cols()).unwrap() * tensor.shape.n_rows();
        let mut bytes = vec![0; usize::try_from(n_bytes).unwrap()];
        conversion.read_rows(index, 0, &mut bytes).unwrap();
        (tensor.name.clone(), (format!("{} {}", tensor.ty, tensor.shape), bytes))
    };
    let tensors = conversion.tensors().iter().enumerate();
    (keys, tensors.map(|(index, tensor)| values(index, tensor)).collect())
}

/// The greatest difference of two lists of F32, in units of the greatest of them.
fn distance(a: &[u8], b: &[u8]) -> f32 {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let (a, b) = (floats(a), floats(b));
    let scale = a.iter().fold(f32::MIN_POSITIVE, |max, x| max.max(x.abs()));
    a.iter().zip(&b).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f32::max)
}

/// Converts a case to F32, back to a checkpoint, and forth again; what is not the same.
fn complaint(registry: &Registry, case: &CardFixture) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let (there, gguf, back) = (dir.path().join("there"), dir.path().join("m.gguf"), dir.path().join("back"));
    fs_err::create_dir(&there).unwrap();
    case.write(&there);
    let conversion = match case.plan(&there, OutType::F32) {
        Ok(conversion) => conversion,
        Err(error) => return Some(format!("{}: {error}", case.at)),
    };
    let card = conversion.mapping().card.name();
    let write = WriteOptions { sync: false, ..WriteOptions::default() };
    write_gguf(&gguf, conversion.metadata(), &conversion, &write, &Silent).unwrap();
    let file = GgufFile::open(&gguf).unwrap();
    let options = ToHfOptions { tokenizer: false, sync: false, ..ToHfOptions::default() };
    let report = gguf_to_hf(registry, file.metadata(), &file, &back, &options, &Silent);
    let report = match (report, NO_WAY_BACK.iter().find(|row| row.0 == card)) {
        (Ok(report), None) => report,
        (Err(error), Some(row)) if error.to_string().contains(row.1) => return None,
        (Ok(_), Some(_)) => return Some(format!("{}: there is a way back after all", case.at)),
        (Err(error), _) => return Some(format!("{}: {error}", case.at)),
    };
    let again = match case.plan_back(&back) {
        Ok(again) => again,
        Err(error) => return Some(format!("{}: again: {error}", case.at)),
    };
    let ((keys, tensors), (new_keys, new_tensors)) = (content(&conversion), content(&again));
    if keys != new_keys {
        let differ = |(a, b): &(&String, &String)| a != b;
        let place = keys.iter().zip(&new_keys).find(differ);
        return Some(format!("{}: {} keys are {}: {place:?}", case.at, keys.len(), new_keys.len()));
    }
    let is_exact = report.lost.is_empty();
    for (name, (shape, bytes)) in &tensors {
        let same = new_tensors.get(name).is_some_and(|(new_shape, new)| {
            shape == new_shape && (bytes == new || !is_exact && distance(bytes, new) < 1e-6)
        });
        if !same {
            return Some(format!("{}: `{name}` differs", case.at));
        }
    }
    (tensors.len() != new_tensors.len()).then(|| format!("{}: more tensors", case.at))
}

#[test]
fn every_fixture_comes_back() {
    let registry = Registry::embedded().unwrap();
    let fixtures = fixture::all();
    let wrong: Vec<String> = fixtures.par_iter().filter_map(|case| complaint(&registry, case)).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), fixtures.len(), wrong.join("\n"));
}

#[test]
fn the_way_back_is_refused_by_name() {
    let registry = Registry::embedded().unwrap();
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "lama");
    let refusal = |metadata: &Metadata, tensors: &[WeightMeta]| {
        let error = invert(&registry, metadata, tensors, None, None).unwrap_err();
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
         hint: add entries or ignore rules in a card of your own with `--card FILE`; `gguf-convert draft` writes one"
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
    let content = load(&crate::support::fixture("cards/llama/rope_llama3.json"));
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
