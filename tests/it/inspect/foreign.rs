//! Files of other programs: edited, and read without trust.

use std::path::Path;

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::{GgufFile, Value};

use super::Bench;
use crate::support::programs;

/// Bytes of a GGUF file of keys with text values and tensors: name, dimensions innermost first, type, data.
pub fn gguf(keys: &[(&str, &str)], tensors: &[(&str, &[u64], u32, &[u8])]) -> Vec<u8> {
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        text(&mut out, key);
        out.extend(8u32.to_le_bytes());
        text(&mut out, value);
    }
    let mut data = Vec::new();
    for (name, dims, ty, bytes) in tensors {
        text(&mut out, name);
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend_from_slice(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    [out, data].concat()
}

pub const KEYS: &[(&str, &str)] = &[("general.architecture", "llama"), ("general.name", "toy")];

/// Writes a norm, and a matrix of the given type between two of known types.
pub fn fork(path: &Path, ty: u32, n_bytes: usize) {
    let block: Vec<u8> = (0..n_bytes).map(|i| (i * 37 % 251) as u8).collect();
    let tensors: [(&str, &[u64], u32, &[u8]); 3] = [
        ("output_norm.weight", &[64], 0, &[1; 256]),
        ("blk.0.ffn_down.weight", &[256, 8], ty, &block),
        ("blk.0.ffn_up.weight", &[64, 2], 1, &[2; 256]),
    ];
    fs_err::write(path, gguf(KEYS, &tensors)).unwrap();
}

#[test]
fn metadata_and_tensors_of_another_program_are_edited_and_the_blocks_stay() {
    let bench = Bench::new();
    fork(&bench.path("fork.gguf"), 139, 8 * 144);
    let read = |name: &str| GgufFile::open_foreign(&bench.path(name)).unwrap();
    let block = |file: &GgufFile, name: &str| file.raw_tensor(file.tensor_index(name).unwrap()).to_vec();
    let before = read("fork.gguf");
    bench.run(&["set", "fork.gguf", "general.name=other", "general.description=a longer one"]).ok();
    let after = read("fork.gguf");
    assert_eq!(after.metadata().get("general.name"), Some(&Value::from("other")));
    for name in ["output_norm.weight", "blk.0.ffn_down.weight", "blk.0.ffn_up.weight"] {
        assert_eq!(block(&before, name), block(&after, name), "{name}");
    }
    bench
        .run(&["rename", "fork.gguf", "blk.0.ffn_down.weight=blk.0.ffn_gate.weight"])
        .prints(0, "blk.0.ffn_gate.weight");
    let renamed = read("fork.gguf");
    assert_eq!(block(&before, "blk.0.ffn_down.weight"), block(&renamed, "blk.0.ffn_gate.weight"));
    assert_eq!(renamed.declared(1).unwrap().type_id, 139);
    bench.run(&["drop", "fork.gguf", "ffn_gate", "-o", "ours.gguf"]).ok();
    let ours = GgufFile::open(&bench.path("ours.gguf")).unwrap();
    assert_eq!(block(&ours, "blk.0.ffn_up.weight"), [2; 256]);
}

#[test]
fn foreign_lists_that_lie_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lie.gguf");
    let whole = gguf(KEYS, &[("a", &[256, 8], 139, &[7; 64]), ("b", &[8], 0, &[1; 32])]);
    let at = whole.len() - 96;
    // Offsets that run backwards or beyond the end, and files that end early: no panic, no success.
    let cuts = (0..at).step_by(3).map(|cut| whole[..cut].to_vec());
    let offsets = [1u64, 1 << 40, u64::MAX - 31].map(|offset| {
        let mut bytes = whole.clone();
        let found = bytes.windows(8).rposition(|window| window == 64u64.to_le_bytes()).unwrap();
        bytes[found..found + 8].copy_from_slice(&offset.to_le_bytes());
        bytes
    });
    for (index, bytes) in cuts.chain(offsets).enumerate() {
        fs_err::write(&path, bytes).unwrap();
        assert!(GgufFile::open_foreign(&path).is_err(), "{index}");
    }
    assert_eq!(programs::run("gguf-inspect", dir.path(), &["lie.gguf"]).code(), 3);
}

#[test]
fn a_bundle_becomes_a_text_model() {
    let bench = Bench::new().with_layers(1);
    let plain = GgufFile::open(&bench.path("tiny.gguf")).unwrap();
    let n = plain.tensors().len();
    // A tower is added by renaming: Ollama puts both into one file.
    let args = [
        "rename",
        "tiny.gguf",
        "blk.0.ffn_down.weight=v.blk.0.ffn_down.weight",
        "--force",
        "-o",
        "bundle.gguf",
    ];
    bench.run(&args).ok();
    bench.run(&["drop", "bundle.gguf", r"^v\.", "-o", "text.gguf"]).prints(0, "(left out)");
    let text = GgufFile::open(&bench.path("text.gguf")).unwrap();
    assert_eq!(text.tensors().len(), n - 1);
    let index = text.tensor_index("blk.0.ffn_up.weight").unwrap();
    let before = plain.tensor_index("blk.0.ffn_up.weight").unwrap();
    assert_eq!(text.raw_tensor(index), plain.raw_tensor(before));
}
