//! Output of the program in addition to its figures: files, traces, warnings, colours.

use gguf_foundry::core::GgmlType;
use serde_json::Value;

use super::gguf_verify;
use crate::support::{names, programs};
use crate::testkit::tiny::{self, Tiny};

/// Directory with a model `base.gguf` and prompts of token ids `a.jsonl`, `b.jsonl`.
fn directory() -> tempfile::TempDir {
    let dir = tiny::directory();
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
fn an_input_is_not_written_over() {
    let dir = directory();
    for args in [
        &["base.gguf", "--prompts", "a.jsonl", "--per-token", "base.gguf"][..],
        &["logits", "base.gguf", "--prompts", "a.jsonl", "-o", "a.jsonl"],
        &["imatrix", "base.gguf", "--prompts", "a.jsonl", "--legacy", "-o", "base.gguf"],
    ] {
        gguf_verify(args, dir.path()).says(2, "output is the same file as input");
    }
}

#[test]
fn a_trace_is_no_warning_and_a_layer_that_is_not_there_is_one() {
    let dir = directory();
    let run = |layer| gguf_verify(&["base.gguf", "--prompts", "a.jsonl", "--trace", layer], dir.path());
    let (_, out, err) = run("0").parts();
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("rms")).collect();
    assert!(lines.iter().any(|line| line.starts_with("layer 0 mixer: 5 x ")), "{err}");
    assert!(lines.iter().all(|line| line.starts_with("layer 0 ")), "{err}");
    assert!(!out.contains("nothing to trace"), "{out}");
    let (_, out, err) = run("99").parts();
    assert!(out.contains("warning   trace: nothing to trace: layer 99 was not run"), "{out}{err}");
}

#[test]
fn prompts_behind_the_limit_and_chunks_beyond_the_training_are_warned_of() {
    let dir = directory();
    let prompts = ["base.gguf", "--prompts", "a.jsonl", "b.jsonl"];
    let unread = "`b.jsonl` is not read: `--chunks` leaves none for it";
    gguf_verify(&[&prompts[..], &["--chunks", "1"]].concat(), dir.path())
        .prints(4, &format!("warning   prompts: {unread}"));
    let out = gguf_verify(&[&prompts[..], &["--chunks", "2"]].concat(), dir.path()).out;
    assert!(!out.contains("is not read"), "{out}");
    let imatrix = [&["imatrix"], &prompts[..], &["--chunks", "1", "-o", "m.gguf"]].concat();
    gguf_verify(&imatrix, dir.path()).says(0, &format!("warning: {unread}"));

    let mut short = Tiny::new();
    short.metadata.set("llama.context_length", 4u32);
    short.write(dir.path(), "base.gguf");
    let out = gguf_verify(&prompts, dir.path()).exits_with(4).out;
    let warning =
        "warning   context: chunks of 5 tokens: the model was trained on 4 (`llama.context_length`)";
    assert!(out.contains(warning), "{out}");
}

#[test]
fn a_verdict_is_coloured_where_colours_are_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(1);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8_0.gguf");
    let run = |variable: (&str, &str)| {
        let mut command = programs::command("gguf-verify", dir.path());
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env(variable.0, variable.1);
        let args = ["q8_0.gguf", "--baseline", "base.gguf", "--weights-only"];
        programs::finish(command.args(args)).out.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(run(("CLICOLOR_FORCE", "1")), "verdict       \u{1b}[1;32mpass\u{1b}[0m");
    assert_eq!(run(("NO_COLOR", "1")), "verdict       pass");
    assert_eq!(run(("CLICOLOR_FORCE", "0")), "verdict       pass", "a pipe has no colours");
}
