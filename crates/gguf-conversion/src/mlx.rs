//! Weights that MLX saved: the form that transformers gives them.
//!
//! mlx-lm changes weights as it loads them, and saves what it has. Of floats only `"format": "mlx"` in the header of the file
//! tells it. Words of MLX are also written by AutoRound, which changes nothing else: without that header names and shapes tell.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use gguf_arch::{Mapping, OutputSpec};
use gguf_checkpoint::{ChannelsFirst, Checkpoint, CheckpointError, Part, SelectedWeights};
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
    /// Recognizes a checkpoint by the headers of its files, or by words of MLX.
    pub(super) fn find(checkpoint: &Checkpoint) -> Option<Self> {
        let parts = checkpoint.parts();
        let saved_as = |format: &str| {
            parts.iter().find(|part| part.metadata.iter().any(|(key, own)| key == "format" && own == format))
        };
        let config = checkpoint.dir().config();
        let of = |part: &Part<'_>| Self::of_adapter(checkpoint.dir().path().join(part.name), config);
        if let Some(part) = saved_as("mlx") {
            return Some(of(part));
        }
        let words = gguf_dequant::has_words(checkpoint.weights());
        let found = parts.first().filter(|_| words).map(of)?;
        let is_changed = found.are_changed(checkpoint.weights()).unwrap_or(saved_as("pt").is_none());
        is_changed.then_some(found)
    }

    /// Returns true if weights have names or axes that MLX gives them, false if they have those that it changes; `None` if
    /// there are neither.
    fn are_changed(&self, weights: &[WeightMeta]) -> Option<bool> {
        let renamed: Vec<_> = self.types.iter().filter_map(|ty| FACTS.renamed.get(ty)).flatten().collect();
        let of = |meta: &WeightMeta| {
            let is_number = |part: &str| part.parse::<u64>().is_ok();
            let mut experts = meta.name.split(".experts.").skip(1);
            let is_of_one = experts.any(|rest| rest.split('.').next().is_some_and(is_number));
            match *meta.shape.dims() {
                [_, width, 1] if width > 1 && is_convolution(meta) => Some(true),
                [_, 1, width] if width > 1 && is_convolution(meta) => Some(false),
                _ if meta.name.contains(".switch_") => Some(true),
                _ if is_of_one => Some(false),
                _ => renamed.iter().find_map(|(own, original)| {
                    let has = |part: &str| meta.name.contains(part);
                    has(own).then_some(true).or_else(|| has(original).then_some(false))
                }),
            }
        };
        let mut found = weights.iter().filter_map(of);
        found.next().map(|first| first || found.any(|other| other))
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
        let has_names = |ty| FACTS.starts.iter().any(|row| row.types.contains(ty));
        let is_known = |ty| FACTS.known.contains(ty) || FACTS.refused.contains_key(ty) || has_names(ty);
        let is_known = self.types.iter().any(is_known);
        let ty = self.types.first().filter(|_| !is_known)?;
        Some(format!(
            "{}: MLX saved these weights, and what it changes in models of type `{}` is not known; convert the model that \
             MLX was given",
            self.path.display(),
            escape(ty)
        ))
    }

    /// Returns a warning about a draft head, which mlx-lm leaves out: other programs add it to its models, some with the norms of
    /// the original.
    pub(super) fn doubt_of_head(&self, mapping: &Mapping) -> Option<String> {
        let is_of_head = |output: &&OutputSpec| output.name.contains(".nextn.");
        let output = mapping.outputs.iter().find(is_of_head).filter(|_| self.has_norms_with_one())?;
        let block = output.name.split(".nextn.").next().unwrap_or_default();
        Some(format!(
            "{}: MLX stores the norms of this model with one added, and nothing tells whether the draft head (`{block}`) has \
             them so: it is left out; the model that MLX was given has it",
            self.path.display()
        ))
    }

    /// Returns the error about a draft head in doubt that is converted alone.
    pub(super) fn head_alone(&self) -> CheckpointError {
        let change = "with one added to norms, perhaps not to those of the draft head".to_owned();
        CheckpointError::SavedByMlx { path: self.path.clone(), change }
    }

    /// Returns the name that transformers gives a weight, or the weight that this one is a part of.
    pub(super) fn original_name(&self, name: &str) -> String {
        let name = self.name_of_part(name);
        let whole = |row: &Joined| {
            row.parts
                .iter()
                .find_map(|part| Some(format!("{}{}", name.strip_suffix(part.as_str())?, row.name)))
        };
        self.joined().find_map(whole).unwrap_or(name)
    }

    /// Returns a weight's name with the modules of transformers.
    pub(super) fn name_of_part(&self, name: &str) -> String {
        let renamed = self.types.iter().filter_map(|ty| FACTS.renamed.get(ty)).flatten();
        let name = renamed.fold(name.to_owned(), |name, (own, original)| name.replace(own, original));
        let starts = FACTS.starts.iter().filter(|row| row.types.iter().any(|ty| self.types.contains(ty)));
        let start =
            |(own, original): &(String, String)| Some(format!("{original}{}", name.strip_prefix(own)?));
        starts.flat_map(|row| &row.names).find_map(start).unwrap_or(name)
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
    /// A kernel of which neither its shape nor the tower's other kernels tell where it has the channels.
    pub(super) fn with_channels_first(
        &self,
        weights: Arc<dyn WeightSource + Send>,
    ) -> Result<Arc<dyn WeightSource + Send>, CheckpointError> {
        let kernels = weights.weights().iter().filter(|meta| is_kernel(meta));
        let kernels: Vec<_> = kernels.map(|meta| (meta, has_channels_last(meta.shape.dims()))).collect();
        let told: HashSet<bool> = kernels.iter().filter_map(|kernel| kernel.1).collect();
        let common = told.iter().copied().next().filter(|_| told.len() == 1);
        if let Some((meta, _)) = kernels.iter().find(|kernel| kernel.1.or(common).is_none()) {
            let change = format!(
                "with the channels last or first in `{}` {}, which nothing tells",
                escape(&meta.name),
                meta.shape
            );
            return Err(CheckpointError::SavedByMlx { path: self.path.clone(), change });
        }
        let last = kernels.iter().filter(|kernel| kernel.1.or(common) == Some(true));
        let last: HashSet<String> = last.map(|kernel| kernel.0.name.clone()).collect();
        if last.is_empty() {
            return Ok(weights);
        }
        Ok(Arc::new(ChannelsFirst::over(weights, |meta| last.contains(&meta.name))))
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

fn is_convolution(meta: &WeightMeta) -> bool {
    meta.name.ends_with(".weight") && meta.name.split('.').any(|part| part.contains("conv"))
}

/// Returns true for the kernel of a convolution over more than single channels or places. Position embeddings have one
/// matrix.
fn is_kernel(meta: &WeightMeta) -> bool {
    match *meta.shape.dims() {
        [_, 1, _] | [_, _, 1] => false,
        [_, _, _] => is_convolution(meta),
        [outputs, _, _, _, ..] => outputs > 1 && meta.name.ends_with(".weight"),
        _ => false,
    }
}

/// Returns true if the shape of a kernel has the channels last, false if it has them first; `None` if that is open. Kernels
/// are as high as wide, have fewer places in a row than channels, or read pictures of three channels.
fn has_channels_last(dims: &[u64]) -> Option<bool> {
    const COLORS: u64 = 3;
    let [.., a, b, c] = *dims else { return None };
    if let [_, n, m] = *dims {
        return (n != m).then_some(n < m);
    }
    match (a == b, b == c) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        (true, true) if dims[1..].iter().all(|&dim| dim == 1) => Some(false),
        _ => match (dims[1] == COLORS, c == COLORS) {
            (true, false) => Some(false),
            (false, true) => Some(true),
            _ => None,
        },
    }
}

/// Returns the shape of a convolution of each channel by itself as `[channels, 1, width]`, of one with a single place as
/// `[outputs, channels, 1]`: the elements have that order in either form.
fn channels_first(meta: &WeightMeta) -> Shape {
    /// No convolution of single channels is that wide.
    const N_CHANNELS: u64 = 32;
    match *meta.shape.dims() {
        [channels, width, 1] if width < N_CHANNELS && is_convolution(meta) => {
            Shape::new(vec![channels, 1, width])
        }
        [outputs, 1, channels] if channels >= N_CHANNELS && is_convolution(meta) => {
            Shape::new(vec![outputs, channels, 1])
        }
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

    #[test]
    fn shapes_of_kernels_tell_where_the_channels_are() {
        let last: [&[u64]; 6] =
            [&[8, 3, 3, 1], &[8, 3, 3, 64], &[8, 14, 14, 3], &[8, 2, 14, 14, 3], &[8, 1, 1, 4], &[8, 3, 80]];
        let first: [&[u64]; 7] = [
            &[8, 1, 3, 3],
            &[8, 64, 3, 3],
            &[8, 3, 14, 14],
            &[8, 3, 2, 14, 14],
            &[8, 4, 1, 1],
            &[8, 80, 3],
            &[8, 1, 1, 1],
        ];
        let open: [&[u64]; 3] = [&[8, 3, 3, 3], &[8, 2, 2, 2], &[8, 3, 3]];
        assert!(last.iter().all(|dims| has_channels_last(dims) == Some(true)));
        assert!(first.iter().all(|dims| has_channels_last(dims) == Some(false)));
        assert!(open.iter().all(|dims| has_channels_last(dims).is_none()));
    }
}
