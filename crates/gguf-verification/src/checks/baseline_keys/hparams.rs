//! Comparison of the architecture's numbers, one by one.

use crate::checks::baseline_keys::class::{Class, class_of, local_class};
use crate::checks::baseline_keys::effect::{BuildGraph, GraphEffect, Graphs, is_neutral};
use crate::checks::baseline_keys::same::{is_same, pair, show};
use crate::checks::baseline_keys::{arch, union};
use crate::{Check, Finding};
use gguf_arch::diffusion::DiffusionCards;
use gguf_core::text::escape;
use gguf_format::keys::ANNOTATION_PREFIX;
use gguf_format::{Metadata, Value};

const CHECK: Check = Check::Hparams;
/// Text by which findings about numbers without a GGUF key are recognized.
const NO_KEY: &str = "GGUF has no key for it here";
/// Names of architectures for which ComfyUI-GGUF tells an image model by its tensors; none is one, too.
const GUESSED: [&str; 2] = ["", "pig"];
const WINDOW: &str = "attention.sliding_window";
const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// Metadata of both sides, with the prefixes of their architectures.
struct MetadataPair<'a> {
    model: &'a Metadata,
    baseline: &'a Metadata,
    /// Architecture prefix of each side, e.g. `llama.`.
    prefixes: [String; 2],
    /// Graphs of both sides; `None` if the architectures differ.
    graphs: Option<Graphs<'a>>,
}

/// Reports differences in the numbers of the architecture.
pub(super) fn compare(model: &Metadata, baseline: &Metadata, build: &BuildGraph<'_>) -> Vec<Finding> {
    let archs = [arch(model), arch(baseline)];
    let mut findings = Vec::new();
    if archs[0] != archs[1] {
        let message =
            format!("architecture `{}`, the baseline's is `{}`", escape(archs[0]), escape(archs[1]));
        let is_image = DiffusionCards::embedded().is_ok_and(|cards| cards.by_gguf(archs[1]).is_some());
        findings.push(if is_image && GUESSED.contains(&archs[0]) {
            Finding::warning(CHECK, message)
        } else {
            Finding::error(CHECK, message)
        });
    }
    let sides = MetadataPair {
        model,
        baseline,
        prefixes: archs.map(|arch| format!("{arch}.")),
        graphs: (archs[0] == archs[1]).then(|| Graphs::new(build, model, baseline)),
    };
    let [own, other] = &sides.prefixes;
    let is_plain =
        |key: &&str| model.contains(&format!("{own}{key}")) || baseline.contains(&format!("{other}{key}"));
    let is_of_file = |key: &&str| class_of(&format!("{ANNOTATION_PREFIX}{key}"), "") == Class::Build;
    let annotated = union(model, baseline, [ANNOTATION_PREFIX; 2]);
    let annotated = annotated.filter(|key| !is_plain(key) && !is_of_file(key));
    for key in union(model, baseline, [own, other]).chain(annotated) {
        findings.extend(sides.finding(key));
    }
    findings.extend(shared(model, baseline));
    findings
}

/// Returns the value of a key. If a file also has an annotation, that takes precedence, as in the engine.
fn value<'m>(metadata: &'m Metadata, prefix: &str, key: &str) -> Option<&'m Value> {
    let value = metadata.get(&format!("{ANNOTATION_PREFIX}{key}"));
    value.or_else(|| metadata.get(&format!("{prefix}{key}")))
}

impl MetadataPair<'_> {
    fn effect(&self, key: &str) -> GraphEffect {
        let keys = self.prefixes.each_ref().map(|prefix| format!("{prefix}{key}"));
        let graphs = self.graphs.as_ref();
        graphs.map_or(GraphEffect::Unknown, |graphs| graphs.effect(key, keys.each_ref().map(String::as_str)))
    }

    fn finding(&self, key: &str) -> Option<Finding> {
        let [own, other] = &self.prefixes;
        let name = escape(key);
        let is_free = local_class(key) == Class::Free;
        let annotation = format!("{ANNOTATION_PREFIX}{key}");
        match (value(self.model, own, key), value(self.baseline, other, key)) {
            (None, None) => None,
            // Types and lengths are judged in each file separately.
            (Some(a), Some(b)) if is_same(a, b) => None,
            (Some(a), Some(b)) => {
                let message = format!("`{name}` {}", pair(a, b, "the baseline"));
                let is_error = !is_free || self.effect(key) == GraphEffect::Differs;
                Some(if is_error { Finding::error(CHECK, message) } else { Finding::warning(CHECK, message) })
            }
            // The pattern of a missing window is not a separate finding.
            (None, Some(_)) if key == WINDOW_PATTERN && value(self.model, own, WINDOW).is_none() => None,
            (None, Some(number)) if self.baseline.contains(&annotation) => {
                Some(Finding::warning(CHECK, undeclared(key, number)))
            }
            (None, Some(value)) => self.missing(key, value),
            (Some(_), None) if self.model.contains(&annotation) => {
                Some(Finding::warning(CHECK, format!("`{name}` is not in the baseline")))
            }
            (Some(value), None) => self.added(key, value),
        }
    }

    /// Reports a key that the file lacks.
    fn missing(&self, key: &str, value: &Value) -> Option<Finding> {
        let message = format!("`{}` is missing, the baseline's is {}", escape(key), show(value));
        match self.effect(key) {
            GraphEffect::Differs => {
                Some(Finding::error(CHECK, format!("{message}: without it, another value is used")))
            }
            _ if local_class(key) == Class::Free => None,
            GraphEffect::None => {
                Some(Finding::warning(CHECK, format!("{message}: the model computes the same without it")))
            }
            // For two architectures it is unknown which keys mean the same.
            GraphEffect::Unknown if self.graphs.is_none() || is_neutral(key, value) => {
                Some(Finding::warning(CHECK, message))
            }
            GraphEffect::Unknown => Some(Finding::error(
                CHECK,
                format!("{message}: the value that a runtime uses without it is not known"),
            )),
        }
    }

    /// Reports a key that the baseline lacks: if the engine does not read it, it is from a newer converter.
    fn added(&self, key: &str, value: &Value) -> Option<Finding> {
        let message = format!("`{}` is not in the baseline", escape(key));
        match self.effect(key) {
            GraphEffect::Differs => {
                let more = format!(", and without it another value than {} is used", show(value));
                Some(Finding::error(CHECK, message + &more))
            }
            _ if local_class(key) == Class::Free => None,
            _ => Some(Finding::warning(CHECK, message)),
        }
    }
}

/// Describes a number that a file lacks because GGUF has no key for it. It is not an error: a converter limited to
/// GGUF's keys cannot do better, and within the window nothing differs.
fn undeclared(key: &str, number: &Value) -> String {
    let differ = match number.as_u64().filter(|_| key == WINDOW) {
        Some(window) => format!("results beyond {window} tokens differ"),
        None => "results differ".to_owned(),
    };
    let name = escape(key);
    let value = show(number);
    format!(
        "the file does not say `{name}`, which is {value} in the baseline: {NO_KEY}, and {differ}; \
         convert with `--annotate`"
    )
}

/// Returns true for a finding of [`undeclared`]: equal weights do not guarantee equal results then.
pub(crate) fn leaves_results_open(finding: &Finding) -> bool {
    finding.check == CHECK && finding.message.contains(NO_KEY)
}

/// Reports differences in keys of the arithmetic that have no architecture prefix.
fn shared(model: &Metadata, baseline: &Metadata) -> Vec<Finding> {
    let keys = union(model, baseline, ["", ""]).filter(|key| {
        let is_prefixed = key.starts_with(ANNOTATION_PREFIX) || *key == "general.architecture";
        !is_prefixed && class_of(key, "") == Class::Arithmetic
    });
    let finding = |key: &str| {
        let name = escape(key);
        let message = match (model.get(key), baseline.get(key)) {
            (Some(a), Some(b)) if is_same(a, b) => return None,
            (Some(a), Some(b)) => format!("`{name}` {}", pair(a, b, "the baseline")),
            (None, Some(value)) => format!("`{name}` is missing, the baseline's is {}", show(value)),
            (_, None) => return Some(Finding::warning(CHECK, format!("`{name}` is not in the baseline"))),
        };
        Some(Finding::error(CHECK, message))
    };
    keys.filter_map(finding).collect()
}
