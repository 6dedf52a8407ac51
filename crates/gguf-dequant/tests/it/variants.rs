//! Layouts and descriptions of several programs for bytes, pairs of nibbles and rounded floats: small matrices whose values
//! are computed here.

use gguf_core::ElementType::{self, Bf16, F8E4M3, F32, I8, I32, I64, U8};
use gguf_testkit::codes::{MODULE, Made, Part, f32s, i32s, i64s, noise};
use serde_json::{Value as Json, json};

use crate::made::{check, layer, opened, read};

const ROWS: u64 = 4;
const COLS: u64 = 32;

/// Code of an element, from -8 to 7.
fn code(row: u64, col: u64) -> i8 {
    ((row * 5 + col * 3) % 16) as i8 - 8
}

/// The codes as signed bytes.
fn bytes() -> Vec<u8> {
    (0..ROWS * COLS).map(|at| code(at / COLS, at % COLS).cast_unsigned()).collect()
}

/// Bytes of E4M3 that are small whole numbers, and their values.
fn e4m3(row: u64, col: u64) -> (u8, f32) {
    [(0x38, 1.0), (0x40, 2.0), (0xb8, -1.0), (0x44, 3.0), (0x00, 0.0)][((row + col * 2) % 5) as usize]
}

fn scale(at: u64) -> f32 {
    (at + 1) as f32 / 8.0
}

fn scales(n: u64) -> Vec<u8> {
    f32s(&(0..n).map(scale).collect::<Vec<_>>())
}

/// Checks a module of a method; parts are suffix, type, shape, bytes.
fn check_parts(
    (method, settings): (&str, Json),
    parts: &[(&str, ElementType, &[u64], &[u8])],
    value: impl Fn(u64, u64) -> f32 + 'static,
) {
    let empty = Made::new(method, settings, [ROWS, COLS], Box::new(value));
    let mut made =
        parts.iter().fold(empty, |made, (suffix, ty, dims, bytes)| made.part(suffix, *ty, dims, bytes));
    if method.is_empty() {
        made.config = json!({});
    }
    check(&made, &mut noise(1));
}

/// Settings of compressed-tensors with these arguments of weights.
fn compressed(format: &str, weights: &Json) -> (&'static str, Json) {
    let group = json!({ "targets": ["Linear"], "weights": weights });
    let activations =
        json!({ "targets": ["Linear"], "weights": null, "input_activations": { "num_bits": 8 } });
    let groups = json!({ "a": activations, "b": group });
    // Rotations of a weight's sides are in the weight.
    let apply = json!([{ "targets": ["Linear"], "location": "weight_input" }]);
    let transforms = json!({ "config_groups": { "R1": { "type": "hadamard", "apply": apply } } });
    (
        "compressed-tensors",
        json!({ "format": format, "config_groups": groups, "transform_config": transforms }),
    )
}

#[test]
fn columns_have_the_scales_of_their_groups() {
    // Two groups, in turn.
    let order = i32s(&(0..32).map(|col| col % 2).collect::<Vec<_>>());
    let fp8: Vec<u8> = (0..ROWS * COLS).map(|at| e4m3(at / COLS, at % COLS).0).collect();
    let settings = |ty: &str| {
        let weights =
            json!({ "num_bits": 8, "type": ty, "strategy": "group", "group_size": 16, "actorder": "group" });
        compressed("naive-quantized", &weights)
    };
    let rest: [(&str, ElementType, &[u64], &[u8]); 2] =
        [(".weight_scale", F32, &[4, 2], &scales(8)), (".weight_g_idx", I32, &[32], &order)];
    check_parts(settings("int"), &[(".weight", I8, &[4, 32], &bytes()), rest[0], rest[1]], |row, col| {
        f32::from(code(row, col)) * scale(row * 2 + col % 2)
    });
    check_parts(settings("FLOAT"), &[(".weight", F8E4M3, &[4, 32], &fp8), rest[0], rest[1]], |row, col| {
        e4m3(row, col).1 * scale(row * 2 + col % 2)
    });
}

#[test]
fn arguments_have_defaults_and_any_case() {
    let codes = bytes();
    let parts = |dims: &'static [u64]| {
        let n = dims.iter().product();
        [(".weight", I8, &[4u64, 32][..], codes.clone()), (".weight_scale", F32, dims, scales(n))]
    };
    let check = |weights: Json, dims: &'static [u64], at: fn(u64, u64) -> u64| {
        let parts = parts(dims);
        let parts = parts.each_ref().map(|(suffix, ty, dims, bytes)| (*suffix, *ty, *dims, &bytes[..]));
        check_parts(compressed("int-quantized", &weights), &parts, move |row, col| {
            f32::from(code(row, col)) * scale(at(row, col))
        });
    };
    check(json!({}), &[1], |_, _| 0);
    check(json!({ "group_size": -1 }), &[4, 1], |row, _| row);
    check(json!({ "group_size": 16 }), &[4, 2], |row, col| row * 2 + col / 16);
    check(json!({ "strategy": "CHANNEL", "type": "INT" }), &[4, 1], |row, _| row);
    check(json!({ "strategy": "block", "block_structure": [3, 20] }), &[2, 2], |row, col| {
        row / 3 * 2 + col / 20
    });
}

#[test]
fn a_zero_point_of_the_whole_matrix_is_not_packed() {
    let words: Vec<i32> = (0..ROWS * COLS / 8)
        .map(|word| {
            (0..8)
                .fold(0u32, |all, k| {
                    let at = word * 8 + k;
                    all | u32::from((code(at / COLS, at % COLS) + 8).cast_unsigned()) << (4 * k)
                })
                .cast_signed()
        })
        .collect();
    let settings = compressed("pack-quantized", &json!({ "num_bits": 4, "symmetric": false }));
    let parts: [(&str, ElementType, &[u64], &[u8]); 4] = [
        (".weight_packed", I32, &[4, 4], &i32s(&words)),
        (".weight_scale", F32, &[1], &scales(1)),
        (".weight_shape", I64, &[2], &i64s(&[4, 32])),
        (".weight_zero_point", I8, &[1], &[3]),
    ];
    check_parts(settings, &parts, |row, col| f32::from(code(row, col) - 3) * scale(0));
}

#[test]
fn signed_bytes_have_scales_by_row_or_by_block() {
    let codes = (".weight", I8, &[4u64, 32][..], &bytes()[..]);
    let by_row = |row, col| f32::from(code(row, col)) * scale(row);
    check_parts(("w8a8_int8", json!({})), &[codes, (".weight_scale", F32, &[4, 1], &scales(4))], by_row);
    for algorithm in ["W8A8_SQ_PER_CHANNEL", "w8a16", "MIXED_PRECISION"] {
        let settings = ("modelopt", json!({ "quant_algo": algorithm }));
        check_parts(settings, &[codes, (".weight_scale", F32, &[4], &scales(4))], by_row);
    }
    let settings = ("blockwise_int8", json!({ "weight_block_size": [2, 16] }));
    check_parts(settings, &[codes, (".weight_scale_inv", F32, &[2, 2], &scales(4))], |row, col| {
        f32::from(code(row, col)) * scale(row / 2 * 2 + col / 16)
    });
}

#[test]
fn pairs_of_rows_share_a_byte() {
    let nibble = |row, col| code(row, col).cast_unsigned() & 15;
    let pairs: Vec<u8> = (0..2)
        .flat_map(|pair| (0..COLS).map(move |col| nibble(2 * pair, col) | nibble(2 * pair + 1, col) << 4))
        .collect();
    let settings = ("modelopt", json!({ "quant_algo": "W4A16_AWQ" }));
    let parts: [(&str, ElementType, &[u64], &[u8]); 2] =
        [(".weight", U8, &[2, 32], &pairs), (".weight_scale", F32, &[4, 2], &scales(8))];
    check_parts(settings, &parts, |row, col| f32::from(code(row, col)) * scale(row * 2 + col / 16));
}

#[test]
fn eight_bit_floats_have_the_scales_of_any_program() {
    let codes: Vec<u8> = (0..ROWS * COLS).map(|at| e4m3(at / COLS, at % COLS).0).collect();
    let codes = (".weight", F8E4M3, &[4u64, 32][..], &codes[..]);
    let whole = |row, col| e4m3(row, col).1 * scale(0);
    let by_row = |row, col| e4m3(row, col).1 * scale(row);
    // A byte for 32 columns: 2^-1, 2^0, 2^1, 2^2.
    let exponents = |row: u64, col| e4m3(row, col).1 * [0.5, 1.0, 2.0, 4.0][row as usize];
    let mx = (".weight_scale", U8, &[4u64, 1][..], &[126u8, 127, 128, 129][..]);
    let quark =
        json!({ "global_quant_config": { "weight": { "dtype": "fp8_e4m3", "qscheme": "per_tensor" } } });
    let one = scales(1);
    check_parts(("quark", quark), &[codes, (".weight_scale", F32, &[], &one)], whole);
    check_parts(("", json!({})), &[codes, (".qscale_weight", F32, &[], &one)], whole);
    let blocks = ("modelopt", json!({ "quant_algo": "fp8_pb_wo" }));
    check_parts(blocks, &[codes, (".weight_scale", F32, &[1, 1, 1, 1], &one)], whole);
    check_parts(("w8a8_fp8", json!({})), &[codes, (".weight_scale", F32, &[4, 1], &scales(4))], by_row);
    let fp8_static = ("auto-round", json!({ "packing_format": "auto_round:fp8_static", "bits": 8 }));
    check_parts(fp8_static, &[codes, (".weight_scale", F32, &[4], &scales(4))], by_row);
    let llm_compressor = ("auto-round", json!({ "packing_format": "auto_round:llm_compressor", "bits": 8 }));
    for settings in [("", json!({})), ("modelopt", json!({ "quant_algo": "MXFP8" })), llm_compressor] {
        check_parts(settings, &[codes, mx], exponents);
    }
}

#[test]
fn what_is_computed_at_run_time_is_refused_by_name() {
    let refusal = |method, settings| {
        let made = Made::new(method, settings, [1, 1], Box::new(|_, _| 0.0));
        layer(&made.part(".weight", F32, &[1, 1], &f32s(&[1.0])), true).err().map(|error| error.to_string())
    };
    for place in ["input", "output", "k_cache", "q_attn"] {
        let (method, mut settings) = compressed("dense", &json!({}));
        settings["transform_config"]["config_groups"]["R1"]["apply"][0]["location"] = json!(place);
        assert!(
            refusal(method, settings)
                .unwrap()
                .contains(&format!("`transform_config`: unsupported variant `{place}`"))
        );
    }
    let (method, settings) = compressed("dense", &json!({}));
    assert_eq!(refusal(method, settings), None);
    let norm = refusal("bitnet", json!({ "linear_class": "autobitlinear", "use_rms_norm": true })).unwrap();
    assert!(norm.contains("`use_rms_norm`: unsupported variant `true`"), "{norm}");
    // Only the cache is quantized.
    assert_eq!(refusal("modelopt", json!({ "kv_cache_scheme": { "num_bits": 8 } })), None);
}

#[test]
fn floats_of_bitnet_are_rounded_as_they_are_used() {
    let settings = || json!({ "linear_class": "autobitlinear", "quantization_mode": "online" });
    // Magnitudes of 0.5, 1 and 3 in turn: their mean is 1.5, of which 0.5 is a third.
    let value = |at: u64| [0.5f32, -1.0, 3.0][(at % 3) as usize];
    let floats: Vec<f32> = (0..12).map(value).collect();
    let rounded = |row, col| [0.0, -1.5, 1.5][((row * 4 + col) % 3) as usize];
    let made = Made::new("bitnet", settings(), [3, 4], Box::new(rounded)).part(
        ".weight",
        F32,
        &[3, 4],
        &f32s(&floats),
    );
    check(&made, &mut noise(2));
    let stored = |made: &Made| {
        let source = layer(made, true).unwrap();
        read(&*source, 0, 0, 12).unwrap()
    };
    // Its own class rounds by its card; and modules to skip are linear layers of floats.
    let mut own = Made::new("bitnet", settings(), [3, 4], Box::new(rounded)).part(
        ".weight",
        F32,
        &[3, 4],
        &f32s(&floats),
    );
    own.config["architectures"] = json!(["BitNetForCausalLM"]);
    assert_eq!(stored(&own), floats);
    let mut skipped = Made::new("bitnet", settings(), [3, 4], Box::new(rounded)).part(
        ".weight",
        F32,
        &[3, 4],
        &f32s(&floats),
    );
    skipped.config["quantization_config"]["modules_to_not_convert"] = json!(["up_proj"]);
    assert_eq!(stored(&skipped), floats);
}

#[test]
fn scales_left_beside_plain_floats_are_passed_over() {
    for config in [json!({ "quantization_config": { "quant_method": "fp8" } }), json!({})] {
        let part = |suffix: &str, ty, dims: &[u64], bytes: Vec<u8>| Part {
            name: format!("{MODULE}{suffix}"),
            ty,
            dims: dims.to_vec(),
            bytes,
        };
        let mut made = Made::new("", json!({}), [2, 1], Box::new(|_, _| 0.0));
        made.parts = vec![
            part(".weight", Bf16, &[2, 1], vec![0x80, 0x3f, 0, 0x40]),
            part(".weight_scale_inv", F32, &[1, 1], f32s(&[7.0])),
        ];
        made.config = config;
        let found = opened(&made).unwrap();
        assert_eq!(found.source.weights().len(), 1);
        let wanted = format!("`{MODULE}.weight_scale_inv` is passed over: its weight is plain floats");
        assert!(found.warnings.iter().any(|text| text.contains(&wanted)), "{:?}", found.warnings);
        let mut stored = [0; 4];
        found.source.read_elems(0, 0, &mut stored).unwrap();
        assert_eq!(stored, [0x80, 0x3f, 0, 0x40]);
    }
}
