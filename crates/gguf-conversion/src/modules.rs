//! Folders next to a model: the modules listed in `modules.json` of sentence-transformers, and parts of towers.

use std::path::{Component, Path};

use serde_json::Value as Json;

use crate::ConvertError;
use gguf_checkpoint::modules::WithModules;
use gguf_checkpoint::{CheckpointError, ModelDir, json};

pub(super) const MODULES: &str = "modules.json";

/// Classes whose dense module is always part of the model.
pub(super) const WITH_DENSE: [&str; 2] = ["Lfm2Model", "Lfm2BidirectionalModel"];

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

/// Adds the layers of dense modules to a model's weights, as `dense_2.weight` (from `2_Dense`) and `dense_3.weight`.
///
/// # Errors
/// A broken file; a configuration whose sizes contradict the weight's; requested modules that do not exist.
pub(super) fn add_dense(dir: &ModelDir, asked: bool, weights: &mut WithModules) -> Result<(), ConvertError> {
    let class = dir.config().get("architectures").and_then(|classes| classes[0].as_str());
    if class.is_some_and(|class| WITH_DENSE.contains(&class)) {
        weights.add(dir, "1_Dense/model.safetensors", "dense_2")?;
        return Ok(());
    }
    if !asked {
        return Ok(());
    }
    let mut n_added = 0;
    for module in of_kind(dir, "Dense")? {
        let layer = if module.folder == "2_Dense" { "dense_2" } else { "dense_3" };
        if weights.add(dir, &module.file("model.safetensors"), layer)? {
            check_sizes(dir, &module, layer, weights)?;
            n_added += 1;
        }
    }
    if n_added == 0 {
        let reason =
            "no dense module with weights, and `--sentence-transformers-dense-modules` asks for them";
        return Err(wrong(dir, MODULES, reason.to_owned()));
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
