//! Contradictions between numeric keys that make llama.cpp stop with an error, whatever the architecture.

use crate::{Metadata, Value};
use gguf_core::text::escape;

/// A key whose number contradicts another key, or the runtime's limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key `{}` {problem}: {outcome}", escape(key))]
pub struct NumberFault {
    /// Key at fault.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
    /// What the runtime does with it.
    pub outcome: &'static str,
}

const NOT_LOADED: &str = "llama.cpp does not load the file";
const NOT_COMPUTED: &str = "llama.cpp computes no usable numbers with it";

/// Largest numbers of blocks and experts that llama.cpp supports.
const MOST_BLOCKS: u64 = 512;
const MOST_EXPERTS: u64 = 1024;
/// Architectures that rotate whole heads.
const WHOLE_HEADS: [&str; 4] = ["llama", "deci", "falcon", "llama-embed"];
/// Architectures that llama.cpp loads with experts only.
const WITH_EXPERTS: [&str; 18] = [
    "bailingmoe",
    "bailingmoe2",
    "cohere2moe",
    "dbrx",
    "glm4moe",
    "grok",
    "grovemoe",
    "llada-moe",
    "llama4",
    "maple",
    "mellum",
    "olmoe",
    "qwen2moe",
    "qwen3moe",
    "qwen3next",
    "qwen3vlmoe",
    "rnd1",
    "smallthinker",
];
/// Architectures whose dense models may declare experts.
const ONE_EXPERT: [&str; 2] = ["hunyuan_vl", "hunyuan-dense"];
/// Keys whose number has a limit that llama.cpp itself does not check, and whether the limit is allowed, too.
const ABOVE_ZERO: [(&str, bool); 9] = [
    ("rope.freq_base", false),
    ("rope.freq_base_swa", false),
    ("rope.scaling.factor", true),
    ("rope.scaling.attn_factor", true),
    ("rope.scaling.yarn_beta_fast", true),
    ("rope.scaling.yarn_beta_slow", true),
    ("attention.layer_norm_epsilon", true),
    ("attention.layer_norm_rms_epsilon", true),
    ("attention.group_norm_epsilon", true),
];
const SCALINGS: [&str; 4] = ["none", "linear", "yarn", "longrope"];

/// Numeric keys of an architecture.
struct NumericKeys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
}

impl NumericKeys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.metadata.get(&self.key(name))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.as_u64()
    }

    /// Largest value of a per-block key, or the value that holds for all blocks.
    fn largest(&self, name: &str) -> Option<u64> {
        let value = self.value(name)?;
        match value.as_array() {
            Some(array) => (0..array.len()).filter_map(|at| array.get(at)?.as_u64()).max(),
            None => value.as_u64(),
        }
    }

    /// Number of heads of the first block.
    fn heads(&self) -> Option<u64> {
        let value = self.value("attention.head_count")?;
        match value.as_array() {
            Some(array) => array.get(0)?.as_u64(),
            None => value.as_u64(),
        }
    }

    fn error(&self, name: &str, problem: &str) -> NumberFault {
        NumberFault { key: self.key(name), problem: problem.to_owned(), outcome: NOT_LOADED }
    }
}

/// Returns the errors in the numeric keys of a model.
pub fn number_faults(metadata: &Metadata) -> Vec<NumberFault> {
    let Some(arch) = metadata.get("general.architecture").and_then(Value::as_str) else { return Vec::new() };
    let numbers = NumericKeys { metadata, arch };
    let mut findings = blocks(&numbers);
    findings.extend(heads(&numbers));
    findings.extend(experts(&numbers));
    findings.extend(groups(&numbers));
    findings.extend(rotation(&numbers));
    findings.extend(above_zero(&numbers));
    findings.extend(not_numbers(&numbers));
    findings
}

fn above_zero<'a>(numbers: &'a NumericKeys<'_>) -> impl Iterator<Item = NumberFault> + 'a {
    ABOVE_ZERO.iter().filter_map(|(name, takes_zero)| {
        let found = numbers.value(name)?.as_f64().filter(|found| !found.is_nan())?;
        let is_right = found.is_finite() && (found > 0.0 || *takes_zero && found == 0.0);
        let expected = if *takes_zero { "0 or more" } else { "more than 0" };
        // Of 32 bits, as in the file, and short: -1e30.
        let shown = format!("{:?}", found as f32);
        let problem = format!("is {}, not a finite number of {expected}", shown.trim_end_matches(".0"));
        (!is_right).then(|| NumberFault { outcome: NOT_COMPUTED, ..numbers.error(name, &problem) })
    })
}

fn not_numbers(numbers: &NumericKeys<'_>) -> Vec<NumberFault> {
    let is_own = |key: &str| key.strip_prefix(numbers.arch).is_some_and(|rest| rest.starts_with('.'));
    let wrong =
        numbers.metadata.iter().filter(|(key, value)| is_own(key) && value.as_f64().is_some_and(f64::is_nan));
    let fault = |(key, _): (&str, &Value)| NumberFault {
        key: key.to_owned(),
        problem: "is not a number (NaN)".to_owned(),
        outcome: NOT_COMPUTED,
    };
    wrong.map(fault).collect()
}

fn blocks(numbers: &NumericKeys<'_>) -> Vec<NumberFault> {
    let mut findings = Vec::new();
    let Some(n) = numbers.number("block_count") else { return findings };
    if n == 0 || n > MOST_BLOCKS {
        findings.push(numbers.error("block_count", &format!("is {n}, not 1 to {MOST_BLOCKS}")));
    }
    let drafts = numbers.number("nextn_predict_layers").unwrap_or(0);
    if drafts > n {
        let message = format!("is {drafts}, more than all {n} blocks");
        findings.push(numbers.error("nextn_predict_layers", &message));
    }
    findings
}

/// A head without a width: the runtime divides by it.
fn heads(numbers: &NumericKeys<'_>) -> Vec<NumberFault> {
    if numbers.largest("attention.head_count").unwrap_or(0) == 0 {
        return Vec::new();
    }
    let widths = ["embedding_length", "attention.key_length", "attention.value_length"];
    widths
        .into_iter()
        .filter(|name| numbers.number(name) == Some(0))
        .map(|name| numbers.error(name, "is 0"))
        .collect()
}

fn experts(numbers: &NumericKeys<'_>) -> Option<NumberFault> {
    let n = numbers.number("expert_count").unwrap_or(0);
    if ONE_EXPERT.contains(&numbers.arch) && n <= 1 {
        return None;
    }
    if n == 0 && WITH_EXPERTS.contains(&numbers.arch) {
        let found = if numbers.value("expert_count").is_some() { "0" } else { "missing" };
        let problem = format!("is {found}, and a `{}` has experts", numbers.arch);
        return Some(numbers.error("expert_count", &problem));
    }
    if n > MOST_EXPERTS {
        return Some(numbers.error("expert_count", &format!("is {n}, not at most {MOST_EXPERTS}")));
    }
    let used = numbers.largest("expert_used_count").unwrap_or(0);
    if used > n {
        return Some(numbers.error("expert_used_count", &format!("is {used}, of {n} experts")));
    }
    (n > 0 && used == 0)
        .then(|| numbers.error("expert_used_count", &format!("is missing or 0, of {n} experts")))
}

fn groups(numbers: &NumericKeys<'_>) -> Option<NumberFault> {
    let n = numbers.number("expert_count").unwrap_or(0);
    let groups = numbers.number("expert_group_count").unwrap_or(0);
    let used = numbers.number("expert_group_used_count").unwrap_or(0);
    if groups > 0 && groups >= n {
        return Some(numbers.error("expert_group_count", &format!("is {groups}, of {n} experts")));
    }
    if groups > 1 && !n.is_multiple_of(groups) {
        return Some(
            numbers.error("expert_group_count", &format!("is {groups}, which does not divide {n} experts")),
        );
    }
    (groups > 1 && !(1..groups).contains(&used))
        .then(|| numbers.error("expert_group_used_count", &format!("is {used}, of {groups} groups")))
}

fn rotation(numbers: &NumericKeys<'_>) -> Vec<NumberFault> {
    let mut findings = Vec::new();
    if let Some(found) = numbers.value("rope.scaling.type").and_then(Value::as_str)
        && !SCALINGS.contains(&found)
    {
        let message = format!("is `{}`, not one of {}", escape(found), SCALINGS.join(", "));
        findings.push(numbers.error("rope.scaling.type", &message));
    }
    if WHOLE_HEADS.contains(&numbers.arch)
        && let Some(found) = numbers.number("rope.dimension_count")
        && let Some(heads) = numbers.heads().filter(|&heads| heads > 0)
        && let Some(width) = numbers.number("embedding_length")
    {
        let head = numbers.number("attention.key_length").unwrap_or(width / heads);
        if found != head {
            let message = format!("is {found}, and a head has {head} dimensions");
            findings.push(numbers.error("rope.dimension_count", &message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(arch: &str, change: impl FnOnce(&mut Metadata)) -> Vec<String> {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", arch);
        for (name, value) in [("block_count", 4u32), ("embedding_length", 64), ("attention.head_count", 4)] {
            metadata.set(format!("{arch}.{name}"), value);
        }
        change(&mut metadata);
        number_faults(&metadata).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn numbers_fit_one_another() {
        let message = |name: &str, value: u32| {
            let found = found("llama", |m| m.set(format!("llama.{name}"), value));
            found.first().cloned().unwrap_or_default()
        };
        assert_eq!(
            message("block_count", 0),
            "key `llama.block_count` is 0, not 1 to 512: llama.cpp does not load the file"
        );
        assert!(message("block_count", 513).contains("is 513, not 1 to 512"));
        assert!(message("nextn_predict_layers", 5).contains("is 5, more than all 4 blocks"));
        assert_eq!(message("nextn_predict_layers", 4), "");
        assert!(message("attention.key_length", 0).contains("`llama.attention.key_length` is 0: llama.cpp"));
        assert!(
            found("llama4", |_| ())[0]
                .contains("`llama4.expert_count` is missing, and a `llama4` has experts")
        );
        assert!(message("expert_used_count", 2).contains("is 2, of 0 experts"));
        assert!(message("expert_count", 8).contains("is missing or 0, of 8 experts"));
        assert!(message("expert_group_count", 2).contains("is 2, of 0 experts"));
        assert!(message("rope.dimension_count", 8).contains("is 8, and a head has 16 dimensions"));
        assert_eq!(message("rope.dimension_count", 16), "");
        assert!(found("qwen2", |m| m.set("qwen2.rope.dimension_count", 8u32)).is_empty());
        let float = |name: &str, value: f32| {
            found("qwen3", |m| m.set(format!("qwen3.{name}"), value)).first().cloned().unwrap_or_default()
        };
        for (name, takes_zero) in ABOVE_ZERO {
            assert_eq!(float(name, 0.0).is_empty(), takes_zero, "{name}");
            assert!(float(name, -1.0).contains("is -1, not a finite number of"), "{name}");
            assert!(float(name, f32::INFINITY).contains("llama.cpp computes no usable numbers"), "{name}");
            assert!(float(name, f32::NAN).contains("(NaN)") && float(name, 0.5).is_empty(), "{name}");
        }
        assert!(
            float("logit_scale", f32::NAN).contains("is not a number")
                && float("logit_scale", 0.0).is_empty()
        );
        let scaling = found("llama", |m| m.set("llama.rope.scaling.type", "llama3"));
        assert!(scaling[0].contains("is `llama3`, not one of none, linear, yarn, longrope"), "{scaling:?}");
    }

    #[test]
    fn experts_are_chosen_among_those_that_are_there() {
        let experts = |n: u32, used: Value, groups: [u32; 2]| {
            found("deepseek2", |m| {
                m.set("deepseek2.expert_count", n);
                m.set("deepseek2.expert_used_count", used);
                m.set("deepseek2.expert_group_count", groups[0]);
                m.set("deepseek2.expert_group_used_count", groups[1]);
            })
        };
        assert!(experts(8, 2u32.into(), [1, 1]).is_empty());
        assert!(experts(8, 2u32.into(), [4, 2]).is_empty());
        assert!(experts(8, vec![0u32, 2, 2, 8].into(), [0, 0]).is_empty());
        assert!(experts(8, vec![0u32, 2, 2, 9].into(), [0, 0])[0].contains("is 9, of 8 experts"));
        assert!(experts(8, 2u32.into(), [3, 2])[0].contains("is 3, which does not divide 8 experts"));
        assert!(experts(8, 2u32.into(), [4, 4])[0].contains("is 4, of 4 groups"));
        assert!(found("hunyuan-dense", |m| m.set("hunyuan-dense.expert_used_count", 1u32)).is_empty());
    }
}
