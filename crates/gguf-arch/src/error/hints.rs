//! Hints of [`ArchError`]: what its reader can do.

use std::collections::BTreeSet;

use crate::error::ArchError;
use crate::error::missing_input::{CONFIG, add_to, of_weights};
use crate::keys::origin::Origin;
use crate::language::names::is_of_head;
use gguf_checkpoint::pieces::why;
use gguf_core::Hint;
use gguf_core::text::escape;

impl Hint for ArchError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Card { problem, .. } => problem.hints(),
            Self::NoClass { model_type } => match model_type {
                Some(model_type) => vec![format!(
                    "`model_type` is `{}`; add the class it belongs to as `architectures`",
                    escape(model_type)
                )],
                None => vec!["add the model's class as `architectures`".to_owned()],
            },
            Self::NoTower { layout: Some(layout), .. } => vec![format!(
                "this class keeps the tower in a layout of its own: take the checkpoint that it was made of, whose config.json names \
                 `{layout}`"
            )],
            Self::NoTower { nearest, .. } => {
                let similar = Some(format!("similar classes: {}", nearest.join(", ")));
                let way = "a card with `kind = \"mmproj\"` describes what becomes of the towers' tensors: `--card FILE`";
                similar.filter(|_| !nearest.is_empty()).into_iter().chain([way.to_owned()]).collect()
            }
            Self::UnknownClass { by_type: Some(class), lacks: None, resembles: Some(card), .. } if card.is_all() => {
                vec![format!(
                    "all its tensors have the names of `{0}`: if the model computes as that class does, `architectures` in \
                     config.json should be [\"{0}\"]; else write a first card with `gguf-convert draft DIR > my.toml`",
                    escape(class)
                )]
            }
            Self::UnknownClass { lacks: Some(lacks), .. } => {
                vec![format!("llama.cpp has no graph of it: it lacks {lacks}")]
            }
            Self::UnknownClass { nearest, resembles, .. } => {
                let resembles = resembles.as_ref().map(|card| format!("the checkpoint is most like {card}"));
                let similar = Some(format!("similar classes: {}", nearest.join(", ")));
                let draft = "write a first card with `gguf-convert draft DIR > my.toml`, convert with `--card my.toml`";
                let list = "list all classes with `gguf-convert archs`".to_owned();
                let hints = [resembles, similar.filter(|_| !nearest.is_empty())];
                hints.into_iter().flatten().chain([list, draft.to_owned()]).collect()
            }
            Self::Unmerged { .. } => vec![
                "merge the adapter with PEFT's `merge_and_unload()`, save the model, and convert that; or save the adapter \
                 alone, which `gguf-convert merge-lora BASE ADAPTER` merges"
                    .to_owned(),
            ],
            // Known names, but not in these layers.
            Self::Leftover { names, .. } if names.iter().take(8).all(is_of_another_layer) => {
                let name = names.first().map_or("", |(name, _)| name);
                vec![format!(
                    "by config.json the layer of `{}` is one of another kind: check that config.json belongs to these weights",
                    escape(name)
                )]
            }
            Self::Leftover { names, .. } if names.iter().any(|row| of_other_program(row).is_some()) => {
                let hint = |row: &(String, Option<String>)| Some(format!("`{}` is a name of {}", escape(&row.0), of_other_program(row)?));
                names.iter().find_map(hint).into_iter().collect()
            }
            Self::AddedBias { .. } => vec![
                "convert the float checkpoint, or quantize it again without smoothing (`anti_method` of msModelSlim)".to_owned(),
            ],
            Self::NoBias { .. } => {
                vec!["no configuration of this class has it: use the checkpoint that the file was made of".to_owned()]
            }
            Self::Leftover { within: Some(pair), .. } => vec![format!(
                "`{}` is a part of the linear layer of `{}`, which without it computes something else: convert the model as it was \
                 before a program added it, in its original float weights",
                escape(&pair.0),
                escape(&pair.1)
            )],
            Self::Leftover { names, drop, .. } => {
                // With a pattern of them, they are the smaller part of the checkpoint.
                if drop.is_none() && let Some((prefix, pattern)) = beside_prefix(names) {
                    return vec![format!(
                        "the model's names begin with `{}`, which is left out if all do: `--drop '{}'` of gguf-convert leaves out \
                         the others, if they are no part of the model",
                        escape(&prefix),
                        escape(&pattern)
                    )];
                }
                let near = names.iter().filter(|row| !is_of_another_layer(row)).take(8).filter_map(|(name, nearest)| {
                    Some(format!("`{}` is nearest to `{}`", escape(name), escape(nearest.as_ref()?)))
                });
                let way = "add entries or ignore rules in a card of your own with `--card FILE`; `gguf-convert draft` writes one";
                let drop = drop.as_ref().map(|pattern| {
                    format!(
                        "if they are no part of the model, `--drop '{}'` of gguf-convert leaves them out",
                        escape(pattern)
                    )
                });
                near.chain(drop).chain([way.to_owned()]).collect()
            }
            Self::Stack { found, expected, .. } if found > expected => {
                vec!["check that config.json belongs to these weights".to_owned()]
            }
            Self::Missing { names, .. } if names.iter().any(|name| is_of_head(name)) => vec![
                "a model that was saved as the model inside (`AutoModel`) has no head: save it with its head, for instance by \
                 `AutoModelForCausalLM`; else check that all shards of the checkpoint are there"
                    .to_owned(),
            ],
            Self::Missing { cut: Some(cut), .. } => vec![format!(
                "config.json counts {} layers, and tensors of {} are there: if the others were cut off, set the number in config.json \
                 right; else check that all shards of the checkpoint are there",
                cut.counted, cut.stored
            )],
            Self::Missing { .. } | Self::Alone { .. } | Self::Stack { .. } => {
                vec!["check that all shards of the checkpoint are there".to_owned()]
            }
            Self::MissingInput(missing) => missing.hints(),
            Self::TwoEntries { .. } => {
                vec!["take one of them out in a card of your own: `\"NAME\" = false`, with `--card FILE`".to_owned()]
            }
            Self::TwoSources { first, second, .. } => {
                let (short, long) = if first.len() < second.len() { (first, second) } else { (second, first) };
                let pattern = match long.strip_suffix(short.as_str()) {
                    Some(prefix) if !prefix.is_empty() => regex::escape(prefix),
                    _ => regex::escape(long) + "$",
                };
                vec![format!(
                    "only one of them is the model's: `--drop '^{}'` of gguf-convert leaves out the other",
                    escape(&pattern)
                )]
            }
            Self::Block { gap: Some(_), n_blocks, .. } => vec![format!(
                "layers were cut out without numbering the others anew: rename them to 0 to {}, as transformers saves them",
                n_blocks.saturating_sub(1)
            )],
            Self::Block { tensor, block, n_blocks, .. } => {
                let (start, from) = match tensor.split_once(&format!(".{block}.")) {
                    Some((start, _)) => (start, from_number(*n_blocks)),
                    None => (tensor.as_str(), String::new()),
                };
                let dot = if from.is_empty() { "" } else { r"\." };
                vec![format!(
                    "set the number of layers in config.json right; or, if the blocks from {n_blocks} on are no part of the model, \
                     `--drop '^{}{dot}{from}{dot}'` of gguf-convert leaves them out",
                    escape(&regex::escape(start))
                )]
            }
            Self::Required { found, .. } if !found.is_empty() => {
                if found.iter().all(Origin::is_absent) {
                    return vec![add_to(CONFIG)];
                }
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                vec![format!(
                    "config.json has {}: if the weights are of a model that needs no other value, set it there; the runtime \
                     computes nothing else",
                    found.join(", ")
                )]
            }
            Self::ConfigValue { key, .. } => vec![format!(
                "set `{}` in config.json right, or take the file that was saved with these weights",
                escape(key)
            )],
            Self::LayerList { key, n_layers, .. } => {
                vec![format!("give `{key}` the {n_layers} entries of the layers that are stored")]
            }
            Self::RopeType { known, .. } => vec![format!("known rope types: {}", known.join(", "))],
            Self::Eval { source, .. } if source.is_absent() => vec![add_to(CONFIG)],
            Self::Op { source, .. } if source.is_absent() => vec![add_to(CONFIG)],
            Self::Op { keys, .. } if !keys.is_empty() => vec![format!(
                "config.json has {}: set what is not that of these weights, or take the file that was saved with them",
                keys.join(", ")
            )],
            Self::Required { .. } | Self::KeyValue { .. } | Self::Eval { .. } => vec![of_weights(CONFIG)],
            Self::ConfigMissing { .. } => vec![add_to(CONFIG)],
            Self::AmbiguousClass { class, .. } => vec![format!(
                "what config.json counts of layers, heads and experts tells them apart: check it against the model that this one \
                 was made of; or say in a card of your own when it takes `{}` (`when`), with `--card FILE`",
                escape(class)
            )],
            Self::NotZero { .. } => vec![
                "llama.cpp's graph of this architecture has no place for it: run this model with transformers, or convert one without it"
                    .to_owned(),
            ],
            Self::Source(_)
            | Self::Index { .. }
            | Self::Op { .. }
            | Self::Join { .. }
            | Self::Shape { .. }
            | Self::ElementType { .. }
            | Self::UnknownArch { .. }
            | Self::Option { .. }
            | Self::NoHeads
            | Self::OnlyHeads
            | Self::NoInverse { .. } => Vec::new(),
        }
    }
}

/// Returns the prefix that half of the tensors or more have in front of the model's names, and a pattern of the others.
fn beside_prefix(names: &[(String, Option<String>)]) -> Option<(String, String)> {
    let prefix_of = |(name, nearest): &(String, Option<String>)| {
        let prefix = name.strip_suffix(nearest.as_ref()?)?;
        let is_whole = prefix.len() > 1 && prefix.ends_with('.');
        (is_whole && prefix.split('.').all(|part| part.parse::<u64>().is_err())).then(|| prefix.to_owned())
    };
    let prefix = names.iter().find_map(prefix_of)?;
    let has_prefix = |part: &str| prefix.starts_with(part) && prefix[part.len()..].starts_with('.');
    // The parts of a name up to the first that is none of the prefix.
    let start = |name: &str| {
        let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
        ends.map(|end| &name[..end]).find(|part| !has_prefix(part)).map(regex::escape)
    };
    let others: Vec<&String> =
        names.iter().map(|(name, _)| name).filter(|name| !name.starts_with(&prefix)).collect();
    if others.len() * 2 > names.len() {
        return None;
    }
    let others: BTreeSet<String> = others.into_iter().filter_map(|name| start(name)).collect();
    let is_short =
        (1..=MAX_OTHERS).contains(&others.len()) && others.iter().all(|start| !start.contains('\''));
    let pattern = format!(r"^({})(\.|$)", others.into_iter().collect::<Vec<_>>().join("|"));
    is_short.then_some((prefix, pattern))
}

/// Maximum number of parts in a pattern of tensors beside the model's.
const MAX_OTHERS: usize = 4;

/// Returns a pattern of the numbers that are not below another one.
fn from_number(number: u64) -> String {
    let digits = number.to_string();
    let last = digits.len() - 1;
    let larger = digits.char_indices().rev().filter_map(|(at, digit)| {
        let first = char::from_u32(u32::from(digit) + u32::from(at < last))?;
        first.is_ascii_digit().then(|| format!("{}[{first}-9]{}", &digits[..at], "[0-9]".repeat(last - at)))
    });
    let all: Vec<String> = larger.chain([format!("[0-9]{{{},}}", last + 2)]).collect();
    format!("({})", all.join("|"))
}

/// Returns the program that names a tensor so, with what to do.
fn of_other_program((name, _): &(String, Option<String>)) -> Option<&'static str> {
    why("name of another program", name)
}

/// Returns true for a name that a condition of the card leaves out: its nearest name is itself.
fn is_of_another_layer((name, nearest): &(String, Option<String>)) -> bool {
    nearest.as_ref() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_another_one_on_match() {
        for from in [0, 2, 9, 10, 28, 99, 100, 195] {
            let pattern = regex::Regex::new(&format!("^{}$", from_number(from))).unwrap();
            for number in 0..2000 {
                assert_eq!(pattern.is_match(&number.to_string()), number >= from, "{from}: {number}");
            }
        }
    }

    #[test]
    fn names_beside_a_prefix_have_a_pattern() {
        let found = |names: &[(&str, Option<&str>)]| {
            let names: Vec<_> = names
                .iter()
                .map(|(name, nearest)| ((*name).to_owned(), nearest.map(str::to_owned)))
                .collect();
            beside_prefix(&names)
        };
        let norm = ("net.model.norm.weight", Some("model.norm.weight"));
        let head = ("net.lm_head.weight", Some("lm_head.weight"));
        let rest = ("net.model.layers.0.x", None);
        let loss = ("loss_fn.weight", Some("lm_head.weight"));
        let others = [loss, norm, head, rest, ("train_acc.total", None), ("step", None)];
        assert_eq!(found(&[loss, norm, ("step", None)]), None);
        let pattern = r"^(loss_fn|step|train_acc)(\.|$)";
        assert_eq!(found(&others), Some(("net.".to_owned(), pattern.to_owned())));
        let within = [("a.net.norm.weight", Some("norm.weight")), ("a.loss.x.y", None)];
        assert_eq!(found(&within), Some(("a.net.".to_owned(), r"^(a\.loss)(\.|$)".to_owned())));
        assert_eq!(found(&[norm]), None);
        assert_eq!(found(&[("blocks.0.norm.weight", Some("norm.weight")), ("x.y", None)]), None);
        assert_eq!(found(&[("model.qproj.weight", Some("model.q_proj.weight")), ("x.y", None)]), None);
    }
}
