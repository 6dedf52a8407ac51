//! Tests of the comparison without tensors, so that no graph can be built.

use super::*;

fn keys(arch: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", arch);
    metadata.set(format!("{arch}.block_count"), 4u32);
    metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32);
    metadata.set(format!("{arch}.attention.head_count_kv"), 2u32);
    metadata.set("tokenizer.ggml.add_bos_token", true);
    metadata
}

fn found(model: &Metadata, baseline: &Metadata) -> Vec<String> {
    let show = |f: Finding| format!("{} {}: {}", f.severity.name(), f.check, f.message);
    compare_keys(model, baseline, &|_| Default::default()).into_iter().map(show).collect()
}

#[test]
fn widths_and_repeated_numbers_are_no_difference() {
    let (mut a, b) = (keys("llama"), keys("llama"));
    a.set("llama.block_count", 4u64);
    a.set("llama.attention.head_count_kv", vec![2i32, 2, 2, 2]);
    a.set("llama.vocab_size", 512u32);
    assert_eq!(found(&a, &b), [""; 0]);
}

#[test]
fn numbers_without_a_key_in_gguf_are_warned_of() {
    let (plain, mut annotated) = (keys("llama"), keys("llama"));
    annotated.set("gguf_foundry.attention.sliding_window", 4096u32);
    annotated.set("gguf_foundry.attention.sliding_window_pattern", vec![true, false, true, false]);
    annotated.set("gguf_foundry.rope.scaling.yarn_truncate", false);
    let missing = |name: &str, value: &str, differ: &str| {
        format!(
            "warning hparams: the file does not say `{name}`, which is {value} in the baseline: GGUF has no key \
             for it here, and {differ}; convert with `--annotate`"
        )
    };
    assert_eq!(
        found(&plain, &annotated),
        [
            missing("attention.sliding_window", "4096", "results beyond 4096 tokens differ"),
            missing("rope.scaling.yarn_truncate", "false", "results differ"),
        ]
    );
    assert_eq!(found(&annotated, &annotated), [""; 0]);
    let mut narrow = annotated.clone();
    narrow.set("gguf_foundry.attention.sliding_window", 512u32);
    assert_eq!(
        found(&narrow, &annotated),
        ["error hparams: `attention.sliding_window` is 512, the baseline's is 4096"]
    );
    // A key of the architecture is equivalent to an annotation.
    let mut named = keys("llama");
    named.set("llama.attention.sliding_window", 4096u32);
    let mut only = keys("llama");
    only.set("gguf_foundry.attention.sliding_window", 4096u32);
    assert_eq!(found(&named, &only), [""; 0]);
    assert_eq!(found(&only, &plain), ["warning hparams: `attention.sliding_window` is not in the baseline"]);
    let mut other = only.clone();
    other.set("gguf_foundry.attention.sliding_window_pattern", vec![true, false, true, false]);
    assert_eq!(
        found(&only, &other),
        [missing("attention.sliding_window_pattern", "an array of 4", "results differ")]
    );
}

#[test]
fn numbers_tokens_and_architectures_are_compared() {
    let (mut a, b) = (keys("llama"), keys("llama"));
    a.set("llama.attention.layer_norm_rms_epsilon", 1e-6f32);
    a.set("llama.context_length", 1u32);
    a.set("llama.rope.freq_base", 5e5f32);
    a.set("tokenizer.ggml.add_bos_token", false);
    a.set("tokenizer.ggml.eot_token_id", 3u32);
    assert_eq!(
        found(&a, &b),
        [
            "error hparams: `attention.layer_norm_rms_epsilon` is 0.000001, the baseline's is 0.00001",
            "warning hparams: `rope.freq_base` is not in the baseline",
            "error tokenizer-parity: `tokenizer.ggml.add_bos_token` differs from the baseline's: false, not true",
            "warning tokenizer-parity: `tokenizer.ggml.eot_token_id` is not in the baseline",
        ]
    );
    assert_eq!(found(&keys("qwen2"), &b), ["error hparams: architecture `qwen2`, the baseline's is `llama`"]);
    // An image model under a name by which runtimes guess it.
    let guessed = found(&keys("pig"), &keys("flux"));
    assert_eq!(guessed, ["warning hparams: architecture `pig`, the baseline's is `flux`"]);
    assert!(found(&keys("pig"), &b)[0].starts_with("error"));
}

#[test]
fn keys_that_the_file_lacks_are_errors_unless_they_say_the_usual() {
    let (plain, mut full) = (keys("llama"), keys("llama"));
    full.set("llama.rope.freq_base", 5e5f32);
    full.set("llama.expert_weights_scale", 1f32);
    full.set("llama.no_such_key", 3u32);
    full.set("llama.context_length", 4096u32);
    full.set("xielu.beta", vec![0.5f32]);
    let unknown = "the value that a runtime uses without it is not known";
    assert_eq!(
        found(&plain, &full),
        [
            format!("error hparams: `rope.freq_base` is missing, the baseline's is 500000: {unknown}"),
            "warning hparams: `expert_weights_scale` is missing, the baseline's is 1".to_owned(),
            format!("error hparams: `no_such_key` is missing, the baseline's is 3: {unknown}"),
            "error hparams: `xielu.beta` is missing, the baseline's is an array of 1".to_owned(),
        ]
    );
    let added = ["rope.freq_base", "expert_weights_scale", "no_such_key", "xielu.beta"];
    assert_eq!(
        found(&full, &plain),
        added.map(|key| format!("warning hparams: `{key}` is not in the baseline"))
    );
}

#[test]
fn values_of_another_kind_are_errors() {
    let (mut a, b) = (keys("llama"), keys("llama"));
    a.set("llama.block_count", "4");
    a.set("llama.attention.head_count_kv", vec![2i32, 2, 3, 2]);
    a.set("tokenizer.ggml.add_bos_token", 1u32);
    assert_eq!(
        found(&a, &b),
        [
            "error hparams: `block_count` is a string, `4`; the baseline's is a number, 4",
            "error hparams: `attention.head_count_kv` is 3 at entry 2, the baseline's is 2",
            "error tokenizer-parity: `tokenizer.ggml.add_bos_token` differs from the baseline's: a number 1, not a bool true",
        ]
    );
}

#[test]
fn what_surrounds_the_model_is_one_warning_or_none() {
    let (mut a, mut b) = (keys("llama"), keys("llama"));
    for (key, own, other) in [
        ("general.name", "A", "B"),
        ("general.license", "mit", "apache-2.0"),
        ("general.base_model.0.name", "A", "B"),
        ("quantize.imatrix.file", "a", "b"),
        ("somebody.stamp", "a", "b"),
        ("tokenizer.chat_template", "{{ a }}", "{{ b }}"),
    ] {
        a.set(key, own);
        b.set(key, other);
    }
    a.set("general.file_type", 15u32);
    a.set("general.quantization_version", 2u32);
    a.set("general.author", "A");
    a.set("somebody.else", "a");
    b.set("general.sampling.temp", 0.6f32);
    assert_eq!(
        found(&a, &b),
        [
            "warning tokenizer-parity: `tokenizer.chat_template` differs from the baseline's: `{{ a }}`, not `{{ b }}`",
            "warning metadata: other values than in the baseline: `general.license`, `general.base_model.0.name`, \
             `somebody.stamp`, `general.sampling.temp`",
        ]
    );
}
