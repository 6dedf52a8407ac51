//! What becomes of each key of a configuration.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use serde_json::Value as Json;

use crate::carried::same::same;
use crate::carried::{CarriedCheck, config_plan, effects, rope};
use crate::lost_value::LostValue;
use crate::origins::Origins;

/// What becomes of a key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFate {
    /// The value is in these keys of the file.
    Written(Vec<String>),
    /// The value decides about tensors.
    Tensors,
    /// The value need not be in the file, for this reason.
    WithoutEffect(&'static str),
    /// The value matters and is not in the file; a warning names it.
    LeftOut,
    /// No rule knows the key.
    Unknown,
}

/// Key of the configuration, with dots for nested members, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigKey {
    /// The key.
    pub key: String,
    /// What becomes of it.
    pub fate: KeyFate,
}

/// Keys of every configuration that no model computes with, by reason.
const COMMON: &[(&str, &[&str])] = &[
    (
        "it names the class or its code",
        &[
            "architectures",
            "auto_map",
            "base_model_name_or_path",
            "custom_pipelines",
            "finetuning_task",
            "is_encoder_decoder",
            "language",
            "model_name",
            "model_type",
            "name_or_path",
            "problem_type",
            "task_specific_params",
            "tokenizer_class",
            "transformers_version",
            "_name_or_path",
            "_commit_hash",
        ],
    ),
    (
        "it is of how code runs: caches, kernels, precision, returned values",
        &[
            "attn_implementation",
            "attn_config",
            "chunk_size_feed_forward",
            "cross_attention_hidden_size",
            "dtype",
            "fp16",
            "bf16",
            "fp32",
            "gradient_checkpointing",
            "init_device",
            "mamba_ssm_cache_dtype",
            "moe_shared_expert_overlap",
            "seq_length",
            "verbose",
            "model_parallel",
            "output_attentions",
            "output_hidden_states",
            "output_past",
            "output_router_probs",
            "pruned_heads",
            "return_dict",
            "tie_encoder_decoder",
            "torch_dtype",
            "torchscript",
            "use_bfloat16",
            "use_flash_attn",
            "use_flash_attention",
            "use_flash_attention_2",
            "use_return_dict",
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_experts_implementation",
            "_flash_attn_2_enabled",
        ],
    ),
    (
        "it is of generation, which the program that runs the file decides",
        &[
            "bad_words_ids",
            "begin_suppress_tokens",
            "diversity_penalty",
            "do_sample",
            "early_stopping",
            "encoder_no_repeat_ngram_size",
            "exponential_decay_length_penalty",
            "forced_decoder_ids",
            "length_penalty",
            "max_length",
            "max_new_tokens",
            "min_length",
            "no_repeat_ngram_size",
            "num_beam_groups",
            "num_beams",
            "num_return_sequences",
            "output_scores",
            "remove_invalid_values",
            "repetition_penalty",
            "return_dict_in_generate",
            "suppress_tokens",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
        ],
    ),
    (
        "the tensors tell it",
        &[
            "attention_hidden_size",
            "d_model",
            "embedding_size",
            "expand",
            "expansion_ratio",
            "head_dim",
            "head_size_divisor",
            "hidden_size",
            "id2label",
            "kv_channels",
            "label2id",
            "lora_rank",
            "moe_shared_expert_intermediate_size",
            "n_embd",
            "n_embd_out",
            "num_attention_heads",
            "num_labels",
            "qk_nope_head_dim",
            "swa_num_key_value_heads",
            "v_head_dim",
        ],
    ),
    ("its members are read one by one", &["language_config", "llm_config", "text_config"]),
    ("it is read with the weights", &["quantization", "quantization_config", "compression_config"]),
];

/// Endings of the names of configurations of towers.
const TOWERS: [&str; 7] =
    ["vision_config", "audio_config", "visual", "vision_cfg", "vq_config", "projector_config", "mm_config"];
/// Single keys of towers that stand among those of the text model.
const TOWER_KEYS: [&str; 10] = [
    "im_end_id",
    "im_newline_id",
    "im_start_id",
    "image_seq_length",
    "merge_kernel_size",
    "merged_hidden_size",
    "merger_times",
    "out_hidden_size",
    "spatial_merge_size",
    "thinker_config",
];
/// Part of a configuration with the keys of the language model.
const TEXT: &str = "text_config";
/// Keys that are tried one by one; of more, many are tried together first.
const TRIED_SINGLY: usize = 256;

const OF_TOWERS: &str = "it is of a tower, which `--mmproj` writes to a file of its own";

/// Values of keys for which runtimes compute what the model's own code does.
static STANDS_FOR: LazyLock<toml::Table> =
    LazyLock::new(|| toml::from_str(include_str!("stands_for.toml")).unwrap_or_default());

fn why_common(name: &str) -> Option<&'static str> {
    let listed = COMMON.iter().find(|(_, names)| names.contains(&name)).map(|(why, _)| *why);
    let is_tower = TOWERS.iter().any(|ending| name.ends_with(ending))
        || TOWER_KEYS.contains(&name)
        || ["mm_", "projector_", "multimodal_projector_", "vision_feature_"]
            .iter()
            .any(|start| name.starts_with(start));
    listed
        .or(is_tower.then_some(OF_TOWERS))
        .or_else(|| name.starts_with("unsloth").then_some("it is of training"))
}

impl CarriedCheck<'_, '_> {
    /// Returns what becomes of each key, those of the text part first. `origins` are the sources of the file's keys.
    pub(super) fn fates(&mut self, origins: &Origins) -> Vec<ConfigKey> {
        let mut written: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (key, sources) in origins {
            for source in sources {
                written.entry(&source.key).or_default().push(key.clone());
            }
        }
        let config = self.config;
        let text = config.get(TEXT).and_then(Json::as_object);
        let nested = text.into_iter().flatten().map(|(key, value)| (Some(TEXT), key, value));
        let own = config.iter().filter(|(key, _)| *key != TEXT).map(|(key, value)| (None, key, value));
        let all: Vec<_> = nested.chain(own).collect();
        let open = all.iter().map(|(part, key, _)| (*part, key.as_str()));
        let open: Vec<_> = open.filter(|(_, key)| !written.contains_key(key)).collect();
        let mut idle = HashSet::new();
        if open.len() > TRIED_SINGLY {
            self.find_idle(&open, &mut idle);
        }
        let fate = |(part, key, value): (Option<&str>, &String, &Json)| {
            let fate = match written.get(key.as_str()) {
                Some(keys) => KeyFate::Written(keys.clone()),
                None => self.fate(part, key, value, idle.contains(&(part, key.as_str()))),
            };
            let key = part.map_or_else(|| key.clone(), |part| format!("{part}.{key}"));
            ConfigKey { key, fate }
        };
        all.into_iter().map(fate).collect()
    }

    fn fate(&mut self, part: Option<&str>, key: &str, value: &Json, is_idle: bool) -> KeyFate {
        let is_own = |lost: &LostValue| {
            lost.key == key || lost.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        };
        if self.lost.iter().any(is_own) {
            return KeyFate::LeftOut;
        }
        if self.mentioned.contains(key) {
            return KeyFate::Tensors;
        }
        if let Some(why) = effects::why_none(key).or_else(|| why_common(key)) {
            return KeyFate::WithoutEffect(why);
        }
        let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty)
            || value.as_array().is_some_and(Vec::is_empty);
        if value.is_null() || is_empty {
            return KeyFate::WithoutEffect("it says nothing");
        }
        if !is_idle && let Some(keys) = self.changed_without(|own, name| (own, name) == (part, key)) {
            return KeyFate::Written(keys);
        }
        let is_known = |attributes: &&crate::attributes::Attributes| {
            attributes.names().any(|name| attributes.spellings(name).any(|own| own == key))
        };
        if self.attributes.as_ref().is_some_and(is_known) || rope::is_judged(key) || rope::OLD.contains(&key)
        {
            return KeyFate::WithoutEffect("it says what runtimes compute in any case");
        }
        let own = STANDS_FOR.get(&format!("{}.{key}", self.card.gguf)).or_else(|| STANDS_FOR.get(key));
        if let Some(values) = own.and_then(toml::Value::as_array) {
            let is_listed = |own: &toml::Value| serde_json::to_value(own).is_ok_and(|own| same(&own, value));
            let is_right = values.is_empty() || values.iter().any(is_listed);
            let why = KeyFate::WithoutEffect("it says what runtimes compute in any case");
            return if is_right { why } else { KeyFate::Unknown };
        }
        // A class of transformers reads the keys that it knows, unless code beside the model takes its place.
        if self.attributes.is_some() && !self.config.contains_key("auto_map") {
            return KeyFate::WithoutEffect("transformers' class of this model does not read it");
        }
        KeyFate::Unknown
    }

    /// Collects keys without which, all together, the file stays as it is: a configuration may have very many that nothing
    /// reads.
    fn find_idle<'k>(
        &mut self,
        keys: &[(Option<&'k str>, &'k str)],
        idle: &mut HashSet<(Option<&'k str>, &'k str)>,
    ) {
        let gone: HashSet<_> = keys.iter().copied().collect();
        if self.changed_without(|part, key| gone.contains(&(part, key))).is_none() {
            idle.extend(keys);
        } else if keys.len() > TRIED_SINGLY / 16 {
            let (first, second) = keys.split_at(keys.len() / 2);
            self.find_idle(first, idle);
            self.find_idle(second, idle);
        }
    }

    /// Returns the keys of the file that change if the configuration lacks some keys, if any does. The list is empty if
    /// nothing can be planned without them.
    fn changed_without(&mut self, is_gone: impl Fn(Option<&str>, &str) -> bool) -> Option<Vec<String>> {
        let without = |part: Option<&str>, map: &serde_json::Map<String, Json>| {
            let kept = map.iter().filter(|(key, _)| !is_gone(part, key));
            kept.map(|(key, value)| (key.clone(), value.clone())).collect::<serde_json::Map<_, _>>()
        };
        let mut changed = without(None, self.config);
        if let Some(text) = changed.get_mut(TEXT).and_then(Json::as_object_mut) {
            *text = without(Some(TEXT), text);
        }
        let Ok((plan, annotations)) = config_plan(self.card, &changed, &mut self.scope) else {
            return Some(Vec::new());
        };
        if plan == self.plan && annotations == self.annotations {
            return None;
        }
        let pairs = [(&self.plan.early, &plan.early), (&self.plan.metadata, &plan.metadata)];
        let keys = pairs.into_iter().flat_map(|(before, after)| {
            let differs = |(key, value): &(&str, _)| after.get(key) != Some(*value);
            before.iter().filter(differs).map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
        });
        Some(keys.collect())
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn the_table_of_values_is_read_and_sorted() {
        let table: toml::Table = toml::from_str(include_str!("stands_for.toml")).unwrap();
        assert!(table.len() > 40 && table.values().all(toml::Value::is_array));
        let (of_archs, shared): (Vec<_>, Vec<_>) = table.keys().partition(|key| key.contains('.'));
        assert!(of_archs.is_sorted() && shared.is_sorted());
    }
}
