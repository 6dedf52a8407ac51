//! Scope of a card's expressions for a checkpoint.

use crate::Result;
use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use crate::error::warning::ArchWarning;
use crate::keys::hparams;
use crate::language::eval::{Root, Scope};
use crate::language::names::shared_rewrite;
use crate::language::values::WeightValues;
use crate::mapping::heads::{self, DraftHeads};
use crate::mapping::inputs::Inputs;
use crate::mapping::matching::Matcher;
use crate::mapping::options::ResolveOptions;
use crate::read::schema::{Card, CardKind};

/// Returns the scope with everything that a card's expressions can name.
pub(crate) fn scope<'a>(
    card: &'a Card,
    class: &str,
    config: &Map<String, Json>,
    inputs: &Inputs<'a>,
    options: ResolveOptions,
    file_type: u32,
) -> Result<Scope<'a>> {
    scope_of(card, class, config, inputs, options, file_type).map(|made| made.0)
}

/// Builds the scope of [`scope`], and returns the warning about draft heads that are counted but not stored.
pub(crate) fn scope_of<'a>(
    card: &'a Card,
    class: &str,
    config: &Map<String, Json>,
    inputs: &Inputs<'a>,
    options: ResolveOptions,
    file_type: u32,
) -> Result<(Scope<'a>, Option<ArchWarning>)> {
    let map = |map: Option<&'a Map<String, Json>>| map.map_or(Root::Value(json!({})), Root::Map);
    let mut scope = Scope {
        config: Map::new(),
        lets: Some(&card.lets),
        tables: Some(&card.tables),
        roots: vec![
            ("class", Root::Value(class.into())),
            ("file_type", Root::Value(file_type.into())),
            ("folders", map(inputs.folders)),
            ("generation", map(inputs.generation_config)),
            (
                "opt",
                Root::Value(json!({
                    "no_mtp": options.heads == DraftHeads::Dropped,
                    "mtp_only": options.heads == DraftHeads::Alone,
                    "mistral_format": options.mistral_format,
                    "rerank": options.rerank.map(|rerank| json!({ "yes": rerank.yes, "no": rerank.no })),
                })),
            ),
            ("preprocessor", map(inputs.preprocessor)),
            ("pooling", Root::Value(inputs.pooling.map_or(Json::Null, |pooling| (pooling as u32).into()))),
            ("raw", Root::Map(inputs.config)),
            ("tokenizer_config", map(inputs.tokenizer_config)),
        ],
        tensors: inputs
            .weights
            .iter()
            .map(|weight| weight.name.as_str())
            .chain(inputs.stored.iter().map(|stored| stored.name.as_str()))
            .collect(),
        weights: inputs.weights,
        stored: inputs.stored,
        renamed: HashMap::new(),
        files: inputs.files,
        gguf: None,
        values: WeightValues::new(inputs.values, inputs.vocabulary),
    };
    let originals: Vec<&'a str> = scope.tensors.iter().copied().collect();
    for &name in &originals {
        let renamed = shared_rewrite(name);
        if renamed != name {
            scope.renamed.insert(renamed, name);
        }
    }
    configure(card, config, &mut scope)?;
    let unstored = heads::settle(card, options.heads, &mut scope.config, &mut originals.iter().copied());
    if let Some(target) = &inputs.target {
        scope.roots.extend([target.root()]);
    }
    if !card.rewrite.is_empty() || card.kind == CardKind::Mmproj {
        let mut renamed = HashMap::new();
        let matcher = Matcher::new(card, &scope)?;
        for &name in &originals {
            let rewritten = matcher.rewritten(shared_rewrite(name))?;
            if rewritten != name {
                renamed.insert(rewritten, name);
            }
        }
        scope.renamed.extend(renamed);
    }
    Ok((scope, unstored))
}

/// Sets the configuration of a scope: completed, with the card's changes, and with the rope roots.
pub(crate) fn configure(card: &Card, config: &Map<String, Json>, scope: &mut Scope<'_>) -> Result<()> {
    scope.config = hparams::complete(card, config, scope)?;
    // Drafts made with `speculators` have their block parameters in a nested object.
    if let Some(Json::Object(layer)) = scope.config.get("transformer_layer_config").cloned() {
        scope.config.extend(layer);
    }
    hparams::change(card, "`set`", &card.set, &card.drop_config, scope)?;
    // Towers have their own positions: the rope of the text model is handled by the text model's card.
    if card.kind == CardKind::Text {
        let rope = hparams::rope_roots(&scope.config)?;
        scope.roots.retain(|(name, _)| !rope.iter().any(|(own, _)| own == name));
        scope.roots.extend(rope);
    }
    Ok(())
}
