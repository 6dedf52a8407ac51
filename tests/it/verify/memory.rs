//! A model that is larger than the program's memory is verified completely.
#![cfg(target_os = "linux")]

use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_foundry::gguf::{Metadata, WriteOptions, write_gguf};

use crate::support::{peak_memory_kib, programs};

const WIDTH: usize = 1024;
const FFN: usize = 4096;
const VOCABULARY: usize = 512;
const LAYERS: usize = 18;

/// Random f16 weights, generated when they are read.
struct Random {
    metas: Vec<TensorMeta>,
}

impl Random {
    fn new() -> Self {
        let mut metas = Vec::new();
        let mut push = |name: String, dims: &[usize]| {
            let ty = if dims.len() == 1 { GgmlType::F32 } else { GgmlType::F16 };
            let shape = Shape::new(dims.iter().map(|&n| n as u64).collect()).unwrap();
            metas.push(TensorMeta { name: format!("{name}.weight"), shape, ty });
        };
        push("token_embd".to_owned(), &[VOCABULARY, WIDTH]);
        push("output_norm".to_owned(), &[WIDTH]);
        for layer in 0..LAYERS {
            for name in ["attn_norm", "ffn_norm"] {
                push(format!("blk.{layer}.{name}"), &[WIDTH]);
            }
            for (name, rows, cols) in [
                ("attn_q", WIDTH, WIDTH),
                ("attn_k", WIDTH, WIDTH),
                ("attn_v", WIDTH, WIDTH),
                ("attn_output", WIDTH, WIDTH),
                ("ffn_gate", FFN, WIDTH),
                ("ffn_up", FFN, WIDTH),
                ("ffn_down", WIDTH, FFN),
            ] {
                push(format!("blk.{layer}.{name}"), &[rows, cols]);
            }
        }
        Self { metas }
    }

    fn metadata() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("tokenizer.ggml.model", "none");
        for (key, value) in [
            ("block_count", LAYERS as u32),
            ("context_length", 512),
            ("embedding_length", WIDTH as u32),
            ("feed_forward_length", FFN as u32),
            ("attention.head_count", 16),
            ("vocab_size", VOCABULARY as u32),
        ] {
            metadata.set(format!("llama.{key}"), value);
        }
        metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
        metadata
    }
}

impl TensorSource for Random {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        if self.metas[tensor].ty == GgmlType::F32 {
            out.as_chunks_mut::<4>().0.fill(1.0f32.to_le_bytes());
            return Ok(());
        }
        let mut seed = (tensor as u64) << 32 | first_row;
        for value in out.as_chunks_mut::<2>().0 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Between 2^-7 and 2^-5, of either sign.
            *value = (0x2000 | (seed >> 48) as u16 & 0x87ff).to_le_bytes();
        }
        Ok(())
    }
}

/// Wide model with very few weights: only the memory of its tokens matters.
struct Wide(Vec<TensorMeta>);

impl Wide {
    const WIDTH: usize = 512;
    const HEAD: usize = 8;

    fn new() -> Self {
        let meta = |(name, dims): (&str, &[u64])| {
            let shape = Shape::new(dims.to_vec()).unwrap();
            TensorMeta { name: format!("{name}.weight"), shape, ty: GgmlType::F32 }
        };
        let (width, head) = (Self::WIDTH as u64, Self::HEAD as u64);
        let tensors: [(&str, &[u64]); 11] = [
            ("token_embd", &[16, width]),
            ("output_norm", &[width]),
            ("blk.0.attn_norm", &[width]),
            ("blk.0.ffn_norm", &[width]),
            ("blk.0.attn_q", &[head, width]),
            ("blk.0.attn_k", &[head, width]),
            ("blk.0.attn_v", &[head, width]),
            ("blk.0.attn_output", &[width, head]),
            ("blk.0.ffn_gate", &[head, width]),
            ("blk.0.ffn_up", &[head, width]),
            ("blk.0.ffn_down", &[width, head]),
        ];
        Self(tensors.into_iter().map(meta).collect())
    }

    fn metadata() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("tokenizer.ggml.model", "none");
        for (key, value) in [
            ("block_count", 1),
            ("context_length", 512),
            ("embedding_length", Self::WIDTH as u32),
            ("feed_forward_length", Self::HEAD as u32),
            ("attention.head_count", 1),
            ("attention.key_length", Self::HEAD as u32),
            ("attention.value_length", Self::HEAD as u32),
            ("rope.dimension_count", Self::HEAD as u32),
            ("vocab_size", 16),
        ] {
            metadata.set(format!("llama.{key}"), value);
        }
        metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
        metadata
    }
}

impl TensorSource for Wide {
    fn tensors(&self) -> &[TensorMeta] {
        &self.0
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        for (at, value) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let seed = (tensor * 31 + first_row as usize * 7 + at * 13) % 29;
            *value = (seed as f32 / 29.0 - 0.4).to_le_bytes();
        }
        Ok(())
    }
}

#[test]
fn logits_of_many_prompts_take_the_memory_of_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.gguf");
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    write_gguf(&path, &Wide::metadata(), &Wide::new(), &options, &Silent).unwrap();
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

#[test]
fn a_file_larger_than_the_address_space_is_verified_to_the_end() {
    const LIMIT_KIB: u64 = 400 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.gguf");
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    write_gguf(&path, &Random::metadata(), &Random::new(), &options, &Silent).unwrap();
    let file_bytes = fs_err::metadata(&path).unwrap().len();
    assert!(file_bytes > LIMIT_KIB << 10, "{file_bytes}");
    let prompts = dir.path().join("prompts.jsonl");
    let tokens: Vec<usize> = (0..32).map(|i| i * 37 % VOCABULARY).collect();
    fs_err::write(&prompts, format!("{{\"tokens\":{tokens:?}}}\n")).unwrap();
    let verify = |limit: &str| {
        let mut shell = programs::limited(limit, "gguf-verify", dir.path());
        shell.arg(&path).arg("--prompts").arg(&prompts);
        shell.args(["--ctx", "32", "--score", "all", "--threads", "2", "--memory", "64M", "--json"]);
        let ended = programs::finish(&mut shell);
        ended.json()["perplexity"]["value"].as_f64().unwrap_or_else(|| panic!("{}", ended.text()))
    };
    let limited = verify(&format!("ulimit -v {LIMIT_KIB}"));
    // The figures are the same with read and mapped files.
    assert_eq!(limited.to_bits(), verify("true").to_bits());
}
