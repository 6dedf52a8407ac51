//! Weights in subfolders that are read after those of the model: sentence-transformers modules, audio encoders.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use serde_json::Value as Json;

use crate::shards::SafetensorsShards;
use crate::{CheckpointError, ModelDir, json};
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_core::{SourceError, WeightMeta, WeightSource};
use gguf_format::OtherFiles;

/// Suffix of the tensors of a module's file that are part of the model.
const SUFFIX: &str = ".weight";
/// Name of the layer inside the module.
const LAYER: &str = "linear";

/// List of the modules of sentence-transformers.
const LIST: &str = "modules.json";
/// Files that stay next to that list where the transformer has a folder of its own.
const BESIDE: [&str; 3] = [LIST, "config_sentence_transformers.json", "README.md"];

/// Returns the folder that holds the transformer of a sentence-transformers model, and the files outside of it; `None` if
/// it has no folder of its own.
pub(crate) fn transformer(dir: &ModelDir) -> Result<Option<(PathBuf, OtherFiles)>, CheckpointError> {
    let Some(text) = dir.bytes(LIST)? else { return Ok(None) };
    let list = json::parse(&text, dir.limits().depth)
        .map_err(|source| CheckpointError::Json { path: dir.path().join(LIST), source })?;
    let is_inside = |folder: &&str| {
        !folder.is_empty() && Path::new(folder).components().all(|part| matches!(part, Component::Normal(_)))
    };
    let folder = |module: &Json| module["path"].as_str().filter(is_inside).map(str::to_owned);
    let modules = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_transformer =
        |module: &&Json| module["type"].as_str().is_some_and(|class| class.ends_with(".Transformer"));
    let Some(own) = modules.iter().find(is_transformer).and_then(folder) else { return Ok(None) };
    let others = modules.iter().filter_map(folder).filter(|folder| *folder != own);
    let files =
        others.flat_map(|folder| ["config.json", "model.safetensors"].map(|name| format!("{folder}/{name}")));
    let names = BESIDE.map(str::to_owned).into_iter().chain(files).collect();
    Ok(Some((dir.path().join(own), OtherFiles { dir: dir.path().to_owned(), names })))
}

/// Returns the files next to the folder of a transformer that is given by itself, if the list beside it has that folder.
pub(crate) fn beside(dir: &ModelDir) -> Option<OtherFiles> {
    if dir.file(LIST).is_some() {
        return None;
    }
    let own = fs_err::canonicalize(dir.path()).ok()?;
    let whole = match dir.path().parent() {
        Some(whole) if !whole.as_os_str().is_empty() && dir.path().file_name() == own.file_name() => whole,
        _ => own.parent()?,
    };
    let whole = ModelDir::without_config(whole, None, dir.limits());
    let (folder, others) = transformer(&whole).ok()??;
    (fs_err::canonicalize(folder).ok()? == own).then_some(others)
}

/// The weights of a model, followed by those of its modules.
pub struct WithModules {
    base: Box<dyn WeightSource + Send>,
    modules: Vec<SafetensorsShards>,
    metas: Vec<WeightMeta>,
    /// Module index and weight index for each weight that is not the base model's.
    places: Vec<(usize, usize)>,
    paths: Vec<PathBuf>,
    pieces: Vec<Piece>,
}

impl WithModules {
    /// Creates a source without modules.
    pub fn new(base: Box<dyn WeightSource + Send>) -> Self {
        let metas = base.weights().to_vec();
        let (modules, places) = (Vec::new(), Vec::new());
        Self { base, modules, metas, places, paths: Vec::new(), pieces: Vec::new() }
    }

    /// Adds the weights of a module's safetensors file (a path within `dir`); returns false if the file does not
    /// exist.
    ///
    /// `layer` replaces `linear` in the tensor names.
    ///
    /// # Errors
    /// A broken file; a name that the model has already.
    pub fn add(&mut self, dir: &ModelDir, file: &str, layer: &str) -> Result<bool, CheckpointError> {
        self.add_named(dir, file, &|name| name.ends_with(SUFFIX).then(|| name.replace(LAYER, layer)))
    }

    /// Adds all weights of a folder's safetensors file as `folder.NAME`; returns false if the file does not exist.
    pub fn add_folder(&mut self, dir: &ModelDir, folder: &str) -> Result<bool, CheckpointError> {
        self.add_named(dir, &format!("{folder}/model.safetensors"), &|name| Some(format!("{folder}.{name}")))
    }

    /// Adds the weights of a file under new names; weights for which `rename` returns `None` are left out.
    fn add_named(
        &mut self,
        dir: &ModelDir,
        file: &str,
        rename: &dyn Fn(&str) -> Option<String>,
    ) -> Result<bool, CheckpointError> {
        let Some(path) = dir.file(file) else { return Ok(false) };
        let module = SafetensorsShards::single(dir, file)?;
        let mut known: HashSet<String> = self.metas.iter().map(|meta| meta.name.clone()).collect();
        for (weight, meta) in module.weights().iter().enumerate() {
            let Some(name) = rename(&meta.name) else {
                let why = format!("{}: `{}` is left out", path.display(), meta.name);
                self.pieces.push(Piece::not(PieceKind::Tensor, &meta.name, Fate::LeftOut, why).within(file));
                continue;
            };
            if !known.insert(name.clone()) {
                let first = "another file".to_owned();
                return Err(CheckpointError::InTwoShards { tensor: name, first, second: file.to_owned() });
            }
            self.metas.push(WeightMeta { name, ..meta.clone() });
            self.places.push((self.modules.len(), weight));
        }
        self.modules.push(module);
        self.paths.push(path);
        Ok(true)
    }

    /// Returns the weights of the base model alone.
    pub fn into_base(self) -> Box<dyn WeightSource + Send> {
        self.base
    }

    /// Paths of the modules' files.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Tensors of the modules' files that were left out.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the source that holds a weight, and the weight's index there.
    fn at(&self, weight: usize) -> (&dyn WeightSource, usize) {
        match weight.checked_sub(self.metas.len() - self.places.len()) {
            None => (&*self.base, weight),
            Some(at) => (&self.modules[self.places[at].0], self.places[at].1),
        }
    }
}

impl WeightSource for WithModules {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (source, weight) = self.at(weight);
        source.read_elems(weight, first, out)
    }

    fn origin(&self, weight: usize) -> Option<(&dyn WeightSource, usize)> {
        Some(self.at(weight))
    }
}
