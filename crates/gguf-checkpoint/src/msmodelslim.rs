//! The description file of a checkpoint quantized with Ascend's msModelSlim: the quantization of each tensor.
//!
//! Also finds the weight files, whose names differ from those of a float model.
//!
//! `quant_model_description.json` or `quant_model_description_<type>.json` is one object. Some keys describe the
//! whole checkpoint; all others map a tensor name to a label.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::files::counted;
use crate::{CheckpointError, ModelDir};

const DESCRIPTION: &str = "quant_model_description";
const WEIGHTS: &str = "quant_model_weight";

/// A parsed description file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// File name of the description.
    pub file_name: String,
    /// Value of `version`; the older layout has none, and does not pack codes.
    pub version: Option<String>,
    /// Label by tensor name.
    pub labels: BTreeMap<String, String>,
}

impl Description {
    /// Reads the description of a directory; `None` if there is none.
    ///
    /// # Errors
    /// More than one description; broken JSON; a label that is not text.
    pub fn find(dir: &ModelDir) -> Result<Option<Self>, CheckpointError> {
        let Some(file_name) = file_name(dir, &dir.file_names()?)? else { return Ok(None) };
        let Some(object) = dir.json(&file_name)? else { return Ok(None) };
        let path = || dir.path().join(&file_name);
        let labels = labels(&object).map_err(|key| CheckpointError::Label { path: path(), key })?;
        // Only its presence matters, and a value that is not text counts as absent.
        let version = object.get("version").and_then(Value::as_str).map(ToOwned::to_owned);
        Ok(Some(Self { file_name, version, labels }))
    }

    /// Renames labels along with their tensors; `renamed` yields pairs of stored name and new name.
    pub fn rename<'a>(&mut self, renamed: impl Iterator<Item = (&'a str, &'a str)>) {
        for (stored, own) in renamed {
            if let Some(label) = self.labels.remove(stored) {
                self.labels.entry(own.to_owned()).or_insert(label);
            }
        }
    }
}

/// Returns the labels of tensors, or the key of the first label that is not text.
fn labels(object: &Map<String, Value>) -> Result<BTreeMap<String, String>, String> {
    // A tensor's name has a point, keys of the whole have none. `<module>.quant_type` describes how attention is computed.
    let is_tensor = |key: &str| key.rsplit_once('.').is_some_and(|(_, last)| last != "quant_type");
    let label = |(key, value): (&String, &Value)| match value.as_str() {
        Some(label) => Ok((key.clone(), label.to_owned())),
        None => Err(key.clone()),
    };
    object.iter().filter(|row| is_tensor(row.0)).map(label).collect()
}

/// Returns the only description among the files of a directory.
fn file_name(dir: &ModelDir, names: &[String]) -> Result<Option<String>, CheckpointError> {
    let is_description =
        |name: &&String| name.starts_with(DESCRIPTION) && name.strip_suffix(".json").is_some();
    let mut found = names.iter().filter(is_description).cloned();
    match (found.next(), found.next()) {
        (first, None) => Ok(first),
        (first, second) => {
            let names = first.into_iter().chain(second).chain(found).collect();
            Err(CheckpointError::Several { dir: dir.path().to_owned(), what: "descriptions", names })
        }
    }
}

/// Returns the prefix of the weight files' names (`quant_model_weights`).
///
/// `None` if there is no description, or the weights have the names of a float model.
///
/// # Errors
/// Several sets of weights, none of which the description's name selects; weights in parts per device.
pub(super) fn weights_stem(dir: &ModelDir) -> Result<Option<String>, CheckpointError> {
    let names = dir.file_names()?;
    let Some(description) = file_name(dir, &names)? else { return Ok(None) };
    let mut stems: BTreeSet<&str> = names.iter().filter_map(|name| stem(name)).collect();
    if stems.is_empty() && names.iter().any(|name| name == "rank_0") {
        return Err(CheckpointError::Unmerged { dir: dir.path().to_owned() });
    }
    if stems.len() > 1 {
        let suffix = description.trim_start_matches(DESCRIPTION).trim_end_matches(".json");
        let selected = |stem: &&str| !suffix.is_empty() && stem.ends_with(suffix);
        match stems.iter().copied().filter(selected).collect::<Vec<_>>().as_slice() {
            &[one] => return Ok(Some(one.to_owned())),
            _ => {
                let names = stems.into_iter().map(ToOwned::to_owned).collect();
                return Err(CheckpointError::Several {
                    dir: dir.path().to_owned(),
                    what: "sets of weights",
                    names,
                });
            }
        }
    }
    Ok(stems.pop_first().map(ToOwned::to_owned))
}

/// Returns the prefix that the weight files of a set share.
fn stem(name: &str) -> Option<&str> {
    if !name.starts_with(WEIGHTS) {
        return None;
    }
    if let Some(stem) = name.strip_suffix(".safetensors.index.json") {
        return Some(stem);
    }
    let single = name.strip_suffix(".safetensors")?;
    Some(counted(name, ".safetensors").map_or(single, |(stem, _)| stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_leave_out_the_count() {
        assert_eq!(stem("quant_model_weights.safetensors"), Some("quant_model_weights"));
        assert_eq!(stem("quant_model_weight_w8a8.safetensors.index.json"), Some("quant_model_weight_w8a8"));
        assert_eq!(stem("quant_model_weights-00001-of-00002.safetensors"), Some("quant_model_weights"));
        assert_eq!(stem("quant_model_description.json"), None);
        assert_eq!(stem("model.safetensors"), None);
    }

    #[test]
    fn keys_of_the_whole_are_no_labels() {
        let text = r#"{"model_quant_type": "W8A8", "group_size": 0, "metadata": {}, "is_rot_used": true, "a.quant_type": "K", "a.weight": "FLOAT"}"#;
        let object: Map<String, Value> = serde_json::from_str(text).unwrap();
        assert_eq!(
            labels(&object).unwrap().into_iter().collect::<Vec<_>>(),
            [("a.weight".into(), "FLOAT".into())]
        );
        let object: Map<String, Value> = serde_json::from_str(r#"{"a.weight": 8}"#).unwrap();
        assert_eq!(labels(&object).unwrap_err(), "a.weight");
    }

    #[test]
    fn labels_follow_the_names_of_their_tensors() {
        let labels = [("module.a.weight", "W8A8"), ("b.weight", "FLOAT")];
        let labels = labels.map(|(name, label)| (name.to_owned(), label.to_owned())).into();
        let mut description = Description { file_name: String::new(), version: None, labels };
        description.rename([("module.a.weight", "a.weight"), ("module.c", "c")].into_iter());
        assert_eq!(description.labels.keys().collect::<Vec<_>>(), ["a.weight", "b.weight"]);
        assert_eq!(description.labels["a.weight"], "W8A8");
    }
}
