//! Weights too large or too small for their type, and missing importance: messages of the programs.

use std::path::Path;

use gguf_foundry::core::GgmlType;

use super::write_two_layers;
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

/// Writes a model, and importance matrices of its second tensor.
pub(crate) fn imatrices(dir: &Path) {
    model(&dir.join("in.gguf"), 0, 0.1);
    let ones = [1.0; N_COLS];
    let write = |name: &str, change: &dyn Fn(&mut [f32])| {
        let mut values = ones;
        change(&mut values);
        imatrix(&dir.join(name), &values);
    };
    write("negative.dat", &|values| values[37] = -1.0);
    write("nan.dat", &|values| values[37] = f32::NAN);
    write("infinite.dat", &|values| values[37] = f32::INFINITY);
    write("ones.dat", &|_| ());
    write("gap.dat", &|values| values[64..96].fill(0.0));
    // A negative number of calls.
    let mut bytes = fs_err::read(dir.join("ones.dat")).unwrap();
    bytes[8 + DOWN.len()..][..4].copy_from_slice(&(-3i32).to_le_bytes());
    fs_err::write(dir.join("calls.dat"), bytes).unwrap();
}

/// Output of a program with `--json`.
fn json(program: &str, dir: &Path, args: &[&str]) -> serde_json::Value {
    run(program, dir, &[args, &["--json"]].concat()).ok().json()
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
