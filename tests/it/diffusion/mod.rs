//! Image and video models: conversion, quantization, verification and inspection of small checkpoints.

mod broken;
mod corpus;
mod inputs;
mod ladder;
mod models;
mod parts;
mod quantized;
mod recipe;
mod table;

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::GgufFile;

use crate::support::programs::{self, Outcome};
use crate::testkit::checkpoints::Safetensors;

fn run(program: &str, dir: &Path, args: &[&str]) -> Outcome {
    if program == "gguf-quantize" {
        // Subcommands have the option themselves.
        return programs::run(program, dir, &[args, &["--no-sync"]].concat());
    }
    programs::run_unsynced(program, dir, args)
}

/// Converts `input` of a directory to `output`.
fn convert(dir: &Path, input: &str, output: &str, ty: &str) -> Outcome {
    run("gguf-convert", dir, &["hf2gguf", input, "-o", output, "--type", ty])
}

/// Name, dimensions outermost first, and type of each tensor of a file.
fn tensors(path: &Path) -> Vec<(String, Vec<u64>, GgmlType)> {
    let file = GgufFile::open(path).unwrap();
    file.tensors().iter().map(|meta| (meta.name.clone(), meta.shape.dims().to_vec(), meta.ty)).collect()
}

/// Type of a tensor of a file.
fn type_of(path: &Path, name: &str) -> GgmlType {
    tensors(path).into_iter().find(|tensor| tensor.0 == name).unwrap_or_else(|| panic!("no {name}")).2
}

/// Values between -1 and 1 that BF16 holds.
fn values(n: u64, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.5
    };
    let cut = |value: f32| f32::from_bits(value.to_bits() & 0xffff_0000);
    std::iter::repeat_with(next).take(n as usize).map(cut).collect()
}

/// Adds a tensor of BF16.
pub fn add(file: &mut Safetensors, name: &str, dims: &[u64]) {
    let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    file.add_bf16(name, dims, &values(dims.iter().product(), seed));
}

/// Tensors of a small Flux model.
const FLUX: [(&str, &[u64]); 8] = [
    ("double_blocks.0.img_attn.norm.query_norm.scale", &[32]),
    ("double_blocks.0.img_attn.proj.weight", &[8, 256]),
    ("double_blocks.0.img_attn.qkv.weight", &[12, 256]),
    ("double_blocks.0.img_mlp.0.bias", &[8]),
    ("double_blocks.0.img_mlp.0.weight", &[8, 256]),
    ("final_layer.linear.weight", &[16, 256]),
    ("img_in.weight", &[8, 64]),
    ("single_blocks.0.linear2.weight", &[4, 512]),
];

/// Small Flux model with a prefix before its names.
pub fn flux(prefix: &str) -> Safetensors {
    let mut file = Safetensors::default();
    for (name, dims) in FLUX {
        let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        file.add_bf16(&format!("{prefix}{name}"), dims, &values(dims.iter().product(), seed));
    }
    file
}

/// Small Wan model, with a convolution over time.
pub fn wan() -> Safetensors {
    let mut file = Safetensors::default();
    let all: [(&str, &[u64]); 9] = [
        ("patch_embedding.weight", &[6, 4, 1, 2, 2]),
        ("blocks.0.modulation", &[1, 6, 256]),
        ("blocks.0.self_attn.norm_q.weight", &[256]),
        ("blocks.0.self_attn.v.weight", &[8, 256]),
        ("blocks.0.ffn.2.weight", &[8, 512]),
        ("head.modulation", &[1, 2, 256]),
        ("head.head.weight", &[4, 256]),
        ("patch_embedding.bias", &[6]),
        ("text_embedding.2.weight", &[8, 256]),
    ];
    for (name, dims) in &all {
        add(&mut file, name, dims);
    }
    file
}
