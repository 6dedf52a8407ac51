//! Layouts of single tools, compared with test implementations that read single bits: bitsandbytes, HQQ, quanto,
//! BitNet, and the bit masks of compressed-tensors.

use gguf_core::ElementType;
use serde_json::json;

use super::{Made, Noise, bit, f32s, i64s, number, scales, short_scale};

/// bitsandbytes with 4 bits: blocks of the flattened matrix, high nibble first, bytes stored as any element type.
pub fn four_bits(shape: [u64; 2], noise: &mut Noise) -> Made {
    let [n_rows, n_cols] = shape;
    let n = n_rows * n_cols;
    let block = 1 + noise.below(2 * n_cols);
    let (n_blocks, n_bytes) = (n.div_ceil(block), n.div_ceil(2));
    let codes = noise.bytes(n_bytes);
    let map: Vec<f32> = (0..16).map(|_| short_scale(noise)).collect();
    let nested_map: Vec<f32> = (0..256).map(|_| short_scale(noise)).collect();
    let nested_block = 1 + noise.below(9);
    let nested_absmax: Vec<f32> = (0..n_blocks.div_ceil(nested_block)).map(|_| short_scale(noise)).collect();
    let offset = short_scale(noise);
    let is_nested = noise.flip();
    let absmax: Vec<f32> = (0..n_blocks).map(|_| short_scale(noise)).collect();
    let absmax_codes = noise.bytes(n_blocks);
    let mut state =
        json!({ "quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": [n_rows, n_cols] });
    if is_nested {
        state["nested_blocksize"] = json!(nested_block);
        state["nested_offset"] = json!(offset);
    }
    let state = state.to_string().into_bytes();
    let (ty, width) = [(ElementType::U8, 1), (ElementType::Bf16, 2), (ElementType::F32, 4)]
        .into_iter()
        .filter(|row| n_bytes % row.1 == 0)
        .nth(noise.below(3) as usize)
        .unwrap_or((ElementType::U8, 1));
    let (bytes, book, direct, direct_codes) =
        (codes.clone(), map.clone(), absmax.clone(), absmax_codes.clone());
    let (outer_book, outer) = (nested_map.clone(), nested_absmax.clone());
    let value = move |row: u64, col: u64| {
        let k = row * n_cols + col;
        let code = number(&bytes, 4, |j| k / 2 * 8 + 4 * (1 - k % 2) + j);
        let b = (k / block) as usize;
        let scale = if is_nested {
            let product = outer_book[usize::from(direct_codes[b])] * outer[b / nested_block as usize];
            product + offset
        } else {
            direct[b]
        };
        book[code as usize] * scale
    };
    let mut made = Made::new("bitsandbytes", json!({ "load_in_4bit": true }), shape, Box::new(value))
        .part(".weight", ty, &[n_bytes / width, 1], &codes)
        .part(".weight.quant_map", ElementType::F32, &[16], &f32s(&map))
        .part(".weight.quant_state.bitsandbytes__nf4", ElementType::U8, &[state.len() as u64], &state);
    if is_nested {
        made = made
            .part(".weight.absmax", ElementType::U8, &[n_blocks], &absmax_codes)
            .part(".weight.nested_quant_map", ElementType::F32, &[256], &f32s(&nested_map))
            .part(
                ".weight.nested_absmax",
                ElementType::F32,
                &[nested_absmax.len() as u64],
                &f32s(&nested_absmax),
            );
    } else {
        made = made.part(".weight.absmax", ElementType::F32, &[n_blocks], &f32s(&absmax));
    }
    made
}

/// Signed byte from its bits.
fn signed(bytes: &[u8], at: u64) -> i32 {
    number(bytes, 7, |j| at * 8 + j).cast_signed() - 128 * bit(bytes, at * 8 + 7).cast_signed()
}

/// bitsandbytes with 8 bits: `(code · SCB) · (1/127)`.
pub fn eight_bits(shape: [u64; 2], noise: &mut Noise) -> Made {
    let [n_rows, n_cols] = shape;
    let codes = noise.bytes(n_rows * n_cols);
    let scale: Vec<f32> = (0..n_rows).map(|_| short_scale(noise)).collect();
    let (bytes, scb) = (codes.clone(), scale.clone());
    let value = move |row: u64, col: u64| {
        let product = signed(&bytes, row * n_cols + col) as f32 * scb[row as usize];
        product * 0.007_874_015_7
    };
    Made::new("bitsandbytes", json!({ "load_in_8bit": true }), shape, Box::new(value))
        .part(".weight", ElementType::I8, &[n_rows, n_cols], &codes)
        .part(".SCB", ElementType::F32, &[n_rows], &f32s(&scale))
        .part(".weight_format", ElementType::U8, &[], &[0])
}

/// HQQ: fields from the high end of a word are blocks of rows of the reshaped matrix.
pub fn hqq(bits: u64, shape: [u64; 2], noise: &mut Noise) -> Made {
    let [n_rows, n_cols] = shape;
    let n = n_rows * n_cols;
    let divisors: Vec<u64> = (1..=n).filter(|d| n % d == 0).collect();
    let n_groups = divisors[noise.below(divisors.len() as u64) as usize];
    let is_by_row = noise.flip();
    let (height, width) = if is_by_row { (n_groups, n / n_groups) } else { (n / n_groups, n_groups) };
    let (per_word, word_bits) = if bits == 3 { (10, 32) } else { (8 / bits, 8) };
    let n_packed = height.div_ceil(per_word);
    let words = noise.bytes(n_packed * width * word_bits / 8);
    let (scale_type, scale, scale_bytes) = scales(noise, n_groups);
    let (zero_type, zero, zero_bytes) = scales(noise, n_groups);
    let bytes = words.clone();
    let value = move |row: u64, col: u64| {
        let k = row * n_cols + col;
        let (line, column) = (k / width, k % width);
        let low = bits * (per_word - 1 - line / n_packed);
        let code = number(&bytes, bits, |j| (line % n_packed * width + column) * word_bits + low + j);
        let group = (if is_by_row { line } else { column }) as usize;
        let difference = code as f32 - zero[group];
        difference * scale[group]
    };
    let word_type = if bits == 3 { ElementType::I32 } else { ElementType::U8 };
    let dims = if is_by_row { [n_groups, 1] } else { [1, n_groups] };
    let weight = json!({ "nbits": bits, "group_size": 64, "axis": i32::from(is_by_row) });
    Made::new("hqq", json!({ "quant_config": { "weight_quant_params": weight } }), shape, Box::new(value))
        .part(".W_q", word_type, &[n_packed, width], &words)
        .part(".scale", scale_type, &dims, &scale_bytes)
        .part(".zero", zero_type, &dims, &zero_bytes)
        .part(".nbits", ElementType::I64, &[], &i64s(&[bits as i64]))
        .part(".axis", ElementType::I64, &[], &i64s(&[i64::from(is_by_row)]))
        .part(".shape", ElementType::I64, &[2], &i64s(&[n_rows as i64, n_cols as i64]))
}

/// quanto with 2 or 4 bits: fields from the low end, `scale · code - shift`, or `scale · (code - shift)` in old files.
pub fn quanto_packed(bits: u64, shape: [u64; 2], noise: &mut Noise) -> Made {
    let [n_rows, n_cols] = shape;
    let n = n_rows * n_cols;
    let divisors: Vec<u64> = (1..=n).filter(|d| n % d == 0).collect();
    let n_groups = divisors[noise.below(divisors.len() as u64) as usize];
    let size = n / n_groups;
    let n_packed = n_groups.div_ceil(8 / bits);
    let codes = noise.bytes(n_packed * size);
    let (scale_type, scale, scale_bytes) = scales(noise, n_groups);
    let is_old = noise.flip();
    let old_shift = noise.bytes(n_groups);
    let (shift_type, mut shift, mut shift_bytes) = scales(noise, n_groups);
    if is_old {
        shift = (0..n_groups).map(|group| signed(&old_shift, group) as f32).collect();
        shift_bytes = old_shift;
    }
    let bytes = codes.clone();
    let value = move |row: u64, col: u64| {
        let k = row * n_cols + col;
        let (line, column) = (k / size, k % size);
        let low = bits * (line / n_packed);
        let code = number(&bytes, bits, |j| (line % n_packed * size + column) * 8 + low + j) as f32;
        let (scale, shift) = (scale[line as usize], shift[line as usize]);
        let product = scale * code;
        if is_old { scale * (code - shift) } else { product - shift }
    };
    let shift_type = if is_old { ElementType::I8 } else { shift_type };
    Made::new("quanto", json!({ "weights": format!("int{bits}") }), shape, Box::new(value))
        .part(".weight._data._data", ElementType::U8, &[n_packed, size], &codes)
        .part(".weight._scale", scale_type, &[n_groups, 1], &scale_bytes)
        .part(".weight._shift", shift_type, &[n_groups, 1], &shift_bytes)
}

/// quanto with a byte per element.
pub fn quanto_bytes(shape: [u64; 2], noise: &mut Noise) -> Made {
    let [n_rows, n_cols] = shape;
    let codes = noise.bytes(n_rows * n_cols);
    let (ty, scale, scale_bytes) = scales(noise, n_rows);
    let bytes = codes.clone();
    let value = move |row: u64, col: u64| scale[row as usize] * signed(&bytes, row * n_cols + col) as f32;
    Made::new("quanto", json!({ "weights": "int8" }), shape, Box::new(value))
        .part(".weight._data", ElementType::I8, &[n_rows, n_cols], &codes)
        .part(".weight._scale", ty, &[n_rows, 1], &scale_bytes)
}

/// BitNet: bits `2 k` of byte row `r` hold output row `k · out / 4 + r`.
pub fn bitnet(packed_rows: u64, n_cols: u64, noise: &mut Noise) -> Made {
    let code = |noise: &mut Noise| (0..4).map(|k| (noise.below(3) as u8) << (2 * k)).sum::<u8>();
    let codes: Vec<u8> = (0..packed_rows * n_cols).map(|_| code(noise)).collect();
    let scale = (1 + noise.below(1000)) as f32 / 256.0;
    let is_divisor = noise.flip();
    let bytes = codes.clone();
    let value = move |row: u64, col: u64| {
        let at = (row % packed_rows * n_cols + col) * 8 + 2 * (row / packed_rows);
        let ternary = number(&bytes, 2, |j| at + j).cast_signed() - 1;
        let one = if is_divisor { 1.0 / scale } else { scale };
        ternary as f32 * one
    };
    let class = if is_divisor { "bitlinear" } else { "autobitlinear" };
    Made::new("bitnet", json!({ "linear_class": class }), [4 * packed_rows, n_cols], Box::new(value))
        .part(".weight", ElementType::U8, &[packed_rows, n_cols], &codes)
        .part(".weight_scale", ElementType::F32, &[1], &f32s(&[scale]))
}

/// Bit mask with the values whose bit is set; with `is_even` half of every row is set.
pub fn sparse(shape: [u64; 2], noise: &mut Noise, is_even: bool) -> Made {
    let (n_rows, n_cols) = (shape[0], if is_even { shape[1].next_multiple_of(4) } else { shape[1] });
    let row_bytes = n_cols.div_ceil(8);
    let mut mask = vec![0u8; (n_rows * row_bytes) as usize];
    let mut offsets = vec![0];
    for row in 0..n_rows {
        let mut n_set = 0;
        for col in 0..n_cols {
            // Two of every four columns, or a random selection.
            let pair = (row * 7 + col / 4 * 3) % 3;
            let is_set = if is_even { col % 4 == 0 || col % 4 == 1 + pair } else { noise.flip() };
            if is_set {
                mask[(row * row_bytes + col / 8) as usize] |= 1 << (col % 8);
                n_set += 1;
            }
        }
        offsets.push(offsets[row as usize] + n_set);
    }
    let n_values = offsets[n_rows as usize] as u64;
    let (ty, values, bytes) = scales(noise, n_values);
    let (bits, starts) = (mask.clone(), offsets.clone());
    let value = move |row: u64, col: u64| {
        let before = (0..col).filter(|&col| bit(&bits, row * row_bytes * 8 + col) == 1).count();
        let is_set = bit(&bits, row * row_bytes * 8 + col) == 1;
        if is_set { values[starts[row as usize] as usize + before] } else { 0.0 }
    };
    let format = if is_even { "sparse-24-bitmask" } else { "sparse-bitmask" };
    let prefix = if is_even { "" } else { ".weight" };
    let settings = json!({ "sparsity_config": { "format": format } });
    let dims: &[u64] = if is_even { &[n_rows, n_cols / 2] } else { &[n_values] };
    let shape_dims: &[u64] = if is_even { &[2, 1] } else { &[2] };
    let made = Made::new("compressed-tensors", settings, [n_rows, n_cols], Box::new(value))
        .part(&format!("{prefix}.compressed"), ty, dims, &bytes)
        .part(&format!("{prefix}.bitmask"), ElementType::U8, &[n_rows, row_bytes], &mask)
        .part(
            &format!("{prefix}.shape"),
            ElementType::I64,
            shape_dims,
            &i64s(&[n_rows as i64, n_cols as i64]),
        );
    if is_even {
        return made;
    }
    let starts = i64s(&offsets[..n_rows as usize]);
    made.part(".weight.row_offsets", ElementType::I64, &[n_rows], &starts)
}
