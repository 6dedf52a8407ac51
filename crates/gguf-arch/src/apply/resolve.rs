//! From a checkpoint's headers and configuration to a [`Mapping`].

use crate::Result;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::LazyLock;

use serde_json::{Map, Value as Json};

use crate::apply::assign::{self, Assigned};
use crate::apply::{absent, fuse, tied};
use crate::attributes::Attributes;
use crate::error::ArchError;
use crate::error::missing_input::MissingInput;
use crate::error::similarity::Similarity;
use crate::error::warning::ArchWarning;
use crate::judge::similar::similar;
use crate::judge::{
    carried, config_values, layer_lists, long_rope, needs, rope_members, tower_values, unread_biases,
};
use crate::keys::origin::Origin;
use crate::keys::origins::{self, Origins};
use crate::keys::{hparams, runtime_keys, shapes, target};
use crate::language::datum::Datum;
use crate::language::eval::Scope;
use crate::language::expr::{Expr, PathStep};
use crate::language::names::{self, Captures, shared_rewrite};
use crate::mapping::heads::HeadRule;
use crate::mapping::inputs::Inputs;
use crate::mapping::matching::Matcher;
use crate::mapping::options::ResolveOptions;
use crate::mapping::scope::{scope, scope_of};
use crate::mapping::types::OutType;
use crate::mapping::{Mapping, OutputSpec, TensorContent, generated};
use crate::read::schema::{Card, CardKind, MetadataRow};
use crate::read::{is_multimodal, metadata_rows};
use crate::registry::{Registry, detect, model_types};
use gguf_core::WeightMeta;
use gguf_format::{Metadata, ModeRequest, TokenizerRequest, ValueType};

/// GGUF key of the token list.
const TOKENS: &str = "tokenizer.ggml.tokens";
/// GGUF key of `[tokenizer] token_type_count`.
const TOKEN_TYPE_COUNT: &str = "tokenizer.ggml.token_type_count";

/// Selects the card for a checkpoint and plans every tensor and key.
///
/// # Errors
/// [`ArchError`]: no card, tensors that the card does not know, missing tensors, shapes that do not fit.
pub fn resolve(registry: &Registry, inputs: &Inputs<'_>, options: &ResolveOptions) -> Result<Mapping> {
    let mapping = resolved(registry, inputs, options);
    mapping.map_err(|error| absent::in_files(error, registry, inputs, options.mistral_format))
}

fn resolved(registry: &Registry, inputs: &Inputs<'_>, options: &ResolveOptions) -> Result<Mapping> {
    let mut config = detect::with_text_config(inputs.config);
    let mut cut = Vec::new();
    if registry.kind() == CardKind::Text {
        config_values::check(&config)?;
        rope_members::check(&config)?;
        cut = layer_lists::settle(&mut config)?;
        cut.extend(hparams::two_ropes(&config));
        cut.extend(rope_members::warnings(&config));
        cut.extend(Attributes::settle(&mut config));
    } else {
        config_values::check_towers(&config)?;
    }
    let named = match (registry.kind(), options.mistral_format) {
        (CardKind::Text, true) => Ok(detect::mistral_class(&config).to_owned()),
        (CardKind::Text, false) => detect::class_of(&config),
        (CardKind::Mmproj, true) => Ok(detect::MISTRAL_TOWER.to_owned()),
        (CardKind::Mmproj, false) => detect::claimed_tower_class_of(registry, &config),
    };
    let recognized = model_types::recognized(registry, named, &config);
    let (class, doubt) = recognized.map_err(|error| detect::text_only(error, registry.kind(), &config))?;
    let card = chosen(registry, &class, &config, inputs, *options)?;
    let file_type = file_type(card, &class, &config, inputs, *options)?;
    let (mut scope, unstored) = scope_of(card, &class, &config, inputs, *options, file_type.id())?;
    for (condition, message) in &card.require {
        if !eval(card, "`require`", &scope, condition)?.truth() {
            let found = origins::of_expr(card, condition, &scope, &config);
            return Err(ArchError::Required { message: message.clone(), found });
        }
    }
    let block_count = Expr::parse("block_count").unwrap_or(Expr::Null);
    if eval(card, "`block_count`", &scope, &block_count)?.is_null() {
        return Err(ArchError::ConfigMissing { key: "num_hidden_layers" });
    }
    if options.rerank.is_some_and(|rerank| rerank.asked) && !card.when.as_ref().is_some_and(asks_for_rerank) {
        let (option, why) = ("--rerank", "it knows no rerankers");
        return Err(ArchError::Option { option, card: card.name(), why });
    }
    if inputs.target.is_some() && !target::is_used_by(card) {
        let (option, why) = ("--target-model-dir", "its models need nothing of another");
        return Err(ArchError::Option { option, card: card.name(), why });
    }

    let heads = HeadRule::of(card, options.heads, &config, &scope)?;
    // A model that was saved as the model inside has no head, although it may need one.
    let is_inner =
        matches!(&doubt, Some(ArchWarning::WrappedClass { found, .. }) if found.ends_with("Model"));
    let of_class = || is_inner.then(|| tied::default_tie(&config)).flatten();
    let declared_tie = tied::declared_tie(inputs.config, &scope.config).or_else(of_class);
    let warnings = doubt.into_iter().chain(unstored).chain(cut).collect();
    let (mut outputs, mut dropped, mut stored_heads) = (Vec::new(), Vec::new(), Vec::new());
    if !options.metadata_only {
        for generate in card.generate.iter().filter(|_| !options.is_part) {
            outputs.extend(generated::generated(card, generate, &scope)?);
        }
        let is_untied = declared_tie != Some(true);
        let assigned: Assigned = assign::assign(card, inputs.weights, &scope, &heads, options, is_untied)?;
        stored_heads = assigned.heads;
        outputs.extend(assigned.outputs);
        fuse::fuse(card, options.fuse, &mut outputs)?;
        outputs.sort_by_key(|output: &OutputSpec| output.phase);
        dropped = assigned.dropped;
    }
    if let Some(rows) = undeclared_tokens(card, &config, &outputs) {
        scope.config.insert("vocab_size".to_owned(), rows.into());
    }

    let mut mapping = Mapping {
        class,
        card: card.clone(),
        file_type,
        outputs,
        dropped,
        early: Metadata::new(),
        metadata: Metadata::new(),
        origins: Origins::new(),
        annotations: Metadata::new(),
        tokenizer: TokenizerRequest::default(),
        read: scope.values.read(),
        lost: Vec::new(),
        differs: Vec::new(),
        config_keys: Vec::new(),
        tie: None,
        warnings,
    };
    if options.is_part {
        return Ok(mapping);
    }
    for (condition, message) in &card.differs {
        if eval(card, "`differs`", &scope, condition)?.truth() {
            mapping.differs.push(message.clone());
        }
    }

    // Metadata sees changes of the configuration that tensors must not see, so metadata is computed after the tensors.
    hparams::set_for_metadata(card, &mut scope)?;
    for (at, rows, keys) in
        [("early", &card.early, &mut mapping.early), ("metadata", &card.metadata, &mut mapping.metadata)]
    {
        let done = metadata_rows::apply_rows(card, at, rows, &scope, keys);
        done.map_err(|error| by_config(error, card, &scope, &config))?;
    }
    runtime_keys::add(card, &scope, &mapping.early, &mut mapping.metadata)?;
    long_rope::complete(card, &scope, options.metadata_only, &mut mapping)?;
    if options.annotate {
        mapping.annotations = metadata_rows::annotations(card, &scope)?;
    }
    if let (Some(target), Some(_)) = (&inputs.target, card.tokenizer.from) {
        scope.look_at_files_of(target);
    }
    mapping.tokenizer = tokenizer(card, &scope)?;
    mapping.origins = origins::of_rows(card, &scope, &config);
    let size = card.tokenizer.size.as_ref().unwrap_or(default_size());
    mapping.origins.insert(TOKENS.to_owned(), origins::of_expr(card, size, &scope, &config));
    mapping.read = scope.values.read();
    if card.kind == CardKind::Text {
        // Reads from here on do not influence the plan.
        let made = (mapping.outputs.as_slice(), mapping.dropped.as_slice());
        mapping.tie =
            tied::check((card, &mapping.class), declared_tie, &scope, inputs.weights, made, &stored_heads)?;
        let cards = registry.cards().iter();
        let rivals: Vec<&Card> = cards.filter(|rival| rival.classes.contains(&mapping.class)).collect();
        let outputs = &without_added(inputs, &card.gguf, &mapping.outputs)?;
        mapping.differs.extend(unread_biases::warning(&config, outputs));
        (mapping.lost, mapping.config_keys) =
            carried::lost(card, &rivals, &config, scope, outputs, &mapping.origins, options.annotate)?;
    } else {
        mapping.warnings.extend(tower_values::warnings(&mapping.class, &config, inputs.preprocessor));
        mapping.config_keys = carried::of_read(card, &config);
    }
    Ok(mapping)
}

/// Returns the outputs that are not made of biases that a quantization added.
///
/// # Errors
/// [`ArchError::AddedBias`]: the runtime does not take such a bias.
fn without_added<'m>(
    inputs: &Inputs<'_>,
    arch: &str,
    outputs: &'m [OutputSpec],
) -> Result<Cow<'m, [OutputSpec]>> {
    let added: HashSet<&str> = inputs.added_biases.iter().map(String::as_str).collect();
    let is_added = |output: &&OutputSpec| match &output.content {
        TensorContent::Sources(assembly) => {
            let mut weights =
                assembly.sources.iter().map(|source| inputs.weights[source.weight].name.as_str());
            weights.all(|name| added.contains(name))
        }
        _ => false,
    };
    if added.is_empty() {
        return Ok(Cow::Borrowed(outputs));
    }
    let (of_tool, own): (Vec<&OutputSpec>, Vec<&OutputSpec>) = outputs.iter().partition(is_added);
    let names = of_tool.into_iter().map(|output| output.name.as_str());
    if let Some(foreign) = needs::foreign_names(arch, names) {
        return Err(ArchError::AddedBias { arch: foreign.arch, names: foreign.names });
    }
    Ok(own.into_iter().cloned().collect::<Vec<_>>().into())
}

pub(crate) fn chosen<'r>(
    registry: &'r Registry,
    class: &str,
    config: &Map<String, Json>,
    inputs: &Inputs<'_>,
    options: ResolveOptions,
) -> Result<&'r Card> {
    // A card whose defaults cannot be computed for this configuration is skipped if another card fits.
    let unfit = RefCell::new(None);
    let card =
        detect::choose(registry, class, &|card| match scope(card, class, config, inputs, options, 0) {
            Ok(scope) => detect::condition(card, &scope),
            Err(error) => {
                unfit.borrow_mut().get_or_insert(error);
                Ok(false)
            }
        });
    card.map_err(|error| match (error, unfit.take()) {
        (ArchError::AmbiguousClass { n_true: 0, .. }, Some(unfit)) => unfit,
        (error, _) => match detect::text_only(error, registry.kind(), config) {
            error @ ArchError::MissingInput(MissingInput::TextOnly { .. }) => error,
            error => resembling(error, registry, config, inputs, options),
        },
    })
}

/// Returns true if a condition refers to rerankers.
fn asks_for_rerank(when: &Expr) -> bool {
    let mut asks = false;
    when.walk(&mut |expr| {
        asks |= matches!(expr, Expr::Path(path)
            if path.root == "opt" && path.steps.first() == Some(&PathStep::Field("rerank".to_owned())));
    });
    asks
}

/// Names the key of config.json in an error about a value of the file's key that has one source.
fn by_config(error: ArchError, card: &Card, scope: &Scope<'_>, config: &Map<String, Json>) -> ArchError {
    let ArchError::KeyValue { key, expected: ty, .. } = &error else { return error };
    let origins = origins::of_rows(card, scope, config);
    let mut stated = origins.get(key).into_iter().flatten().filter(|origin| origin.stated.is_some());
    let is_text = |origin: &&Origin| origin.taken.is_string();
    let Some(origin) = stated.clone().find(is_text).or_else(|| stated.next()) else { return error };
    let expected = match (ty, origin.taken.is_number()) {
        (ValueType::String, _) => "a text",
        (ValueType::Bool, _) => "true or false",
        (ValueType::F32, true) => "a number that a 32-bit float holds",
        (ValueType::F32 | ValueType::F64, _) => "a number",
        (ValueType::U32, true) => "0 to 4294967295",
        _ => "a whole number",
    };
    ArchError::ConfigValue { key: origin.key.clone(), value: config_values::shown(&origin.taken), expected }
}

/// Adds the most similar known card to the error for an unknown class.
fn resembling(
    error: ArchError,
    registry: &Registry,
    config: &Map<String, Json>,
    inputs: &Inputs<'_>,
    options: ResolveOptions,
) -> ArchError {
    match error {
        ArchError::UnknownClass { class, lacks, nearest, .. } => {
            // Only a class under which this checkpoint converts is worth its name.
            let converts = |class: &String| {
                let mut config = inputs.config.clone();
                config.insert("architectures".to_owned(), [class.as_str()].into_iter().collect());
                resolved(registry, &Inputs { config: &config, ..*inputs }, &options).is_ok()
            };
            let by_type = model_types::class_of_type(registry, config).map(|row| row.1).filter(converts);
            let best = similar(registry, &class, config, inputs).into_iter().next();
            let resembles = best.filter(Similarity::is_any).map(Box::new);
            ArchError::UnknownClass { class, lacks, nearest, resembles, by_type }
        }
        error => error,
    }
}

/// Returns the type of the file: the requested one, or that of the first 16-bit matrix of the converted weights.
fn file_type(
    card: &Card,
    class: &str,
    config: &Map<String, Json>,
    inputs: &Inputs<'_>,
    options: ResolveOptions,
) -> Result<OutType> {
    if let Some(file_type) = options.file_type {
        return Ok(file_type);
    }
    if card.kind == CardKind::Text {
        let is_kept = |weight: &&WeightMeta| card.keep_multimodal || !is_multimodal(&weight.name);
        return Ok(OutType::auto(inputs.weights.iter().filter(is_kept)));
    }
    let scope = scope(card, class, config, inputs, options, 0)?;
    let matcher = Matcher::new(card, &scope)?;
    let mut kept = Vec::new();
    for weight in inputs.weights {
        let name = matcher.rewritten(shared_rewrite(&weight.name))?;
        if !names::is_of_text_model(&weight.name) && names::is_of_parts(&name, &card.parts) {
            kept.push(weight);
        }
    }
    Ok(OutType::auto(kept))
}

fn eval(card: &Card, at: &str, scope: &Scope<'_>, expr: &Expr) -> Result<Datum> {
    let failed = |source| ArchError::Eval { card: card.name(), at: at.to_owned(), source };
    scope.eval(expr, Captures::default()).map_err(failed)
}

/// Returns the number of rows of the embedding, if it has a row for each token of the file.
pub(crate) fn embedding_rows(card: &Card, outputs: &[OutputSpec]) -> Option<u64> {
    let has_all = card.kind == CardKind::Text && shapes::embeds_all_tokens(&card.gguf);
    let embedding = outputs.iter().find(|output| output.name == shapes::EMBEDDING).filter(|_| has_all)?;
    embedding.shape.dims().first().copied()
}

/// Returns the rows of the embedding if the configuration has no `vocab_size`: the default of the class would be the
/// number of another model.
fn undeclared_tokens(card: &Card, config: &Map<String, Json>, outputs: &[OutputSpec]) -> Option<u64> {
    let text = config.get("text_config").and_then(Json::as_object);
    let is_stated = |part: &Map<String, Json>| part.get("vocab_size").is_some_and(|size| !size.is_null());
    if is_stated(config) || text.is_some_and(is_stated) { None } else { embedding_rows(card, outputs) }
}

/// Default expression of the vocabulary size.
fn default_size() -> &'static Expr {
    static SIZE: LazyLock<Expr> = LazyLock::new(|| Expr::parse("vocab_size?").unwrap_or(Expr::Null));
    &SIZE
}

/// Evaluates the card's `[tokenizer]` table.
fn tokenizer(card: &Card, scope: &Scope<'_>) -> Result<TokenizerRequest> {
    let spec = &card.tokenizer;
    let size = eval(card, "[tokenizer] `size`", scope, spec.size.as_ref().unwrap_or(default_size()))?;
    let option = Expr::parse("opt.mistral_format").unwrap_or(Expr::Null);
    let mistral_format = scope
        .holds(Some(&option), Captures::default())
        .map_err(|source| ArchError::Eval { card: card.name(), at: "[tokenizer]".to_owned(), source })?;
    let mut before = tokenizer_rows(card, &spec.before, scope)?;
    if let Some(count) = &spec.token_type_count {
        let row = MetadataRow::Key { key: TOKEN_TYPE_COUNT.to_owned(), value: count.clone(), when: None };
        metadata_rows::apply_rows(card, "[tokenizer]", &[row], scope, &mut before)?;
    }
    Ok(TokenizerRequest {
        modes: modes(card, scope)?,
        size: size.as_int().and_then(|size| u64::try_from(size).ok()),
        pad_multiple: spec.pad_multiple,
        force: spec.force.clone(),
        last: spec.last.clone(),
        types: spec.types.clone(),
        control: spec.control.clone(),
        user_defined: spec.user_defined.clone(),
        template: spec.template.clone(),
        before,
        after: tokenizer_rows(card, &spec.after, scope)?,
        architecture: card.gguf.clone(),
        mistral_format,
        ..TokenizerRequest::default()
    })
}

/// Returns the modes whose conditions hold. Special tokens of the table follow those of the mode.
fn modes(card: &Card, scope: &Scope<'_>) -> Result<Vec<ModeRequest>> {
    let spec = &card.tokenizer;
    let failed = |source| ArchError::Eval { card: card.name(), at: "[tokenizer] `try`".to_owned(), source };
    let mut modes = Vec::new();
    for mode in &spec.modes {
        if !scope.holds(mode.when.as_ref(), Captures::default()).map_err(failed)? {
            continue;
        }
        modes.push(ModeRequest {
            mode: mode.mode,
            files: mode.files.clone(),
            special: mode.special.iter().chain(&spec.special).cloned().collect(),
            rank_code: mode.rank_code.or(spec.rank_code),
            after: tokenizer_rows(card, &mode.after, scope)?,
        });
    }
    Ok(modes)
}

fn tokenizer_rows(card: &Card, rows: &[MetadataRow], scope: &Scope<'_>) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    metadata_rows::apply_rows(card, "[tokenizer]", rows, scope, &mut metadata)?;
    Ok(metadata)
}
