//! Output of the program in addition to its figures: files, traces, warnings, colours.

use serde_json::Value;

use super::gguf_verify;
use crate::support::{names, programs};
use crate::testkit::tiny;

/// Directory with a model `base.gguf` and prompts of token ids `a.jsonl`, `b.jsonl`.
fn directory() -> tempfile::TempDir {
    let dir = tiny::directory_of_a_layer();
    for name in ["a.jsonl", "b.jsonl"] {
        fs_err::write(dir.path().join(name), "{\"tokens\": [1, 342, 278, 5, 9]}\n").unwrap();
    }
    dir
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_leaves_no_file() {
    let dir = directory();
    let before = names(dir.path());
    for args in [
        "base.gguf --prompts a.jsonl --per-token out.jsonl",
        "logits base.gguf --prompts a.jsonl -o out.jsonl",
        "imatrix base.gguf --prompts a.jsonl -o out.gguf",
        "imatrix base.gguf --prompts a.jsonl --legacy -o out.dat",
    ] {
        let mut command = programs::limited("trap '' XFSZ; ulimit -f 0", "gguf-verify", dir.path());
        let err = programs::finish(command.args(args.split(' '))).exits_with(1).err;
        assert!(err.contains("out."), "{args}: {err}");
        assert_eq!(names(dir.path()), before, "{args}");
    }
}

#[test]
fn every_position_of_every_prompt_is_written() {
    let dir = directory();
    let args = ["base.gguf", "--prompts", "a.jsonl", "b.jsonl", "--per-token", "out.jsonl", "--quiet"];
    gguf_verify(&args, dir.path()).exits_with(4);
    let text = fs_err::read_to_string(dir.path().join("out.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for (at, line) in lines.iter().enumerate() {
        assert_eq!((line["prompt"].as_u64(), line["tokens"].as_array().unwrap().len()), (Some(at as u64), 5));
        assert!(line["nll"].as_array().unwrap().iter().all(Value::is_number), "{line}");
    }
    assert_eq!(lines[0]["nll"], lines[1]["nll"]);
}

#[test]
fn a_trace_is_no_warning() {
    let dir = directory();
    let args = ["base.gguf", "--prompts", "a.jsonl", "--trace", "0"];
    let (_, out, err) = gguf_verify(&args, dir.path()).parts();
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("rms")).collect();
    assert!(lines.iter().any(|line| line.starts_with("layer 0 mixer: 5 x ")), "{err}");
    assert!(lines.iter().all(|line| line.starts_with("layer 0 ")), "{err}");
    assert!(!out.contains("nothing to trace"), "{out}");
}
