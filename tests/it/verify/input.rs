//! Messages and exit codes for input that the program cannot use.

use std::path::Path;

use gguf_foundry::core::GgmlType;
use gguf_foundry::gguf::{Array, Value as Gguf};
use serde_json::Value;

use super::gguf_verify;
use crate::support::fixture;
use crate::support::programs::Outcome;
use crate::support::tiers::deep_test;
use crate::testkit::tiny::{self, Tiny};

/// Chat template that supports users and assistants.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}\
    {% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

/// Runs the program on `base.gguf` with prompts written to a file.
fn with_prompts(dir: &Path, name: &str, prompts: &[u8], more: &[&str]) -> Outcome {
    fs_err::write(dir.join(name), prompts).unwrap();
    gguf_verify(&[&["base.gguf", "--prompts", name, "--ctx", "64"][..], more].concat(), dir)
}

fn has_finding(report: &Value, severity: &str, check: &str, part: &str) -> bool {
    report["findings"].as_array().unwrap().iter().any(|finding| {
        finding["severity"] == severity
            && finding["check"] == check
            && finding["message"].as_str().unwrap().contains(part)
    })
}

#[test]
fn short_prompts_are_scored_at_every_position() {
    let dir = tiny::directory_of_a_layer();
    let prompts = b"{\"tokens\": [0, 342, 278, 341, 290]}\n{\"tokens\": [7]}\n{\"tokens\": [0, 300]}\n";
    let report = with_prompts(dir.path(), "p.jsonl", prompts, &["--json"]).model();
    assert_eq!(report["perplexity"]["tokens"], 5, "{report}");
    assert_eq!(report["prompts"][0]["perplexity"]["tokens"], 4);
    assert_eq!(report["prompts"][1]["perplexity"], Value::Null);
    assert_eq!(report["prompts"][2]["perplexity"]["tokens"], 1);
}

#[test]
fn what_the_engine_does_not_know_is_said_and_the_rest_judged() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(2);
    let prompts = b"{\"tokens\": [0, 342, 278, 341]}\n{\"text\": \"Some words.\"}\n";

    let mut unknown = base.clone();
    unknown.metadata.set("tokenizer.ggml.pre", "of-tomorrow");
    unknown.write(dir.path(), "base.gguf");
    let found = with_prompts(dir.path(), "p.jsonl", prompts, &["--json"]).exits_with(3).model();
    assert_eq!(found["verdict"], "fail", "{found}");
    assert!(has_finding(&found, "error", "tokenizer", "`of-tomorrow`: llama.cpp knows no such"), "{found}");

    let mut without = base.clone();
    without.metadata.set("tokenizer.ggml.model", "none");
    without.write(dir.path(), "base.gguf");
    let found = with_prompts(dir.path(), "p.jsonl", prompts, &["--json"]).exits_with(4).model();
    assert_eq!(found["verdict"], "partial", "{found}");
    assert!(has_finding(&found, "unchecked", "perplexity", "1 of 2 prompts are text"), "{found}");
    assert_eq!(found["perplexity"]["tokens"], 3, "ids need no tokenizer");
    let found = with_prompts(dir.path(), "p.txt", b"Some words.", &["--json"]).exits_with(4).model();
    assert!(found["not_judged"].to_string().contains("FILE.jsonl"), "{found}");

    let mut unknown = base.clone();
    unknown.metadata.set("general.architecture", "of-tomorrow");
    unknown.write(dir.path(), "base.gguf");
    let found = with_prompts(dir.path(), "p.jsonl", prompts, &["--json"]).exits_with(4).model();
    assert_eq!(found["verdict"], "partial");
    assert!(has_finding(&found, "unchecked", "graph", "of-tomorrow"), "{found}");
    assert_eq!(found["perplexity"], Value::Null);

    // A broken block is still found.
    let mut unknown = unknown.quantized(GgmlType::Q8_0);
    unknown.tensors.bytes_mut("blk.1.attn_output.weight")[..2].copy_from_slice(&0x7c00u16.to_le_bytes());
    unknown.write(dir.path(), "base.gguf");
    let found = with_prompts(dir.path(), "p.jsonl", prompts, &["--json"]).exits_with(3).model();
    assert!(has_finding(&found, "error", "non-finite", "from row 0"), "{found}");
    let mut tensors = found["findings"].as_array().unwrap().iter().filter_map(|f| f["tensor"].as_str());
    assert_eq!(tensors.next(), Some("blk.1.attn_output.weight"));
}

#[test]
fn baselines_that_cannot_serve_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(2);
    base.write(dir.path(), "base.gguf");
    let prompts = b"{\"tokens\": [0, 342, 278, 341]}\n";
    let run =
        |baseline: &str| with_prompts(dir.path(), "p.jsonl", prompts, &["--baseline", baseline, "--json"]);

    run("absent.gguf").says(1, "baseline: ").says(1, "absent.gguf");
    fs_err::write(dir.path().join("noise.gguf"), b"not a model at all").unwrap();
    // A broken baseline says nothing about the model.
    run("noise.gguf").says(1, "baseline: ").says(1, "noise.gguf");
    fs_err::create_dir(dir.path().join("empty")).unwrap();
    run("empty").says(1, "baseline: ");

    // A model says nothing of itself.
    let found = run("base.gguf").exits_with(4).model();
    assert!(has_finding(&found, "warning", "baseline", "the model itself"), "{found}");
    assert_eq!(found["kld"]["max"], 0.0);

    let mut other = base.clone();
    let Some(Gguf::Array(Array::String(mut tokens))) = other.metadata.remove("tokenizer.ggml.tokens") else {
        panic!("tokens are strings")
    };
    tokens.swap(300, 301);
    other.metadata.set("tokenizer.ggml.tokens", Gguf::Array(Array::String(tokens)));
    other.write(dir.path(), "other.gguf");
    let found = run("other.gguf").exits_with(3).model();
    assert!(has_finding(&found, "error", "tokenizer-parity", "entry 300 is `"), "{found}");

    let mut bare = base.clone();
    let keys = bare.metadata.iter().map(|(key, _)| key.to_owned());
    let keys: Vec<String> = keys.filter(|key| key.starts_with("tokenizer.")).collect();
    for key in &keys {
        bare.metadata.remove(key);
    }
    bare.metadata.set("tokenizer.ggml.model", "none");
    bare.write(dir.path(), "bare.gguf");
    let found = run("bare.gguf").exits_with(4).model();
    assert!(has_finding(&found, "unchecked", "tokenizer-parity", "no vocabulary"), "{found}");
}

#[test]
fn chats_are_written_out_by_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let chats = b"{\"messages\": [{\"role\": \"user\", \"content\": \"Hi there.\"}]}\n\
        {\"messages\": [{\"role\": \"tool\", \"content\": \"1\"}]}\n";
    let mut base = Tiny::new().with_layers(2);
    base.metadata.set("tokenizer.chat_template", TEMPLATE);
    base.write(dir.path(), "base.gguf");
    with_prompts(dir.path(), "p.jsonl", chats, &[])
        .says(1, "prompt 1: messages: chat template refuses the chat: no tools here");

    // The chat is scored as its rendered text.
    let text = |line: &str| with_prompts(dir.path(), "p.jsonl", line.as_bytes(), &["--json"]);
    let chat =
        text("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi there.\"}]}").exits_with(4).model();
    let plain = text("{\"text\": \"user: Hi there.\\n\"}").model();
    assert_eq!(chat["perplexity"], plain["perplexity"]);

    base.metadata.set("tokenizer.chat_template", "{% if %}");
    base.write(dir.path(), "base.gguf");
    let found = text("{\"tokens\": [0, 342, 278]}").exits_with(3).model();
    assert!(has_finding(&found, "error", "chat-template", "line 1"), "{found}");
}

deep_test!(several_files_end_in_one_table);

fn several_files_end_in_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(1);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8_0.gguf");
    let mut broken = base.clone();
    broken.metadata.set("llama.rope.freq_base", 777f32);
    broken.write(dir.path(), "broken.gguf");
    fs_err::write(dir.path().join("noise.gguf"), b"GGUF\x03\0\0\0").unwrap();
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let files = ["q8_0.gguf", "broken.gguf", "noise.gguf"];
    let rest = ["--baseline", "base.gguf", "--ctx", "64", "--chunks", "4", "--prompts"];
    let args = [&files[..], &rest, &[prompts.to_str().unwrap()]].concat();

    let out = gguf_verify(&args, dir.path()).exits_with(3).out;
    assert_eq!(out.lines().last(), Some("verdict       fail"));
    let rows: Vec<&str> = out.lines().rev().skip(2).take(4).collect();
    assert!(
        out.lines().rev().nth(1).unwrap().starts_with("q8_0.gguf is better than broken.gguf by "),
        "{out}"
    );
    assert!(rows[3].starts_with("file ") && rows[3].ends_with("verdict"), "{out}");
    assert!(rows[2].starts_with("q8_0.gguf ") && rows[2].ends_with("pass"), "{out}");
    assert!(rows[1].starts_with("broken.gguf ") && rows[1].ends_with("fail"), "{out}");
    assert!(rows[0].starts_with("noise.gguf ") && rows[0].ends_with("fail"), "{out}");
    assert!(out.contains("broken.gguf: error     hparams: `rope.freq_base` is 777"), "{out}");

    let found = gguf_verify(&[&args[..], &["--json"]].concat(), dir.path()).exits_with(3).json();
    assert_eq!(found["verdict"], "fail");
    let models = found["models"].as_array().unwrap();
    let verdicts: Vec<&str> = models.iter().map(|model| model["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["pass", "fail", "fail"]);
    assert_eq!(models[0]["file"], "q8_0.gguf");
    let size = fs_err::metadata(dir.path().join("q8_0.gguf")).unwrap().len();
    assert_eq!(models[0]["size_bytes"].as_u64(), Some(size));
    assert!(models[0]["kld"]["mean"].as_f64().unwrap() > 0.0);
    // The baseline runs only once for all models, which does not change the figures.
    let found = gguf_verify(
        &[&["broken.gguf", "--json"], &rest[..], &[prompts.to_str().unwrap()]].concat(),
        dir.path(),
    )
    .model();
    for name in ["perplexity", "kld", "worst", "baseline_ppl"] {
        assert_eq!(found[name], models[1][name], "{name}");
    }
}

deep_test!(what_was_judged_is_shown_although_another_file_cannot_be);

fn what_was_judged_is_shown_although_another_file_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new();
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8_0.gguf");
    // A missing file is reported before anything is run.
    let rest = ["--baseline", "base.gguf", "--weights-only"];
    let (code, out, err) =
        gguf_verify(&[&["q8_0.gguf", "typo.gguf"], &rest[..]].concat(), dir.path()).parts();
    assert!(code == 1 && out.is_empty() && err.contains("typo.gguf"), "{code} {out}{err}");
    // A folder that is not a checkpoint is detected later; the files before and after it keep their results.
    fs_err::create_dir(dir.path().join("empty")).unwrap();
    let files = ["q8_0.gguf", "empty", "base.gguf"];
    let (_, out, err) = gguf_verify(&[&files[..], &rest].concat(), dir.path()).says(1, "empty").parts();
    assert!(out.contains("q8_0.gguf") && out.lines().any(|line| line.ends_with("pass")), "{out}{err}");
    let found = gguf_verify(&[&files[..], &rest, &["--json"]].concat(), dir.path()).json();
    assert_eq!(found["models"].as_array().unwrap().len(), 2, "{found}");
    assert_eq!(found["failed"][0]["file"], "empty", "{found}");
}

#[test]
fn a_checkpoint_is_a_model_as_a_file_is_and_a_missing_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = fixture("tiny-llama");
    let checkpoint = checkpoint.to_str().unwrap();
    let judged =
        |model: &str| gguf_verify(&[model, "--baseline", checkpoint, "--structure-only"], dir.path());
    judged("typo.gguf").says(1, "error: cannot find `typo.gguf`");
    judged(checkpoint).exits_with(4);
}

#[test]
fn a_file_alone_is_scored_on_the_text_that_comes_with_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(1);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q4_0).write(dir.path(), "q4_0.gguf");
    let found = gguf_verify(&["q4_0.gguf", "--json"], dir.path()).exits_with(4).model();
    assert!(found["perplexity"]["tokens"].as_u64().unwrap() >= 1000, "{found}");
    assert_eq!(found["quality"], Value::Null);
    // A part of that text is enough for what follows.
    let run = |more: &[&str]| gguf_verify(&[&["q4_0.gguf", "--chunks", "1"], more].concat(), dir.path());
    let out = run(&[]).out;
    assert!(out.contains("to judge it   gguf-verify q4_0.gguf --baseline "), "{out}");
    // With a baseline there is enough to judge it by.
    let out = run(&["--baseline", "base.gguf", "--min-quality", "fair"]).ok().out;
    assert!(out.lines().nth(1).unwrap().starts_with("Quality: "), "{out}");
    let too_good = ["--baseline", "base.gguf", "--min-quality", "near-lossless"];
    run(&too_good).prints(3, "min-quality: the quality is ");
}
