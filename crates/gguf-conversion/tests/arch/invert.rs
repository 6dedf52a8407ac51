//! Cards run backwards: the output of `hf2gguf` for a fixture becomes the fixture again.

use std::collections::{BTreeMap, BTreeSet};

use gguf_arch::{Inverse, Mapping, OutType, Registry, invert};
use gguf_blocks::dequantize;
use gguf_conversion::{Conversion, ToHfOptions, gguf_to_hf};
use gguf_core::progress::Silent;
use gguf_core::simd::SimdLevel;
use gguf_core::{
    ElementType, GgmlType, Hint, Shape, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource,
};
use gguf_format::{Array, GgufFile, Metadata, Value, WriteOptions, write_gguf};
use gguf_views::{match_rope_freqs, recipe};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use super::fixture::{self, CardFixture};
use super::{Synthetic, came_from, keys, load, resolve_with};
use gguf_testkit::memory::MemoryWeights;
use gguf_testkit::tiers::{Tier, two_tiers};

/// Computed tensors of a plan.
fn computed(outputs: &[gguf_arch::OutputSpec], source: &dyn WeightSource) -> MemoryWeights {
    outputs.iter().fold(MemoryWeights::default(), |all, output| {
        let recipe = recipe(output, source.weights()).unwrap();
        let mut values = vec![0.0; usize::try_from(recipe.shape().n_elems()).unwrap()];
        recipe.read_f32(source, SimdLevel::Scalar, 0, &mut values).unwrap();
        all.with_f32(&output.name, output.shape.dims(), &values)
    })
}

fn metadata(mapping: &Mapping) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", mapping.card.gguf.as_str());
    for (key, value) in mapping.early.iter().chain(mapping.metadata.iter()) {
        metadata.set(key, value.clone());
    }
    metadata
}

fn inverted(registry: &Registry, mapping: &Mapping, gguf: &MemoryWeights) -> Inverse {
    let metadata = metadata(mapping);
    let theta =
        metadata.get(&format!("{}.rope.freq_base", mapping.card.gguf)).and_then(gguf_format::Value::as_f64);
    let rope = gguf.weights().iter().position(|weight| weight.name == "rope_freqs.weight");
    let rope = rope.map(|at| match_rope_freqs(&gguf.f32s(at), theta.unwrap()).unwrap());
    invert(registry, &metadata, gguf.weights(), rope.as_ref(), None).unwrap_or_else(|error| panic!("{error}"))
}

/// Cases, or all cases of a card, that cannot be converted back, with words of the expected refusal.
const NO_WAY_BACK: &[(&str, &str)] = &[
    // Only Mistral's own format has a key for scaling queries by position.
    ("deepseek2/mistral_format", "`raw.llama_4_scaling`"),
    // Arithmetic that loses information.
    ("bitnet", "`ternary` cannot be undone"),
    ("kimi-k3", "`mul` cannot be undone"),
    // Only two rows of the output are left, and no class of transformers has such a head.
    ("qwen3vl/rerank", "`cls.output.weight`"),
    // Its stages are layers in the file and `mtp` in the checkpoint, where they are a part of its target.
    ("dflash/deepseek4_dspark", "unknown to architecture `dflash`"),
];

/// Keys that differ after the round trip, and the reason.
const OTHER_KEYS: &[(&str, &str)] = &[
    // Mistral's `params.json` may omit it, transformers' `config.json` must not.
    ("llama/mistral_format", "llama.vocab_size"),
    ("mistral3/mistral_format", "mistral3.vocab_size"),
    // Written only for the class of images and text; the round trip gives the text part.
    ("gemma4/gemma4_unified", "tokenizer.ggml.suppress_tokens"),
];

/// Tensor as it is stored in the file.
struct Stored {
    ty: GgmlType,
    shape: String,
    bytes: Vec<u8>,
}

impl Stored {
    /// Elements as F32, whatever type they are stored in.
    fn floats(&self) -> Vec<f32> {
        let n_elems = self.bytes.len() / self.ty.block_bytes() * self.ty.block_elems();
        let mut floats = vec![0.0; n_elems];
        dequantize(self.ty, SimdLevel::Scalar, &self.bytes, &mut floats).unwrap();
        floats
    }

    fn is_integer(&self) -> bool {
        matches!(self.ty, GgmlType::I32 | GgmlType::I64)
    }

    /// Returns true if the other tensor has the same elements, except for rounding where some is allowed. A tensor that
    /// kept the type of its source comes back with the same elements in the requested type.
    fn is(&self, other: &Self, is_exact: bool) -> bool {
        if self.shape != other.shape || self.is_integer() != other.is_integer() {
            return false;
        }
        if self.is_integer() {
            return self.ty == other.ty && self.bytes == other.bytes;
        }
        if self.ty == GgmlType::F32 && other.ty != GgmlType::F32 {
            return false;
        }
        let (a, b) = (self.floats(), other.floats());
        let same = a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits());
        same || !is_exact && distance(&a, &b) < 1e-6
    }
}

/// Contents of a file: keys as text, by name, and tensors.
type Content = (BTreeMap<String, String>, BTreeMap<String, Stored>);

/// Content of a conversion. A key may move because a class uses another name of the configuration; the order of keys is
/// tested elsewhere.
fn content(conversion: &Conversion) -> Result<Content, SourceError> {
    // Classes that omit the head size come back as one that writes it, with the same value.
    let is_compared = |row: &Json| {
        let key = row[0].as_str().unwrap();
        super::is_of_cards(row) && !(key.ends_with("_length") && key.contains("attention."))
    };
    let keys = keys(conversion.metadata()).into_iter().filter(is_compared);
    let keys = keys.map(|row| (row[0].as_str().unwrap().to_owned(), row.to_string())).collect();
    let values = |(index, tensor): (usize, &TensorMeta)| {
        let n_bytes = tensor.ty.row_bytes(tensor.shape.n_cols()).unwrap() * tensor.shape.n_rows();
        let mut bytes = vec![0; usize::try_from(n_bytes).unwrap()];
        conversion.read_rows(index, 0, &mut bytes)?;
        Ok((tensor.name.clone(), Stored { ty: tensor.ty, shape: tensor.shape.to_string(), bytes }))
    };
    let tensors = conversion.tensors().iter().enumerate().map(values).collect::<Result<_, _>>()?;
    Ok((keys, tensors))
}

/// Largest difference of two lists, relative to the largest value.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let scale = a.iter().fold(f32::MIN_POSITIVE, |max, x| max.max(x.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f32::max)
}

/// Difference between two files of a case.
fn difference(at: &str, there: &Content, back: &Content, is_exact: bool) -> Option<String> {
    let ((keys, tensors), (new_keys, new_tensors)) = (there, back);
    for (name, tensor) in tensors {
        if !new_tensors.get(name).is_some_and(|new| tensor.is(new, is_exact)) {
            return Some(format!("`{name}` differs"));
        }
    }
    if tensors.len() != new_tensors.len() {
        return Some("more tensors".to_owned());
    }
    // The type of a file follows from its tensors'.
    let same_types = tensors.iter().all(|(name, tensor)| new_tensors[name].ty == tensor.ty);
    // The way back states the base and the scale that the runtime takes where there are none.
    let is_stated = |key: &str| {
        let is_usual = new_keys.get(key).is_some_and(|row| row.ends_with(",10000.0]"));
        !keys.contains_key(key)
            && (key.ends_with(".attention.scale") || key.ends_with(".rope.freq_base") && is_usual)
    };
    let is_listed = |key: &str| {
        OTHER_KEYS.contains(&(at, key)) || key == "general.file_type" && !same_types || is_stated(key)
    };
    let differ = |key: &&String| keys.get(*key) != new_keys.get(*key) && !is_listed(key);
    let all: BTreeSet<&String> = keys.keys().chain(new_keys.keys()).collect();
    let rows: Vec<_> =
        all.into_iter().filter(differ).map(|key| (key, keys.get(key), new_keys.get(key))).collect();
    if let Some((_, stale)) =
        OTHER_KEYS.iter().find(|row| row.0 == at && keys.get(row.1) == new_keys.get(row.1))
    {
        return Some(format!("`{stale}` comes back after all"));
    }
    (!rows.is_empty()).then(|| format!("keys: {rows:?}"))
}

/// Tensors of a conversion without the outer dimensions of 1, as llama.cpp writes them when it quantizes.
struct OfGgml<'a> {
    conversion: &'a Conversion,
    tensors: Vec<TensorMeta>,
}

impl<'a> OfGgml<'a> {
    fn new(conversion: &'a Conversion) -> Self {
        // Checkpoints of Kimi Linear have `A_log` in several shapes, which only the file's own tells.
        let of_ggml = |tensor: &TensorMeta| {
            let is_kept = tensor.name.ends_with(".ssm_a");
            let shape = if is_kept { tensor.shape.clone() } else { tensor.shape.of_ggml() };
            TensorMeta { shape, ..tensor.clone() }
        };
        Self { conversion, tensors: conversion.tensors().iter().map(of_ggml).collect() }
    }
}

impl TensorSource for OfGgml<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.conversion.read_rows(tensor, first_row, out)
    }
}

/// Converts a case to F32, back to a checkpoint, and to F32 again; returns a difference.
fn complaint(registry: &Registry, case: &CardFixture) -> Option<String> {
    round_trip(registry, case).err().map(|why| format!("{}: {why}", case.at))
}

fn round_trip(registry: &Registry, case: &CardFixture) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let dir = tempfile::tempdir().unwrap();
    let (there, gguf, back) = (dir.path().join("there"), dir.path().join("m.gguf"), dir.path().join("back"));
    fs_err::create_dir(&there).unwrap();
    case.write(&there);
    let conversion = case.plan(&there, OutType::F32).map_err(|error| text(&error))?;
    let card = conversion.mapping().card.name();
    let write = WriteOptions { sync: false, ..WriteOptions::default() };
    let mut metadata = conversion.metadata().clone();
    // A draft's file has the tokens of its target, which give the size of the vocabulary.
    if let Some(n_tokens) = fixture::target_vocabulary(&there) {
        let tokens = (0..n_tokens).map(|token| format!("t{token}").into_bytes()).collect();
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    }
    write_gguf(&gguf, &metadata, &OfGgml::new(&conversion), &write, &Silent).map_err(|error| text(&error))?;
    let file = GgufFile::open(&gguf).unwrap();
    let options = ToHfOptions { tokenizer: false, sync: false, ..ToHfOptions::default() };
    let report = gguf_to_hf(registry, file.metadata(), &file, &back, &options, &Silent);
    let at = case.at.trim_end_matches(".json");
    let refusal = NO_WAY_BACK.iter().find(|row| row.0 == card || row.0 == at);
    let report = match (report, refusal) {
        (Ok(report), None) => report,
        (Err(error), Some(row)) if error.to_string().contains(row.1) => return Ok(()),
        (Ok(_), Some(_)) => return Err("there is a way back after all".to_owned()),
        (Err(error), _) => return Err(text(&error)),
    };
    if !report.lost.is_empty() {
        return Err(format!("lost: {:?}", report.lost));
    }
    came_from::complaint(&there, &back, at).map_or(Ok(()), Err)?;
    let again = case.plan_back(&there, &back).map_err(|error| format!("again: {error}"))?;
    let content = |conversion| content(conversion).map_err(|error| text(&error));
    difference(at, &content(&conversion)?, &content(&again)?, report.rounded.is_empty()).map_or(Ok(()), Err)
}

two_tiers!(every_fixture_comes_back);
fn every_fixture_comes_back(tier: Tier) {
    let registry = Registry::embedded().unwrap();
    let mut fixtures = fixture::some(tier, 12);
    fixtures.retain(|case| !case.is_mmproj());
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
        "1 of the checkpoint's tensors is unknown to architecture `llama`: `blk.0.attn_norn.weight`\n\
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
    let content = load(&gguf_testkit::fixture("cards/llama/rope_llama3.json"));
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

/// Inverse of a file of an architecture with these keys and tensors.
fn inverse_of(arch: &str, keys: &[(&str, Value)], tensors: &[(&str, &[u64])]) -> Result<Inverse, String> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", arch);
    for (key, value) in keys {
        metadata.set(format!("{arch}.{key}"), value.clone());
    }
    let tensor = |(name, dims): &(&str, &[u64])| WeightMeta {
        name: (*name).to_owned(),
        shape: Shape::new(dims.to_vec()).unwrap(),
        ty: ElementType::F32,
    };
    let tensors: Vec<WeightMeta> = tensors.iter().map(tensor).collect();
    let inverse = invert(&Registry::embedded().unwrap(), &metadata, &tensors, None, None);
    inverse.map_err(|error| error.to_string())
}

/// Configuration of such a file, and the names of the checkpoint's tensors.
fn of_keys(
    arch: &str,
    keys: &[(&str, Value)],
    tensors: &[(&str, &[u64])],
) -> Result<(Json, Vec<String>), String> {
    let inverse = inverse_of(arch, keys, tensors)?;
    let names = inverse.outputs.into_iter().map(|output| output.name).collect();
    Ok((Json::Object(inverse.config), names))
}

#[test]
fn a_head_that_scores_comes_back_with_a_class_that_reads_it() {
    let labels = ("classifier.output_labels", Value::Array(Array::String(vec![b"a".into(), b"b".into()])));
    let head: (&str, &[u64]) = ("cls.output.weight", &[2, 8]);
    let bert: (&str, &[u64]) = ("token_types.weight", &[1, 8]);
    let two_layers = [bert, head, ("cls.weight", &[8, 8]), ("position_embd.weight", &[16, 8])];
    let keys = [("context_length", 16u32.into()), labels.clone()];
    for (arch, tensors, class, weight) in [
        ("bert", &two_layers[..], "XLMRobertaForSequenceClassification", "classifier.out_proj.weight"),
        ("bert", &[bert, head], "BertForSequenceClassification", "classifier.weight"),
        ("modern-bert", &[head], "ModernBertForSequenceClassification", "classifier.weight"),
        ("qwen3", &[head], "Qwen3ForSequenceClassification", "score.weight"),
    ] {
        let inverse = inverse_of(arch, &keys, tensors).unwrap();
        assert_eq!(inverse.config["architectures"], json!([class]));
        assert_eq!(inverse.config["id2label"], json!({ "0": "a", "1": "b" }), "{class}");
        assert!(inverse.outputs.iter().any(|output| output.name == weight), "{class}");
        // BERT's head follows a layer that no file has.
        assert_eq!(!inverse.notes.is_empty(), class.starts_with("Bert"), "{:?}", inverse.notes);
        if let Some(table) = inverse.outputs.iter().find(|output| output.name.contains("position")) {
            let config = &inverse.config;
            assert_eq!(
                (config["max_position_embeddings"].as_u64(), table.shape.dims()),
                (Some(18), &[18, 8][..])
            );
        }
    }
    let config = of_keys("bert", &[], &[bert, head]).unwrap().0;
    assert_eq!((config["num_labels"].clone(), config.get("id2label")), (json!(2), None));
}

#[test]
fn what_looks_both_ways_does_so_again_or_says_that_it_does_not() {
    let keys = [
        ("attention.causal", false.into()),
        ("block_count", 1u32.into()),
        ("embedding_length", 8u32.into()),
        ("attention.head_count", 1u32.into()),
        ("context_length", 16u32.into()),
    ];
    let both = |arch| inverse_of(arch, &keys, &[("token_embd.weight", &[8, 8])]).unwrap();
    for arch in ["llama", "qwen3", "gemma3"] {
        let inverse = both(arch);
        assert_eq!(
            (&inverse.config["is_causal"], inverse.lost),
            (&json!(false), Vec::<String>::new()),
            "{arch}"
        );
    }
    let inverse = both("gemma");
    assert_eq!(inverse.config.get("is_causal"), None);
    assert_eq!(inverse.lost, ["gemma.attention.causal = false"]);
}

#[test]
fn a_text_part_comes_back_where_its_class_looks_for_it() {
    let keys = [("block_count", 2u32.into())];
    let embedding: (&str, &[u64]) = ("token_embd.weight", &[64, 8]);
    let inverse = inverse_of("qwen3vl", &keys, &[embedding]).unwrap();
    let text = &inverse.config["text_config"];
    assert_eq!((&text["model_type"], &text["num_hidden_layers"]), (&json!("qwen3_vl_text"), &json!(2)));
    assert_eq!(inverse.config["model_type"], "qwen3_vl");
    assert_eq!(inverse.config.get("num_hidden_layers"), None);
    assert_eq!(inverse.outputs[0].name, "model.language_model.embed_tokens.weight");
    assert!(inverse.notes[0].contains("towers"), "{:?}", inverse.notes);
}

#[test]
fn absent_keys_have_the_values_of_the_runtime() {
    let config = |arch, keys: &[(&str, Value)]| of_keys(arch, keys, &[]).unwrap().0;
    let linear = |keys: &[(&str, Value)]| {
        let scaling = config("llama", keys)["rope_scaling"].clone();
        (scaling["rope_type"].clone(), scaling["factor"].clone())
    };
    assert_eq!(config("ernie4_5", &[])["rope_theta"], 10000.0);
    assert_eq!(config("gpt2", &[]).get("rope_theta"), None);
    assert_eq!(linear(&[("rope.scaling.factor", 4f32.into())]), (json!("linear"), json!(4.0)));
    assert_eq!(linear(&[("rope.scale_linear", 2f32.into())]), (json!("linear"), json!(2.0)));
    let long = ("rope.scaling.type", Value::from("longrope"));
    assert_eq!(linear(&[long, ("rope.scaling.factor", 4f32.into())]), (json!("linear"), json!(4.0)));
    let none = ("rope.scaling.type", Value::from("none"));
    assert_eq!(linear(&[none, ("rope.scaling.factor", 4f32.into())]), (Json::Null, Json::Null));
    let heads = |list: Vec<u32>| {
        let keys = [("attention.head_count_kv", Value::Array(Array::U32(list)))];
        config("llama", &keys)["num_key_value_heads"].clone()
    };
    assert_eq!((heads(vec![2, 2]), heads(vec![2, 1])), (json!(2), json!([2, 1])));
}

#[test]
fn a_padding_token_beyond_the_vocabulary_is_left_out() {
    let config = |rows| of_keys("eurobert", &[], &[("token_embd.weight", &[rows, 8])]).unwrap().0;
    assert_eq!(config(64).get("pad_token_id"), Some(&Json::Null));
    assert_eq!(config(1 << 20).get("pad_token_id"), None);
}

#[test]
fn biases_switch_on_what_adds_them() {
    let heads = [("attention.head_count", 1u32.into())];
    let keys = |arch, keys: &[(&str, Value)]| {
        let tensors: &[(&str, &[u64])] = &[
            ("blk.0.attn_v.weight", &[8, 8]),
            ("blk.0.attn_output.weight", &[8, 8]),
            ("blk.0.attn_output.bias", &[8]),
        ];
        of_keys(arch, keys, tensors)
    };
    let (config, names) = keys("llama", &heads).unwrap();
    assert_eq!(config["attention_bias"], true);
    assert!(names.contains(&"model.layers.0.self_attn.o_proj.bias".to_owned()), "{names:?}");
    assert_eq!(
        keys("llama", &[heads[0].clone(), ("expert_count", 2u32.into())]),
        Err("`MixtralForCausalLM` of transformers has no `model.layers.0.self_attn.o_proj.bias`, which the runtime adds".to_owned())
    );
}
