//! Modules that the models of an architecture have (`modules.tsv`): others show another model, or a newer version.

use super::alike::split;
use super::layout::words;

/// Rows of an architecture and a pattern of modules' names.
const TABLE: &str = include_str!("modules.tsv");

/// Returns the tensors of which no known model of the architecture has the module; none without rows for it.
pub(super) fn unknown<'n>(arch: &str, names: &[&'n str]) -> Vec<&'n str> {
    // One class of networks.
    let arch = if arch == "sd1" { "sdxl" } else { arch };
    let rows = TABLE.lines().filter_map(|line| line.split_once('\t'));
    let patterns: Vec<&str> = rows.filter(|row| row.0 == arch).map(|row| row.1).collect();
    let is_known = |name: &&str| patterns.is_empty() || patterns.iter().any(|pattern| is_of(pattern, name));
    names.iter().copied().filter(|name| !is_known(name)).collect()
}

/// Returns true if a tensor belongs to a module that the pattern describes.
fn is_of(pattern: &str, name: &str) -> bool {
    let module = [".weight", ".bias"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    match pattern.strip_suffix(".*") {
        Some(start) => split(start, name).is_some(),
        None => words(pattern, module).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Each tensor of the bundled models is of a known module, and each row is that of an architecture.
    #[test]
    fn known_models_have_known_modules() {
        let cards = crate::diffusion::DiffusionCards::embedded().unwrap();
        for row in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let (arch, pattern) = row.split_once('\t').unwrap();
            assert!(cards.by_gguf(arch).is_some() && !pattern.is_empty(), "{row}");
        }
        let table = include_str!("../../../../fixtures/diffusers.tsv");
        let mut models: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for row in table.lines().map(|line| line.split('\t').collect::<Vec<_>>()) {
            models.entry(row[0]).or_default().insert(row[3]);
        }
        for (model, names) in models {
            let names: Vec<&str> = names.into_iter().collect();
            let crate::diffusion::Recognition::Card(card) = cards.recognize(&names) else {
                panic!("{model}")
            };
            assert_eq!(unknown(&card.gguf, &names), Vec::<&str>::new(), "{model}");
        }
    }

    #[test]
    fn modules_of_other_models_are_found() {
        for (arch, name, is_known) in [
            ("flux", "double_blocks.18.img_attn.qkv.weight", true),
            ("flux", "double_blocks.18.img_attn.pulid.weight", false),
            ("flux", "single_blocks.0.norm.query_norm.scale", true),
            ("flux", "double_blocks.0.img_attn.norm.key_norm.weight", true),
            ("flux", "double_blocks.0.txt_mlp.gate_proj.bias", true),
            ("flux", "distilled_guidance_layer.0.norms.1.scale", true),
            ("flux", "img_norm.weight", false),
            ("hyvid", "single_blocks.3.norm.query_norm.weight", true),
            ("sd1", "down_blocks.0.temp_convs.0.conv1.0.weight", false),
            ("sd1", "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight", true),
            ("sdxl", "input_blocks.1.0.time_stack.in_layers.0.weight", true),
            ("ltxv", "transformer_blocks.0.audio_attn1.to_q.weight", true),
            ("ltxv", "audio_patchify_proj.weight", true),
            ("ltxv", "time_text_embed.weight", false),
            ("other", "anything.weight", true),
        ] {
            assert_eq!(unknown(arch, &[name]).is_empty(), is_known, "{arch} {name}");
        }
    }
}
