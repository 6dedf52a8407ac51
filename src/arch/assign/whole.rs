//! Tensors of a text model that occur together, such as `ffn_up` and `ffn_down`, and the norm after its last block. A kind of
//! tensor that every block lacks leaves no gap between blocks: it is missed because its partner is there.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::Assigner;
use crate::arch::names::{Captures, Pattern};
use crate::arch::schema::{Entry, Optional};
use crate::arch::tied::is_named;
use crate::arch::towers::WEIGHT;

/// A tensor of a block, without `.weight`, and alternatives of which the block must have at least one. An alternative that no
/// entry of the card yields is not asked for; where one of them is optional or conditional, none is.
const TOGETHER: &[(&str, &[&str])] = &[
    ("ffn_up", &["ffn_down"]),
    ("ffn_down", &["ffn_up"]),
    ("ffn_gate", &["ffn_up"]),
    ("ffn_down", &["ffn_norm", "post_ffw_norm", "layer_output_norm", "post_attention_norm", "attn_norm"]),
    ("ffn_up_exps", &["ffn_down_exps"]),
    ("ffn_gate_exps", &["ffn_up_exps"]),
    ("ffn_down_exps", &["ffn_up_exps", "ffn_gate_up_exps"]),
    ("ffn_down_exps", &["ffn_gate_inp"]),
    ("ffn_gate_inp", &["ffn_down_exps"]),
    ("ffn_up_shexp", &["ffn_down_shexp"]),
    ("ffn_down_shexp", &["ffn_up_shexp"]),
    ("ffn_gate_shexp", &["ffn_up_shexp"]),
    ("attn_q", &["attn_output", "attn_o"]),
    ("attn_k", &["attn_q", "attn_q_b"]),
    ("attn_k", &["attn_v"]),
    ("attn_v", &["attn_k"]),
    ("attn_v", &["attn_output", "attn_o"]),
    ("attn_qkv", &["attn_output", "ssm_out"]),
    ("attn_output", &["attn_q", "attn_qkv", "attn_q_b", "attn_v"]),
    ("attn_output", &["attn_norm", "attn_output_norm", "attn_post_norm", "post_attention_norm"]),
    ("attn_q.bias", &["attn_k.bias"]),
    ("attn_k.bias", &["attn_v.bias"]),
    ("attn_v.bias", &["attn_q.bias"]),
    ("attn_q_a", &["attn_q_b"]),
    ("attn_q_a", &["attn_q_a_norm"]),
    ("attn_q_b", &["attn_q_a"]),
    ("attn_kv_a_mqa", &["attn_kv_b", "attn_k_b"]),
    ("attn_kv_a_mqa", &["attn_kv_a_norm"]),
    ("attn_kv_a_mqa", &["attn_output"]),
    ("attn_kv_b", &["attn_kv_a_mqa"]),
    ("attn_k_b", &["attn_v_b"]),
    ("attn_k_b", &["attn_kv_a_mqa"]),
    ("cross_attn_q", &["cross_attn_k"]),
    ("cross_attn_k", &["cross_attn_v"]),
    ("cross_attn_v", &["cross_attn_o"]),
    ("cross_attn_o", &["cross_attn_q"]),
    ("ssm_in", &["ssm_out"]),
    ("ssm_in", &["ssm_d"]),
    ("ssm_conv1d", &["ssm_out"]),
    ("ssm_out", &["ssm_conv1d"]),
    ("ssm_out", &["ssm_a"]),
    ("ssm_out", &["ssm_in", "ssm_ba", "ssm_alpha", "attn_qkv", "ssm_f_a"]),
    ("ssm_a", &["ssm_dt.bias"]),
];
/// The norm behind the last block of a decoder.
const LAST_NORM: &str = "output_norm";

impl Assigner<'_> {
    /// The targets that are missing though their partners are there: of each kind, that of the first block.
    pub(super) fn missing_partners(&self, present: &HashSet<&str>) -> Vec<String> {
        let mut missing: BTreeMap<(String, &str), (u64, String)> = BTreeMap::new();
        let present_in_order: BTreeSet<&str> = present.iter().copied().collect();
        for name in present_in_order {
            let Some((head, bid, part)) = of_block(name) else { continue };
            for (_, others) in TOGETHER.iter().filter(|(own, _)| *own == part) {
                let target = |other: &str| format!("{head}{bid}.{other}");
                let is_there = |other: &str| {
                    let target = target(other);
                    present.contains(target.as_str()) || present.contains((target + WEIGHT).as_str())
                };
                if others.iter().any(|other| is_there(other)) {
                    continue;
                }
                // What may be missing by itself, or is in no entry, is not known to be missing here.
                let asked =
                    others.iter().filter_map(|other| Some((*other, self.source_entry(&target(other), bid)?)));
                let asked: Vec<_> = asked.collect();
                let Some((first, _)) = asked.first().filter(|_| asked.iter().all(|(_, due)| *due)) else {
                    continue;
                };
                let name = target(first);
                let is_bias = name.rsplit('.').next() == Some("bias");
                let found = (bid, if is_bias { name } else { name + WEIGHT });
                let least = missing.entry((head.to_owned(), first)).or_insert_with(|| found.clone());
                if found < *least {
                    *least = found;
                }
            }
        }
        missing.into_values().map(|(_, target)| target).collect()
    }

    /// The norm after the last block, where it is missing and every model of the card has one.
    pub(super) fn missing_last_norm(&self, present: &HashSet<&str>) -> Option<String> {
        let is_its =
            |entry: &&Entry| entry.targets.iter().any(|target| is_named(target.name.text(), LAST_NORM));
        let mut norms = self.card.entries.iter().filter(is_its).peekable();
        let is_due = norms.peek().is_some()
            && norms.all(|entry| entry.optional == Optional::Never && entry.when.is_none())
            && self.heads.expects_model();
        let norm = format!("{LAST_NORM}{WEIGHT}");
        (is_due && !present.contains(norm.as_str())).then_some(norm)
    }

    /// True if all entries that yield a target are due in every block; `None` if none yields it.
    fn source_entry(&self, target: &str, bid: u64) -> Option<bool> {
        let captures = Captures { bid: Some(bid), ..Captures::default() };
        let stem = target.strip_suffix(".bias").unwrap_or(target);
        let is_its = |name: &Pattern| {
            name.render(captures).is_some_and(|name| name == target || is_named(&name, stem))
        };
        let entries = self.card.entries.iter();
        let mut its =
            entries.filter(|entry| entry.targets.iter().any(|target| is_its(&target.name))).peekable();
        its.peek()?;
        Some(its.all(|entry| entry.optional == Optional::Never && entry.when.is_none()))
    }
}

/// The start, number and rest of the name of a block's tensor, without `.weight`: `blk.`, 3 and `attn_q`.
fn of_block(name: &str) -> Option<(&str, u64, &str)> {
    let at = name.find("blk.")? + "blk.".len();
    let (number, part) = name.get(at..)?.split_once('.')?;
    Some((name.get(..at)?, number.parse().ok()?, part.strip_suffix(WEIGHT).unwrap_or(part)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::arch::{Inputs, Registry, ResolveOptions, resolve};
    use crate::core::{ElementType, Shape, WeightMeta};

    #[test]
    fn names_of_blocks_are_taken_apart() {
        assert_eq!(of_block("blk.3.attn_q.weight"), Some(("blk.", 3, "attn_q")));
        assert_eq!(of_block("enc.blk.0.ffn_up.weight"), Some(("enc.blk.", 0, "ffn_up")));
        assert_eq!(of_block("blk.3.attn_q.bias"), Some(("blk.", 3, "attn_q.bias")));
        assert_eq!(of_block("output_norm.weight"), None);
    }

    #[test]
    fn a_kind_that_every_block_lacks_is_missed() {
        let registry = Registry::embedded().unwrap();
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 4,
        });
        let parts = [
            ("input_layernorm", vec![8]),
            ("post_attention_layernorm", vec![8]),
            ("self_attn.q_proj", vec![8, 8]),
            ("self_attn.k_proj", vec![8, 8]),
            ("self_attn.v_proj", vec![8, 8]),
            ("self_attn.o_proj", vec![8, 8]),
            ("mlp.gate_proj", vec![16, 8]),
            ("mlp.up_proj", vec![16, 8]),
            ("mlp.down_proj", vec![8, 16]),
        ];
        let outcome = |gone: &str| {
            let weight = |name: String, dims: &[u64]| WeightMeta {
                name,
                shape: Shape::new(dims.to_vec()).unwrap(),
                ty: ElementType::F16,
            };
            let mut weights = vec![weight("model.embed_tokens.weight".to_owned(), &[4, 8])];
            weights.push(weight("model.norm.weight".to_owned(), &[8]));
            for (part, dims) in &parts {
                weights.extend((0..2).map(|bid| weight(format!("model.layers.{bid}.{part}.weight"), dims)));
            }
            weights.retain(|weight| gone.is_empty() || !weight.name.contains(gone));
            let inputs = Inputs::of_headers(config.as_object().unwrap(), &weights);
            resolve(&registry, &inputs, &ResolveOptions::default())
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        assert_eq!(outcome(""), Ok(()));
        for gone in ["self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"] {
            let error = outcome(gone).unwrap_err();
            assert_eq!(error, format!("the checkpoint lacks `model.layers.0.{gone}.weight`"));
        }
        assert_eq!(outcome("model.norm"), Err("the checkpoint lacks `model.norm.weight`".to_owned()));
    }
}
