//! Prompt files: formats, refused files, chunks per file, a row for each file.

use std::path::Path;

use gguf_foundry::core::GgmlType;
use serde_json::{Value as Json, json};

use super::gguf_verify;
use crate::support::fixture;
use crate::support::tiers::deep_test;
use crate::testkit::tiny::{self, Tiny};

fn corpus_texts() -> Vec<String> {
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    // Three parts of some thousands of tokens.
    let paragraphs: Vec<&str> = text.split_inclusive('\n').collect();
    paragraphs.chunks(paragraphs.len().div_ceil(3)).map(<[&str]>::concat).collect()
}

fn perplexity(dir: &Path, file: &str, more: &[&str]) -> f64 {
    let args = ["base.gguf", "--prompts", file, "--ctx", "128", "--json", "--quiet"];
    let report = gguf_verify(&[&args[..], more].concat(), dir).model();
    report["perplexity"]["value"].as_f64().unwrap_or_else(|| panic!("{report}"))
}

deep_test!(arrays_are_scored_as_lines_are_and_not_as_prose);

fn arrays_are_scored_as_lines_are_and_not_as_prose() {
    let dir = tempfile::tempdir().unwrap();
    Tiny::new().with_layers(2).write(dir.path(), "base.gguf");
    let text: String = corpus_texts()[0].chars().take(3000).collect();
    let parts: Vec<String> =
        text.as_bytes().chunks(750).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    let write = |name: &str, content: &str| fs_err::write(dir.path().join(name), content).unwrap();
    let lines: Vec<String> = parts.iter().map(|part| json!({ "text": part }).to_string()).collect();
    write("lines.jsonl", &lines.join("\n"));
    write("strings.json", &serde_json::to_string_pretty(&parts).unwrap());
    write("objects.json", &format!("[{}]", lines.join(",")));
    // With a name that does not match the format.
    write("strings.txt", &serde_json::to_string(&parts).unwrap());
    write("lines.data", &lines.join("\n"));
    let expected = perplexity(dir.path(), "lines.jsonl", &[]);
    assert!(expected < 40.0, "{expected}");
    for file in ["strings.json", "objects.json", "strings.txt", "lines.data"] {
        assert_eq!(perplexity(dir.path(), file, &[]).to_bits(), expected.to_bits(), "{file}");
    }
    // Read as plain text, with escapes and quotes, the figures are different; this needs an option.
    let prose = perplexity(dir.path(), "strings.json", &["--plain-text"]);
    assert!(prose > 1.1 * expected, "{prose} {expected}");
    // The other commands read prompts in the same way.
    gguf_verify(
        &["imatrix", "base.gguf", "--prompts", "strings.json", "-o", "i.gguf", "--ctx", "128", "--json"],
        dir.path(),
    )
    .ok();
    let (code, out, err) =
        gguf_verify(&["logits", "base.gguf", "--prompts", "strings.json"], dir.path()).parts();
    assert_eq!((code, out.lines().count()), (0, parts.len()), "{err}");
}

#[test]
fn a_table_is_a_text_if_that_is_asked_for() {
    let dir = tiny::directory_of_a_layer();
    fs_err::write(dir.path().join("table.txt"), "id,text\n1,one\n2,two\n").unwrap();
    assert!(perplexity(dir.path(), "table.txt", &["--plain-text"]) > 1.0);
}

deep_test!(files_share_the_chunks_and_each_has_its_row);

fn files_share_the_chunks_and_each_has_its_row() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(1);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8_0.gguf");
    base.quantized(GgmlType::Q4_0).write(dir.path(), "q4_0.gguf");
    let texts = corpus_texts();
    let short: String = texts[2].chars().take(200).collect();
    for (name, text) in [("a.txt", &texts[0]), ("b.txt", &texts[1]), ("c.txt", &short)] {
        fs_err::write(dir.path().join(name), text).unwrap();
    }
    let cut = ["--prompts", "a.txt", "b.txt", "c.txt", "--ctx", "32", "--chunks", "10", "--quiet"];
    let beside = ["--baseline", "base.gguf"];
    let ended = gguf_verify(&[&["q8_0.gguf", "--json"][..], &cut, &beside].concat(), dir.path());
    assert!(ended.code() != 1, "{}", ended.err);
    let report = ended.model();
    let files = report["prompt_files"].as_array().unwrap();
    let chunks: Vec<u64> = files.iter().map(|file| file["chunks"].as_u64().unwrap()).collect();
    assert!(chunks[2] > 0 && chunks[2] < 3, "the short file has what it has: {chunks:?}");
    assert_eq!((chunks.iter().sum::<u64>(), chunks[0] - chunks[1] <= 1), (10, true), "{chunks:?}");
    let tokens = |at: usize| files[at]["perplexity"]["tokens"].as_u64().unwrap();
    assert_eq!(tokens(0), chunks[0] * 15);
    assert_eq!(tokens(0) + tokens(1) + tokens(2), report["perplexity"]["tokens"].as_u64().unwrap());
    // The rows add up to the whole.
    let mean = |key: &dyn Fn(&Json) -> f64| {
        let sum: f64 = (0..3).map(|at| key(&files[at]) * tokens(at) as f64).sum();
        sum / report["perplexity"]["tokens"].as_f64().unwrap()
    };
    let ppl = mean(&|file| file["perplexity"]["value"].as_f64().unwrap().ln()).exp();
    assert!((ppl / report["perplexity"]["value"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{ppl}");
    let kld = mean(&|file| file["kld"]["mean"].as_f64().unwrap());
    assert!((kld / report["kld"]["mean"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{kld}");
    assert!(files.iter().all(|file| file["kld"]["stderr"].as_f64().unwrap() > 0.0));
    // Each file's figures are those of a run over that file only.
    let chunks_of_b = chunks[1].to_string();
    let alone = ["q8_0.gguf", "--json", "--prompts", "b.txt", "--ctx", "32", "--chunks", &chunks_of_b];
    let alone = gguf_verify(&alone, dir.path()).model();
    let (found, expected) = (&files[1]["perplexity"]["value"], &alone["perplexity"]["value"]);
    assert!((found.as_f64().unwrap() / expected.as_f64().unwrap() - 1.0).abs() < 1e-6, "{found} {expected}");
    assert!(alone.get("prompt_files").is_none(), "of one file the figures are the report's");

    let out = gguf_verify(&[&["q8_0.gguf"][..], &cut, &beside].concat(), dir.path()).out;
    let row = out.lines().find(|line| line.starts_with("b.txt")).unwrap_or_else(|| panic!("{out}"));
    assert_eq!(row.split_whitespace().nth(1), Some(chunks_of_b.as_str()), "{out}");
    assert_eq!(row.split_whitespace().count(), 7, "{out}");
    // With several models, a row for each pair.
    let out = gguf_verify(&[&["q8_0.gguf", "q4_0.gguf"][..], &cut, &beside].concat(), dir.path()).out;
    let is_row = |line: &&str| line.starts_with("q4_0.gguf") && line.contains("c.txt");
    assert_eq!(out.lines().filter(is_row).count(), 1, "{out}");

    // More files than chunks: both commands name the files without chunks.
    let few = ["--prompts", "a.txt", "b.txt", "c.txt", "--ctx", "32", "--chunks", "2"];
    let out = gguf_verify(&[&["q8_0.gguf"][..], &few].concat(), dir.path()).out;
    let unread = "`c.txt` is not read: `--chunks` leaves none for it";
    assert!(out.contains(unread) && !out.contains("`b.txt` is not read"), "{out}");
    let imatrix = ["imatrix", "q8_0.gguf", "-o", "i.gguf"];
    gguf_verify(&[&imatrix[..], &few].concat(), dir.path()).says(0, unread);
}

#[test]
fn contexts_beyond_training_are_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let mut base = Tiny::new();
    base.metadata.set("llama.context_length", 64u32);
    base.write(dir.path(), "base.gguf");
    fs_err::write(dir.path().join("p.txt"), &corpus_texts()[0]).unwrap();
    let cut = ["--prompts", "p.txt", "--ctx", "128", "--chunks", "1"];
    let expected = "chunks of 128 tokens: the model was trained on 64";
    let out = gguf_verify(&[&["base.gguf"][..], &cut].concat(), dir.path()).out;
    assert!(out.contains(expected), "{out}");
    let err = gguf_verify(&[&["imatrix", "base.gguf", "-o", "i.gguf"][..], &cut].concat(), dir.path()).err;
    assert!(err.contains(expected), "{err}");
    let tokens: Vec<u32> = (0..70).collect();
    fs_err::write(dir.path().join("l.jsonl"), json!({ "tokens": tokens }).to_string()).unwrap();
    gguf_verify(&["logits", "base.gguf", "--prompts", "l.jsonl"], dir.path())
        .says(0, "a prompt of 70 tokens: the model was trained on 64");
    let question = "word ".repeat(80);
    fs_err::write(dir.path().join("t"), super::tasks::binary(&[(&question, &[(" a", 1), (" b", 0)])]))
        .unwrap();
    let out = gguf_verify(&["base.gguf", "--multiple-choice", "t"], dir.path()).out;
    assert!(out.contains(" tokens: the model was trained on 64") && out.contains("tasks of "), "{out}");
}
