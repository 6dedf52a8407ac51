//! Intentionally damaged files, one by one: none passes, and each is found by its dedicated check. In the deep tier this
//! test prints each damage with its checks.

use std::collections::BTreeMap;

use gguf_foundry::core::GgmlType;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::gguf::{Array, Value};
use gguf_foundry::verify::{Model, Recall, Severity, Verdict, verify};

use super::{corpus, errors, llama, model, options};
use crate::support::report_cases;
use crate::support::tiers::{Tier, two_tiers};
use crate::testkit::noise::Noise;
use crate::testkit::tiny::Tiny;

/// Damage of a file, and the check that must find it with the baseline.
struct Damage {
    what: &'static str,
    check: &'static str,
    apply: fn(&mut Tiny),
}

/// Types of the damaged weights: floats, and blocks of each family.
const TYPES: [GgmlType; 5] = [GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4K, GgmlType::Iq4Xs];

/// Range of a block's bytes that holds codes, by type; scales come first or last.
fn codes(ty: GgmlType) -> std::ops::Range<usize> {
    match ty {
        GgmlType::F16 => 0..2,
        GgmlType::Q8_0 => 2..34,
        GgmlType::Q4_0 => 2..18,
        GgmlType::Q4K => 16..144,
        GgmlType::Iq4Xs => 8..136,
        other => panic!("{other}"),
    }
}

fn blocks<'t>(tiny: &'t mut Tiny, name: &str) -> (GgmlType, Vec<&'t mut [u8]>) {
    let ty = tiny.tensors.meta(name).ty;
    (ty, tiny.tensors.bytes_mut(name).chunks_exact_mut(ty.block_bytes()).collect())
}

fn random_codes(tiny: &mut Tiny, name: &str, every: usize, only: Option<usize>) {
    let mut noise = Noise::new(7);
    let (ty, blocks) = blocks(tiny, name);
    for (at, block) in blocks.into_iter().enumerate() {
        if at % every == 0 && only.is_none_or(|only| at == only) {
            for byte in &mut block[codes(ty)] {
                *byte = noise.bits() as u8;
            }
            if ty == GgmlType::F16 {
                // Number with the magnitude of weights.
                block.copy_from_slice(&half_bits(0.1 * noise.signed()));
            }
        }
    }
}

fn half_bits(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_bits().to_le_bytes()
}

/// Changes the scale of one block, or the number itself for floats.
fn rescale(tiny: &mut Tiny, name: &str, block: usize, change: impl Fn(f32) -> f32) {
    let (_, mut blocks) = blocks(tiny, name);
    let bytes: &mut [u8] = blocks[block];
    let scale = half::f16::from_bits(u16::from_le_bytes([bytes[0], bytes[1]])).to_f32();
    bytes[..2].copy_from_slice(&half_bits(change(scale)));
}

fn row_bytes(tiny: &Tiny, name: &str) -> usize {
    tiny.tensors.meta(name).row_bytes().unwrap() as usize
}

fn move_rows(tiny: &mut Tiny, name: &str, by: usize) {
    let n = row_bytes(tiny, name);
    tiny.tensors.bytes_mut(name).rotate_left(by * n);
}

fn swap_rows(tiny: &mut Tiny, name: &str, a: usize, b: usize) {
    let n = row_bytes(tiny, name);
    let bytes = tiny.tensors.bytes_mut(name);
    (0..n).for_each(|byte| bytes.swap(a * n + byte, b * n + byte));
}

const LAYER: [&str; 9] =
    ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"];

fn swap_layers(tiny: &mut Tiny, a: usize, b: usize) {
    for name in LAYER {
        tiny.tensors.swap(&format!("blk.{a}.{name}.weight"), &format!("blk.{b}.{name}.weight"));
    }
}

/// Changes the numbers of an F32 tensor: a vector is one in every file.
fn vector(tiny: &mut Tiny, name: &str, change: impl Fn(usize, f32) -> f32) {
    tiny.edit(name, |values| {
        for (at, x) in values.iter_mut().enumerate() {
            *x = change(at, *x);
        }
    });
}

/// Replaces a tensor of the file by one made from changed values of the baseline.
fn remake(tiny: &mut Tiny, name: &str, change: impl Fn(usize, f32) -> f32) {
    let mut plain = Tiny::new();
    vector(&mut plain, name, change);
    let ty = tiny.tensors.meta(name).ty;
    tiny.tensors.replace(name, ty, plain.quantized_tensor(name, ty));
}

fn strings(tiny: &mut Tiny, key: &str, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
    let Some(Value::Array(Array::String(mut strings))) = tiny.metadata.remove(key) else { panic!("{key}") };
    change(&mut strings);
    tiny.metadata.set(key, Value::Array(Array::String(strings)));
}

const Q: &str = "blk.1.attn_q.weight";
const K: &str = "blk.1.attn_k.weight";
const UP: &str = "blk.2.ffn_up.weight";

macro_rules! damages {
    ($($what:literal, $check:literal, $apply:expr;)*) => {
        &[$( Damage { what: $what, check: $check, apply: $apply } ),*]
    };
}

/// Damages of weights, tested in every type.
const WEIGHTS: &[Damage] = damages! {
    "all codes of a matrix random", "weights", |t| random_codes(t, K, 1, None);
    "every tenth block random", "weights", |t| random_codes(t, UP, 10, None);
    "every hundredth block random", "weights", |t| random_codes(t, UP, 100, None);
    "one block random", "weights", |t| random_codes(t, UP, 1, Some(37));
    "one scale doubled", "weights", |t| rescale(t, UP, 11, |s| 2.0 * s);
    "one scale halved", "weights", |t| rescale(t, UP, 11, |s| 0.5 * s);
    "one scale of the other sign", "weights", |t| rescale(t, UP, 11, |s| -s);
    "one scale zero", "weights", |t| rescale(t, UP, 11, |_| 0.0);
    "one scale a thousand times", "weights", |t| rescale(t, UP, 11, |s| 1000.0 * s);
    "one scale NaN", "non-finite", |t| rescale(t, UP, 11, |_| f32::NAN);
    "one scale infinite", "non-finite", |t| rescale(t, UP, 11, |_| f32::INFINITY);
    "two rows swapped", "weights", |t| swap_rows(t, UP, 5, 6);
    "rows reversed", "weights", |t| {
        let n = t.tensors.meta(K).shape.n_rows() as usize;
        (0..n / 2).for_each(|row| swap_rows(t, K, row, n - 1 - row));
    };
    "rows moved by one", "weights", |t| move_rows(t, Q, 1);
    "bytes of a matrix moved by a block", "weights", |t| {
        let n = t.tensors.meta(Q).ty.block_bytes();
        t.tensors.bytes_mut(Q).rotate_left(n);
    };
    "a matrix for another of its shape", "weights", |t| t.tensors.swap(Q, "blk.1.attn_output.weight");
    "gate and up swapped", "weights", |t| t.tensors.swap("blk.2.ffn_gate.weight", UP);
    "keys and values swapped", "weights", |t| t.tensors.swap(K, "blk.1.attn_v.weight");
    "two layers swapped", "weights", |t| swap_layers(t, 1, 2);
    "a layer twice", "weights", |t| {
        for name in LAYER {
            let from = t.tensors.index(&format!("blk.2.{name}.weight"));
            let bytes = t.tensors.bytes(from).to_vec();
            t.tensors.bytes_mut(&format!("blk.3.{name}.weight")).copy_from_slice(&bytes);
        }
    };
    "queries not permuted", "weights", |t| t.unpermute(Q, 4);
    "queries and keys not permuted", "weights", |t| *t = t.unpermuted();
    "one row 1.5 times", "weights", |t| remake(t, UP, |at, x| if at / 256 == 9 { 1.5 * x } else { x });
    "a matrix 0.9 times", "weights", |t| remake(t, UP, |_, x| 0.9 * x);
    "a matrix of the other sign", "weights", |t| remake(t, UP, |_, x| -x);
    "a column of zeros", "weights", |t| remake(t, UP, |at, x| if at % 256 == 3 { 0.0 } else { x });
    "small numbers lost", "weights", |t| remake(t, UP, |_, x| if x.abs() < 0.05 { 0.0 } else { x });
    "large numbers cut", "weights", |t| remake(t, UP, |_, x| x.clamp(-0.05, 0.05));
    "a matrix of zeros", "all-zero", |t| remake(t, UP, |_, _| 0.0);
    "two tokens' embeddings swapped", "weights", |t| swap_rows(t, "token_embd.weight", 300, 301);
    "embeddings moved by 17 tokens", "weights", |t| move_rows(t, "token_embd.weight", 17);
    "a norm of ones", "weights", |t| vector(t, "blk.0.attn_norm.weight", |_, _| 1.0);
    "a norm plus one", "weights", |t| vector(t, "blk.0.ffn_norm.weight", |_, x| x + 1.0);
    "one number of a norm", "weights", |t| vector(t, "output_norm.weight", |at, x| if at == 3 { 1.01 * x } else { x });
    "a norm with an infinity", "non-finite", |t| {
        vector(t, "output_norm.weight", |at, x| if at == 3 { f32::INFINITY } else { x });
    };
};

/// Damages of keys, of the vocabulary, and of the set of tensors; the type does not matter.
const KEYS: &[Damage] = damages! {
    "rotation base", "hparams", |t| t.metadata.set("llama.rope.freq_base", 5e5f32);
    "a little other rotation base", "hparams", |t| t.metadata.set("llama.rope.freq_base", 10001f32);
    "rotation stretched", "hparams", |t| {
        t.metadata.set("llama.rope.scaling.type", "linear");
        t.metadata.set("llama.rope.scaling.factor", 2f32);
    };
    "fewer dimensions rotated", "hparams", |t| t.metadata.set("llama.rope.dimension_count", 32u32);
    "epsilon", "hparams", |t| t.metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-6f32);
    "scale of attention", "hparams", |t| t.metadata.set("llama.attention.scale", 0.5f32);
    "a window", "hparams", |t| t.metadata.set("llama.attention.sliding_window", 16u32);
    "heads", "hparams", |t| t.metadata.set("llama.attention.head_count", 2u32);
    "heads of keys", "hparams", |t| t.metadata.set("llama.attention.head_count_kv", 4u32);
    "fewer layers", "tensors", |t| t.metadata.set("llama.block_count", 3u32);
    "more layers", "graph", |t| t.metadata.set("llama.block_count", 5u32);
    "width", "graph", |t| t.metadata.set("llama.embedding_length", 128u32);
    "another architecture", "hparams", |t| t.metadata.set("general.architecture", "qwen2");
    "no architecture", "required-keys", |t| drop(t.metadata.remove("general.architecture"));
    "a tensor missing", "graph", |t| t.tensors.remove("blk.3.ffn_norm.weight");
    "a tensor too many", "tensors", |t| t.tensors.add_copy("blk.0.attn_norm.weight", "blk.0.attn_q_norm.scale");
    "a layer missing", "graph", |t| t.tensors.retain(|meta| !meta.name.starts_with("blk.3."));
    "pre-tokenizer", "tokenizer-parity", |t| t.metadata.set("tokenizer.ggml.pre", "llama-bpe");
    "pre-tokenizer of a close relative", "tokenizer-parity", |t| t.metadata.set("tokenizer.ggml.pre", "qwen2");
    "no BOS in front", "tokenizer-parity", |t| t.metadata.set("tokenizer.ggml.add_bos_token", false);
    "EOS behind", "tokenizer-parity", |t| t.metadata.set("tokenizer.ggml.add_eos_token", true);
    "another BOS", "tokenizer-parity", |t| t.metadata.set("tokenizer.ggml.bos_token_id", 5u32);
    "another EOS", "tokenizer-parity", |t| t.metadata.set("tokenizer.ggml.eos_token_id", 5u32);
    "no BOS id", "tokenizer", |t| drop(t.metadata.remove("tokenizer.ggml.bos_token_id"));
    "BOS beyond the vocabulary", "tokenizer", |t| t.metadata.set("tokenizer.ggml.bos_token_id", 1u32 << 20);
    "half of the merges", "tokenizer", |t| {
        strings(t, "tokenizer.ggml.merges", |merges| merges.truncate(merges.len() / 2));
    };
    "two merges swapped", "tokenizer-parity", |t| {
        strings(t, "tokenizer.ggml.merges", |merges| merges.swap(40, 41));
    };
    "two tokens swapped", "tokenizer-parity", |t| {
        strings(t, "tokenizer.ggml.tokens", |tokens| tokens.swap(300, 301));
    };
    "one token's text", "tokenizer-parity", |t| {
        strings(t, "tokenizer.ggml.tokens", |tokens| tokens[400].push(b'x'));
    };
    "one token's type", "tokenizer-parity", |t| {
        let n = match t.metadata.get("tokenizer.ggml.token_type") {
            Some(Value::Array(array)) => array.len(),
            other => panic!("{other:?}"),
        };
        let types: Vec<i32> = (0..n).map(|id| if id < 2 || id == 500 { 3 } else { 1 }).collect();
        t.metadata.set("tokenizer.ggml.token_type", types);
    };
};

/// Verdict and error checks for a damaged file, with or without the baseline.
fn found(damaged: &Tiny, baseline: Option<&Model<'_>>) -> (Verdict, Vec<&'static str>) {
    let features = llama();
    // So few tokens exceed no limit on figures, so a damage is not found by chance.
    let mut options = options(Some(1));
    options.scoring.n_ctx = 64;
    let outcome = verify(&model(damaged, &features), baseline, &corpus(), &options, &Silent, None);
    let report = outcome.unwrap().report;
    let mut checks = errors(&report);
    checks.sort_unstable();
    checks.dedup();
    assert!(
        report.verdict != Verdict::Fail || report.findings.iter().any(|f| f.severity == Severity::Error),
        "a failure says why"
    );
    (report.verdict, checks)
}

two_tiers!(no_damage_passes_and_each_is_found_by_its_check);

/// Every day some damages, others in each type.
fn no_damage_passes_and_each_is_found_by_its_check(tier: Tier) {
    let base = Tiny::new();
    // The baseline runs once for each text that a vocabulary makes of the prompts.
    let (features, recall) = (llama(), Recall::default());
    let reference = Model { recall: Some(&recall), ..model(&base, &features) };
    let (mut n_cases, mut missed) = (0, Vec::new());
    let mut table: BTreeMap<&str, (Vec<&str>, Vec<&str>)> = BTreeMap::new();
    let weights = TYPES.iter().enumerate().map(|(at, &ty)| (ty, &WEIGHTS[tier.of(4 * at, 0)..], 40));
    let keys = (tier.of(GgmlType::Q8_0, GgmlType::Q4K), KEYS, 10);
    for (ty, damages, every) in weights.chain([keys]) {
        let healthy = base.quantized(ty);
        for damage in tier.some(every, damages) {
            let mut file = healthy.clone();
            (damage.apply)(&mut file);
            if let Ok(encoder) = gguf_foundry::tokenizer::Encoder::from_metadata(&file.metadata) {
                file.encoder = std::sync::Arc::new(encoder);
            }
            let (alone, checks_alone) = found(&file, None);
            let (beside, checks) = found(&file, Some(&reference));
            n_cases += 1;
            let row = table.entry(damage.what).or_default();
            row.0.extend(checks_alone);
            row.1.extend(&checks);
            if alone == Verdict::Pass || beside != Verdict::Fail || !checks.contains(&damage.check) {
                missed.push(format!("{ty} {}: {beside:?} by {checks:?}, not {}", damage.what, damage.check));
            }
        }
    }
    for (what, (mut alone, mut beside)) in table {
        for checks in [&mut alone, &mut beside] {
            checks.sort_unstable();
            checks.dedup();
        }
        println!("| {what} | {} | {} |", alone.join(", "), beside.join(", "));
    }
    report_cases("verify: damages", n_cases);
    assert!(missed.is_empty(), "{} of {n_cases}:\n{}", missed.len(), missed.join("\n"));
    assert_eq!(n_cases, tier.of(8, 205));
}
