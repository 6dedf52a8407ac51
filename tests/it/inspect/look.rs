//! Describing, comparing, hashing.

use gguf_foundry::core::{GgmlType, TensorSource};
use serde_json::json;

use super::{Bench, metadata, model};
#[cfg(target_os = "linux")]
use crate::support::wait_until_it_reads;
use crate::support::{programs, sha256};
use crate::testkit::memory::{MemoryTensors, write_source};

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
