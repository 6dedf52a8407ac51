//! Biases of a checkpoint that transformers' class does not have: it ignores them, and runtimes add them.

use serde_json::{Map, Value as Json};

use crate::mapping::OutputSpec;
use gguf_core::text::escape;

/// Model types whose classes have no biases in attention and feed-forward, whatever the configuration says, by
/// transformers 5.24. Other classes have them always, or by a key.
const WITHOUT: [&str; 10] = [
    "bailing_hybrid",
    "exaone4",
    "jamba",
    "lfm2",
    "minimax",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "mllama_text_model",
];
const BIASES: [&str; 8] = [
    "attn_k.bias",
    "attn_output.bias",
    "attn_q.bias",
    "attn_qkv.bias",
    "attn_v.bias",
    "ffn_down.bias",
    "ffn_gate.bias",
    "ffn_up.bias",
];

/// Returns a warning if a plan has biases that the class of the configuration does not have. Code beside a model may have
/// them.
pub(crate) fn warning(config: &Map<String, Json>, outputs: &[OutputSpec]) -> Option<String> {
    let text = config.get("text_config").and_then(Json::as_object).unwrap_or(config);
    let model_type = text.get("model_type").and_then(Json::as_str)?;
    if !WITHOUT.contains(&model_type) || config.contains_key("auto_map") {
        return None;
    }
    let is_bias = |output: &&OutputSpec| BIASES.iter().any(|bias| output.name.ends_with(&format!(".{bias}")));
    let mut biases = outputs.iter().filter(is_bias);
    let (first, more) = (biases.next()?, biases.count());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "`{}`{more}: transformers' class of `{}` has none and ignores them, and runtimes add them; remove them from the \
         checkpoint if the model was not trained with them",
        escape(&first.name),
        escape(model_type)
    ))
}
