//! Embedding and output head of a model: compares the configuration with the tensors of the checkpoint.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::attributes::{AttributeDefault, Attributes};
use crate::error::ArchError;
use crate::error::tie::Tie;
use crate::language::eval::Scope;
use crate::mapping::{Dropped, OutputSpec, TensorContent};
use crate::read::base;
use crate::read::schema::Card;
use crate::registry::towers::WEIGHT;
use gguf_core::WeightMeta;

/// Name of the embedding tensor in GGUF, without ending.
pub(crate) const EMBEDDING: &str = "token_embd";
/// Name of the output head tensor in GGUF, without ending.
pub(crate) const HEAD: &str = "output";
/// Name of the head of classifiers, also of rerankers, whose head it is made of.
const CLASSIFIER: &str = "cls.output";
/// Usual name of the head in checkpoints, for architectures that have no entry for it because it is always tied.
pub(crate) const USUAL_HEAD: &str = "lm_head.weight";

/// Returns true if a tensor of the file, or the target of an entry, has this name, with the ending `.weight` or
/// without.
pub(crate) fn is_named(target: &str, tensor: &str) -> bool {
    target.strip_suffix(WEIGHT).unwrap_or(target) == tensor
}

/// Returns whether embedding and head are tied: by `config.json`, by its text part, or by the default of the model
/// type. `None` if none of them tells.
pub(crate) fn declared_tie(config: &Map<String, Json>, text: &Map<String, Json>) -> Option<bool> {
    let maps = [config, text];
    let explicit = maps.iter().find_map(|map| map.get("tie_word_embeddings").and_then(Json::as_bool));
    let mut types = maps.iter().filter_map(|map| map.get("model_type").and_then(Json::as_str));
    explicit.or_else(|| types.any(|own| base().tied.iter().any(|tied| tied == own)).then_some(true))
}

/// Returns whether embedding and head are tied in a known class of transformers if the configuration does not tell.
pub(crate) fn default_tie(config: &Map<String, Json>) -> Option<bool> {
    match Attributes::of_text(config)?.default_of("tie_word_embeddings") {
        Some(AttributeDefault::Value(tied)) => tied.as_bool(),
        _ => None,
    }
}

/// Compares the stored embedding and head with the configuration. `heads` are the weights that are named like a head.
pub(crate) fn check(
    (card, class): (&Card, &str),
    declared: Option<bool>,
    scope: &Scope<'_>,
    weights: &[WeightMeta],
    (outputs, dropped): (&[OutputSpec], &[Dropped]),
    heads: &[usize],
) -> Result<Option<Tie>> {
    let source = |tensor: &str| {
        let output = outputs.iter().find(|output| is_named(&output.name, tensor))?;
        match &output.content {
            TensorContent::Sources(assembly) => match assembly.sources.as_slice() {
                [one] => Some(one.weight),
                _ => None,
            },
            _ => None,
        }
    };
    let name = |weight: usize| weights.get(weight).map(|weight| weight.name.clone()).unwrap_or_default();
    let Some(embedding) = source(EMBEDDING) else { return Ok(None) };
    let written = source(HEAD);
    let left_out = || dropped.iter().map(|dropped| dropped.weight).find(|weight| heads.contains(weight));
    Ok(match written.or_else(left_out) {
        _ if heads.contains(&embedding) => None,
        Some(head) if declared == Some(true) && head != embedding => {
            let (embedding, head) = (name(embedding), name(head));
            let is_same = match scope.values.are_equal(&embedding, &head) {
                // Codes of a quantized checkpoint cannot be compared.
                Err(ArchError::ElementType { .. }) => true,
                found => found?,
            };
            (!is_same).then_some(Tie::Differ { embedding, head, is_written: written.is_some() })
        }
        None if declared == Some(false)
            && !outputs.iter().any(|output| is_named(&output.name, CLASSIFIER))
            && writes_text(class)
            && has_place_for_head(card)
            && !outputs.iter().any(is_head) =>
        {
            Some(Tie::NoHead { embedding: name(embedding) })
        }
        _ => None,
    })
}

fn is_head(output: &OutputSpec) -> bool {
    is_named(&output.name, HEAD)
}

fn has_place_for_head(card: &Card) -> bool {
    let mut targets = card.entries.iter().flat_map(|entry| &entry.targets);
    targets.any(|target| is_named(target.name.text(), HEAD))
}

fn writes_text(class: &str) -> bool {
    ["ForCausalLM", "ForConditionalGeneration", "LMHeadModel"].iter().any(|end| class.ends_with(end))
}
