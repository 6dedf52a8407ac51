//! The program: its output, the names of its files, its memory use.

use std::path::Path;

use gguf_foundry::core::GgmlType;
use gguf_foundry::gguf::Metadata;

use crate::support;
use crate::support::programs::command;
use crate::testkit::memory::{ComputedTensors, tensor_meta, write_source};
use crate::testkit::noise::Noise;

/// Fills rows with half-precision numbers between 2^-6 and 2^-4, of either sign.
fn fill(tensor: usize, first_row: u64, out: &mut [u8]) {
    let mut noise = Noise::new((tensor as u64) << 32 | first_row);
    for bytes in out.as_chunks_mut::<2>().0 {
        let half = noise.bits() as u16 & 0x87ff | 0x2400;
        *bytes = half.to_le_bytes();
    }
}

/// Writes a model of `n_layers` layers; in each, the columns of one tensor are not whole super-blocks.
pub fn model(path: &Path, n_layers: u64, n_cols: u64, n_rows: u64) {
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[u64]| {
        tensors.push(tensor_meta(&name, dims, GgmlType::F16));
    };
    add("token_embd.weight".to_owned(), &[32, n_cols]);
    for layer in 0..n_layers {
        add(format!("blk.{layer}.attn_v.weight"), &[n_rows, n_cols]);
        add(format!("blk.{layer}.ffn_down.weight"), &[n_rows, n_cols]);
        add(format!("blk.{layer}.odd.weight"), &[8, 96]);
    }
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "nobody");
    metadata.set("nobody.block_count", n_layers as u32);
    write_source(path, &metadata, &ComputedTensors::new(tensors, fill));
}

/// Highest `RssAnon` of a run in KiB: memory that is not a mapped file.
#[cfg(target_os = "linux")]
fn peak_memory_kib(dir: &Path, input: &str) -> u64 {
    let options = ["--quiet", "--no-sync", "--threads", "2", input, "out.gguf", "q4_k_m"];
    support::peak_memory_kib(command("gguf-quantize", dir).args(options))
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded_and_does_not_grow_with_the_model() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("small.gguf"), 2, 2048, 2048);
    model(&dir.path().join("large.gguf"), 6, 2048, 2048);
    let small = peak_memory_kib(dir.path(), "small.gguf");
    let large = peak_memory_kib(dir.path(), "large.gguf");
    assert!(small > 0 && large < 256 << 10, "{small} KiB, {large} KiB");
    assert!(large < small + (16 << 10), "{small} KiB for the small model, {large} KiB for the large one");
}
