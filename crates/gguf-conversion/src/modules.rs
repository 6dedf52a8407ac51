//! Folders next to a model: the modules listed in `modules.json` of sentence-transformers, and parts of towers.

use std::path::{Component, Path};

use serde_json::Value as Json;

use crate::ConvertError;
use gguf_checkpoint::modules::WithModules;
use gguf_checkpoint::{CheckpointError, ModelDir, json};
use gguf_core::text::escape;

pub(super) const MODULES: &str = "modules.json";

/// Classes whose dense module is always part of the model.
pub(super) const WITH_DENSE: [&str; 2] = ["Lfm2Model", "Lfm2BidirectionalModel"];

/// Classes whose files have the dense modules if they are asked for.
const DENSE_CLASSES: [&str; 1] = ["Gemma3TextModel"];

/// Names of the layers of dense modules in a file, in their order.
const DENSE_LAYERS: [&str; 2] = ["dense_2", "dense_3"];

/// Option that asks for dense modules.
const OPTION: &str = "`--sentence-transformers-dense-modules`";

/// Classes whose towers have weights and a configuration in a folder of their own.
const TOWER_FOLDERS: [(&str, &str); 1] = [("MiMoV2ForCausalLM", "audio_tokenizer")];

/// Returns the folder that holds a part of a model's towers.
pub(super) fn tower_folder(dir: &ModelDir) -> Option<&'static str> {
    let class = dir.config().get("architectures").and_then(|classes| classes[0].as_str())?;
    TOWER_FOLDERS.iter().find(|row| row.0 == class).map(|row| row.1)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedModule {
    /// Python class.
    pub(super) ty: String,
    /// Directory within the model's directory; empty for the model itself.
    pub(super) folder: String,
}

impl ListedModule {
    /// Returns the path of a file of the module within the model's directory.
    pub(super) fn file(&self, name: &str) -> String {
        match self.folder.as_str() {
            "" => name.to_owned(),
            folder => format!("{folder}/{name}"),
        }
    }
}

pub(super) fn wrong(dir: &ModelDir, file: &str, reason: String) -> ConvertError {
    ConvertError::Pooling { path: dir.path().join(file), reason }
}

/// Returns the modules of a Python class, of all for an empty name, in order; empty without `modules.json`.
pub(super) fn of_kind(dir: &ModelDir, class: &str) -> Result<Vec<ListedModule>, ConvertError> {
    let Some(text) = dir.bytes(MODULES)? else { return Ok(Vec::new()) };
    let modules = json::parse(&text, dir.limits().depth)
        .map_err(|source| CheckpointError::Json { path: dir.path().join(MODULES), source })?;
    let modules =
        modules.as_array().ok_or_else(|| wrong(dir, MODULES, "not a list of modules".to_owned()))?;
    let mut found = Vec::new();
    for module in modules {
        let is_kind = |ty: &&str| class.is_empty() || ty.rsplit('.').next() == Some(class);
        let Some(ty) = module["type"].as_str().filter(is_kind) else { continue };
        let folder = module["path"].as_str();
        let folder = folder.ok_or_else(|| wrong(dir, MODULES, format!("module `{ty}` has no `path`")))?;
        found.push(ListedModule {
            ty: ty.to_owned(),
            folder: inside(folder).ok_or_else(|| outside(dir, folder))?,
        });
    }
    Ok(found)
}

fn outside(dir: &ModelDir, folder: &str) -> ConvertError {
    wrong(dir, MODULES, format!("`{folder}` leaves the directory"))
}

/// Normalizes a path by removing `.` and repeated separators; `None` for one that could lead out of the directory.
fn inside(folder: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in Path::new(folder).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

/// Adds the layers of dense modules to a model's weights, as `dense_2.weight` and `dense_3.weight` in the order of
/// `modules.json`.
///
/// # Errors
/// A broken file; a configuration whose sizes contradict the weight's; requested modules that do not exist or have no
/// place in a file.
pub(super) fn add_dense(dir: &ModelDir, asked: bool, weights: &mut WithModules) -> Result<(), ConvertError> {
    let class = dir.config().get("architectures").and_then(|classes| classes[0].as_str());
    if class.is_some_and(|class| WITH_DENSE.contains(&class)) {
        weights.add(dir, "1_Dense/model.safetensors", "dense_2")?;
        return Ok(());
    }
    if !asked {
        return Ok(());
    }
    if !class.is_some_and(|class| DENSE_CLASSES.contains(&class)) {
        let class = class.unwrap_or_default();
        let reason =
            format!("files of `{}` have no place for dense modules: leave {OPTION} off", escape(class));
        return Err(wrong(dir, MODULES, reason));
    }
    let mut layers = DENSE_LAYERS.into_iter();
    for module in of_kind(dir, "Dense")? {
        let file = module.file("model.safetensors");
        if dir.file(&file).is_none() {
            continue;
        }
        let layer = layers.next().ok_or_else(|| {
            let folder = escape(&module.folder);
            wrong(dir, MODULES, format!("`{folder}` is a third dense module, and a file has place for two"))
        })?;
        weights.add(dir, &file, layer)?;
        check_sizes(dir, &module, layer, weights)?;
    }
    if layers.len() == DENSE_LAYERS.len() {
        return Err(wrong(dir, MODULES, format!("no dense module with weights, and {OPTION} asks for them")));
    }
    Ok(())
}

/// Checks the sizes that the module's configuration declares for its layer, if any.
fn check_sizes(
    dir: &ModelDir,
    module: &ListedModule,
    layer: &str,
    weights: &WithModules,
) -> Result<(), ConvertError> {
    use gguf_core::WeightSource;
    let file = module.file("config.json");
    let Some(config) = dir.json(&file)? else { return Ok(()) };
    let name = format!("{layer}.weight");
    let meta = weights.weights().iter().find(|weight| weight.name == name);
    let meta =
        meta.ok_or_else(|| wrong(dir, &module.file("model.safetensors"), "no `linear.weight`".into()))?;
    for (key, dim) in ["out_features", "in_features"].into_iter().zip(meta.shape.dims()) {
        let declared = config.get(key).and_then(Json::as_u64);
        if declared.is_some_and(|declared| declared != *dim) {
            let declared = declared.unwrap_or_default();
            return Err(wrong(dir, &file, format!("`{key}` is {declared}, the weight is {}", meta.shape)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::inside;

    #[test]
    fn paths_stay_in_the_directory() {
        assert_eq!(inside("./2_Dense/").as_deref(), Some("2_Dense"));
        assert_eq!(inside("a//b").as_deref(), Some("a/b"));
        assert_eq!(inside("").as_deref(), Some(""));
        assert_eq!(inside("../a"), None);
        assert_eq!(inside("a/../../b"), None);
        assert_eq!(inside("/etc"), None);
    }
}
