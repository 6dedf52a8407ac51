//! The shape of a matrix of which the file declares only the number of elements, derived from the module's name and
//! the sizes in the configuration.
//!
//! The input or the output of a linear layer of a transformer is the hidden state, and most names tell which. Then
//! one side is the hidden size and the other follows. If the name tells nothing, or a model has several hidden sizes
//! (a vision tower), the other side decides: it must be a size in the configuration.

use serde_json::{Map, Value};

/// Last components of the names of modules whose input is the hidden state.
const FROM_HIDDEN: &[&str] = &[
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "W_pack",
    "c_attn",
    "query_key_value",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "c_fc",
    "dense_h_to_4h",
    "fc1",
    "w1",
    "w3",
    "lm_head",
];
/// Last components of the names of modules whose output is the hidden state.
const TO_HIDDEN: &[&str] = &["o_proj", "out_proj", "down_proj", "c_proj", "dense_4h_to_h", "fc2"];
/// Configuration keys of the hidden size.
const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model"];
/// Configuration keys of widths inside a layer; a matrix may be two of them stacked.
const WIDTHS: &[&str] = &[
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "ffn_hidden_size",
    "ffn_dim",
    "n_inner",
];

/// Reasons why no shape was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoShape {
    /// No size of the configuration divides the number of elements.
    None,
    /// Several shapes fit.
    Ambiguous(Vec<[u64; 2]>),
}

/// Sizes of one (sub)model in a configuration.
struct ModelSizes {
    hidden: u64,
    others: Vec<u64>,
}

impl ModelSizes {
    fn of(config: &Map<String, Value>) -> Option<Self> {
        let size = |key: &str| config.get(key).and_then(Value::as_u64).filter(|&size| size > 0);
        let hidden = HIDDEN.iter().find_map(|key| size(key))?;
        let mut others = vec![hidden];
        for width in WIDTHS.iter().filter_map(|key| size(key)) {
            others.extend([Some(width), width.checked_mul(2)].into_iter().flatten());
        }
        others.extend(size("vocab_size"));
        if let Some(n_heads) = size("num_attention_heads").or_else(|| size("n_head")) {
            let head = size("head_dim").unwrap_or(hidden / n_heads);
            let n_kv_heads = size("num_key_value_heads").unwrap_or(n_heads);
            let rows = |n: Option<u64>| n.and_then(|n| n.checked_mul(head));
            let all = n_kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(n_heads));
            others.extend([Some(n_heads), Some(n_kv_heads), all].into_iter().filter_map(rows));
        }
        Some(Self { hidden, others })
    }
}

/// Returns the shape `[out, in]` of the weight of `module`, which has `n` elements and optionally a bias of `bias`
/// elements.
pub(super) fn linear_shape(
    config: &Map<String, Value>,
    module: &str,
    n: u64,
    bias: Option<u64>,
) -> Result<[u64; 2], NoShape> {
    let last = module.rsplit('.').next().unwrap_or(module);
    // Submodels have their own tables.
    let nested =
        config.iter().filter(|(key, _)| key.ends_with("_config")).filter_map(|(_, value)| value.as_object());
    let (mut known, mut possible) = (Vec::new(), Vec::new());
    for sizes in std::iter::once(config).chain(nested).filter_map(ModelSizes::of) {
        if !n.is_multiple_of(sizes.hidden) {
            continue;
        }
        let other = n / sizes.hidden;
        let (from, to) = ([other, sizes.hidden], [sizes.hidden, other]);
        let shapes = match last {
            _ if FROM_HIDDEN.contains(&last) => vec![from],
            _ if TO_HIDDEN.contains(&last) => vec![to],
            _ => vec![from, to],
        };
        for shape in shapes.into_iter().filter(|shape| bias.is_none_or(|rows| rows == shape[0])) {
            let list = if sizes.others.contains(&other) { &mut known } else { &mut possible };
            if !list.contains(&shape) {
                list.push(shape);
            }
        }
    }
    let shapes = if known.is_empty() { possible } else { known };
    match *shapes {
        [shape] => Ok(shape),
        [] => match bias {
            Some(rows) if rows > 0 && n.is_multiple_of(rows) => Ok([rows, n / rows]),
            _ => Err(NoShape::None),
        },
        _ => Err(NoShape::Ambiguous(shapes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(config: &str, module: &str, n: u64, bias: Option<u64>) -> Result<[u64; 2], NoShape> {
        let config: Value = serde_json::from_str(config).unwrap();
        linear_shape(config.as_object().unwrap(), module, n, bias)
    }

    const LLAMA: &str = r#"{"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100}"#;

    #[test]
    fn names_say_which_side_is_the_hidden_state() {
        for (module, n, expected) in [
            ("model.layers.0.self_attn.q_proj", 128 * 64, [128, 64]),
            ("model.layers.0.self_attn.k_proj", 64 * 64, [64, 64]),
            ("model.layers.0.self_attn.o_proj", 128 * 64, [64, 128]),
            ("model.layers.0.mlp.gate_up_proj", 320 * 64, [320, 64]),
            ("model.layers.0.mlp.down_proj", 160 * 64, [64, 160]),
            ("lm_head", 100 * 64, [100, 64]),
            // A width that the configuration does not contain: only the name decides.
            ("model.layers.0.mlp.experts.3.up_proj", 48 * 64, [48, 64]),
        ] {
            assert_eq!(shape(LLAMA, module, n, None), Ok(expected), "{module}");
        }
        assert_eq!(shape(LLAMA, "a.q_proj", 63, None), Err(NoShape::None));
    }

    #[test]
    fn a_name_that_says_nothing_is_ambiguous_but_for_the_bias() {
        let both = Err(NoShape::Ambiguous(vec![[160, 64], [64, 160]]));
        assert_eq!(shape(LLAMA, "layers.0.mlp.w2", 160 * 64, None), both);
        assert_eq!(shape(LLAMA, "layers.0.mlp.w2", 160 * 64, Some(64)), Ok([64, 160]));
        assert_eq!(shape(LLAMA, "layers.0.attn.w2", 64 * 64, None), Ok([64, 64]), "square");
        assert_eq!(shape(LLAMA, "layers.0.norm.proj", 63, Some(7)), Ok([7, 9]));
    }

    #[test]
    fn models_inside_the_model_have_sizes_of_their_own() {
        let config = r#"{"text_config": {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256},
            "vision_config": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 512}}"#;
        assert_eq!(shape(config, "vision.layers.0.q_proj", 32 * 32, None), Ok([32, 32]));
        assert_eq!(shape(config, "text.layers.0.q_proj", 64 * 64, None), Ok([64, 64]));
        let both = Err(NoShape::Ambiguous(vec![[256, 64], [512, 32]]));
        assert_eq!(shape(config, "layers.0.up_proj", 256 * 64, None), both);
    }
}
