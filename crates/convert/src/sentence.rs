//! What sentence-transformers computes around an embedding model: the modules of `modules.json`, and settings in files
//! of its own. A file holds the transformer, a pooling, and the dense layers of some architectures; anything else is
//! left out with a warning, because it changes the embeddings.

use serde_json::{Map, Value as Json};

use crate::modules::{self, ListedModule, MODULES};
use crate::pooling::{self, modes};
use crate::{ConvertError, ModelSource};
use gguf_arch::Mapping;
use gguf_checkpoint::ModelDir;
use gguf_core::text::escape;

/// What becomes of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModuleFate {
    /// Written as tensors, keys and vocabulary of the model.
    Model,
    /// Written as a key.
    Pooling,
    /// Written where the architecture has tensors for it.
    Dense,
    /// Changes no direction of an embedding, or nothing outside a training.
    NoEffect,
    /// Takes the place of a transformer, which alone can be converted.
    NoTransformer,
}

/// Modules of sentence-transformers 6.2 by the last part of their Python class. Any other is left out with a warning.
const FATES: [(&str, ModuleFate); 13] = [
    ("Transformer", ModuleFate::Model),
    ("MLMTransformer", ModuleFate::Model),
    ("Pooling", ModuleFate::Pooling),
    ("Dense", ModuleFate::Dense),
    ("Normalize", ModuleFate::NoEffect),
    ("Dropout", ModuleFate::NoEffect),
    ("BoW", ModuleFate::NoTransformer),
    ("CLIPModel", ModuleFate::NoTransformer),
    ("Router", ModuleFate::NoTransformer),
    ("Asym", ModuleFate::NoTransformer),
    ("SparseStaticEmbedding", ModuleFate::NoTransformer),
    ("StaticEmbedding", ModuleFate::NoTransformer),
    ("WordEmbeddings", ModuleFate::NoTransformer),
];
/// Names of activations that change nothing.
const IDENTITY: &str = "Identity";
/// Files of a model's settings.
const SETTINGS: &str = "config_sentence_transformers.json";
const TRANSFORMER: &str = "sentence_bert_config.json";

/// Returns warnings about what sentence-transformers computes and the file does not carry.
///
/// # Errors
/// Broken files; a model without a transformer.
pub(super) fn warnings(source: &ModelSource, mapping: &Mapping) -> Result<Vec<String>, ConvertError> {
    let dir = &source.dir;
    let mut warnings = Vec::new();
    for module in modules::of_kind(dir, "")? {
        let class = module.ty.rsplit('.').next().unwrap_or_default();
        match FATES.iter().find(|row| row.0 == class).map(|row| row.1) {
            Some(ModuleFate::Model | ModuleFate::NoEffect) => {}
            Some(ModuleFate::Pooling) => warnings.extend(pooling_warnings(dir, &module, mapping)?),
            Some(ModuleFate::Dense) => warnings.extend(dense_warnings(source, &module, mapping)?),
            Some(ModuleFate::NoTransformer) => {
                let reason =
                    format!("{} is no transformer, and there is no GGUF file for it", shown(&module));
                return Err(modules::wrong(dir, MODULES, reason));
            }
            None => warnings.push(format!("{MODULES}: {} is left out: {ALTERED}", shown(&module))),
        }
    }
    warnings.extend(setting_warnings(dir)?);
    Ok(warnings)
}

/// Effect of what is left out.
const ALTERED: &str = "embeddings of the file differ from those of sentence-transformers";

/// Formats a module with its class.
fn shown(module: &ListedModule) -> String {
    let class = module.ty.rsplit('.').next().unwrap_or_default();
    match module.folder.as_str() {
        "" => format!("module `{}`", escape(class)),
        folder => format!("module `{}` ({})", escape(folder), escape(class)),
    }
}

fn pooling_warnings(
    dir: &ModelDir,
    module: &ListedModule,
    mapping: &Mapping,
) -> Result<Vec<String>, ConvertError> {
    let file = module.file("config.json");
    let config = dir.json(&file)?.unwrap_or_default();
    let all = modes(&config);
    let Some(written) = pooling::of(&config) else { return Ok(Vec::new()) };
    let mut warnings = Vec::new();
    if all.len() > 1 {
        let all: Vec<String> = all.iter().map(|mode| format!("`{}`", escape(mode))).collect();
        warnings.push(format!("{file}: of the modes {} only one is written: {ALTERED}", all.join(", ")));
    }
    let key = format!("{}.pooling_type", mapping.card.gguf);
    if !mapping.metadata.contains(&key) {
        let mode = written.name();
        warnings.push(format!(
            "{file}: the pooling `{mode}` is left out, as by llama.cpp's converter: `--pooling {mode}` of llama.cpp says it"
        ));
    }
    if config.get("include_prompt") == Some(&Json::Bool(false)) {
        warnings.push(format!("{file}: `include_prompt` = false is left out: runtimes pool the prompt, too"));
    }
    Ok(warnings)
}

fn dense_warnings(
    source: &ModelSource,
    module: &ListedModule,
    mapping: &Mapping,
) -> Result<Vec<String>, ConvertError> {
    let file = source.dir.path().join(module.file("model.safetensors"));
    if source.paths.contains(&file) {
        let config = source.dir.json(&module.file("config.json"))?.unwrap_or_default();
        let activation = config.get("activation_function").and_then(Json::as_str).unwrap_or(IDENTITY);
        let is_none = activation.rsplit('.').next() == Some(IDENTITY);
        return Ok((!is_none)
            .then(|| {
                let (file, activation) = (module.file("config.json"), escape(activation));
                format!("{file}: `activation_function` = `{activation}` is left out: {ALTERED}")
            })
            .into_iter()
            .collect());
    }
    let mut targets = mapping.card.entries.iter().flat_map(|entry| &entry.targets);
    let has_place = targets.any(|target| target.name.text().starts_with("dense_2"));
    let way = if has_place { " (`--sentence-transformers-dense-modules` writes it)" } else { "" };
    Ok(vec![format!("{MODULES}: {} is left out{way}: {ALTERED}", shown(module))])
}

/// Returns warnings about settings that change what is embedded.
fn setting_warnings(dir: &ModelDir) -> Result<Vec<String>, ConvertError> {
    let mut warnings = Vec::new();
    let read = |file: &str| Ok::<_, ConvertError>(dir.json(file)?.unwrap_or_default());
    let settings = read(SETTINGS)?;
    if let Some(name) = settings.get("default_prompt_name").and_then(Json::as_str)
        && let Some(prompt) = text_of(&settings, "prompts", name).filter(|prompt| !prompt.is_empty())
    {
        warnings.push(format!(
            "{SETTINGS}: `default_prompt_name` = `{}` is left out: put the prompt `{}` in front of every text",
            escape(name),
            escape(prompt)
        ));
    }
    if let Some(n) = settings.get("truncate_dim").and_then(Json::as_u64) {
        warnings
            .push(format!("{SETTINGS}: `truncate_dim` = {n} is left out: embeddings have their full width"));
    }
    let is_set = |map: &Map<String, Json>| map.get("do_lower_case") == Some(&Json::Bool(true));
    if is_set(&read(TRANSFORMER)?) && !is_set(&read("tokenizer_config.json").unwrap_or_default()) {
        warnings
            .push(format!("{TRANSFORMER}: `do_lower_case` = true is left out: lower the case of every text"));
    }
    Ok(warnings)
}

fn text_of<'j>(map: &'j Map<String, Json>, key: &str, name: &str) -> Option<&'j str> {
    map.get(key)?.get(name)?.as_str()
}
