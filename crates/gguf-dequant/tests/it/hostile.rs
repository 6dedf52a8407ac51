//! Generated checkpoints with random damage: never a panic, and if the damage allows no other reading, an error or the
//! right values. Headers that declare more than the file holds cost no memory.

use gguf_core::{ElementType, Shape};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use gguf_testkit::codes::packed::pack_quantized;
use gguf_testkit::codes::{MODULE, Made, Noise, Part, all, noise};

use crate::made::{layer, read};

/// Optional parts of a module.
const OPTIONAL: &[&str] = &[".g_idx", ".weight_g_idx", ".weight_format", ".global_scale"];

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
