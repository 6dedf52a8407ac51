//! Inputs that are not files, links to other places, edits that break a file, and too few threads or descriptors or too
//! little memory: a clear message instead of a hang or a panic.
#![cfg(target_os = "linux")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::{GgufFile, Metadata, SplitSpec};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::quantize::program::model;
use crate::support::programs::{self, Outcome};
use crate::support::tiers::deep_test;
use crate::support::{fixture, peak_memory_kib};
use crate::testkit::memory::{MemoryTensors, write_source};

/// Runs a program, which is killed if it does not end.
fn run(program: &str, dir: &Path, args: &[&str]) -> Outcome {
    // Far more seconds than any of these needs; a program that waits for a FIFO ends here.
    let limit = ["-s", "KILL", "60", programs::path(program)];
    programs::finish(Command::new("timeout").args(limit).args(args).current_dir(dir))
}

/// Converts the bundled model to `m.gguf`.
fn convert_tiny(dir: &Path) {
    let model = fixture("tiny-llama");
    run("gguf-convert", dir, &["hf2gguf", model.to_str().unwrap(), "--type", "q8_0", "-o", "m.gguf"]).ok();
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

fn copy_checkpoint(dir: &Path, without: &str) {
    fs_err::create_dir_all(dir).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        if name != without {
            fs_err::copy(fixture("tiny-llama").join(name), dir.join(name)).unwrap();
        }
    }
}

deep_test!(a_fifo_is_refused_wherever_a_file_is_read);
fn a_fifo_is_refused_wherever_a_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    model(&at("in.gguf"), 1, 512, 16);
    fifo(&at("fifo"));
    fs_err::write(at("p.txt"), "some text").unwrap();
    // An importance matrix in the older format: one entry `t` of one call and one value, 1.0.
    let old = [1, 1, i32::from(b't'), 1, 1].map(i32::to_le_bytes);
    let old = [&old[0][..], &old[1], &old[2][..1], &old[3], &old[4], &1f32.to_le_bytes()].concat();
    fs_err::write(at("old.dat"), old).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        copy_checkpoint(&at(&format!("without-{name}")), name);
        fifo(&at(&format!("without-{name}")).join(name));
    }
    copy_checkpoint(&at("hf"), "");
    let made = ["hf2gguf", "hf", "-o", "real.gguf", "--type", "f16", "--no-sync"];
    run("gguf-convert", dir.path(), &made).ok();
    let cases: &[(&str, &[&str])] = &[
        ("gguf-quantize", &["fifo", "out.gguf", "q8_0"]),
        ("gguf-quantize", &["--imatrix", "fifo", "in.gguf", "out.gguf", "q4_k_m"]),
        ("gguf-quantize", &["--tensor-type-file", "fifo", "in.gguf", "out.gguf", "q4_k_m"]),
        ("gguf-convert", &["hf2gguf", "hf", "--metadata", "fifo", "-o", "out.gguf"]),
        ("gguf-convert", &["hf2gguf", "hf", "--chat-template", "fifo", "-o", "out.gguf"]),
        ("gguf-convert", &["hf2gguf", "hf", "--card", "fifo", "-o", "out.gguf"]),
        ("gguf-convert", &["hf2gguf", "without-config.json", "-o", "out.gguf"]),
        ("gguf-convert", &["hf2gguf", "without-tokenizer.json", "-o", "out.gguf"]),
        ("gguf-convert", &["hf2gguf", "without-tokenizer_config.json", "-o", "out.gguf"]),
        ("gguf-convert", &["hf2gguf", "without-model.safetensors", "-o", "out.gguf"]),
        ("gguf-convert", &["flm2gguf", "fifo", "-o", "out.gguf"]),
        ("gguf-convert", &["gguf2hf", "fifo", "-o", "out"]),
        ("gguf-verify", &["fifo", "--structure-only"]),
        ("gguf-verify", &["in.gguf", "--prompts", "fifo"]),
        ("gguf-verify", &["in.gguf", "--prompts", "p.txt", "--baseline", "fifo"]),
        ("gguf-verify", &["in.gguf", "--hellaswag", "fifo"]),
        ("gguf-verify", &["logits", "in.gguf", "--prompts", "fifo"]),
        ("gguf-verify", &["logits", "fifo", "--prompts", "p.txt"]),
        ("gguf-verify", &["imatrix", "fifo", "--prompts", "p.txt", "-o", "out.gguf"]),
        ("gguf-verify", &["imatrix", "in.gguf", "--prompts", "fifo", "-o", "out.gguf"]),
        (
            "gguf-verify",
            &["imatrix", "real.gguf", "--prompts", "p.txt", "--in-file", "fifo", "-o", "out.gguf"],
        ),
        ("gguf-verify", &["imatrix", "merge", "fifo", "fifo", "-o", "out.gguf"]),
        ("gguf-verify", &["imatrix", "merge", "old.dat", "fifo", "-o", "out.gguf"]),
        ("gguf-verify", &["imatrix", "show", "fifo"]),
        ("gguf-inspect", &["fifo"]),
        ("gguf-inspect", &["diff", "in.gguf", "fifo"]),
        ("gguf-inspect", &["hash", "fifo"]),
        ("gguf-inspect", &["get", "fifo", "general.name"]),
        ("gguf-inspect", &["set", "fifo", "general.name=x"]),
        ("gguf-inspect", &["set", "in.gguf", "general.name=@fifo"]),
        ("gguf-inspect", &["split", "fifo", "-o", "out"]),
    ];
    for (program, args) in cases {
        let ended = run(program, dir.path(), args);
        assert!(matches!(ended.code, Some(1..=3)), "{program} {args:?}: {:?} {}", ended.code, ended.err);
        assert!(ended.err.contains("not a regular file: a FIFO"), "{program} {args:?}: {}", ended.err);
    }
}

#[test]
fn text_of_other_directories_does_not_get_in_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    copy_checkpoint(&at("hf"), "");
    fs_err::write(at("secret"), "{{ messages }} secret").unwrap();
    symlink("../secret", at("hf/chat_template.jinja")).unwrap();
    let args = ["hf2gguf", "hf", "-o", "out.gguf"];
    let err = run("gguf-convert", dir.path(), &args)
        .says(1, "chat_template.jinja: a link that leads out of the model's directory")
        .err;
    assert!(err.contains("--follow-links") && !at("out.gguf").exists(), "{err}");
    run("gguf-convert", dir.path(), &[&args[..], &["--follow-links"]].concat()).ok();
    let written = GgufFile::open(&at("out.gguf")).unwrap();
    let template = written.metadata().get("tokenizer.chat_template").unwrap();
    assert_eq!(template.as_str(), Some("{{ messages }} secret"));
    let ended = run("gguf-convert", dir.path(), &["flm2gguf", "x.flm", "--follow-links"]);
    assert!(ended.code != Some(0), "{}", ended.err);
}

#[test]
fn a_snapshot_in_the_hubs_cache_is_made_of_links_and_converts() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, snapshot) =
        (dir.path().join("models--a--b/blobs"), dir.path().join("models--a--b/snapshots/0f"));
    fs_err::create_dir_all(&snapshot).unwrap();
    copy_checkpoint(&blobs, "");
    fs_err::write(blobs.join("template"), "T").unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        symlink(format!("../../blobs/{name}"), snapshot.join(name)).unwrap();
    }
    symlink("../../blobs/template", snapshot.join("chat_template.jinja")).unwrap();
    let path = snapshot.to_str().unwrap();
    run("gguf-convert", dir.path(), &["hf2gguf", path, "-o", "out.gguf"]).ok();
}

deep_test!(too_many_threads_are_capped_and_none_is_an_error);
fn too_many_threads_are_capped_and_none_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 1, 512, 64);
    let quantize = |limits: &str, stack: &str, threads: &str, out: &str| {
        let mut command = programs::limited(limits, "gguf-quantize", dir.path());
        command.env("RUST_MIN_STACK", stack).env_remove("RUST_BACKTRACE");
        let args = ["--no-sync", "--threads", threads, "in.gguf", out, "q4_k_m"];
        programs::finish(command.args(args))
    };
    quantize("true", "1048576", "2", "two.gguf").ok();
    quantize("true", "1048576", "65535", "many.gguf").says(0, "threads instead of 65535");
    // Stacks of a GiB in an address space of six: enough for only a few threads.
    quantize("ulimit -v 6291456", "1073741824", "64", "few.gguf")
        .says(0, " of 64 threads: the limit of processes");
    let read = |name: &str| fs_err::read(dir.path().join(name)).unwrap();
    assert!(read("two.gguf") == read("many.gguf") && read("two.gguf") == read("few.gguf"));
    let err = quantize("ulimit -v 1048576", "4294967296", "8", "none.gguf").exits_with(1).err;
    assert!(err.contains("cannot start a thread") && !err.contains("panicked"), "{err}");
    assert!(!dir.path().join("none.gguf").exists());
}

#[test]
fn a_verification_runs_with_the_threads_there_is_room_for() {
    let dir = tempfile::tempdir().unwrap();
    convert_tiny(dir.path());
    fs_err::write(dir.path().join("p.jsonl"), "{\"tokens\": [1, 2, 3]}\n{\"tokens\": [1, 5]}\n").unwrap();
    let logits = |limits: &str, stack: &str, threads: &str| {
        let mut command = programs::limited(limits, "gguf-verify", dir.path());
        let args = ["logits", "m.gguf", "--prompts", "p.jsonl", "--memory", "64M", "--threads", threads];
        let ended = programs::finish(command.env("RUST_MIN_STACK", stack).args(args)).ok();
        (ended.out, ended.err)
    };
    let (whole, _) = logits("true", "1048576", "1");
    let (few, err) = logits("ulimit -v 8388608", "1073741824", "64");
    assert!(err.contains(" of 64 threads"), "{err}");
    assert!(whole == few && whole.split('\n').count() == 3);
}

deep_test!(two_thousand_parts_are_read_with_256_descriptors);

/// Every day 300 parts.
fn two_thousand_parts_are_read_with_256_descriptors() {
    let n_parts: usize = 2000;
    let name = |part: usize| format!("m-{part:05}-of-{n_parts:05}.gguf");
    let dir = tempfile::tempdir().unwrap();
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "nobody");
    for part in 0..n_parts {
        let tensor = MemoryTensors::of_f32(&[(&format!("blk.{part}.x.weight"), &[1, 32], &[1.0; 32])]);
        let metadata = SplitSpec::default().part_metadata(&metadata, part, n_parts, n_parts);
        write_source(&dir.path().join(name(part + 1)), &metadata, &tensor);
    }
    let first = name(1);
    let first = first.as_str();
    for (program, args) in [
        ("gguf-inspect", vec!["hash", first]),
        ("gguf-quantize", vec!["--no-sync", first, "out.gguf", "f16"]),
        ("gguf-verify", vec!["--structure-only", first]),
    ] {
        let mut command = programs::limited("ulimit -n 256", program, dir.path());
        let err = programs::finish(command.args(&args)).exits_with_one_of(&[0, 4]).err;
        assert!(!err.contains("open files"), "{program}: {err}");
    }
    assert_eq!(GgufFile::open(&dir.path().join("out.gguf")).unwrap().tensors().len(), n_parts);
}

// Every day `verify::memory` holds a run to its budget.
deep_test!(logits_of_many_prompts_stay_within_the_budget);

fn logits_of_many_prompts_stay_within_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    convert_tiny(dir.path());
    let mut peaks = Vec::new();
    for n_prompts in [100usize, 2000] {
        let lines: Vec<String> =
            (0..n_prompts).map(|at| format!("{{\"tokens\": [{}]}}", at % 50 + 1)).collect();
        fs_err::write(dir.path().join("p.jsonl"), lines.join("\n")).unwrap();
        let mut command = programs::command("gguf-verify", dir.path());
        command.args(["logits", "m.gguf", "--prompts", "p.jsonl"]);
        command.args(["--no-sync", "--quiet", "--memory", "24M", "--threads", "2", "-o", "out.jsonl"]);
        peaks.push(peak_memory_kib(&mut command));
        let text = fs_err::read_to_string(dir.path().join("out.jsonl")).unwrap();
        assert_eq!(text.lines().count(), n_prompts);
        for (at, line) in text.lines().enumerate().step_by(97) {
            assert!(
                line.starts_with(&format!("{{\"prompt\":{at},\"logits\":[")) && line.ends_with("]}"),
                "{at}"
            );
        }
    }
    // The lines alone are larger than the difference that is allowed.
    let bytes = fs_err::metadata(dir.path().join("out.jsonl")).unwrap().len();
    assert!(bytes > 20 << 20, "{bytes}");
    assert!(peaks[1] < peaks[0] + (16 << 10), "{peaks:?} KiB");
}

/// Files of a checkpoint, and a folder, where a GGUF file belongs.
#[test]
fn what_belongs_to_a_checkpoint_is_called_so() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs_err::copy(fixture("tiny-llama").join(name), dir.path().join(name)).unwrap();
    }
    convert_tiny(dir.path());
    let matrix = "make one with `gguf-verify imatrix`";
    for (program, line, hint) in [
        ("gguf-inspect", "config.json", "`gguf-inspect checkpoint DIR`"),
        ("gguf-inspect", ".", "`gguf-inspect checkpoint DIR`"),
        ("gguf-inspect", "model.safetensors", "`gguf-convert hf2gguf DIR`"),
        ("gguf-verify", "m.gguf --baseline config.json", "`gguf-inspect checkpoint DIR`"),
        ("gguf-quantize", "--type q4_0 --allow-requantize --imatrix config.json m.gguf", matrix),
        ("gguf-quantize", "--type q4_0 --allow-requantize --imatrix model.safetensors m.gguf", matrix),
        ("gguf-convert", "merge-lora m.gguf .", "`gguf-convert gguf2hf FILE.gguf -o DIR`"),
        ("gguf-convert", "merge-lora . m.gguf", "`adapter_config.json`"),
        ("gguf-convert", "merge-lora . --lora a", "`gguf-convert merge-lora . a`"),
    ] {
        let ended = run(program, dir.path(), &line.split(' ').collect::<Vec<_>>());
        let hints = ended.err.lines().filter(|text| text.starts_with("hint: ")).collect::<String>();
        assert!(ended.code != Some(0) && hints.contains(hint), "{program} {line}: {}", ended.err);
    }
}
