//! Pseudo-perplexity of masked-language models: compared with transformers', valid files, damaged files, heads that do
//! not fit.

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::GgmlType;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::verify::{
    Aspect, Check, Figure, MaskedReport, PromptSource, Report, ReportDocument, Severity, Thresholds, Verdict,
    VerifyOptions, verify,
};

use super::heads::{converted, texts};
use super::{bare_model, errors, judged_with, llama, options};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::testkit::tiny::Tiny;

const MASK: &str = "tokenizer.ggml.mask_token_id";

fn measured(report: &Report) -> &MaskedReport {
    report.masked.as_ref().unwrap_or_else(|| panic!("{report:?}")).as_ref().unwrap()
}

#[test]
fn pseudo_perplexity_equals_transformers() {
    for name in ["modernbert_masked_lm", "llada", "dream"] {
        let (case, conversion) = converted(name);
        let mut metadata = conversion.metadata().clone();
        metadata.set(MASK, case["mask"].as_u64().unwrap() as u32);
        metadata.set("tokenizer.ggml.model", "none");
        let features = GraphFeatures::of(metadata.get("general.architecture").unwrap().as_str().unwrap());
        let features = features.unwrap();
        let model = bare_model(&conversion, &metadata, &features);
        let prompts: Vec<PromptSource> = texts(&case).into_iter().map(PromptSource::Tokens).collect();
        let report = verify(&model, None, &prompts, &options(None), &Silent, None).unwrap().report;
        let found = measured(&report);
        let expected: Vec<f64> = case["nll"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|text| text.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()))
            .collect();
        let mean = expected.iter().sum::<f64>() / expected.len() as f64;
        println!("{name}: {:.6}, transformers {:.6}", found.perplexity.value.ln(), mean);
        assert_eq!(found.perplexity.tokens, expected.len(), "{name}");
        assert!((found.perplexity.value.ln() - mean).abs() < 2e-6 * mean, "{name}: {found:?} {mean}");
        assert!((found.perplexity.total_nll / expected.len() as f64 - mean).abs() < 1e-5, "{name}");
    }
}

/// First layers of the bundled model as an encoder with a head for masked tokens.
fn encoder() -> (Tiny, GraphFeatures) {
    let mut tiny = Tiny::new().with_layers(2);
    tiny.metadata.set("llama.attention.causal", false);
    tiny.metadata.set("llama.pooling_type", 1u32);
    tiny.metadata.set(MASK, 1u32);
    let mix = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1u32 << 23) as f32 - 1.0;
    let dense = (0..256 * 256u32).map(|i| mix(i) / 32.0 + if i / 256 == i % 256 { 1.0 } else { 0.0 });
    let norm = (0..256u32).map(|i| 0.5 + mix(i) / 8.0);
    tiny.tensors.add("cls.weight", &[256, 256], GgmlType::F32, dense.flat_map(f32::to_le_bytes).collect());
    tiny.tensors.add("cls.norm.weight", &[256], GgmlType::F32, norm.flat_map(f32::to_le_bytes).collect());
    let graph = "attention.mask = 'full'\nkind = 'encoder'\nhead = { masked = true, act = 'gelu_erf' }";
    (tiny, GraphFeatures::from_toml(&graph.parse().unwrap()).unwrap())
}

fn diffusion() -> (Tiny, GraphFeatures) {
    let mut tiny = Tiny::new().with_layers(2);
    tiny.metadata.set(MASK, 1u32);
    let graph = "kind = 'diffusion'\nattention.mask = 'full'";
    (tiny, GraphFeatures::from_toml(&graph.parse().unwrap()).unwrap())
}

/// Report on texts of 8 tokens: each of at most 256 masked tokens is a run of its text.
fn judged(
    tiny: &Tiny,
    baseline: Option<&Tiny>,
    features: &GraphFeatures,
    n_texts: usize,
    thresholds: Thresholds,
) -> Report {
    let mut options = options(Some(n_texts));
    options.scoring.n_ctx = 8;
    judged_with(tiny, baseline, features, &VerifyOptions { thresholds, ..options })
}

fn beside(tiny: &Tiny, base: &Tiny, features: &GraphFeatures, n_texts: usize) -> Report {
    judged(tiny, Some(base), features, n_texts, Thresholds::default())
}

fn answered(report: &Report) -> Vec<Aspect> {
    report.coverage.answered().map(|judged| judged.aspect).collect()
}

two_tiers!(healthy_files_pass_by_their_masked_tokens);

fn healthy_files_pass_by_their_masked_tokens(tier: Tier) {
    for (base, features) in [encoder(), diffusion()] {
        for ty in tier.some(2, [GgmlType::Q4_0, GgmlType::Q8_0]) {
            let report = beside(&base.quantized(ty), &base, &features, 40);
            let found = measured(&report);
            println!("{:?}", (found, &report.limits));
            assert_eq!(report.verdict, Verdict::Pass, "{ty}: {report:?}");
            assert_eq!((found.perplexity.tokens, found.mask_token), (256, 1));
            assert!(answered(&report).contains(&Aspect::Masked));
            assert!(!answered(&report).contains(&Aspect::Perplexity));
            let limit = |figure| report.limits.iter().any(|line| line.figure == figure && !line.is_missed);
            assert!(limit(Figure::MaskedKld) && limit(Figure::MaskedTop1), "{:?}", report.limits);
            assert!(found.healthy.unwrap().kld > 0.0);
        }
        let same = beside(&base, &base, &features, 4);
        let against = measured(&same).divergence.as_ref().unwrap();
        assert_eq!((against.kld.mean, against.top1_agreement), (0.0, 1.0));
    }
}

deep_test!(damages_show_at_masked_tokens);

fn damages_show_at_masked_tokens() {
    type Damage = fn(&mut Tiny);
    let of_the_head: [(&str, Damage); 3] = [
        ("rows moved by one", |tiny| {
            tiny.edit("cls.weight", |rows| rows.rotate_right(256));
        }),
        ("a head of the other sign", |tiny| {
            tiny.edit("cls.weight", |rows| rows.iter_mut().for_each(|x| *x = -*x));
        }),
        ("a norm of ones", |tiny| tiny.set_values("cls.norm.weight", &[1.0; 256])),
    ];
    let n_texts = 40;
    let (base, features) = encoder();
    for (damage, apply) in of_the_head {
        let mut tiny = base.clone();
        apply(&mut tiny);
        let report = beside(&tiny.quantized(GgmlType::Q8_0), &base, &features, n_texts);
        assert_eq!(report.verdict, Verdict::Fail, "{damage}");
        let found = errors(&report);
        // The head does not affect the vectors.
        assert!(found.contains(&"max-masked-kld") && !found.contains(&"min-cosine"), "{damage}: {found:?}");
    }
    let of_layers: [(&str, Damage); 2] = [
        ("two layers' matrices swapped", |tiny| {
            tiny.tensors.swap("blk.0.ffn_up.weight", "blk.1.ffn_up.weight");
        }),
        ("queries not permuted", |tiny| *tiny = tiny.unpermuted()),
    ];
    for (base, features) in [encoder(), diffusion()] {
        for (damage, apply) in of_layers {
            let mut tiny = base.clone();
            apply(&mut tiny);
            let report = beside(&tiny.quantized(GgmlType::Q8_0), &base, &features, n_texts);
            assert_eq!(report.verdict, Verdict::Fail, "{damage}");
            assert!(errors(&report).contains(&"max-masked-kld"), "{damage}: {:?}", errors(&report));
        }
    }
}

#[test]
fn what_is_not_measured_is_said() {
    let absent = |tiny: &Tiny, features: &GraphFeatures| {
        let report = judged(tiny, None, features, 4, Thresholds::default());
        let why = report.masked.as_ref().unwrap().as_ref().unwrap_err().clone();
        assert_eq!(
            serde_json::to_value(ReportDocument::from(&report)).unwrap()["masked"]["absent"],
            why.as_str()
        );
        (why, report)
    };
    let (mut tiny, features) = encoder();
    tiny.tensors.retain(|meta| !meta.name.starts_with("cls."));
    let (why, report) = absent(&tiny, &features);
    assert_eq!(why, "no masked-language head in the file");
    assert!(report.coverage.open().all(|open| open.aspect != Aspect::Masked), "nothing could answer it");
    for (mut tiny, features) in [encoder(), diffusion()] {
        tiny.metadata.remove(MASK);
        let (why, report) = absent(&tiny, &features);
        assert_eq!(why, "the file names no mask token (`tokenizer.ggml.mask_token_id`)");
        assert!(report.coverage.open().any(|open| open.aspect == Aspect::Masked));
    }
    // A file without a vocabulary has no other source for it.
    let (mut tiny, features) = encoder();
    tiny.metadata.set(MASK, 9_999_999u32);
    tiny.metadata.set("tokenizer.ggml.model", "none");
    let report = judged(&tiny, None, &features, 4, Thresholds::default());
    assert_eq!(report.verdict, Verdict::Fail, "{report:?}");
    assert!(errors(&report).iter().any(|check| ["masked", "tokenizer"].contains(check)), "{report:?}");
}

#[test]
fn limits_of_ones_own_are_kept_or_missed() {
    let (base, features) = encoder();
    let of = |thresholds| judged(&base.quantized(GgmlType::Q8_0), Some(&base), &features, 4, thresholds);
    let own = Thresholds::default().with(Figure::PseudoPpl, Some(1.0)).with(Figure::MaskedTop1, Some(0.0));
    let report = of(own);
    assert!(errors(&report).contains(&"max-pseudo-ppl"), "{:?}", errors(&report));
    assert!(report.limits.iter().any(|line| line.figure == Figure::MaskedTop1 && line.is_own));
    let stray = judged(&Tiny::new(), None, &llama(), 4, own);
    let told: Vec<&str> = stray
        .findings
        .iter()
        .filter(|found| found.severity == Severity::Unchecked && found.check == Check::Limits)
        .map(|found| found.message.as_str())
        .collect();
    assert_eq!(
        told,
        [
            "`--max-pseudo-ppl` is a limit of predictions of masked tokens: this model has none",
            "`--min-masked-top1` is a limit of predictions of masked tokens: this model has none"
        ]
    );
}

#[test]
fn heads_that_do_not_fit_are_named() {
    let message = |tiny: &Tiny, features: &GraphFeatures| {
        let report = judged(tiny, None, features, 4, Thresholds::default());
        assert_eq!(report.verdict, Verdict::Fail);
        let graph = report.findings.iter().find(|found| found.check == Check::Graph).unwrap();
        graph.message.clone()
    };
    for (missing, expected) in [
        ("cls.weight", "tensor `cls.weight` is missing"),
        ("cls.norm.weight", "tensor `cls.norm.weight` is missing"),
    ] {
        let (mut tiny, features) = encoder();
        tiny.tensors.remove(missing);
        assert_eq!(message(&tiny, &features), expected);
    }
    for (tensor, shape, expected) in
        [("cls.weight", &[512, 128][..], "[256, 256]"), ("cls.norm.weight", &[128], "[256]")]
    {
        let (mut tiny, features) = encoder();
        tiny.tensors.reshape(tensor, shape);
        let found = message(&tiny, &features);
        assert!(found.contains(tensor) && found.contains(expected), "{found}");
    }
}
