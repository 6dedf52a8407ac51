//! Plan of a file as llama.cpp computes it: keys that its loader does not go by for the architecture.

use std::collections::BTreeMap;

use crate::layers::graph::{arch_of, named, resolve_file};
use crate::resolve::keys::{ArchKeys, Replaced};
use crate::{EngineError, GraphPlan, Result};
use gguf_arch::graph::{Cap, CapName, GraphFeatures, LogitScale, LogitScaleName, MaskKind, WindowKind};
use gguf_arch::own_window;
use gguf_core::TensorMeta;
use gguf_format::loader_keys::unread_keys;
use gguf_format::{Metadata, Value};

const WINDOW: &str = "attention.sliding_window";

/// File whose keys are read with features of a card.
struct KeyedFile<'a> {
    metadata: &'a Metadata,
    tensors: &'a [TensorMeta],
    arch: &'a str,
}

impl<'a> KeyedFile<'a> {
    fn number(&self, name: &str) -> Option<u64> {
        self.metadata.get(&format!("{}.{name}", self.arch)).and_then(Value::as_u64)
    }

    /// Returns the keys that the loader does not read, and the window that it sets itself.
    fn replaced(&self) -> Replaced<'a> {
        let mut replaced: Replaced<'a> =
            unread_keys(self.metadata).into_iter().map(|name| (name, None)).collect();
        let n_layers = self.number("block_count").unwrap_or(0);
        let n_layers = n_layers.saturating_sub(self.number("nextn_predict_layers").unwrap_or(0));
        let window = own_window(self.arch, n_layers, self.number(WINDOW));
        replaced.extend(window.map(|window| (WINDOW, Some(Value::U64(window)))));
        replaced
    }

    fn plan(&self, features: &GraphFeatures, replaced: &Replaced<'_>) -> Result<GraphPlan> {
        resolve_file(features, &ArchKeys::new(self.metadata, self.arch, replaced), self.tensors)
    }

    /// Returns warnings of the keys among `replaced` by which the file describes another graph.
    fn warnings(&self, features: &GraphFeatures, replaced: &Replaced<'_>) -> Vec<String> {
        let features = opened(features);
        let plan = |replaced: &Replaced<'_>| {
            self.plan(&features, replaced).ok().map(|plan| GraphPlan { warnings: Vec::new(), ..plan })
        };
        let computed = if replaced.is_empty() { None } else { plan(replaced) };
        let Some(computed) = computed else { return Vec::new() };
        let is_other = |name: &&str| {
            let mut others = replaced.clone();
            others.remove(name);
            plan(&others).is_some_and(|plan| plan != computed)
        };
        let key = |name: &str| format!("{}.{name}", self.arch);
        let other = replaced.keys().copied().filter(is_other).map(key);
        let (other, missing): (Vec<String>, Vec<String>) = other.partition(|key| self.metadata.contains(key));
        let told = [
            (
                other,
                "llama.cpp does not go by this for the architecture; the figures are of what it computes",
            ),
            (missing, "missing; the figures are of what llama.cpp computes, with a value of its own"),
        ];
        let told = told.iter().filter(|(keys, _)| !keys.is_empty());
        told.map(|(keys, what)| format!("{}: {what}", named(keys.iter().map(String::as_str)))).collect()
    }
}

impl GraphPlan {
    /// Resolves the graph that llama.cpp computes of a file. A key that its loader does not read for the architecture counts
    /// only if there is no graph without it, as the loader has a number of its own then. The warnings name the keys by which
    /// the file describes another graph.
    ///
    /// # Errors
    /// If a feature is not implemented, if keys or tensors are missing or contradict one another, or if tensors are not
    /// used.
    pub fn new(features: &GraphFeatures, metadata: &Metadata, tensors: &[TensorMeta]) -> Result<Self> {
        let file = KeyedFile { metadata, tensors, arch: arch_of(metadata)? };
        let mut replaced = file.replaced();
        let mut plan = loop {
            match file.plan(features, &replaced) {
                Err(EngineError::MissingKey { key })
                    if key.split_once('.').is_some_and(|(_, name)| replaced.remove(name).is_some()) => {}
                result => break result?,
            }
        };
        plan.warnings.extend(file.warnings(features, &replaced));
        Ok(plan)
    }

    /// Resolves the graph that the keys describe, whatever llama.cpp reads of them: what a checkpoint computes.
    ///
    /// # Errors
    /// As [`GraphPlan::new`].
    pub fn as_described(
        features: &GraphFeatures,
        metadata: &Metadata,
        tensors: &[TensorMeta],
    ) -> Result<Self> {
        KeyedFile { metadata, tensors, arch: arch_of(metadata)? }.plan(features, &BTreeMap::new())
    }
}

/// Returns the features with those that keys switch on in other architectures: a key changes the graph then even if the
/// card has no such feature.
fn opened(features: &GraphFeatures) -> GraphFeatures {
    let mut opened = features.clone();
    for cap in [&mut opened.attention.cap, &mut opened.head.cap] {
        if *cap == Cap::Named(CapName::Off) {
            *cap = Cap::Named(CapName::Key);
        }
    }
    if opened.head.scale == LogitScale::Named(LogitScaleName::None) {
        opened.head.scale = LogitScale::Named(LogitScaleName::Multiply);
    }
    if opened.window.kind == WindowKind::None && opened.attention.mask == MaskKind::Causal {
        opened.window.kind = WindowKind::Sliding;
    }
    opened
}
