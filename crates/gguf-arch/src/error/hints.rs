//! Hints of [`ArchError`]: what its reader can do.

use crate::error::ArchError;
use crate::error::missing_input::{CONFIG, add_to, of_weights};
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
            Self::Block { tensor, block, .. } => {
                let start = tensor.split_inclusive('.').take_while(|part| part.parse::<u64>().is_err()).collect::<String>();
                let part = format!("{block}.");
                let start = tensor.split_once(&format!(".{part}")).map_or(start, |(start, _)| format!("{start}.{part}"));
                vec![format!(
                    "set the number of layers in config.json right; or, if the block is no part of the model, `--drop '^{}'` of \
                     gguf-convert leaves it out",
                    escape(&regex::escape(&start))
                )]
            }
            Self::Required { found, .. } if !found.is_empty() => vec![format!(
                "config.json has {}: if the weights are of a model that needs no other value, set it there; the runtime computes \
                 nothing else",
                found.join(", ")
            )],
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
            Self::Source(_)
            | Self::NotZero { .. }
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

/// Returns the program that names a tensor so, with what to do.
fn of_other_program((name, _): &(String, Option<String>)) -> Option<&'static str> {
    why("name of another program", name)
}

/// Returns true for a name that a condition of the card leaves out: its nearest name is itself.
fn is_of_another_layer((name, nearest): &(String, Option<String>)) -> bool {
    nearest.as_ref() == Some(name)
}
