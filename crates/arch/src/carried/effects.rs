//! Attributes without an effect on the model's computation, or with a conditional one.

use serde_json::Value as Json;

use crate::carried::same::{number, same};

/// Attributes that a file need not carry, by reason.
const NO_EFFECT: &[(&str, &[&str])] = &[
    (
        "it is of training",
        &[
            "initializer_factor",
            "initializer_cutoff_factor",
            "initializer_range",
            "embedding_initializer_range",
            "input_jitter_noise",
            "learnable_sink_init",
            "rescale_prenorm_residual",
            "router_aux_loss_coef",
            "router_jitter_noise",
            "seed",
            "sparse_pred_ignore_index",
            "sparse_prediction",
            "time_step_floor",
            "time_step_init_scheme",
            "time_step_max",
            "time_step_min",
            "time_step_scale",
            "z_loss_coefficient",
            "L_bp_cycles",
        ],
    ),
    (
        "it is of how code runs: caches, kernels, precision, returned values",
        &[
            "attention_softmax_in_fp32",
            "chunk_size",
            "deterministic_flash_attn",
            "enable_audio_output",
            "enable_moe_fp32_combine",
            "mamba_chunk_size",
            "model_parallel_size",
            "num_logits_to_keep",
            "number_of_conv_states",
            "output_router_logits",
            "pretraining_tp",
            "reorder_and_upcast_attn",
            "residual_in_fp32",
            "scale_attention_softmax_in_fp32",
            "slow_but_exact",
            "use_associative_scan",
            "use_cache",
            "use_mamba_kernels",
            "use_mambapy",
        ],
    ),
    (
        "the tensors tell it",
        &[
            "add_cross_attention",
            "attention_bias",
            "attention_k_eq_v",
            "attention_out_bias",
            "bias",
            "classifier_bias",
            "conv_bias",
            "decoder_bias",
            "enable_moe_block",
            "is_decoder",
            "lm_head_bias",
            "mamba_conv_bias",
            "mamba_proj_bias",
            "mamba_rms_norm",
            "mlp_bias",
            "mlp_only_layers",
            "norm_bias",
            "num_ln_in_parallel_attn",
            "projectors_bias",
            "qk_layernorm",
            "qkv_bias",
            "tie_word_embeddings",
            "token_classification_bias",
            "use_bias",
            "use_conv_bias",
            "use_double_wide_mlp",
            "use_expert_bias",
            "use_qk_norm",
            "use_qkv_bias",
            "vocab_size",
            "vocab_size_per_layer_input",
        ],
    ),
    (
        "the shapes of tensors tell it",
        &[
            "d_ff",
            "hidden_dim",
            "index_head_dim",
            "intermediate_size",
            "intermediate_size_mlp",
            "laurel_rank",
            "mamba_n_heads",
            "moe_intermediate_size",
            "n_inner",
            "num_heads",
            "num_hidden_layers",
            "num_key_value_heads",
            "num_kv_heads",
            "o_lora_rank",
            "q_lora_rank",
            "share_expert_dim",
            "shared_expert_intermediate_size",
            "shared_experts_intermediate_size",
            "shared_intermediate_size",
            "time_step_rank",
            "type_vocab_size",
        ],
    ),
    ("the class derives it from other keys", &["dense_act_fn", "is_gated_act"]),
    (
        "it is of a head for another task",
        &[
            "classifier_activation",
            "summary_activation",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        ],
    ),
    (
        "it is of draft heads",
        &["mtp_layer_types", "mtp_layers_block_type", "mtp_mlp_layer_types", "num_nextn_predict_layers"],
    ),
    (
        "it is the extent of training",
        &["max_position_embeddings", "max_seq_len", "model_max_length", "n_positions"],
    ),
    (
        "it is of images and sound",
        &[
            "vocabulary_map",
            "downsample_mode",
            "image_size",
            "patch_size",
            "insert_layer_id",
            "num_image_with_embedding",
        ],
    ),
];

/// Endings of the names of attributes without an effect, with the reason.
const ENDINGS: [(&str, &str); 5] = [
    ("_dropout", "it is of training"),
    ("_dropout_prob", "it is of training"),
    ("_pdrop", "it is of training"),
    ("_token_id", "the vocabulary tells it"),
    ("_token_index", "the vocabulary tells it"),
];

/// Returns why a file need not carry an attribute, if it need not: it is about training, execution, another part of a
/// model, or implied by the tensors.
pub(super) fn why_none(name: &str) -> Option<&'static str> {
    let is_ending = |ending: &str| name.ends_with(ending) || name == ending.trim_start_matches('_');
    let listed = NO_EFFECT.iter().find(|(_, names)| names.contains(&name)).map(|(why, _)| *why);
    let ending = ENDINGS.iter().find(|(ending, _)| is_ending(ending)).map(|(_, why)| *why);
    listed.or(ending).or_else(|| name.starts_with("dropout").then_some("it is of training"))
}

/// Returns false for attributes that a file need not carry.
pub(super) fn has_effect(name: &str) -> bool {
    why_none(name).is_none()
}

/// Returns the effective value of an attribute.
type Effective<'e> = &'e dyn Fn(&str) -> Option<Json>;

/// Lists by layer, and the rules from which a class derives them. A given list overrides its rules.
const LISTS: [(&str, &[&str]); 2] = [
    (
        "layer_types",
        &[
            "_sliding_window_pattern",
            "full_attention_interval",
            "global_attn_every_n_layers",
            "sliding_window_pattern",
        ],
    ),
    ("no_rope_layers", &["no_rope_layer_interval"]),
];

/// Returns the rules from which a class derives a list by layer.
pub(super) fn rules_of(list: &str) -> &'static [&'static str] {
    LISTS.iter().find(|row| row.0 == list).map_or(&[], |row| row.1)
}

fn is_on(effective: Effective<'_>, name: &str) -> Option<bool> {
    effective(name).map(|value| value.as_bool() == Some(true))
}

/// Returns true if no layer has a window: it has no size, no layer of the list has it, or it begins after all layers.
fn has_no_window(effective: Effective<'_>) -> bool {
    let of = |name: &str| effective(name).as_ref().and_then(number);
    let is_full = |layer: &Json| layer == "full_attention";
    let layers = effective("layer_types");
    effective("sliding_window").is_some_and(|window| window.is_null())
        || match layers.as_ref().and_then(Json::as_array) {
            Some(layers) => layers.iter().all(is_full),
            None => of("max_window_layers").is_some_and(|first| of("num_hidden_layers") <= Some(first)),
        }
}

/// Returns true unless other attributes make this one ineffective.
pub(super) fn acts(name: &str, value: &Json, effective: Effective<'_>) -> bool {
    let of = |name: &str| effective(name).as_ref().and_then(number);
    if LISTS.iter().any(|(list, rules)| rules.contains(&name) && effective(list).is_some()) {
        return false;
    }
    match name {
        // Without a window, all layers have full attention.
        "layer_types" => {
            let is_full = effective("sliding_window").is_some_and(|window| window.is_null());
            let is_window =
                |layer: &Json| ["full_attention", "sliding_attention"].iter().any(|word| layer == word);
            !(is_full && value.as_array().is_some_and(|layers| layers.iter().all(is_window)))
        }
        // The heads of latent attention have their own sizes.
        "head_dim" => of("qk_rope_head_dim").is_none(),
        "sliding_window" | "max_window_layers" if is_on(effective, "use_sliding_window") == Some(false) => {
            false
        }
        "sliding_window" | "max_window_layers" | "use_sliding_window" if has_no_window(effective) => false,
        // A list by layer overrides the number of layers without a window.
        "max_window_layers" => effective("layer_types").is_none(),
        // The older name of the window takes precedence. A pattern of period 1 means that no layer has a window.
        "sliding_window"
            if of("sliding_window_size").is_some()
                || (of("sliding_window_pattern") == Some(1.0) && effective("layer_types").is_none()) =>
        {
            false
        }
        // A window of at least the context length has no effect.
        "sliding_window" => {
            let longest = of("max_position_embeddings");
            number(value).is_none_or(|window| longest.is_none_or(|longest| window < longest))
        }
        // Two names of the same number.
        "num_experts_per_token" => {
            effective("num_experts_per_tok").is_none_or(|experts| !same(&experts, value))
        }
        // Selecting among groups has no effect if there is only one.
        "topk_group" => of("n_group") > Some(1.0),
        "n_group" => number(value) > Some(1.0),
        _ => true,
    }
}

/// Returns the default of an attribute that depends on other attributes, if the rule is known.
pub(super) fn derived(name: &str, effective: Effective<'_>) -> Option<Json> {
    let of = |name: &str| effective(name)?.as_u64();
    let width = || of("hidden_size")?.checked_div(of("num_attention_heads")?);
    Some(Json::from(match name {
        "head_dim" => width()?,
        "ffn_hidden_size" => of("hidden_size")?.checked_mul(4)?,
        _ => return None,
    }))
}
