//! Integers packed in words: GPTQ, AWQ, AutoRound and compressed-tensors, compared with test implementations that read
//! single bits.

use gguf_core::ElementType;
use serde_json::json;

use super::{Made, Noise, i32s, i64s, number, scales};

/// Expected value `scale · (code - zero)`, where the difference is exact.
fn value(scale: f32, code: u32, zero: i64) -> f32 {
    scale * (i64::from(code) - zero) as f32
}

/// Random map of columns to groups, and its tensor: in order, scattered, or by blocks of 32.
fn group_map(noise: &mut Noise, n_cols: u64, size: u64, n_groups: u64) -> (Vec<u64>, Vec<u8>) {
    let kind = noise.below(3);
    let block = noise.bits();
    let mut map: Vec<u64> = (0..n_cols)
        .map(|col| match kind {
            0 => col / size,
            1 => noise.below(n_groups),
            _ => (col / 32).wrapping_mul(block | 1) % n_groups,
        })
        .collect();
    // All 0 would mean that there is no map.
    if let Some(last) = map.last_mut().filter(|_| n_groups > 1) {
        *last = n_groups - 1;
    }
    let bytes = i32s(&map.iter().map(|&group| group as i32).collect::<Vec<_>>());
    (map, bytes)
}

/// GPTQ as in section 4 of the specification. `packing` is AutoRound's packing format, if AutoRound wrote the file.
pub fn gptq(bits: u64, shape: [u64; 2], noise: &mut Noise, packing: Option<&str>) -> Made {
    let [n_rows, n_cols] = shape;
    let size = if noise.below(4) == 0 { n_cols } else { 1 + noise.below(n_cols) };
    let size = if noise.flip() { size.next_multiple_of(32) } else { size };
    let n_groups = n_cols.div_ceil(size);
    let (n_words, zero_words) = (n_cols * bits / 32, (n_rows * bits).div_ceil(32));
    let qweight = noise.bytes(n_words * n_rows * 4);
    let qzeros = noise.bytes(n_groups * zero_words * 4);
    let (ty, scale, scale_bytes) = scales(noise, n_groups * n_rows);
    let (map, g_idx) = group_map(noise, n_cols, size, n_groups);
    let has_map = noise.below(4) > 0;
    let is_v2 = packing.map_or_else(|| noise.flip(), |name| name == "auto_round");
    let mut settings = json!({ "bits": bits, "group_size": size, "desc_act": has_map });
    match packing {
        Some(name) => settings["packing_format"] = json!(name),
        None => settings["checkpoint_format"] = json!(if is_v2 { "gptq_v2" } else { "gptq" }),
    }
    if size == n_cols && noise.flip() {
        settings["group_size"] = json!(-1);
    }
    let (words, zeros) = (qweight.clone(), qzeros.clone());
    let value = move |row: u64, col: u64| {
        let group = if has_map { map[col as usize] } else { col / size };
        // Bit `p` of a column's stream is bit `p mod 32` of word `p / 32` of that column.
        let code = number(&words, bits, |j| {
            let p = col * bits + j;
            (p / 32 * n_rows + row) * 32 + p % 32
        });
        let p = row * bits;
        let zero = match (is_v2, bits) {
            (true, _) => number(&zeros, bits, |j| (group * zero_words + (p + j) / 32) * 32 + (p + j) % 32),
            (false, 3) => {
                (number(&zeros, bits, |j| (group * zero_words + (p + j) / 32) * 32 + (p + j) % 32) + 1) % 8
            }
            (false, _) => {
                let first = (group * zero_words + p / 32) * 32;
                let add = [0, 0, 0x5555_5555, 0, 0x1111_1111, 0, 0, 0, 0x0101_0101][bits as usize];
                let sum = number(&zeros, 32, |j| first + j).wrapping_add(add);
                number(&sum.to_le_bytes(), bits, |j| p % 32 + j)
            }
        };
        value(scale[(group * n_rows + row) as usize], code, i64::from(zero))
    };
    let method = if packing.is_some() { "auto-round" } else { "gptq" };
    let made = Made::new(method, settings, shape, Box::new(value))
        .part(".qweight", ElementType::I32, &[n_words, n_rows], &qweight)
        .part(".qzeros", ElementType::I32, &[n_groups, zero_words], &qzeros)
        .part(".scales", ty, &[n_groups, n_rows], &scale_bytes);
    if has_map { made.part(".g_idx", ElementType::I32, &[n_cols], &g_idx) } else { made }
}

/// AWQ: `gemm` packs eight outputs in a word in a permuted order, `gemv` eight inputs in sequence.
pub fn awq(shape: [u64; 2], noise: &mut Noise, version: &str) -> Made {
    let is_gemv = version == "gemv";
    let (n_rows, n_cols) = if is_gemv {
        (shape[0], shape[1].next_multiple_of(8))
    } else {
        (shape[0].next_multiple_of(8), shape[1])
    };
    let size = [1 + noise.below(n_cols), 32, 64, 128][noise.below(4) as usize];
    let n_groups = n_cols.div_ceil(size);
    let has_zeros = is_gemv || noise.below(4) > 0;
    // Columns of the small tensors of `gemv`: padded to whole words, for small groups to two or four of them.
    let z = n_groups.div_ceil(8).next_multiple_of(if size <= 32 {
        4
    } else if size <= 64 {
        2
    } else {
        1
    });
    let qweight = noise.bytes(n_rows * n_cols / 2);
    let n_zeros = if is_gemv { n_rows * z } else { n_groups * n_rows / 8 };
    let qzeros = noise.bytes(n_zeros * 4);
    let scale_dims = if is_gemv { [n_rows, 8 * z] } else { [n_groups, n_rows] };
    let (ty, scale, scale_bytes) = scales(noise, scale_dims[0] * scale_dims[1]);
    let (words, zeros) = (qweight.clone(), qzeros.clone());
    let value = move |row: u64, col: u64| {
        let group = col / size;
        if is_gemv {
            let code = number(&words, 4, |j| (row * n_cols + col) * 4 + j);
            let zero = number(&zeros, 4, |j| (row * z * 8 + group) * 4 + j);
            return value(scale[(row * 8 * z + group) as usize], code, i64::from(zero));
        }
        // Nibble `k` of a word holds this output of its eight.
        let k = [0, 2, 4, 6, 1, 3, 5, 7].iter().position(|&output| output == row % 8).unwrap() as u64;
        let nibble =
            |bytes: &[u8], line: u64| number(bytes, 4, |j| (line * (n_rows / 8) + row / 8) * 32 + 4 * k + j);
        let zero = if has_zeros { nibble(&zeros, group) } else { 8 };
        value(scale[(group * n_rows + row) as usize], nibble(&words, col), i64::from(zero))
    };
    let settings = json!({ "bits": 4, "group_size": size, "version": version, "zero_point": has_zeros });
    let dims = if is_gemv { [n_rows, n_cols / 8] } else { [n_cols, n_rows / 8] };
    let zero_dims = if is_gemv { [n_rows, z] } else { [n_groups, n_rows / 8] };
    let made = Made::new("awq", settings, [n_rows, n_cols], Box::new(value))
        .part(".qweight", ElementType::I32, &dims, &qweight)
        .part(".scales", ty, &scale_dims, &scale_bytes);
    if has_zeros { made.part(".qzeros", ElementType::I32, &zero_dims, &qzeros) } else { made }
}

/// Number of words for `n` codes, and the bit at which each code starts.
fn word_layout(bits: u64, is_padded: bool) -> (impl Fn(u64) -> u64 + Copy, impl Fn(u64) -> u64 + Copy) {
    let per_word = 32 / bits;
    let words = move |n: u64| if is_padded { n.div_ceil(per_word) } else { (n * bits).div_ceil(32) };
    let start = move |k: u64| if is_padded { k / per_word * 32 + k % per_word * bits } else { k * bits };
    (words, start)
}

/// compressed-tensors, section 7.2; `None` if the number of words does not determine the packing.
pub fn pack_quantized(bits: u64, shape: [u64; 2], noise: &mut Noise) -> Option<Made> {
    let [n_rows, n_cols] = shape;
    let is_padded = noise.flip();
    let (words, start) = word_layout(bits, is_padded);
    let (other_words, _) = word_layout(bits, !is_padded);
    let is_symmetric = noise.flip();
    let is_told = |n: u64| 32 % bits == 0 || words(n) != other_words(n);
    if !is_told(n_cols) || !is_symmetric && !is_told(n_rows) {
        return None;
    }
    let (strategy, size) = match noise.below(3) {
        0 => ("tensor", n_cols),
        1 => ("channel", n_cols),
        _ => ("group", 1 + noise.below(n_cols)),
    };
    let n_groups = n_cols.div_ceil(size);
    let packed = noise.bytes(n_rows * words(n_cols) * 4);
    let zero_points = noise.bytes(words(n_rows) * n_groups * 4);
    let n_scales = if strategy == "tensor" { 1 } else { n_rows * n_groups };
    let (ty, scale, scale_bytes) = scales(noise, n_scales);
    let (map, g_idx) = group_map(noise, n_cols, size, n_groups);
    let has_map = strategy == "group" && noise.flip();
    let (codes, zeros) = (packed.clone(), zero_points.clone());
    let value = move |row: u64, col: u64| {
        let group = if has_map { map[col as usize] } else { col / size };
        let code = number(&codes, bits, |j| row * words(n_cols) * 32 + start(col) + j);
        let zero = if is_symmetric {
            1 << (bits - 1)
        } else {
            // Along the outputs: word `w` of a group is in row `w`.
            number(&zeros, bits, |j| {
                let p = start(row) + j;
                (p / 32 * n_groups + group) * 32 + p % 32
            })
        };
        let at = if strategy == "tensor" { 0 } else { row * n_groups + group };
        value(scale[at as usize], code, i64::from(zero))
    };
    let weights = json!({ "num_bits": bits, "type": "int", "symmetric": is_symmetric, "strategy": strategy,
        "group_size": if strategy == "group" { Some(size) } else { None } });
    let settings = json!({ "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } } });
    let scale_dims: &[u64] = if strategy == "tensor" { &[1] } else { &[n_rows, n_groups] };
    let mut made = Made::new("compressed-tensors", settings, shape, Box::new(value))
        .part(".weight_packed", ElementType::I32, &[n_rows, words(n_cols)], &packed)
        .part(".weight_scale", ty, scale_dims, &scale_bytes)
        .part(".weight_shape", ElementType::I64, &[2], &i64s(&[n_rows as i64, n_cols as i64]));
    if !is_symmetric {
        made = made.part(".weight_zero_point", ElementType::I32, &[words(n_rows), n_groups], &zero_points);
    }
    if has_map {
        made = made.part(".weight_g_idx", ElementType::I32, &[n_cols], &g_idx);
    } else if noise.flip() {
        made = made.part(".weight_g_idx", ElementType::I32, &[n_cols], &i32s(&vec![-1; n_cols as usize]));
    }
    Some(made)
}

/// compressed-tensors, section 7.3: a signed byte per element.
pub fn int_quantized(shape: [u64; 2], noise: &mut Noise) -> Made {
    let [n_rows, n_cols] = shape;
    let (strategy, size) = match noise.below(3) {
        0 => ("tensor", n_cols),
        1 => ("channel", n_cols),
        _ => ("group", 1 + noise.below(n_cols)),
    };
    let n_groups = n_cols.div_ceil(size);
    let is_symmetric = noise.flip();
    let scale_dims = if strategy == "tensor" { vec![1] } else { vec![n_rows, n_groups] };
    let n_scales = scale_dims.iter().product();
    let codes = noise.bytes(n_rows * n_cols);
    let zero_points = noise.bytes(n_scales);
    let (ty, scale, scale_bytes) = scales(noise, n_scales);
    let (bytes, zeros) = (codes.clone(), zero_points.clone());
    let value = move |row: u64, col: u64| {
        let at = if strategy == "tensor" { 0 } else { row * n_groups + col / size };
        let signed = |bytes: &[u8], at: u64| {
            i64::from(number(bytes, 8, |j| at * 8 + j))
                - if number(bytes, 1, |_| at * 8 + 7) == 1 { 256 } else { 0 }
        };
        let zero = if is_symmetric { 0 } else { signed(&zeros, at) };
        scale[at as usize] * (signed(&bytes, row * n_cols + col) - zero) as f32
    };
    let weights = json!({ "num_bits": 8, "type": "int", "symmetric": is_symmetric, "strategy": strategy,
        "group_size": if strategy == "group" { Some(size) } else { None } });
    let settings = json!({ "format": "int-quantized", "quantization_status": "compressed",
        "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } } });
    let made = Made::new("compressed-tensors", settings, shape, Box::new(value))
        .part(".weight", ElementType::I8, &[n_rows, n_cols], &codes)
        .part(".weight_scale", ty, &scale_dims, &scale_bytes);
    if is_symmetric {
        made
    } else {
        made.part(".weight_zero_point", ElementType::I8, &scale_dims, &zero_points)
    }
}
