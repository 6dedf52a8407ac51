//! Attributes without an effect on the model's computation, or with a conditional one.

use gguf_checkpoint::pieces::why;
use serde_json::Value as Json;

use crate::judge::carried::same::{number, same};

/// Returns why a file need not carry an attribute, if it need not: it is about training, execution, another part of a
/// model, or implied by the tensors.
pub(super) fn why_none(name: &str) -> Option<&'static str> {
    why("attributes", name)
}

/// Returns false for attributes that a file need not carry.
pub(super) fn has_effect(name: &str) -> bool {
    why_none(name).is_none()
}

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
        // ModernBERT's name of the window.
        "local_attention" => !has_no_window(effective) && of("global_attn_every_n_layers") != Some(1.0),
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
