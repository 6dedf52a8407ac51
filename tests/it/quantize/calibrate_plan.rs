//! `--dry-run` with `--calibrate`.

use std::path::Path;

use serde_json::Value as Json;

use super::calibrate::prepare_two_layers as prepare;
use super::run;
use crate::support::tiers::{Tier, deep_test};

fn ok(dir: &Path, args: &[&str]) -> Json {
    run(dir, &[&["--json"], args].concat()).ok().json()
}

fn refused(dir: &Path, args: &[&str], code: i32, words: &str) {
    run(dir, args).says(code, words);
}

fn same(dir: &Path, a: &str, b: &str) -> bool {
    fs_err::read(dir.join(a)).unwrap() == fs_err::read(dir.join(b)).unwrap()
}

deep_test!(a_dry_run_says_what_calibration_would_take);

fn a_dry_run_says_what_calibration_would_take() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(Tier::Everyday, dir);
    let before = fs_err::read_dir(dir).unwrap().count();
    let base = ["--type", "q4_k_m", "--dry-run", "in.gguf", "out.gguf"];
    let tokens = ["--calibrate-tokens", "4096"];
    let rule = ["--tensor-type", "ffn_down=q8_0", "--calibrate", "text.txt"];
    let (_, out, err) = run(dir, &[&base[..], &tokens, &rule].concat()).ok().parts();
    for words in [
        "calibration by `sequential`: ",
        "rounded as usual, since their type cannot be calibrated: 2 tensors: `blk.0.ffn_down.weight` (Q8_0)",
        "text: text.txt (1",
        " tokens, to be written by the model); ",
        "memory in addition to the weights: ",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    // Also with several kinds, half of the text is the model's.
    let three = ["--calibrate", "text.txt", "--calibrate", "rest.txt"];
    let three = ok(dir, &[&base[..], &tokens, &three].concat());
    let kinds = three["calibration"]["kinds"].as_array().unwrap().iter();
    let kinds: Vec<_> = kinds.map(|kind| (kind["name"].as_str(), kind["tokens"].as_u64())).collect();
    // One of every two sequences is held back.
    let expected = [("text.txt", 512), ("rest.txt", 512), ("self", 2048)];
    assert_eq!(kinds, expected.map(|(name, n)| (Some(name), Some(n))));
    // The importance matrix will exist.
    assert!(!err.contains("would stop here"), "{err}");
    let text = ["--calibrate", "text.txt", "--no-self-text", "--calibrate-tokens", "2048"];
    let dry = [&base[..], &text].concat();
    let plan = ok(dir, &dry);
    let calibration = &plan["calibration"];
    // One of four sequences is held back.
    assert_eq!(calibration["kinds"][0]["tokens"], 1536);
    let need = calibration["needed_bytes"].as_u64().unwrap();
    assert!(calibration["matrices"].as_u64().unwrap() > 10 && need > 1 << 20, "{calibration}");
    assert!(calibration["is_spilling"] == false && calibration["in_memory_bytes"].as_u64() > Some(need));
    // The reported budget is enough, and a little less is not.
    let real = [&["--type", "q4_k_m"], &text[..]].concat();
    let enough = need.to_string();
    run(dir, &[&dry[..], &["--memory", &enough]].concat()).prints(0, " allowed, hidden states on disk (");
    let report = ok(dir, &[&real[..], &["--memory", &enough, "in.gguf", "small.gguf"]].concat());
    assert_eq!(report["total"], plan["total"], "types are those of a run");
    ok(dir, &[&real[..], &["in.gguf", "large.gguf"]].concat());
    assert!(same(dir, "small.gguf", "large.gguf"));
    for name in ["small.gguf", "large.gguf"] {
        fs_err::remove_file(dir.join(name)).unwrap();
    }
    let less = (need - 1).to_string();
    run(dir, &[&dry[..], &["--memory", &less]].concat()).says(0, "a run would stop here: memory budget of");
    refused(dir, &[&real[..], &["--memory", &less, "in.gguf", "x.gguf"]].concat(), 1, "memory budget of");
    assert_eq!(fs_err::read_dir(dir).unwrap().count(), before);
    refused(dir, &[&base[..], &["--calibrate", "absent.txt"]].concat(), 1, "absent.txt");
}
