//! Valid models with one error each: every key and tensor is removed, or gets another type or size. The plan must
//! report what is missing, or what was expected and found. Optional keys and tensors are listed here, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gguf_arch::GraphFeatures;
use gguf_core::{Shape, TensorMeta};
use gguf_engine::{EngineError, GraphPlan};
use gguf_format::{Metadata, Value};
use rayon::prelude::*;

use crate::F32;
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{files, report_cases};

/// Names, grouped by a common reason.
type Exceptions = &'static [(&'static str, &'static [&'static str])];

/// Keys (without the architecture) that a file may omit.
const OPTIONAL_KEYS: Exceptions = &[
    (
        "what is not said is not done: no factor, cap, clamp, bias, window, group, shared layer, norm",
        &[
            "activation.situ_linear_beta",
            "activation_sparsity_scale",
            "attention.clamp_kqv",
            "attention.max_alibi_bias",
            "attention.scale",
            "attention.shared_kv_layers",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "attention.temperature_length",
            "attention.temperature_scale",
            "attention.value_scale",
            "attn_logit_softcapping",
            "embedding_length_per_layer_input",
            "embedding_scale",
            "expert_count",
            "expert_group_count",
            "expert_group_used_count",
            "expert_weights_norm",
            "expert_weights_scale",
            "final_logit_softcapping",
            "hrm.prefix_lm",
            "kda.gate_lower_bound",
            "kda.safe_gate",
            "leading_dense_block_count",
            "logit_scale",
            "nextn_predict_layers",
            "rescale_every_n_layers",
            "residual_scale",
            "rope.dimension_sections",
            "rope.scaling.alpha",
            "rope.scaling.attn_factor",
            "rope.scaling.factor",
            "rope.scaling.finetuned",
            "rope.scaling.type",
            "rope.scaling.yarn_log_multiplier",
            "skip_loop_final_norm",
            "ssm.dt_b_c_rms",
            "ssm.group_count",
            "swiglu_clamp_exp",
            "swiglu_clamp_shexp",
            "swin_norm",
            "use_parallel_residual",
        ],
    ),
    (
        "follows from other keys, or from the tensors, which are held against it where it is there",
        &[
            "attention.head_count_kv",
            "attention.key_length",
            "attention.key_length_mla",
            "attention.recurrent_layers",
            "attention.value_length",
            "attention.value_length_mla",
            "feed_forward_length",
            "rope.dimension_count",
            "rope.dimension_count_swa",
            "rope.scaling.original_context_length",
        ],
    ),
    (
        "the graph or the reference has a number of its own",
        &[
            "attention.causal",
            "expert_gating_func",
            "rope.freq_base",
            "rope.freq_base_swa",
            "rope.scaling.yarn_beta_fast",
            "rope.scaling.yarn_beta_slow",
        ],
    ),
    (
        "an annotation, which other converters do not write",
        &["rope.scaling.yarn_truncate", "router_jitter_noise", "ssm.time_step_min"],
    ),
    (
        "the epsilon of the other formula stands in, with a warning",
        &["attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"],
    ),
    (
        "decides nothing about the logits of a chunk: a length, what is pooled, where an answer starts",
        &[
            "attention.indexer.block_size",
            "attention.indexer.kpool",
            "classifier.pooling_type",
            "context_length",
            "decoder_start_token_id",
            "pooling_type",
        ],
    ),
    (
        "the names of a head's labels, whose number is checked; the head may have none",
        &["classifier.output_labels"],
    ),
];

/// Tensors (without their layer) that a file may omit; `*` matches anything.
const OPTIONAL_TENSORS: Exceptions = &[
    ("a projection, or a norm, has a bias if there is one", &["*.bias"]),
    ("experts are selected with a bias if there is one", &["exp_probs_b"]),
    (
        "a factor of a matrix, or a layer, or a router's norm, if there is one",
        &["*.scale", "layer_output_scale.weight"],
    ),
    (
        "a norm, gate or sink that some models of the architecture have and others do not",
        &[
            "attn_gate.weight",
            "attn_k_norm.weight",
            "attn_output_norm.weight",
            "attn_q_norm.weight",
            "attn_sinks.weight",
            "attn_sub_norm.weight",
            "ffn_gate_inp_shexp.weight",
            "ffn_routed_norm.weight",
            "ffn_sub_norm.weight",
            "layer_output_norm.weight",
            "post_attention_norm",
            "post_attention_norm.weight",
            "post_ffw_norm",
            "post_ffw_norm.weight",
            "post_ffw_norm_1.weight",
            "post_ffw_norm_2.weight",
            "pre_ffw_norm_2.weight",
            "ssm_b_norm.weight",
            "ssm_c_norm.weight",
            "ssm_dt_norm.weight",
            "ssm_norm.weight",
            "time_mix_first.weight",
            "time_mix_v0.weight",
            "time_mix_v1.weight",
            "time_mix_v2.weight",
            "token_types.weight",
        ],
    ),
    ("with a gate the feed-forward is another one", &["dec.ffn_gate.weight", "enc.ffn_gate.weight"]),
    ("values may be the keys", &["attn_v.weight"]),
    ("the head may be the embedding", &["output.weight"]),
    (
        "divisors of the angles, if there are some",
        &["rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight"],
    ),
    (
        "not run: what chooses keys, what predicts further tokens",
        &["indexer.*", "indexer_compressor_*", "nextn.*"],
    ),
];

/// Tensors that may have another number of rows; `*` matches anything.
const FREE_ROWS: Exceptions = &[
    (
        "as many as there are tokens, positions, kinds of sentence",
        &[
            "output.weight",
            "per_layer_token_embd.weight",
            "position_embd.weight",
            "token_embd.weight",
            "token_types.weight",
        ],
    ),
    ("the first layer's is left aside", &["time_mix_v1.weight", "time_mix_v2.weight"]),
    (
        "not run: what chooses keys, what predicts further tokens",
        &["indexer.*", "indexer_compressor_*", "nextn.*"],
    ),
];

/// Keys with an impossible value, and the name that the error contains.
const FALSE_KEYS: &[(&str, False, &str)] = &[
    ("attention.head_count", False::Plus(1), ""),
    ("embedding_length", False::Plus(1), "token_embd.weight"),
    ("expert_count", False::To(513), "513"),
    ("expert_used_count", False::To(1 << 20), "expert_used_count"),
    ("expert_gating_func", False::To(99), "expert_gating_func"),
    ("expert_group_count", False::To(7), "expert_group_count"),
    ("rope.dimension_count", False::To(1 << 20), "rope.dimension_count"),
    ("pooling_type", False::To(77), "pooling_type"),
    ("ssm.inner_size", False::Plus(1), ""),
    ("ssm.state_size", False::Plus(1), ""),
    ("ssm.conv_kernel", False::Plus(1), ""),
    ("ssm.time_step_rank", False::Plus(1), ""),
    ("ssm.group_count", False::To(1 << 20), ""),
    ("attention.kv_lora_rank", False::Plus(1), ""),
    ("attention.key_length", False::Plus(1), ""),
    ("shortconv.l_cache", False::Plus(1), ""),
    ("wkv.head_size", False::Plus(1), ""),
    ("block_count", False::Plus(1), ""),
];

#[derive(Clone, Copy)]
enum False {
    To(u32),
    Plus(u32),
}

/// Model that can be planned.
struct Sound {
    name: String,
    features: GraphFeatures,
    arch: String,
    metadata: Metadata,
    tensors: Vec<TensorMeta>,
    plan: GraphPlan,
}

#[derive(Default)]
struct Found {
    faults: Vec<String>,
    optional_keys: BTreeMap<String, String>,
    optional_tensors: BTreeMap<String, String>,
    free_rows: BTreeMap<String, String>,
    false_keys: BTreeSet<String>,
    n_changes: usize,
}

impl Sound {
    fn open(dir: &Path) -> Option<Self> {
        let model = F32::open(dir)?;
        let plan = model.plan()?.ok()?;
        Some(Self {
            name: dir.file_name()?.to_string_lossy().into_owned(),
            features: GraphFeatures::of(&plan.arch)?,
            arch: plan.arch.clone(),
            metadata: model.metadata().clone(),
            tensors: model.source().tensors().to_vec(),
            plan,
        })
    }

    /// Key without the architecture or the prefix of annotations; `None` for a key that the plan does not read.
    fn local<'k>(&self, key: &'k str) -> Option<&'k str> {
        let own = key.strip_prefix(&self.arch).and_then(|rest| rest.strip_prefix('.'));
        own.or_else(|| key.strip_prefix("gguf_foundry."))
            .or_else(|| (key.starts_with("xielu.")).then_some(key))
    }

    fn plan(&self, metadata: &Metadata) -> Result<GraphPlan, EngineError> {
        GraphPlan::new(&self.features, metadata, &self.tensors)
    }

    fn with(&self, key: &str, value: Value) -> Result<GraphPlan, EngineError> {
        let mut metadata = self.metadata.clone();
        metadata.set(key, value);
        self.plan(&metadata)
    }

    /// Tests every key: removed, with another type, with impossible values.
    fn keys(&self, found: &mut Found) {
        let keys: Vec<(String, Value)> =
            self.metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        for (key, value) in keys {
            let Some(local) = self.local(&key) else { continue };
            found.n_changes += 6;
            let other = if value.as_str().is_some() { Value::U32(7) } else { Value::String(b"x".to_vec()) };
            let is_read = match self.with(&key, other) {
                Ok(plan) if plan == self.plan => false,
                Ok(_) => {
                    found.faults.push(format!("{}: `{key}` of another type changes the plan", self.name));
                    true
                }
                Err(error) => {
                    self.check(found, &format!("`{key}` of another type"), &error, &[local]);
                    true
                }
            };
            let mut metadata = self.metadata.clone();
            metadata.remove(&key);
            match self.plan(&metadata) {
                Ok(plan) if plan == self.plan && !is_read => {}
                Ok(_) => {
                    found.optional_keys.insert(local.to_owned(), self.name.clone());
                }
                // The error names the key, or a number that now contradicts the rest.
                Err(error) => self.check(found, &format!("without `{key}`"), &error, &["key `", "tensor"]),
            }
            // These values must not cause a panic, and an error must state the problem.
            for number in [0, 1, u32::MAX] {
                if value.as_u64().is_some()
                    && let Err(error) = self.with(&key, Value::U32(number))
                {
                    self.check(found, &format!("`{key}` = {number}"), &error, &["key `", "tensor"]);
                }
            }
            if value.as_f64().is_some()
                && let Err(error) = self.with(&key, Value::F32(f32::NAN))
            {
                self.check(found, &format!("`{key}` = NaN"), &error, &[local]);
            }
        }
    }

    /// Tests keys with values that contradict the tensors.
    fn false_keys(&self, found: &mut Found) {
        for &(local, falsify, named) in FALSE_KEYS {
            let key = format!("{}.{local}", self.arch);
            let Some(value) = self.metadata.get(&key).and_then(Value::as_u64) else { continue };
            let number = match falsify {
                False::To(number) => number,
                False::Plus(n) => value as u32 + n,
            };
            match self.with(&key, Value::U32(number)) {
                Ok(plan) if plan == self.plan => {}
                Ok(_) => found.faults.push(format!("{}: `{key}` = {number} is taken", self.name)),
                Err(error) => {
                    found.false_keys.insert(local.to_owned());
                    self.check(found, &format!("`{key}` = {number}"), &error, &[named]);
                }
            }
        }
    }

    /// Tests the first tensor of each name: removed, with an additional column, with an additional row.
    fn tensors(&self, found: &mut Found) {
        let mut seen = BTreeSet::new();
        for (at, meta) in self.tensors.iter().enumerate() {
            let local = local_name(&meta.name);
            if !seen.insert(local.clone()) {
                continue;
            }
            found.n_changes += 3;
            let mut without = self.tensors.clone();
            without.remove(at);
            let is_used = match GraphPlan::new(&self.features, &self.metadata, &without) {
                Ok(_) => {
                    found.optional_tensors.insert(local.clone(), self.name.clone());
                    false
                }
                Err(error) => {
                    // The error names the tensor, or another one of its layer that needs it.
                    let part = part_of(&meta.name);
                    self.check(found, &format!("without `{}`", meta.name), &error, &[&part]);
                    true
                }
            };
            let n = meta.shape.rank();
            for dim in BTreeSet::from([0, n - 1]) {
                let mut dims = meta.shape.dims().to_vec();
                dims[dim] += 1;
                let mut wider = self.tensors.clone();
                wider[at].shape = Shape::new(dims).unwrap();
                match GraphPlan::new(&self.features, &self.metadata, &wider) {
                    Ok(_) if dim == 0 && n > 1 => {
                        found.free_rows.insert(local.clone(), self.name.clone());
                    }
                    // Unused tensors may have any shape.
                    Ok(_) if !is_used => {}
                    Ok(_) => found.faults.push(format!("{}: `{}` is a column wider", self.name, meta.name)),
                    Err(error) => {
                        let what = format!("`{}` with one more in dimension {dim}", meta.name);
                        self.check(found, &what, &error, &["tensor"]);
                    }
                }
            }
        }
    }

    /// Checks that an error contains one of the parts, and reports what is missing, or what was expected and found.
    fn check(&self, found: &mut Found, what: &str, error: &EngineError, parts: &[&str]) {
        let text = error.to_string();
        let says = ["is missing", "expected", "are not used by the graph", "is not built yet"];
        let is_named = parts.iter().any(|part| text.contains(part));
        if !is_named || !says.iter().any(|part| text.contains(part)) {
            found.faults.push(format!("{}: {what}: {text}", self.name));
        }
    }
}

/// Name of a tensor's layer in messages, or else of the tensor. Models with two stacks do not name the stack.
fn part_of(name: &str) -> String {
    let name = ["enc.", "dec."].iter().find_map(|stack| name.strip_prefix(stack)).unwrap_or(name);
    match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, _)) => format!("blk.{layer}."),
        None => name.strip_suffix(".weight").unwrap_or(name).to_owned(),
    }
}

/// Tensor name without its layer.
fn local_name(name: &str) -> String {
    match name.split_once("blk.").and_then(|(stack, rest)| Some((stack, rest.split_once('.')?.1))) {
        Some((stack, local)) => format!("{stack}{local}"),
        None => name.to_owned(),
    }
}

/// Findings that no list has, and listed names that were not found.
fn compare(what: &str, list: Exceptions, found: &BTreeMap<String, String>, is_whole: bool) -> Vec<String> {
    let rows = || list.iter().flat_map(|(_, names)| *names);
    let fits = |pattern: &str, name: &str| match pattern.split_once('*') {
        Some((head, tail)) => name.starts_with(head) && name.ends_with(tail),
        None => name == pattern,
    };
    let strangers = found.iter().filter(|(name, _)| !rows().any(|pattern| fits(pattern, name)));
    let mut faults: Vec<String> = strangers
        .map(|(name, case)| format!("{what} `{name}` may be missing or other ({case}): is that meant?"))
        .collect();
    let unused = rows().filter(|pattern| is_whole && !found.keys().any(|name| fits(pattern, name)));
    faults.extend(unused.map(|pattern| format!("{what} `{pattern}` is listed and is no exception")));
    faults
}

conformance_tests!(what_is_wrong_with_a_model_is_named);
fn what_is_wrong_with_a_model_is_named(corpus: &Goldens) {
    let dirs = files::entries(corpus.join("arch"));
    let each: Vec<Found> = dirs
        .par_iter()
        .filter_map(|dir| {
            let sound = Sound::open(dir)?;
            let mut found = Found::default();
            sound.keys(&mut found);
            sound.false_keys(&mut found);
            sound.tensors(&mut found);
            Some(found)
        })
        .collect();
    let n_cases = each.len();
    let mut all = Found::default();
    for found in each {
        all.faults.extend(found.faults);
        all.optional_keys.extend(found.optional_keys);
        all.optional_tensors.extend(found.optional_tensors);
        all.free_rows.extend(found.free_rows);
        all.false_keys.extend(found.false_keys);
        all.n_changes += found.n_changes;
    }
    println!("{} changes of {n_cases} models", all.n_changes);
    let is_whole = corpus.is_whole();
    let mut faults = all.faults;
    faults.extend(compare("key", OPTIONAL_KEYS, &all.optional_keys, is_whole));
    faults.extend(compare("tensor", OPTIONAL_TENSORS, &all.optional_tensors, is_whole));
    faults.extend(compare("rows of", FREE_ROWS, &all.free_rows, is_whole));
    let untried = FALSE_KEYS.iter().filter(|row| is_whole && !all.false_keys.contains(row.0));
    faults.extend(untried.map(|row| format!("no case has `{}`", row.0)));
    report_cases("engine: models with one thing wrong", n_cases);
    assert!(faults.is_empty(), "{}\n{}", faults.len(), faults.join("\n"));
}
