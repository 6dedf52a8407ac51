//! Hyper-parameters of files without a stored configuration, derived from shapes and names of tensors.

use serde_json::{Map, Value as Json};

use gguf_checkpoint::fastllm::FlmTensor;
use gguf_core::Shape;

/// Adds missing hyper-parameters that can be derived. The card supplies the others, or reports them as missing.
pub(super) fn complete(tensors: &[FlmTensor], config: &mut Map<String, Json>, warnings: &mut Vec<String>) {
    let shape = |names: &[&str]| -> Option<&Shape> {
        let found = |tensor: &&FlmTensor| names.iter().any(|name| tensor.name.ends_with(name));
        tensors.iter().find(found).map(|tensor| &tensor.shape)
    };
    let embedding = shape(&["embed_tokens.weight", "word_embeddings.weight", "transformer.wte.weight"]);
    let hidden = embedding.map(Shape::n_cols);
    let layers = tensors.iter().filter_map(|tensor| layer(&tensor.name)).max().map(|last| last + 1);
    let is_glm = tensors.iter().any(|tensor| tensor.name.ends_with("query_key_value.weight"));
    let inner = shape(&["mlp.gate_proj.weight", "mlp.dense_h_to_4h.weight"]).map(Shape::n_rows);
    // `inv_freq` has one frequency per pair of a head's dimensions; ChatGLM's covers half a head.
    let pair_dims = if is_glm { 4 } else { 2 };
    let head_dim = shape(&["rotary_emb.inv_freq"]).and_then(|table| table.n_elems().checked_mul(pair_dims));
    let heads = hidden.zip(head_dim).and_then(|(hidden, dim)| (dim > 0).then(|| hidden / dim));
    let keys = shape(&["self_attn.k_proj.weight"]).map(Shape::n_rows);
    let kv_heads = keys.zip(head_dim).and_then(|(keys, dim)| (dim > 0).then(|| keys / dim));
    let (layers_key, inner_key) =
        if is_glm { ("num_layers", "inner_hidden_size") } else { ("num_hidden_layers", "intermediate_size") };
    let mut added = Vec::new();
    for (key, value) in [
        ("vocab_size", embedding.map(Shape::n_rows)),
        ("hidden_size", hidden),
        (layers_key, layers),
        (inner_key, inner),
        ("num_attention_heads", heads),
        ("num_key_value_heads", kv_heads),
    ] {
        if let Some(value) = value.filter(|_| !config.contains_key(key)) {
            config.insert(key.to_owned(), value.into());
            added.push(format!("{key} {value}"));
        }
    }
    if !added.is_empty() {
        warnings.push(format!(
            "the file has no configuration; seen from its tensors: {}; the architecture's defaults for the rest",
            added.join(", ")
        ));
    }
}

/// Returns the number of the layer that a name belongs to.
fn layer(name: &str) -> Option<u64> {
    let at = name.split('.').position(|part| matches!(part, "layers" | "h"))?;
    // The name is untrusted: no model has a million layers.
    name.split('.').nth(at + 1)?.parse().ok().filter(|&layer| layer < 1 << 20)
}
