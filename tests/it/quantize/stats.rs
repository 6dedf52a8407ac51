//! `gguf-quantize stats`, whole and in parts, and `gguf-verify combine` for the parts.

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

fn combine(dir: &Path, args: &[&str]) -> Outcome {
    programs::run("gguf-verify", dir, &[&["combine", "--no-sync"], args].concat())
}

fn ok(dir: &Path, args: &[&str]) -> Json {
    stats(dir, &[&["--json"], args].concat()).ok().json()
}

fn refused(dir: &Path, args: &[&str], code: i32, words: &str) {
    stats(dir, args).says(code, words);
}

two_tiers!(parts_make_what_a_quantization_saves);

/// In the deep tier the model writes the third text. Every day it is given: `a_text_of_the_model_is_kept_for_others` has
/// parts of a written one.
fn parts_make_what_a_quantization_saves(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(tier, dir);
    fs_err::copy(dir.join("text.txt"), dir.join("third.txt")).unwrap();
    let (third, kept): (&[&str], &[&str]) = if tier.is_deep() {
        (&["--calibrate-tokens", "9000"], &["--self-text", "self.text"])
    } else {
        (&["--calibrate-tokens", "3072", "--calibrate", "third.txt", "--no-self-text"], &[])
    };
    let two = ["in.gguf", "--calibrate", "text.txt", "--calibrate", "rest.txt"];
    let texts = [&two[..], third].concat();
    let quantize = ["--type", "q4_k_m", "--solver", "gptq", "--save-stats", "saved"];
    run(dir, &[&quantize[..], &texts, &["one.gguf"]].concat()).ok();
    let whole = ok(dir, &[&texts[..], &["-o", "whole"]].concat());
    assert!(files::contents(dir.join("whole")) == files::contents(dir.join("saved")));
    assert_eq!((&whole["part"], &whole["layers"]), (&Json::Null, &3.into()));
    assert_eq!(whole["kinds"][2]["name"], tier.of("third.txt", "self"));

    let mut tokens = 0;
    for part in ["1/3", "2/3", "3/3"] {
        let name = format!("part-{}", &part[..1]);
        let found = ok(dir, &[&texts[..], &["--part", part, "-o", &name], kept].concat());
        tokens += found["tokens"].as_u64().unwrap();
        assert_eq!((&found["part"], &found["all_tokens"]), (&part.into(), &whole["tokens"]));
    }
    assert_eq!(whole["tokens"], tokens);
    combine(dir, &["part-3", "part-1", "part-2", "-o", "together"])
        .prints(0, "together: statistics of ")
        .prints(0, "tokens of 3 kinds of text in 3 parts");
    assert!(files::contents(dir.join("together")) == files::contents(dir.join("whole")));
    // Every day in `kept`, by statistics of one run.
    if tier.is_deep() {
        let by_stats = ["--type", "q4_k_m", "--solver", "gptq", "--stats", "together", "in.gguf", "two.gguf"];
        run(dir, &by_stats).ok();
        assert!(fs_err::read(dir.join("one.gguf")).unwrap() == fs_err::read(dir.join("two.gguf")).unwrap());
    }

    // A part that exists is not collected again; another or damaged part is refused.
    let again = [&texts[..], &["--part", "2/3", "-o", "part-2"], kept].concat();
    let before = files::contents(dir.join("part-2"));
    stats(dir, &again).says(0, "this part was there already");
    let of_another = [&texts[..], &["--part", "1/3", "-o", "part-2"], kept].concat();
    refused(dir, &of_another, 1, "directory is not empty");
    assert!(files::contents(dir.join("part-2")) == before);
    let file = dir.join("part-2/moments-00001.safetensors");
    let bytes = fs_err::read(&file).unwrap();
    fs_err::write(&file, [&bytes[..bytes.len() - 1], &[bytes[bytes.len() - 1] ^ 1]].concat()).unwrap();
    refused(dir, &again, 1, "directory is not empty");
    fs_err::write(&file, bytes).unwrap();

    // A part is not accepted as whole statistics, nor the reverse.
    let (code, _, err) =
        run(dir, &["--type", "q4_0", "--solver", "gptq", "--stats", "part-1", "in.gguf", "x.gguf"]).parts();
    assert!(code == 1 && err.contains("part 1 of 3 of statistics, whole ones expected"), "{err}");
    assert!(err.contains("`gguf-verify combine` puts all parts together"), "{err}");
    for (args, code, words) in [
        (&["part-1", "part-2", "-o", "x"][..], 1, "one is missing: 3/3"),
        (&["part-1", "part-2", "part-2", "part-3", "-o", "x"], 1, "part 2 is given twice: part-2 and part-2"),
        (&["part-1", "whole", "-o", "x"], 1, "whole: statistics of a whole text"),
        (&["part-1", "in.gguf", "-o", "x"], 2, "in.gguf is neither of a verification nor of statistics"),
        (&["part-1", "part-2", "part-3"], 2, "give `-o DIR`"),
        (&["part-1", "part-2", "part-3", "-o", "whole"], 1, "directory is not empty"),
        (
            &["part-1", "part-2", "part-3", "-o", "x", "--legacy"],
            2,
            "`--legacy` is about importance matrices",
        ),
        (&["part-1", "part-2", "part-3", "-o", "x", "--max-kld", "1"], 2, "`--max-kld` is about a verdict"),
    ] {
        combine(dir, args).says(code, words);
    }
    assert!(!dir.join("x").exists() && !dir.join("x.gguf").exists());
}

deep_test!(a_text_of_the_model_is_kept_for_others);

/// The model's text is written once, and only used where it belongs.
fn a_text_of_the_model_is_kept_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(Tier::Everyday, dir);
    // More than one batch, so that there are two parts.
    let base = ["--calibrate", "self", "--calibrate-tokens", "2304", "in.gguf"];
    let kept = ["--self-text", "self.text", "-o"];
    stats(dir, &[&base[..], &["--part", "1/2", "-o", "a"]].concat()).says(0, "`--self-text FILE` keeps it");
    let err = stats(dir, &[&base[..], &["--part", "1/2"], &kept, &["b"]].concat()).ok().err;
    assert!(!err.contains("keeps it"), "{err}");
    assert!(files::contents(dir.join("a")) == files::contents(dir.join("b")));
    let written = fs_err::read(dir.join("self.text")).unwrap();
    // It is read, not written again: even a changed text is used if its digest matches.
    ok(dir, &[&base[..], &["--part", "2/2"], &kept, &["c"]].concat());
    assert!(fs_err::read(dir.join("self.text")).unwrap() == written);
    combine(dir, &["a", "c", "-o", "whole"]).ok();

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
    refused(dir, &[&base[..], &["-o", "x", "--part", "1/9"]].concat(), 1, "which are 2 batches");
    refused(dir, &[&base[..], &["-o", "x", "--part", "4/3"]].concat(), 2, "a share such as `2/8` expected");
    refused(dir, &[&base[..], &["-o", "x", "--memory", "1M"]].concat(), 1, "memory budget of 1048576 bytes");
    refused(dir, &[&base[..], &["-o", "."]].concat(), 1, "directory is not empty");
    refused(dir, &[&base[..], &["-o", "text.txt"]].concat(), 1, "text.txt");
    refused(dir, &[&base[..], &["-o", "x", "--check-text", "text.txt"]].concat(), 2, "another text expected");
    refused(dir, &[&base[..], &["-o", "x", "--type", "q4_0"]].concat(), 2, "--type");
    refused(dir, &[&base[..], &["-o", "x", "--check-text", "absent.txt"]].concat(), 1, "absent.txt");
    let before = fs_err::read_dir(dir).unwrap().count();
    stats(dir, &[&base[..], &["--dry-run", "-o", "x", "--part", "1/2"]].concat())
        .prints(0, "part 1/2: 2 048 of ");
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
