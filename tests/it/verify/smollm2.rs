//! A real model compared with llama-perplexity's figures on dequantized files.

use serde_json::Value;

use crate::support::goldens::Goldens;
use crate::support::programs::run;
use crate::support::{files, fixture, report_cases, smollm2};

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
