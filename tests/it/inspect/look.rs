//! Describing, comparing, hashing.

use gguf_foundry::core::{GgmlType, TensorSource};
use serde_json::json;

use super::{Bench, metadata, model};
#[cfg(target_os = "linux")]
use crate::support::wait_until_it_reads;
use crate::support::{programs, sha256};
use crate::testkit::memory::{MemoryTensors, write_source};

#[test]
fn the_description_has_all_facts_and_no_escapes() {
    let bench = Bench::new();
    let out = bench.run(&["model.gguf"]).says_only(0, "").out;
    insta::assert_snapshot!(out, @r#"
    model.gguf: GGUF 3, little-endian, 992 B, 5 keys

    model      A \u{1b}[31mred\u{1b}[0m name, architecture llama
    size       992 B, 80 parameters, 13.20 bits per weight
    layers     2

    key                    type      value
    general.architecture   str       llama
    general.name           str       A \u{1b}[31mred\u{1b}[0m name
    llama.block_count      u32       2
    llama.rope.freq_base   f32       0.1
    tokenizer.ggml.tokens  arr[str]  (40 elements) ["t0", "t…", "t3", "t4", "t5", …]

    tensor  type  shape, outermost first  bytes  offset
    norm    F32   [4]                        16     800
    ramp    F32   [3, 4]                     48     832
    codes   Q8_0  [2, 32]                    68     896

    type  tensors  elements  size
    Q8_0        1        64  68 B
    F32         2        16  64 B

    3 tensors, 80 elements, 132 B, 13.20 bits per weight
    "#);
    let full = bench.run(&["model.gguf", "--full"]).out;
    assert!(full.contains("\"t38\", \"t39\"]"), "{full}");
}

#[test]
fn json_has_stable_names() {
    let bench = Bench::new();
    let summary = bench.json(&["model.gguf"], 0);
    assert_eq!(summary["metadata"][3], json!({"key": "llama.rope.freq_base", "type": "f32", "value": 0.1}));
    assert_eq!(
        summary["metadata"][4],
        json!({"key": "tokenizer.ggml.tokens", "type": "arr[str]",
               "value": ["t0", "t1", "t2", "t3", "t4", "t5"], "length": 40})
    );
    assert_eq!(
        summary["tensors"][2],
        json!({"name": "codes", "type": "Q8_0", "shape": [2, 32], "bytes": 68, "part": 0, "offset": 896})
    );
    assert_eq!(summary["types"][0], json!({"type": "Q8_0", "tensors": 1, "elements": 64, "bytes": 68}));
    let names: Vec<_> = summary.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "path",
            "version",
            "endian",
            "alignment",
            "architecture",
            "file_bytes",
            "tensor_bytes",
            "elements",
            "bits_per_weight",
            "parts",
            "types",
            "warnings",
            "metadata",
            "tensors",
            "about",
        ]
    );
    let full = bench.json(&["model.gguf", "--full"], 0);
    assert_eq!(full["metadata"][4]["value"].as_array().unwrap().len(), 40);
}

#[test]
fn bytes_after_the_last_tensor_are_reported() {
    let bench = Bench::new();
    let mut bytes = fs_err::read(bench.path("model.gguf")).unwrap();
    bytes.extend(b"tail");
    fs_err::write(bench.path("model.gguf"), bytes).unwrap();
    bench.run(&["model.gguf"]).says_only(0, "warning: model.gguf: 4 bytes after the last tensor\n");
    let summary = bench.json(&["model.gguf"], 0);
    assert_eq!(summary["warnings"], json!(["model.gguf: 4 bytes after the last tensor"]));
}

#[test]
fn a_broken_file_has_its_own_exit_code_and_a_hint() {
    let bench = Bench::new();
    let bytes = fs_err::read(bench.path("model.gguf")).unwrap();
    fs_err::write(bench.path("short.gguf"), &bytes[..900]).unwrap();
    let (code, out, err) = bench.run(&["short.gguf"]).parts();
    assert_eq!((code, out.as_str()), (3, ""));
    assert_eq!(
        err,
        "error: short.gguf: offset 896: tensor `codes`: 68 bytes of data end beyond the file of 900 bytes\n\
         \nhint: the file is probably an incomplete download\n"
    );
    let err = bench.run(&["missing.gguf"]).exits_with(1).err;
    assert!(err.starts_with("error: ") && err.contains("missing.gguf"), "{err}");
    for usage in [&[][..], &["--nonsense"], &["set", "model.gguf"], &["set", "model.gguf", "k=u8:256"]] {
        bench.run(usage).exits_with(2);
    }
    let out = bench.run(&["--version"]).ok().out;
    assert!(out.starts_with("gguf-inspect 0."), "{out}");
}

#[test]
fn equal_files_are_equal() {
    let bench = Bench::new();
    let (code, out, _) = bench.run(&["diff", "model.gguf", "model.gguf"]).parts();
    assert_eq!((code, out.as_str()), (0, "equal\n"));
    assert_eq!(bench.json(&["diff", "model.gguf", "model.gguf"], 0)["equal"], json!(true));
}

#[test]
fn a_key_alone_makes_a_difference() {
    let bench = Bench::new();
    bench.run(&["set", "model.gguf", "general.name=other", "-o", "other.gguf"]).ok();
    let diff = bench.json(&["diff", "model.gguf", "other.gguf"], 1);
    assert_eq!((&diff["equal"], &diff["tensors"]), (&json!(false), &json!([])));
}

#[test]
fn differences_are_shown_and_measured() {
    let bench = Bench::new();
    let mut other = metadata();
    other.set("llama.block_count", 3u64);
    other.remove("llama.rope.freq_base");
    other.set("general.file_type", 7u32);
    let mut tokens: Vec<_> = (0..40).map(|i| format!("t{i}")).collect();
    "changed".clone_into(&mut tokens[17]);
    other.set("tokenizer.ggml.tokens", tokens);
    // The values of `codes` in F32, one of them changed by 0.25; `ramp` with another shape; `norm` removed, `new`
    // added.
    let mut codes: Vec<f32> = (0..64).map(|i| 0.5 * ((i % 32) as f32 - 16.0)).collect();
    codes[33] += 0.25;
    let ramp: Vec<f32> = (0..12).map(|i| i as f32 / 4.0).collect();
    let tensors = MemoryTensors::of_f32(&[
        ("codes", &[2, 32], &codes),
        ("ramp", &[4, 3], &ramp),
        ("new", &[1], &[0.0]),
    ]);
    write_source(&bench.path("other.gguf"), &other, &tensors);

    let out = bench.run(&["diff", "model.gguf", "other.gguf"]).exits_with(1).out;
    insta::assert_snapshot!(out, @r#"
    4 keys and 4 tensors differ (1 only in a, 1 only in b, 1 of another type)

    key                    differs     a      b
    llama.block_count      type        u32 2  u64 3
    llama.rope.freq_base   only in a   0.1
    tokenizer.ggml.tokens  element 17  t17    changed
    general.file_type      only in b          7

    tensor  differs       a           b           values  max abs  rel. rms
    codes   type, values  Q8_0        F32          1.6 %   2.5e-1    6.8e-3
    new     only in b                 F32 [1]
    norm    only in a     F32 [4]
    ramp    shape         F32 [3, 4]  F32 [4, 3]

    the common tensors come in another order
    "#);
    let diff = bench.json(&["diff", "model.gguf", "other.gguf"], 1);
    assert_eq!(diff["keys"][2]["first_element"], json!(17));
    assert_eq!(diff["tensors"][2]["data"]["max_abs"], json!(0.25));
    assert_eq!(diff["tensors"][2]["data"]["max_abs_at"], json!(33));
    let shallow = bench.json(&["diff", "model.gguf", "other.gguf", "--no-data"], 1);
    assert_eq!(shallow["tensors"][2]["data"], json!(null));
}

#[test]
fn one_bit_is_found_whatever_the_threads() {
    let bench = Bench::new();
    let path = bench.path("other.gguf");
    fs_err::copy(bench.path("model.gguf"), &path).unwrap();
    let mut bytes = fs_err::read(&path).unwrap();
    bytes[832 + 20] ^= 1;
    fs_err::write(&path, bytes).unwrap();
    let runs = ["1", "2", "7"]
        .map(|threads| bench.json(&["diff", "model.gguf", "other.gguf", "--threads", threads], 1));
    assert_eq!(runs[0]["tensors"][0]["name"], json!("ramp"));
    assert_eq!(runs[0]["tensors"][0]["data"]["differing"], json!(1));
    assert_eq!(runs[0]["tensors"][0]["data"]["max_abs_at"], json!(5));
    assert!(runs[0] == runs[1] && runs[1] == runs[2]);
}

#[test]
fn hashes_are_those_of_the_bytes() {
    let bench = Bench::new();
    let source = model();
    let hashes = bench.json(&["hash", "model.gguf"], 0);
    let data: Vec<&[u8]> = (0..source.tensors().len()).map(|tensor| source.bytes(tensor)).collect();
    for (index, data) in data.iter().enumerate() {
        assert_eq!(hashes["tensors"][index]["sha256"], json!(sha256(data)));
    }
    assert_eq!(hashes["data"], json!(sha256(&data.concat())));
    let file = fs_err::read(bench.path("model.gguf")).unwrap();
    assert_eq!(hashes["files"], json!([{"path": "model.gguf", "sha256": sha256(&file)}]));
    let text = bench.run(&["hash", "model.gguf"]).out;
    assert!(text.starts_with(&format!("{}  tensor norm\n", sha256(data[0]))), "{text}");
    assert!(text.ends_with(&format!("{}  model.gguf\n", sha256(&file))), "{text}");
    assert_eq!(source.tensors()[2].ty, GgmlType::Q8_0);
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let bench = Bench::new();
    let many = (0..40_000).map(|i| format!("token-{i}")).collect::<Vec<_>>();
    let mut metadata = metadata();
    metadata.set("tokenizer.ggml.tokens", many);
    write_source(&bench.path("big.gguf"), &metadata, &model());
    let status = std::process::Command::new("sh")
        .current_dir(bench.path("."))
        .arg("-c")
        .arg("{ \"$0\" --full big.gguf; echo $? > code; } | head -c 10 > head")
        .arg(programs::path("gguf-inspect"))
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs_err::read_to_string(bench.path("head")).unwrap(), "big.gguf: ");
    assert_eq!(fs_err::read_to_string(bench.path("code")).unwrap(), "0\n");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_ends_a_long_run_at_once() {
    let bench = Bench::new();
    // A hole of 256 GiB: no disk space, but hours of hashing.
    let path = bench.path("huge.gguf");
    let n_bytes = 256u64 << 30;
    let tensor = MemoryTensors::default().with("w", &[1, 32], GgmlType::I8, vec![0; 32]);
    write_source(&path, &gguf_foundry::gguf::Metadata::new(), &tensor);
    let mut bytes = fs_err::read(&path).unwrap();
    let at = bytes.windows(8).position(|window| window == 32u64.to_le_bytes()).unwrap();
    bytes[at..at + 8].copy_from_slice(&(n_bytes / 1024).to_le_bytes());
    bytes[at + 8..at + 16].copy_from_slice(&1024u64.to_le_bytes());
    fs_err::write(&path, &bytes).unwrap();
    fs_err::OpenOptions::new().write(true).open(&path).unwrap().set_len(n_bytes + 4096).unwrap();

    let mut child = bench
        .program("gguf-inspect")
        .args(["hash", "--quiet"])
        .arg(&path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_reads(&mut child, "huge.gguf");
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{status}");
    let mut err = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut err).unwrap();
    assert_eq!(err, "error: interrupted\n");
}
