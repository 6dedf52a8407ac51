//! Every option has the effect that its help promises: `options.txt`, line by line.
//!
//! A unit test of the programs holds the table against what clap knows, so that a new option needs a line.

mod table;

use std::collections::BTreeMap;
use std::path::Path;

use super::Made;
use super::guards::workbench::Workbench;
use crate::support::checkpoints::write_zeros;
use crate::support::programs::run;
use crate::support::tiers::deep_test;
use crate::support::{files, fixture};
use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::GgufFile;
use gguf_testkit::slim::{Layout, write_tiny};
use table::{Case, Effect};

/// What a run did: exit code, what it printed, and the files that are new or different.
struct Done {
    code: i32,
    text: String,
    files: BTreeMap<String, Vec<u8>>,
}

/// The workbench with two more kinds of models, and files that options need.
fn inputs() -> Made {
    let bench = Workbench::new();
    for (name, case) in
        [("moe", "qwen3moe/plain"), ("encoder", "bert/bert"), ("joined", "qwen3next/qwen3_next")]
    {
        write_zeros(&bench.path(name), &files::json(fixture(&format!("cards/{case}.json"))));
    }
    let window = bench.path("window");
    files::copy(bench.path("model"), &window);
    files::edit_json(window.join("config.json"), |config| {
        config["architectures"] = serde_json::json!(["MistralForCausalLM"]);
        config["model_type"] = "mistral".into();
        config["sliding_window"] = 64.into();
    });
    fs_err::create_dir(bench.path("ms4")).unwrap();
    write_tiny(Layout::W4A16, 1, &bench.path("ms4"));
    files::copy(bench.path("adapter"), &bench.path("rslora"));
    files::edit_json(bench.path("rslora/adapter_config.json"), |config| config["use_rslora"] = true.into());
    let card = fs_err::read_to_string(bench.path("card.toml")).unwrap();
    fs_err::create_dir(bench.path("cards")).unwrap();
    let other = card.replace("\"LlamaForCausalLM\"", "\"ZebraForCausalLM\"");
    fs_err::write(bench.path("cards/llama.toml"), other).unwrap();
    fs_err::write(bench.path("cards/broken.toml"), "broken").unwrap();
    fs_err::write(bench.path("page.jinja"), "zebra").unwrap();
    for line in table_text("inputs.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        run(words[0], bench.dir(), &words[1..]).exits_with_one_of(&[0, 4]);
    }
    Made::of(bench.dir())
}

fn done(made: &Made, words: &str) -> Done {
    let dir = made.copy();
    let words: Vec<&str> = words.split_whitespace().collect();
    let outcome = run(words[0], dir.path(), &words[1..]);
    let before: BTreeMap<_, _> = made.0.iter().map(|(path, bytes)| (path.as_path(), bytes)).collect();
    let new = |path: std::path::PathBuf| {
        let (name, bytes) = (path.strip_prefix(dir.path()).unwrap().to_owned(), fs_err::read(&path).unwrap());
        let is_old = before.get(name.as_path()).is_some_and(|old| **old == bytes);
        (!is_old).then(|| (name.display().to_string(), bytes))
    };
    let found =
        files::below(dir.path()).into_iter().filter(|path| Path::is_file(path)).filter_map(new).collect();
    Done { code: outcome.code(), text: outcome.text(), files: found }
}

/// What `gguf-inspect` prints about a file, with one blank between words.
fn description(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("file.gguf"), bytes).unwrap();
    let text = run("gguf-inspect", dir.path(), &["file.gguf", "--full"]).text();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Names of the tensors that are not in both files with one type and the same bytes.
fn changed_tensors(one: &[u8], other: &[u8]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = [("one.gguf", one), ("other.gguf", other)].map(|(name, bytes)| {
        fs_err::write(dir.path().join(name), bytes).unwrap();
        let file = GgufFile::open(&dir.path().join(name)).unwrap();
        let tensors = file.tensors().iter().enumerate();
        tensors
            .map(|(at, tensor)| (tensor.name.clone(), (tensor.ty, file.raw_tensor(at).to_vec())))
            .collect::<BTreeMap<_, _>>()
    });
    let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(*name)));
    names.filter(|name| one.get(*name) != other.get(*name)).cloned().collect()
}

/// Returns what is wrong, if the option does not have its effect.
fn fault(case: &Case, without: &Done, with: &Done) -> Option<String> {
    let holds = |done: &Done, file: &str, words: &str| {
        done.files
            .get(file)
            .is_some_and(|bytes| bytes.windows(words.len()).any(|part| part == words.as_bytes()))
    };
    let [is_there, was_there] = [with, without].map(|done| match &case.effect {
        Effect::Changes(file) | Effect::ChangesTensors { file, .. } | Effect::Makes(file) => {
            done.files.contains_key(file)
        }
        Effect::Holds(file, words) => holds(done, file, words),
        Effect::Describes(file, words) => {
            done.files.get(file).is_some_and(|bytes| description(bytes).contains(words))
        }
        Effect::Prints(words) => done.text.contains(words),
        Effect::Exits(code, words) => done.code == *code && done.text.contains(words),
    });
    let is_right = match &case.effect {
        Effect::Changes(file) => is_there && was_there && with.files[file] != without.files[file],
        Effect::ChangesTensors { file, word, is_in_all } => {
            is_there && was_there && {
                let names = changed_tensors(&with.files[file], &without.files[file]);
                !names.is_empty() && names.iter().all(|name| name.contains(word) == *is_in_all)
            }
        }
        _ => is_there != case.is_absent && was_there == case.is_absent,
    };
    let codes = (with.code, without.code);
    (!is_right).then(|| {
        format!("{case}: exit codes {codes:?}\n--- with\n{}\n--- without\n{}", with.text, without.text)
    })
}

deep_test!(every_option_has_its_effect);

fn every_option_has_its_effect() {
    let made = inputs();
    let only = std::env::var("GGUF_FOUNDRY_OPTION").unwrap_or_default();
    let cases: Vec<Case> = table::cases(&table_text("options.txt"));
    let chosen = cases.iter().filter(|case| case.to_string().contains(&only));
    let (mut base, mut faults, mut n) = (BTreeMap::<&str, Done>::new(), Vec::new(), 0);
    for case in chosen {
        let without = base.entry(&case.without).or_insert_with(|| done(&made, &case.without));
        faults.extend(fault(case, without, &done(&made, &case.with)));
        n += 1;
    }
    println!("{n} options tried");
    assert!(n > 0 && faults.is_empty(), "{} of {n}:\n{}", faults.len(), faults.join("\n"));
}

/// Reads a table, so that a change of it needs no build.
fn table_text(name: &str) -> String {
    fs_err::read_to_string(crate::support::root().join("tests/it/cli/effects").join(name)).unwrap()
}
