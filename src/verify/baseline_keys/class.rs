//! Classes of keys: arithmetic, encoding of text, or neither.

use crate::gguf::keys::ANNOTATION_PREFIX;
use crate::gguf::split_keys::SPLIT_ID;

/// Class of a key, which decides the severity of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Decides what the model computes: a difference is an error.
    Arithmetic,
    /// Describes the architecture without deciding what it computes: a warning, unless the graph differs.
    Free,
    /// Decides how text becomes tokens: an error.
    Encoding,
    /// Ends an answer: another id is an error; an id that only one side names is a warning.
    Turn,
    /// Concerns programs around the model: a warning.
    Runtime,
    /// Names and origins, which publishers change: ignored.
    Name,
    /// Changed by quantizing, splitting and writing: ignored.
    Build,
    /// Keys of other programs.
    Foreign,
}

/// Keys of an architecture (without its name) that describe it and decide nothing: the trained context length, the
/// vocabulary size, which follows from the tokens, the layout of the original tensors, the pooling of an embedding.
const FREE: [&str; 6] = [
    "classifier.output_labels",
    "classifier.pooling_type",
    "context_length",
    "pooling_type",
    "tensor_data_layout",
    "vocab_size",
];

/// Keys of an architecture that the engine reads: building the graph with and without one shows its effect.
pub(super) const READ: [&str; 131] = [
    "activation.situ_beta",
    "activation.situ_linear_beta",
    "activation_sparsity_scale",
    "adapters.count",
    "adapters.lora_rank",
    "adapters.router_gain",
    "adapters.token_ids_activate",
    "adapters.token_ids_substitute",
    "altup.active_idx",
    "altup.num_inputs",
    "attention.causal",
    "attention.clamp_kqv",
    "attention.compress_ratios",
    "attention.compress_rope_freq_base",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.indexer.block_size",
    "attention.indexer.kpool",
    "attention.indexer.kpool_select_tail",
    "attention.indexer.top_k",
    "attention.key_length",
    "attention.key_length_swa",
    "attention.kv_lora_rank",
    "attention.kv_lora_rank_swa",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.max_alibi_bias",
    "attention.output_group_count",
    "attention.output_lora_rank",
    "attention.output_scale",
    "attention.q_lora_rank",
    "attention.recurrent_layers",
    "attention.relative_buckets_count",
    "attention.relative_max_distance",
    "attention.rope_pattern",
    "attention.scale",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length",
    "attention.value_length_swa",
    "attention.value_scale",
    "attn_logit_softcapping",
    "attn_res.block_size",
    "block_count",
    "classifier.output_labels",
    "classifier.pooling_type",
    "context_length",
    "decoder_block_count",
    "decoder_start_token_id",
    "embedding_length",
    "embedding_length_per_layer_input",
    "embedding_scale",
    "expert_count",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_scale",
    "expert_group_used_count",
    "expert_latent_length",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "experts_per_group",
    "feed_forward_length",
    "final_logit_softcapping",
    "full_attention_interval",
    "hash_layer_count",
    "hrm.h_cycles",
    "hrm.l_cycles",
    "hrm.layers_per_stack",
    "hrm.prefix_lm",
    "hyper_connection.count",
    "hyper_connection.epsilon",
    "hyper_connection.low_rank",
    "hyper_connection.magnitude",
    "hyper_connection.sinkhorn_iterations",
    "kda.gate_lower_bound",
    "kda.head_dim",
    "kda.safe_gate",
    "leading_dense_block_count",
    "logit_scale",
    "moe_latent_size",
    "nextn_predict_layers",
    "num_loops",
    "ple.conv_kernel",
    "ple.eos_token_id",
    "ple.head_offsets",
    "ple.head_vocab_sizes",
    "ple.heads_per_ngram",
    "ple.layer_multipliers",
    "ple.layers",
    "ple.ngram_size",
    "pooling_type",
    "rescale_every_n_layers",
    "residual_scale",
    "rope.dimension_count",
    "rope.dimension_count_swa",
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
    "router_jitter_noise",
    "shortconv.l_cache",
    "skip_loop_final_norm",
    "ssm.conv_kernel",
    "ssm.dt_b_c_rms",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_min",
    "ssm.time_step_rank",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "swin_norm",
    "time_decay_extra_dim",
    "time_mix_extra_dim",
    "use_parallel_residual",
    "wkv.head_size",
];

/// Keys of an architecture that decide the arithmetic of other runtimes. The engine takes their values from elsewhere
/// (the width of experts from their tensors, the token that ends a prefix from the graph), or does not build the graphs
/// that need them.
#[cfg(test)]
const UNREAD: &[&str] = &[
    "attention.decay_lora_rank",
    "attention.gate_lora_rank",
    "attention.group_norm_epsilon",
    "attention.group_norm_groups",
    "attention.iclr_lora_rank",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.local_blocks",
    "attention.indexer.types",
    "attention.key_length_mla",
    "attention.key_length_mla_swa",
    "attention.value_length_mla",
    "attention.value_length_mla_swa",
    "attention.value_residual_mix_lora_rank",
    "block_size",
    "conv_group_size",
    "conv_kernel_size",
    "convnext.block_count",
    "convnext.embedding_length",
    "dense_2_feat_in",
    "dense_2_feat_out",
    "dense_3_feat_in",
    "dense_3_feat_out",
    "diffusion.shift_logits",
    "embedding_length_out",
    "expert_chunk_feed_forward_length",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "features_length",
    "gmask_token_id",
    "has_confidence_head",
    "hidden_activation",
    "interleave_moe_layer_step",
    "moe_every_n_layers",
    "n_deepstack_layers",
    "norm_before_fc",
    "norm_before_residual",
    "ple.image_token_id",
    "posnet.block_count",
    "posnet.embedding_length",
    "rope.scaling.yarn_attn_factor",
    "router_logit_softcapping",
    "sample_from_anchor",
    "selector_rank",
    "selector_top_k",
    "target_hidden_size",
    "target_layers",
    "token_shift_count",
    "xielu.alpha_n",
    "xielu.alpha_p",
    "xielu.beta",
    "xielu.eps",
];

/// Keys after `tokenizer.ggml.` that decide how text becomes tokens.
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

/// Keys after `tokenizer.ggml.` for the tokens at which a runtime ends an answer.
const TURN: [&str; 2] = ["eot_token_id", "eom_token_id"];

/// Prefixes of keys that decide the arithmetic of any architecture.
const SHARED: [&str; 2] = ["xielu.", "diffusion."];

/// Keys that describe the file instead of the model.
const BUILD: [&str; 10] = [
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "general.quantized_by",
    "general.tensor_extra.",
    "split.",
    SPLIT_ID,
    "quantize.",
    "gguf_foundry.quantize.",
    "imatrix.",
];

/// Keys under `general.` that programs act on.
const RUNTIME: [&str; 2] = ["general.type", "general.sampling."];

/// Keys under `general.` about license, origin and languages: listed if they differ.
const RIGHTS: [&str; 5] =
    ["general.license", "general.base_model.", "general.dataset.", "general.tags", "general.languages"];

/// Returns the class of a key in a file of an architecture. Unlisted keys of the architecture are assumed to decide the
/// arithmetic.
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

/// Returns the class of an architecture's key, given without the architecture's name.
pub(super) fn local_class(name: &str) -> Class {
    if FREE.contains(&name) { Class::Free } else { Class::Arithmetic }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Registry;
    use crate::arch::derived_keys;
    use crate::gguf::keys::{ANNOTATIONS, KEYS};

    /// Returns true if a key of the architecture is in a list.
    fn is_listed(name: &str) -> bool {
        FREE.contains(&name) || READ.contains(&name) || UNREAD.contains(&name)
    }

    #[test]
    fn every_key_that_a_card_derives_is_classified() {
        let registry = Registry::embedded().unwrap();
        let mut unlisted = std::collections::BTreeSet::new();
        let mut n = 0;
        for card in registry.cards() {
            for key in derived_keys(card) {
                n += 1;
                let arch = &card.gguf;
                match class_of(&key, arch) {
                    Class::Arithmetic | Class::Free => {
                        let name =
                            key.strip_prefix(&format!("{arch}.")).or(key.strip_prefix(ANNOTATION_PREFIX));
                        // Some names have no architecture prefix.
                        let is_shared = SHARED.iter().any(|prefix| key.starts_with(prefix));
                        let name = name.or(is_shared.then_some(key.as_str()));
                        let name = name.unwrap_or_else(|| panic!("{key}"));
                        if !is_listed(name) {
                            unlisted.insert(format!("{name} (card `{}`)", card.name()));
                        }
                    }
                    Class::Foreign | Class::Name => {
                        panic!("card `{}` derives `{key}`: what is it?", card.name())
                    }
                    Class::Encoding | Class::Turn | Class::Runtime | Class::Build => {}
                }
            }
        }
        assert!(unlisted.is_empty(), "to be put into READ, UNREAD or FREE: {unlisted:#?}");
        assert!(n > 200, "{n} keys");
    }

    #[test]
    fn every_key_that_the_engine_reads_is_listed() {
        let engine = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
        let mut n = 0;
        for folder in ["resolve", "ops", "ops/attention", "layers"] {
            for entry in fs_err::read_dir(engine.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() || path.ends_with("tests.rs") {
                    continue;
                }
                let text = fs_err::read_to_string(path).unwrap();
                // Tests write keys that nothing reads.
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                // Quoted names with the form of a key, in files that read keys: every one must be known.
                for quoted in text.split('"').skip(1).step_by(2) {
                    let is_key = KEYS.iter().any(|row| row.pattern.strip_prefix("{arch}.") == Some(quoted))
                        || ANNOTATIONS.iter().any(|row| row.pattern == quoted);
                    if is_key {
                        n += 1;
                        assert!(READ.contains(&quoted), "the engine reads `{quoted}`");
                    }
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
            ("gguf_foundry.quantize.kld", Class::Build),
            ("mradermacher.quantized_on", Class::Foreign),
        ] {
            assert_eq!(class_of(key, "llama"), expected, "{key}");
        }
        assert_eq!(class_of(".x", ""), Class::Foreign);
    }
}
