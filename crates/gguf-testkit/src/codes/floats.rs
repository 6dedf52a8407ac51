//! FP8 and FP4 compared with a test implementation that composes numbers from sign, exponent and mantissa bits.

use gguf_core::ElementType;
use serde_json::json;

use super::{Made, Noise, f32s, number, scales};

/// Decodes a small float from its bits: `exp_bits` of exponent, and the remaining bits below the sign as mantissa.
pub fn small_float(bytes: &[u8], at: u64, n_bits: u64, exp_bits: u64) -> f32 {
    let man_bits = n_bits - 1 - exp_bits;
    let part = |first: u64, n: u64| number(bytes, n, |j| at + first + j);
    let (mantissa, exponent) = (part(0, man_bits), part(man_bits, exp_bits));
    let sign = if part(n_bits - 1, 1) == 1 { -1.0f64 } else { 1.0 };
    let bias = (1 << (exp_bits - 1)) - 1;
    let steps = f64::from(1u32 << man_bits);
    // E4M3 has no infinity and one NaN, E5M2 has both, E2M1 has neither.
    match (exp_bits, exponent, mantissa) {
        (4, 15, 7) | (5, 31, 1..) => return f32::NAN,
        (5, 31, 0) => return (sign * f64::INFINITY) as f32,
        _ => {}
    }
    let magnitude = if exponent == 0 {
        f64::from(mantissa) / steps * f64::powi(2.0, 1 - bias)
    } else {
        (1.0 + f64::from(mantissa) / steps) * f64::powi(2.0, exponent as i32 - bias)
    };
    (sign * magnitude) as f32
}

/// Power of two from its byte.
fn e8m0(byte: u8) -> f32 {
    f64::powi(2.0, i32::from(byte) - 127) as f32
}

/// Granularity of FP8 scales.
#[derive(Clone, Copy, Debug)]
pub enum Grid {
    Tensor,
    Row,
    Block(u64, u64),
}

/// FP8 with the name of a method and the suffix of its scales.
pub fn fp8(shape: [u64; 2], noise: &mut Noise, grid: Grid, method: &str) -> Made {
    let [n_rows, n_cols] = shape;
    let is_e5 = method == "fp8" && noise.below(3) == 0;
    let (height, width) = match grid {
        Grid::Tensor => (n_rows, n_cols),
        Grid::Row => (1, n_cols),
        Grid::Block(height, width) => (height, width),
    };
    let dims = [n_rows.div_ceil(height), n_cols.div_ceil(width)];
    let (mut ty, mut scale, mut scale_bytes) = scales(noise, dims[0] * dims[1]);
    if noise.below(3) == 0 {
        // Powers of two, which narrow types hold exactly.
        scale = (0..scale.len()).map(|_| e8m0(100 + noise.below(40) as u8)).collect();
        (ty, scale_bytes) = (ElementType::F32, f32s(&scale));
    }
    let codes = noise.bytes(n_rows * n_cols);
    let bytes = codes.clone();
    let value = move |row: u64, col: u64| {
        let code = small_float(&bytes, (row * n_cols + col) * 8, 8, if is_e5 { 5 } else { 4 });
        code * scale[(row / height * dims[1] + col / width) as usize]
    };
    let (suffix, settings) = match (method, grid) {
        ("fp8", Grid::Block(height, width)) => {
            (".weight_scale_inv", json!({ "weight_block_size": [height, width] }))
        }
        ("modelopt", _) => (".weight_scale", json!({ "quant_algo": "FP8" })),
        ("compressed-tensors", _) => {
            let strategy = match grid {
                Grid::Tensor => "tensor",
                Grid::Row => "channel",
                Grid::Block(..) => "block",
            };
            let weights = json!({ "num_bits": 8, "type": "float", "strategy": strategy, "symmetric": true,
                "block_structure": [height, width] });
            let group = json!({ "targets": ["Linear"], "weights": weights });
            (".weight_scale", json!({ "format": "float-quantized", "config_groups": { "group_0": group } }))
        }
        _ => (".weight_scale", json!({})),
    };
    // Some writers omit dimensions of one.
    let scale_dims: Vec<u64> = match grid {
        Grid::Tensor if noise.flip() => vec![],
        Grid::Tensor => vec![1],
        Grid::Row if noise.flip() => vec![n_rows, 1],
        Grid::Row => vec![n_rows],
        Grid::Block(..) if noise.flip() && (dims[0] == 1 || dims[1] == 1) => vec![dims[0] * dims[1]],
        Grid::Block(..) => dims.to_vec(),
    };
    let code_type = if is_e5 { ElementType::F8E5M2 } else { ElementType::F8E4M3 };
    Made::new(method, settings, shape, Box::new(value))
        .part(".weight", code_type, &[n_rows, n_cols], &codes)
        .part(suffix, ty, &scale_dims, &scale_bytes)
}

/// E4M3 scales that are not NaN; mostly without a sign, so that blocks can hold them.
pub fn e4m3_scales(noise: &mut Noise, n: u64) -> Vec<u8> {
    let sign = if noise.below(4) == 0 { 0x80 } else { 0 };
    (0..n).map(|_| (noise.below(0x7f) as u8) | sign).collect()
}

/// NVFP4 of ModelOpt, with a multiplying factor, or of compressed-tensors, with a dividing factor.
pub fn nvfp4(shape: [u64; 2], noise: &mut Noise, is_modelopt: bool) -> Made {
    let (n_rows, n_cols) = (shape[0], shape[1].next_multiple_of(16));
    let n_groups = n_cols / 16;
    let codes = noise.bytes(n_rows * n_cols / 2);
    let scale = e4m3_scales(noise, n_rows * n_groups);
    let factor = (1 + noise.below(1000)) as f32 / 300.0;
    let (bytes, scale_bytes) = (codes.clone(), scale.clone());
    let value = move |row: u64, col: u64| {
        // The even column is in the low nibble.
        let code = small_float(&bytes, (row * n_cols + col) * 4, 4, 2);
        let scale = small_float(&scale_bytes, (row * n_groups + col / 16) * 8, 8, 4);
        code * if is_modelopt { scale * factor } else { scale / factor }
    };
    let (dims, scale_dims) = ([n_rows, n_cols / 2], [n_rows, n_groups]);
    if is_modelopt {
        let settings = json!({ "quant_algo": "NVFP4" });
        return Made::new("modelopt", settings, [n_rows, n_cols], Box::new(value))
            .part(".weight", ElementType::U8, &dims, &codes)
            .part(".weight_scale", ElementType::F8E4M3, &scale_dims, &scale)
            .part(".weight_scale_2", ElementType::F32, &[], &f32s(&[factor]));
    }
    Made::new("compressed-tensors", group("nvfp4-pack-quantized"), [n_rows, n_cols], Box::new(value))
        .part(".weight_packed", ElementType::U8, &dims, &codes)
        .part(".weight_scale", ElementType::F8E4M3, &scale_dims, &scale)
        .part(".weight_global_scale", ElementType::F32, &[1], &f32s(&[factor]))
}

fn group(format: &str) -> serde_json::Value {
    let weights = json!({ "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32 });
    json!({ "format": format, "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } } })
}

/// MXFP4 of gpt-oss (a stack of experts in blocks of 16 bytes), or of compressed-tensors.
pub fn mxfp4(shape: [u64; 2], noise: &mut Noise, is_stack: bool) -> Made {
    let (n_rows, n_groups) = (shape[0], shape[1].div_ceil(32));
    let n_cols = n_groups * 32;
    let codes = noise.bytes(n_rows * n_cols / 2);
    let scale: Vec<u8> = (0..n_rows * n_groups).map(|_| noise.below(255) as u8).collect();
    let (bytes, exponents) = (codes.clone(), scale.clone());
    let value = move |row: u64, col: u64| {
        let code = small_float(&bytes, (row * n_cols + col) * 4, 4, 2);
        code * e8m0(exponents[(row * n_groups + col / 32) as usize])
    };
    if is_stack {
        let experts = if n_rows % 2 == 0 { 2 } else { 1 };
        let mut made = Made::new("mxfp4", json!({}), [n_rows, n_cols], Box::new(value))
            .part("_blocks", ElementType::U8, &[experts, n_rows / experts, n_groups, 16], &codes)
            .part("_scales", ElementType::U8, &[experts, n_rows / experts, n_groups], &scale);
        super::MODULE.clone_into(&mut made.name);
        return made;
    }
    Made::new("compressed-tensors", group("mxfp4-pack-quantized"), [n_rows, n_cols], Box::new(value))
        .part(".weight_packed", ElementType::U8, &[n_rows, n_cols / 2], &codes)
        .part(".weight_scale", ElementType::U8, &[n_rows, n_groups], &scale)
}

/// FP8 codes with a power of two for every 32 columns.
pub fn mxfp8(shape: [u64; 2], noise: &mut Noise) -> Made {
    let [n_rows, n_cols] = shape;
    let n_groups = n_cols.div_ceil(32);
    let codes = noise.bytes(n_rows * n_cols);
    let scale: Vec<u8> = (0..n_rows * n_groups).map(|_| noise.below(255) as u8).collect();
    let (bytes, exponents) = (codes.clone(), scale.clone());
    let value = move |row: u64, col: u64| {
        small_float(&bytes, (row * n_cols + col) * 8, 8, 4)
            * e8m0(exponents[(row * n_groups + col / 32) as usize])
    };
    Made::new("compressed-tensors", group("mxfp8-quantized"), shape, Box::new(value))
        .part(".weight", ElementType::F8E4M3, &[n_rows, n_cols], &codes)
        .part(".weight_scale", ElementType::U8, &[n_rows, n_groups], &scale)
}
