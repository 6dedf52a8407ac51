//! Floats that MLX saved: the form that transformers gives them.
//!
//! mlx-lm changes weights as it loads them, and saves what it has. Only `"format": "mlx"` in the header of the file tells.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use gguf_checkpoint::{Checkpoint, CheckpointError, SelectedWeights};
use gguf_core::text::escape;
use gguf_core::{Shape, WeightMeta, WeightSource};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

#[derive(Default, Deserialize)]
struct Facts {
    norms_with_one: Vec<String>,
    known: Vec<String>,
    refused: HashMap<String, String>,
    renamed: HashMap<String, Vec<(String, String)>>,
}

static FACTS: LazyLock<Facts> =
    // A test covers that the table parses.
    LazyLock::new(|| toml::from_str(include_str!("mlx.toml")).unwrap_or_default());

/// Checkpoint that MLX saved.
#[derive(Clone, Debug)]
pub(super) struct SavedByMlx {
    /// First of its weight files.
    pub(super) path: PathBuf,
    /// Model types in the configuration.
    types: Vec<String>,
}

impl SavedByMlx {
    /// Recognizes a checkpoint by the headers of its files.
    pub(super) fn find(checkpoint: &Checkpoint) -> Option<Self> {
        let parts = checkpoint.parts();
        let is_of_mlx = |metadata: &[(String, String)]| {
            metadata.iter().any(|(key, value)| key == "format" && value == "mlx")
        };
        let part = parts.iter().find(|part| is_of_mlx(part.metadata))?;
        let path = checkpoint.dir().path().join(part.name);
        Some(Self { path, types: types(checkpoint.dir().config()) })
    }

    /// Refuses models whose changes cannot be undone.
    pub(super) fn check(&self) -> Result<(), CheckpointError> {
        let change = self.types.iter().find_map(|ty| FACTS.refused.get(ty));
        change.map_or(Ok(()), |change| {
            Err(CheckpointError::SavedByMlx { path: self.path.clone(), change: change.clone() })
        })
    }

    /// Returns true if norms are stored with the one that the file adds to those of transformers.
    pub(super) fn has_norms_with_one(&self) -> bool {
        self.types.iter().any(|ty| FACTS.norms_with_one.contains(ty))
    }

    /// Returns a warning if it is not known what MLX changes in this model.
    pub(super) fn doubt(&self) -> Option<String> {
        let is_known = self.types.iter().any(|ty| FACTS.known.contains(ty));
        let ty = self.types.first().filter(|_| !is_known)?;
        Some(format!(
            "{}: MLX saved these weights, and what it changes in models of type `{}` is not known; convert the model that \
             MLX was given",
            self.path.display(),
            escape(ty)
        ))
    }

    /// Returns the weights with the names and shapes that transformers gives them.
    pub(super) fn as_saved_by_transformers(
        &self,
        weights: Arc<dyn WeightSource + Send>,
    ) -> Arc<dyn WeightSource + Send> {
        let renamed: Vec<&(String, String)> =
            self.types.iter().filter_map(|ty| FACTS.renamed.get(ty)).flatten().collect();
        let original = |meta: &WeightMeta| {
            let name =
                renamed.iter().fold(meta.name.clone(), |name, (own, original)| name.replace(own, original));
            WeightMeta { name, shape: channels_first(meta), ty: meta.ty }
        };
        if weights.weights().iter().all(|meta| original(meta) == *meta) {
            return weights;
        }
        Arc::new(SelectedWeights::reshaped(weights, original))
    }
}

/// Returns the model type of a configuration, and that of its text part.
fn types(config: &Map<String, Json>) -> Vec<String> {
    let of = |map: &Map<String, Json>| map.get("model_type").and_then(Json::as_str).map(str::to_owned);
    let text = config.get("text_config").and_then(Json::as_object);
    [Some(config), text].into_iter().flatten().filter_map(of).collect()
}

/// Returns the shape of a convolution of each channel by itself as `[channels, 1, width]`: the elements have that order
/// in either form.
fn channels_first(meta: &WeightMeta) -> Shape {
    let is_kernel = meta.name.split('.').any(|part| part.contains("conv"));
    match *meta.shape.dims() {
        [channels, width, 1] if is_kernel => Shape::new(vec![channels, 1, width]),
        _ => None,
    }
    .unwrap_or_else(|| meta.shape.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let facts: Facts = toml::from_str(include_str!("mlx.toml")).unwrap();
        assert!(facts.known.len() > 100 && facts.refused.len() > 4);
        assert!(facts.norms_with_one.iter().chain(facts.renamed.keys()).all(|ty| facts.known.contains(ty)));
        assert!(facts.refused.keys().all(|ty| !facts.known.contains(ty)));
    }
}
