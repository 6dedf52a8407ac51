//! Models of random weights in memory: speed does not depend on their values.

use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::engine::TokenChunk;
use gguf_foundry::quant::quantize_rows;

use crate::testkit::memory::{MemoryTensors, tensor_meta};
use crate::testkit::noise::Noise;

/// Maximum number of values that are generated and encoded; longer tensors repeat them.
const PATTERN: usize = 1 << 20;

/// Returns random values around zero.
pub(crate) fn values(n: usize, noise: &mut Noise) -> Vec<f32> {
    (0..n).map(|_| noise.signed() * 0.05).collect()
}

/// Adds a random tensor, its dimensions outermost first.
pub(crate) fn push(model: &mut MemoryTensors, name: &str, dims: &[usize], ty: GgmlType) {
    let mut noise = Noise::new(model.tensors().len() as u64);
    let outer: Vec<u64> = dims.iter().map(|&n| n as u64).collect();
    let meta = tensor_meta(name, &outer, ty);
    let n_cols = *dims.last().unwrap();
    let n_rows = dims.iter().product::<usize>() / n_cols;
    let made_rows = n_rows.min((PATTERN / n_cols).max(1));
    let made = values(made_rows * n_cols, &mut noise);
    let row_bytes = meta.row_bytes().unwrap() as usize;
    let mut pattern = vec![0; made_rows * row_bytes];
    quantize_rows(ty, SimdLevel::detect(), n_cols, &made, None, &mut pattern).unwrap();
    let mut bytes = pattern.repeat(n_rows.div_ceil(made_rows));
    bytes.truncate(n_rows * row_bytes);
    model.add(name, &outer, ty, bytes);
}

/// Returns a chunk of tokens; `at` makes chunks differ.
pub(crate) fn chunk(n_tokens: usize, n_vocab: usize, at: usize, rows: std::ops::Range<usize>) -> TokenChunk {
    let tokens = (0..n_tokens).map(|i| ((i * 7 + at * 31) % n_vocab) as u32).collect();
    TokenChunk { tokens, rows, n_source: 0 }
}
