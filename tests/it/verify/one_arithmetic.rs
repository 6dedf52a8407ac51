//! The arithmetic is part of what a figure means: it is kept with figures, figures of different arithmetic are not put
//! together, and what a file is judged by is computed like the file.

use std::path::Path;

use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::engine::{Arithmetic, Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_foundry::verify::{Cost, LogitFile, Model, Recall, Report, VerificationPart, VerifyOptions, verify};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{corpus, gguf_verify, llama, model, options};
use crate::support::fixture;
use crate::support::programs::Outcome;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::testkit::tiny::Tiny;

/// Directory with the first layers of the bundled model in F32, Q8_0 and Q4_0, and a text.
fn directory(n_layers: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(n_layers);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8.gguf");
    base.quantized(GgmlType::Q4_0).write(dir.path(), "q4.gguf");
    fs_err::copy(fixture("tiny-llama/corpus.txt"), dir.path().join("p.txt")).unwrap();
    dir
}

const CUT: [&str; 6] = ["--prompts", "p.txt", "--ctx", "64", "--chunks", "6"];

fn verified(dir: &Path, args: &[&str]) -> Outcome {
    gguf_verify(&[args, &CUT, &["--no-sync"]].concat(), dir)
}

fn part(dir: &Path, args: &[&str], share: &str, name: &str) {
    verified(dir, &[args, &["--part", share, "-o", name]].concat()).ok();
}

fn combined(dir: &Path, names: &[&str]) -> Outcome {
    gguf_verify(&[&["combine"], names, &["--json"]].concat(), dir)
}

deep_test!(parts_of_a_verification_have_one_arithmetic);

fn parts_of_a_verification_have_one_arithmetic() {
    let dir = directory(1);
    let dir = dir.path();
    let against = ["q4.gguf", "--baseline", "base.gguf", "--arithmetic"];
    for (arithmetic, name) in [("f32", "f"), ("integer", "i")] {
        for number in [1, 2] {
            let own = [&against[..], &[arithmetic]].concat();
            part(dir, &own, &format!("{number}/2"), &format!("{name}{number}.part"));
        }
    }
    combined(dir, &["f1.part", "i2.part"])
        .says(1, "i2.part: products with the model's weights in integer, in f1.part in f32")
        .says(1, "figures of different arithmetic are not put together")
        .says(1, "hint: run all parts with the same `--arithmetic`");
    combined(dir, &["i1.part", "f2.part"]).says(1, "f2.part: products with the model's weights in f32");
    for (names, arithmetic) in [(["f1.part", "f2.part"], "f32"), (["i1.part", "i2.part"], "integer")] {
        assert_eq!(combined(dir, &names).model()["arithmetic"], arithmetic);
    }
    // Only the baseline has blocks.
    let against = ["base.gguf", "--baseline", "q8.gguf", "--arithmetic"];
    part(dir, &[&against[..], &["f32"]].concat(), "1/2", "a.part");
    part(dir, &[&against[..], &["auto"]].concat(), "2/2", "b.part");
    combined(dir, &["a.part", "b.part"])
        .says(1, "b.part: products with the baseline's weights in integer, in a.part in f32");
    // What has no blocks is the same in every arithmetic.
    part(dir, &["base.gguf", "--arithmetic", "f32"], "1/2", "c.part");
    part(dir, &["base.gguf", "--arithmetic", "auto"], "2/2", "d.part");
    assert_eq!(combined(dir, &["c.part", "d.part"]).model()["arithmetic"], "f32");
}

/// Rewrites a part as earlier versions wrote it, which had F32 alone.
fn without_arithmetic(dir: &Path, from: &str, to: &str) {
    const FACTS: usize = 56;
    let bytes = fs_err::read(dir.join(from)).unwrap();
    let n_facts = u64::from_le_bytes(bytes[FACTS - 8..FACTS].try_into().unwrap()) as usize;
    let (facts, rows) = bytes[FACTS..].split_at(n_facts);
    let mut facts: Value = serde_json::from_slice(facts).unwrap();
    for place in ["plan", "checks"] {
        assert!(facts[place].as_object_mut().unwrap().remove("arithmetic").is_some(), "{facts:#}");
    }
    let facts = serde_json::to_vec(&facts).unwrap();
    let rest = [&(facts.len() as u64).to_le_bytes()[..], &facts, rows].concat();
    let old = [&bytes[..FACTS - 40], Sha256::digest(&rest).as_slice(), &rest].concat();
    fs_err::write(dir.join(to), old).unwrap();
}

deep_test!(a_part_that_does_not_say_its_arithmetic_is_of_f32);

fn a_part_that_does_not_say_its_arithmetic_is_of_f32() {
    let dir = directory(1);
    let dir = dir.path();
    for (arithmetic, name) in [("f32", "f"), ("integer", "i")] {
        for number in [1, 2] {
            let own = ["q4.gguf", "--baseline", "base.gguf", "--arithmetic", arithmetic];
            part(dir, &own, &format!("{number}/2"), &format!("{name}{number}.part"));
        }
    }
    without_arithmetic(dir, "f1.part", "old.part");
    assert_eq!(
        VerificationPart::open(&dir.join("old.part")).unwrap().windows(),
        VerificationPart::open(&dir.join("f1.part")).unwrap().windows()
    );
    assert_eq!(combined(dir, &["old.part", "f2.part"]).json(), combined(dir, &["f1.part", "f2.part"]).json());
    combined(dir, &["old.part", "i2.part"])
        .says(1, "i2.part: products with the model's weights in integer, in old.part in f32");
}

deep_test!(an_importance_matrix_has_one_arithmetic);

fn an_importance_matrix_has_one_arithmetic() {
    let dir = directory(1);
    let dir = dir.path();
    let collect = |model: &str, share: &str, name: &str, more: &[&str]| {
        let args = ["imatrix", model, "--part", share, "-o", name, "--no-sync"];
        gguf_verify(&[&args[..], &CUT, more].concat(), dir)
    };
    let (floats, integer) = (["--arithmetic", "f32"], ["--arithmetic", "integer"]);
    collect("q8.gguf", "1/2", "f1.part", &floats).ok();
    collect("q8.gguf", "2/2", "f2.part", &[]).ok();
    collect("q8.gguf", "1/2", "i1.part", &integer).ok();
    collect("q8.gguf", "2/2", "i2.part", &integer).ok();
    let combine =
        |names: &[&str]| gguf_verify(&[&["combine", "-o", "m.gguf", "--no-sync"], names].concat(), dir);
    combine(&["f1.part", "i2.part"])
        .says(1, "i2.part: products with weights in integer, in f1.part in f32")
        .says(1, "hint: run all parts with the same `--arithmetic`");
    assert!(!dir.join("m.gguf").exists());
    combine(&["f1.part", "f2.part"]).ok();
    let exact = fs_err::read(dir.join("m.gguf")).unwrap();
    combine(&["i1.part", "i2.part"]).ok();
    assert!(fs_err::read(dir.join("m.gguf")).unwrap() != exact);
    // To go on with.
    let resumed = |own: &[&str]| collect("q8.gguf", "1/2", "i1.part", &[&["--resume"], own].concat());
    resumed(&floats)
        .says(1, "i1.part: its 3 chunks were run in integer, this run has `--arithmetic f32`")
        .says(1, "hint: pass `--arithmetic integer`");
    resumed(&integer).ok();
    // A file without blocks.
    collect("base.gguf", "1/2", "a.part", &["--arithmetic", "auto"]).ok();
    collect("base.gguf", "1/2", "a.part", &["--arithmetic", "f32", "--resume"]).ok();
}

deep_test!(a_baseline_that_was_kept_has_its_arithmetic);

fn a_baseline_that_was_kept_has_its_arithmetic() {
    let dir = directory(1);
    let dir = dir.path();
    let keep = |model: &str, name: &str, more: &[&str]| {
        verified(dir, &[&[model, "--save-baseline", name], more].concat()).exits_with_one_of(&[0, 4]);
        fs_err::read(dir.join(name)).unwrap()
    };
    let integer = ["--arithmetic", "integer"];
    let (fast, exact) = (keep("q8.gguf", "fast", &integer), keep("q8.gguf", "exact", &[]));
    let plain = keep("base.gguf", "plain", &[]);
    assert!(plain == keep("base.gguf", "plain-too", &["--arithmetic", "auto"]));
    // llama-perplexity reads what comes before.
    assert_eq!((fast.len(), exact.len()), (plain.len() + 16, plain.len() + 16));
    assert!(fast.ends_with(b"_arithm_integer\0") && exact.ends_with(b"_arithm_f32\0\0\0\0\0"));
    let arithmetic = |name: &str| LogitFile::open(&dir.join(name)).unwrap().arithmetic();
    let known = ["fast", "exact", "plain"].map(arithmetic);
    assert_eq!(known, [Some(Arithmetic::Integer), Some(Arithmetic::F32), None]);
    let against =
        |name: &str, more: &[&str]| gguf_verify(&[&["q4.gguf", "--baseline", name], more].concat(), dir);
    against("fast", &[])
        .says(1, "fast: predictions of a model whose weights were multiplied in integer")
        .says(1, "this run has `--arithmetic f32`")
        .says(1, "hint: pass `--arithmetic integer`");
    against("exact", &integer).says(1, "exact: predictions of a model whose weights were multiplied in f32");
    // A baseline of floats is the same in every arithmetic.
    for (name, own) in [("fast", &integer[..]), ("exact", &[]), ("plain", &[]), ("plain", &integer)] {
        against(name, own).exits_with(4);
    }
    // An arithmetic that does not exist, and one that is cut off.
    let mut other = fast.clone();
    *other.last_mut().unwrap() = b'!';
    fs_err::write(dir.join("other"), &other).unwrap();
    against("other", &integer).says(1, &format!("other: offset {}: expected `_arithm_`", plain.len()));
    fs_err::write(dir.join("cut"), &fast[..fast.len() - 1]).unwrap();
    against("cut", &integer).says(1, "cut: ").says(1, "its header declares");
}

/// Reports of a file compared with a baseline, in F32 and in integers.
fn reports(file: &Tiny, baseline: &Tiny, n_chunks: usize) -> [Report; 2] {
    let (features, recall) = (llama(), Recall::default());
    let baseline = Model { recall: Some(&recall), ..model(baseline, &features) };
    [Arithmetic::F32, Arithmetic::Integer].map(|arithmetic| {
        // Few enough tokens for all of them to be run with the healthy file.
        let plain = options(Some(n_chunks));
        let engine = EngineOptions { arithmetic, ..plain.engine };
        let options = VerifyOptions { engine, ..plain };
        verify(&model(file, &features), Some(&baseline), &corpus(), &options, &Silent, None).unwrap().report
    })
}

deep_test!(a_healthy_file_is_run_like_the_file);

/// The healthy file that limits are measured with is this very file here. Its cost is the same, bit for bit, but only
/// in the same arithmetic.
fn a_healthy_file_is_run_like_the_file() {
    let (n_layers, n_chunks, n_tokens) = (4, 6, 700);
    let base = Tiny::new().with_layers(n_layers);
    let (q8, q4) = (base.quantized(GgmlType::Q8_0), base.quantized(GgmlType::Q4_0));
    let mut mixed = q4.clone();
    let name = "blk.1.ffn_up.weight";
    mixed.tensors.replace(name, GgmlType::F32, crate::testkit::memory::f32_bytes(&base.values(name)));
    for (name, file) in [("Q4_0", &q4), ("Q8_0", &q8), ("one matrix in F32", &mixed)] {
        let found = reports(file, &base, n_chunks);
        for report in &found {
            let healthy = report.healthy.unwrap();
            let own = Cost::of(report.divergence.as_ref().unwrap());
            assert!(healthy.n_tokens.unwrap() > n_tokens, "{healthy:?}");
            assert_eq!(healthy.cost, own, "{name}: {:?}", report.arithmetic);
        }
        let [exact, fast] = found.map(|report| report.healthy.unwrap().cost.kld);
        assert!(exact != fast, "{name}: not run in integers");
        assert!((exact - fast).abs() < 1e-7 + 1e-4 * exact, "{name}: {exact} {fast}");
    }
}

two_tiers!(results_of_a_baseline_are_kept_by_arithmetic);

/// What a baseline gave in one arithmetic is not taken for another.
fn results_of_a_baseline_are_kept_by_arithmetic(tier: Tier) {
    let (n_layers, n_chunks) = tier.of((1, 2), (4, 6));
    let base = Tiny::new().with_layers(n_layers);
    let (q8, q4) = (base.quantized(GgmlType::Q8_0), base.quantized(GgmlType::Q4_0));
    let together = reports(&q4, &q8, n_chunks);
    let baseline_ppl = |report: &Report| report.divergence.as_ref().unwrap().baseline_ppl;
    let [exact, fast] = [&together[0], &together[1]].map(baseline_ppl);
    assert!(exact != fast && (exact / fast - 1.0).abs() < 1e-5, "{exact} {fast}");
    // The file against itself: no difference at all, if both are run alike.
    for report in reports(&q8, &q8, n_chunks) {
        assert_eq!(report.divergence.as_ref().unwrap().max, 0.0, "{:?}", report.arithmetic);
    }
}

/// Logits after each of some tokens, which are run alone.
fn logits_of_single_tokens(tiny: &Tiny, level: SimdLevel, arithmetic: Arithmetic) -> Vec<f32> {
    let plan = GraphPlan::new(&llama(), &tiny.metadata, tiny.tensors.tensors()).unwrap();
    let options = EngineOptions { level, arithmetic, ..EngineOptions::default() };
    let engine = Engine::new(plan, &tiny.tensors, options).unwrap();
    let chunk = |token: u32| TokenChunk { tokens: vec![token], rows: 0..1, n_source: 0 };
    let chunks: Vec<TokenChunk> = (0..48).map(|at| chunk(at * 21 + 3)).collect();
    engine.logits(&engine.hidden(&chunks).unwrap(), &Silent).unwrap()
}

two_tiers!(without_attention_levels_agree_to_the_last_bit);

/// A token that is alone attends to nothing but itself, with a weight of exactly one. All that is left are products with
/// weights, norms and activation functions: in integers they have the same bits at every level, up to the logits.
fn without_attention_levels_agree_to_the_last_bit(tier: Tier) {
    let base = Tiny::new().with_layers(tier.of(2, 4));
    for ty in tier.some(2, [GgmlType::Q4K, GgmlType::Q6K, GgmlType::Iq4Xs, GgmlType::Q8_0, GgmlType::Q5_1]) {
        let tiny = base.quantized(ty);
        let of = |arithmetic| {
            let levels = SimdLevel::available();
            levels.map(|level| logits_of_single_tokens(&tiny, level, arithmetic)).collect::<Vec<_>>()
        };
        let (fast, exact) = (of(Arithmetic::Integer), of(Arithmetic::F32));
        for (at, level) in SimdLevel::available().enumerate() {
            assert!(fast[at].iter().all(|x| x.is_finite()));
            assert!(fast[at] == fast[0], "{ty} at {level}");
            println!("{ty} at {level}: equal in F32: {}", exact[at] == exact[0]);
        }
        assert!(fast[0] != exact[0], "{ty}: not run in integers");
    }
}

/// Perplexity, divergence and per-token figures of a run.
fn figures(dir: &Path, more: &[&str]) -> (Value, String) {
    let args = ["q4.gguf", "--baseline", "base.gguf", "--arithmetic", "integer", "--json"];
    let mut report = verified(dir, &[&args[..], &["--per-token", "t.csv"], more].concat()).model();
    report.as_object_mut().unwrap().remove("tokens_per_second");
    (report, fs_err::read_to_string(dir.join("t.csv")).unwrap())
}

two_tiers!(figures_in_integers_do_not_depend_on_threads_and_little_on_the_level);

/// Every day of one layer, with one other number of threads, at the first level.
fn figures_in_integers_do_not_depend_on_threads_and_little_on_the_level(tier: Tier) {
    let dir = directory(tier.of(1, 4));
    let dir = dir.path();
    let one = figures(dir, &["--threads", "1"]);
    for threads in tier.some(3, ["3", "2", "5"]) {
        assert!(figures(dir, &["--threads", threads]) == one, "{threads} threads");
    }
    // Attention, norms and the logits are in F32, in an order that depends on the level.
    let number = |report: &Value, at: &str| report.pointer(at).and_then(Value::as_f64).unwrap();
    for level in SimdLevel::available().take(tier.of(1, usize::MAX)) {
        let (other, _) = figures(dir, &["--simd", level.name()]);
        assert_eq!((&other["verdict"], &other["arithmetic"]), (&one.0["verdict"], &one.0["arithmetic"]));
        let off = number(&other, "/perplexity/value") / number(&one.0, "/perplexity/value") - 1.0;
        let kld = number(&one.0, "/kld/mean");
        let kld_off = number(&other, "/kld/mean") - kld;
        println!("{level}: perplexity off by {off:.1e}, divergence {kld:.2e} by {kld_off:.1e}");
        assert!(off.abs() < 2e-6 && kld_off.abs() < 1e-7 + 1e-4 * kld, "{level}: {off} {kld_off}");
    }
}

two_tiers!(parts_of_machines_of_different_levels_come_together);

/// Machines with different vector instructions may share the text.
fn parts_of_machines_of_different_levels_come_together(tier: Tier) {
    let dir = directory(tier.of(1, 4));
    let dir = dir.path();
    let args = ["q4.gguf", "--baseline", "base.gguf", "--arithmetic", "integer"];
    let levels: Vec<SimdLevel> = SimdLevel::available().collect();
    let (first, last) = (levels[0].name(), levels[levels.len() - 1].name());
    let run = |number: usize, level: &str, threads: &str| {
        let name = format!("{level}-{threads}-{number}.part");
        let machine = ["--simd", level, "--threads", threads];
        part(dir, &[&args[..], &machine].concat(), &format!("{number}/3"), &name);
        name
    };
    let report =
        |names: &[String]| combined(dir, &names.iter().map(String::as_str).collect::<Vec<_>>()).model();
    let alike: Vec<String> = (1..=3).map(|number| run(number, last, "1")).collect();
    let threads = [&alike[..2], &[run(3, last, "3")]].concat();
    assert_eq!(report(&alike), report(&threads), "threads change something");
    let mixed = report(&[&alike[..2], &[run(3, first, "2")]].concat());
    let whole = report(&alike);
    let number = |report: &Value, at: &str| report.pointer(at).and_then(Value::as_f64).unwrap();
    assert_eq!(mixed["verdict"], whole["verdict"]);
    let off = number(&mixed, "/perplexity/value") / number(&whole, "/perplexity/value") - 1.0;
    assert!(off.abs() < 2e-6, "{off}");
}
