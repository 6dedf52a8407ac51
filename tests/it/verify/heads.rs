//! Outputs of heads compared with transformers: the scores of decoders that score texts.

use gguf_foundry::arch::{GraphFeatures, OutType};
use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::engine::{Engine, EngineError, EngineOptions, GraphPlan, ModelKind, TokenChunk};
use gguf_foundry::gguf::{Array, Value};
use gguf_foundry::verify::{Report, Thresholds, Verdict};
use serde_json::Value as Json;

use super::encoders::{beside, judged, score_head};
use super::{errors, llama};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{files, fixture};
use crate::testkit::checkpoints::write_case;
use crate::testkit::tiny::Tiny;

/// Converts a case of `fixtures/heads`.
pub fn converted(name: &str) -> (Json, Conversion) {
    let path = fixture("heads").join(format!("{name}.json"));
    let case = files::json(path);
    let dir = tempfile::tempdir().unwrap();
    write_case(&case, dir.path());
    for (file, text) in case["files"].as_object().into_iter().flatten() {
        fs_err::write(dir.path().join(file), text.to_string()).unwrap();
    }
    let options = ConvertOptions {
        file_type: Some(OutType::F32),
        tokenizer: false,
        rerank: case["scores"].is_array(),
        ..ConvertOptions::default()
    };
    let model = Conversion::plan(dir.path(), &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    (case, model)
}

/// Token ids of a case's texts.
pub fn texts(case: &Json) -> Vec<Vec<u32>> {
    let ids = |text: &Json| text.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    case["texts"].as_array().unwrap().iter().map(ids).collect()
}

#[test]
fn scores_of_decoders_equal_transformers() {
    for name in ["qwen3_reranker", "qwen3_reranker_tied"] {
        let (case, model) = converted(name);
        let features = GraphFeatures::of("qwen3").unwrap();
        let plan = GraphPlan::new(&features, model.metadata(), model.tensors()).unwrap();
        assert_eq!(plan.kind, ModelKind::Encoder, "{name}");
        let engine = Engine::new(plan, &model, EngineOptions::default()).unwrap();
        let texts = texts(&case);
        let chunks: Vec<TokenChunk> = texts
            .iter()
            .map(|tokens| TokenChunk { rows: 0..tokens.len(), tokens: tokens.clone(), n_source: 0 })
            .collect();
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        let scores = engine.embeddings(&engine.hidden(&chunks).unwrap(), &lengths, &Silent).unwrap();
        let expected: Vec<f64> = case["scores"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|text| text.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()))
            .collect();
        let found: Vec<f32> = scores.concat();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() < 2e-6, "{name}: {scores:?} {expected}");
        }
    }
}

/// First layers of the bundled model as a decoder that scores texts under two labels.
fn reranker() -> Tiny {
    let mut tiny = Tiny::new().with_layers(2);
    tiny.metadata.set("llama.pooling_type", 4u32);
    let labels = ["yes", "no"].map(|label| label.as_bytes().to_vec()).to_vec();
    tiny.metadata.set("llama.classifier.output_labels", Value::Array(Array::String(labels)));
    tiny.tensors.add("cls.output.weight", &[2, 256], GgmlType::F32, score_head(512));
    tiny
}

two_tiers!(a_healthy_decoder_that_scores_passes);

fn a_healthy_decoder_that_scores_passes(tier: Tier) {
    let base = reranker();
    for ty in tier.some(2, [GgmlType::Q4_0, GgmlType::Q8_0]) {
        let report = beside(&base.quantized(ty), &base, 24);
        assert_eq!(report.verdict, Verdict::Pass, "{ty}: {report:?}");
        let figures = report.embeddings.unwrap();
        assert_eq!((figures.width, figures.pooling), (2, "rank"));
        let against = figures.against.unwrap();
        assert!(against.score_error.unwrap() < 0.2 && against.rank_correlation.unwrap() > 0.9, "{against:?}");
        assert!(report.perplexity.is_none() && report.limits.len() == 1);
    }
}

deep_test!(damages_of_a_decoder_that_scores_fail);

fn damages_of_a_decoder_that_scores_fail() {
    type Damage = fn(&mut Tiny);
    let damages: [(&str, Damage); 7] = [
        ("labels swapped", |tiny| {
            tiny.edit("cls.output.weight", |rows| rows.rotate_right(256));
        }),
        ("a label's row twice", |tiny| {
            tiny.edit("cls.output.weight", |rows| rows.copy_within(..256, 256));
        }),
        ("a head moved by one", |tiny| {
            tiny.edit("cls.output.weight", |rows| rows.rotate_right(1));
        }),
        ("a head of the other sign", |tiny| {
            tiny.edit("cls.output.weight", |rows| rows.iter_mut().for_each(|x| *x = -*x));
        }),
        ("two layers' matrices swapped", |tiny| {
            tiny.tensors.swap("blk.0.ffn_up.weight", "blk.1.ffn_up.weight");
        }),
        ("queries not permuted", |tiny| *tiny = tiny.unpermuted()),
        ("a norm of ones", |tiny| tiny.set_values("output_norm.weight", &[1.0; 256])),
    ];
    let base = reranker();
    for (damage, apply) in damages {
        let mut tiny = base.clone();
        apply(&mut tiny);
        let report = beside(&tiny.quantized(GgmlType::Q8_0), &base, 24);
        assert_eq!(report.verdict, Verdict::Fail, "{damage}");
        assert!(errors(&report).contains(&"max-score-error"), "{damage}: {:?}", errors(&report));
    }
}

#[test]
fn heads_that_do_not_fit_are_named() {
    let graph = |tiny: &Tiny| {
        let report: Report = judged(tiny, None, &llama(), 4, Thresholds::default());
        assert_eq!(report.verdict, Verdict::Fail);
        report.findings.iter().map(|found| found.message.clone()).collect::<Vec<_>>().join("\n")
    };
    let without = {
        let mut tiny = Tiny::new();
        tiny.metadata.set("llama.pooling_type", 4u32);
        tiny
    };
    assert!(graph(&without).contains("tensor `cls.output.weight` is missing"), "{}", graph(&without));
    let mut labels = reranker();
    let three = ["a", "b", "c"].map(|label| label.as_bytes().to_vec()).to_vec();
    labels.metadata.set("llama.classifier.output_labels", Value::Array(Array::String(three)));
    let found = graph(&labels);
    assert!(found.contains("cls.output.weight") && found.contains("[3, 256]") && found.contains("[2, 256]"));
    let mut number = reranker();
    number.metadata.set("llama.classifier.output_labels", 2u32);
    let found = graph(&number);
    assert!(found.contains("`llama.classifier.output_labels`: expected a list of strings"), "{found}");
    let mut wide = reranker();
    wide.tensors.reshape("cls.output.weight", &[4, 128]);
    assert!(graph(&wide).contains("found [4, 128]"), "{}", graph(&wide));
    let features = llama();
    let plan = GraphPlan::new(&features, &without.metadata, without.tensors.tensors());
    assert!(matches!(plan, Err(EngineError::MissingTensor { tensor }) if tensor == "cls.output.weight"));
}
