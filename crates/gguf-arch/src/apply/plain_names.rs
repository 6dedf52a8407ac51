//! Finds one change of all names of a checkpoint (a prefix removed or added, or a part removed) after which the card
//! knows every tensor.

use std::collections::{BTreeSet, HashMap, HashSet};

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use crate::apply::assign::experts::is_of_experts;
use crate::apply::resolve::chosen;
use crate::judge::kinds::kinds;
use crate::judge::similar::lenient_scope;
use crate::language::names::{SUFFIXES, shared_rewrite};
use crate::mapping::DropReason;
use crate::mapping::heads::HeadRule;
use crate::mapping::inputs::Inputs;
use crate::mapping::leftover::is_of_training;
use crate::mapping::matching::{IgnoreStage, Matcher, kind_of};
use crate::mapping::options::ResolveOptions;
use crate::read::is_multimodal;
use crate::read::schema::{Card, CardKind};
use crate::registry::{Registry, detect, model_types};
use gguf_core::WeightMeta;

/// Maximum number of kinds of names that are examined: more than any model has.
const MAX_KINDS: usize = 1000;
/// Maximum number of parts in a removed prefix, and of parts inside names that are tried for removal.
const MAX_PARTS: usize = 4;
const MAX_WORDS: usize = 8;
/// Maximum number of a card's prefixes that are tried in front of names.
const MAX_ADDED: usize = 3;

/// Change of tensor names after which the card knows them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainNames {
    /// New names by old ones; unchanged names are not listed.
    names: HashMap<String, String>,
    change: NameChange,
    /// Description of the change for the user.
    pub warning: String,
}

impl PlainNames {
    /// Returns the new name of a weight.
    pub fn name(&self, stored: &str) -> String {
        self.names.get(stored).map_or(stored, String::as_str).to_owned()
    }

    /// Returns the new name of a stored tensor from which weights are assembled.
    pub fn member(&self, stored: &str) -> String {
        self.change.apply(stored, !stored.starts_with(&self.change.before))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NameChange {
    removed: String,
    /// Part between dots that is removed.
    word: Option<String>,
    /// Prefix that is added to names that the card does not know.
    before: String,
}

impl NameChange {
    fn apply(&self, name: &str, is_unknown: bool) -> String {
        let mut name = name.strip_prefix(self.removed.as_str()).unwrap_or(name).to_owned();
        if let Some(word) = &self.word {
            let parts: Vec<&str> = name.split('.').filter(|part| part != word).collect();
            name = parts.join(".");
        }
        if is_unknown { format!("{}{name}", self.before) } else { name }
    }

    fn warning(&self, changed: &[(&str, String)], n_all: usize) -> String {
        let Some((old, new)) = changed.first() else { return String::new() };
        let which = if changed.len() == n_all {
            "all names".to_owned()
        } else {
            format!("the names of {} of {n_all} tensors", changed.len())
        };
        let what = match (self.removed.is_empty(), &self.word, self.before.is_empty()) {
            (false, _, true) => format!("{which} begin with `{}`, which is left out", self.removed),
            (true, Some(word), true) => format!("`{word}.` is left out of {which}"),
            (true, None, false) => format!("{which} lack `{}`, which is put before them", self.before),
            _ => format!("{which} begin otherwise than the model's"),
        };
        format!("{what}: `{old}` is read as `{new}`")
    }
}

/// Finds the change of a text model's names after which its card knows them all; `None` if the card knows them already,
/// or no simple change helps.
pub fn plain_names(registry: &Registry, inputs: &Inputs<'_>, options: &ResolveOptions) -> Option<PlainNames> {
    if registry.kind() != CardKind::Text || options.mistral_format {
        return None;
    }
    let config = detect::with_text_config(inputs.config);
    let (class, _) = model_types::recognized(registry, detect::class_of(&config), &config).ok()?;
    let mut kinds = kinds(inputs.weights);
    kinds.truncate(MAX_KINDS);
    let few: Vec<&WeightMeta> = kinds.values().filter_map(|kind| inputs.weights.get(kind.first)).collect();
    // If all weights are averages (`ema.`), they are the model.
    let is_left = |meta: &&WeightMeta| is_of_training(&meta.name, &class);
    let few: Vec<&WeightMeta> =
        if few.iter().all(is_left) { few } else { few.into_iter().filter(|meta| !is_left(meta)).collect() };
    let search = NameSearch { registry, inputs, options, config: &config, class: &class, few: &few };
    let (card, fits) = search.fits(&|name| name.to_owned())?;
    let unknown = few.iter().zip(&fits).filter(|(_, fit)| **fit == NameLookup::Unknown);
    let unknown: Vec<&str> = unknown.map(|(meta, _)| meta.name.as_str()).collect();
    if unknown.is_empty() {
        return None;
    }
    let unknown_kinds: HashSet<String> = unknown.iter().map(|name| kind_of(name)).collect();
    let is_unknown = |name: &str| unknown_kinds.contains(&kind_of(name));
    let change = changes(&unknown).into_iter().find_map(|change| {
        let helps = |change: &NameChange| {
            let Some((_, now)) = search.fits(&|name| change.apply(name, is_unknown(name))) else {
                return false;
            };
            // A change after which all names are merely left out does not show that the names are right.
            let mut before_and_now = fits.iter().zip(&now);
            now.iter().all(|fit| *fit != NameLookup::Unknown)
                && before_and_now
                    .any(|(before, now)| (*before, *now) == (NameLookup::Unknown, NameLookup::Known))
        };
        let rest: Vec<String> = unknown.iter().map(|name| change.apply(name, false)).collect();
        let added = added(card, &rest).into_iter().map(|before| NameChange { before, ..change.clone() });
        std::iter::once(change.clone()).chain(added).find(|change| helps(change))
    })?;
    let mut seen = HashSet::with_capacity(inputs.weights.len());
    let mut changed: Vec<(&str, String)> = Vec::new();
    for meta in inputs.weights {
        let new = change.apply(&meta.name, is_unknown(&meta.name));
        if !seen.insert(new.clone()) {
            return None;
        }
        if new != meta.name {
            changed.push((&meta.name, new));
        }
    }
    let warning = change.warning(&changed, inputs.weights.len());
    let names = changed.into_iter().map(|(old, new)| (old.to_owned(), new)).collect();
    Some(PlainNames { names, change, warning })
}

/// Result of looking up a name in a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameLookup {
    /// The card maps the name.
    Known,
    /// The name is left out by a rule about other modalities, or by a conditional one.
    LeftOut,
    Unknown,
}

/// Checkpoint whose names are looked up in cards.
struct NameSearch<'a> {
    registry: &'a Registry,
    inputs: &'a Inputs<'a>,
    options: &'a ResolveOptions,
    config: &'a Map<String, Json>,
    class: &'a str,
    /// One weight of each kind.
    few: &'a [&'a WeightMeta],
}

impl<'a> NameSearch<'a> {
    /// Returns the card of the class and its result for each changed name; `None` without a card.
    fn fits(&self, change: &dyn Fn(&str) -> String) -> Option<(&'a Card, Vec<NameLookup>)> {
        let few: Vec<WeightMeta> =
            self.few.iter().map(|meta| WeightMeta { name: change(&meta.name), ..(*meta).clone() }).collect();
        if few.iter().any(|meta| meta.name.is_empty()) {
            return None;
        }
        let inputs = Inputs { weights: &few, stored: &[], values: None, ..*self.inputs };
        let card = chosen(self.registry, self.class, self.config, &inputs, *self.options).ok()?;
        let scope = lenient_scope(card, self.class, self.config, &inputs);
        let matcher = Matcher::lenient(card, &scope);
        let heads = HeadRule::of(card, self.options.heads, self.config, &scope).ok();
        // Rules about content have no content to check here.
        let is_left_out = |name: &str| {
            let rules = card.ignore.iter().filter(|rule| !rule.require_zero && rule.drop_if_equal.is_none());
            rules.filter_map(|rule| Some((rule, rule.pattern.matches(name)?))).any(|(rule, captures)| {
                matches!(matcher.holds(rule.pattern.text(), rule.when.as_ref(), captures), Ok(true))
            })
        };
        let fit = |meta: &WeightMeta| {
            let name = shared_rewrite(&meta.name);
            if !card.keep_multimodal && is_multimodal(&name) {
                return NameLookup::LeftOut;
            }
            let Ok(name) = matcher.rewritten(name) else { return NameLookup::Unknown };
            let is_ignored = |asked| matches!(matcher.ignored(&meta.name, &name, asked), Ok(Some(_)));
            let is_known = matches!(matcher.entry_of(&meta.name, &name), Ok(Some(_)))
                || heads.as_ref().is_some_and(|heads| heads.left_out(&name) == Some(DropReason::DraftHead))
                || is_ignored(IgnoreStage::AfterEntries);
            if is_known {
                NameLookup::Known
            } else if is_left_out(&name) {
                NameLookup::LeftOut
            } else {
                NameLookup::Unknown
            }
        };
        Some((card, few.iter().map(fit).collect()))
    }
}

/// Returns candidate changes for unknown names: none, a common prefix removed, a common part removed.
fn changes(unknown: &[&str]) -> Vec<NameChange> {
    let mut changes = vec![NameChange::default()];
    let Some((first, rest)) = unknown.split_first() else { return changes };
    let parts: Vec<&str> = first.split('.').collect();
    for n in 1..parts.len().min(MAX_PARTS + 1) {
        let removed = parts[..n].join(".") + ".";
        if !rest.iter().all(|name| name.starts_with(&removed)) {
            break;
        }
        changes.push(NameChange { removed, ..NameChange::default() });
    }
    let is_in_all = |word: &&str| rest.iter().all(|name| name.split('.').any(|part| part == *word));
    let words = parts[..parts.len() - 1].iter().filter(|part| part.parse::<u64>().is_err()).copied();
    // Matrices of experts are no others without the name of their stack.
    let words = words.filter(is_in_all).filter(|word| !is_of_experts(word)).take(MAX_WORDS);
    changes.extend(words.map(|word| NameChange { word: Some(word.to_owned()), ..NameChange::default() }));
    changes
}

/// Returns prefixes that turn these names into names of the card, the most frequent first.
fn added(card: &Card, names: &[String]) -> Vec<String> {
    let patterns: Vec<String> = card
        .entries
        .iter()
        .flat_map(|entry| &entry.patterns)
        .map(|pattern| {
            ["{bid}", "{eid}", "{xid}"]
                .iter()
                .fold(pattern.text().to_owned(), |text, own| text.replace(own, "#"))
        })
        .collect();
    let mut votes: IndexMap<String, usize> = IndexMap::new();
    for name in names {
        let kind = kind_of(&shared_rewrite(name));
        let bare = SUFFIXES.into_iter().find_map(|suffix| kind.strip_suffix(suffix)).unwrap_or(&kind);
        let prefixes: BTreeSet<&str> = patterns
            .iter()
            .flat_map(|pattern| [pattern.strip_suffix(bare), pattern.strip_suffix(kind.as_str())])
            .flatten()
            .filter(|prefix| prefix.ends_with('.') && !prefix.contains('#'))
            .collect();
        for prefix in prefixes {
            *votes.entry(prefix.to_owned()).or_default() += 1;
        }
    }
    let mut votes: Vec<(String, usize)> = votes.into_iter().collect();
    votes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    votes.into_iter().take(MAX_ADDED).map(|vote| vote.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{ElementType, Shape};

    const MODEL: [&str; 11] = [
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.norm.weight",
    ];

    fn found(names: &[String]) -> Option<(Vec<String>, String)> {
        found_as("LlamaForCausalLM", names)
    }

    fn found_as(class: &str, names: &[String]) -> Option<(Vec<String>, String)> {
        let config = serde_json::json!({
            "architectures": [class], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4,
            "num_attention_heads": 1, "intermediate_size": 4, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
        });
        let Json::Object(config) = config else { panic!("an object") };
        let meta = |name: &String| WeightMeta {
            name: name.clone(),
            shape: Shape::new(vec![4, 4]).unwrap(),
            ty: ElementType::F32,
        };
        let weights: Vec<WeightMeta> = names.iter().map(meta).collect();
        let inputs = Inputs::of_headers(&config, &weights);
        let plain = plain_names(&Registry::embedded().unwrap(), &inputs, &ResolveOptions::default())?;
        Some((names.iter().map(|name| plain.name(name)).collect(), plain.warning))
    }

    #[test]
    fn what_stands_before_all_names_is_taken_off() {
        for prefix in
            ["policy.", "llm.", "ema.", "actor.module.", "pretrained_model.", "transformer.", "model."]
        {
            let stored: Vec<String> = MODEL.iter().map(|name| format!("{prefix}{name}")).collect();
            let (names, warning) = found(&stored).unwrap();
            assert_eq!(names, MODEL, "{prefix}");
            assert!(
                warning.starts_with(&format!("all names begin with `{prefix}`, which is left out: ")),
                "{warning}"
            );
        }
        // Training leftovers are not considered.
        let mut stored: Vec<String> = MODEL.iter().map(|name| format!("policy.{name}")).collect();
        stored.push("v_head.summary.weight".to_owned());
        assert_eq!(found(&stored).unwrap().0[..11], MODEL);
        // Tensors of other modalities are not considered either; they are known by their prefix.
        stored.push("policy.resampler.query".to_owned());
        let (names, _) = found(&stored).unwrap();
        assert_eq!((&names[..11], names[12].as_str()), (&MODEL.map(str::to_owned)[..], "resampler.query"));
    }

    #[test]
    fn wrapped_classes_have_plain_names() {
        let stored: Vec<String> = MODEL.iter().map(|name| format!("policy.{name}")).collect();
        for class in ["FSDPLlamaForCausalLM", "LlamaForCausalLMWithValueHead", "PeftModelForCausalLM"] {
            assert_eq!(found_as(class, &stored).unwrap().0, MODEL, "{class}");
        }
    }

    #[test]
    fn what_lacks_before_names_is_added() {
        let stored: Vec<String> = MODEL.iter().map(|name| name.replacen("model.", "", 1)).collect();
        let (names, warning) = found(&stored).unwrap();
        assert_eq!(names, MODEL);
        assert!(warning.starts_with("all names lack `model.`, which is put before them: "), "{warning}");
        let mut stored = stored;
        stored.push("lm_head.weight".to_owned());
        let (names, warning) = found(&stored).unwrap();
        assert_eq!(names.last().unwrap(), "lm_head.weight");
        assert!(warning.starts_with("the names of 11 of 12 tensors lack `model.`"), "{warning}");
    }

    #[test]
    fn words_inside_names_are_taken_out() {
        let stored: Vec<String> =
            MODEL.iter().map(|name| name.replacen("_proj.", "_proj.base_layer.", 1)).collect();
        let (names, warning) = found(&stored).unwrap();
        assert_eq!(names, MODEL);
        assert!(
            warning.starts_with("`base_layer.` is left out of the names of 7 of 11 tensors: "),
            "{warning}"
        );
    }

    #[test]
    fn names_that_are_known_or_beyond_help_stay() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(found(&of(&MODEL)), None);
        let mut stored = of(&MODEL);
        stored.push("model.layers.0.mlp.probe.weight".to_owned());
        assert_eq!(found(&stored), None);
        // Both variants exist, so the choice would be a guess.
        let mut stored = of(&MODEL);
        stored.extend(MODEL.iter().map(|name| format!("policy.{name}")));
        assert_eq!(found(&stored), None);
    }
}
