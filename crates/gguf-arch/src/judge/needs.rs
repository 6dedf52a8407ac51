//! Tensors without which llama.cpp refuses a file of an architecture, and those that it takes: it refuses a file with any
//! other. The converter checks its plan against them, the verifier an existing file.
//!
//! The table is `needs.json`, which `lab/peers/needed_tensors.py` derives from llama.cpp's loader. Architectures
//! that it does not list are not judged.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

use crate::Registry;
use crate::keys::shapes::MAX_BLOCKS;
use crate::read::fusion::Fusion;
use gguf_core::TensorMeta;
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};

const TABLE: &str = include_str!("needs.json");
/// Placeholder of the block prefix in a row.
const EACH_BLOCK: &str = "blk.N.";
const BLOCK: &str = "blk.";
/// Text between a tensor and a key that are both conditions of a row.
const AND_KEY: &str = " & ";

/// Column of the architectures whose loader takes a tensor without requiring it by another column.
const OPTIONAL: &str = "?";
/// Column of the architectures whose loader takes the width of all heads for that of the embedding in this matrix.
const SQUARE: &str = "=";
/// Stands in the column of optional tensors for all architectures whose loader takes the weight of the same name.
const LIKE_ITS_WEIGHT: &str = "*";

/// Architectures in which every block has experts but those that two keys name: the first `leading_dense_block_count`, and,
/// where the second member is true, those that `interleave_moe_layer_step` does not divide.
const EXPERT_BLOCKS: [(&str, bool); 22] = [
    ("afmoe", false),
    ("bailingmoe2", false),
    ("bailingmoe3", false),
    ("cohere2moe", false),
    ("deepseek", false),
    ("deepseek2", false),
    ("deepseek2-ocr", false),
    ("deepseek32", false),
    ("dots1", false),
    ("dots3note", false),
    ("ernie4_5-moe", false),
    ("exaone-moe", false),
    ("glm-dsa", false),
    ("glm4moe", false),
    ("glm5-next", false),
    ("hy_v4", false),
    ("kimi-k3", false),
    ("kimi-linear", false),
    ("laguna", false),
    ("lfm2moe", false),
    ("llama4", true),
    ("minimax-m3", false),
];
const ROUTER: &str = "ffn_gate_inp.weight";

struct Need {
    /// Name of the tensor; for a tensor in blocks, the part after the block number.
    name: &'static str,
    /// Text before `blk.` for a tensor in blocks, else `None`.
    start: Option<&'static str>,
    /// Tensor of the same block in whose presence this one is required; empty if it is always required.
    with: &'static str,
    /// Key of the architecture that must be greater than 0 for the requirement.
    key: Option<&'static str>,
}

type Rows = BTreeMap<&'static str, BTreeMap<&'static str, &'static str>>;

// A test covers that the table parses.
static ROWS: LazyLock<Rows> = LazyLock::new(|| serde_json::from_str(TABLE).unwrap_or_default());

static NEEDS: LazyLock<BTreeMap<&'static str, Vec<Need>>> = LazyLock::new(|| {
    let mut needs: BTreeMap<&str, Vec<Need>> = BTreeMap::new();
    for (&kind, rows) in &*ROWS {
        let (start, name) = match kind.split_once(EACH_BLOCK) {
            Some((start, name)) => (Some(start), name),
            None => (None, kind),
        };
        for (&with, archs) in rows.iter().filter(|(with, _)| ![OPTIONAL, SQUARE].contains(*with)) {
            let (with, key) = match with.split_once(AND_KEY) {
                Some((with, key)) => (with, Some(key)),
                None => (with, None),
            };
            for arch in archs.split(' ') {
                needs.entry(arch).or_default().push(Need { name, start, with, key });
            }
        }
    }
    needs
});

static KNOWN: LazyLock<BTreeSet<&'static str>> =
    LazyLock::new(|| ROWS.values().flat_map(BTreeMap::values).flat_map(|archs| archs.split(' ')).collect());

/// Maximum number of names in a message.
const MAX_EXAMPLES: usize = 3;

/// Tensors that a file lacks and llama.cpp's loader requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingTensors {
    /// The architecture.
    pub arch: String,
    /// Names of the tensors: those outside blocks first, then by block. At least one.
    pub names: Vec<String>,
}

impl fmt::Display for MissingTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (named, more) = examples(&self.names);
        write!(f, "llama.cpp loads no file of `{}` without {named}", escape(&self.arch))?;
        if more > 0 { write!(f, " and {more} more that are missing") } else { Ok(()) }
    }
}

/// Tensors of a file that llama.cpp's loader does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignTensors {
    /// The architecture.
    pub arch: String,
    /// Names of the tensors, in the order of the file. At least one.
    pub names: Vec<String>,
}

impl fmt::Display for ForeignTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (named, more) = examples(&self.names);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        write!(f, "llama.cpp loads no file of `{}` with {named}{more}", escape(&self.arch))?;
        f.write_str(": its loader has no such tensor (`wrong number of tensors`)")
    }
}

/// Returns the first names in backticks, and the number of the others.
fn examples(names: &[String]) -> (String, usize) {
    let named = names.iter().take(MAX_EXAMPLES).map(|name| format!("`{}`", escape(name)));
    (named.collect::<Vec<_>>().join(", "), names.len().saturating_sub(MAX_EXAMPLES))
}

/// Returns the tensors of a model's file that llama.cpp's loader does not take: another kind, or a block that the file does
/// not count. Adapters are not judged.
pub fn foreign_tensors(metadata: &Metadata, tensors: &[TensorMeta]) -> Option<ForeignTensors> {
    let word = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let arch = word("general.architecture");
    if !has_loader(arch) || word("general.type") == "adapter" {
        return None;
    }
    let n_blocks = metadata.get(&format!("{arch}.block_count")).and_then(Value::as_u64);
    let is_beyond = |name: &str| {
        let block = name.strip_prefix(BLOCK).and_then(|rest| rest.split_once('.')?.0.parse::<u64>().ok());
        block.zip(n_blocks).is_some_and(|(block, n)| block >= n)
    };
    let names = tensors.iter().map(|tensor| tensor.name.as_str());
    foreign(arch, names, is_beyond)
}

/// Returns true if llama.cpp has a loader for an architecture.
pub fn has_loader(arch: &str) -> bool {
    KNOWN.contains(arch)
}

/// Returns true if llama.cpp's loader takes the width of all heads for that of the embedding in a matrix of blocks.
pub(crate) fn is_square(arch: &str, name: &str) -> bool {
    let archs = ROWS.get(format!("{EACH_BLOCK}{name}").as_str()).and_then(|row| row.get(SQUARE));
    archs.is_some_and(|archs| archs.split(' ').any(|own| own == arch))
}

/// Returns true if llama.cpp's loader requires a tensor outside blocks in every file of an architecture.
pub(crate) fn requires(arch: &str, tensor: &str) -> bool {
    let is_it = |need: &Need| need.start.is_none() && need.with.is_empty() && need.name == tensor;
    NEEDS.get(arch).is_some_and(|needs| needs.iter().any(|need| is_it(need) && need.key.is_none()))
}

/// Returns the tensors of a plan that llama.cpp's loader does not take under an architecture.
pub fn foreign_names<'n>(arch: &str, names: impl Iterator<Item = &'n str>) -> Option<ForeignTensors> {
    if has_loader(arch) { foreign(arch, names, |_| false) } else { None }
}

fn foreign<'n>(
    arch: &str,
    names: impl Iterator<Item = &'n str>,
    is_other: impl Fn(&str) -> bool,
) -> Option<ForeignTensors> {
    let names = names.filter(|name| is_other(name) || !takes(arch, &kind_of(name)));
    let names: Vec<String> = names.map(str::to_owned).collect();
    (!names.is_empty()).then(|| ForeignTensors { arch: arch.to_owned(), names })
}

/// Returns true if llama.cpp's loader takes tensors of a kind under an architecture.
fn takes(arch: &str, kind: &str) -> bool {
    let Some(row) = ROWS.get(kind) else { return false };
    let mut archs = row.values().flat_map(|archs| archs.split(' '));
    archs.any(|own| match own {
        LIKE_ITS_WEIGHT => {
            kind.rsplit_once('.').is_some_and(|(base, _)| takes(arch, &format!("{base}.weight")))
        }
        own => own == arch,
    })
}

/// Returns the name of a tensor with `N` in place of the number of its block.
fn kind_of(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split('.').map(|part| if is_number(part) { "N" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

/// Returns the required tensors that a model's file lacks. Two kinds of files are not judged: adapters lack the tensors
/// of their base model, and files without a block 0 contain only draft heads.
pub fn missing_tensors(metadata: &Metadata, tensors: &[TensorMeta]) -> Option<MissingTensors> {
    let word = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let arch = word("general.architecture");
    let needs = NEEDS.get(arch).filter(|_| word("general.type") != "adapter")?;
    let names: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let blocks = blocks(&names);
    let begins = |start: &str| blocks.get(start).is_some_and(|blocks| blocks.contains(&0));
    if tensors.is_empty() || !blocks.is_empty() && !blocks.keys().any(|start| begins(start)) {
        return None;
    }
    let joins = LazyCell::new(|| joins(arch));
    let is_set = |key: &&str| {
        metadata.get(&format!("{arch}.{key}")).and_then(Value::as_u64).is_some_and(|value| value > 0)
    };
    let mut missing = BTreeSet::new();
    for need in needs.iter().filter(|need| need.key.as_ref().is_none_or(is_set)) {
        let mut ask = |block: Option<u64>| {
            let name = |part: &str| match (need.start, block) {
                (Some(start), Some(block)) => format!("{start}{BLOCK}{block}.{part}"),
                _ => part.to_owned(),
            };
            let is_due = need.with.is_empty() || names.contains(name(need.with).as_str());
            let needed = name(need.name);
            let is_joined = || {
                Fusion::WORDS.iter().any(|(_, join)| {
                    let joined = join.joined(need.name);
                    joined.is_some_and(|of| names.contains(name(&of).as_str())) && joins.contains(join)
                })
            };
            if is_due && !names.contains(needed.as_str()) && !is_joined() {
                missing.insert((block, needed));
            }
        };
        match need.start {
            Some(start) => blocks.get(start).into_iter().flatten().for_each(|block| ask(Some(*block))),
            None => ask(None),
        }
    }
    missing.extend(draft_heads(arch, metadata, &names));
    for (block, has_experts) in expert_blocks(arch, metadata) {
        let name = |part: &str| format!("{BLOCK}{block}.{part}");
        let needed = name(if has_experts { ROUTER } else { "ffn_down.weight" });
        // Blocks that the file leaves out are another matter.
        let is_here = names.contains(name(if has_experts { "ffn_down.weight" } else { ROUTER }).as_str());
        if is_here && !names.contains(needed.as_str()) {
            missing.insert((Some(block), needed));
        }
    }
    let names: Vec<String> = missing.into_iter().map(|(_, name)| name).collect();
    (!names.is_empty()).then(|| MissingTensors { arch: arch.to_owned(), names })
}

/// Returns the draft heads that the keys count and the file lacks, if it has any.
fn draft_heads(arch: &str, metadata: &Metadata, names: &BTreeSet<&str>) -> Vec<(Option<u64>, String)> {
    let number = |key: &str| metadata.get(&format!("{arch}.{key}")).and_then(Value::as_u64).unwrap_or(0);
    let name = |block: u64| format!("{BLOCK}{block}.nextn.eh_proj.weight");
    let (drafts, n) = (number("nextn_predict_layers"), number("block_count").min(MAX_BLOCKS as u64));
    let heads = (n.saturating_sub(drafts)..n).map(|block| (Some(block), name(block)));
    let (there, missing): (Vec<_>, Vec<_>) = heads.partition(|(_, head)| names.contains(head.as_str()));
    if there.is_empty() { Vec::new() } else { missing }
}

/// Returns for each block of the model whether the runtime expects experts in it, by the keys of the file.
fn expert_blocks(arch: &str, metadata: &Metadata) -> Vec<(u64, bool)> {
    let number = |key: &str| metadata.get(&format!("{arch}.{key}")).and_then(Value::as_u64);
    let Some((_, by_step)) = EXPERT_BLOCKS.into_iter().find(|row| row.0 == arch) else { return Vec::new() };
    let drafts = number("nextn_predict_layers").unwrap_or(0);
    let n = number("block_count").unwrap_or(0).saturating_sub(drafts).min(MAX_BLOCKS as u64);
    let lead = number("leading_dense_block_count").unwrap_or(0);
    let step = if by_step { number("interleave_moe_layer_step").unwrap_or(0) } else { 1 };
    (0..n).map(|block| (block, block >= lead && step > 0 && (block + 1).is_multiple_of(step))).collect()
}

/// Returns the joins of tensors that the runtime of an architecture reads in place of their parts.
fn joins(arch: &str) -> Vec<Fusion> {
    let registry = Registry::of_architecture(arch).ok();
    let cards = registry.iter().flat_map(Registry::cards).filter(|card| card.gguf == arch);
    cards.flat_map(|card| card.fuse.iter().copied()).collect()
}

/// Returns the block numbers that occur in names, by the text before `blk.`.
fn blocks<'n>(names: &BTreeSet<&'n str>) -> BTreeMap<&'n str, BTreeSet<u64>> {
    let mut blocks: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for name in names {
        let Some((start, rest)) = name.split_once(BLOCK) else { continue };
        let number = rest.split_once('.').and_then(|(number, _)| number.parse().ok());
        if let Some(number) = number {
            blocks.entry(start).or_default().insert(number);
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use gguf_core::{GgmlType, Shape};

    fn missing(arch: &str, names: &[&str]) -> Vec<String> {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", arch);
        let tensor = |name: &&str| TensorMeta {
            name: (*name).to_owned(),
            shape: Shape::new(vec![1]).unwrap(),
            ty: GgmlType::F32,
        };
        let missing = missing_tensors(&metadata, &names.iter().map(tensor).collect::<Vec<_>>());
        missing.map_or_else(Vec::new, |missing| missing.names)
    }

    #[test]
    fn the_whole_table_is_read() {
        let table: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_str(TABLE).unwrap();
        let needs = table.values().flatten().filter(|(with, _)| ![OPTIONAL, SQUARE].contains(&with.as_str()));
        let rows: usize = needs.map(|(_, archs)| archs.split(' ').count()).sum();
        assert_eq!(NEEDS.values().map(Vec::len).sum::<usize>(), rows);
        for arch in NEEDS.keys() {
            assert!(registry::is_embedded(arch), "{arch}");
        }
        let registry = Registry::embedded().unwrap();
        let cards: Vec<_> = registry.cards().iter().filter(|card| !card.is_abstract).collect();
        let n_known = cards.iter().filter(|card| KNOWN.contains(card.gguf.as_str())).count();
        assert!(n_known * 20 > cards.len() * 19, "{n_known} of {}", cards.len());
    }

    #[test]
    fn what_a_loader_takes() {
        for (arch, name) in [
            ("llama", "blk.3.attn_q.bias"),
            ("llama", "blk.3.attn_q.scale"),
            ("llama", "output.input_scale"),
            ("llama", "rope_freqs.weight"),
            ("qwen3", "blk.3.attn_q_norm.weight"),
            ("lfm2", "dense_2.bias"),
            ("gpt-oss", "blk.0.attn_sinks.weight"),
            ("t5", "dec.blk.1.cross_attn_q.weight"),
        ] {
            assert!(takes(arch, &kind_of(name)), "{arch} {name}");
        }
        for (arch, name) in [
            ("llama", "blk.3.attn_q_norm.weight"),
            ("llama", "blk.3.attn_q_norm.scale"),
            ("llama", "blk.3.attn_norm.bias"),
            ("llama", "output.bias"),
            ("llama", "blk.0.attn_sinks.weight"),
            ("qwen3", "blk.0.post_attention_norm.weight"),
            ("gemma3", "blk.0.attn_sinks.weight"),
            ("t5", "blk.1.cross_attn_q.weight"),
        ] {
            assert!(!takes(arch, &kind_of(name)), "{arch} {name}");
        }
    }

    #[test]
    fn what_one_block_of_several_lacks_is_missed() {
        let whole = [
            "token_embd.weight",
            "output_norm.weight",
            "output.weight",
            "blk.0.attn_norm.weight",
            "blk.0.ffn_norm.weight",
            "blk.0.attn_q.weight",
            "blk.0.attn_k.weight",
            "blk.0.attn_v.weight",
            "blk.0.attn_q_norm.weight",
            "blk.0.attn_k_norm.weight",
            "blk.0.attn_output.weight",
            "blk.0.ffn_gate.weight",
            "blk.0.ffn_up.weight",
            "blk.0.ffn_down.weight",
        ];
        assert_eq!(missing("qwen3", &whole), [""; 0]);
        let second: Vec<String> = whole[3..].iter().map(|name| name.replace("blk.0", "blk.1")).collect();
        let both: Vec<&str> = whole.iter().copied().chain(second.iter().map(String::as_str)).collect();
        assert_eq!(missing("qwen3", &both), [""; 0]);
        for gone in
            ["attn_norm", "attn_q_norm", "attn_k_norm", "attn_v", "attn_output", "ffn_gate", "ffn_down"]
        {
            let gone = format!("blk.1.{gone}.weight");
            let rest: Vec<&str> = both.iter().copied().filter(|name| *name != gone).collect();
            assert_eq!(missing("qwen3", &rest), [gone]);
        }
        let rest: Vec<&str> = both.iter().copied().filter(|name| !name.contains("ffn_gate")).collect();
        assert_eq!(missing("qwen3", &rest), ["blk.0.ffn_gate.weight", "blk.1.ffn_gate.weight"]);
        assert_eq!(missing("qwen3", &both[1..]), ["token_embd.weight"]);
    }

    #[test]
    fn a_tensor_of_some_blocks_is_asked_for_in_those() {
        let is_due = |names: &[&str]| missing("lfm2", names).contains(&"blk.1.attn_q_norm.weight".to_owned());
        assert!(is_due(&["blk.0.shortconv.conv.weight", "blk.1.attn_q.weight"]));
        assert!(!is_due(&["blk.0.attn_q.weight", "blk.1.shortconv.conv.weight"]));
    }

    #[test]
    fn a_whole_part_that_the_loader_requires_is_missed() {
        let experts = ["blk.0.ffn_down_exps.weight"];
        let shared = ["ffn_down_shexp", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp"];
        for arch in ["qwen2moe", "qwen3next", "qwen35moe"] {
            let found = missing(arch, &experts);
            assert!(shared.iter().all(|name| found.contains(&format!("blk.0.{name}.weight"))), "{found:?}");
        }
        // A key decides.
        let found = |key: Option<u32>| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", "kimi-k3");
            if let Some(length) = key {
                metadata.set("kimi-k3.expert_latent_length", length);
            }
            let (shape, ty) = (Shape::new(vec![1]).unwrap(), GgmlType::F32);
            let tensors = [TensorMeta { name: experts[0].to_owned(), shape, ty }];
            missing_tensors(&metadata, &tensors).unwrap().names
        };
        let latent = "blk.0.ffn_routed_down.weight".to_owned();
        assert!(found(Some(32)).contains(&latent));
        assert!(!found(Some(0)).contains(&latent) && !found(None).contains(&latent));
    }

    #[test]
    fn blocks_with_experts_are_those_of_the_keys() {
        let of = |arch: &str, keys: &[(&str, u32)], with_experts: [bool; 3]| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", arch);
            for (key, value) in [("block_count", 3u32)].iter().chain(keys) {
                metadata.set(format!("{arch}.{key}"), *value);
            }
            let part = |has: bool| if has { ROUTER } else { "ffn_down.weight" };
            let tensors = (0..3).map(|block| TensorMeta {
                name: format!("blk.{block}.{}", part(with_experts[block])),
                shape: Shape::new(vec![1]).unwrap(),
                ty: GgmlType::F32,
            });
            let missing = missing_tensors(&metadata, &tensors.collect::<Vec<_>>());
            let names = missing.map_or_else(Vec::new, |missing| missing.names);
            let is_feed = |name: &&String| name.ends_with(ROUTER) || name.ends_with(".ffn_down.weight");
            names.iter().filter(is_feed).cloned().collect::<Vec<_>>()
        };
        let (lead, step) = ("leading_dense_block_count", "interleave_moe_layer_step");
        assert_eq!(of("deepseek2", &[(lead, 1)], [false, true, true]), [""; 0]);
        assert_eq!(
            of("deepseek2", &[(lead, 1)], [false; 3]),
            ["blk.1.ffn_gate_inp.weight", "blk.2.ffn_gate_inp.weight"]
        );
        assert_eq!(of("deepseek2", &[(lead, 3)], [false; 3]), [""; 0]);
        assert_eq!(of("llama4", &[(step, 2)], [false, true, false]), [""; 0]);
        assert_eq!(of("llama4", &[(step, 1)], [false, true, true]), ["blk.0.ffn_gate_inp.weight"]);
        assert_eq!(of("llama4", &[(step, 0)], [false, true, false]), ["blk.1.ffn_down.weight"]);
        assert_eq!(of("qwen3", &[], [false; 3]), [""; 0]);
    }

    #[test]
    fn the_message_names_three() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let of =
            |n: usize| MissingTensors { arch: "llama".to_owned(), names: names[..n].to_vec() }.to_string();
        assert_eq!(of(2), "llama.cpp loads no file of `llama` without `a`, `b`");
        assert_eq!(
            of(5),
            "llama.cpp loads no file of `llama` without `a`, `b`, `c` and 2 more that are missing"
        );
    }

    #[test]
    fn what_is_not_known_is_not_judged() {
        assert_eq!(missing("of somebody's own", &["blk.0.x.weight"]), [""; 0]);
        assert_eq!(missing("qwen3", &[]), [""; 0]);
        assert_eq!(missing("qwen3", &["blk.7.nextn.eh_proj.weight"]), [""; 0]);
        let mut metadata = Metadata::new();
        metadata.set("qwen3next.block_count", 4u32);
        metadata.set("qwen3next.nextn_predict_layers", 2u32);
        let heads =
            |names: &[&str]| draft_heads("qwen3next", &metadata, &names.iter().copied().collect()).len();
        let [first, second] = ["blk.2.nextn.eh_proj.weight", "blk.3.nextn.eh_proj.weight"];
        assert_eq!((heads(&[]), heads(&[second]), heads(&[first, second])), (0, 1, 0));
    }
}
