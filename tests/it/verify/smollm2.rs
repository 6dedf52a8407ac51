//! A real model compared with llama-perplexity's figures on dequantized files.

use serde_json::Value;

use crate::support::goldens::Goldens;
use crate::support::programs::run;
use crate::support::{files, fixture, report_cases, smollm2};

/// Types that are multiplied in integers; those of two and three bits come with an importance matrix.
const INTEGER_TYPES: [(&str, bool); 6] = [
    ("Q8_0", false),
    ("Q6_K", false),
    ("Q4_K_M", false),
    ("IQ4_XS", false),
    ("Q2_K", false),
    ("IQ2_XS", true),
];

/// Largest relative difference of the perplexities, over 4 chunks of 256 predictions; Q6_K has 1.6e-5.
const PPL_OFF: f64 = 1e-4;
/// Largest difference of the mean divergences, in addition to 1e-4 of the divergence; Q4_K_M has 7e-6 in all.
const KLD_OFF: f64 = 6e-6;

#[test]
#[ignore = "needs SmolLM2: set GGUF_SMOLLM2"]
fn figures_of_smollm2_in_integers_are_those_in_f32() {
    let dir = tempfile::tempdir().unwrap();
    let model = fs_err::canonicalize(smollm2()).unwrap();
    let quantize = |from: &str, to: &str, more: &[&str]| {
        let args = [from, to, "--allow-requantize", "--no-sync", "--quiet"];
        run("gguf-quantize", dir.path(), &[&args[..], more].concat()).ok();
    };
    quantize(model.to_str().unwrap(), "F32.gguf", &["--type", "f32"]);
    let text = fixture("tiny-llama/corpus.txt");
    let text = ["--prompts", text.to_str().unwrap(), "--ctx", "512"];
    let matrix = ["imatrix", "F32.gguf", "-o", "imatrix.gguf", "--chunks", "8", "--no-ppl", "--no-sync"];
    run("gguf-verify", dir.path(), &[&matrix[..], &text].concat()).ok();
    let (mut n_cases, mut wrong) = (0, Vec::new());
    for (ty, is_weighted) in INTEGER_TYPES {
        let name = format!("{ty}.gguf");
        let weights = if is_weighted { &["--imatrix", "imatrix.gguf"][..] } else { &[] };
        quantize("F32.gguf", &name, &[&["--type", ty], weights].concat());
        let report = |arithmetic: &str| {
            let args = [
                name.as_str(),
                "--baseline",
                "F32.gguf",
                "--chunks",
                "4",
                "--json",
                "--arithmetic",
                arithmetic,
            ];
            run("gguf-verify", dir.path(), &[&args[..], &text].concat()).model()
        };
        let [exact, fast] = ["f32", "integer"].map(report);
        assert_eq!((&exact["arithmetic"], &fast["arithmetic"]), (&"f32".into(), &"integer".into()));
        let both = |pointer: &str| {
            [&exact, &fast].map(|report| report.pointer(pointer).and_then(Value::as_f64).unwrap())
        };
        let ([ppl, fast_ppl], [kld, fast_kld]) = (both("/perplexity/value"), both("/kld/mean"));
        let (ppl_off, kld_off) = (fast_ppl / ppl - 1.0, fast_kld - kld);
        println!("{ty}: perplexity {ppl:.5} off by {ppl_off:.1e}, divergence {kld:.6} by {kld_off:.1e}");
        if ppl_off.abs() > PPL_OFF || kld_off.abs() > KLD_OFF + 1e-4 * kld {
            wrong.push(format!("{ty}: perplexities {ppl} {fast_ppl}, divergences {kld} {fast_kld}"));
        }
        assert_eq!(exact["verdict"], fast["verdict"], "{ty}");
        fs_err::remove_file(dir.path().join(&name)).unwrap();
        n_cases += 1;
    }
    report_cases("verify: SmolLM2 in integers", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Types of the golden figures.
const TYPES: [&str; 4] = ["F16", "Q8_0", "Q4_K_M", "IQ4_XS"];

#[test]
#[ignore = "needs SmolLM2: set GGUF_SMOLLM2"]
fn perplexity_and_divergence_of_smollm2_equal_llama_perplexity() {
    let golden = files::json(Goldens::selection().join("e2e.json"));
    let golden = &golden["smollm2-135m"];
    let dir = tempfile::tempdir().unwrap();
    let model = fs_err::canonicalize(smollm2()).unwrap();
    let source = model.to_str().unwrap();
    let quantize = |from: &str, to: &str, ty: &str| {
        run(
            "gguf-quantize",
            dir.path(),
            &[from, to, "--type", ty, "--allow-requantize", "--no-sync", "--quiet"],
        )
        .ok();
    };
    quantize(source, "F32.gguf", "f32");
    let files: Vec<String> = TYPES.iter().map(|ty| format!("{ty}.gguf")).collect();
    for (ty, file) in TYPES.iter().zip(&files) {
        quantize("F32.gguf", file, ty);
    }
    let text = fixture("tiny-llama/corpus.txt");
    let mut args: Vec<&str> = files.iter().map(String::as_str).collect();
    args.extend([source, "--baseline", "F32.gguf", "--json", "--prompts", text.to_str().unwrap()]);
    let report = run("gguf-verify", dir.path(), &args).ok().json();
    let mut n_cases = 0;
    for (ty, model) in TYPES.iter().chain(&["Q4_1"]).zip(report["models"].as_array().unwrap()) {
        let exact = &golden["exact"][ty];
        let figure = |name: &str| exact[name].as_f64().unwrap();
        let found = |pointer: &str| model.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let (ppl, kld) = (found("/perplexity/value"), found("/kld/mean"));
        println!(
            "{ty}: perplexity {ppl:.5} ({:.5}), divergence {kld:.6} ({:.6})",
            figure("ppl"),
            figure("mean_kld")
        );
        assert!((ppl / figure("ppl") - 1.0).abs() < 5e-4, "{ty}: {ppl}");
        assert!((kld - figure("mean_kld")).abs() < (0.02 * figure("mean_kld")).max(2e-5), "{ty}: {kld}");
        assert!((100.0 * found("/top1_agreement") - figure("same_top_pct")).abs() < 0.3, "{ty}");
        let base = found("/baseline_ppl");
        assert!((base / golden["f32"][0].as_f64().unwrap() - 1.0).abs() < 5e-4, "{base}");
        assert_eq!(model["verdict"], "pass", "plain recipes keep the default limits");
        n_cases += 1;
    }
    report_cases("verify: SmolLM2", n_cases);
}
