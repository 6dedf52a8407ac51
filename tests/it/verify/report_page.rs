//! `--report`: pages, cards and documents of real runs. `scripts/browser_check.sh` opens such pages in a browser.

use std::path::Path;

use serde_json::Value;

use super::gguf_verify;
use crate::support::fixture;
use crate::support::programs::{self, Outcome};
use crate::support::tiers::deep_test;
use crate::testkit::tiny::Tiny;
use gguf_foundry::core::GgmlType;

/// Directory with a baseline, two files made of it, a truncated file, and prompts.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new();
    let path = base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8_0.gguf");
    let mut q4_0 = base.quantized(GgmlType::Q4_0);
    q4_0.metadata.set("general.name", "<script>alert(1)</script>\u{202e}|`");
    q4_0.write(dir.path(), "q4_0.gguf");
    let bytes = fs_err::read(path).unwrap();
    fs_err::write(dir.path().join("cut.gguf"), &bytes[..2000]).unwrap();
    let text = "<b>In the beginning</b> God created the heaven and the earth. ".repeat(12);
    fs_err::write(dir.path().join("p.jsonl"), serde_json::json!({ "text": text }).to_string()).unwrap();
    dir
}

fn run(dir: &Path, args: &[&str]) -> Outcome {
    let mut all = args.to_vec();
    if !args.contains(&"--prompts") {
        all.extend(["--prompts", "p.jsonl"]);
    }
    all.extend(["--ctx", "64", "--no-sync"]);
    gguf_verify(&all, dir)
}

fn read(dir: &Path, name: &str) -> String {
    fs_err::read_to_string(dir.join(name)).unwrap()
}

#[test]
fn a_page_a_card_and_a_document_come_of_one_run() {
    let dir = directory();
    let reports = ["--report", "r.html", "--report", "r.md", "--report", "r.json"];
    let models = ["q4_0.gguf", "q8_0.gguf", "cut.gguf", "--baseline", "base.gguf", "--json"];
    let out = run(dir.path(), &[&models[..], &reports].concat()).exits_with(3).out;
    let (html, card) = (read(dir.path(), "r.html"), read(dir.path(), "r.md"));
    for part in ["q4_0.gguf", "q8_0.gguf", "cut.gguf", "fail", "--baseline base.gguf"] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"));
    assert!(!html.contains("<script") && !html.contains("<b>In"), "foreign text is text");
    assert!(html.contains("&lt;script&gt;alert(1)") && html.contains("\\u{202e}"), "{html}");
    assert!(!html.contains("http://") || html.contains("http://www.w3.org/2000/svg"), "nothing to fetch");
    for beyond in ["src=", "url(", "@import", "https://"] {
        assert!(!html.contains(beyond), "nothing to fetch: {beyond}");
    }
    assert!(card.contains("| q8\\_0.gguf |") && card.contains("| cut.gguf |"), "{card}");

    // The document is the output of `--json`, with information about the run.
    let mut document: Value = serde_json::from_str(&read(dir.path(), "r.json")).unwrap();
    let info = document.as_object_mut().unwrap().remove("run").unwrap();
    assert_eq!(document, serde_json::from_str::<Value>(&out).unwrap());
    let inputs = info["inputs"].as_array().unwrap();
    let of = |role: &str| inputs.iter().filter(|input| input["role"] == role).count();
    assert_eq!((of("model"), of("baseline"), of("prompts")), (3, 1, 1), "{info}");
    for input in inputs {
        let hash = input["sha256"].as_str().unwrap();
        assert_eq!(hash.len(), 64);
        assert!(html.contains(hash) && card.contains(hash));
    }
}

deep_test!(the_same_run_gives_the_same_page);

fn the_same_run_gives_the_same_page() {
    let dir = directory();
    let page = || {
        let mut program = programs::command("gguf-verify", dir.path());
        let args = [
            "q4_0.gguf",
            "--baseline",
            "base.gguf",
            "--prompts",
            "p.jsonl",
            "--ctx",
            "64",
            "--report",
            "r.html",
        ];
        program.env("SOURCE_DATE_EPOCH", "1000000000").args(args).output().unwrap();
        read(dir.path(), "r.html")
    };
    let first = page();
    assert!(first.contains("2001-09-09 01:46:40 UTC"), "{first}");
    assert_eq!(page(), first);
}

#[test]
fn a_page_needs_neither_figures_nor_a_baseline() {
    let dir = directory();
    gguf_verify(&["q8_0.gguf", "--structure-only", "--report", "r.html", "--report", "r.md"], dir.path())
        .exits_with_one_of(&[0, 4]);
    assert!(read(dir.path(), "r.html").contains("no text was run"));
    run(dir.path(), &["q8_0.gguf", "--report", "r.html"]).exits_with_one_of(&[0, 4]);
    let html = read(dir.path(), "r.html");
    assert!(html.contains("without a baseline") && !html.contains("mean KLD</th>"), "{html}");
}

#[test]
fn reports_that_cannot_be_are_refused_before_any_work() {
    let dir = directory();
    fs_err::write(dir.path().join("other.json"), "{}").unwrap();
    let before = fs_err::read_dir(dir.path()).unwrap().count();
    for (args, expected) in [
        (&["q8_0.gguf", "--report", "r.txt"][..], "ends in `.html`, `.md`, `.json` or `.csv`"),
        (&["q8_0.gguf", "--report", "html"], "ends in `.html`, `.md`, `.json` or `.csv`"),
        (&["q8_0.gguf", "--report", "r.md", "--report", "r.md"], "--report and --report are the same file"),
        (
            &["q8_0.gguf", "--prompts", "p.jsonl", "other.json", "--report", "other.json"],
            "output is the same file as input",
        ),
        (
            &["q8_0.gguf", "--report", "r.json", "--per-token", "r.json"],
            "--per-token and --report are the same file",
        ),
    ] {
        run(dir.path(), args).says(2, expected);
    }
    let err = run(dir.path(), &["q8_0.gguf", "--report", "no/r.html"]).exits_with_one_of(&[1, 2]).err;
    assert!(err.contains("no"), "{err}");
    // A file of a checkpoint, which is found only when it is opened.
    let checkpoint = dir.path().join("hf");
    fs_err::create_dir(&checkpoint).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs_err::copy(fixture("tiny-llama").join(name), checkpoint.join(name)).unwrap();
    }
    run(dir.path(), &["q8_0.gguf", "--baseline", "hf", "--report", "hf/config.json"]).exits_with(2);
    run(dir.path(), &["hf", "--report", "hf/config.json"]).exits_with(2);
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), before + 1);
}
