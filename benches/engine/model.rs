//! Models of random weights in memory: speed does not depend on their values.

use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_foundry::engine::TokenChunk;
use gguf_foundry::quant::quantize_rows;

/// Maximum number of values that are generated and encoded; longer tensors repeat them.
const PATTERN: usize = 1 << 20;

/// Tensors in memory.
#[derive(Default)]
pub(crate) struct Model {
    metas: Vec<TensorMeta>,
    bytes: Vec<Vec<u8>>,
}

impl TensorSource for Model {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = first_row as usize * self.metas[tensor].row_bytes().unwrap() as usize;
        out.copy_from_slice(&self.bytes[tensor][start..start + out.len()]);
        Ok(())
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let row = self.metas[tensor].row_bytes().unwrap() as usize;
        Some(&self.bytes[tensor][first_row as usize * row..(first_row + n_rows) as usize * row])
    }
}

/// Returns random values around zero.
pub(crate) fn values(n: usize, seed: &mut u64) -> Vec<f32> {
    (0..n)
        .map(|_| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((*seed >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.05
        })
        .collect()
}

impl Model {
    /// Adds a tensor, its dimensions outermost first: random, or one value everywhere.
    pub(crate) fn push(&mut self, name: String, dims: &[usize], ty: GgmlType, value: Option<f32>) {
        let mut seed = self.metas.len() as u64 + 1;
        let shape = Shape::new(dims.iter().map(|&n| n as u64).collect()).unwrap();
        let meta = TensorMeta { name, shape, ty };
        let n_cols = *dims.last().unwrap();
        let n_rows = dims.iter().product::<usize>() / n_cols;
        let made_rows = n_rows.min((PATTERN / n_cols).max(1));
        let made = match value {
            Some(value) => vec![value; made_rows * n_cols],
            None => values(made_rows * n_cols, &mut seed),
        };
        let row_bytes = meta.row_bytes().unwrap() as usize;
        let mut pattern = vec![0; made_rows * row_bytes];
        quantize_rows(ty, SimdLevel::detect(), n_cols, &made, None, &mut pattern).unwrap();
        let mut bytes = Vec::with_capacity(n_rows * row_bytes);
        while bytes.len() < n_rows * row_bytes {
            let rest = n_rows * row_bytes - bytes.len();
            bytes.extend_from_slice(&pattern[..rest.min(pattern.len())]);
        }
        self.metas.push(meta);
        self.bytes.push(bytes);
    }
}

/// Returns a chunk of tokens; `at` makes chunks differ.
pub(crate) fn chunk(n_tokens: usize, n_vocab: usize, at: usize, rows: std::ops::Range<usize>) -> TokenChunk {
    let tokens = (0..n_tokens).map(|i| ((i * 7 + at * 31) % n_vocab) as u32).collect();
    TokenChunk { tokens, rows, n_source: 0 }
}
