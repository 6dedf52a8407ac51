//! Removal of the prefixes that training wrappers add to tensor names; the same rule for all containers.

use std::collections::HashSet;

use gguf_core::WeightMeta;

/// Name components that wrappers insert; no model uses them for its own modules.
const WORDS: [&str; 5] =
    ["_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module", "_forward_module"];
/// Prefix that PEFT adds to the names of a model.
const PEFT: &str = "base_model.model.";
/// Prefixes that are removed only if all names have them.
const BEFORE_ALL: [&str; 2] = ["module.", "model."];
/// Maximum number of nested wrappers that are removed.
const MAX_DEPTH: usize = 4;

/// Kind of checkpoint that the names belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A model: PEFT's prefix is a leftover.
    Model,
    /// An adapter: PEFT's prefix belongs to its names.
    Adapter,
}

/// Removes wrappers from names, in place; returns a warning if any name changed.
///
/// Two names that would become equal stay as they are.
pub(super) fn unwrap(weights: &mut [WeightMeta], owner: Owner) -> Option<String> {
    let mut names: Vec<String> = weights.iter().map(|meta| meta.name.clone()).collect();
    let mut found: Vec<&'static str> = Vec::new();
    for _ in 0..MAX_DEPTH {
        if !unwrap_once(&mut names, owner, &mut found) {
            break;
        }
    }
    keep_doubles(&mut names, weights);
    let n_changed = names.iter().zip(&*weights).filter(|(name, meta)| **name != meta.name).count();
    let (new, old) = names.iter().zip(&*weights).find(|(name, meta)| **name != meta.name)?;
    let (new, old) = (new.clone(), old.name.clone());
    let prefix = old.strip_suffix(new.as_str()).unwrap_or_default();
    let is_before_all = !prefix.is_empty()
        && n_changed == names.len()
        && names
            .iter()
            .zip(&*weights)
            .all(|(name, meta)| meta.name.strip_suffix(name.as_str()) == Some(prefix));
    let warning = if is_before_all {
        format!("all names begin with `{prefix}`, which is left out")
    } else {
        let words: Vec<String> = found.iter().map(|word| format!("`{word}`")).collect();
        format!(
            "{} of wrappers is left out of the names of {n_changed} of {} tensors: `{old}` is read as `{new}`",
            words.join(", "),
            names.len()
        )
    };
    for (meta, name) in weights.iter_mut().zip(names) {
        meta.name = name;
    }
    Some(warning)
}

/// Removes one layer of wrappers; returns false if there was none.
fn unwrap_once(names: &mut [String], owner: Owner, found: &mut Vec<&'static str>) -> bool {
    let mut any = false;
    let mut note = |word: &'static str| {
        any = true;
        if !found.contains(&word) {
            found.push(word);
        }
    };
    for name in names.iter_mut() {
        for word in WORDS {
            if let Some(rest) = without_word(name, word) {
                *name = rest;
                note(word);
            }
        }
        if owner == Owner::Model
            && let Some(rest) = name.strip_prefix(PEFT).filter(|rest| !rest.is_empty())
        {
            *name = rest.to_owned();
            note(PEFT);
        }
    }
    for prefix in BEFORE_ALL {
        let all = !names.is_empty()
            && names.iter().all(|name| name.len() > prefix.len() && name.starts_with(prefix));
        // Many models' own names start with `model.`: it is a wrapper's only if some name has it twice.
        let is_own = prefix == "model." && !names.iter().any(|name| name.starts_with("model.model."));
        if all && !is_own {
            for name in names.iter_mut() {
                name.drain(..prefix.len());
            }
            note(prefix);
        }
    }
    any
}

/// Returns a name without the component `word`, if it has that component and others.
fn without_word(name: &str, word: &str) -> Option<String> {
    if !name.contains(word) {
        return None;
    }
    let rest: Vec<&str> = name.split('.').filter(|part| *part != word).collect();
    let rest = rest.join(".");
    (rest.len() < name.len() && !rest.is_empty()).then_some(rest)
}

/// Restores the stored names where two have become equal: choosing one would be a guess.
fn keep_doubles(names: &mut [String], weights: &[WeightMeta]) {
    let mut seen = HashSet::with_capacity(names.len());
    let doubles: HashSet<String> = names.iter().filter(|name| !seen.insert(name.as_str())).cloned().collect();
    if doubles.is_empty() {
        return;
    }
    for (name, meta) in names.iter_mut().zip(weights) {
        if doubles.contains(name) {
            name.clone_from(&meta.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{ElementType, Shape};

    fn unwrapped(names: &[&str], owner: Owner) -> (Vec<String>, Option<String>) {
        let meta = |name: &&str| WeightMeta {
            name: (*name).to_owned(),
            shape: Shape::new(vec![1]).unwrap(),
            ty: ElementType::F32,
        };
        let mut weights: Vec<WeightMeta> = names.iter().map(meta).collect();
        let warning = unwrap(&mut weights, owner);
        (weights.into_iter().map(|meta| meta.name).collect(), warning)
    }

    #[test]
    fn wrappers_are_taken_off_alone_and_in_layers() {
        for prefix in [
            "module.",
            "_orig_mod.",
            "base_model.model.",
            "_fsdp_wrapped_module.",
            "module._orig_mod.",
            "_orig_mod.module.",
            "module.module.",
            "_forward_module.base_model.model.",
            "module._fsdp_wrapped_module._orig_mod.base_model.model.",
        ] {
            let stored = ["model.layers.0.q.weight", "lm_head.weight"].map(|name| format!("{prefix}{name}"));
            let (names, warning) = unwrapped(&[&stored[0], &stored[1]], Owner::Model);
            assert_eq!(names, ["model.layers.0.q.weight", "lm_head.weight"], "{prefix}");
            assert_eq!(warning.unwrap(), format!("all names begin with `{prefix}`, which is left out"));
        }
        let (names, warning) = unwrapped(
            &["lm_head.weight", "model._orig_mod.layers.0._checkpoint_wrapped_module.q.weight"],
            Owner::Model,
        );
        assert_eq!(names, ["lm_head.weight", "model.layers.0.q.weight"]);
        assert_eq!(
            warning.unwrap(),
            "`_orig_mod`, `_checkpoint_wrapped_module` of wrappers is left out of the names of 1 of 2 tensors: \
             `model._orig_mod.layers.0._checkpoint_wrapped_module.q.weight` is read as `model.layers.0.q.weight`"
        );
    }

    #[test]
    fn names_of_models_stay() {
        for names in [
            &["model.layers.0.q.weight", "model.norm.weight"][..],
            &["model.layers.0.q.weight", "model.lm_head.weight"],
            &["module.q.weight", "q.weight"],
            &["layers.0.norm.module.weight", "layers.0.norm.module.bias"],
            &["module.", "module.a"],
            &["_orig_mod", "a"],
            &["a_orig_mod.b"],
            &[],
        ] {
            assert_eq!(
                unwrapped(names, Owner::Model),
                (names.iter().map(ToString::to_string).collect(), None)
            );
        }
        let peft = ["base_model.model.q.lora_A.weight", "base_model.model.q.lora_B.weight"];
        assert_eq!(unwrapped(&peft, Owner::Adapter).1, None);
        let (names, warning) = unwrapped(&["model.model.w", "model.lm_head.w"], Owner::Model);
        assert_eq!((&*names[0], &*names[1], warning.is_some()), ("model.w", "lm_head.w", true));
    }

    #[test]
    fn two_names_that_become_one_stay_apart() {
        let (names, warning) = unwrapped(&["_orig_mod.a.w", "a.w", "_orig_mod.b.w"], Owner::Model);
        assert_eq!(names, ["_orig_mod.a.w", "a.w", "b.w"]);
        assert!(warning.unwrap().contains("of 1 of 3 tensors: `_orig_mod.b.w` is read as `b.w`"));
    }
}
