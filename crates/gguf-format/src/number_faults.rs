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

mod towers;

const NOT_LOADED: &str = "llama.cpp does not load the file";
const NOT_COMPUTED: &str = "llama.cpp computes no usable numbers with it";
const NOT_STARTED: &str = "llama.cpp stops before the first token";
const NO_CONTEXT: &str = "llama.cpp runs the file only if a context size is given with each run";

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
/// Architectures whose loader replaces a gating function of 0.
const WITH_DEFAULT_GATING: [&str; 10] = [
    "afmoe",
    "cohere2moe",
    "deepseek2",
    "deepseek2-ocr",
    "glm-dsa",
    "glm4moe",
    "glm5-next",
    "hy_v3",
    "laguna",
    "step35",
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
/// Parts of the names of keys that infinity switches off.
const BOUNDS: [&str; 3] = ["clamp", "limit", "activation_sparsity_scale"];
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
    if arch == towers::ARCH {
        return towers::faults(&numbers);
    }
    let mut findings = blocks(&numbers);
    findings.extend(context(&numbers));
    findings.extend(heads(&numbers));
    findings.extend(latent(&numbers));
    findings.extend(experts(&numbers));
    findings.extend(groups(&numbers));
    findings.extend(rotation(&numbers));
    findings.extend(above_zero(&numbers, &ABOVE_ZERO));
    findings.extend(not_numbers(&numbers, &ABOVE_ZERO));
    findings
}

fn above_zero<'a>(
    numbers: &'a NumericKeys<'_>,
    names: &'a [(&str, bool)],
) -> impl Iterator<Item = NumberFault> + 'a {
    names.iter().filter_map(|(name, takes_zero)| {
        let found = numbers.value(name)?.as_f64().filter(|found| !found.is_nan())?;
        let is_right = found.is_finite() && (found > 0.0 || *takes_zero && found == 0.0);
        let expected = if *takes_zero { "0 or more" } else { "more than 0" };
        // Of 32 bits, as in the file, and short: -1e30.
        let shown = format!("{:?}", found as f32);
        let problem = format!("is {}, not a finite number of {expected}", shown.trim_end_matches(".0"));
        (!is_right).then(|| NumberFault { outcome: NOT_COMPUTED, ..numbers.error(name, &problem) })
    })
}

/// Numbers, also in lists, that are none or infinite; `told` are keys whose infinity is found elsewhere.
fn not_numbers(numbers: &NumericKeys<'_>, told: &[(&str, bool)]) -> Vec<NumberFault> {
    let mut faults = Vec::new();
    for (key, value) in numbers.metadata.iter() {
        let Some(name) = key.strip_prefix(numbers.arch).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        let floats: Vec<f64> = match value.as_array() {
            Some(list) => (0..list.len()).filter_map(|at| list.get(at)?.as_f64()).collect(),
            None => value.as_f64().into_iter().collect(),
        };
        let has_limit = told.iter().any(|(own, _)| *own == name);
        let may_be_infinite = has_limit || BOUNDS.iter().any(|bound| name.contains(bound));
        let problem = match () {
            () if floats.iter().any(|float| float.is_nan()) => "is not a number (NaN)",
            () if !may_be_infinite && floats.iter().any(|float| float.is_infinite()) => "is infinite",
            () => continue,
        };
        faults.push(NumberFault { outcome: NOT_COMPUTED, ..numbers.error(name, problem) });
    }
    faults
}

/// The size of the context that runtimes take if a user gives none.
fn context(numbers: &NumericKeys<'_>) -> Option<NumberFault> {
    const KEY: &str = "context_length";
    (numbers.number(KEY) == Some(0))
        .then(|| NumberFault { outcome: NO_CONTEXT, ..numbers.error(KEY, "is 0") })
}

/// Architectures of latent attention whose loader expands the keys: each head has its own.
const EXPANDED: [&str; 2] = ["minicpm3", "plm"];

/// Latent attention: one head of keys, as wide as what is stored for a token, or as many as heads.
fn latent(numbers: &NumericKeys<'_>) -> Vec<NumberFault> {
    const KV: &str = "attention.head_count_kv";
    let mut findings = Vec::new();
    let is_latent = numbers.number("attention.key_length_mla").unwrap_or(0) > 0;
    let heads = match numbers.arch {
        arch if EXPANDED.contains(&arch) => numbers.heads(),
        arch => (is_latent || arch == "deepseek4").then_some(1),
    };
    // In a list by block, 0 is a block of states.
    let is_of_states =
        |found| found == 0 && numbers.value(KV).is_some_and(|value| value.as_array().is_some());
    if let Some(found) = numbers.largest(KV)
        && let Some(heads) = heads.filter(|&heads| heads != found && !is_of_states(found))
    {
        let end = if heads == 1 { "" } else { "s" };
        let problem = format!("is {found}, and this attention has {heads} head{end} of keys");
        findings.push(numbers.error(KV, &problem));
    }
    let (rank, rotated) = ("attention.kv_lora_rank", "rope.dimension_count");
    if is_latent
        && let Some(found) = numbers.number("attention.key_length")
        && let Some(parts) = numbers.number(rank).zip(numbers.number(rotated))
        && let expected = parts.0.saturating_add(parts.1)
        && found != expected
    {
        let (rank, rotated) = (numbers.key(rank), numbers.key(rotated));
        let problem =
            format!("is {found}, and `{}` and `{}` are {expected}", escape(&rank), escape(&rotated));
        findings.push(numbers.error("attention.key_length", &problem));
    }
    if numbers.number(rotated) == Some(0) && numbers.arch != "glm5-next" {
        findings.push(numbers.error(rotated, "is 0"));
    }
    findings.into_iter().map(|fault| NumberFault { outcome: NOT_STARTED, ..fault }).collect()
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
    if let Some(found) = gating(numbers).filter(|_| n > 0) {
        return Some(found);
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

/// How experts are chosen, by number: 1 to 4; 0 where the loader has a default of its own.
fn gating(numbers: &NumericKeys<'_>) -> Option<NumberFault> {
    const KEY: &str = "expert_gating_func";
    let found = numbers.number(KEY)?;
    let (least, most) = match numbers.arch {
        "deepseek4" => (4, 4),
        arch if WITH_DEFAULT_GATING.contains(&arch) => (0, 4),
        _ => (1, 4),
    };
    let limits = if least == most { most.to_string() } else { format!("{least} to {most}") };
    (!(least..=most).contains(&found)).then(|| NumberFault {
        outcome: NOT_STARTED,
        ..numbers.error(KEY, &format!("is {found}, not {limits}"))
    })
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
            float("logit_scale", f32::INFINITY).contains("is infinite")
                && float("swiglu_clamp", f32::INFINITY).is_empty()
        );
        let list = found("qwen3", |m| m.set("qwen3.xielu.alpha", vec![1.0, f32::NAN]));
        assert_eq!(list.len(), 1, "{list:?}");
        assert!(
            message("context_length", 0).contains("is 0: llama.cpp runs the file only if a context size")
        );
        assert_eq!(message("context_length", 1), "");
        assert!(
            float("logit_scale", f32::NAN).contains("is not a number")
                && float("logit_scale", 0.0).is_empty()
        );
        let scaling = found("llama", |m| m.set("llama.rope.scaling.type", "llama3"));
        assert!(scaling[0].contains("is `llama3`, not one of none, linear, yarn, longrope"), "{scaling:?}");
    }

    #[test]
    fn latent_attention_has_one_head_of_the_stored_width() {
        let latent = |heads: u32, width: u32| {
            found("deepseek2", |m| {
                let numbers = [("kv_lora_rank", 64), ("key_length_mla", 48), ("head_count_kv", heads)];
                for (name, value) in numbers.into_iter().chain([("key_length", width)]) {
                    m.set(format!("deepseek2.attention.{name}"), value);
                }
                m.set("deepseek2.rope.dimension_count", 16u32);
            })
        };
        assert!(latent(1, 80).is_empty());
        assert!(latent(0, 80)[0].contains("is 0"));
        let states = found("kimi-linear", |m| {
            m.set("kimi-linear.attention.key_length_mla", 48u32);
            m.set("kimi-linear.attention.head_count_kv", vec![0u32]);
        });
        assert_eq!(states, [""; 0]);
        assert!(latent(4, 80)[0].contains("is 4, and this attention has 1 head of keys: llama.cpp stops"));
        assert!(latent(1, 81)[0].contains("is 81, and `deepseek2.attention.kv_lora_rank` and"));
        let first = |heads: u32| found("deepseek4", |m| m.set("deepseek4.attention.head_count_kv", heads));
        assert!(first(1).is_empty() && first(0)[0].contains("is 0, and this"));
        assert!(found("llama", |m| m.set("llama.attention.head_count_kv", 2u32)).is_empty());
        let expanded = |heads: u32| found("plm", |m| m.set("plm.attention.head_count_kv", heads));
        assert!(expanded(4).is_empty() && expanded(1)[0].contains("is 1, and this attention has 4 heads"));
        let rotated = |arch: &str| found(arch, |m| m.set(format!("{arch}.rope.dimension_count"), 0u32));
        assert!(rotated("qwen2")[0].contains("is 0: llama.cpp stops") && rotated("glm5-next").is_empty());
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
        let gating = |arch: &str, number: u32| {
            found(arch, |m| {
                for (name, value) in [("count", 8), ("used_count", 2), ("gating_func", number)] {
                    m.set(format!("{arch}.expert_{name}"), value);
                }
            })
        };
        assert!(gating("lfm2moe", 2).is_empty() && gating("glm4moe", 0).is_empty());
        assert!(gating("lfm2moe", 0)[0].contains("is 0, not 1 to 4") && !gating("dots1", 5).is_empty());
        assert!(gating("deepseek4", 4).is_empty() && gating("deepseek4", 2)[0].contains("is 2, not 4:"));
        assert!(found("hunyuan-dense", |m| m.set("hunyuan-dense.expert_used_count", 1u32)).is_empty());
    }
}
