//! Tensors that no entry of a card maps: recognizes training leftovers, and finds a pattern for the others.

use std::collections::HashSet;

use gguf_checkpoint::pieces::why;
use gguf_core::WeightMeta;
use regex::escape;

use crate::mapping::matching::kind_of;

/// Endings of text-generation classes: a `score` head does not belong to their models.
const OF_TEXT: [&str; 2] = ["ForCausalLM", "LMHeadModel"];
/// Maximum number of kinds of names in a pattern.
const MAX_KINDS: usize = 4;

/// Returns true if a group of the table of pieces has a name.
fn is_row(group: &str, name: &str) -> bool {
    why(group, name).is_some()
}

/// Returns true for training leftovers next to a model of this class.
pub(crate) fn is_of_training(name: &str, class: &str) -> bool {
    let first = name.split('.').next().unwrap_or_default();
    let is_score = first == "score" && OF_TEXT.iter().any(|end| class.ends_with(end));
    is_score
        || is_row("first part of a training's tensor", first)
        || name.split('.').any(|part| is_row("part of a training's tensor", part))
}

/// Returns true for buffers whose names cards do not list.
pub(crate) fn is_buffer(name: &str) -> bool {
    name.rsplit('.').next().is_some_and(|last| is_row("last part of a buffer", last))
}

pub(crate) fn is_unmerged(name: &str) -> bool {
    name.split('.').any(|part| is_row("part of an adapter's tensor", part))
}

/// Returns the first name of a tensor inside of a module with a matrix, and the matrix: what a linear layer has in addition
/// changes what it computes, so the layer without it is another one. Biases have checks of their own.
pub(crate) fn within_matrix(names: &[&str], weights: &[WeightMeta]) -> Option<(String, String)> {
    let matrices: HashSet<&str> =
        weights.iter().filter(|meta| meta.shape.rank() > 1).map(|meta| meta.name.as_str()).collect();
    names.iter().filter(|name| name.rsplit('.').next() != Some("bias")).find_map(|name| {
        let mut around = name.match_indices('.').map(|(at, _)| format!("{}.weight", &name[..at]));
        let matrix = around.find(|matrix| matrix != name && matrices.contains(matrix.as_str()))?;
        Some(((*name).to_owned(), matrix))
    })
}

/// Returns a regular expression that matches exactly these names among all names of a checkpoint. `None` for names with
/// a single quote, because a hint passes the expression to a shell in single quotes.
pub(crate) fn pattern(names: &[&str], all: &[&str]) -> Option<String> {
    if names.iter().any(|name| name.contains('\'')) {
        return None;
    }
    let own: HashSet<&str> = names.iter().copied().collect();
    let others: Vec<&str> = all.iter().copied().filter(|name| !own.contains(name)).collect();
    let (first, rest) = names.split_first()?;
    let parts: Vec<&str> = first.split('.').collect();
    // Common prefix up to a dot; a single name is matched as a whole.
    let n_common = (0..parts.len().saturating_sub(1)).rev().find(|n| {
        let prefix = parts[..=*n].join(".") + ".";
        rest.iter().all(|name| name.starts_with(&prefix))
    });
    if let Some(n_common) = n_common.filter(|_| !rest.is_empty()) {
        let prefix = parts[..=n_common].join(".") + ".";
        if !others.iter().any(|name| name.starts_with(&prefix)) {
            return Some(format!("^{}", escape(&prefix)));
        }
    }
    let has = |name: &str, word: &str| name.split('.').any(|part| part == word);
    let is_own =
        |word: &&str| rest.iter().all(|name| has(name, word)) && !others.iter().any(|name| has(name, word));
    if !rest.is_empty()
        && let Some(word) = parts.iter().filter(|word| word.parse::<u64>().is_err()).find(|word| is_own(word))
    {
        return Some(format!(r"(^|\.){}(\.|$)", escape(word)));
    }
    let mut kinds: Vec<String> = Vec::new();
    for name in names {
        let kind = kind_of(name);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
        if kinds.len() > MAX_KINDS {
            return None;
        }
    }
    if others.iter().any(|name| kinds.contains(&kind_of(name))) {
        let exact: Vec<String> = names.iter().map(|name| escape(name)).collect();
        return (names.len() <= MAX_KINDS).then(|| format!("^({})$", exact.join("|")));
    }
    let kinds: Vec<String> = kinds.iter().map(|kind| escape(kind).replace(r"\#", "[0-9]+")).collect();
    Some(match &kinds[..] {
        [one] => format!("^{one}$"),
        _ => format!("^({})$", kinds.join("|")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_of_a_training_are_told_from_a_model() {
        for name in [
            "v_head.summary.weight",
            "model.v_head.0.bias",
            "optimizer.state.0.exp_avg",
            "model.layers.0.mlp.up_proj.exp_avg_sq",
            "ema_model.layers.0.w",
            "score.weight",
            "model.layers.0.q_proj.activation_post_process.min_val",
        ] {
            assert!(is_of_training(name, "LlamaForCausalLM"), "{name}");
        }
        assert!(!is_of_training("score.weight", "LlamaForSequenceClassification"));
        for name in ["lm_head.weight", "model.layers.0.v_proj.weight", "model.layers.0.ema.weight"] {
            assert!(!is_of_training(name, "LlamaForCausalLM") && !is_unmerged(name), "{name}");
        }
        assert!(is_buffer("rope.inv_freq") && !is_buffer("rope.inv_freq_scale"));
        assert!(is_unmerged("model.layers.0.q_proj.lora_A.default.weight"));
    }

    #[test]
    fn parts_of_linear_layers_are_told_from_others() {
        let meta = |(name, dims): (&str, &[u64])| WeightMeta {
            name: name.to_owned(),
            shape: gguf_core::Shape::new(dims.to_vec()).unwrap(),
            ty: gguf_core::ElementType::F32,
        };
        let matrix: &[u64] = &[2, 2];
        let weights = [("a.q.weight", matrix), ("a.norm.weight", &[2]), ("b", matrix)].map(meta);
        for (name, is_within) in [
            ("a.q.weight_g_idx", true),
            ("a.q.rms_norm.weight", true),
            ("a.q.weight", false),
            ("a.q.bias", false),
            ("a.q_norm.weight", false),
            ("a.norm.factor", false),
            ("b.factor", false),
        ] {
            let want = is_within.then(|| (name.to_owned(), "a.q.weight".to_owned()));
            assert_eq!(within_matrix(&["x.y", name], &weights), want, "{name}");
        }
    }

    #[test]
    fn patterns_find_the_names_and_no_other() {
        let model = ["model.layers.0.q.weight", "model.layers.1.q.weight", "lm_head.weight"];
        for (names, want) in [
            (&["x.a.weight", "x.b.bias"][..], r"^x\."),
            (&["x.weight"], r"^x\.weight$"),
            (&["model.layers.0.probe.weight", "model.layers.1.probe.bias"], r"(^|\.)probe(\.|$)"),
            (&["model.layers.0.k.weight", "model.layers.1.k.weight"], r"(^|\.)k(\.|$)"),
            (
                &["model.layers.0.k#.weight", "b.weight"],
                r"^(model\.layers\.[0-9]+\.k[0-9]+\.weight|b\.weight)$",
            ),
            (&["a.w", "b.w", "c.w", "d.w"], r"(^|\.)w(\.|$)"),
            (&["model.layers.0.q.bias"], r"^model\.layers\.[0-9]+\.q\.bias$"),
            (&["model.layers.7.q.weight"], r"^(model\.layers\.7\.q\.weight)$"),
        ] {
            let all: Vec<&str> = model.iter().chain(names).copied().collect();
            let found = pattern(names, &all).unwrap();
            assert_eq!(found, want);
            if !names.iter().any(|name| name.contains('#')) {
                let regex = regex::Regex::new(&found).unwrap();
                let matched: Vec<&str> = all.iter().filter(|name| regex.is_match(name)).copied().collect();
                assert_eq!(matched, names);
            }
        }
        assert_eq!(pattern(&["a.1", "b.2", "c.3", "d.4", "e.5"], &[]), None);
        assert_eq!(pattern(&["x'; ls; '"], &["x'; ls; '", "a.w"]), None);
    }
}
