//! Comparison of a model's metadata with its baseline's.
//!
//! A wrong epsilon or rotation base costs little perplexity on a short text and much on another; the keys show it
//! without any arithmetic. `class` lists what a key decides. If only one side has a key, the graph and the vocabulary
//! are built with it and without it to find out whether it matters.

mod class;
mod effect;
mod hparams;
mod same;
mod tokenizer_keys;

pub(crate) use hparams::leaves_results_open;
pub(super) use tokenizer_keys::tokenizer;

use crate::{Check, Finding, Model};
use gguf_engine::GraphPlan;
use gguf_format::{Metadata, Value};

/// Compares the keys of a model with its baseline's. A difference in a key that decides the model's outputs is an
/// error. Other differences are warnings, or ignored if the two must differ.
pub(super) fn compare(model: &Model<'_>, baseline: &Metadata) -> Vec<Finding> {
    let build = |metadata: &Metadata| {
        let tensors = model.source.tensors();
        let found = model.features.map(|features| GraphPlan::with_read_keys(features, metadata, tensors));
        found.unwrap_or_default()
    };
    compare_keys(model.metadata, baseline, &build)
}

fn compare_keys(model: &Metadata, baseline: &Metadata, build: &effect::BuildGraph<'_>) -> Vec<Finding> {
    const CHECK: Check = Check::TokenizerParity;
    let mut findings = hparams::compare(model, baseline, build);
    if has_vocabulary(model) && !has_vocabulary(baseline) {
        findings.push(Finding::unchecked(CHECK, "the baseline has no vocabulary to compare with"));
    } else {
        findings.extend(tokenizer(model, baseline, CHECK, "the baseline"));
    }
    findings.extend(tokenizer_keys::around(model, baseline));
    findings
}

fn has_vocabulary(metadata: &Metadata) -> bool {
    let model = metadata.get("tokenizer.ggml.model").and_then(Value::as_str);
    model.is_some_and(|model| model != "none")
}

fn arch(metadata: &Metadata) -> &str {
    metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default()
}

/// Keys under a prefix, those of the model first.
fn union<'a>(
    model: &'a Metadata,
    baseline: &'a Metadata,
    prefixes: [&'a str; 2],
) -> impl Iterator<Item = &'a str> {
    let local = |metadata: &'a Metadata, prefix: &'a str| {
        metadata.iter().filter_map(move |(key, _)| key.strip_prefix(prefix))
    };
    let [own, other] = prefixes;
    let more = local(baseline, other).filter(move |key| !model.contains(&format!("{own}{key}")));
    local(model, own).chain(more)
}

#[cfg(test)]
mod tests;
