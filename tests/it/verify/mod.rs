//! `gguf-verify` on the bundled model: figures compared with llama-perplexity's, broken files, bad input, the program.

mod broken;
mod chat;
mod damages;
mod encoders;
mod heads;
mod imatrix;
mod imatrix_parts;
mod input;
mod keys;
mod labels;
mod levels;
mod logit_file;
mod masked;
mod memory;
mod metadata;
mod origin;
mod output;
mod parts;
mod per_token;
mod prompts;
mod quantized;
mod recall;
mod report_page;
mod resources;
mod smollm2;
pub mod tasks;
mod weights;

use std::path::Path;

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::GgmlType;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::engine::EngineOptions;
use gguf_foundry::verify::{
    Check, Model, PromptForm, PromptSource, Recall, Report, Scoring, Severity, Thresholds, Verdict,
    VerifyOptions, read_prompts, verify,
};
use serde_json::Value;

use crate::support::goldens::Goldens;
use crate::support::programs::{self, Outcome};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{bundled, files, fixture, report_cases};
pub use crate::testkit::judged::{bare_model, model};
use crate::testkit::memory::write_source;
use crate::testkit::tiny::{self, Tiny};

fn llama() -> GraphFeatures {
    GraphFeatures::of("llama").unwrap()
}

fn options(n_chunks: Option<usize>) -> VerifyOptions<'static> {
    VerifyOptions {
        engine: EngineOptions::default(),
        scoring: Scoring { n_ctx: 256, n_chunks, ..Scoring::default() },
        files: &[],
        thresholds: Thresholds::default(),
        ..VerifyOptions::default()
    }
}

fn corpus() -> Vec<PromptSource> {
    read_prompts(&fixture("tiny-llama/corpus-256.jsonl"), PromptForm::Detected).unwrap()
}

/// Report on a model and its baseline, which are run with the same features.
fn judged_with(
    tiny: &Tiny,
    baseline: Option<&Tiny>,
    features: &GraphFeatures,
    options: &VerifyOptions<'_>,
) -> Report {
    let reference = baseline.map(|tiny| model(tiny, features));
    verify(&model(tiny, features), reference.as_ref(), &corpus(), options, &Silent, None).unwrap().report
}

fn judged(tiny: &Tiny, baseline: Option<&Model<'_>>, n_chunks: Option<usize>) -> Report {
    let features = llama();
    verify(&model(tiny, &features), baseline, &corpus(), &options(n_chunks), &Silent, None).unwrap().report
}

fn run(tiny: &Tiny, baseline: Option<&Tiny>, n_chunks: Option<usize>) -> Report {
    let features = llama();
    let reference = baseline.map(|tiny| model(tiny, &features));
    judged(tiny, reference.as_ref(), n_chunks)
}

/// Checks of the errors among the findings.
fn errors(report: &Report) -> Vec<&'static str> {
    report.findings.iter().filter(|f| f.severity == Severity::Error).map(|f| f.check.name()).collect()
}

/// Every day `logit_file` compares the figures of three chunks with llama-perplexity's.
mod perplexity_and_divergence_equal_llama_perplexity_on_dequantized_files {
    use super::Goldens;

    #[test]
    #[ignore = "of the deep tier"]
    fn deep() {
        super::perplexity_and_divergence_equal_llama_perplexity_on_dequantized_files(&Goldens::selection());
    }

    #[test]
    #[ignore = "needs the conformance corpus: set GGUF_CONFORMANCE"]
    fn corpus() {
        super::perplexity_and_divergence_equal_llama_perplexity_on_dequantized_files(&Goldens::corpus());
    }
}

fn perplexity_and_divergence_equal_llama_perplexity_on_dequantized_files(corpus: &Goldens) {
    let golden = files::json(corpus.join("e2e.json"));
    let golden = &golden["tiny-llama"];
    let base = Tiny::new();
    let features = llama();
    let recall = Recall::default();
    let baseline = Model { recall: Some(&recall), ..model(&base, &features) };
    let plain = run(&base, None, None).perplexity.unwrap();
    let expected = [0, 1].map(|at| golden["f32"][at].as_f64().unwrap());
    assert!((plain.value / expected[0] - 1.0).abs() < 1e-5, "{plain:?} {expected:?}");
    assert!((plain.stderr - expected[1]).abs() < 1e-4, "{plain:?} {expected:?}");
    let mut n_cases = 1;
    // Types whose recipe uses the type itself for every matrix.
    for ty in [GgmlType::F16, GgmlType::Q8_0] {
        let exact = &golden["exact"][ty.name()];
        let figure = |name: &str| exact[name].as_f64().unwrap();
        let quantized = base.quantized(ty);
        let report = judged(&quantized, Some(&baseline), None);
        let (ppl, d) = (report.perplexity.unwrap(), report.divergence.as_ref().unwrap());
        println!("{ty}: perplexity {:.6}, mean divergence {:.7}", ppl.value, d.kld.mean);
        assert!((ppl.value / figure("ppl") - 1.0).abs() < 5e-4, "{ty} {ppl:?}");
        let tolerance = (0.02 * figure("mean_kld")).max(2e-5);
        assert!((d.kld.mean - figure("mean_kld")).abs() < tolerance, "{ty} {:?}", d.kld);
        assert!((100.0 * d.top1_agreement - figure("same_top_pct")).abs() < 0.05, "{ty}");
        assert!((100.0 * d.rms_dp - figure("rms_dp_pct")).abs() < 0.01, "{ty}");
        assert_eq!(report.verdict, Verdict::Pass, "{report:?}");
        n_cases += 1;
    }
    report_cases("verify: perplexity and divergence", n_cases);
}

#[test]
fn a_model_equals_itself() {
    let base = Tiny::new().with_layers(2);
    let report = run(&base, Some(&base), Some(1));
    let d = report.divergence.unwrap();
    assert_eq!((d.kld.mean, d.kld.quantiles.max, d.top1_agreement, d.rms_dp), (0.0, 0.0, 1.0, 0.0));
    assert_eq!(d.delta_ln_ppl.value, 0.0);
}

two_tiers!(results_do_not_depend_on_threads_or_groups);

/// Every day in short chunks, with less memory.
fn results_do_not_depend_on_threads_or_groups(tier: Tier) {
    let (n_layers, n_ctx, little) = tier.of((2, 64, 12 << 20), (4, 256, 16 << 20));
    let base = Tiny::new().with_layers(n_layers);
    let features = llama();
    let figures = |n_threads, memory_bytes| {
        let mut options = options(Some(10));
        options.scoring.n_ctx = n_ctx;
        options.engine.n_threads = n_threads;
        options.engine.memory_bytes = memory_bytes;
        let outcome = verify(&model(&base, &features), None, &corpus(), &options, &Silent, None).unwrap();
        outcome.positions.iter().map(|p| p.score.nll.to_bits()).collect::<Vec<_>>()
    };
    let expected = figures(1, 1 << 30);
    assert_eq!(figures(2, 1 << 30), expected, "2 threads");
    assert_eq!(figures(7, 1 << 30), expected, "7 threads");
    assert_eq!(figures(2, little), expected, "other batches");
}

#[test]
fn an_architecture_without_graph_is_judged_in_part() {
    let base = Tiny::new();
    let features = Err("architecture `mamba` has no card");
    let none = GraphFeatures::default();
    let unknown = Model { features, ..model(&base, &none) };
    let report = verify(&unknown, None, &corpus(), &options(None), &Silent, None).unwrap().report;
    assert_eq!(report.verdict, Verdict::Partial);
    assert!(report.perplexity.is_none());
    assert!(report.findings.iter().any(|f| f.check == Check::Graph && f.severity == Severity::Unchecked));
}

pub fn gguf_verify(args: &[&str], dir: &Path) -> Outcome {
    programs::run("gguf-verify", dir, args)
}

#[test]
fn the_program_prints_verdicts_and_says_them_by_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(1);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8_0.gguf");
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let prompts = prompts.to_str().unwrap();
    let cut = ["--prompts", prompts, "--ctx", "64", "--chunks", "4"];

    let args = [&["q8_0.gguf", "--baseline", "base.gguf", "--json"][..], &cut].concat();
    let report = gguf_verify(&args, dir.path()).ok().model();
    assert_eq!(report["verdict"], "pass", "{report}");
    for name in [
        "/perplexity/value",
        "/perplexity/stderr",
        "/perplexity/tokens",
        "/kld/mean",
        "/kld/median",
        "/kld/p99",
        "/kld/p999",
        "/kld/max",
        "/top1_agreement",
        "/rms_dp",
        "/delta_ln_ppl/value",
        "/delta_ln_ppl/stderr",
        "/tokens_per_second",
    ] {
        assert!(report.pointer(name).is_some_and(Value::is_number), "{name}: {report}");
    }
    gguf_verify(&[&["base.gguf", "--max-ppl", "5"][..], &cut].concat(), dir.path()).prints(3, "max-ppl");
}

// Every day `logit_file` compares three chunks of this text.
deep_test!(a_text_file_is_scored_as_llama_perplexity_scores_it);

fn a_text_file_is_scored_as_llama_perplexity_scores_it() {
    let dir = tiny::directory();
    let corpus = fixture("tiny-llama/corpus.txt");
    let args = ["base.gguf", "--prompts", corpus.to_str().unwrap(), "--ctx", "256", "--json"];
    // There is no expected value for the figure.
    let report = gguf_verify(&args, dir.path()).exits_with(4).model();
    assert_eq!(report["verdict"], "partial", "{report}");
    // Value of llama-perplexity (llama.cpp 0.5.0) on the same text.
    let value = report["perplexity"]["value"].as_f64().unwrap();
    assert!((value / 21.7766 - 1.0).abs() < 1e-5, "{value}");
}

#[test]
fn a_checkpoint_is_a_baseline_without_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("hf");
    bundled::write_layers(1, &checkpoint);
    let conversion = Conversion::plan(&checkpoint, &ConvertOptions::default()).unwrap();
    write_source(&dir.path().join("m.gguf"), conversion.metadata(), &conversion);
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let args =
        ["m.gguf", "--baseline", checkpoint.to_str().unwrap(), "--json", "--ctx", "64", "--chunks", "1"];
    let report = gguf_verify(&[&args[..], &["--prompts", prompts.to_str().unwrap()]].concat(), dir.path())
        .ok()
        .model();
    assert_eq!(report["kld"]["max"].as_f64(), Some(0.0), "bf16 in the file, f32 in memory: the same values");
}

#[test]
fn per_token_files_and_logits_agree() {
    let dir = tiny::directory_of_a_layer();
    fs_err::write(dir.path().join("p.jsonl"), b"{\"tokens\":[0,342,278,341]}\n{\"tokens\":[0,342]}\n")
        .unwrap();
    let args =
        ["base.gguf", "--prompts", "p.jsonl", "--per-token", "nll.jsonl", "--quiet", "--accept-partial"];
    gguf_verify(&args, dir.path()).ok();
    let lines = fs_err::read_to_string(dir.path().join("nll.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["tokens"], serde_json::json!([0, 342, 278, 341]));
    assert_eq!(lines[0]["nll"].as_array().unwrap().len(), 3);

    // The logits after [0, 342, 278] give the likelihood of 341.
    fs_err::write(dir.path().join("q.jsonl"), b"{\"tokens\":[0,342,278]}").unwrap();
    let line = gguf_verify(&["logits", "base.gguf", "--prompts", "q.jsonl"], dir.path()).ok().json();
    let logits: Vec<f64> = line["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let peak = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = peak + logits.iter().map(|z| (z - peak).exp()).sum::<f64>().ln();
    let nll = lines[0]["nll"][2].as_f64().unwrap();
    assert!((log_sum - logits[341] - nll).abs() < 1e-5, "{nll}");
}
