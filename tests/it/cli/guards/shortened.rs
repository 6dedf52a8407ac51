//! Inputs that another program truncates while they are read.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Stdio;

use super::workbench::hole;
use crate::support::programs::{Outcome, command};
use crate::support::{files, fixture, wait_until_it_reads};

/// More bytes than any program reads during this test.
const LONG: u64 = 64 << 30;

/// Runs a program, truncates a file once it is mapped, and checks the message.
fn cut(dir: &Path, program: &str, args: &str, input: &str, n_files: usize) {
    let mut child = command(program, dir)
        .args(args.split(' '))
        .args(["--threads", "2", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_reads(&mut child, input.rsplit('/').next().unwrap());
    fs_err::OpenOptions::new().write(true).open(dir.join(input)).unwrap().set_len(64 << 10).unwrap();
    let ended = Outcome::from(child.wait_with_output().unwrap()).exits_with(1);
    let line = format!(
        "error: {input}: the file was cut short while it was read\n\nhint: another program writes to it"
    );
    assert!(ended.err.contains(&line), "{args}: {}", ended.err);
    let document = ended.json();
    assert_eq!(document["error"]["exit_code"], 1);
    assert!(document["error"]["message"].as_str().unwrap().starts_with(input), "{document}");
    assert_eq!(fs_err::read_dir(dir).unwrap().count(), n_files, "{args}");
}

#[test]
fn quantize_and_inspect_name_the_file_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.gguf");
    for (program, args, n_bytes) in [
        ("gguf-quantize", "in.gguf /dev/null q4_0", LONG),
        // With an output that fits on the disk.
        ("gguf-quantize", "in.gguf out.gguf q4_0", 1 << 30),
        ("gguf-inspect", "hash in.gguf", LONG),
    ] {
        hole(&path, n_bytes);
        cut(dir.path(), program, args, "in.gguf", 1);
    }
}

#[test]
fn verify_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    hole(&dir.path().join("in.gguf"), LONG);
    hole(&dir.path().join("base.gguf"), LONG);
    cut(dir.path(), "gguf-verify", "in.gguf --weights-only --baseline base.gguf", "in.gguf", 2);
}

#[test]
fn convert_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::create_dir(dir.path().join("model")).unwrap();
    // All holes, with enough tokens to make it long.
    let bytes = fs_err::read(fixture("tiny-llama/model.safetensors")).unwrap();
    let header_bytes = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let mut header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&bytes[8..header_bytes as usize]).unwrap();
    let rows = LONG / 512;
    header["model.embed_tokens.weight"]["shape"][0] = rows.into();
    let mut end = 0;
    for (_, tensor) in header.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        assert_eq!(tensor["dtype"], "BF16");
        let dims = tensor["shape"].as_array().unwrap();
        let begin = end;
        end += 2 * dims.iter().map(|dim| dim.as_u64().unwrap()).product::<u64>();
        tensor["data_offsets"] = serde_json::json!([begin, end]);
    }
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let all = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
    let path = dir.path().join("model/model.safetensors");
    fs_err::write(&path, &all).unwrap();
    let file = fs_err::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(all.len() as u64 + end).unwrap();
    let mut config = files::json(fixture("tiny-llama/config.json"));
    config["vocab_size"] = rows.into();
    fs_err::write(dir.path().join("model/config.json"), config.to_string()).unwrap();
    let args = "hf2gguf model -o /dev/null --type f32 --no-tokenizer";
    cut(dir.path(), "gguf-convert", args, "model/model.safetensors", 1);
}
