//! Weights that MLX saved: the form that transformers gives them.
//!
//! mlx-lm changes weights as it loads them, and saves what it has. Of floats only `"format": "mlx"` in the header of the file
//! tells it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use gguf_checkpoint::{ChannelsFirst, Checkpoint, CheckpointError, SelectedWeights};
use gguf_core::simd::SimdLevel;
use gguf_core::text::escape;
use gguf_core::{Shape, WeightMeta, WeightSource};
use gguf_dequant::{Join, Quantization, with_joined};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

#[derive(Default, Deserialize)]
struct Facts {
    norms_with_one: Vec<String>,
    known: Vec<String>,
    refused: HashMap<String, Refused>,
    renamed: HashMap<String, Vec<(String, String)>>,
    starts: Vec<Starts>,
    convolutions: Vec<String>,
    flattened: HashMap<String, Vec<String>>,
    joined: Vec<Joined>,
}

/// Starts of names, and what they are in the original, in models of some types.
#[derive(Deserialize)]
struct Starts {
    types: Vec<String>,
    names: Vec<(String, String)>,
}

/// Parts of a weight by the ends of their names.
#[derive(Deserialize)]
struct Joined {
    parts: [String; 2],
    name: String,
    #[serde(default)]
    first_is_turned: bool,
    #[serde(default)]
    is_flat: bool,
    /// Model types; all if there are none.
    #[serde(default)]
    types: Vec<String>,
}

/// A change that some configurations switch on.
#[derive(Deserialize)]
struct Refused {
    change: String,
    /// Key that switches it on; `None` for a change in all models of the type.
    when: Option<String>,
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
    /// Keys of the configuration that are true.
    switches: Vec<String>,
}

impl SavedByMlx {
    /// Recognizes a checkpoint by the headers of its files.
    pub(super) fn find(checkpoint: &Checkpoint) -> Option<Self> {
        let parts = checkpoint.parts();
        let is_of_mlx = |metadata: &[(String, String)]| {
            metadata.iter().any(|(key, value)| key == "format" && value == "mlx")
        };
        let quantized = gguf_dequant::has_words(checkpoint.weights());
        let part = parts.iter().find(|part| quantized || is_of_mlx(part.metadata))?;
        let path = checkpoint.dir().path().join(part.name);
        Some(Self::of_adapter(path, checkpoint.dir().config()))
    }

    /// Returns what MLX changes in a model with this configuration, for an adapter in `path`.
    pub(super) fn of_adapter(path: PathBuf, config: &Map<String, Json>) -> Self {
        let on = config.iter().filter(|row| *row.1 == Json::Bool(true));
        Self { path, types: types(config), switches: on.map(|row| row.0.clone()).collect() }
    }

    /// Refuses models whose changes cannot be undone.
    pub(super) fn check(&self) -> Result<(), CheckpointError> {
        let is_on = |row: &&Refused| row.when.as_ref().is_none_or(|key| self.switches.contains(key));
        let change = self.types.iter().find_map(|ty| FACTS.refused.get(ty).filter(is_on));
        change.map_or(Ok(()), |row| {
            Err(CheckpointError::SavedByMlx { path: self.path.clone(), change: row.change.clone() })
        })
    }

    /// Returns true if norms are stored with the one that the file adds to those of transformers.
    pub(super) fn has_norms_with_one(&self) -> bool {
        self.types.iter().any(|ty| FACTS.norms_with_one.contains(ty))
    }

    /// Returns a warning if it is not known what MLX changes in this model.
    pub(super) fn doubt(&self) -> Option<String> {
        let is_known = self.types.iter().any(|ty| FACTS.known.contains(ty) || FACTS.refused.contains_key(ty));
        let ty = self.types.first().filter(|_| !is_known)?;
        Some(format!(
            "{}: MLX saved these weights, and what it changes in models of type `{}` is not known; convert the model that \
             MLX was given",
            self.path.display(),
            escape(ty)
        ))
    }

    /// Returns the name that transformers gives a weight.
    pub(super) fn original_name(&self, name: &str) -> String {
        let renamed = self.types.iter().filter_map(|ty| FACTS.renamed.get(ty)).flatten();
        let name = renamed.fold(name.to_owned(), |name, (own, original)| name.replace(own, original));
        let starts = FACTS.starts.iter().filter(|row| row.types.iter().any(|ty| self.types.contains(ty)));
        let start =
            |(own, original): &(String, String)| Some(format!("{original}{}", name.strip_prefix(own)?));
        let name = starts.flat_map(|row| &row.names).find_map(start).unwrap_or(name);
        let whole = |row: &Joined| {
            row.parts
                .iter()
                .find_map(|part| Some(format!("{}{}", name.strip_suffix(part.as_str())?, row.name)))
        };
        self.joined().find_map(whole).unwrap_or(name)
    }

    fn joined(&self) -> impl Iterator<Item = &'static Joined> {
        FACTS
            .joined
            .iter()
            .filter(|row| row.types.is_empty() || row.types.iter().any(|ty| self.types.contains(ty)))
    }

    /// Returns the weights that MLX stores in two parts.
    fn joins(&self, weights: &[WeightMeta]) -> Vec<Join> {
        let by_name: HashMap<&str, usize> =
            weights.iter().enumerate().map(|(at, meta)| (meta.name.as_str(), at)).collect();
        let of = |row: &'static Joined, first: &WeightMeta| {
            let module = first.name.strip_suffix(row.parts[0].as_str())?;
            let at = |part: &String| by_name.get(format!("{module}{part}").as_str()).copied();
            Some(Join {
                name: format!("{module}{}", row.name),
                parts: [at(&row.parts[0])?, at(&row.parts[1])?],
                is_first_turned: row.first_is_turned,
                is_flat: row.is_flat,
            })
        };
        self.joined()
            .flat_map(|row| weights.iter().filter_map(move |meta| of(row, meta)).collect::<Vec<_>>())
            .collect()
    }

    /// Gives the weights of a description the names that transformers has.
    pub(super) fn rename(&self, quantization: &mut Quantization) {
        let own = std::mem::take(&mut quantization.encodings);
        for (name, encoding) in own {
            let known = quantization.encodings.entry(self.original_name(&name));
            known.and_modify(|whole| whole.n_bytes += encoding.n_bytes).or_insert(encoding);
        }
        let made = quantization.pieces.iter_mut().flat_map(|piece| &mut piece.to);
        made.chain(&mut quantization.plain_targets).for_each(|name| *name = self.original_name(name));
    }

    /// Returns the weights with the names and shapes that transformers gives them.
    pub(super) fn as_saved_by_transformers(
        &self,
        mut weights: Arc<dyn WeightSource + Send>,
        level: SimdLevel,
    ) -> Arc<dyn WeightSource + Send> {
        let joins = self.joins(weights.weights());
        if !joins.is_empty() {
            weights = with_joined(weights, &joins, level);
        }
        if weights.weights().iter().all(|meta| self.original(meta) == *meta) {
            return weights;
        }
        Arc::new(SelectedWeights::reshaped(weights, |meta| self.original(meta)))
    }

    /// Returns the weights with the channels of towers' convolutions in front of the places of their kernels.
    ///
    /// # Errors
    /// A tensor of which neither its shape nor its name tells where it has the channels.
    pub(super) fn with_channels_first(
        &self,
        weights: Arc<dyn WeightSource + Send>,
    ) -> Result<Arc<dyn WeightSource + Send>, CheckpointError> {
        let deep = || weights.weights().iter().filter(|meta| meta.shape.rank() >= 4);
        if let Some(meta) = deep().find(|meta| has_channels_last(meta).is_none()) {
            let change = format!(
                "with the channels last or first in `{}` {}, which nothing tells",
                escape(&meta.name),
                meta.shape
            );
            return Err(CheckpointError::SavedByMlx { path: self.path.clone(), change });
        }
        if deep().next().is_none() {
            return Ok(weights);
        }
        let is_kernel = |meta: &WeightMeta| meta.shape.rank() >= 4 && has_channels_last(meta) == Some(true);
        Ok(Arc::new(ChannelsFirst::over(weights, is_kernel)))
    }

    /// Returns a weight with the name and shape that transformers gives it.
    pub(super) fn original(&self, meta: &WeightMeta) -> WeightMeta {
        let mut flattened = self.types.iter().filter_map(|ty| FACTS.flattened.get(ty)).flatten();
        let shape = if flattened.any(|part| meta.name.contains(part.as_str())) {
            Shape::new(vec![meta.shape.n_elems()]).unwrap_or_else(|| meta.shape.clone())
        } else {
            channels_first(meta)
        };
        WeightMeta { name: self.original_name(&meta.name), shape, ty: meta.ty }
    }
}

/// Returns the model type of a configuration, and that of its text part.
fn types(config: &Map<String, Json>) -> Vec<String> {
    let of = |map: &Map<String, Json>| map.get("model_type").and_then(Json::as_str).map(str::to_owned);
    let text = config.get("text_config").and_then(Json::as_object);
    [Some(config), text].into_iter().flatten().filter_map(of).collect()
}

/// Returns true if a tensor of four dimensions or more is a kernel with the channels last, false if it is none or has them
/// first; `None` if that is open. Kernels that read pictures have three channels.
fn has_channels_last(meta: &WeightMeta) -> Option<bool> {
    const COLORS: u64 = 3;
    let dims = meta.shape.dims();
    match (dims.get(1) == Some(&COLORS), dims.last() == Some(&COLORS)) {
        _ if !meta.name.ends_with(".weight") || dims[0] == 1 => Some(false),
        (false, true) => Some(true),
        (true, false) => Some(false),
        _ => FACTS.convolutions.iter().any(|name| meta.name.contains(name.as_str())).then_some(true),
    }
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
        let is_known = |ty: &String| facts.known.contains(ty) || facts.refused.contains_key(ty);
        assert!(facts.norms_with_one.iter().chain(facts.renamed.keys()).all(is_known));
        assert!(facts.refused.keys().all(|ty| !facts.known.contains(ty)));
    }
}
