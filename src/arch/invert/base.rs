//! Configuration keys that most decoders have.

/// Configuration keys of most decoders, and the metadata keys that restore them.
pub(super) const BASE: &[(&str, &str)] = &[
    ("vocab_size", "vocab_size"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("num_local_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("bos_token_id", "tokenizer.ggml.bos_token_id"),
    ("eos_token_id", "tokenizer.ggml.eos_token_id"),
    ("pad_token_id", "tokenizer.ggml.padding_token_id"),
];

/// Returns true for GGUF keys that most decoders have.
pub(super) fn is_known(gguf: &str) -> bool {
    BASE.iter().any(|row| row.1 == gguf)
}
