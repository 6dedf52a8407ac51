//! Products in integers compared with F32, on the bundled model in every type that has integers.

use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, ImatrixNeed, TensorSource};
use gguf_foundry::engine::{Arithmetic, Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_foundry::verify::{Model, Recall, Report, VerifyOptions, verify};

use super::{corpus, errors, gguf_verify, llama, model, options};
use crate::support::fixture;
use crate::support::tiers::{Tier, two_tiers};
use crate::testkit::tiny::Tiny;
use gguf_foundry::core::progress::Silent;

/// Types that files have, with integers; every day one of each family.
fn types(tier: Tier) -> Vec<GgmlType> {
    if !tier.is_deep() {
        return vec![GgmlType::Q5_1, GgmlType::Q4K, GgmlType::Iq4Xs, GgmlType::Tq2_0];
    }
    let known = (0..64).filter_map(GgmlType::from_id);
    known.filter(|&ty| Arithmetic::Integer.is_integer(ty)).collect()
}

/// Bundled model with all matrices in a type, columns being equally important.
fn in_type(base: &Tiny, ty: GgmlType) -> Tiny {
    let mut model = base.clone();
    for meta in base.tensors.tensors().iter().filter(|meta| meta.shape.rank() > 1) {
        let flat = vec![1.0; meta.shape.n_cols() as usize];
        let importance = (ty.info().imatrix == ImatrixNeed::Required).then_some(&flat[..]);
        model.tensors.replace(&meta.name, ty, base.weighted_tensor(&meta.name, ty, importance));
    }
    model
}

fn report(tiny: &Tiny, baseline: &Model<'_>, arithmetic: Arithmetic, n_chunks: usize) -> Report {
    let plain = options(Some(n_chunks));
    let engine = EngineOptions { arithmetic, ..plain.engine };
    let (features, options) = (llama(), VerifyOptions { engine, ..plain });
    verify(&model(tiny, &features), Some(baseline), &corpus(), &options, &Silent, None).unwrap().report
}

two_tiers!(figures_in_integers_are_those_in_f32_for_every_type);

/// Every day with one layer, over two chunks.
fn figures_in_integers_are_those_in_f32_for_every_type(tier: Tier) {
    let (n_layers, n_chunks) = tier.of((1, 2), (4, CHUNKS));
    // Over fewer chunks the differences are larger, as the root of their number.
    let spread = (CHUNKS as f64 / n_chunks as f64).sqrt();
    let base = Tiny::new().with_layers(n_layers);
    let (features, recall) = (llama(), Recall::default());
    // The baseline is in F32 and runs once.
    let baseline = Model { recall: Some(&recall), ..model(&base, &features) };
    let mut wrong = Vec::new();
    let types = types(tier);
    for &ty in &types {
        let tiny = in_type(&base, ty);
        let [exact, integer] =
            [Arithmetic::F32, Arithmetic::Integer].map(|own| report(&tiny, &baseline, own, n_chunks));
        assert_eq!(
            (exact.arithmetic, integer.arithmetic),
            (Some(Arithmetic::F32), Some(Arithmetic::Integer))
        );
        let ppl = [&exact, &integer].map(|report| report.perplexity.unwrap().value);
        let kld = [&exact, &integer].map(|report| report.divergence.as_ref().unwrap().mean.value);
        let (ppl_off, kld_off) = ((ppl[1] / ppl[0] - 1.0).abs(), (kld[1] - kld[0]).abs());
        println!(
            "{ty}: perplexity {:.5} off by {ppl_off:.1e}, KLD {:.6} off by {kld_off:.1e}",
            ppl[0], kld[0]
        );
        if ppl_off > spread * PPL_OFF || kld_off > spread * (1e-7 + 1e-4 * kld[0]) {
            wrong.push(format!("{ty}: perplexities {ppl:?}, divergences {kld:?}"));
        }
        assert_eq!((exact.verdict, errors(&exact)), (integer.verdict, errors(&integer)), "{ty}");
    }
    assert_eq!(types.len(), tier.of(4, 25));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Chunks that are compared in the deep tier.
const CHUNKS: usize = 8;

/// Largest relative difference of perplexities over [`CHUNKS`]. Roundings of tokens are independent, so the difference
/// falls with the root of their number: it is at most 2.7e-6 over all 79 chunks.
const PPL_OFF: f64 = 1.2e-5;

/// Logits of the model after each token of a chunk.
fn logits(tiny: &Tiny, n_threads: usize, level: SimdLevel) -> Vec<f32> {
    let plan = GraphPlan::new(&llama(), &tiny.metadata, tiny.tensors.tensors()).unwrap();
    let options =
        EngineOptions { n_threads, level, arithmetic: Arithmetic::Integer, ..EngineOptions::default() };
    let engine = Engine::new(plan, &tiny.tensors, options).unwrap();
    let tokens: Vec<u32> = (0..300).map(|at| (at * at * 31 + at * 7) % 1024).collect();
    let chunk = TokenChunk { tokens, rows: 200..300, n_source: 0 };
    engine.logits(&engine.hidden(&[chunk]).unwrap(), &Silent).unwrap()
}

two_tiers!(logits_in_integers_have_the_same_bits_for_every_number_of_threads);

fn logits_in_integers_have_the_same_bits_for_every_number_of_threads(tier: Tier) {
    let base = Tiny::new().with_layers(tier.of(1, 2));
    for ty in tier.some(2, [GgmlType::Q4K, GgmlType::Q6K, GgmlType::Q5_1, GgmlType::Iq3S]) {
        let tiny = in_type(&base, ty);
        let level = SimdLevel::detect();
        let one = logits(&tiny, 1, level);
        assert!(one.iter().all(|x| x.is_finite()));
        for n_threads in tier.some(2, [7, 2]) {
            assert!(logits(&tiny, n_threads, level) == one, "{ty}, {n_threads} threads");
        }
        for level in SimdLevel::available() {
            let other = logits(&tiny, 2, level);
            let off = one.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-3, "{ty} at {level}: logits apart by {off}");
        }
    }
}

#[test]
fn the_program_takes_integers_if_asked_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(1);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8.gguf");
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let prompts = prompts.to_str().unwrap();
    let run = |model: &str, own: &[&str]| {
        let args = [&[model, "--prompts", prompts, "--chunks", "2", "--ctx", "64", "--json"], own].concat();
        gguf_verify(&args, dir.path())
    };
    for (model, own, want) in [
        ("q8.gguf", &[][..], "f32"),
        ("q8.gguf", &["--arithmetic", "auto"], "integer"),
        ("q8.gguf", &["--arithmetic", "integer"], "integer"),
        ("q8.gguf", &["--arithmetic", "f32"], "f32"),
        ("base.gguf", &["--arithmetic", "auto"], "f32"),
    ] {
        let report = run(model, own).model();
        assert_eq!(report["arithmetic"], want, "{model} {own:?}: {report:#}");
    }
    let refused = run("base.gguf", &["--arithmetic", "integer"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("leave it out"), "{}", refused.err);
    assert_eq!(run("q8.gguf", &["--arithmetic", "int8"]).code, Some(2));
}
