//! Files made from quantized checkpoints, with the checkpoint as the baseline.

use super::gguf_verify;
use crate::support::goldens::{Goldens, tiered_conformance_tests};
use crate::support::programs::{command, finish};
use crate::support::tiers::Tier;
use crate::support::{files, report_cases};

const CLASSES: &[&str] = &["GptOssForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM"];
/// Cases from the other part of the corpus: experts in floats, and in blocks that stay blocks.
const ARCH_CASES: &[&str] = &["gpt_oss", "gpt_oss_mxfp4", "qwen3_moe"];
/// Case whose weights reach 2^128, so that its outputs are not finite.
const OVERFLOWING: &str = "mxfp4-gpt-oss-extremes";

tiered_conformance_tests!(files_of_quantized_checkpoints_compute_what_the_checkpoint_does);
fn files_of_quantized_checkpoints_compute_what_the_checkpoint_does(corpus: &Goldens, tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    // Ids below the smallest vocabulary of the cases.
    let ids: Vec<u32> = (0..48).map(|at| at * 7 % 31 + 1).collect();
    let prompt = serde_json::json!({ "tokens": ids }).to_string();
    fs_err::write(dir.path().join("prompts.jsonl"), prompt).unwrap();

    let index = files::json(corpus.join("prequant/INDEX.json"));
    let quantized = index.as_array().unwrap().iter().filter(|case| case["outcome"] == "ok");
    let quantized = quantized.map(|case| ("prequant", case["case"].as_str().unwrap()));
    let all = quantized.chain(ARCH_CASES.iter().map(|name| ("arch", *name)));
    let known = all.filter(|&(_, name)| name != OVERFLOWING).filter_map(|(part, name)| {
        let hf = corpus.find(format!("{part}/{name}"))?.join("hf");
        let config = files::json(hf.join("config.json"));
        let is_known = CLASSES.contains(&config["architectures"][0].as_str().unwrap());
        is_known.then(|| (name, hf.to_string_lossy().into_owned()))
    });
    // Every day a choice that has experts.
    let cases = tier.some(16, known);
    let n_cases = cases.len();
    for (name, hf) in cases {
        let mut is_refused = false;
        for ty in ["native", "f32"] {
            let mut convert = command("gguf-convert", dir.path());
            convert.args(["hf2gguf", &hf, "--no-tokenizer", "--quiet", "--no-sync"]);
            // Two of them round the ends of yarn's ramp, which a file can express only as an annotation.
            convert.arg("--annotate");
            let (code, out, err) = finish(convert.args(["--type", ty, "-o", &format!("{ty}.gguf")])).parts();
            is_refused |=
                ty == "native" && code == 1 && err.contains("`--allow-rounding` keeps the integers");
            assert!(code == 0 || is_refused, "{name}: {out}{err}");
        }
        if is_refused {
            continue;
        }
        let options =
            ["--baseline", &hf, "--prompts", "prompts.jsonl", "--score", "all", "--json", "--quiet"];
        let args = [&["native.gguf", "f32.gguf"], options.as_slice()].concat();
        let report = gguf_verify(&args, dir.path()).json();
        let files = report["models"].as_array().unwrap();
        assert_eq!(files.len(), 2, "{name}");
        for file in files {
            let mean = file["kld"]["mean"].as_f64().unwrap_or_else(|| panic!("{name}: {file:#}"));
            assert!(mean.abs() < 1e-6, "{name}: {} diverges by {mean}", file["file"]);
        }
    }
    report_cases("verify: quantized checkpoints as baselines", n_cases);
}
