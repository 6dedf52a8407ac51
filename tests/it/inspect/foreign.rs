//! Files of other programs: shown, edited, and refused if blocks must be decoded; and files that are not models.

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::{GgufFile, Value};

use super::Bench;
use crate::support::programs::finish;

/// Bytes of a GGUF file of keys with text values and tensors: name, dimensions innermost first, type, data.
fn gguf(keys: &[(&str, &str)], tensors: &[(&str, &[u64], u32, &[u8])]) -> Vec<u8> {
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

const KEYS: &[(&str, &str)] = &[("general.architecture", "llama"), ("general.name", "toy")];

/// Bench with `fork.gguf`: a norm, and a matrix of the given type between two of known types.
fn fork(ty: u32, n_bytes: usize) -> Bench {
    let bench = Bench::new();
    let block: Vec<u8> = (0..n_bytes).map(|i| (i * 37 % 251) as u8).collect();
    let bytes = gguf(
        KEYS,
        &[
            ("output_norm.weight", &[64], 0, &[1; 256]),
            ("blk.0.ffn_down.weight", &[256, 8], ty, &block),
            ("blk.0.ffn_up.weight", &[64, 2], 1, &[2; 256]),
        ],
    );
    fs_err::write(bench.path("fork.gguf"), bytes).unwrap();
    bench
}

#[test]
fn types_of_other_programs_are_shown_with_their_names() {
    for (ty, n_bytes, name, program) in [
        (139, 8 * 144, "IQ4_K (139)", "ik_llama.cpp"),
        (144, 8 * 140, "IQ4_KS (144)", "ik_llama.cpp"),
        (337, 8 * 76, "IQ2_K_R4 (337)", "ik_llama.cpp"),
        (36, 544, "I2_S (36)", "BitNet"),
        (38, 544, "TL1 (38)", "BitNet"),
        (9999, 544, "type 9999", "no program known here"),
    ] {
        let bench = fork(ty, n_bytes);
        bench.run(&["fork.gguf"]).prints(0, name).prints(0, "[8, 256]").says(0, program);
        let (code, out, _) = bench.run(&["get", "fork.gguf", "general.name"]).parts();
        assert_eq!((code, out.as_str()), (0, "toy\n"));
        let document = bench.json(&["fork.gguf"], 0);
        assert_eq!(document["tensors"][1]["type"], name);
        assert_eq!(document["tensors"][1]["shape"], serde_json::json!([8, 256]));
        for command in [
            &["hash", "fork.gguf"][..],
            &["split", "fork.gguf", "-o", "part"],
            &["diff", "fork.gguf", "model.gguf"],
        ] {
            let err = bench.run(command).exits_with_one_of(&[1, 3]).err;
            assert!(err.contains("blk.0.ffn_down.weight"), "{command:?}: {err}");
        }
        assert_eq!(bench.names(), ["fork.gguf", "model.gguf"]);
    }
    let bench = fork(139, 8 * 144);
    let mut quantize = bench.program("gguf-quantize");
    let err = finish(quantize.args(["fork.gguf", "out.gguf", "q8_0"])).exits_with_one_of(&[1, 3]).err;
    assert!(err.contains("IQ4_K of ik_llama.cpp") && err.contains("hint: only ik_llama.cpp reads"), "{err}");
}

#[test]
fn metadata_and_tensors_of_another_program_are_edited_and_the_blocks_stay() {
    let bench = fork(139, 8 * 144);
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
fn long_names_and_five_dimensions() {
    let bench = Bench::new();
    let long = "x".repeat(80);
    let tensors: [(&str, &[u64], u32, &[u8]); 3] =
        [(&long, &[8], 0, &[1; 32]), ("five", &[2, 1, 2, 1, 2], 0, &[3; 32]), ("w", &[8], 0, &[5; 32])];
    fs_err::write(bench.path("odd.gguf"), gguf(KEYS, &tensors)).unwrap();
    bench
        .run(&["odd.gguf", "--full"])
        .prints(0, "[2, 1, 2, 1, 2]")
        .prints(0, &long)
        .says(0, "names or dimensions beyond llama.cpp's limits");
    let err = bench.run(&["hash", "odd.gguf"]).exits_with_one_of(&[1, 3]).err;
    assert!(err.contains("80 bytes") && err.contains("gguf-inspect rename"), "{err}");
    bench.run(&["rename", "odd.gguf", &format!("{long}=short")]).ok();
    bench.run(&["drop", "odd.gguf", "^five$"]).ok();
    let mended = GgufFile::open(&bench.path("odd.gguf")).unwrap();
    assert_eq!(mended.raw_tensor(0), [1; 32]);
    assert_eq!(mended.raw_tensor(1), [5; 32]);
}

#[test]
fn foreign_lists_that_lie_are_refused() {
    let bench = Bench::new();
    let whole = gguf(KEYS, &[("a", &[256, 8], 139, &[7; 64]), ("b", &[8], 0, &[1; 32])]);
    let at = whole.len() - 96;
    // Offsets that run backwards or beyond the end, and files that end early: no panic, no success.
    for cut in (0..at).step_by(3) {
        fs_err::write(bench.path("cut.gguf"), &whole[..cut]).unwrap();
        bench.run(&["cut.gguf"]).exits_with(3);
    }
    for offset in [1u64, 1 << 40, u64::MAX - 31] {
        let mut bytes = whole.clone();
        let found = bytes.windows(8).rposition(|window| window == 64u64.to_le_bytes()).unwrap();
        bytes[found..found + 8].copy_from_slice(&offset.to_le_bytes());
        fs_err::write(bench.path("lie.gguf"), &bytes).unwrap();
        bench.run(&["lie.gguf"]).exits_with(3);
    }
}

#[test]
fn names_that_clash_are_refused_and_nothing_changes() {
    let bench = Bench::new().with_tiny();
    let before = fs_err::read(bench.path("tiny.gguf")).unwrap();
    let long = format!("output_norm.weight={}", "n".repeat(64));
    for (args, code, said) in [
        (vec!["rename", "tiny.gguf", "no.such=x"], 1, "no tensor `no.such`"),
        (vec!["rename", "tiny.gguf", &long, "--force"], 1, "has 64 bytes, at most 63 are allowed"),
        (vec!["rename", "tiny.gguf", "blk.0.ffn_up.weight=blk.0.ffn_down.weight"], 1, "already"),
        (vec!["rename", "tiny.gguf", "blk.0.ffn_up.weight"], 2, "`OLD=NEW` expected"),
        (vec!["rename", "tiny.gguf", "blk.0.ffn_up.weight=x"], 1, "could not be run any more"),
        (vec!["drop", "tiny.gguf", "("], 2, "bad expression"),
        (vec!["drop", "tiny.gguf", "no.such"], 1, "no tensor has a name"),
        (vec!["drop", "tiny.gguf", "ffn_up"], 1, "could not be run any more"),
        (vec!["drop", "tiny.gguf", "."], 1, "no tensor would be left"),
    ] {
        bench.run(&args).says(code, said);
    }
    assert_eq!(fs_err::read(bench.path("tiny.gguf")).unwrap(), before);
    bench.run(&["drop", "tiny.gguf", "ffn_up", "--force", "-o", "less.gguf"]).ok();
}

#[test]
fn a_bundle_becomes_a_text_model() {
    let bench = Bench::new().with_tiny();
    let plain = GgufFile::open(&bench.path("tiny.gguf")).unwrap();
    let n = plain.tensors().len();
    // A tower is added by renaming: Ollama puts both into one file.
    let args =
        ["rename", "tiny.gguf", "blk.3.ffn_up.weight=v.blk.0.ffn_up.weight", "--force", "-o", "bundle.gguf"];
    bench.run(&args).ok();
    bench.run(&["drop", "bundle.gguf", r"^v\.", "-o", "text.gguf"]).prints(0, "(left out)");
    let text = GgufFile::open(&bench.path("text.gguf")).unwrap();
    assert_eq!(text.tensors().len(), n - 1);
    let index = text.tensor_index("blk.0.ffn_up.weight").unwrap();
    let before = plain.tensor_index("blk.0.ffn_up.weight").unwrap();
    assert_eq!(text.raw_tensor(index), plain.raw_tensor(before));
}

#[test]
fn files_that_are_no_models_are_told_for_what_they_are() {
    let bench = Bench::new();
    for (name, bytes, said) in [
        ("blank.gguf", vec![0; 100_000], "nothing but zeros"),
        (
            "answer.gguf",
            b"<!DOCTYPE html><html><body>Please sign in</body></html>\n".to_vec(),
            "a web page (HTML)",
        ),
        ("error.gguf", b"{\"error\": \"Repository not found\"}".to_vec(), "JSON"),
        ("text.gguf", b"Entry not found".to_vec(), "a text that begins with `Entry not found`"),
        (
            "lfs.gguf",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec(),
            "a Git LFS pointer",
        ),
    ] {
        fs_err::write(bench.path(name), bytes).unwrap();
        for args in [vec![name], vec!["merge", name, "-o", "x.gguf"]] {
            let err = bench.run(&args).exits_with_one_of(&[1, 3]).err;
            assert!(err.contains(said) && err.contains("hint: "), "{args:?}: {err}");
            assert!(!err.contains("safetensors"), "{err}");
        }
        let mut quantize = bench.program("gguf-quantize");
        let err = finish(quantize.args(["--imatrix", name, "model.gguf", "out.gguf", "q4_k_m"]))
            .exits_with_one_of(&[1, 3])
            .err;
        assert!(err.contains(said), "{name}: {err}");
    }
    let whole = fs_err::read(bench.path("model.gguf")).unwrap();
    let (first, second) = whole.split_at(whole.len() / 2);
    fs_err::write(bench.path("m.gguf.part1of2"), first).unwrap();
    fs_err::write(bench.path("m.gguf.part2of2"), second).unwrap();
    for name in ["m.gguf.part1of2", "m.gguf.part2of2"] {
        let err = bench.run(&[name]).exits_with_one_of(&[1, 3]).err;
        assert!(err.contains("cat m.gguf.part1of2 m.gguf.part2of2 > m.gguf"), "{err}");
    }
}

#[test]
fn merge_takes_all_parts_and_an_output_behind_them() {
    let bench = Bench::new();
    bench.run(&["split", "model.gguf", "-o", "m", "--split-max-tensors", "1"]).ok();
    let parts = ["m-00003-of-00003.gguf", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf"];
    bench.run(&[&["merge"], &parts[..], &["-o", "whole.gguf"]].concat()).ok();
    bench.run(&["merge", parts[1], "other.gguf"]).ok();
    let read = |name: &str| fs_err::read(bench.path(name)).unwrap();
    assert!(read("whole.gguf") == read("model.gguf") && read("other.gguf") == read("model.gguf"));
    bench.run(&["merge", parts[0], "model.gguf"]).says(2, "-o PATH");
    bench
        .run(&["merge", parts[0], "model.gguf", "-o", "x.gguf"])
        .says(1, "model.gguf: not a part of the same model");
}
