//! Models that do not predict text: encoders are judged by their vectors, rerankers by their scores, diffusion models
//! by their divergence. The bundled model with a bidirectional mask is used for all of them.

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::GgmlType;
use gguf_foundry::verify::{Aspect, Check, Figure, Report, Severity, Thresholds, Verdict, VerifyOptions};

use super::{errors, judged_with, llama, options};
use crate::testkit::tiny::Tiny;

/// First layers of the bundled model as an encoder.
fn encoder(pooling: u32) -> Tiny {
    let mut tiny = Tiny::new().with_layers(2);
    tiny.metadata.set("llama.attention.causal", false);
    tiny.metadata.set("llama.pooling_type", pooling);
    tiny
}

/// Encoder with a head that scores texts.
fn reranker() -> Tiny {
    let mut tiny = encoder(4);
    tiny.tensors.add("cls.output.weight", &[1, 256], GgmlType::F32, score_head(256));
    tiny
}

/// Bytes of `n` F32 numbers of a head that scores texts.
pub fn score_head(n: u32) -> Vec<u8> {
    (0..n)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e7 - 0.8)
        .flat_map(f32::to_le_bytes)
        .collect()
}

pub fn judged(
    tiny: &Tiny,
    baseline: Option<&Tiny>,
    features: &GraphFeatures,
    n_texts: usize,
    thresholds: Thresholds,
) -> Report {
    let mut options = options(Some(n_texts));
    options.scoring.n_ctx = 64;
    judged_with(tiny, baseline, features, &VerifyOptions { thresholds, ..options })
}

pub fn beside(tiny: &Tiny, baseline: &Tiny, n_texts: usize) -> Report {
    judged(tiny, Some(baseline), &llama(), n_texts, Thresholds::default())
}

/// Q8_0 file with changed codes in one matrix.
fn damaged(tiny: &Tiny) -> Tiny {
    let mut tiny = tiny.quantized(GgmlType::Q8_0);
    for (at, block) in tiny.tensors.bytes_mut("blk.1.ffn_down.weight").chunks_exact_mut(34).enumerate() {
        for (code, byte) in block[2..].iter_mut().enumerate() {
            *byte = (at * 31 + code * 89) as u8;
        }
    }
    tiny
}

#[test]
fn a_healthy_encoder_passes_and_a_damaged_one_fails() {
    let base = encoder(1);
    let report = beside(&base.quantized(GgmlType::Q8_0), &base, 16);
    let figures = report.embeddings.clone().unwrap();
    let against = figures.against.clone().unwrap();
    assert_eq!(report.verdict, Verdict::Pass, "{report:?}");
    assert_eq!((figures.texts, figures.width, figures.pooling), (16, 256, "mean"));
    assert!(against.mean_cosine > 0.999 && against.worst_cosine <= against.mean_cosine, "{against:?}");
    assert!(against.healthy.is_some() && report.perplexity.is_none() && report.divergence.is_none());
    let asked: Vec<Aspect> = report.coverage.answered().map(|judged| judged.aspect).collect();
    assert!(asked.contains(&Aspect::Embeddings) && !asked.contains(&Aspect::Perplexity), "{asked:?}");

    let report = beside(&damaged(&base), &base, 8);
    assert_eq!(report.verdict, Verdict::Fail);
    let found = errors(&report);
    assert!(found.contains(&"min-cosine") && found.contains(&"min-worst-cosine"), "{found:?}");
}

#[test]
fn a_healthy_reranker_passes_and_a_damaged_one_fails() {
    let base = reranker();
    let report = beside(&base.quantized(GgmlType::Q8_0), &base, 16);
    assert_eq!(report.verdict, Verdict::Pass, "{report:?}");
    let figures = report.embeddings.unwrap();
    assert_eq!((figures.width, figures.pooling), (1, "rank"));
    assert!(figures.against.unwrap().score_error.unwrap() < 0.1);
    let report = beside(&damaged(&base), &base, 8);
    assert_eq!(report.verdict, Verdict::Fail);
    assert!(errors(&report).contains(&"max-score-error"), "{:?}", errors(&report));
}

#[test]
fn an_encoder_alone_or_over_few_texts_is_judged_in_part() {
    let base = encoder(2);
    let report = judged(&base, None, &llama(), 24, Thresholds::default());
    assert_eq!(report.verdict, Verdict::Partial, "{report:?}");
    assert!(report.embeddings.unwrap().against.is_none());
    let report = judged(
        &base.quantized(GgmlType::Q8_0),
        Some(&base),
        &llama(),
        3,
        Thresholds::default().with(Figure::Cosine, Some(0.9)),
    );
    assert_eq!(report.verdict, Verdict::Partial, "{report:?}");
    assert!(report.limits.iter().any(|line| line.is_own && line.limit == 0.9));
    assert!(report.coverage.open().any(|open| open.aspect == Aspect::Embeddings));
}

#[test]
fn limits_of_what_a_model_does_not_have_are_told() {
    let stray = |tiny: &Tiny, thresholds| {
        let report = judged(tiny, None, &llama(), 4, thresholds);
        assert_ne!(report.verdict, Verdict::Pass);
        let told = report.findings.iter().filter(|found| found.severity == Severity::Unchecked);
        told.filter(|found| found.check == Check::Limits)
            .map(|found| found.message.clone())
            .collect::<Vec<_>>()
    };
    let of_predictions = Thresholds::default().with(Figure::Ppl, Some(9.0));
    let of_vectors = Thresholds::default().with(Figure::Cosine, Some(0.9));
    let found = stray(&encoder(1), of_predictions);
    assert_eq!(found, ["`--max-ppl` is a limit of predictions of the next token: this model has none"]);
    let found = stray(&Tiny::new(), of_vectors);
    assert_eq!(found, ["`--min-cosine` is a limit of an encoder's vectors: this model has none"]);
    assert!(stray(&encoder(1), of_vectors).is_empty());
    let of_scores = Thresholds::default().with(Figure::ScoreError, Some(0.1));
    let found = stray(&encoder(1), of_scores);
    assert_eq!(found, ["`--max-score-error` is a limit of a classifier's scores: this model has none"]);
    for figure in [Figure::Cosine, Figure::WorstCosine] {
        let found = stray(&reranker(), Thresholds::default().with(figure, Some(0.9)));
        assert!(found[0].ends_with("is a limit of an encoder's vectors: this model has none"), "{found:?}");
    }
    assert!(stray(&reranker(), of_scores).is_empty());
}

#[test]
fn pooling_that_nobody_knows_and_a_score_without_a_head_are_findings() {
    for (pooling, expected) in
        [(5, "key `llama.pooling_type`: expected 0 to 4, found 5"), (4, "tensor `cls.weight` is missing")]
    {
        let report = judged(&encoder(pooling), None, &llama(), 4, Thresholds::default());
        let graph: Vec<&str> = report.findings.iter().map(|found| found.message.as_str()).collect();
        assert!(graph.contains(&expected), "{graph:?}");
        assert_eq!(report.verdict, Verdict::Fail);
    }
}

#[test]
fn of_a_diffusion_model_the_divergence_is_judged_and_the_perplexity_is_not() {
    let graph = "kind = 'diffusion'\nattention.mask = 'full'";
    let features = GraphFeatures::from_toml(&graph.parse().unwrap()).unwrap();
    let base = Tiny::new().with_layers(2);
    let report = judged(&base.quantized(GgmlType::Q8_0), Some(&base), &features, 8, Thresholds::default());
    assert_eq!(report.verdict, Verdict::Pass, "its weights are those of a fresh quantization: {report:?}");
    assert!(errors(&report).is_empty(), "{report:?}");
    let answered: Vec<Aspect> = report.coverage.answered().map(|judged| judged.aspect).collect();
    assert!(answered.contains(&Aspect::Divergence) && !answered.contains(&Aspect::Perplexity));
    let report = judged(&damaged(&base), Some(&base), &features, 8, Thresholds::default());
    assert!(errors(&report).contains(&"max-kld"), "{report:?}");
}
