//! What a key decides: the arithmetic, how text becomes tokens, or neither.

use crate::gguf::keys::ANNOTATION_PREFIX;
use crate::gguf::split_id::SPLIT_ID;

/// What becomes of a difference in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Decides what the model computes: a difference is an error.
    Arithmetic,
    /// Describes the architecture without deciding what it computes: a warning, unless the graph says else.
    Free,
    /// Decides how text becomes tokens: an error.
    Encoding,
    /// Ends an answer: another id is an error, one that only one side names a warning.
    Turn,
    /// Concerns programs around the model: a warning.
    Runtime,
    /// Names and origins, which publishers change: nothing.
    Name,
    /// What quantizing, splitting and writing change: nothing.
    Build,
    /// Somebody else's.
    Foreign,
}

/// Keys of an architecture (without its name in front) that describe it and decide nothing: the trained length, a size
/// that the tokens have by themselves, where the tensors came from, what an embedding is pooled by.
const FREE: [&str; 4] = ["context_length", "vocab_size", "tensor_data_layout", "pooling_type"];

/// Keys of an architecture that the engine reads: building the graph with and without one shows what it changes.
pub(super) const READ: [&str; 50] = [
    "attention.causal",
    "attention.clamp_kqv",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.max_alibi_bias",
    "attention.rope_pattern",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length",
    "attn_logit_softcapping",
    "block_count",
    "context_length",
    "embedding_length",
    "embedding_scale",
    "expert_count",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "feed_forward_length",
    "final_logit_softcapping",
    "leading_dense_block_count",
    "logit_scale",
    "nextn_predict_layers",
    "residual_scale",
    "rope.dimension_count",
    "rope.dimension_sections",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.alpha",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_truncate",
    "use_parallel_residual",
];

/// Keys of an architecture that decide the arithmetic of other runtimes and that the engine takes from elsewhere: the
/// width of experts from their tensors, the token that ends a prefix from the graph.
#[cfg(test)]
const UNREAD: [&str; 3] = ["expert_feed_forward_length", "gmask_token_id", "rope.scaling.yarn_attn_factor"];

/// Keys behind `tokenizer.ggml.` that decide how text becomes tokens.
const ENCODING: [&str; 19] = [
    "model",
    "pre",
    "tokens",
    "token_type",
    "scores",
    "merges",
    "precompiled_charsmap",
    "bos_token_id",
    "eos_token_id",
    "unknown_token_id",
    "seperator_token_id",
    "cls_token_id",
    "add_bos_token",
    "add_eos_token",
    "add_sep_token",
    "add_space_prefix",
    "remove_extra_whitespaces",
    "normalizer.lowercase",
    "normalizer.strip_accents",
];

/// Keys behind `tokenizer.ggml.` of the tokens at which a runtime ends an answer.
const TURN: [&str; 2] = ["eot_token_id", "eom_token_id"];

/// Prefixes of keys that decide the arithmetic under any architecture.
const SHARED: [&str; 2] = ["xielu.", "diffusion."];

/// Keys of the file rather than of the model.
const BUILD: [&str; 9] = [
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "general.quantized_by",
    "general.tensor_extra.",
    "split.",
    SPLIT_ID,
    "quantize.",
    "imatrix.",
];

/// Keys behind `general.` that programs act on.
const RUNTIME: [&str; 2] = ["general.type", "general.sampling."];

/// Keys behind `general.` of what the model may be used for, made from and made by: listed where they differ.
const RIGHTS: [&str; 5] =
    ["general.license", "general.base_model.", "general.dataset.", "general.tags", "general.languages"];

/// The class of a key in a file of an architecture. A key of the architecture that is in no list decides the
/// arithmetic, as far as anybody knows.
pub(super) fn class_of(key: &str, arch: &str) -> Class {
    let is_in =
        |list: &[&str]| list.iter().any(|row| key == *row || (row.ends_with('.') && key.starts_with(row)));
    if let Some(name) = key.strip_prefix("tokenizer.") {
        return match name.strip_prefix("ggml.") {
            Some(name) if ENCODING.contains(&name) => Class::Encoding,
            Some(name) if TURN.contains(&name) => Class::Turn,
            _ => Class::Runtime,
        };
    }
    if is_in(&BUILD) {
        return Class::Build;
    }
    if key == "general.architecture" || key.starts_with(ANNOTATION_PREFIX) || is_in(&SHARED) {
        return Class::Arithmetic;
    }
    if key.starts_with("general.") {
        let is_rights = RIGHTS.iter().any(|row| key.starts_with(row));
        return if is_rights || is_in(&RUNTIME) { Class::Runtime } else { Class::Name };
    }
    match key.strip_prefix(arch).and_then(|rest| rest.strip_prefix('.')) {
        Some(name) if !arch.is_empty() => local_class(name),
        _ => Class::Foreign,
    }
}

/// The class of an architecture's key, without the architecture in front.
pub(super) fn local_class(name: &str) -> Class {
    if FREE.contains(&name) { Class::Free } else { Class::Arithmetic }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Registry;
    use crate::arch::derived_keys;
    use crate::gguf::keys::{ANNOTATIONS, KEYS};

    /// A key of the architecture that is in a list.
    fn is_listed(name: &str) -> bool {
        FREE.contains(&name) || READ.contains(&name) || UNREAD.contains(&name)
    }

    #[test]
    fn every_key_that_a_card_derives_is_classified() {
        let registry = Registry::embedded().unwrap();
        let mut n = 0;
        for card in registry.cards() {
            for key in derived_keys(card) {
                n += 1;
                let arch = &card.gguf;
                match class_of(&key, arch) {
                    Class::Arithmetic | Class::Free => {
                        let name =
                            key.strip_prefix(&format!("{arch}.")).or(key.strip_prefix(ANNOTATION_PREFIX));
                        let name = name.unwrap_or_else(|| panic!("{key}"));
                        assert!(
                            is_listed(name),
                            "card `{}`: put `{name}` into READ, UNREAD or FREE",
                            card.name()
                        );
                    }
                    Class::Foreign | Class::Name => {
                        panic!("card `{}` derives `{key}`: what is it?", card.name())
                    }
                    Class::Encoding | Class::Turn | Class::Runtime | Class::Build => {}
                }
            }
        }
        assert!(n > 200, "{n} keys");
    }

    #[test]
    fn every_key_that_the_engine_reads_is_listed() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/build");
        let mut n = 0;
        for entry in fs_err::read_dir(dir).unwrap() {
            let text = fs_err::read_to_string(entry.unwrap().path()).unwrap();
            // Quoted names of the form of a key, in files that read keys: every one must be known.
            for quoted in text.split('"').skip(1).step_by(2) {
                let is_key = KEYS.iter().any(|row| row.pattern.strip_prefix("{arch}.") == Some(quoted))
                    || ANNOTATIONS.iter().any(|row| row.pattern == quoted);
                if is_key {
                    n += 1;
                    assert!(READ.contains(&quoted), "the engine reads `{quoted}`");
                }
            }
        }
        assert!(n > 40, "{n} keys");
    }

    #[test]
    fn keys_fall_into_their_classes() {
        for (key, expected) in [
            ("llama.rope.freq_base", Class::Arithmetic),
            ("llama.something.new", Class::Arithmetic),
            ("gguf_foundry.attention.sliding_window", Class::Arithmetic),
            ("xielu.beta", Class::Arithmetic),
            ("llama.context_length", Class::Free),
            ("qwen2.context_length", Class::Foreign),
            ("tokenizer.ggml.pre", Class::Encoding),
            ("tokenizer.ggml.eot_token_id", Class::Turn),
            ("tokenizer.ggml.padding_token_id", Class::Runtime),
            ("tokenizer.chat_template", Class::Runtime),
            ("general.name", Class::Name),
            ("general.base_model.0.name", Class::Runtime),
            ("general.license.link", Class::Runtime),
            ("general.sampling.temp", Class::Runtime),
            ("general.file_type", Class::Build),
            ("general.quantization_version", Class::Build),
            ("split.count", Class::Build),
            ("gguf_foundry.split.id", Class::Build),
            ("quantize.imatrix.file", Class::Build),
            ("mradermacher.quantized_on", Class::Foreign),
        ] {
            assert_eq!(class_of(key, "llama"), expected, "{key}");
        }
        assert_eq!(class_of(".x", ""), Class::Foreign);
    }
}
