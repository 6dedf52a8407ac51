//! Words of MLX, compared with a test implementation that reads single bits.

use gguf_core::ElementType;
use serde_json::json;

use super::floats::{e4m3_scales, small_float};
use super::{MODULE, Made, Noise, Part, f32s, number, short_scale};

/// The modes with all their bits and groups.
pub const FORMS: [(&str, &[u64], &[u64]); 4] = [
    ("affine", &[2, 3, 4, 5, 6, 8], &[32, 64, 128]),
    ("mxfp4", &[4], &[32]),
    ("mxfp8", &[8], &[32]),
    ("nvfp4", &[4], &[16]),
];

/// Numbers in one of the types that scales can have; F16 holds all of them.
fn floats(noise: &mut Noise, values: &[f32]) -> (ElementType, Vec<u8>) {
    let f16 = |&value: &f32| half::f16::from_f32(value).to_le_bytes();
    let bf16 = |&value: &f32| half::bf16::from_f32(value).to_le_bytes();
    let holds = values.iter().all(|&value| half::bf16::from_f32(value).to_f32() == value);
    match noise.below(3) {
        0 => (ElementType::F32, f32s(values)),
        1 if holds => (ElementType::Bf16, values.iter().flat_map(bf16).collect()),
        _ => (ElementType::F16, values.iter().flat_map(f16).collect()),
    }
}

/// A module of at least this many columns in one of the [`FORMS`], as a stack of matrices if the rows allow it.
pub fn mlx([n_rows, n_cols]: [u64; 2], noise: &mut Noise, (mode, bits, group): (&str, u64, u64)) -> Made {
    let n_cols = n_cols.next_multiple_of(group.max(32));
    let (n_groups, row_bits) = (n_cols / group, n_cols * bits);
    let words = noise.bytes(n_rows * row_bits / 8);
    let n_mats = if n_rows % 2 == 0 && noise.flip() { 2 } else { 1 };
    let outer = if n_mats == 2 { vec![2, n_rows / 2] } else { vec![n_rows] };
    let dims = |last: u64| [&outer[..], &[last]].concat();
    let n = n_rows * n_groups;
    let mut parts = vec![(".weight", ElementType::U32, dims(row_bits / 32), words.clone())];
    let value: super::Value = if mode == "affine" {
        let scales: Vec<f32> = (0..n).map(|_| short_scale(noise)).collect();
        let biases: Vec<f32> = match noise.below(3) {
            // Zero points in the middle, elsewhere, or none.
            0 => scales.iter().map(|scale| -scale * f32::from(1u8 << (bits - 1))).collect(),
            1 => scales.iter().map(|scale| -scale * noise.below(4) as f32).collect(),
            _ => (0..n).map(|_| short_scale(noise)).collect(),
        };
        for (suffix, values) in [(".scales", &scales), (".biases", &biases)] {
            let (ty, bytes) = floats(noise, values);
            parts.push((suffix, ty, dims(n_groups), bytes));
        }
        Box::new(move |row, col| {
            let code = number(&words, bits, |j| row * row_bits + col * bits + j);
            let at = (row * n_groups + col / group) as usize;
            code as f32 * scales[at] + biases[at]
        })
    } else {
        let is_nv = mode == "nvfp4";
        let scales =
            if is_nv { e4m3_scales(noise, n) } else { (0..n).map(|_| noise.below(255) as u8).collect() };
        parts.push((".scales", ElementType::U8, dims(n_groups), scales.clone()));
        let factor: Option<Vec<f32>> = (is_nv && noise.flip())
            .then(|| (0..n_mats).map(|_| (1 + noise.below(1000)) as f32 / 300.0).collect());
        if let Some(factor) = &factor {
            parts.push((".global_scale", ElementType::F32, vec![n_mats], f32s(factor)));
        }
        Box::new(move |row, col| {
            let at = row * n_groups + col / group;
            let code = small_float(&words, row * row_bits + col * bits, bits, if bits == 4 { 2 } else { 4 });
            let scale = if is_nv {
                small_float(&scales, at * 8, 8, 4)
            } else {
                f64::powi(2.0, i32::from(scales[at as usize]) - 127) as f32
            };
            let factor = factor.as_ref().map(|all| all[(row * n_mats / n_rows) as usize] / 2688.0);
            code * factor.map_or(scale, |factor| scale * factor)
        })
    };
    let config =
        json!({ "quantization": { "bits": bits, "group_size": group, "mode": mode }, "hidden_size": n_cols });
    let part = |(suffix, ty, dims, bytes): (&str, ElementType, Vec<u64>, Vec<u8>)| Part {
        name: format!("{MODULE}{suffix}"),
        ty,
        dims,
        bytes,
    };
    let parts = parts.into_iter().map(part).collect();
    Made { config, parts, name: format!("{MODULE}.weight"), n_rows, n_cols, value }
}
