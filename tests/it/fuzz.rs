//! The entry points of the fuzz targets for a bounded time: damaged copies of good inputs, and noise.

#[path = "../../fuzz/entries.rs"]
mod entries;

use gguf_foundry::core::{GgmlType, Shape, TensorMeta};
use gguf_foundry::gguf::{Array, FilePlan, LayoutOptions, Metadata, Value};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::flm::writer::llama;
use crate::support::fixture;
use crate::torch::build::{dict, int, pickle, text, tuple};

/// Inputs of one entry.
const N_CASES: u32 = 1500;

/// A GGUF file with keys of several types and a tensor.
fn gguf_file() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", 1u32);
    let tokens = ["a", "b", "ab"].map(|token| token.as_bytes().to_vec());
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens.to_vec())));
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0, -1.0, -2.0])));
    let shape = Shape::new(vec![2, 64]).unwrap();
    let tensor = TensorMeta { name: "output.weight".to_owned(), shape, ty: GgmlType::Q8_0 };
    let plan = FilePlan::new(&metadata, &[tensor], &LayoutOptions::default()).unwrap();
    let mut bytes = plan.header;
    bytes.resize(plan.file_bytes as usize, 0);
    bytes
}

fn flm_file() -> Vec<u8> {
    let mut writer = llama(|writer, name, dims, numbers| {
        let values = numbers.floats(dims[0] * dims[1]);
        writer.f16(name, &dims, &values);
    });
    writer.tokens.push((b"a".to_vec(), 0, None));
    writer.bytes()
}

/// Good inputs of a target; types of blocks start from noise.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let file = |path: &str| fs_err::read(fixture(path)).unwrap();
    let head = |path: &str| file(path)[..4096].to_vec();
    match target {
        "card" => vec![fs_err::read(concat!(env!("CARGO_MANIFEST_DIR"), "/converters/llama.toml")).unwrap()],
        "config" => vec![file("tiny-llama/config.json"), file("tiny-llama/tokenizer_config.json")],
        "fastllm" => vec![flm_file()],
        "gguf" => vec![gguf_file()],
        "pickle" => vec![pickle(&dict(&[("a", tuple(&[int(1), text("b")]))]))],
        "safetensors" => vec![head("tiny-llama/model.safetensors")],
        "tokenizer_json" => vec![file("tiny-llama/tokenizer.json")],
        "torch" => vec![file("torch/zip/pytorch_model.bin"), file("torch/legacy/pytorch_model.bin")],
        _ => Vec::new(),
    }
}

#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Cut(Index),
    Repeat(Index, Index),
    /// A size or count at its limits.
    Number(Index, u64),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Self::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Self::Repeat(from, to) => {
                let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
                let part = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.extend(part);
            }
            Self::Number(at, number) => {
                let at = at.index(bytes.len());
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let limits = vec![0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX, 1 << 40];
    let one = prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        1 => any::<Index>().prop_map(Damage::Cut),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Damage::Repeat(from, to)),
        2 => (any::<Index>(), proptest::sample::select(limits)).prop_map(|(at, n)| Damage::Number(at, n)),
    ];
    proptest::collection::vec(one, 0..6)
}

#[test]
fn no_entry_panics() {
    for (target, _) in entries::ENTRIES {
        let noise = proptest::collection::vec(any::<u8>(), 0..3000);
        let seeds = seeds(target);
        let input = if seeds.is_empty() {
            noise.boxed()
        } else {
            prop_oneof![1 => noise, 9 => proptest::sample::select(seeds)].boxed()
        };
        let config = Config { cases: N_CASES, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let outcome = runner.run(&(input, damage()), |(mut bytes, damage)| {
            for damage in &damage {
                damage.apply(&mut bytes);
            }
            entries::run(target, &bytes);
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{target}: {error}"));
    }
}
