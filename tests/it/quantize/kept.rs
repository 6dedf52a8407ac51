//! `--save-stats`, `--stats`: a second quantization without a run; `--dry-run` with `--calibrate`.

use std::path::Path;

use serde_json::Value as Json;

use super::calibrate::prepare_two_layers as prepare;
use super::run;
use crate::support::tiers::{Tier, deep_test, two_tiers};

fn ok(dir: &Path, args: &[&str]) -> Json {
    run(dir, &[&["--json"], args].concat()).ok().json()
}

fn refused(dir: &Path, args: &[&str], code: i32, words: &str) {
    run(dir, args).says(code, words);
}

/// Part of the text that is not for the solver.
fn short_check(dir: &Path) -> String {
    let text = fs_err::read_to_string(dir.join("rest.txt")).unwrap();
    text[..text.floor_char_boundary(4000)].to_owned()
}

fn same(dir: &Path, a: &str, b: &str) -> bool {
    fs_err::read(dir.join(a)).unwrap() == fs_err::read(dir.join(b)).unwrap()
}

two_tiers!(statistics_give_the_bytes_of_the_run_that_saved_them);

fn statistics_give_the_bytes_of_the_run_that_saved_them(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(tier, dir);
    let text = fs_err::read_to_string(dir.join("rest.txt")).unwrap();
    let half = text.floor_char_boundary(text.len() / 2);
    fs_err::write(dir.join("second.txt"), &text[..half]).unwrap();
    fs_err::write(dir.join("check.txt"), &text[half..]).unwrap();
    // Every day fewer matrices are solved.
    let fewer: &[&str] = if tier.is_deep() { &[] } else { &["--tensor-type", "ffn=q8_0"] };
    let gptq = [&["--type", "q4_k_m", "--solver", "gptq"], fewer].concat();
    let texts = ["--calibrate", "text.txt", "--calibrate", "second.txt", "--no-self-text"];
    let texts = [&texts[..], &["--calibrate-tokens", tier.of("2048", "3000")]].concat();
    let run_of = [&gptq[..], &texts].concat();
    ok(dir, &[&run_of[..], &["in.gguf", "plain.gguf"]].concat());
    ok(dir, &[&run_of[..], &["--save-stats", "stats", "in.gguf", "saved.gguf"]].concat());
    // Saving more moments than are solved changes nothing.
    assert!(same(dir, "plain.gguf", "saved.gguf"));
    let stats = [&gptq[..], &["--stats", "stats", "in.gguf"]].concat();
    let report = ok(dir, &[&stats[..], &["again.gguf", "--threads", "1"]].concat());
    assert!(same(dir, "plain.gguf", "again.gguf"));
    let kinds = report["calibration"]["kinds"].as_array().unwrap();
    assert!(kinds.len() == 2 && kinds[0]["tokens"].as_u64().unwrap() > tier.of(500, 1000), "{report}");

    // Another type, another mixture, another text for the check.
    let other = ["--type", "q3_k_m", "--solver", "gptq", "--stats", "stats", "in.gguf", "other.gguf"];
    let report = ok(dir, &[&other[..], &["--kinds", "second.txt", "--check-text", "check.txt"]].concat());
    let calibration = &report["calibration"];
    assert_eq!(calibration["kinds"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&calibration["kinds"][0]["name"], &calibration["kinds"][0]["check_tokens"]),
        (&"second.txt".into(), &0.into())
    );
    assert_eq!(calibration["check"][0]["name"], "check.txt");
    assert!(calibration["ratio"].as_f64().unwrap() < 1.0, "{report}");
    let report = ok(dir, &[&stats[..], &["--dry-run"]].concat());
    assert!(report["calibration"]["needed_bytes"].as_u64().unwrap() > 0, "{report}");

    refused(
        dir,
        &[&stats[..], &["x.gguf", "--kinds", "third"]].concat(),
        1,
        "there are `text.txt`, `second.txt`",
    );
    refused(dir, &[&stats[..], &["x.gguf", "--calibrate", "text.txt"]].concat(), 2, "cannot be used with");
    // A run that was stopped before its output was written finds its saved statistics; those of another text are
    // refused.
    fs_err::remove_file(dir.join("saved.gguf")).unwrap();
    ok(dir, &[&run_of[..], &["--save-stats", "stats", "in.gguf", "saved.gguf"]].concat());
    assert!(same(dir, "plain.gguf", "saved.gguf"));
    let less =
        [&gptq[..], &["--calibrate", "text.txt", "--no-self-text", "--calibrate-tokens", "3000"]].concat();
    refused(
        dir,
        &[&less[..], &["--save-stats", "stats", "in.gguf", "x.gguf"]].concat(),
        1,
        "stats: directory is not empty",
    );
    // Damaged statistics are refused too.
    let layer = dir.join("stats/moments-00000.safetensors");
    let bytes = fs_err::read(&layer).unwrap();
    fs_err::write(&layer, &bytes[..bytes.len() - 1]).unwrap();
    refused(dir, &[&run_of[..], &["--save-stats", "stats", "in.gguf", "x.gguf"]].concat(), 1, "stats");
    fs_err::write(&layer, bytes).unwrap();
    for option in [&["--stats", "stats"][..], &["--calibrate", "text.txt", "--save-stats", "new"]] {
        let args = [&["--type", "q4_k_m", "in.gguf", "x.gguf"], option].concat();
        refused(dir, &args, 2, "choose `--solver gptq`");
    }
    run(dir, &["--type", "f16", "in.gguf", "half.gguf"]).ok();
    let half = [&gptq[..], &["--stats", "stats", "half.gguf", "x.gguf"]].concat();
    refused(dir, &half, 1, "statistics of another model: digest ");
    refused(
        dir,
        &[&gptq[..], &["--stats", ".", "in.gguf", "x.gguf"]].concat(),
        1,
        "expected a directory that",
    );
    let file = dir.join("stats/moments-00001.safetensors");
    let bytes = fs_err::read(&file).unwrap();
    fs_err::write(&file, &bytes[..bytes.len() - 9]).unwrap();
    refused(dir, &[&stats[..], &["x.gguf"]].concat(), 1, "moments-00001.safetensors");
    assert!(!dir.join("x.gguf").exists() && !dir.join("new").exists());
}

deep_test!(statistics_without_a_check_ask_for_one);

/// Statistics of a run without held-back text need a text for the check.
fn statistics_without_a_check_ask_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(Tier::Everyday, dir);
    let base =
        ["--type", "q4_0", "--solver", "gptq", "--calibrate-tokens", "1024", "--check-text", "check.txt"];
    let text = ["--calibrate", "text.txt", "--no-self-text", "--save-stats", "stats", "--work-dir", "work"];
    fs_err::write(dir.join("check.txt"), short_check(dir)).unwrap();
    ok(dir, &[&base[..], &text, &["in.gguf", "saved.gguf"]].concat());
    assert!(!dir.join("work").exists());
    ok(dir, &[&base[..], &["--stats", "stats", "in.gguf", "again.gguf"]].concat());
    assert!(same(dir, "saved.gguf", "again.gguf"));
    let args = ["--type", "q4_0", "--solver", "gptq", "--stats", "stats", "in.gguf", "x.gguf"];
    refused(dir, &args, 1, "name one with `--check-text`");
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
