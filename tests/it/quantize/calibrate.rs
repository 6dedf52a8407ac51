//! `gguf-quantize --calibrate`: its result, the keys in the file, and refused input.

use std::path::Path;
use std::sync::LazyLock;

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::{GgufFile, Value};
use serde_json::Value as Json;

use super::{convert_two_layers, run};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{fixture, programs};
use crate::testkit::memory::tensor_bytes;

/// Writes the bundled model in F32, two thirds of its text, and the rest.
pub(super) fn prepare(dir: &Path) {
    super::convert(dir, "f32");
    write_texts(Tier::Deep, dir);
}

/// Writes what [`prepare`] writes, with the model of [`super::write_two_layers`]; every day with a fifth of the text.
pub(super) fn prepare_two_layers(tier: Tier, dir: &Path) {
    /// File of the everyday tier, which is made once.
    static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        convert_two_layers(Tier::Everyday, dir.path(), "f32");
        fs_err::read(dir.path().join("in.gguf")).unwrap()
    });
    if tier.is_deep() {
        convert_two_layers(tier, dir, "f32");
    } else {
        fs_err::write(dir.join("in.gguf"), SMALL.as_slice()).unwrap();
    }
    write_texts(tier, dir);
}

fn write_texts(tier: Tier, dir: &Path) {
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    let (text, rest) = text.split_at(text.floor_char_boundary(text.len() * 2 / 3));
    // Every day six and five whole sequences.
    let n_bytes = tier.of(9_000, usize::MAX);
    for (name, text) in [("text.txt", text), ("rest.txt", rest)] {
        fs_err::write(dir.join(name), &text[..text.floor_char_boundary(n_bytes)]).unwrap();
    }
}

two_tiers!(a_calibrated_file_has_the_same_size_and_diverges_less);

/// Every day with the default solver; with any number of threads in `gguf-calibration`: `the_blocks_do_not_depend_on_threads`.
fn a_calibrated_file_has_the_same_size_and_diverges_less(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if tier.is_deep() {
        prepare(dir);
    } else {
        prepare_two_layers(tier, dir);
    }
    let solved = |name: &str, args: &[&str]| -> Json {
        let base = ["--json", "--type", "q4_k_m", "--calibrate", "text.txt", "--no-self-text"];
        let tokens = ["--calibrate-tokens", tier.of("2048", "4096")];
        run(dir, &[&base[..], &tokens, args, &["in.gguf", name]].concat()).ok().json()
    };
    let plain = solved("plain.gguf", &["--solver", "reference"]);
    let one = solved("one.gguf", &["--threads", "1", "--write-types", "types.txt"]);
    assert!(fs_err::read_to_string(dir.join("types.txt")).unwrap().contains("attn_v"));
    // The same tokens give the same importance.
    assert_eq!(plain["calibration"]["imatrix"], one["calibration"]["imatrix"]);
    assert_eq!(plain["total"], one["total"]);
    let calibration = &one["calibration"];
    assert_eq!((&calibration["solver"], &calibration["used"]), (&"sequential".into(), &true.into()));
    let most = tier.of(0.85, 0.5);
    assert!(calibration["ratio"].as_f64().unwrap() < most, "{calibration}");

    // Measured by gguf-verify, on text that was used for neither.
    let kld = |name: &str| -> f64 {
        let chunks = tier.of("4", "12");
        let args =
            [name, "--baseline", "in.gguf", "--prompts", "rest.txt", "--ctx", "256", "--chunks", chunks];
        let report = programs::run("gguf-verify", dir, &[&args[..], &["--json"]].concat()).model();
        let findings = report["findings"].as_array().unwrap();
        let is_of_keys = |finding: &&Json| finding["message"].as_str().unwrap().contains("quantize.");
        assert_eq!(findings.iter().find(is_of_keys), None);
        report["kld"]["mean"].as_f64().unwrap()
    };
    let (of_plain, of_one) = (kld("plain.gguf"), kld("one.gguf"));
    assert!(of_one < most * of_plain, "{of_one} {of_plain}");
    if tier.is_deep() {
        solved("three.gguf", &["--threads", "3"]);
        let [one, three] = ["one.gguf", "three.gguf"].map(|name| fs_err::read(dir.join(name)).unwrap());
        assert!(one == three, "other bytes with other threads");
    }

    let (plain, one) =
        (GgufFile::open(&dir.join("plain.gguf")).unwrap(), GgufFile::open(&dir.join("one.gguf")).unwrap());
    assert_eq!(plain.tensors(), one.tensors());
    let key =
        |file: &GgufFile, key: &str| file.metadata().get(&format!("gguf_foundry.quantize.{key}")).cloned();
    assert_eq!(key(&plain, "solver"), Some(Value::from("reference")));
    assert_eq!(key(&one, "solver"), Some(Value::from("sequential")));
    assert_eq!(key(&plain, "kld"), None);
    assert!(matches!(key(&one, "kld"), Some(Value::F32(kld)) if kld > 0.0));
    let Some(Value::F32(imatrix)) = key(&one, "kld_imatrix") else { panic!() };
    assert!(Some(f64::from(imatrix)) > key(&one, "kld").and_then(|kld| kld.as_f64()));
    let text = key(&one, "calibration").unwrap();
    assert_eq!(text.as_str(), Some(tier.of("text.txt: 1536 tokens", "text.txt: 4096 tokens")));
}

deep_test!(a_text_of_the_check_judges_the_result);

/// Given check text replaces held-back text: a short text is used completely for calibration.
fn a_text_of_the_check_judges_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare_two_layers(Tier::Deep, dir);
    let text = fs_err::read_to_string(dir.join("text.txt")).unwrap();
    fs_err::write(dir.join("text.txt"), &text[..text.floor_char_boundary(12_000)]).unwrap();
    let base = ["--json", "--type", "q4_0", "--calibrate", "text.txt", "--no-self-text"];
    let rest = ["--calibrate-tokens", "20000", "--check-text", "rest.txt", "in.gguf", "out.gguf"];
    let report = run(dir, &[&base[..], &rest].concat()).ok().json();
    let calibration = &report["calibration"];
    let (kind, check) = (&calibration["kinds"][0], &calibration["check"][0]);
    assert_eq!((&kind["check_tokens"], &check["name"]), (&0.into(), &"rest.txt".into()));
    let (n_tokens, n_check) = (kind["tokens"].as_u64().unwrap(), check["tokens"].as_u64().unwrap());
    assert!(n_tokens > 3_000 && n_check > 2_000, "{calibration}");
    assert!(calibration["ratio"].as_f64().unwrap() < 0.8, "{calibration}");
    let file = GgufFile::open(&dir.join("out.gguf")).unwrap();
    let text = file.metadata().get("gguf_foundry.quantize.calibration").cloned().unwrap();
    let expected = format!("text.txt: {n_tokens} tokens; checked by rest.txt: {n_check} tokens");
    assert_eq!(text.as_str(), Some(expected.as_str()));
}

deep_test!(types_without_a_solver_are_told_of);

/// Types without a solver keep the blocks of the importance matrix, which is reported.
fn types_without_a_solver_are_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare_two_layers(Tier::Everyday, dir);
    let base = ["--type", "q4_0", "--calibrate", "text.txt", "--no-self-text", "--calibrate-tokens", "2048"];
    let rule = ["--tensor-type", "ffn_down=q8_0"];
    let err = run(dir, &[&base[..], &rule, &["in.gguf", "a.gguf"]].concat()).ok().err;
    assert!(
        err.contains("2 tensors by the importance matrix alone, there is no solver for the type"),
        "{err}"
    );
    let reference = ["--solver", "reference"];
    run(dir, &[&base[..], &rule, &reference, &["in.gguf", "b.gguf"]].concat()).ok();
    let (a, b) = (GgufFile::open(&dir.join("a.gguf")).unwrap(), GgufFile::open(&dir.join("b.gguf")).unwrap());
    let mut n_same = 0;
    for (at, tensor) in a.tensors().iter().enumerate() {
        let (one, other) = (tensor_bytes(&a, at), tensor_bytes(&b, at));
        let is_solved =
            tensor.name.contains("attn_") && tensor.name.contains(".weight") && !tensor.name.contains("norm");
        let is_solved = is_solved || tensor.name.contains("ffn_up") || tensor.name.contains("ffn_gate");
        if !is_solved && tensor.name != "token_embd.weight" {
            assert_eq!(one, other, "{}", tensor.name);
            n_same += 1;
        } else if is_solved {
            assert_ne!(one, other, "{}", tensor.name);
        }
    }
    assert!(n_same >= 2 + 5, "{n_same}");
}

#[test]
fn what_cannot_be_calibrated_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare_two_layers(Tier::Everyday, dir);
    fs_err::write(dir.join("short.txt"), "In the beginning").unwrap();
    fs_err::write(dir.join("one.txt"), "").unwrap();
    fs_err::create_dir(dir.join("none")).unwrap();
    fs_err::create_dir(dir.join("texts")).unwrap();
    fs_err::write(dir.join("texts/a.txt"), "In the beginning").unwrap();
    for (args, code, words) in [
        (&["--calibrate", "text.txt", "--imatrix", "x"][..], 2, "cannot be used with"),
        (&["--calibrate", "text.txt", "--prune-layers", "1"], 2, "cannot be used with"),
        (&["--solver", "reference"], 2, "--calibrate"),
        (&["--calibrate", "self", "--no-self-text"], 2, "`--calibrate self` asks for it"),
        (
            &["--calibrate", "text.txt", "--solver", "magic"],
            2,
            "possible values: reference, sequential, tuned",
        ),
        (&["--work-dir", "work"], 2, "--calibrate"),
        (&["--calibrate", "text.txt", "--work-dir", "."], 1, "is no work of a run"),
        (&["--calibrate", "text.txt", "--work-dir", "text.txt"], 1, "no folder"),
        (&["--check-text", "text.txt"], 2, "--calibrate"),
        (&["--calibrate", "text.txt", "--check-text", "./text.txt"], 2, "another text expected"),
        (&["--calibrate", "texts", "--check-text", "texts/a.txt"], 2, "gives to the solver"),
        (&["--calibrate", "text.txt", "--no-self-text", "--check-text", "one.txt"], 1, "no prompts"),
        (&["--calibrate", "short.txt"], 1, "expected at least 2048 in 2"),
        (&["--calibrate", "none"], 1, "no file in this folder"),
        (&["--calibrate", "absent.txt"], 1, "absent.txt"),
        (&["--calibrate", "text.txt", "--calibrate-tokens", "600"], 1, "`--calibrate-tokens 4096` is enough"),
        (&["--calibrate", "text.txt", "--no-self-text", "--memory", "1M"], 1, "--calibrate-tokens"),
        (&["--calibrate", "text.txt", "--memory", "1M"], 1, "or give a text"),
    ] {
        let (_, out, err) =
            run(dir, &[args, &["--type", "q4_k_m", "in.gguf", "out.gguf"]].concat()).exits_with(code).parts();
        assert!(err.contains(words) || out.contains(words), "{args:?}: {err}");
    }
    assert!(!dir.join("work").exists());
    run(dir, &["--calibrate", "text.txt", "--type", "f16", "in.gguf", "out.gguf"])
        .says(2, "there is nothing to solve");
    assert!(!dir.join("out.gguf").exists());
}

deep_test!(the_model_writes_text_where_there_is_none_or_one_kind);

/// A model can calibrate itself; with one kind of text given, it writes half. Text of any number of threads is
/// the same: `text_depends_on_the_seed_and_on_neither_threads_nor_memory`.
fn the_model_writes_text_where_there_is_none_or_one_kind() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare_two_layers(Tier::Deep, dir);
    let n_tokens = "4096";
    let base = ["--json", "--type", "q4_k_m", "--calibrate-tokens", n_tokens];
    let kinds = |name: &str, texts: &[&str]| {
        let report = run(dir, &[&base[..], texts, &["in.gguf", name]].concat()).ok().json();
        assert!(report["calibration"]["ratio"].as_f64().unwrap() < 0.8, "{report}");
        let kinds = report["calibration"]["kinds"].as_array().unwrap().iter();
        kinds
            .map(|kind| (kind["name"].as_str().unwrap().to_owned(), kind["tokens"].as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    let alone = kinds("self.gguf", &["--calibrate", "self"]);
    let expected = 3500..=4200;
    assert!(alone.len() == 1 && alone[0].0 == "self" && expected.contains(&alone[0].1), "{alone:?}");
    let both = kinds("both.gguf", &["--calibrate", "text.txt"]);
    assert_eq!(both[0], ("text.txt".to_owned(), 1536));
    let expected = 1700..=2200;
    assert!(both[1].0 == "self" && expected.contains(&both[1].1), "{both:?}");
    kinds("again.gguf", &["--calibrate", "text.txt", "--calibrate", "self", "--threads", "3"]);
    let [both, again] = ["both.gguf", "again.gguf"].map(|name| fs_err::read(dir.join(name)).unwrap());
    assert!(both == again, "other bytes with other threads");
}
