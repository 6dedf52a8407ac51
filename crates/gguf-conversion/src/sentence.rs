//! What sentence-transformers computes around an embedding model: the modules of `modules.json`, and settings in files
//! of its own. A file holds the transformer, a pooling, and the dense layers of some architectures; anything else is
//! left out with a warning, because it changes the embeddings.

use serde_json::{Map, Value as Json};

use crate::modules::{self, ListedModule, MODULES};
use crate::pooling::{self, modes};
use crate::{ConvertError, ModelSource};
use gguf_arch::Mapping;
use gguf_checkpoint::ModelDir;
use gguf_checkpoint::pieces::{is_off, of_keys};
use gguf_core::account::{Fate, Piece, PieceKind};
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

/// Returns the files that sentence-transformers reads in a folder next to those of the transformer, the list of modules
/// first; none without that list.
pub(super) fn files(dir: &ModelDir) -> Result<Vec<String>, ConvertError> {
    if dir.file(MODULES).is_none() {
        return Ok(Vec::new());
    }
    let modules = modules::of_kind(dir, "")?;
    let modules = modules.iter().filter(|module| !module.folder.is_empty());
    let own = modules.flat_map(|module| [module.file("config.json"), module.file("model.safetensors")]);
    Ok([MODULES, SETTINGS, TRANSFORMER].map(str::to_owned).into_iter().chain(own).collect())
}

/// Returns what becomes of the modules of sentence-transformers and of the keys of their files. What a runtime does not
/// compute is left out, with the text of a warning behind the file's name.
pub(super) fn pieces(source: &ModelSource, mapping: &Mapping) -> Result<Vec<Piece>, ConvertError> {
    let mut own = Modules { source, mapping, pieces: Vec::new() };
    for module in modules::of_kind(&source.dir, "")? {
        let class = module.ty.rsplit('.').next().unwrap_or_default();
        let written = |to: &str| Piece::written(PieceKind::Key, name_of(&module), vec![to.to_owned()]);
        let piece = match FATES.iter().find(|row| row.0 == class).map(|row| row.1) {
            Some(ModuleFate::Model) => written("the model"),
            Some(ModuleFate::NoEffect) => {
                let why = "it changes no direction of an embedding";
                Piece::not(PieceKind::Key, name_of(&module), Fate::WithoutEffect, why)
            }
            Some(ModuleFate::Pooling) => {
                own.pooling(&module)?;
                written("pooling_type")
            }
            Some(ModuleFate::Dense) => {
                if own.dense(&module)? {
                    written("dense_2.weight, dense_3.weight")
                } else {
                    continue;
                }
            }
            Some(ModuleFate::NoTransformer) => {
                let reason =
                    format!("{} is no transformer, and there is no GGUF file for it", shown(&module));
                return Err(modules::wrong(&source.dir, MODULES, reason));
            }
            None => {
                own.lose(MODULES, name_of(&module), format!("{} is left out: {ALTERED}", shown(&module)));
                continue;
            }
        };
        own.pieces.push(piece.within(MODULES));
    }
    own.settings()?;
    Ok(own.pieces)
}

/// Effect of what is left out.
const ALTERED: &str = "embeddings of the file differ from those of sentence-transformers";

/// Returns the name of a module in its list: its folder, or else its class.
fn name_of(module: &ListedModule) -> &str {
    if module.folder.is_empty() { module.ty.rsplit('.').next().unwrap_or_default() } else { &module.folder }
}

/// Formats a module with its class.
fn shown(module: &ListedModule) -> String {
    let class = module.ty.rsplit('.').next().unwrap_or_default();
    match module.folder.as_str() {
        "" => format!("module `{}`", escape(class)),
        folder => format!("module `{}` ({})", escape(folder), escape(class)),
    }
}

/// A model of sentence-transformers, with the pieces so far.
struct Modules<'a> {
    source: &'a ModelSource,
    mapping: &'a Mapping,
    pieces: Vec<Piece>,
}

impl Modules<'_> {
    /// Marks a key as left out.
    fn lose(&mut self, file: &str, key: &str, why: String) {
        let lost = Piece::not(PieceKind::Key, key, Fate::LeftOut, why).within(file);
        self.pieces.retain(|piece| piece.name != lost.name || piece.file != lost.file);
        self.pieces.push(lost);
    }

    /// Reads a file, and adds its keys by the rows of a group.
    fn read(&mut self, file: &str, group: &str) -> Result<Map<String, Json>, ConvertError> {
        let config = self.source.dir.json(file)?.unwrap_or_default();
        self.pieces.extend(of_keys(group, file, &config));
        Ok(config)
    }

    fn pooling(&mut self, module: &ListedModule) -> Result<(), ConvertError> {
        let file = module.file("config.json");
        let config = self.read(&file, "Pooling")?;
        let all = modes(&config);
        let Some(written) = pooling::of(&config) else { return Ok(()) };
        let is_mode = |(key, value): &(&String, &Json)| key.starts_with("pooling_mode") && !is_off(value);
        let key_of_mode = config.iter().find(is_mode).map(|row| row.0.clone()).unwrap_or_default();
        if all.len() > 1 {
            let all: Vec<String> = all.iter().map(|mode| format!("`{}`", escape(mode))).collect();
            let why = format!("of the modes {} only one is written: {ALTERED}", all.join(", "));
            self.lose(&file, &key_of_mode, why);
        }
        let key = format!("{}.pooling_type", self.mapping.card.gguf);
        if !self.mapping.metadata.contains(&key) {
            let mode = written.name();
            self.lose(
                &file,
                &key_of_mode,
                format!(
                    "the pooling `{mode}` is left out, as by llama.cpp's converter: `--pooling {mode}` of llama.cpp says it"
                ),
            );
        }
        if config.get("include_prompt") == Some(&Json::Bool(false)) {
            let why = "`include_prompt` = false is left out: runtimes pool the prompt, too";
            self.lose(&file, "include_prompt", why.to_owned());
        }
        Ok(())
    }

    /// Returns true if a dense layer is written.
    fn dense(&mut self, module: &ListedModule) -> Result<bool, ConvertError> {
        let file = self.source.dir.path().join(module.file("model.safetensors"));
        if !self.source.paths.contains(&file) {
            let mut targets = self.mapping.card.entries.iter().flat_map(|entry| &entry.targets);
            let has_place = targets.any(|target| target.name.text().starts_with("dense_2"));
            let way = if has_place { " (`--sentence-transformers-dense-modules` writes it)" } else { "" };
            let why = format!("{} is left out{way}: {ALTERED}", shown(module));
            self.lose(MODULES, name_of(module), why);
            return Ok(false);
        }
        let file = module.file("config.json");
        let config = self.read(&file, "Dense")?;
        let activation = config.get("activation_function").and_then(Json::as_str).unwrap_or(IDENTITY);
        if activation.rsplit('.').next() != Some(IDENTITY) {
            let activation = escape(activation);
            let why = format!("`activation_function` = `{activation}` is left out: {ALTERED}");
            self.lose(&file, "activation_function", why);
        }
        Ok(true)
    }

    /// Adds settings that change what is embedded.
    fn settings(&mut self) -> Result<(), ConvertError> {
        let settings = self.read(SETTINGS, SETTINGS)?;
        if let Some(name) = settings.get("default_prompt_name").and_then(Json::as_str)
            && let Some(prompt) = text_of(&settings, "prompts", name).filter(|prompt| !prompt.is_empty())
        {
            let (name, prompt) = (escape(name), escape(prompt));
            let why = format!(
                "`default_prompt_name` = `{name}` is left out: put the prompt `{prompt}` in front of every text"
            );
            self.lose(SETTINGS, "default_prompt_name", why);
        }
        if let Some(n) = settings.get("truncate_dim").and_then(Json::as_u64) {
            let why = format!("`truncate_dim` = {n} is left out: embeddings have their full width");
            self.lose(SETTINGS, "truncate_dim", why);
        }
        let is_set = |map: &Map<String, Json>| map.get("do_lower_case") == Some(&Json::Bool(true));
        let transformer = self.read(TRANSFORMER, TRANSFORMER)?;
        let tokenizer = self.source.dir.json("tokenizer_config.json").ok().flatten().unwrap_or_default();
        if is_set(&transformer) && !is_set(&tokenizer) {
            let why = "`do_lower_case` = true is left out: lower the case of every text";
            self.lose(TRANSFORMER, "do_lower_case", why.to_owned());
        }
        Ok(())
    }
}

fn text_of<'j>(map: &'j Map<String, Json>, key: &str, name: &str) -> Option<&'j str> {
    map.get(key)?.get(name)?.as_str()
}
