//! Names of an adapter's tensors, and the base model's weights that they belong to.

use std::collections::HashMap;

use crate::lora::AdapterError;
use gguf_core::WeightMeta;

/// Prefix of the module in which PEFT wraps a model.
const WRAPPER: &str = "base_model.model.";
/// Name of the output in adapters of Tinker, where every other program writes the second one.
const TINKER_HEAD: &str = "unembed_tokens";
const HEAD: &str = "lm_head";

/// Parts of names that transformers has in memory, and those of the checkpoints that it reads: PEFT saves the first.
const IN_MEMORY: [(&str, &str); 12] = [
    (".forget_gate.", "."),
    (".mlp.shared_experts.", ".mlp.shared_mlp."),
    (".mlp.shared_experts.", ".mlp.shared_expert."),
    (".mlp.shared_experts.", ".share_expert."),
    (".mlp.", ".block_sparse_moe."),
    (".mlp.gate.", ".mlp.router.gate."),
    (".mlp.gate.", ".moe.gate."),
    (".mlp.router.", ".block_sparse_moe.gate."),
    (".self_attn.gate_proj.", ".self_attn.linear_gate."),
    (".self_attn.o_proj.", ".attention.dense."),
    (".self_attn.", ".attention."),
    ("lm_head.", "embed_out."),
];

/// Returns the name of a module without PEFT's wrapper, as transformers has it.
pub(crate) fn module_name(stem: &str) -> String {
    let name = stem.replace(WRAPPER, "");
    if name.rsplit('.').next() == Some(TINKER_HEAD) { HEAD.to_owned() } else { name }
}

/// Returns true for the name of the output's weight.
pub(super) fn is_head(name: &str) -> bool {
    core_of(name) == "lm_head.weight"
}

/// Names of a model's weights. A checkpoint may omit the name of the model's inner part, or have it in another place.
pub(super) struct WeightNames<'a> {
    weights: &'a [WeightMeta],
    /// Indices of weights by the part that all spellings of a name have in common.
    by_core: HashMap<String, Vec<usize>>,
    change: Change,
}

/// Difference between the names of an adapter and of its base, beyond their common part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Change {
    #[default]
    None,
    /// The adapter's names lack this prefix.
    Added(String),
    /// The adapter's names have this prefix, and the base's do not.
    Removed(String),
}

impl Change {
    fn apply(&self, core: &str) -> Option<String> {
        match self {
            Self::None => None,
            Self::Added(prefix) => Some(format!("{prefix}{core}")),
            Self::Removed(prefix) => core.strip_prefix(prefix).map(str::to_owned),
        }
    }
}

impl<'a> WeightNames<'a> {
    /// Indexes the weights of a model. `changed` are the names that an adapter changes: those that the model does not
    /// have may differ from its names by one prefix.
    pub(super) fn of<'n>(weights: &'a [WeightMeta], changed: impl Iterator<Item = &'n str>) -> Self {
        let mut by_core: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, meta) in weights.iter().enumerate() {
            by_core.entry(core_of(&meta.name)).or_default().push(at);
        }
        // Outputs may be tied, and experts stacked: their names are no evidence.
        let changed = changed.filter(|name| !is_head(name) && !name.contains(".experts.")).map(core_of);
        let is_known = |core: &String| {
            by_core.contains_key(core) || in_checkpoints(core).any(|core| by_core.contains_key(&core))
        };
        let unknown: Vec<String> = changed.filter(|core| !is_known(core)).collect();
        let change = change_of(&by_core, &unknown);
        Self { weights, by_core, change }
    }

    /// Returns the weight that an adapter's name means.
    pub(super) fn find(&self, name: &str) -> Result<usize, AdapterError> {
        let core = core_of(name);
        let changed = || self.by_core.get(&self.change.apply(&core)?);
        let stored = || in_checkpoints(&core).find_map(|core| self.by_core.get(&core));
        let alike = self.by_core.get(&core).or_else(changed).or_else(stored);
        let alike = alike.map(Vec::as_slice).unwrap_or_default();
        if let Some(exact) = alike.iter().find(|at| self.weights[**at].name == name) {
            return Ok(*exact);
        }
        match *alike {
            [] => Err(AdapterError::NotInBase { tensor: name.to_owned() }),
            [one] => Ok(one),
            [first, second, ..] => Err(AdapterError::Ambiguous {
                tensor: name.to_owned(),
                first: self.weights[first].name.clone(),
                second: self.weights[second].name.clone(),
            }),
        }
    }
}

/// Iterates over the names that checkpoints may have for one of transformers.
fn in_checkpoints(core: &str) -> impl Iterator<Item = String> + '_ {
    IN_MEMORY
        .iter()
        .filter(|row| core.contains(row.0))
        .map(|(memory, stored)| core.replacen(memory, stored, 1))
}

/// Returns the one prefix by which all unknown names differ from names of the model.
fn change_of(by_core: &HashMap<String, Vec<usize>>, unknown: &[String]) -> Change {
    let Some(first) = unknown.first() else { return Change::None };
    let longer = by_core.keys().filter_map(|core| core.strip_suffix(first.as_str()));
    let added = longer.filter(|prefix| prefix.ends_with('.')).map(|prefix| Change::Added(prefix.to_owned()));
    let ends = first.match_indices('.').map(|(at, _)| at + 1);
    let removed = ends.map(|end| Change::Removed(first[..end].to_owned()));
    let helps = |change: &Change| {
        unknown.iter().all(|core| change.apply(core).is_some_and(|core| by_core.contains_key(&core)))
    };
    let mut found = added.chain(removed).filter(helps);
    // Of two changes, neither is known to be right.
    match (found.next(), found.next()) {
        (Some(change), None) => change,
        _ => Change::None,
    }
}

/// Removes the names of the modules that contain a language model.
pub(super) fn core_of(name: &str) -> String {
    let name = name.replace("language_model.", "").replace(".base_layer.", ".");
    let mut rest = name.as_str();
    while let Some(inner) = ["model.", "transformer."].iter().find_map(|head| rest.strip_prefix(head)) {
        rest = inner;
    }
    rest.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{ElementType, Shape};

    fn metas(names: &[&str]) -> Vec<WeightMeta> {
        let shape = Shape::new(vec![1]).unwrap();
        let meta =
            |name: &&str| WeightMeta { name: (*name).to_owned(), shape: shape.clone(), ty: ElementType::F32 };
        names.iter().map(meta).collect()
    }

    #[test]
    fn names_are_found_under_other_heads() {
        let weights = metas(&[
            "h.0.attn.c_attn.weight",
            "language_model.model.layers.0.q.weight",
            "model.layers.1.q.weight",
            "vision.model.layers.0.q.weight",
            "model.wte.weight",
            "transformer.wte.weight",
        ]);
        let names = WeightNames::of(&weights, std::iter::empty());
        for (name, want) in [
            ("transformer.h.0.attn.c_attn.weight", 0),
            ("model.language_model.layers.0.q.weight", 1),
            ("model.layers.1.q.weight", 2),
            ("transformer.wte.weight", 5),
        ] {
            assert_eq!(names.find(name).unwrap(), want, "{name}");
        }
        assert_eq!(
            names.find("lm_head.weight").unwrap_err().to_string(),
            "the base model has no tensor `lm_head.weight`, which the adapter changes"
        );
        assert_eq!(
            names.find("wte.weight").unwrap_err().to_string(),
            "tensors `model.wte.weight` and `transformer.wte.weight` of the base model may both be what the adapter calls \
             `wte.weight`"
        );
    }

    #[test]
    fn names_in_memory_are_those_of_checkpoints() {
        for (stored, memory) in [
            (
                "model.layers.0.self_attn.f_a_proj.weight",
                "model.layers.0.self_attn.forget_gate.f_a_proj.weight",
            ),
            (
                "model.layers.0.mlp.shared_mlp.up_proj.weight",
                "model.layers.0.mlp.shared_experts.up_proj.weight",
            ),
            (
                "model.layers.0.mlp.shared_expert.up_proj.weight",
                "model.layers.0.mlp.shared_experts.up_proj.weight",
            ),
            (
                "model.layers.0.share_expert.up_proj.weight",
                "model.language_model.layers.0.mlp.shared_experts.up_proj.weight",
            ),
            ("model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.gate.weight"),
            ("model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.router.weight"),
            ("model.layers.0.self_attn.linear_gate.weight", "model.layers.0.self_attn.gate_proj.weight"),
            ("model.layers.0.attention.dense.weight", "model.layers.0.self_attn.o_proj.weight"),
            ("embed_out.weight", "lm_head.weight"),
        ] {
            let weights = metas(&["model.layers.0.mlp.up_proj.weight", "model.embed.weight", stored]);
            let others = [memory, "model.layers.0.mlp.up_proj.weight"];
            let names = WeightNames::of(&weights, others.into_iter());
            assert_eq!(names.find(memory).ok(), Some(2), "{memory}");
        }
        // A name that the base has is its own.
        let both = metas(&["a.mlp.shared_expert.w.weight", "a.mlp.shared_experts.w.weight"]);
        let names = WeightNames::of(&both, std::iter::empty());
        assert_eq!(names.find("a.mlp.shared_experts.w.weight").ok(), Some(1));
    }

    #[test]
    fn names_may_differ_by_one_prefix() {
        let bert = metas(&["encoder.layer.0.q.weight", "encoder.layer.1.q.weight"]);
        let text = metas(&[
            "decoder.text.layers.0.q.weight",
            "decoder.text.layers.1.q.weight",
            "vision.layers.0.q.weight",
        ]);
        let find = |weights: &[WeightMeta], changed: &[&str]| {
            let names = WeightNames::of(weights, changed.iter().copied());
            changed.iter().map(|name| names.find(name).ok()).collect::<Vec<_>>()
        };
        let both = ["bert.encoder.layer.0.q.weight", "bert.encoder.layer.1.q.weight"];
        assert_eq!(find(&bert, &both), [Some(0), Some(1)]);
        assert_eq!(find(&text, &["model.layers.0.q.weight", "model.layers.1.q.weight"]), [Some(0), Some(1)]);
        // One name alone may belong to either part.
        assert_eq!(find(&text, &["model.layers.0.q.weight"]), [None]);
        assert_eq!(
            find(&bert, &["bert.encoder.layer.0.q.weight", "roberta.encoder.layer.1.q.weight"]),
            [None, None]
        );
    }

    #[test]
    fn wrappers_are_no_part_of_a_name() {
        for (stem, want) in [
            ("base_model.model.model.layers.0.q", "model.layers.0.q"),
            ("base_model.model.model.unembed_tokens", "lm_head"),
            ("unembed_tokens", "lm_head"),
            ("base_model.model.base_model.model.lm_head", "lm_head"),
        ] {
            assert_eq!(module_name(stem), want);
        }
        assert!(
            is_head("lm_head.weight")
                && is_head("language_model.lm_head.weight")
                && !is_head("a.lm_head.weight")
        );
    }
}
