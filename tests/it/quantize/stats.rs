//! `gguf-quantize stats`: statistics for later quantizations.

use std::path::Path;

use serde_json::Value as Json;

use super::calibrate::prepare_two_layers as prepare;
use super::{run, write_two_layers};
use crate::support::files;
use crate::support::programs::{self, Outcome};
use crate::support::tiers::{Tier, deep_test, two_tiers};

fn stats(dir: &Path, args: &[&str]) -> Outcome {
    programs::run("gguf-quantize", dir, &[&["stats", "--no-sync"], args].concat())
}

fn ok(dir: &Path, args: &[&str]) -> Json {
    stats(dir, &[&["--json"], args].concat()).ok().json()
}

fn refused(dir: &Path, args: &[&str], code: i32, words: &str) {
    stats(dir, args).says(code, words);
}

two_tiers!(statistics_are_those_that_a_quantization_saves);

/// In the deep tier the model writes the third text. Every day it is given.
fn statistics_are_those_that_a_quantization_saves(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(tier, dir);
    fs_err::copy(dir.join("text.txt"), dir.join("third.txt")).unwrap();
    let third: &[&str] = if tier.is_deep() {
        &["--calibrate-tokens", "9000"]
    } else {
        &["--calibrate-tokens", "3072", "--calibrate", "third.txt", "--no-self-text"]
    };
    let two = ["in.gguf", "--calibrate", "text.txt", "--calibrate", "rest.txt"];
    let texts = [&two[..], third].concat();
    let quantize = ["--type", "q4_k_m", "--solver", "gptq", "--save-stats", "saved"];
    run(dir, &[&quantize[..], &texts, &["one.gguf"]].concat()).ok();
    let whole = ok(dir, &[&texts[..], &["-o", "whole"]].concat());
    assert!(files::contents(dir.join("whole")) == files::contents(dir.join("saved")));
    assert_eq!(whole["layers"], 3);
    assert_eq!(whole["kinds"][2]["name"], tier.of("third.txt", "self"));

    // Every day in `kept`, by statistics of one run.
    if tier.is_deep() {
        let by_stats = ["--type", "q4_k_m", "--solver", "gptq", "--stats", "whole", "in.gguf", "two.gguf"];
        run(dir, &by_stats).ok();
        assert!(fs_err::read(dir.join("one.gguf")).unwrap() == fs_err::read(dir.join("two.gguf")).unwrap());
    }

    // Statistics that exist are not collected again; those of another text or damaged ones are refused.
    let again = [&texts[..], &["-o", "whole"]].concat();
    let before = files::contents(dir.join("whole"));
    stats(dir, &again).says(0, "these statistics were there already");
    let of_another = [&two[..], &["--calibrate-tokens", "3072", "--no-self-text", "-o", "whole"]].concat();
    refused(dir, &of_another, 1, "directory is not empty");
    assert!(files::contents(dir.join("whole")) == before);
}

deep_test!(a_text_of_the_model_is_kept_for_others);

/// The model's text is written once, and only used where it belongs.
fn a_text_of_the_model_is_kept_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(Tier::Everyday, dir);
    let base = ["--calibrate", "self", "--calibrate-tokens", "2304", "in.gguf"];
    let kept = ["--self-text", "self.text", "-o"];
    ok(dir, &[&base[..], &["-o", "a"]].concat());
    ok(dir, &[&base[..], &kept, &["b"]].concat());
    assert!(files::contents(dir.join("a")) == files::contents(dir.join("b")));
    let written = fs_err::read(dir.join("self.text")).unwrap();
    // It is read, not written again: even a changed text is used if its digest matches.
    ok(dir, &[&base[..], &kept, &["c"]].concat());
    assert!(fs_err::read(dir.join("self.text")).unwrap() == written);
    assert!(files::contents(dir.join("a")) == files::contents(dir.join("c")));

    let damaged: Vec<u8> = written.iter().map(|&byte| if byte == b'7' { b'8' } else { byte }).collect();
    fs_err::write(dir.join("damaged.text"), damaged).unwrap();
    fs_err::create_dir(dir.join("folder")).unwrap();
    for (file, words) in [
        ("damaged.text", "no text that a model has written, or a damaged one"),
        ("rest.txt", "no text that a model has written, or a damaged one"),
        ("folder", "no text that a model has written"),
        ("in.gguf", "it is also another input"),
    ] {
        let code = if file == "in.gguf" { 2 } else { 1 };
        refused(dir, &[&base[..], &["--self-text", file, "-o", "x"]].concat(), code, words);
    }
    // Other options need another text.
    let other = ["--calibrate", "self", "--calibrate-tokens", "5000", "in.gguf"];
    let words = "text that another model, or this one with other options, has written";
    refused(dir, &[&other[..], &kept, &["x"]].concat(), 1, words);
    refused(dir, &[&base[..], &["--check-text", "rest.txt"], &kept, &["x"]].concat(), 1, words);
    refused(dir, &[&base[..], &["--no-self-text", "-o", "x"]].concat(), 2, "--no-self-text");
    refused(dir, &[&base[..], &["--self-text", "no/such/dir/file", "-o", "x"]].concat(), 1, "no/such/dir");
    assert!(fs_err::read(dir.join("self.text")).unwrap() == written && !dir.join("x").exists());
}

#[test]
fn what_cannot_be_collected_is_refused_before_anything_is_run() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(Tier::Everyday, dir);
    let base = ["--calibrate", "text.txt", "--no-self-text", "--calibrate-tokens", "3000", "in.gguf"];
    refused(dir, &["in.gguf", "-o", "x"], 2, "--calibrate");
    refused(dir, &base, 2, "--output");
    refused(dir, &[&base[..], &["-o", "x", "--memory", "1M"]].concat(), 1, "memory budget of 1048576 bytes");
    refused(dir, &[&base[..], &["-o", "."]].concat(), 1, "directory is not empty");
    refused(dir, &[&base[..], &["-o", "text.txt"]].concat(), 1, "text.txt");
    refused(dir, &[&base[..], &["-o", "x", "--check-text", "text.txt"]].concat(), 2, "another text expected");
    refused(dir, &[&base[..], &["-o", "x", "--type", "q4_0"]].concat(), 2, "--type");
    refused(dir, &[&base[..], &["-o", "x", "--check-text", "absent.txt"]].concat(), 1, "absent.txt");
    let before = fs_err::read_dir(dir).unwrap().count();
    stats(dir, &[&base[..], &["--dry-run", "-o", "x"]].concat()).prints(0, "of 1 kind of text");
    let plan = ok(dir, &[&base[..], &["-o", "in.gguf", "--dry-run"]].concat());
    assert!(plan["needed_bytes"].as_u64() < plan["in_memory_bytes"].as_u64(), "{plan}");
    // The reported budget is enough.
    let enough = plan["needed_bytes"].to_string();
    ok(dir, &[&base[..], &["-o", "small", "--memory", &enough]].concat());
    ok(dir, &[&base[..], &["-o", "large"]].concat());
    assert!(files::contents(dir.join("small")) == files::contents(dir.join("large")));
    assert_eq!(fs_err::read_dir(dir).unwrap().count(), before + 2);
}

deep_test!(statistics_of_a_checkpoint_serve_its_quantization);

/// A checkpoint is run like the file in its quantization.
fn statistics_of_a_checkpoint_serve_its_quantization() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(Tier::Everyday, dir);
    write_two_layers(Tier::Everyday, &dir.join("hf"));
    let model = "hf";
    let texts = ["--calibrate", "text.txt", "--no-self-text", "--calibrate-tokens", "1024"];
    ok(dir, &[&texts[..], &[model, "-o", "stats"]].concat());
    run(dir, &["--type", "q4_0", "--solver", "gptq", "--stats", "stats", model, "a.gguf"]).ok();
    let quantize = ["--type", "q4_0", "--solver", "gptq"];
    run(dir, &[&quantize[..], &texts, &[model, "b.gguf"]].concat()).ok();
    assert!(fs_err::read(dir.join("a.gguf")).unwrap() == fs_err::read(dir.join("b.gguf")).unwrap());
}
