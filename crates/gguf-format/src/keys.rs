//! Well-known metadata keys and the type of each: the keys that gguf-py writes (its `Keys` table and the writer method
//! of each key, release 0.5.0 of llama.cpp), and a few more that llama.cpp itself reads or writes.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::ValueType;
use crate::ValueType::{Bool, F32, I32, String, U8, U16, U32, U64};

/// One well-known key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Key. `{arch}` stands for the value of `general.architecture`. Any other placeholder stands for one segment
    /// without a dot (`{id}`, `{name}`) or a part of one (`{dense}_feat_in`).
    pub pattern: &'static str,
    /// Type of the value, or of the elements if the value is always an array.
    pub value_type: ValueType,
    /// True if the value is always an array. A key that accepts one number for all layers or an array with one number
    /// per layer has the type of the single number.
    pub is_array: bool,
    /// Required number of elements of an array; [`ValueCount::One`] if arrays are not allowed.
    pub count: ValueCount,
}

/// Number of values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueCount {
    /// One value, no array.
    One,
    /// An array of any length.
    Any,
    /// An array of this length.
    Exactly(usize),
    /// An array of this length or longer.
    AtLeast(usize),
    /// An array with a value for each block, or one value for all.
    PerBlock,
    /// As `PerBlock`, but blocks of draft heads may be omitted.
    PerOwnBlock,
    /// An array whose length is the number under another key, given by its pattern.
    AsIn(&'static str),
}

const fn one(pattern: &'static str, value_type: ValueType) -> KeyInfo {
    KeyInfo { pattern, value_type, is_array: false, count: ValueCount::One }
}

const fn list(pattern: &'static str, value_type: ValueType) -> KeyInfo {
    KeyInfo { pattern, value_type, is_array: true, count: ValueCount::Any }
}

impl KeyInfo {
    /// Returns the row with another number of values.
    const fn of(self, count: ValueCount) -> Self {
        Self { count, ..self }
    }

    /// Returns true if a key matches the pattern in a file of this architecture.
    pub fn matches(&self, key: &str, arch: &str) -> bool {
        match self.pattern.strip_prefix("{arch}") {
            Some(rest) => key.strip_prefix(arch).is_some_and(|key| !arch.is_empty() && fits(rest, key)),
            None => fits(self.pattern, key),
        }
    }
}

/// Returns true if the text is the pattern with its placeholder (at most one) filled in.
fn fits(pattern: &str, text: &str) -> bool {
    // Most patterns differ from a key within a few bytes, before any placeholder.
    let n_same = pattern.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
    let (same, rest) = pattern.as_bytes().split_at(n_same);
    if rest.first().is_some_and(|&byte| byte != b'{') && !same.contains(&b'{') {
        return false;
    }
    let Some((before, rest)) = pattern.split_once('{') else { return pattern == text };
    let Some((_, after)) = rest.split_once('}') else { return false };
    text.strip_prefix(before)
        .and_then(|text| text.strip_suffix(after))
        .is_some_and(|filled| !filled.is_empty() && !filled.contains('.'))
}

/// Returns the table row of a key, in a file of architecture `arch` (`general.architecture`).
pub fn key_info(key: &str, arch: &str) -> Option<&'static KeyInfo> {
    let index = &*INDEX;
    let own = || if arch.is_empty() { None } else { index.of_arch.get(key.strip_prefix(arch)?) };
    let open = || index.open.iter().find(|&&at| KEYS[at].matches(key, arch));
    // The first row that matches.
    [index.exact.get(key), own(), open()].into_iter().flatten().min().map(|&at| &KEYS[at])
}

/// Rows of [`KEYS`] by what a key must equal.
struct KeyIndex {
    /// Patterns without a placeholder.
    exact: HashMap<&'static str, usize>,
    /// What follows `{arch}` in patterns without another placeholder.
    of_arch: HashMap<&'static str, usize>,
    /// Rows with another placeholder, in order.
    open: Vec<usize>,
}

static INDEX: LazyLock<KeyIndex> = LazyLock::new(|| {
    let mut index = KeyIndex { exact: HashMap::new(), of_arch: HashMap::new(), open: Vec::new() };
    for (at, row) in KEYS.iter().enumerate() {
        let (rest, keys) = match row.pattern.strip_prefix("{arch}") {
            Some(rest) => (rest, &mut index.of_arch),
            None => (row.pattern, &mut index.exact),
        };
        if rest.contains('{') {
            index.open.push(at);
        } else {
            keys.entry(rest).or_insert(at);
        }
    }
    index
});

/// Returns the scalar type of a well-known key: that of its value, or of the elements of an array. `None` for a key
/// that is not in the table.
pub fn key_type(key: &str, arch: &str) -> Option<ValueType> {
    key_info(key, arch).map(|row| row.value_type)
}

/// Prefix of this project's own keys: numbers that change a model's outputs and for which GGUF has no key, or none
/// under the model's architecture. Other runtimes ignore them.
pub const ANNOTATION_PREFIX: &str = "gguf_foundry.";

/// Keys after [`ANNOTATION_PREFIX`].
pub static ANNOTATIONS: &[KeyInfo] = &[
    one("attention.relative_max_distance", U32),
    one("attention.scale", F32),
    one("attention.sliding_window", U32),
    list("attention.sliding_window_pattern", Bool).of(ValueCount::PerOwnBlock),
    one("attention.temperature_length", U32),
    one("attention.temperature_scale", F32),
    one("expert_weights_norm", Bool),
    one("rope.scaling.yarn_truncate", Bool),
    one("router_jitter_noise", F32),
    one("ssm.time_step_min", F32),
];

/// Returns the table row of a key without [`ANNOTATION_PREFIX`].
pub fn annotation_info(key: &str) -> Option<&'static KeyInfo> {
    ANNOTATIONS.iter().find(|row| row.pattern == key)
}

/// Returns the table row of a key that starts with [`ANNOTATION_PREFIX`].
pub fn annotation_row(key: &str) -> Option<&'static KeyInfo> {
    annotation_info(key.strip_prefix(ANNOTATION_PREFIX)?)
}

/// Keys of an architecture that do not affect a model's outputs: the tensors determine the same value, or it belongs to
/// other parts of a file.
pub const WITHOUT_EFFECT: &[&str] = &["context_length", "vocab_size"];

/// All well-known keys.
pub static KEYS: &[KeyInfo] = &[
    // General information about the file.
    one("general.type", String),
    one("general.architecture", String),
    one("general.quantization_version", U32),
    one("general.alignment", U32),
    one("general.file_type", U32),
    list("general.tensor_extra.name", String),
    list("general.tensor_extra.prec_a4", Bool),
    one("general.sampling.sequence", String),
    one("general.sampling.top_k", I32),
    one("general.sampling.top_p", F32),
    one("general.sampling.min_p", F32),
    one("general.sampling.xtc_probability", F32),
    one("general.sampling.xtc_threshold", F32),
    one("general.sampling.temp", F32),
    one("general.sampling.penalty_last_n", I32),
    one("general.sampling.penalty_repeat", F32),
    one("general.sampling.mirostat", I32),
    one("general.sampling.mirostat_tau", F32),
    one("general.sampling.mirostat_eta", F32),
    one("general.name", String),
    one("general.author", String),
    one("general.version", String),
    one("general.organization", String),
    one("general.finetune", String),
    one("general.basename", String),
    one("general.description", String),
    one("general.quantized_by", String),
    one("general.size_label", String),
    one("general.license", String),
    one("general.license.name", String),
    one("general.license.link", String),
    one("general.url", String),
    one("general.doi", String),
    one("general.uuid", String),
    one("general.repo_url", String),
    one("general.source.url", String),
    one("general.source.doi", String),
    one("general.source.uuid", String),
    one("general.source.repo_url", String),
    one("general.base_model.count", U32),
    one("general.base_model.{id}.name", String),
    one("general.base_model.{id}.author", String),
    one("general.base_model.{id}.version", String),
    one("general.base_model.{id}.organization", String),
    one("general.base_model.{id}.description", String),
    one("general.base_model.{id}.url", String),
    one("general.base_model.{id}.doi", String),
    one("general.base_model.{id}.uuid", String),
    one("general.base_model.{id}.repo_url", String),
    one("general.dataset.count", U32),
    one("general.dataset.{id}.name", String),
    one("general.dataset.{id}.author", String),
    one("general.dataset.{id}.version", String),
    one("general.dataset.{id}.organization", String),
    one("general.dataset.{id}.description", String),
    one("general.dataset.{id}.url", String),
    one("general.dataset.{id}.doi", String),
    one("general.dataset.{id}.uuid", String),
    one("general.dataset.{id}.repo_url", String),
    list("general.tags", String),
    list("general.languages", String),
    one("general.source.huggingface.repository", String),
    // Sizes and switches of the decoder.
    one("{arch}.vocab_size", U32),
    one("{arch}.context_length", U32),
    one("{arch}.embedding_length", U32),
    one("{arch}.embedding_length_out", U32),
    one("{arch}.features_length", U32),
    one("{arch}.block_count", U32),
    one("{arch}.leading_dense_block_count", U32),
    one("{arch}.feed_forward_length", U32).of(ValueCount::PerBlock),
    one("{arch}.expert_feed_forward_length", U32).of(ValueCount::PerBlock),
    one("{arch}.expert_shared_feed_forward_length", U32),
    one("{arch}.expert_chunk_feed_forward_length", U32),
    one("{arch}.use_parallel_residual", Bool),
    one("{arch}.tensor_data_layout", String),
    one("{arch}.expert_count", U32),
    one("{arch}.expert_used_count", U32).of(ValueCount::PerBlock),
    one("{arch}.expert_shared_count", U32),
    one("{arch}.expert_group_count", U32),
    one("{arch}.expert_group_used_count", U32),
    one("{arch}.expert_weights_scale", F32),
    one("{arch}.expert_weights_norm", Bool),
    one("{arch}.expert_gating_func", U32),
    one("{arch}.expert_group_scale", F32),
    one("{arch}.expert_latent_length", U32),
    one("{arch}.experts_per_group", U32),
    one("{arch}.moe_every_n_layers", U32),
    one("{arch}.moe_latent_size", U32),
    one("{arch}.nextn_predict_layers", U32),
    one("{arch}.n_deepstack_layers", U32),
    list("{arch}.deepstack_mapping", I32),
    one("{arch}.pooling_type", U32),
    one("{arch}.logit_scale", F32),
    one("{arch}.decoder_start_token_id", U32),
    one("{arch}.gmask_token_id", U32),
    one("{arch}.decoder_block_count", U32),
    one("{arch}.attn_logit_softcapping", F32),
    one("{arch}.router_logit_softcapping", F32),
    one("{arch}.final_logit_softcapping", F32),
    one("{arch}.swin_norm", Bool),
    one("{arch}.rescale_every_n_layers", U32),
    one("{arch}.time_mix_extra_dim", U32),
    one("{arch}.time_decay_extra_dim", U32),
    one("{arch}.residual_scale", F32),
    one("{arch}.embedding_scale", F32),
    one("{arch}.token_shift_count", U32),
    one("{arch}.interleave_moe_layer_step", U32),
    one("{arch}.full_attention_interval", U32),
    one("{arch}.num_loops", U32),
    one("{arch}.skip_loop_final_norm", Bool),
    one("{arch}.hash_layer_count", U32),
    list("{arch}.activation_sparsity_scale", F32).of(ValueCount::PerBlock),
    one("{arch}.altup.active_idx", U32),
    one("{arch}.altup.num_inputs", U32),
    one("{arch}.embedding_length_per_layer_input", U32),
    list("{arch}.swiglu_clamp_exp", F32).of(ValueCount::PerBlock),
    list("{arch}.swiglu_clamp_shexp", F32).of(ValueCount::PerBlock),
    one("{arch}.hidden_activation", String),
    one("{arch}.{dense}_feat_in", U32),
    one("{arch}.{dense}_feat_out", U32),
    list("{arch}.target_layers", I32),
    one("{arch}.target_hidden_size", U32),
    one("{arch}.block_size", U32),
    one("{arch}.conv_kernel_size", U32),
    one("{arch}.conv_group_size", U32),
    one("{arch}.selector_rank", U32),
    one("{arch}.selector_top_k", U32),
    one("{arch}.sample_from_anchor", Bool),
    one("{arch}.has_confidence_head", Bool),
    one("{arch}.norm_before_residual", Bool),
    one("{arch}.norm_before_fc", Bool),
    one("{arch}.adapters.count", U32),
    list("{arch}.adapters.token_ids_activate", I32).of(ValueCount::AsIn("{arch}.adapters.count")),
    list("{arch}.adapters.token_ids_substitute", I32).of(ValueCount::AsIn("{arch}.adapters.count")),
    one("{arch}.adapters.lora_rank", U32),
    one("{arch}.adapters.router_gain", F32),
    one("{arch}.attention.head_count", U32).of(ValueCount::PerBlock),
    one("{arch}.attention.head_count_kv", U32).of(ValueCount::PerBlock),
    one("{arch}.attention.max_alibi_bias", F32),
    one("{arch}.attention.clamp_kqv", F32),
    one("{arch}.attention.key_length", U32),
    one("{arch}.attention.value_length", U32),
    one("{arch}.attention.layer_norm_epsilon", F32),
    one("{arch}.attention.layer_norm_rms_epsilon", F32),
    one("{arch}.attention.group_norm_epsilon", F32),
    one("{arch}.attention.group_norm_groups", U32),
    one("{arch}.attention.causal", Bool),
    one("{arch}.attention.q_lora_rank", U32),
    one("{arch}.attention.kv_lora_rank", U32),
    one("{arch}.attention.decay_lora_rank", U32),
    one("{arch}.attention.iclr_lora_rank", U32),
    one("{arch}.attention.value_residual_mix_lora_rank", U32),
    one("{arch}.attention.gate_lora_rank", U32),
    one("{arch}.attention.relative_buckets_count", U32),
    one("{arch}.attention.sliding_window", U32),
    one("{arch}.attention.scale", F32),
    one("{arch}.attention.output_group_count", U32),
    one("{arch}.attention.output_lora_rank", U32),
    one("{arch}.attention.output_scale", F32),
    one("{arch}.attention.value_scale", F32),
    list("{arch}.attention.compress_ratios", I32).of(ValueCount::PerBlock),
    one("{arch}.attention.compress_rope_freq_base", F32),
    one("{arch}.attention.temperature_length", U32),
    one("{arch}.attention.key_length_mla", U32),
    one("{arch}.attention.value_length_mla", U32),
    one("{arch}.attention.key_length_swa", U32),
    one("{arch}.attention.value_length_swa", U32),
    one("{arch}.attention.key_length_mla_swa", U32),
    one("{arch}.attention.value_length_mla_swa", U32),
    one("{arch}.attention.kv_lora_rank_swa", U32),
    one("{arch}.attention.shared_kv_layers", U32),
    one("{arch}.attention.sliding_window_pattern", U32).of(ValueCount::PerOwnBlock),
    list("{arch}.attention.recurrent_layers", Bool).of(ValueCount::PerBlock),
    one("{arch}.attention.temperature_scale", F32),
    list("{arch}.attention.rope_pattern", Bool).of(ValueCount::PerBlock),
    one("{arch}.attention.indexer.head_count", U32),
    one("{arch}.attention.indexer.key_length", U32),
    one("{arch}.attention.indexer.top_k", U32),
    one("{arch}.attention.indexer.block_size", U32),
    one("{arch}.attention.indexer.local_blocks", U32),
    list("{arch}.attention.indexer.types", Bool).of(ValueCount::PerOwnBlock),
    one("{arch}.attention.indexer.kpool", U32),
    one("{arch}.attention.indexer.kpool_select_tail", Bool),
    one("{arch}.hyper_connection.count", U32),
    one("{arch}.hyper_connection.sinkhorn_iterations", U32),
    one("{arch}.hyper_connection.epsilon", F32),
    one("{arch}.hyper_connection.magnitude", F32),
    one("{arch}.hyper_connection.low_rank", U32),
    list("{arch}.ple.layers", I32),
    one("{arch}.ple.ngram_size", U32),
    one("{arch}.ple.heads_per_ngram", U32),
    one("{arch}.ple.conv_kernel", U32),
    list("{arch}.ple.layer_multipliers", U64),
    list("{arch}.ple.head_offsets", U64),
    list("{arch}.ple.head_vocab_sizes", U64),
    one("{arch}.ple.eos_token_id", U32),
    one("{arch}.ple.image_token_id", U32),
    one("{arch}.rope.dimension_count", U32),
    one("{arch}.rope.dimension_count_swa", U32),
    list("{arch}.rope.dimension_sections", I32).of(ValueCount::Exactly(4)),
    one("{arch}.rope.freq_base", F32),
    one("{arch}.rope.freq_base_swa", F32),
    one("{arch}.rope.scaling.type", String),
    one("{arch}.rope.scaling.factor", F32),
    one("{arch}.rope.scaling.alpha", F32),
    one("{arch}.rope.scaling.attn_factor", F32),
    one("{arch}.rope.scaling.original_context_length", U32),
    one("{arch}.rope.scaling.finetuned", Bool),
    one("{arch}.rope.scaling.yarn_log_multiplier", F32),
    one("{arch}.rope.scaling.yarn_ext_factor", F32),
    one("{arch}.rope.scaling.yarn_attn_factor", F32),
    one("{arch}.rope.scaling.yarn_beta_fast", F32),
    one("{arch}.rope.scaling.yarn_beta_slow", F32),
    one("{arch}.rope.scale_linear", F32),
    one("{arch}.activation.situ_beta", F32),
    one("{arch}.activation.situ_linear_beta", F32),
    one("{arch}.attn_res.block_size", U32),
    // Parts of a split file.
    one("split.no", U16),
    one("split.count", U16),
    one("split.tensors.count", I32),
    one("gguf_foundry.split.id", String),
    one("{arch}.hrm.layers_per_stack", U32),
    one("{arch}.hrm.h_cycles", U32),
    one("{arch}.hrm.l_cycles", U32),
    one("{arch}.hrm.prefix_lm", Bool),
    one("{arch}.ssm.conv_kernel", U32),
    one("{arch}.ssm.inner_size", U32),
    one("{arch}.ssm.state_size", U32),
    one("{arch}.ssm.time_step_rank", U32),
    one("{arch}.ssm.group_count", U32),
    one("{arch}.ssm.dt_b_c_rms", Bool),
    one("{arch}.kda.head_dim", U32),
    one("{arch}.kda.safe_gate", Bool),
    one("{arch}.kda.gate_lower_bound", F32),
    one("{arch}.wkv.head_size", U32),
    one("{arch}.posnet.embedding_length", U32),
    one("{arch}.posnet.block_count", U32),
    one("{arch}.convnext.embedding_length", U32),
    one("{arch}.convnext.block_count", U32),
    list("{arch}.classifier.output_labels", String),
    one("{arch}.classifier.pooling_type", U32),
    one("{arch}.shortconv.l_cache", U32),
    // Vocabulary.
    one("tokenizer.ggml.model", String),
    one("tokenizer.ggml.pre", String),
    list("tokenizer.ggml.tokens", String),
    list("tokenizer.ggml.token_type", I32),
    one("tokenizer.ggml.token_type_count", U32),
    list("tokenizer.ggml.scores", F32),
    list("tokenizer.ggml.merges", String),
    one("tokenizer.ggml.bos_token_id", U32),
    one("tokenizer.ggml.eos_token_id", U32),
    one("tokenizer.ggml.eot_token_id", U32),
    one("tokenizer.ggml.eom_token_id", U32),
    one("tokenizer.ggml.unknown_token_id", U32),
    one("tokenizer.ggml.seperator_token_id", U32),
    one("tokenizer.ggml.padding_token_id", U32),
    one("tokenizer.ggml.mask_token_id", U32),
    one("tokenizer.ggml.add_bos_token", Bool),
    one("tokenizer.ggml.add_eos_token", Bool),
    one("tokenizer.ggml.add_sep_token", Bool),
    one("tokenizer.ggml.add_space_prefix", Bool),
    one("tokenizer.ggml.remove_extra_whitespaces", Bool),
    list("tokenizer.ggml.precompiled_charsmap", U8),
    list("tokenizer.ggml.suppress_tokens", I32),
    one("tokenizer.huggingface.json", String),
    one("tokenizer.rwkv.world", String),
    one("tokenizer.chat_template", String),
    one("tokenizer.chat_template.{name}", String),
    list("tokenizer.chat_templates", String),
    one("tokenizer.ggml.normalizer.lowercase", Bool),
    one("tokenizer.ggml.normalizer.strip_accents", Bool),
    one("tokenizer.ggml.fim_pre_token_id", U32),
    one("tokenizer.ggml.fim_suf_token_id", U32),
    one("tokenizer.ggml.fim_mid_token_id", U32),
    one("tokenizer.ggml.fim_pad_token_id", U32),
    one("tokenizer.ggml.fim_rep_token_id", U32),
    one("tokenizer.ggml.fim_sep_token_id", U32),
    one("tokenizer.ggml.prefix_token_id", U32),
    one("tokenizer.ggml.suffix_token_id", U32),
    one("tokenizer.ggml.middle_token_id", U32),
    one("tokenizer.ggml.cls_token_id", U32),
    one("adapter.type", String),
    one("adapter.lora.alpha", F32),
    one("adapter.lora.task_name", String),
    one("adapter.lora.prompt_prefix", String),
    list("adapter.alora.invocation_tokens", U32),
    one("imatrix.chunk_count", U32),
    one("imatrix.chunk_size", U32),
    list("imatrix.datasets", String),
    // Importance matrix used by the quantizer.
    one("quantize.imatrix.file", String),
    one("quantize.imatrix.dataset", String),
    one("quantize.imatrix.entries_count", U32),
    one("quantize.imatrix.chunks_count", U32),
    // Without the architecture as a prefix, as written by Kimi-K2.5's converter.
    one("vision.pos_emb_height", U32),
    one("vision.pos_emb_width", U32),
    one("vision.pos_emb_time", U32),
    one("clip.projector_type", String),
    one("clip.has_vision_encoder", Bool),
    one("clip.has_audio_encoder", Bool),
    one("clip.has_gen_audio_encoder", Bool),
    one("clip.has_llava_projector", Bool),
    one("clip.vision.projector_type", String),
    one("clip.vision.image_size", U32),
    one("clip.vision.image_min_pixels", U32),
    one("clip.vision.image_max_pixels", U32),
    one("clip.vision.preproc_min_tiles", U32),
    one("clip.vision.preproc_max_tiles", U32),
    one("clip.vision.preproc_image_size", U32),
    one("clip.vision.patch_size", U32),
    one("clip.vision.embedding_length", U32),
    one("clip.vision.feed_forward_length", U32),
    one("clip.vision.projection_dim", U32),
    one("clip.vision.block_count", U32),
    list("clip.vision.image_mean", F32).of(ValueCount::AtLeast(3)),
    list("clip.vision.image_std", F32).of(ValueCount::AtLeast(3)),
    one("clip.vision.spatial_merge_size", U32),
    one("clip.vision.swiglu_clamp", F32),
    list("clip.vision.expert_count_per_layer", I32).of(ValueCount::AsIn("clip.vision.block_count")),
    one("clip.vision.expert_used_count", U32),
    one("clip.use_gelu", Bool),
    one("clip.use_silu", Bool),
    one("clip.vision.n_wa_pattern", U32),
    list("clip.vision.wa_layer_indexes", I32),
    list("clip.vision.wa_pattern_mode", I32).of(ValueCount::AsIn("clip.vision.block_count")),
    list("clip.vision.is_deepstack_layers", Bool).of(ValueCount::AsIn("clip.vision.block_count")),
    one("clip.vision.window_size", U32),
    list("clip.vision.feature_layer", I32),
    list("clip.vision.image_grid_pinpoints", I32),
    one("clip.vision.attention.head_count", U32),
    one("clip.vision.attention.head_count_kv", U32),
    one("clip.vision.attention.head_dim", U32),
    one("clip.vision.attention.layer_norm_epsilon", F32),
    one("clip.vision.projector.scale_factor", U32),
    one("clip.vision.projector.query_side", U32),
    one("clip.vision.projector.window_side", U32),
    list("clip.vision.projector.spatial_offsets", I32),
    one("clip.vision.sam.block_count", U32),
    one("clip.vision.sam.embedding_length", U32),
    one("clip.vision.sam.head_count", U32),
    one("clip.audio.projector_type", String),
    one("clip.audio.num_mel_bins", U32),
    one("clip.audio.embedding_length", U32),
    one("clip.audio.feed_forward_length", U32),
    one("clip.audio.projection_dim", U32),
    one("clip.audio.block_count", U32),
    one("clip.audio.subsampling_factor", U32),
    one("clip.audio.chunk_size", U32),
    one("clip.audio.conv_kernel_size", U32),
    one("clip.audio.max_pos_emb", U32),
    list("clip.audio.feature_layer", I32),
    one("clip.audio.rvq.num_quantizers", U32),
    list("clip.audio.rvq.codebook_size", I32),
    list("clip.audio.wa_pattern_mode", I32),
    one("clip.audio.window_size", U32),
    one("clip.audio.local_block_count", U32),
    one("clip.audio.local_group_size", U32),
    one("clip.audio.attention.head_count", U32),
    one("clip.audio.attention.layer_norm_epsilon", F32),
    one("clip.audio.projector.stack_factor", U32),
    one("clip.audio.projector.window_size", U32),
    one("clip.audio.projector.downsample_rate", U32),
    one("clip.audio.projector.head_count", U32),
    one("clip.gen.audio.projector_type", String),
    one("clip.gen.audio.model_variant", String),
    one("clip.gen.audio.embedding_length", U32),
    one("clip.gen.audio.feed_forward_length", U32),
    one("clip.gen.audio.block_count", U32),
    one("clip.gen.audio.projection_dim", U32),
    one("clip.gen.audio.attention.head_count", U32),
    one("clip.gen.audio.attention.head_count_kv", U32),
    one("clip.gen.audio.attention.layer_norm_epsilon", F32),
    one("diffusion.shift_logits", Bool),
    list("xielu.alpha_p", F32).of(ValueCount::PerOwnBlock),
    list("xielu.alpha_n", F32).of(ValueCount::PerOwnBlock),
    list("xielu.beta", F32).of(ValueCount::PerOwnBlock),
    list("xielu.eps", F32).of(ValueCount::PerOwnBlock),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_architecture_and_placeholder() {
        assert_eq!(key_type("llama.context_length", "llama"), Some(U32));
        assert_eq!(key_type("llama.context_length", "qwen2"), None);
        assert_eq!(key_type("llama.attention.layer_norm_rms_epsilon", "llama"), Some(F32));
        assert_eq!(key_type("general.base_model.3.name", "llama"), Some(String));
        assert_eq!(key_type("general.base_model.count", "llama"), Some(U32));
        assert_eq!(key_type("gemma-embedding.dense_2_feat_in", "gemma-embedding"), Some(U32));
        assert_eq!(key_type("tokenizer.chat_template.tool_use", ""), Some(String));
        assert_eq!(key_type("tokenizer.chat_template", ""), Some(String));
        assert_eq!(key_type("tokenizer.ggml.token_type", ""), Some(I32));
        assert_eq!(key_type("split.tensors.count", "x"), Some(I32));
        assert_eq!(key_type("general.base_model..name", "x"), None);
        assert_eq!(key_type(".context_length", ""), None);
        assert!(key_info("tokenizer.ggml.tokens", "llama").is_some_and(|row| row.is_array));
        assert!(key_info("llama.attention.head_count_kv", "llama").is_some_and(|row| !row.is_array));
    }

    #[test]
    fn no_key_stands_twice_and_each_fits_its_own_row_first() {
        for row in KEYS {
            let key = row.pattern.replace("{arch}", "llama").replace(['{', '}'], "");
            assert_eq!(key_info(&key, "llama").map(|found| found.pattern), Some(row.pattern), "{key}");
        }
    }
}
