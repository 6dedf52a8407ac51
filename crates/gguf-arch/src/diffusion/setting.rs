//! Settings of diffusers that no key of a file holds.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Setting in a folder of diffusers that runtimes take from the presence of a tensor.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Architectures for which a setting of all cards holds.
    #[serde(default)]
    pub(super) architectures: Vec<String>,
    /// File, from the folder of the model (`config.json`) or of the pipeline.
    pub file: String,
    /// Key of the file.
    pub key: String,
    /// Values of the key for which the tensor is due.
    pub values: Vec<serde_json::Value>,
    /// Values in the configuration of the model, with one of which runtimes find the setting by themselves.
    #[serde(default)]
    pub found_with: BTreeMap<String, serde_json::Value>,
    /// Name of the tensor; empty if there is none.
    #[serde(default)]
    pub marker: String,
    /// What to do where runtimes do not look for the tensor; without it, the tensor is written.
    pub way_out: Option<String>,
}
