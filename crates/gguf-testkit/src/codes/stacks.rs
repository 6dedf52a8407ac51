//! Stacks of experts in one tensor: FP8 and NVFP4 with scales for each expert or output.

use gguf_core::ElementType;
use serde_json::json;

use super::floats::{e4m3_scales, small_float};
use super::{MODULE, Made, Noise, Value, f32s, short_scale};

/// Number of matrices of every generated stack.
pub const EXPERTS: u64 = 3;

/// Granularity of the FP8 scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    One,
    ByMatrix,
    ByRow,
    /// One scale per output: `[n, 1, outputs]`, or `[n, outputs, 1]` in FBGEMM's stacks.
    ByOutput,
}

/// Layout and tensor names of FP4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed {
    /// `experts.down_proj`, a byte holds two elements of a row.
    Rows,
    /// `experts.down_proj`, a byte holds two elements of a column.
    Columns,
    /// `experts.down_proj.weight`.
    Modules,
    /// `experts.down_proj.weight_packed`, the factor divides.
    CompressedTensors,
}

/// FP8 stack without NaN. The weight has no module; its scales are `<name><suffix>`.
pub fn fp8_stack(shape: [u64; 2], noise: &mut Noise, scales: Scales, method: &str) -> Made {
    let [n_rows, n_cols] = shape;
    let codes: Vec<u8> = noise.bytes(EXPERTS * n_rows * n_cols).into_iter().map(number).collect();
    let (n_scales, dims) = match scales {
        Scales::One => (1, vec![]),
        Scales::ByMatrix => (EXPERTS, [vec![EXPERTS], vec![EXPERTS, 1, 1]][noise.below(2) as usize].clone()),
        Scales::ByRow => (EXPERTS * n_rows, vec![EXPERTS, n_rows, 1]),
        Scales::ByOutput if method == "fbgemm_fp8" && noise.flip() => {
            (EXPERTS * n_cols, vec![EXPERTS, n_cols, 1])
        }
        Scales::ByOutput => (EXPERTS * n_cols, vec![EXPERTS, 1, n_cols]),
    };
    let factors: Vec<f32> = (0..n_scales).map(|_| short_scale(noise)).collect();
    let (bytes, own) = (codes.clone(), factors.clone());
    let value = move |row: u64, col: u64| {
        let at = match scales {
            Scales::One => 0,
            Scales::ByMatrix => row / n_rows,
            Scales::ByRow => row,
            Scales::ByOutput => row / n_rows * n_cols + col,
        };
        small_float(&bytes, (row * n_cols + col) * 8, 8, 4) * own[at as usize]
    };
    let (suffix, settings) = match method {
        "modelopt" => ("_weight_scale", json!({ "quant_algo": "FP8" })),
        "fp8" if noise.flip() => ("_scale_inv", json!({})),
        _ => ("_scale", json!({})),
    };
    let made = Made::new(method, settings, [EXPERTS * n_rows, n_cols], Box::new(value))
        .part("", ElementType::F8E4M3, &[EXPERTS, n_rows, n_cols], &codes)
        .part(suffix, ElementType::F32, &dims, &f32s(&factors));
    Made { name: MODULE.to_owned(), ..made }
}

/// Replaces NaN codes by numbers.
fn number(code: u8) -> u8 {
    if code & 0x7f == 0x7f { code ^ 1 } else { code }
}

/// NVFP4 stack with one factor, or one for each expert.
pub fn nvfp4_stack(shape: [u64; 2], noise: &mut Noise, packed: Packed) -> Made {
    let by_columns = packed == Packed::Columns;
    // The packed dimension has whole groups.
    let (n_rows, n_cols) = if by_columns {
        (shape[0].next_multiple_of(16), shape[1].max(2))
    } else {
        (shape[0].max(2), shape[1].next_multiple_of(16))
    };
    let codes = noise.bytes(EXPERTS * n_rows * n_cols / 2);
    let scale = e4m3_scales(noise, EXPERTS * n_rows * n_cols / 16);
    let factors: Vec<f32> =
        (0..[1, EXPERTS][noise.below(2) as usize]).map(|_| (1 + noise.below(1000)) as f32 / 300.0).collect();
    let factor_dims = match factors.len() {
        1 => [vec![], vec![1]][noise.below(2) as usize].clone(),
        _ => [vec![EXPERTS], vec![EXPERTS, 1], vec![EXPERTS, 1, 1]][noise.below(3) as usize].clone(),
    };
    let (bytes, scales, own) = (codes.clone(), scale.clone(), factors.clone());
    let value: Value = Box::new(move |row, col| {
        let (expert, row) = (row / n_rows, row % n_rows);
        let (nibble, group) = if by_columns {
            let pairs = (expert * (n_rows / 2) + row / 2) * n_cols + col;
            (pairs * 2 + row % 2, (expert * (n_rows / 16) + row / 16) * n_cols + col)
        } else {
            let row = expert * n_rows + row;
            (row * n_cols + col, row * (n_cols / 16) + col / 16)
        };
        let factor = own[if own.len() == 1 { 0 } else { expert as usize }];
        let scale = small_float(&scales, group * 8, 8, 4);
        let scale = if packed == Packed::CompressedTensors { scale / factor } else { scale * factor };
        small_float(&bytes, nibble * 4, 4, 2) * scale
    });
    let dims = |packed: u64| {
        let (rows, cols) = if by_columns { (packed, 1) } else { (1, packed) };
        [EXPERTS, n_rows / rows, n_cols / cols]
    };
    let size = [EXPERTS * n_rows, n_cols];
    if packed == Packed::CompressedTensors {
        let weights = json!({ "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16 });
        let groups = json!({ "group_0": { "targets": ["Linear"], "weights": weights } });
        let settings = json!({ "format": "nvfp4-pack-quantized", "config_groups": groups });
        return Made::new("compressed-tensors", settings, size, value)
            .part(".weight_packed", ElementType::U8, &dims(2), &codes)
            .part(".weight_scale", ElementType::F8E4M3, &dims(16), &scale)
            .part(".weight_global_scale", ElementType::F32, &factor_dims, &f32s(&factors));
    }
    let names = match packed {
        Packed::Modules => [".weight", ".weight_scale", ".weight_scale_2"],
        _ => ["", "_weight_scale", "_weight_scale_2"],
    };
    let made = Made::new("modelopt", json!({ "quant_algo": "NVFP4" }), size, value)
        .part(names[0], ElementType::U8, &dims(2), &codes)
        .part(names[1], ElementType::F8E4M3, &dims(16), &scale)
        .part(names[2], ElementType::F32, &factor_dims, &f32s(&factors));
    Made { name: format!("{MODULE}{}", names[0]), ..made }
}
