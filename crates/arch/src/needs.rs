//! Tensors without which llama.cpp refuses a file of an architecture. The converter checks its plan against them, the
//! verifier an existing file.
//!
//! The table is `needs.json`, which `lab/peers/needed_tensors.py` derives from llama.cpp's loader. Architectures
//! that it does not list are not judged.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

use crate::Registry;
use crate::fusion::Fusion;
use gguf_core::TensorMeta;
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};

const TABLE: &str = include_str!("needs.json");
/// Placeholder of the block prefix in a row.
const EACH_BLOCK: &str = "blk.N.";
const BLOCK: &str = "blk.";
/// Text between a tensor and a key that are both conditions of a row.
const AND_KEY: &str = " & ";

/// Required tensor.
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

static NEEDS: LazyLock<BTreeMap<&'static str, Vec<Need>>> = LazyLock::new(|| {
    // A test covers that the table parses.
    let table: BTreeMap<&str, BTreeMap<&str, &str>> = serde_json::from_str(TABLE).unwrap_or_default();
    let mut needs: BTreeMap<&str, Vec<Need>> = BTreeMap::new();
    for (kind, rows) in table {
        let (start, name) = match kind.split_once(EACH_BLOCK) {
            Some((start, name)) => (Some(start), name),
            None => (None, kind),
        };
        for (with, archs) in rows {
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
        let named = self.names.iter().take(MAX_EXAMPLES).map(|name| format!("`{}`", escape(name)));
        let named = named.collect::<Vec<_>>().join(", ");
        write!(f, "llama.cpp loads no file of `{}` without {named}", escape(&self.arch))?;
        match self.names.len().saturating_sub(MAX_EXAMPLES) {
            0 => Ok(()),
            more => write!(f, " and {more} more that are missing"),
        }
    }
}

/// Returns the required tensors that a model's file lacks. Two kinds of files are not judged: adapters lack the tensors
/// of their base model, and files without a block 0 contain only draft heads.
#[must_use]
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
    let names: Vec<String> = missing.into_iter().map(|(_, name)| name).collect();
    (!names.is_empty()).then(|| MissingTensors { arch: arch.to_owned(), names })
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
    use crate::load;
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
        let rows: usize =
            table.values().flat_map(BTreeMap::values).map(|archs| archs.split(' ').count()).sum();
        assert_eq!(NEEDS.values().map(Vec::len).sum::<usize>(), rows);
        for arch in NEEDS.keys() {
            assert!(load::is_embedded(arch), "{arch}");
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
    }
}
