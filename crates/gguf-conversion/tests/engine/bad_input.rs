//! Valid models with one error each: every key and tensor is removed, or gets another type or size. The plan must
//! report what is missing, or what was expected and found. `exceptions.toml` lists optional keys and tensors, with the reason.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::LazyLock;

use gguf_arch::GraphFeatures;
use gguf_core::{Shape, TensorMeta};
use gguf_engine::{EngineError, GraphPlan};
use gguf_format::{Metadata, Value};
use rayon::prelude::*;

use crate::F32;
use gguf_testkit::goldens::{Goldens, tiered_conformance_tests};
use gguf_testkit::tiers::Tier;
use gguf_testkit::{files, report_cases};

/// Names that may be missing or other, by the list that has them and their common reason.
static EXCEPTIONS: LazyLock<HashMap<String, HashMap<String, Vec<String>>>> =
    LazyLock::new(|| toml::from_str(include_str!("exceptions.toml")).unwrap());

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
        GraphPlan::as_described(&self.features, metadata, &self.tensors)
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
            let is_used = match GraphPlan::as_described(&self.features, &self.metadata, &without) {
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
                match GraphPlan::as_described(&self.features, &self.metadata, &wider) {
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
fn compare(what: &str, list: &str, found: &BTreeMap<String, String>, is_whole: bool) -> Vec<String> {
    let rows = || EXCEPTIONS[list].values().flatten();
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

tiered_conformance_tests!(what_is_wrong_with_a_model_is_named);
fn what_is_wrong_with_a_model_is_named(corpus: &Goldens, tier: Tier) {
    let dirs = tier.some(3, files::entries(corpus.join("arch")));
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
    faults.extend(compare("key", "optional_keys", &all.optional_keys, is_whole));
    faults.extend(compare("tensor", "optional_tensors", &all.optional_tensors, is_whole));
    faults.extend(compare("rows of", "free_rows", &all.free_rows, is_whole));
    let untried = FALSE_KEYS.iter().filter(|row| is_whole && !all.false_keys.contains(row.0));
    faults.extend(untried.map(|row| format!("no case has `{}`", row.0)));
    report_cases("engine: models with one thing wrong", n_cases);
    assert!(faults.is_empty(), "{}\n{}", faults.len(), faults.join("\n"));
}
