//! Generated modules of quantized checkpoints, with a value for every element that was computed bit by bit.

pub mod floats;
pub mod mlx;
pub mod packed;
pub mod stacks;
pub mod tools;

use gguf_core::ElementType;
use serde_json::{Value as Json, json};

use crate::checkpoints::Safetensors;
pub use crate::memory::f32_bytes as f32s;
pub use crate::noise::Noise;

use floats::{Grid, fp8, mxfp4, mxfp8, nvfp4};
use mlx::mlx;
use packed::{awq, gptq, int_quantized, pack_quantized};
use stacks::{Packed, Scales, fp8_stack, nvfp4_stack};
use tools::{bitnet, eight_bits, four_bits, hqq, quanto_bytes, quanto_packed, sparse};

/// Noise of a module; `proptest-regressions` has seeds that mean these sequences.
pub fn noise(seed: u64) -> Noise {
    Noise::new(seed ^ 0x9e37_79b9_7f4a_7c15)
}

/// Random finite scale that F16 and BF16 can hold, of either sign and rarely zero.
pub fn short_scale(noise: &mut Noise) -> f32 {
    match noise.below(16) {
        0 => 0.0,
        n => {
            let magnitude = (128 + noise.below(128)) as f32 / 128.0 / (1 << (n % 12)) as f32;
            if noise.below(4) == 0 { -magnitude } else { magnitude }
        }
    }
}

/// Tensor of a checkpoint.
#[derive(Clone)]
pub struct Part {
    pub name: String,
    pub ty: ElementType,
    pub dims: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// Value of an element of the decoded matrix, by row and column.
pub type Value = Box<dyn Fn(u64, u64) -> f32>;

/// Checkpoint of one module, with its decoded values.
pub struct Made {
    /// Content of `config.json`.
    pub config: Json,
    pub parts: Vec<Part>,
    /// Name of the decoded weight.
    pub name: String,
    pub n_rows: u64,
    pub n_cols: u64,
    pub value: Value,
}

/// Module name of every generated checkpoint; quanto derives the shape from it.
pub const MODULE: &str = "model.layers.0.mlp.up_proj";

impl Made {
    /// Creates a module of this method; `settings` is the rest of its configuration.
    pub fn new(method: &str, settings: Json, shape: [u64; 2], value: Value) -> Self {
        let mut description = settings;
        description["quant_method"] = json!(method);
        let config = json!({ "quantization_config": description, "hidden_size": shape[1] });
        let name = format!("{MODULE}.weight");
        Self { config, parts: Vec::new(), name, n_rows: shape[0], n_cols: shape[1], value }
    }

    /// Adds a tensor of the module.
    pub fn part(mut self, suffix: &str, ty: ElementType, dims: &[u64], bytes: &[u8]) -> Self {
        let name = format!("{MODULE}{suffix}");
        self.parts.push(Part { name, ty, dims: dims.to_vec(), bytes: bytes.to_vec() });
        self
    }
}

/// Bit of a tensor, counted from the lowest bit of its first byte. 32-bit words are little-endian, so bit `b` of word
/// `w` is bit `32 w + b`.
pub fn bit(bytes: &[u8], at: u64) -> u32 {
    u32::from(bytes[(at / 8) as usize] >> (at % 8)) & 1
}

/// Number whose bits, lowest first, are at the positions that `place` returns.
pub fn number(bytes: &[u8], n_bits: u64, place: impl Fn(u64) -> u64) -> u32 {
    (0..n_bits).map(|j| bit(bytes, place(j)) << j).sum()
}

/// Random scales in one of the types that scales can have.
pub fn scales(noise: &mut Noise, n: u64) -> (ElementType, Vec<f32>, Vec<u8>) {
    let mut values: Vec<f32> = (0..n).map(|_| short_scale(noise)).collect();
    let (ty, bytes) = match noise.below(4) {
        0 => {
            // More precision than F16 holds.
            for value in &mut values {
                *value *= 1.0 + noise.below(512) as f32 / 8388608.0;
            }
            (ElementType::F32, f32s(&values))
        }
        1 => (ElementType::F32, f32s(&values)),
        2 => {
            let half = |&value| half::f16::from_f32(value).to_le_bytes();
            (ElementType::F16, values.iter().flat_map(half).collect())
        }
        _ => {
            let half = |&value| half::bf16::from_f32(value).to_le_bytes();
            (ElementType::Bf16, values.iter().flat_map(half).collect())
        }
    };
    (ty, values, bytes)
}

/// Bytes of I32 numbers.
pub fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Bytes of I64 numbers.
pub fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Safetensors file of these tensors.
pub fn safetensors(parts: &[Part]) -> Safetensors {
    let mut file = Safetensors::default();
    for part in parts {
        file.add(&part.name, part.ty.name(), &part.dims, &part.bytes);
    }
    file
}

/// Writes a checkpoint as files.
pub fn write(config: &Json, parts: &[Part], dir: &std::path::Path) {
    safetensors(parts).write_checkpoint(dir, config);
}

/// One generated checkpoint of every kind.
pub fn all(noise: &mut Noise) -> Vec<Made> {
    let shape = [1 + noise.below(20), 1 + noise.below(40)];
    let (even, bits) = ([shape[0], shape[1] * 8], 1 + noise.below(8));
    let mut all = vec![
        gptq([2, 4, 8][noise.below(3) as usize], [shape[0], shape[1] * 16], noise, None),
        gptq(3, [shape[0], 32 * (1 + shape[1] % 3)], noise, None),
        gptq(4, even, noise, Some("auto_round")),
        awq(shape, noise, "gemm"),
        awq(shape, noise, "gemv"),
        int_quantized(shape, noise),
        fp8(shape, noise, Grid::Block(3, 7), "fp8"),
        fp8(shape, noise, Grid::Row, "fbgemm_fp8"),
        fp8(shape, noise, Grid::Block(4, 4), "compressed-tensors"),
        nvfp4(shape, noise, true),
        nvfp4(shape, noise, false),
        mxfp4(shape, noise, true),
        mxfp4(shape, noise, false),
        mxfp8(shape, noise),
        fp8_stack(shape, noise, Scales::ByMatrix, "fp8"),
        fp8_stack(shape, noise, Scales::ByOutput, "fbgemm_fp8"),
        fp8_stack(shape, noise, Scales::One, "modelopt"),
        nvfp4_stack(shape, noise, Packed::Rows),
        nvfp4_stack(shape, noise, Packed::Columns),
        nvfp4_stack(shape, noise, Packed::Modules),
        nvfp4_stack(shape, noise, Packed::CompressedTensors),
        four_bits(shape, noise),
        eight_bits(shape, noise),
        hqq([1, 2, 3, 4, 8][noise.below(5) as usize], shape, noise),
        quanto_packed([2, 4][noise.below(2) as usize], shape, noise),
        quanto_bytes(shape, noise),
        bitnet(shape[0], shape[1], noise),
        sparse(shape, noise, true),
        sparse(shape, noise, false),
    ];
    all.extend(pack_quantized(bits, shape, noise));
    let bits = [2, 3, 4, 5, 6, 8][noise.below(6) as usize];
    for form in [("affine", bits, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)] {
        all.push(mlx(shape, noise, form));
    }
    all
}
