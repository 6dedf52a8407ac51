//! `gguf-quantize --target-size`: the written file has the size, and types can be written and read.

use std::path::Path;

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::GgufFile;
use gguf_foundry::verify::label_findings;
use serde_json::Value as Json;

use super::{calibrate, convert, convert_two_layers, run};
use crate::support::programs;
use crate::support::tiers::{Tier, deep_test, two_tiers};

two_tiers!(the_file_has_the_size_that_the_plan_says_and_its_types_can_be_read_again);

fn the_file_has_the_size_that_the_plan_says_and_its_types_can_be_read_again(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert(dir, "f16");
    for target in tier.some(3, ["1500000", "2100000", "3.2M"]) {
        let base = ["--target-size", target, "--json", "in.gguf", "out.gguf"];
        let dry = run(dir, &[&base[..], &["--dry-run", "--write-types", "types.txt"]].concat()).ok().json();
        assert!(!dir.join("out.gguf").exists());
        let out = run(dir, &base).ok().json();
        assert_eq!(dry["target"], out["target"]);
        let most = out["target"]["bytes"].as_u64().unwrap();
        let n_bytes = fs_err::metadata(dir.join("out.gguf")).unwrap().len();
        assert_eq!(out["target"]["file_bytes"].as_u64(), Some(n_bytes));
        assert!(n_bytes <= most && n_bytes as f64 >= most as f64 * 0.995, "{n_bytes} of {most}");
        let kld = |target: &Json| target["expected_kld"].as_f64().unwrap();
        assert!(kld(&out["target"]) > 0.0 && kld(&out["target"]["standard_mix"]) > 0.0);

        run(dir, &["--type", "q8_0", "--tensor-type-file", "types.txt", "in.gguf", "again.gguf"]).ok();
        let open = |name: &str| GgufFile::open(&dir.join(name)).unwrap();
        assert_eq!(open("out.gguf").tensors(), open("again.gguf").tensors());
        fs_err::remove_file(dir.join("out.gguf")).unwrap();
    }
    // Nearly all tensors have the smaller type: the mixture that is nearest in size is no label for them.
    let types = ["--target-bpw", "4.62", "--types", "q4_k,q6_k", "in.gguf", "out.gguf"];
    run(dir, &types).ok();
    let file = GgufFile::open(&dir.join("out.gguf")).unwrap();
    let findings = label_findings(file.metadata(), file.tensors(), Path::new("out.gguf"));
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn sizes_and_options_that_do_not_go_together_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_two_layers(Tier::Everyday, dir, "f16");
    for (args, code, words) in [
        (&["--target-size", "100K"][..], 1, "with the smallest types it has"),
        (&["--target-bpw", "1"], 1, "the smallest possible are `--target-size"),
        (&["--target-bpw", "4", "--target-size", "2M"], 2, "cannot be used with"),
        (&["--target-bpw", "4", "--type", "q4_k_m"], 2, "cannot be used with"),
        (&["--target-bpw", "4", "--pure"], 2, "cannot be used with"),
        (&["--target-bpw", "0"], 2, "a size above 0 expected"),
        (&["--target-bpw", "4", "--types", "q4_k,q9_9"], 2, "unknown tensor type `q9_9`"),
        (&["--target-bpw", "4", "--types", "q8_1"], 1, "nothing can be quantized to it"),
        (&["--target-bpw", "4", "--types", "iq2_xs"], 1, "needs an importance matrix"),
        (&["--types", "q4_k", "--type", "q4_k_m"], 2, "--target"),
    ] {
        let err = run(dir, &[args, &["in.gguf", "out.gguf"]].concat()).exits_with(code).err;
        assert!(err.contains(words), "{args:?}: {err}");
    }
    run(dir, &["--target-bpw", "4", "in.gguf", "out.gguf", "q4_k_m"])
        .says(2, "--target-bpw chooses the types: leave `Q4_K_M` out");
    assert!(!dir.join("out.gguf").exists());
    run(dir, &["--target-bpw", "20", "--dry-run", "in.gguf"])
        .says(0, "each tensor has the largest of the types");
}

deep_test!(a_promise_is_kept_by_the_file_that_is_written);
/// Every day the search alone, in `gguf-calibration`: `search`.
fn a_promise_is_kept_by_the_file_that_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare_two_layers(Tier::Deep, dir);
    let base = ["--calibrate-tokens", "2048", "--check-text", "rest.txt", "--solver", "sequential"];
    for most in ["0.02", "0.003", "0.0004"] {
        let asked = [&base[..], &["--target-kld", most, "--write-types", "types.txt"]].concat();
        let found = by_text(dir, "out.gguf", &asked);
        let (target, most) = (&found["target"], most.parse::<f64>().unwrap());
        let promise = &target["promise"];
        let number = |of: &Json| of.as_f64().unwrap();
        assert_eq!(
            number(&promise["bound"]),
            number(&promise["mean_kld"]) + 2.0 * number(&promise["stderr"])
        );
        assert!(number(&promise["bound"]) <= most, "{promise}");
        let size = fs_err::metadata(dir.join("out.gguf")).unwrap().len();
        assert_eq!(target["file_bytes"].as_u64(), Some(size));
        let tried = promise["tried"].as_array().unwrap();
        let smaller =
            tried.iter().filter(|own| own["kept"] == false).map(|own| own["file_bytes"].as_u64().unwrap());
        let smaller = smaller.filter(|n_bytes| *n_bytes < size).max().unwrap();
        assert!(size as f64 <= smaller as f64 * 1.03, "{promise}");

        // Judged by gguf-verify on the text of the check, which it cuts otherwise.
        let args = ["out.gguf", "--baseline", "in.gguf", "--prompts", "rest.txt", "--json"];
        let report = programs::run("gguf-verify", dir, &args).model();
        assert!(number(&report["kld"]["mean"]) <= most, "{}", report["kld"]);
        // Types of the file, and its key.
        let file = GgufFile::open(&dir.join("out.gguf")).unwrap();
        let types = fs_err::read_to_string(dir.join("types.txt")).unwrap();
        let n_quantized = file.tensors().iter().filter(|tensor| tensor.ty.is_quantized()).count();
        assert_eq!(types.lines().count(), n_quantized);
    }
    let never = [&BY_TEXT[..], &base, &["--target-kld", "0.00000001", "in.gguf", "none.gguf"]].concat();
    run(dir, &never).says(1, "`--target-kld 0.0");
    assert!(!dir.join("none.gguf").exists());
}

#[test]
fn the_options_of_a_promise_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare_two_layers(Tier::Everyday, dir);
    let base = [&BY_TEXT[..], &["--calibrate-tokens", "1024", "--check-text", "rest.txt"]].concat();
    for (args, words) in [
        (&["--target-kld", "0"][..], "a divergence above 0 expected"),
        (&["--target-kld", "0.1", "--target-bpw", "4"], "cannot be used with"),
        (&["--target-kld", "0.1", "--type", "q4_k_m"], "cannot be used with"),
    ] {
        run(dir, &[&base[..], args, &["in.gguf", "none.gguf"]].concat()).says(2, words);
    }
    run(dir, &["--target-kld", "0.1", "in.gguf", "none.gguf"]).says(2, "--calibrate");
}

deep_test!(a_promise_is_planned);
/// The plan times the solver and the model on this machine.
fn a_promise_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare_two_layers(Tier::Everyday, dir);
    let base = [&BY_TEXT[..], &["--calibrate-tokens", "1024", "--check-text", "rest.txt"]].concat();
    let planned = [&base[..], &["--target-kld", "0.01", "--dry-run", "in.gguf"]].concat();
    let planned = run(dir, &planned).ok().json();
    assert_eq!(
        (&planned["target"]["promise"]["most_kld"], &planned["target"]["promise"]["bound"]),
        (&0.01.into(), &Json::Null)
    );
    assert!(planned["calibration"]["tensors"].as_u64().unwrap() >= 14 && !dir.join("none.gguf").exists());
    // Nothing is written by the model, and nothing is tuned.
    for (phase, takes_time) in [
        ("text", false),
        ("activations", true),
        ("moments", true),
        ("solving", true),
        ("check", true),
        ("tuning", false),
    ] {
        let seconds = planned["calibration"]["seconds"][phase].as_f64().unwrap();
        assert!((seconds > 0.0) == takes_time && seconds < 600.0, "{phase}: {seconds}");
    }
}

const BY_TEXT: [&str; 4] = ["--json", "--calibrate", "text.txt", "--no-self-text"];

fn by_text(dir: &Path, name: &str, args: &[&str]) -> Json {
    run(dir, &[&BY_TEXT[..], args, &["in.gguf", name]].concat()).ok().json()
}

/// Mean divergence from the input, measured by gguf-verify on text that was not used for calibration.
fn kld(dir: &Path, name: &str) -> f64 {
    let args = [name, "--baseline", "in.gguf", "--prompts", "rest.txt", "--ctx", "256", "--chunks", "12"];
    programs::run("gguf-verify", dir, &[&args[..], &["--json"]].concat()).model()["kld"]["mean"]
        .as_f64()
        .unwrap()
}

// Every day: `every_solver_keeps_to_the_size`.
deep_test!(types_for_a_size_and_rounding_by_a_text_go_together);

fn types_for_a_size_and_rounding_by_a_text_go_together() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare(dir);
    let tokens = ["--calibrate-tokens", "2048"];
    by_text(dir, "mix.gguf", &[&tokens[..], &["--type", "q4_k_m", "--solver", "reference"]].concat());
    let size = |name: &str| fs_err::metadata(dir.join(name)).unwrap().len();
    let target = size("mix.gguf");
    let asked = ["--target-size", &target.to_string(), "--write-types", "types.txt"];
    let one = by_text(dir, "one.gguf", &[&tokens[..], &asked].concat());
    let types = fs_err::read_to_string(dir.join("types.txt")).unwrap();

    let said = &one["target"];
    assert_eq!(said["file_bytes"].as_u64(), Some(size("one.gguf")));
    assert!(size("one.gguf") <= target && size("one.gguf") as f64 >= target as f64 * 0.995);
    assert!(said["runs"].as_u64().unwrap() >= 16, "{said}");
    assert_eq!(said["standard_mix"]["type"], "Q4_K_M");
    let expected = |of: &Json| of["expected_kld"].as_f64().unwrap();
    assert!(expected(said) < 0.7 * expected(&said["standard_mix"]), "{said}");
    let solved = one["calibration"]["trials"][0]["mean_kld"].as_f64().unwrap();
    let of_mix = said["standard_mix"]["imatrix"]["mean_kld"].as_f64().unwrap();
    assert!(one["calibration"]["used"] == true && solved < 0.35 * of_mix, "{one}");
    let (found, of_mix) = (kld(dir, "one.gguf"), kld(dir, "mix.gguf"));
    assert!(found < 0.3 * of_mix, "{found} {of_mix}");

    let rules = ["--type", "q8_0", "--tensor-type-file", "types.txt", "in.gguf", "again.gguf"];
    run(dir, &rules).ok();
    let open = |name: &str| GgufFile::open(&dir.join(name)).unwrap();
    assert!(types.contains("attn_v") && open("one.gguf").tensors() == open("again.gguf").tensors());
}

deep_test!(every_solver_keeps_to_the_size);

fn every_solver_keeps_to_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    calibrate::prepare_two_layers(Tier::Deep, dir);
    let tokens = ["--calibrate-tokens", "2048"];
    // A size can be filled to the smallest step: a small tensor in the next larger type.
    let full = 0.995;
    for solver in ["reference", "sequential"] {
        let types = "q3_k,iq3_s,q4_k,q6_k";
        let asked = ["--target-bpw", "4.2", "--solver", solver, "--types", types];
        let args = [&tokens[..], &asked].concat();
        let found = by_text(dir, "out.gguf", &[&args[..], &["--threads", "1"]].concat());
        let n_bytes = fs_err::metadata(dir.join("out.gguf")).unwrap().len();
        let most = found["target"]["bytes"].as_u64().unwrap();
        assert_eq!(found["target"]["file_bytes"].as_u64(), Some(n_bytes), "{solver}");
        assert!(n_bytes <= most && n_bytes as f64 >= most as f64 * full, "{solver}: {n_bytes} of {most}");
        assert_eq!(found["calibration"]["solver"], solver);
        assert!(found["target"]["runs"].as_u64().unwrap() >= 14, "{found}");
        let file = GgufFile::open(&dir.join("out.gguf")).unwrap();
        let wanted = ["Q3_K", "IQ3_S", "Q4_K", "Q6_K", "F32"];
        let is_wanted = |name: &str| wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(name));
        assert!(file.tensors().iter().all(|tensor| is_wanted(tensor.ty.name())));
        if solver == "reference" {
            // Measured costs are also the same for any number of threads.
            let other = by_text(dir, "other.gguf", &[&args[..], &["--threads", "3"]].concat());
            assert_eq!(found["target"], other["target"]);
            assert!(
                fs_err::read(dir.join("out.gguf")).unwrap() == fs_err::read(dir.join("other.gguf")).unwrap()
            );
        }
    }
    for (args, code, words) in [
        (&["--target-size", "100K"][..], 1, "with the smallest types it has"),
        (&["--target-size", "2M", "--dry-run"], 2, "cannot be used with"),
        (&["--target-size", "2M", "--type", "q4_k_m"], 2, "cannot be used with"),
        (&["--target-size", "2M", "--types", "q8_1"], 1, "nothing can be quantized to it"),
        (&["--target-size", "2M", "--memory", "1M"], 1, "--calibrate-tokens"),
    ] {
        let args = [&BY_TEXT[..], &tokens, args, &["in.gguf", "none.gguf"]].concat();
        let err = run(dir, &args).exits_with(code).err;
        assert!(err.contains(words), "{args:?}: {err}");
    }
    assert!(!dir.join("none.gguf").exists());
}
