//! Intentionally damaged files: the check that finds each, without and with a baseline.

use std::sync::LazyLock;

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::GgmlType;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::gguf::{Array, Value};
use gguf_foundry::verify::{Model, Recall, Verdict, verify};

use super::{corpus, errors, judged, llama, model, options, run};
use crate::support::tiers::{Tier, two_tiers};
use crate::testkit::tiny::Tiny;

/// Limits that a wrong computation exceeds.
const MEASURED: [&str; 4] = ["max-kld", "max-kld-99", "max-ppl-increase", "min-top1"];

/// What the baseline of each tier predicts. It runs once for each text that a vocabulary makes of the prompts.
static RECALL: LazyLock<[Recall; 2]> = LazyLock::new(<[Recall; 2]>::default);

fn base(tier: Tier) -> Tiny {
    Tiny::new().with_layers(tier.of(2, 4))
}

fn n_chunks(tier: Tier) -> usize {
    tier.of(2, 8)
}

/// Checks the errors of a broken file. Without a baseline they must be those of `alone` (no limit judges the perplexity
/// then). With a baseline the verdict is `fail`, and one of `checks` gives the reason.
fn caught(tier: Tier, what: &str, broken: &Tiny, alone: &[&str], checks: &[&str]) {
    let report = run(broken, None, Some(n_chunks(tier)));
    let mut found = errors(&report);
    found.retain(|&check| check != "worse-than-chance");
    found.dedup();
    let ppl = report.perplexity.map(|p| p.value);
    println!("{what}: alone {found:?}, perplexity {ppl:?}");
    assert_eq!(found, alone, "{what}, alone");
    let (base, features) = (base(tier), llama());
    let recall = &RECALL[usize::from(tier.is_deep())];
    let reference = Model { recall: Some(recall), ..model(&base, &features) };
    let report = judged(broken, Some(&reference), Some(n_chunks(tier)));
    let found = errors(&report);
    println!("    with baseline {found:?}, divergence {:?}", report.divergence.map(|d| d.kld.mean));
    assert_eq!(report.verdict, Verdict::Fail, "{what}");
    assert!(checks.iter().all(|check| found.contains(check)), "{what}: {found:?}");
}

fn strings(tiny: &mut Tiny, key: &str) -> Vec<Vec<u8>> {
    match tiny.metadata.remove(key) {
        Some(Value::Array(Array::String(strings))) => strings,
        other => panic!("{key}: {other:?}"),
    }
}

two_tiers!(wrong_arithmetic_is_caught);

fn wrong_arithmetic_is_caught(tier: Tier) {
    let base = base(tier);
    caught(tier, "q and k not permuted", &base.unpermuted(), &[], &MEASURED);

    // A tenth or ten times of the epsilon changes the figures by less than a quantization does, but the key differs.
    let mut broken = base.clone();
    broken.metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-6f32);
    caught(tier, "norm epsilon", &broken, &[], &["hparams"]);

    let mut broken = base.clone();
    broken.metadata.set("llama.rope.freq_base", 500000f32);
    caught(tier, "rotation base", &broken, &[], &["hparams", "max-kld"]);

    let mut broken = base.clone();
    broken.edit("token_embd.weight", |rows| rows.rotate_left(256 * 17));
    caught(tier, "embeddings of other tokens", &broken, &[], &MEASURED);
    assert!(errors(&run(&broken, None, Some(n_chunks(tier)))).contains(&"worse-than-chance"));
}

two_tiers!(wrong_tensors_are_caught);

fn wrong_tensors_are_caught(tier: Tier) {
    let base = base(tier);
    let mut broken = base.clone();
    broken.edit("blk.1.ffn_up.weight", |values| values.fill(0.0));
    caught(tier, "a tensor of zeros", &broken, &["all-zero"], &["all-zero", "max-kld"]);

    let mut broken = base.quantized(GgmlType::Q8_0);
    let codes = broken.tensors.bytes_mut("blk.1.attn_output.weight");
    codes[34 * 100..34 * 100 + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    caught(tier, "a NaN scale", &broken, &["non-finite"], &["non-finite"]);

    let mut broken = base.clone();
    broken.tensors.add_copy("blk.0.attn_norm.weight", "blk.0.attn_q_norm.scale");
    caught(tier, "a tensor that nothing uses", &broken, &["tensors"], &["tensors"]);

    let mut broken = base.clone();
    broken.tensors.remove("blk.1.ffn_norm.weight");
    caught(tier, "a tensor that is missing", &broken, &["graph"], &["graph"]);
}

two_tiers!(wrong_vocabularies_are_caught);

fn wrong_vocabularies_are_caught(tier: Tier) {
    let base = base(tier);
    let mut broken = base.clone();
    broken.metadata.set("tokenizer.ggml.pre", "llama-bpe");
    broken.reread();
    caught(tier, "another pre-tokenizer", &broken, &[], &["tokenizer-parity"]);

    let mut broken = base.clone();
    broken.metadata.set("tokenizer.ggml.add_bos_token", false);
    broken.reread();
    caught(tier, "no BOS", &broken, &[], &["tokenizer-parity"]);

    let mut broken = base.clone();
    broken.metadata.remove("tokenizer.ggml.bos_token_id");
    broken.reread();
    caught(tier, "no BOS id", &broken, &["tokenizer"], &["tokenizer", "tokenizer-parity"]);

    let mut broken = base.clone();
    let mut merges = strings(&mut broken, "tokenizer.ggml.merges");
    merges.truncate(merges.len() / 2);
    broken.metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    broken.reread();
    caught(tier, "merges truncated", &broken, &["tokenizer"], &["tokenizer", "tokenizer-parity"]);
}

two_tiers!(a_swapped_rotation_is_caught);

fn a_swapped_rotation_is_caught(tier: Tier) {
    let base = base(tier);
    let (right, wrong) = (llama(), GraphFeatures::of("qwen2").unwrap());
    let reference = model(&base, &right);
    let options = options(Some(n_chunks(tier)));
    let outcome = verify(&model(&base, &wrong), Some(&reference), &corpus(), &options, &Silent, None);
    let report = outcome.unwrap().report;
    assert_eq!(report.verdict, Verdict::Fail);
    assert!(report.divergence.unwrap().kld.mean > tier.of(0.2, 0.5));
    assert!(report.findings.iter().any(|f| f.check.name() == "max-kld"));
}

two_tiers!(another_architecture_is_caught);

fn another_architecture_is_caught(tier: Tier) {
    let base = base(tier);
    let mut other = base.clone();
    let keys: Vec<String> = base.metadata.iter().map(|(key, _)| key.to_owned()).collect();
    for key in keys {
        if let Some(local) = key.strip_prefix("llama.") {
            let value = other.metadata.remove(&key).unwrap();
            other.metadata.set(format!("qwen2.{local}"), value);
        }
    }
    other.metadata.set("general.architecture", "qwen2");
    let (right, wrong) = (llama(), GraphFeatures::of("qwen2").unwrap());
    let reference = model(&base, &right);
    let options = options(Some(n_chunks(tier)));
    let outcome = verify(&model(&other, &wrong), Some(&reference), &corpus(), &options, &Silent, None);
    let report = outcome.unwrap().report;
    assert_eq!(report.verdict, Verdict::Fail);
    let found = errors(&report);
    assert!(found.contains(&"hparams") && found.contains(&"max-kld"), "{found:?}");
}

#[test]
fn a_baseline_of_another_vocabulary_is_named() {
    let base = Tiny::new();
    let features = llama();
    let mut smaller = base.clone();
    let n = base.tensors.meta("token_embd.weight").shape.n_rows();
    let n_rows = n - 8;
    smaller.tensors.reshape("token_embd.weight", &[n_rows, 256]);
    let mut tokens = strings(&mut smaller, "tokenizer.ggml.tokens");
    tokens.truncate(n_rows as usize);
    smaller.metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    smaller.metadata.set("tokenizer.ggml.token_type", vec![1i32; n_rows as usize]);
    let outcome = verify(
        &model(&base, &features),
        Some(&model(&smaller, &features)),
        &corpus(),
        &options(Some(2)),
        &Silent,
        None,
    );
    let report = outcome.unwrap().report;
    assert_eq!(report.verdict, Verdict::Fail);
    let message =
        |check: &str| report.findings.iter().find(|f| f.check.name() == check).map(|f| f.message.clone());
    assert_eq!(
        message("baseline"),
        Some(format!("{n} logits, the baseline has {n_rows}: they cannot be compared"))
    );
    assert!(message("tokenizer-parity").unwrap().contains(&format!("{n} entries, not {n_rows}")));
    assert!(report.perplexity.is_some() && report.divergence.is_none());
}
