//! Generated checkpoints with random damage: never a panic, and if the damage allows no other reading, an error or the
//! right values. Headers that declare more than the file holds cost no memory.

use gguf_foundry::core::{ElementType, Shape};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::floats::{Grid, fp8, mxfp4, mxfp8, nvfp4};
use super::made::{MODULE, Made, Noise, Part, i64s, layer, noise, read, write};
use super::packed::{awq, gptq, int_quantized, pack_quantized};
use super::stacks::{Packed, Scales, fp8_stack, nvfp4_stack};
use super::tools::{bitnet, eight_bits, four_bits, hqq, quanto_bytes, quanto_packed, sparse};
use crate::support::programs;

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
    all
}

/// Optional parts of a module.
const OPTIONAL: &[&str] = &[".g_idx", ".weight_g_idx", ".weight_format"];

/// Expected result after damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The module cannot be read any more.
    Nothing,
    /// A matrix of the same shape must have the same values.
    Same,
    /// Another checkpoint, which may be valid.
    Other,
}

/// Number of bytes of a part by its shape, if it is small.
fn n_bytes(part: &Part) -> Option<u64> {
    let n_elems = part.dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))?;
    Some(n_elems).filter(|&n| n < 1 << 16).map(|n| n * part.ty.bytes().unwrap_or(1) as u64)
}

/// Extreme numbers.
fn number(noise: &mut Noise) -> i64 {
    let list = [0, 1, -1, 2, 3, 5, 7, 16, 33, 1 << 20, 1 << 40, -(1 << 40), i64::MAX, i64::MIN];
    list[noise.below(list.len() as u64) as usize]
}

/// Collects all numbers of a JSON value.
fn numbers<'a>(value: &'a mut Json, found: &mut Vec<&'a mut Json>) {
    match value {
        Json::Array(list) => list.iter_mut().for_each(|value| numbers(value, found)),
        Json::Object(map) => map.values_mut().for_each(|value| numbers(value, found)),
        Json::Number(_) => found.push(value),
        _ => {}
    }
}

fn damage(made: &mut Made, noise: &mut Noise) -> Left {
    let at = noise.below(made.parts.len() as u64) as usize;
    match noise.below(7) {
        0 => {
            let part = made.parts.remove(at);
            let is_optional = OPTIONAL.iter().any(|suffix| part.name.ends_with(suffix));
            if is_optional { Left::Other } else { Left::Nothing }
        }
        1 => {
            // One row or column more or less.
            let part = &mut made.parts[at];
            let Some(axis) = (part.dims.len() as u64).checked_sub(1).map(|n| noise.below(n + 1)) else {
                return Left::Same;
            };
            let n_dims = part.dims.len();
            let dim = &mut part.dims[axis as usize];
            *dim = if noise.flip() { *dim + 1 } else { dim.saturating_sub(1) };
            // One scale may apply to all rows, and one word fewer may be codes that cross word boundaries.
            let is_words = axis == 1 && part.name.ends_with(".weight_packed");
            // One more row of block scales may come from two machines that each had a part of the rows. A stack's
            // scales per matrix may become scales per two rows or columns.
            let is_float = matches!(part.ty, ElementType::F32 | ElementType::F16 | ElementType::Bf16);
            let is_scale = is_float && part.name.contains("_scale");
            let is_regrouped = is_scale && (axis == 0 && n_dims == 2 || n_dims == 3);
            let left = if *dim == 1 || is_words || is_regrouped { Left::Other } else { Left::Same };
            let Some(n_bytes) = n_bytes(part) else { return Left::Other };
            part.bytes.resize(n_bytes as usize, 0);
            left
        }
        2 => {
            // Another element type for the same number of elements.
            let part = &mut made.parts[at];
            let types =
                [ElementType::F64, ElementType::I64, ElementType::I16, ElementType::Bool, ElementType::U32];
            part.ty = types[noise.below(types.len() as u64) as usize];
            let Some(n_bytes) = n_bytes(part) else { return Left::Other };
            part.bytes = noise.bytes(n_bytes);
            Left::Other
        }
        3 => {
            // Any content: indices out of range, scales that are not finite, sizes of zero.
            let part = &mut made.parts[at];
            let n = part.bytes.len() as u64;
            part.bytes = match (noise.below(3), part.ty) {
                (0, ElementType::I64) => (0..n / 8).flat_map(|_| number(noise).to_le_bytes()).collect(),
                (0, ElementType::I32) => {
                    (0..n / 4).flat_map(|_| (number(noise) as i32).to_le_bytes()).collect()
                }
                (1, _) => vec![0xff; n as usize],
                _ => noise.bytes(n),
            };
            Left::Other
        }
        4 => {
            // Any number of empty rows or columns.
            let part = &mut made.parts[at];
            if part.bytes.is_empty() {
                return Left::Other;
            }
            let huge = 1 << (20 + noise.below(42));
            part.dims = match noise.below(4) {
                0 => vec![0, huge],
                1 => vec![huge, 0],
                2 => vec![huge, 0, 3],
                _ => vec![0],
            };
            part.bytes.clear();
            Left::Nothing
        }
        5 => {
            let mut found = Vec::new();
            numbers(&mut made.config, &mut found);
            if found.is_empty() {
                return Left::Same;
            }
            let index = noise.below(found.len() as u64) as usize;
            *found.swap_remove(index) = match noise.below(4) {
                0 => json!(null),
                1 => json!(1.5),
                2 => json!("4"),
                _ => json!(number(noise)),
            };
            Left::Other
        }
        _ => {
            // A scale that is not finite.
            let suffixes = ["scale", "scales", "scale_inv", "SCB", "absmax", "weight_scale_2"];
            let scale = made.parts.iter_mut().find(|part| {
                part.ty == ElementType::F32 && suffixes.iter().any(|suffix| part.name.ends_with(suffix))
            });
            let Some(part) = scale else { return Left::Same };
            let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][noise.below(3) as usize];
            part.bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|bytes| *bytes = bad.to_le_bytes());
            Left::Nothing
        }
    }
}

/// Opens the damaged checkpoint, and reads all of it.
fn survey(made: &Made, left: Left, noise: &mut Noise) {
    let place = || {
        let parts = made.parts.iter().map(|part| format!("{} {} {:?}", part.name, part.ty, part.dims));
        format!("{left:?} of {}: {:?}", made.config, parts.collect::<Vec<_>>())
    };
    // The container refuses shapes that overflow, or for which the file is too short.
    let is_whole = |part: &Part| {
        let shape = Shape::new(part.dims.clone());
        shape.is_some_and(|shape| n_bytes(part) == Some(part.bytes.len() as u64) || shape.n_elems() == 0)
    };
    if !made.parts.iter().all(is_whole) {
        return;
    }
    let Ok(source) = layer(made, noise.flip()) else { return };
    let mut n_failed = 0;
    for (index, meta) in source.weights().iter().enumerate() {
        let n = meta.shape.n_elems();
        let n_bytes: usize = made.parts.iter().map(|part| part.bytes.len()).sum();
        assert!(n <= 64 * n_bytes as u64, "{}", place());
        let values = if meta.ty == ElementType::F32 { read(&*source, index, 0, n) } else { Ok(Vec::new()) };
        let Ok(values) = values else {
            n_failed += 1;
            continue;
        };
        if let Ok(packings) = source.packings(index) {
            for packing in packings.iter().filter(|packing| packing.ty.is_quantized()) {
                let n_blocks = n as usize / packing.ty.block_elems();
                let mut blocks = vec![0; n_blocks * packing.ty.block_bytes()];
                n_failed += usize::from(source.read_packed(index, packing.ty, 0, &mut blocks).is_err());
            }
        }
        let is_same = meta.name == made.name
            && meta.ty == ElementType::F32
            && (meta.shape.n_rows(), meta.shape.n_cols()) == (made.n_rows, made.n_cols);
        if left == Left::Same && is_same {
            for (at, found) in (0..).zip(values) {
                let expected = (made.value)(at / made.n_cols, at % made.n_cols);
                let is_equal = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(is_equal, "{}: {found}, not {expected}", place());
            }
        }
    }
    // A module that lost a part may now be a plain tensor and a left-over part, but not a weight.
    let is_read = source.weights().iter().any(|meta| meta.name == made.name);
    assert!(left != Left::Nothing || !is_read || n_failed > 0, "{} was read", place());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn damaged_checkpoints_are_errors_or_read_right(seed: u64) {
        let noise = &mut noise(seed);
        for mut made in all(noise) {
            let left = damage(&mut made, noise);
            survey(&made, left, noise);
            // Again, for combinations of damages.
            damage(&mut made, noise);
            survey(&made, Left::Other, noise);
        }
    }
}

/// 17 zero points of 7 bits take four words, or five if none crosses a word boundary. With an additional word they
/// would be read in the other layout, with wrong values.
#[test]
fn zero_points_lie_as_their_codes_do() {
    let noise = &mut noise(3);
    let is_dense = |made: &Made| {
        let dims =
            |suffix: &str| made.parts.iter().find(|part| part.name.ends_with(suffix)).map(|part| &part.dims);
        dims(".weight_packed") == Some(&vec![17, 6]) && dims(".weight_zero_point") == Some(&vec![4, 1])
    };
    let mut cases = std::iter::repeat_with(|| pack_quantized(7, [17, 26], noise)).flatten().filter(is_dense);
    let mut made = cases.next().unwrap();
    assert!(layer(&made, true).is_ok(), "{}", made.config);
    let zeros = made.parts.iter_mut().find(|part| part.name.ends_with(".weight_zero_point")).unwrap();
    zeros.dims[0] = 5;
    zeros.bytes.extend([0; 4]);
    let error = layer(&made, true).map(|_| ()).unwrap_err();
    let expected =
        format!("tensor `{MODULE}.weight_zero_point`: shape is [5, 1], expected [4, 1], as the codes lie");
    assert_eq!(error.to_string(), expected);
}

/// Numbers in small tensors and in the configuration that would take terabytes: the program ends with an error and uses
/// little memory.
#[test]
#[cfg(target_os = "linux")]
fn claims_cost_no_memory() {
    let noise = &mut noise(11);
    let huge = 1i64 << 40;
    let tensor = |made: &mut Made, suffix: &str, values: [i64; 2]| {
        let name = format!("{MODULE}{suffix}");
        let part = made.parts.iter_mut().find(|part| part.name == name).unwrap();
        part.bytes = i64s(&values);
    };
    let mut cases = Vec::new();
    for values in [[huge, huge], [huge, 32], [8, huge], [1, i64::MAX], [-1, 32]] {
        let mut packed =
            std::iter::repeat_with(|| pack_quantized(4, [8, 32], noise)).flatten().next().unwrap();
        tensor(&mut packed, ".weight_shape", values);
        let mut reshaped = hqq(4, [8, 32], noise);
        tensor(&mut reshaped, ".shape", values);
        let mut masked = sparse([8, 32], noise, false);
        tensor(&mut masked, ".weight.shape", values);
        cases.extend([packed, reshaped, masked]);
        let mut blocks = four_bits([8, 32], noise);
        let state = blocks.parts.iter_mut().find(|part| part.name.contains("quant_state")).unwrap();
        state.bytes = json!({ "blocksize": 64, "shape": values }).to_string().into_bytes();
        state.dims = vec![state.bytes.len() as u64];
        cases.push(blocks);
    }
    for made in &cases {
        let dir = tempfile::tempdir().unwrap();
        let mut config = made.config.clone();
        config["architectures"] = json!(["LlamaForCausalLM"]);
        write(&config, &made.parts, dir.path());
        let mut command = programs::limited("ulimit -v 262144", "gguf-convert", dir.path());
        command.arg("hf2gguf").arg(dir.path()).arg("-o").arg(dir.path().join("out.gguf")).arg("--dry-run");
        programs::finish(&mut command).says(1, MODULE);
    }
}
