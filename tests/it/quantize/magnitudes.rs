//! Weights too large or too small for their type, and missing importance: messages of the programs.

use std::path::Path;

use gguf_foundry::core::GgmlType;

use super::{run as quantize, write_two_layers};
use crate::support::programs::run;
use crate::support::tiers::Tier;
use crate::testkit::checkpoints::Safetensors;
use crate::testkit::memory::{ComputedTensors, tensor_meta, write_source};
use crate::testkit::models::metadata;

const N_COLS: usize = 512;
const N_ROWS: usize = 8;
const DOWN: &str = "blk.0.ffn_down.weight";

/// Writes a model of two matrices, the second with one row of another magnitude.
pub(crate) fn model(path: &Path, row: usize, magnitude: f32) {
    let fill = |tensor: usize, first_row: u64, out: &mut [u8]| {
        for (at, bytes) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let is_other = tensor == 1 && first_row as usize + at / N_COLS == row;
            let scale = if is_other { magnitude } else { 0.1 };
            // The first element of each row has the row's magnitude, the others are smaller.
            let share = if at % N_COLS == 0 { 1.0 } else { ((at * 37 % 101) as f32 - 50.0) / 60.0 };
            *bytes = (share * scale).to_le_bytes();
        }
    };
    let meta = |name: &str| tensor_meta(name, &[N_ROWS as u64, N_COLS as u64], GgmlType::F32);
    let tensors = vec![meta("blk.0.attn_q.weight"), meta(DOWN)];
    let metadata = metadata("nobody", [("block_count", 1u32)]);
    write_source(path, &metadata, &ComputedTensors::new(tensors, fill));
}

/// Writes an importance matrix in the older format.
fn imatrix(path: &Path, values: &[f32]) {
    let mut bytes = 1i32.to_le_bytes().to_vec();
    bytes.extend((DOWN.len() as i32).to_le_bytes());
    bytes.extend(DOWN.bytes());
    bytes.extend(1i32.to_le_bytes());
    bytes.extend((values.len() as i32).to_le_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    fs_err::write(path, bytes).unwrap();
}

/// Output of a program with `--json`.
fn json(program: &str, dir: &Path, args: &[&str]) -> serde_json::Value {
    run(program, dir, &[args, &["--json"]].concat()).ok().json()
}

#[test]
fn a_row_too_large_for_its_type_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 3, 1e20);
    for (ty, shown) in [("q6_k", "Q6_K"), ("iq4_xs", "IQ4_XS"), ("q3_k_s", "Q3_K"), ("iq3_s", "IQ3_S")] {
        let err = quantize(dir.path(), &["in.gguf", "out.gguf", ty]).exits_with(1).err;
        let place =
            format!("tensor `{DOWN}`: row 3, from column 0 on: values up to 1e20 are too large for {shown}");
        assert!(err.contains(&place), "{ty}: {err}");
        assert!(!dir.path().join("out.gguf").exists(), "{ty}");
    }
    let (code, _, err) =
        quantize(dir.path(), &["in.gguf", "out.gguf", "q6_k", "--tensor-type", "ffn_down=bf16"]).parts();
    // The warning about the unknown architecture always occurs.
    let is_warning = |line: &str| {
        line.contains("warning") && !line.contains("architecture `nobody` is not a known language model")
    };
    assert_eq!((code, err.lines().any(is_warning)), (0, false), "{err}");
}

#[test]
fn rows_too_small_for_their_type_are_counted_and_the_first_is_named() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 5, 1e-9);
    for (ty, shown) in [("q6_k", "Q6_K"), ("q8_0", "Q8_0"), ("f16", "F16")] {
        let err = quantize(dir.path(), &["in.gguf", "out.gguf", ty]).ok().err;
        let expected = format!(
            "1 row of 1 tensor came out as zeros or nearly, too small for the type: the first is row 5 of `{DOWN}` \
             (values up to 1e-9, {shown})"
        );
        assert!(err.contains(&expected), "{ty}: {err}");
    }
    let document = json("gguf-quantize", dir.path(), &["--no-sync", "in.gguf", "out.gguf", "q8_0"]);
    let expected = serde_json::json!([
        { "tensor": DOWN, "type": "Q8_0", "rows": 1, "first_row": 5, "largest": 1e-9f32 }
    ]);
    assert_eq!(document["small_rows"], expected);
    let (code, _, err) = quantize(dir.path(), &["in.gguf", "out.gguf", "bf16"]).parts();
    assert_eq!((code, err.contains("zeros")), (0, false), "{err}");
}

/// Writes a part of the bundled checkpoint with row 5 of one matrix scaled.
pub(crate) fn checkpoint(dir: &Path, scale: f32) {
    write_two_layers(Tier::Everyday, dir);
    let mut file = Safetensors::parse(&fs_err::read(dir.join("model.safetensors")).unwrap());
    let name = "model.layers.0.mlp.down_proj.weight";
    let tensor = file.header()[name].clone();
    let bytes = file.data_mut(name);
    let n_cols = tensor["shape"][1].as_u64().unwrap() as usize;
    match tensor["dtype"].as_str().unwrap() {
        "BF16" => {
            for at in (0..n_cols).map(|column| (5 * n_cols + column) * 2) {
                let value = f32::from_bits(u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])) << 16);
                let scaled = ((value * scale).to_bits() >> 16) as u16;
                bytes[at..at + 2].copy_from_slice(&scaled.to_le_bytes());
            }
        }
        "F32" => {
            for at in (0..n_cols).map(|column| (5 * n_cols + column) * 4) {
                let value = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                bytes[at..at + 4].copy_from_slice(&(value * scale).to_le_bytes());
            }
        }
        other => panic!("{other}"),
    }
    file.write(&dir.join("model.safetensors"));
}

#[test]
fn a_conversion_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), 1e22);
    for ty in ["q6_k", "q8_0"] {
        run("gguf-convert", dir.path(), &["hf2gguf", ".", "--type", ty, "-o", "out.gguf"]).exits_with(1);
    }
    let err = run("gguf-convert", dir.path(), &["hf2gguf", ".", "--type", "q6_k", "-o", "out.gguf"]).err;
    assert!(err.contains(&format!("tensor `{DOWN}`: row 5, from column ")), "{err}");
    assert!(err.contains("are too large for Q6_K"), "{err}");
    checkpoint(dir.path(), 1e-9);
    for ty in ["q6_k", "q8_0", "f16"] {
        let err = run("gguf-convert", dir.path(), &["hf2gguf", ".", "--type", ty, "-o", "out.gguf"]).ok().err;
        assert!(err.contains("1 row of 1 tensor came out as zeros or nearly"), "{ty}: {err}");
        assert!(err.contains(&format!("the first is row 5 of `{DOWN}`")), "{ty}: {err}");
        let args = ["hf2gguf", ".", "--type", ty, "-o", "out.gguf"];
        let document = json("gguf-convert", dir.path(), &args);
        let small = document["small_rows"].as_array().unwrap();
        assert_eq!(small.len(), 1, "{ty}: {small:?}");
        assert_eq!(
            (&small[0]["tensor"], &small[0]["rows"], &small[0]["first_row"]),
            (&DOWN.into(), &1.into(), &5.into())
        );
    }
}

#[test]
fn importance_that_is_negative_or_no_number_is_refused_by_entry_and_index() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 0, 0.1);
    let matrix = dir.path().join("m.dat");
    for value in [-1.0, f32::NAN, f32::INFINITY] {
        let mut values = vec![1.0; N_COLS];
        values[37] = value;
        imatrix(&matrix, &values);
        let err =
            quantize(dir.path(), &["--imatrix", "m.dat", "in.gguf", "out.gguf", "q4_k_m"]).exits_with(1).err;
        assert!(err.contains(&format!("tensor `{DOWN}`: importance value 37 is {value}")), "{err}");
    }
}

#[test]
fn a_number_of_calls_below_zero_is_refused_by_entry() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 0, 0.1);
    let matrix = dir.path().join("m.dat");
    imatrix(&matrix, &[1.0; N_COLS]);
    let mut bytes = fs_err::read(&matrix).unwrap();
    let at = 8 + DOWN.len();
    bytes[at..at + 4].copy_from_slice(&(-3i32).to_le_bytes());
    fs_err::write(&matrix, bytes).unwrap();
    let expected = format!("tensor `{DOWN}`: offset {at}: number of calls is -3");
    let runs: [(&str, &[&str]); 3] = [
        ("gguf-quantize", &["--imatrix", "m.dat", "in.gguf", "out.gguf", "q4_k_m"]),
        ("gguf-verify", &["imatrix", "merge", "m.dat", "-o", "out.gguf"]),
        ("gguf-verify", &["imatrix", "show", "m.dat"]),
    ];
    for (program, args) in runs {
        let err = run(program, dir.path(), args).exits_with(1).err;
        assert!(err.contains(&expected), "{program} {args:?}: {err}");
    }
}

#[test]
fn columns_without_importance_are_said() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 0, 0.1);
    let mut values = vec![1.0; N_COLS];
    imatrix(&dir.path().join("m.dat"), &values);
    let args = ["--imatrix", "m.dat", "in.gguf", "out.gguf", "iq4_nl"];
    let (code, _, err) = quantize(dir.path(), &args).parts();
    assert_eq!((code, err.contains("importance at all")), (0, false), "{err}");
    values[64..96].fill(0.0);
    imatrix(&dir.path().join("m.dat"), &values);
    let err = quantize(dir.path(), &args).ok().err;
    let expected =
        format!("1 tensor with groups of columns of no importance at all, which become zeros: `{DOWN}`");
    assert!(err.contains(&expected), "{err}");
}
