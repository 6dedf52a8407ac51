//! Ranks the cards that a checkpoint without a card resembles.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use crate::error::similarity::Similarity;
use crate::judge::facts;
use crate::judge::kinds::{TensorKind, block_prefix, kinds};
use crate::language::eval::Scope;
use crate::language::names::Captures;
use crate::mapping::inputs::Inputs;
use crate::mapping::matching::{IgnoreStage, Matcher};
use crate::mapping::options::ResolveOptions;
use crate::mapping::scope::scope;
use crate::read::schema::{Card, Optional};
use crate::registry::Registry;
use gguf_core::WeightMeta;

/// Maximum number of kinds of tensors that are compared: more than any model has, fewer than an untrusted one may name.
const MAX_KINDS: usize = 1000;

/// Keys of `config.json` that do not depend on the architecture.
const COMMON_KEYS: &[&str] = &[
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "dtype",
    "embedding_dropout",
    "eos_token_id",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "max_length",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "quantization_config",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "text_config",
    "tie_word_embeddings",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "vision_config",
    "audio_config",
];

/// Returns the cards by the part of the checkpoint that they know, the best first. Variants and abstract cards are left
/// out. `config` has its text part under `text_config`.
pub fn similar(
    registry: &Registry,
    class: &str,
    config: &Map<String, Json>,
    inputs: &Inputs<'_>,
) -> Vec<Similarity> {
    let mut kinds = kinds(inputs.weights);
    kinds.truncate(MAX_KINDS);
    let names: Vec<&str> = kinds.values().map(|kind| kind.first_name.as_str()).collect();
    let prefix = block_prefix(kinds.keys().map(String::as_str));
    let keys = own_keys(config);
    // One tensor of each kind is enough for a card's conditions.
    let few: Vec<WeightMeta> =
        kinds.values().filter_map(|kind: &TensorKind| inputs.weights.get(kind.first).cloned()).collect();
    let inputs = Inputs { weights: &few, stored: &[], values: None, ..*inputs };

    let cards = registry.cards().iter().filter(|card| !card.is_abstract && card.variant.is_none());
    let mut all: Vec<(Similarity, bool, [usize; 3])> = cards
        .map(|card| {
            let scope = lenient_scope(card, class, config, &inputs);
            let (n_kinds, rename, n_idle) = match_names(card, &scope, &names, prefix);
            let read = facts::config_keys(card);
            let similarity = Similarity {
                card: card.gguf.clone(),
                n_kinds,
                of_kinds: names.len(),
                n_config_keys: keys.iter().filter(|key| read.contains(**key)).count(),
                of_config_keys: keys.len(),
                is_model_type: model_types(config).any(|model_type| {
                    card.defaults.contains_key(model_type) || card.gguf == model_type.replace('_', "-")
                }),
                rename,
            };
            let by_name = card.classes.iter().map(|own| common_start(own, class)).max().unwrap_or(0);
            // A card whose conditions do not hold converts no such model, whatever it knows.
            let holds = |condition| matches!(scope.holds(Some(condition), Captures::default()), Ok(true));
            let is_refused = !card.require.iter().all(|(condition, _)| holds(condition));
            (similarity, is_refused, [n_idle, by_name, card.classes.len()])
        })
        .collect();
    all.sort_by_cached_key(|(card, is_refused, [n_idle, by_name, n_classes])| {
        let more = |n: usize| std::cmp::Reverse(n);
        let is_other = (!card.is_model_type, *is_refused);
        let rank = (more(card.n_kinds), is_other, more(card.n_config_keys), card.rename.is_some());
        // Ties are decided by a similar class name, then by the number of classes.
        (rank, more(*by_name), more(*n_classes), *n_idle, card.card.clone())
    });
    all.into_iter().map(|(card, ..)| card).collect()
}

/// Returns the length of the common start of two class names; a start of fewer than 4 characters counts as 0.
fn common_start(a: &str, b: &str) -> usize {
    let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    if common < 4 { 0 } else { common }
}

/// Returns the scope of a card's expressions; without defaults if they cannot be computed.
pub(crate) fn lenient_scope<'a>(
    card: &'a Card,
    class: &str,
    config: &Map<String, Json>,
    inputs: &Inputs<'a>,
) -> Scope<'a> {
    let whole = scope(card, class, config, inputs, ResolveOptions::default(), 0);
    whole.unwrap_or_else(|_| {
        let mut config = config.clone();
        if let Some(Json::Object(text)) = config.get("text_config").cloned() {
            config.extend(text);
        }
        Scope { config, lets: Some(&card.lets), tables: Some(&card.tables), ..Scope::default() }
    })
}

/// Counts the names that a card's entries match, as they are or under the card's own block prefix. Returns this number,
/// the replacement if one was needed, and the number of required entries that match nothing.
fn match_names(
    card: &Card,
    scope: &Scope<'_>,
    names: &[&str],
    prefix: Option<&str>,
) -> (usize, Option<(String, String)>, usize) {
    let matcher = Matcher::lenient(card, scope);
    let count = |rename: Option<&(String, String)>| {
        let mut used = BTreeSet::new();
        let n_known = names.iter().filter(|name| {
            let name = renamed(name, rename);
            let Ok(name) = matcher.rewritten(name) else { return false };
            let found = matcher.entry_of(&name, &name).ok().flatten();
            used.extend(found.as_ref().map(|found| found.0));
            found.is_some() || matches!(matcher.ignored(&name, &name, IgnoreStage::AfterEntries), Ok(Some(_)))
        });
        let n_known = n_known.count();
        (
            n_known,
            card.entries
                .iter()
                .enumerate()
                .filter(|(n, e)| e.optional == Optional::Never && !used.contains(n))
                .count(),
        )
    };
    let (plain, n_idle) = count(None);
    let rename = prefix.and_then(|from| rename_of(from, card_prefix(card)?));
    if let Some(rename) = rename.filter(|_| plain < names.len()) {
        let (n_known, n_idle) = count(Some(&rename));
        if n_known > plain {
            return (n_known, Some(rename), n_idle);
        }
    }
    (plain, None, n_idle)
}

/// Returns the text before the block number in most of a card's patterns.
pub(crate) fn card_prefix(card: &Card) -> Option<&str> {
    let mut votes: IndexMap<&str, usize> = IndexMap::new();
    for pattern in card.entries.iter().flat_map(|entry| &entry.patterns) {
        if let Some((prefix, _)) = pattern.text().split_once("{bid}") {
            *votes.entry(prefix).or_default() += 1;
        }
    }
    votes.into_iter().rev().max_by_key(|vote| vote.1).map(|vote| vote.0)
}

/// Returns the replacement at the start of names that gives blocks the card's prefix. If the checkpoint's prefix only
/// has additional text in front, only that text is removed.
fn rename_of(from: &str, to: &str) -> Option<(String, String)> {
    if from == to {
        return None;
    }
    Some(match from.strip_suffix(to) {
        Some(outer) => (outer.to_owned(), String::new()),
        None => (from.to_owned(), to.to_owned()),
    })
}

/// Returns a name with its start replaced.
pub(crate) fn renamed(name: &str, rename: Option<&(String, String)>) -> String {
    match rename.and_then(|(from, to)| Some((name.strip_prefix(from.as_str())?, to))) {
        Some((rest, to)) => format!("{to}{rest}"),
        None => name.to_owned(),
    }
}

/// Returns `model_type` of the text part and of the model.
pub(crate) fn model_types(config: &Map<String, Json>) -> impl Iterator<Item = &str> {
    let text = config.get("text_config").and_then(Json::as_object);
    let types = text.into_iter().chain([config]).filter_map(|part| part.get("model_type"));
    types.filter_map(Json::as_str)
}

/// Returns the non-null keys of the text model's configuration that may depend on the architecture.
pub(crate) fn own_keys(config: &Map<String, Json>) -> Vec<&str> {
    let text = config.get("text_config").and_then(Json::as_object);
    let parts = text.map_or(config, |text| text);
    let is_own = |(key, value): &(&String, &Json)| !value.is_null() && !COMMON_KEYS.contains(&key.as_str());
    parts.iter().filter(is_own).map(|(key, _)| key.as_str()).collect()
}
