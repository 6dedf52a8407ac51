//! A model that is larger than the program's memory is verified completely.
#![cfg(target_os = "linux")]

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorMeta};
use gguf_foundry::gguf::Metadata;

use crate::support::tiers::deep_test;
use crate::support::{peak_memory_kib, programs};
use crate::testkit::memory::{ComputedTensors, tensor_meta, write_source};
use crate::testkit::models;
use crate::testkit::noise::Noise;

const WIDTH: usize = 1024;
const FFN: usize = 4096;
const VOCABULARY: usize = 512;
const LAYERS: usize = 13;

/// Metadata of a llama without a vocabulary.
fn llama<const N: usize>(keys: [(&'static str, usize); N]) -> Metadata {
    let mut metadata = models::metadata("llama", keys.map(|(key, n)| (key, n as u32)));
    metadata.set("tokenizer.ggml.model", "none");
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    metadata
}

fn weight(name: &str, dims: &[usize], ty: GgmlType) -> TensorMeta {
    let dims: Vec<u64> = dims.iter().map(|&n| n as u64).collect();
    tensor_meta(&format!("{name}.weight"), &dims, ty)
}

/// Writes a model of random F16 weights.
fn write_large(path: &Path) {
    let metadata = llama([
        ("block_count", LAYERS),
        ("context_length", 512),
        ("embedding_length", WIDTH),
        ("feed_forward_length", FFN),
        ("attention.head_count", 16),
        ("vocab_size", VOCABULARY),
    ]);
    let mut metas = vec![
        weight("token_embd", &[VOCABULARY, WIDTH], GgmlType::F16),
        weight("output_norm", &[WIDTH], GgmlType::F32),
    ];
    for layer in 0..LAYERS {
        for name in ["attn_norm", "ffn_norm"] {
            metas.push(weight(&format!("blk.{layer}.{name}"), &[WIDTH], GgmlType::F32));
        }
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            metas.push(weight(&format!("blk.{layer}.{name}"), &[WIDTH, WIDTH], GgmlType::F16));
        }
        for (name, rows, cols) in [("ffn_gate", FFN, WIDTH), ("ffn_up", FFN, WIDTH), ("ffn_down", WIDTH, FFN)]
        {
            metas.push(weight(&format!("blk.{layer}.{name}"), &[rows, cols], GgmlType::F16));
        }
    }
    let is_norm: Vec<bool> = metas.iter().map(|meta| meta.ty == GgmlType::F32).collect();
    let widths: Vec<usize> = metas.iter().map(|meta| meta.shape.n_cols() as usize).collect();
    // Numbers between 2^-7 and 2^-5, of either sign. Each row begins at another of them.
    let mut noise = Noise::new(1);
    let number = |_| (0x2000 | (noise.bits() >> 48) as u16 & 0x87ff).to_le_bytes();
    let numbers: Vec<u8> = (0..64 * WIDTH).flat_map(number).collect();
    let source = ComputedTensors::new(metas, |tensor, first_row, out| {
        if is_norm[tensor] {
            out.as_chunks_mut::<4>().0.fill(1.0f32.to_le_bytes());
            return;
        }
        for (row, bytes) in (first_row as usize..).zip(out.chunks_mut(2 * widths[tensor])) {
            let from = 2 * ((tensor * 4099 + row * 31) % (60 * WIDTH));
            bytes.copy_from_slice(&numbers[from..from + bytes.len()]);
        }
    });
    write_source(path, &metadata, &source);
}

/// Writes a wide model with very few weights: only the memory of its tokens matters.
fn write_wide(path: &Path) {
    const WIDTH: usize = 512;
    const HEAD: usize = 8;
    let metadata = llama([
        ("block_count", 1),
        ("context_length", 512),
        ("embedding_length", WIDTH),
        ("feed_forward_length", HEAD),
        ("attention.head_count", 1),
        ("attention.key_length", HEAD),
        ("attention.value_length", HEAD),
        ("rope.dimension_count", HEAD),
        ("vocab_size", 16),
    ]);
    let tensors: [(&str, &[usize]); 11] = [
        ("token_embd", &[16, WIDTH]),
        ("output_norm", &[WIDTH]),
        ("blk.0.attn_norm", &[WIDTH]),
        ("blk.0.ffn_norm", &[WIDTH]),
        ("blk.0.attn_q", &[HEAD, WIDTH]),
        ("blk.0.attn_k", &[HEAD, WIDTH]),
        ("blk.0.attn_v", &[HEAD, WIDTH]),
        ("blk.0.attn_output", &[WIDTH, HEAD]),
        ("blk.0.ffn_gate", &[HEAD, WIDTH]),
        ("blk.0.ffn_up", &[HEAD, WIDTH]),
        ("blk.0.ffn_down", &[WIDTH, HEAD]),
    ];
    let metas = tensors.iter().map(|(name, dims)| weight(name, dims, GgmlType::F32)).collect();
    let source = ComputedTensors::new(metas, |tensor, first_row, out| {
        for (at, value) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let seed = (tensor * 31 + first_row as usize * 7 + at * 13) % 29;
            *value = (seed as f32 / 29.0 - 0.4).to_le_bytes();
        }
    });
    write_source(path, &metadata, &source);
}

deep_test!(logits_of_many_prompts_take_the_memory_of_a_batch);
fn logits_of_many_prompts_take_the_memory_of_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.gguf");
    write_wide(&path);
    let prompts = dir.path().join("prompts.jsonl");
    let tokens: Vec<usize> = (0..50).map(|i| i * 5 % 16).collect();
    fs_err::write(&prompts, format!("{{\"tokens\":{tokens:?}}}\n").repeat(3000)).unwrap();
    let out = dir.path().join("out.jsonl");
    let mut command = programs::command("gguf-verify", dir.path());
    command.arg("logits").arg(&path).arg("--prompts").arg(&prompts).arg("-o").arg(&out);
    let peak = peak_memory_kib(command.args(["--threads", "2", "--memory", "1G", "--no-sync"]));
    assert_eq!(fs_err::read_to_string(out).unwrap().lines().count(), 3000);
    // The states of all 150,000 tokens alone would take 293 MiB, those of a batch 16 MiB.
    assert!(peak < 200 << 10, "{peak} KiB");
}

deep_test!(a_file_larger_than_the_address_space_is_verified_to_the_end);

fn a_file_larger_than_the_address_space_is_verified_to_the_end() {
    const LIMIT_KIB: u64 = 400 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.gguf");
    write_large(&path);
    let file_bytes = fs_err::metadata(&path).unwrap().len();
    assert!(file_bytes > LIMIT_KIB << 10, "{file_bytes}");
    let prompts = dir.path().join("prompts.jsonl");
    let tokens: Vec<usize> = (0..8).map(|i| i * 37 % VOCABULARY).collect();
    fs_err::write(&prompts, format!("{{\"tokens\":{tokens:?}}}\n")).unwrap();
    let verify = |limit: &str| {
        let mut shell = programs::limited(limit, "gguf-verify", dir.path());
        shell.arg(&path).arg("--prompts").arg(&prompts);
        shell.args(["--ctx", "8", "--score", "all", "--threads", "2", "--memory", "64M", "--json"]);
        let ended = programs::finish(&mut shell);
        ended.model()["perplexity"]["value"].as_f64().unwrap_or_else(|| panic!("{}", ended.text()))
    };
    let limited = verify(&format!("ulimit -v {LIMIT_KIB}"));
    // The figures are the same with read and mapped files.
    assert_eq!(limited.to_bits(), verify("true").to_bits());
}
