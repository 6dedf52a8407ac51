//! What the metadata of a model and of its baseline must agree on.
//!
//! A wrong epsilon or rotation base costs little perplexity on a short text and much on another; the keys show it
//! without any arithmetic.

use crate::core::text::escape;
use crate::gguf::keys::ANNOTATION_PREFIX;
use crate::gguf::{Array, Metadata, Value};
use crate::verify::Finding;

/// Keys that decide how text becomes tokens, and whether one of two files may leave them out: those have a default.
/// Others (an end-of-turn id, a template) concern the runtime.
const ENCODING: [(&str, bool); 13] = [
    ("model", false),
    ("pre", false),
    ("tokens", false),
    ("token_type", false),
    ("merges", false),
    ("precompiled_charsmap", false),
    ("bos_token_id", false),
    ("eos_token_id", false),
    ("scores", true),
    ("add_bos_token", true),
    ("add_eos_token", true),
    ("add_space_prefix", true),
    ("remove_extra_whitespaces", true),
];

/// Numbers that may be changed on purpose without changing what the model computes.
const FREE: [&str; 2] = ["context_length", "vocab_size"];

const WINDOW: &str = "attention.sliding_window";
const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// Keys whose values differ. What decides the model's outputs is an error, what only one of the two has a warning:
/// converters differ in the defaults that they write out.
pub(super) fn compare(model: &Metadata, baseline: &Metadata) -> Vec<Finding> {
    const CHECK: &str = "tokenizer-parity";
    let mut findings = hparams(model, baseline);
    if has_vocabulary(model) && !has_vocabulary(baseline) {
        findings.push(Finding::unchecked(CHECK, "the baseline has no vocabulary to compare with"));
    } else {
        findings.extend(tokenizer(model, baseline, CHECK, "the baseline"));
    }
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

/// The architecture's numbers.
fn hparams(model: &Metadata, baseline: &Metadata) -> Vec<Finding> {
    const CHECK: &str = "hparams";
    let archs = [arch(model), arch(baseline)];
    let mut findings = Vec::new();
    if archs[0] != archs[1] {
        let message =
            format!("architecture `{}`, the baseline's is `{}`", escape(archs[0]), escape(archs[1]));
        findings.push(Finding::error(CHECK, message));
    }
    let [own, other] = archs.map(|arch| format!("{arch}."));
    // The annotation counts where a file has both, as for the engine.
    let value = |metadata: &'_ Metadata, prefix: &str, key: &str| {
        let value = metadata.get(&format!("{ANNOTATION_PREFIX}{key}"));
        value.or_else(|| metadata.get(&format!("{prefix}{key}"))).cloned()
    };
    let is_plain =
        |key: &&str| model.contains(&format!("{own}{key}")) || baseline.contains(&format!("{other}{key}"));
    let annotated = union(model, baseline, [ANNOTATION_PREFIX; 2]).filter(|key| !is_plain(key));
    for key in union(model, baseline, [&own, &other]).chain(annotated) {
        let name = escape(key);
        let values = (value(model, &own, key), value(baseline, &other, key));
        let message = match (&values.0, &values.1) {
            (Some(a), Some(b)) if is_same(a, b) => continue,
            (Some(a), Some(b)) => {
                let message = format!("`{name}` is {}, the baseline's is {}", show(a), show(b));
                if FREE.contains(&key) {
                    findings.push(Finding::warning(CHECK, message));
                } else {
                    findings.push(Finding::error(CHECK, message));
                }
                continue;
            }
            // Which layers have a window that is missing is no finding of its own.
            (None, Some(_)) if key == WINDOW_PATTERN && value(model, &own, WINDOW).is_none() => continue,
            (None, Some(number)) if baseline.contains(&format!("{ANNOTATION_PREFIX}{key}")) => {
                unsaid(key, number)
            }
            (None, _) => format!("`{name}` is missing, the baseline has it"),
            (_, None) => format!("`{name}` is not in the baseline"),
        };
        if !FREE.contains(&key) {
            findings.push(Finding::warning(CHECK, message));
        }
    }
    findings
}

/// What a file lacks because GGUF has no key for it. No error: a converter that keeps to GGUF's keys cannot do better,
/// and within the window nothing differs.
fn unsaid(key: &str, number: &Value) -> String {
    let differ = match number.as_u64().filter(|_| key == WINDOW) {
        Some(window) => format!("results beyond {window} tokens differ"),
        None => "results differ".to_owned(),
    };
    let name = escape(key);
    let value = show(number);
    format!(
        "the file does not say `{name}`, which is {value} in the baseline: GGUF has no key for it here, and {differ}; \
         convert with `--annotate`"
    )
}

/// Keys of the tokenizer, against those of a baseline or a source.
pub(super) fn tokenizer(
    model: &Metadata,
    other: &Metadata,
    check: &'static str,
    whose: &str,
) -> Vec<Finding> {
    const PREFIX: &str = "tokenizer.ggml.";
    let mut findings = Vec::new();
    for key in union(model, other, [PREFIX, PREFIX]) {
        let full = format!("{PREFIX}{key}");
        let values = (model.get(&full), other.get(&full));
        let name = escape(&full);
        let message = match values {
            (Some(a), Some(b)) if is_same(a, b) => continue,
            (None, _) => format!("`{name}` is missing, {whose} has it"),
            (_, None) => format!("`{name}` is not in {whose}"),
            (Some(a), Some(b)) => format!("`{name}` differs from {whose}'s: {}", difference(a, b)),
        };
        let is_error = match ENCODING.iter().find(|row| row.0 == key) {
            Some((_, has_default)) => !has_default || (values.0.is_some() && values.1.is_some()),
            None => false,
        };
        findings.push(if is_error {
            Finding::error(check, message)
        } else {
            Finding::warning(check, message)
        });
    }
    findings
}

/// Values that mean the same: integer and float widths are the writer's choice, and a number stands for an array of
/// it.
fn is_same(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| value.as_i128().map(|n| n as f64).or_else(|| value.as_f64());
    match (a, b) {
        (Value::Array(array), one) | (one, Value::Array(array)) if !matches!(one, Value::Array(_)) => {
            !array.is_empty()
                && (0..array.len()).all(|at| array.get(at).is_some_and(|entry| is_same(&entry, one)))
        }
        (Value::Array(x), Value::Array(y)) => {
            x == y
                || (x.len() == y.len()
                    && !matches!((x, y), (Array::String(_), Array::String(_)))
                    && (0..x.len()).all(|at| match (x.get(at), y.get(at)) {
                        (Some(a), Some(b)) => is_same(&a, &b),
                        _ => false,
                    }))
        }
        _ => match (number(a), number(b)) {
            // A number that passed through f32 in one of the files.
            (Some(x), Some(y)) => x == y || x as f32 == y as f32,
            _ => a == b,
        },
    }
}

/// Where two different values differ.
fn difference(a: &Value, b: &Value) -> String {
    match (a.as_array(), b.as_array()) {
        (Some(x), Some(y)) if x.len() != y.len() => format!("{} entries, not {}", x.len(), y.len()),
        (Some(x), Some(y)) => {
            let first = (0..x.len()).find(|&at| x.get(at) != y.get(at)).unwrap_or(0);
            match (x.get(first), y.get(first)) {
                (Some(a), Some(b)) => format!("entry {first} is {}, not {}", show(&a), show(&b)),
                _ => format!("entry {first}"),
            }
        }
        _ => format!("{}, not {}", show(a), show(b)),
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::String(bytes) => format!("`{}`", crate::core::text::escape_bytes(bytes)),
        Value::Array(array) => format!("an array of {}", array.len()),
        Value::Bool(value) => value.to_string(),
        other => match (other.as_i128(), other) {
            (Some(number), _) => number.to_string(),
            (None, Value::F32(number)) => number.to_string(),
            (None, Value::F64(number)) => number.to_string(),
            _ => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(arch: &str) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", arch);
        metadata.set(format!("{arch}.block_count"), 4u32);
        metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32);
        metadata.set(format!("{arch}.attention.head_count_kv"), 2u32);
        metadata.set("tokenizer.ggml.add_bos_token", true);
        metadata
    }

    fn found(model: &Metadata, baseline: &Metadata) -> Vec<String> {
        let show = |f: Finding| format!("{} {}: {}", f.severity.name(), f.check, f.message);
        compare(model, baseline).into_iter().map(show).collect()
    }

    #[test]
    fn widths_and_repeated_numbers_are_no_difference() {
        let (mut a, b) = (keys("llama"), keys("llama"));
        a.set("llama.block_count", 4u64);
        a.set("llama.attention.head_count_kv", vec![2i32, 2, 2, 2]);
        a.set("llama.vocab_size", 512u32);
        assert_eq!(found(&a, &b), [""; 0]);
    }

    #[test]
    fn numbers_without_a_key_in_gguf_are_warned_of() {
        let (plain, mut annotated) = (keys("llama"), keys("llama"));
        annotated.set("gguf_foundry.attention.sliding_window", 4096u32);
        annotated.set("gguf_foundry.attention.sliding_window_pattern", vec![true, false, true, false]);
        annotated.set("gguf_foundry.rope.scaling.yarn_truncate", false);
        let missing = |name: &str, value: &str, differ: &str| {
            format!(
                "warning hparams: the file does not say `{name}`, which is {value} in the baseline: GGUF has no key \
                 for it here, and {differ}; convert with `--annotate`"
            )
        };
        assert_eq!(
            found(&plain, &annotated),
            [
                missing("attention.sliding_window", "4096", "results beyond 4096 tokens differ"),
                missing("rope.scaling.yarn_truncate", "false", "results differ"),
            ]
        );
        assert_eq!(found(&annotated, &annotated), [""; 0]);
        let mut narrow = annotated.clone();
        narrow.set("gguf_foundry.attention.sliding_window", 512u32);
        assert_eq!(
            found(&narrow, &annotated),
            ["error hparams: `attention.sliding_window` is 512, the baseline's is 4096"]
        );
        // A key of the architecture says the same as an annotation.
        let mut named = keys("llama");
        named.set("llama.attention.sliding_window", 4096u32);
        let mut only = keys("llama");
        only.set("gguf_foundry.attention.sliding_window", 4096u32);
        assert_eq!(found(&named, &only), [""; 0]);
        assert_eq!(
            found(&only, &plain),
            ["warning hparams: `attention.sliding_window` is not in the baseline"]
        );
        let mut other = only.clone();
        other.set("gguf_foundry.attention.sliding_window_pattern", vec![true, false, true, false]);
        assert_eq!(
            found(&only, &other),
            [missing("attention.sliding_window_pattern", "an array of 4", "results differ")]
        );
    }

    #[test]
    fn numbers_tokens_and_architectures_are_compared() {
        let (mut a, b) = (keys("llama"), keys("llama"));
        a.set("llama.attention.layer_norm_rms_epsilon", 1e-6f32);
        a.set("llama.context_length", 1u32);
        a.set("llama.rope.freq_base", 5e5f32);
        a.set("tokenizer.ggml.add_bos_token", false);
        a.set("tokenizer.ggml.eot_token_id", 3u32);
        assert_eq!(
            found(&a, &b),
            [
                "error hparams: `attention.layer_norm_rms_epsilon` is 0.000001, the baseline's is 0.00001",
                "warning hparams: `rope.freq_base` is not in the baseline",
                "error tokenizer-parity: `tokenizer.ggml.add_bos_token` differs from the baseline's: false, not true",
                "warning tokenizer-parity: `tokenizer.ggml.eot_token_id` is not in the baseline",
            ]
        );
        assert_eq!(
            found(&keys("qwen2"), &b),
            ["error hparams: architecture `qwen2`, the baseline's is `llama`"]
        );
    }
}
