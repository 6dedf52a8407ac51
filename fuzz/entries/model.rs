//! Whole conversions: a checkpoint to a GGUF, a GGUF to a checkpoint, and a GGUF that is run.

use std::sync::LazyLock;

use gguf_foundry::arch::{GraphFeatures, Registry};
use gguf_foundry::checkpoint::Checkpoint;
use gguf_foundry::convert::{Conversion, ConvertOptions, ToHfOptions, gguf_to_hf};
use gguf_foundry::core::limits::Limits;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{TensorSource, WeightSource};
use gguf_foundry::engine::{Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_foundry::gguf::{GgufFile, Value};

use super::bundle::{self, Directory, Numbers, accepted};

pub(super) static EMBEDDED: LazyLock<Registry> =
    LazyLock::new(|| Registry::embedded().expect("cards that are built in"));

/// Maximum bytes of tensors that are decoded for one input.
const MAX_BYTES: u64 = 1 << 18;

const FILES: &[&str] = &[
    "config.json",
    "model.safetensors",
    "generation_config.json",
    "README.md",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "pytorch_model.bin",
];

/// Converts a checkpoint with any configuration: planned rows must be readable, and pieces must equal those of the
/// whole.
pub(super) fn convert(data: &[u8]) -> bool {
    let files = bundle::split(data, FILES);
    let dir = Directory::of(&files);
    let options = ConvertOptions {
        tokenizer: files.iter().any(|file| file.0.starts_with("tokenizer")),
        annotate: data.len() % 2 == 1,
        ..ConvertOptions::default()
    };
    let Some(plan) = accepted(Conversion::plan(dir.path(), &options)) else { return false };
    let numbers = &mut Numbers::of(data);
    let mut left = MAX_BYTES;
    for (at, meta) in plan.tensors().iter().enumerate() {
        let (Some(n_bytes), n_rows) = (meta.n_bytes(), meta.shape.n_rows()) else { continue };
        if n_bytes == 0 || n_bytes > left {
            continue;
        }
        left -= n_bytes;
        let row_bytes = n_bytes / n_rows;
        let read = |first: u64, n: u64| {
            let mut out = vec![0; (n * row_bytes) as usize];
            accepted(plan.read_rows(at, first, &mut out)).map(|()| out)
        };
        if let Some(whole) = read(0, n_rows) {
            let range = numbers.range(n_rows);
            let piece = read(range.start, range.end - range.start);
            let bytes = (range.start * row_bytes) as usize..(range.end * row_bytes) as usize;
            assert_eq!(piece.as_deref(), Some(&whole[bytes]), "{} {range:?}", meta.name);
        }
    }
    true
}

/// Converts a file back to Hugging Face's format: the result must be a readable checkpoint.
pub(super) fn to_hf(data: &[u8]) -> bool {
    let Some(file) = accepted(GgufFile::open(&bundle::file("to_hf.gguf", data))) else { return false };
    if file.tensor_bytes() > MAX_BYTES {
        return false;
    }
    let room = Directory::of(&[]);
    let dir = room.path().join("hf");
    let tokenizer = file.metadata().contains("tokenizer.ggml.model");
    let options = ToHfOptions { tokenizer, sync: false, memory_bytes: 1 << 20, ..ToHfOptions::default() };
    if accepted(gguf_to_hf(&EMBEDDED, file.metadata(), &file, &dir, &options, &Silent)).is_none() {
        assert!(!dir.exists(), "a failed run leaves nothing");
        return false;
    }
    let checkpoint = Checkpoint::open(&dir, &Limits::default()).expect("written by ourselves");
    !checkpoint.weights().is_empty()
}

/// Runs a file: a plan from any keys, three tokens, within the given memory.
pub(super) fn engine(data: &[u8]) -> bool {
    let Some(file) = accepted(GgufFile::open(&bundle::file("engine.gguf", data))) else { return false };
    let arch = file.metadata().get("general.architecture").and_then(Value::as_str);
    let Some(features) = arch.and_then(GraphFeatures::of) else { return false };
    let Some(plan) = accepted(GraphPlan::new(&features, file.metadata(), file.tensors())) else {
        return false;
    };
    let (n_vocab, n_embd) = (plan.n_vocab, plan.n_embd);
    if n_vocab == 0 || n_vocab > 1 << 12 || n_embd > 1 << 12 || plan.layers.len() > 8 {
        return false;
    }
    let options = EngineOptions { n_threads: 1, memory_bytes: 64 << 20, ..EngineOptions::default() };
    let engine = Engine::new(plan, &file, options).expect("one thread");
    let numbers = &mut Numbers::of(data);
    let tokens: Vec<u32> = (0..3).map(|_| numbers.below(n_vocab as u64) as u32).collect();
    let chunk = TokenChunk { tokens, rows: 1..3, n_source: 0 };
    if engine.group_tokens(3).is_err() {
        return false;
    }
    let Some(hidden) = accepted(engine.hidden(&[chunk])) else { return false };
    assert_eq!(hidden.n_rows(), 2);
    let Some(logits) = accepted(engine.logits(&hidden, &Silent)) else { return false };
    assert_eq!(logits.len(), 2 * n_vocab);
    true
}
