//! Merge of an adapter into the weights of its base, at the level of the checkpoint: cards see the sums.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::lora::config::AdapterConfig;
use crate::lora::error::Stray;
use crate::lora::names::{WeightNames, is_head};
use crate::lora::pair::{MatrixPair, ProductForm};
use crate::lora::parts::{AdapterParts, WholeTensor};
use crate::lora::{AdapterError, adapter_vocabulary, experts, mlx, pieces, settings, tokenizer};
use crate::source::MergedAdapter;
use crate::{ConvertError, ConvertOptions, ModelSource, left_out};
use gguf_arch::{CardKind, Mapping};
use gguf_checkpoint::{AdapterDir, ModelDir};
use gguf_core::text::escape;
use gguf_core::{Shape, WeightMeta, WeightSource};
use gguf_dequant::{AdapterChanges, AddedBias, LoraPair, LoraPart, Replaced, ReplacedRows, with_adapter};

/// Configuration key for models whose output is their embeddings.
const TIED: &str = "tie_word_embeddings";
/// Endings of the embeddings' names.
const EMBEDDINGS: [&str; 4] =
    ["embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight"];

impl ModelSource {
    /// Merges a PEFT adapter into the weights of this model as they are read.
    ///
    /// A pair changes a weight to W + scale · B · A; whole tensors of the adapter replace the model's.
    ///
    /// # Errors
    /// An adapter that cannot be read or merged, or that belongs to another model.
    pub fn merged(mut self, path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let Some(base) = self.weights.take() else { return Ok(self) };
        let mut adapter = AdapterDir::open(path, &options.limits)?;
        let config = AdapterConfig::of(&adapter)?;
        let saved_by_mlx = mlx::original(&mut adapter, config.mlx.is_some(), self.dir.config())?;
        if !config.invocation_tokens.is_empty() {
            return Err(AdapterError::Activated { path: adapter.config_path() }.into());
        }
        let parts = AdapterParts::of(adapter.weights(), &config, |_| true)?;
        if parts.is_empty() {
            return Err(AdapterError::Empty { path: path.to_owned() }.into());
        }
        if let Some(saved) = saved_by_mlx.filter(|saved| saved.has_norms_with_one() && self.mlx.is_none())
            && let Some(norm) = parts.whole.iter().find(|whole| whole.name.contains("norm"))
        {
            return Err(AdapterError::MlxNorm { path: saved.path, tensor: norm.name.clone() }.into());
        }
        let names = WeightNames::of(base.weights(), parts.base_names());
        let merge =
            Merge { config: &config, adapter: &adapter, parts: &parts, names: &names, base: base.weights() };
        let mut changes = merge.changes()?;
        let is_tied = self.dir.config().get(TIED) == Some(&Json::Bool(true));
        let resized =
            adapter_vocabulary::resize(&mut changes.replaced, base.weights(), adapter.weights(), is_tied)?;
        if let Some(resized) = resized {
            self.dir = resized.configured(self.dir);
            self.warnings.push(resized.to_string());
        }
        let untied = (!changes.copies.is_empty()).then_some(base.weights().len());
        if untied.is_some() {
            self.dir = untied_config(self.dir);
        }

        self.warnings.extend_from_slice(adapter.warnings());
        self.warnings.extend(parts.other_ranks(&config));
        self.warnings.extend(settings::doubts(&adapter));
        if let Some(own) = tokenizer::of_adapter(&self.dir, &adapter)? {
            self.paths.extend(own.paths());
            self.warnings.push(own.warning);
            self.dir = self.dir.with_others(own.files);
        }
        self.warn_of_shared_embeddings(&parts, base.weights());
        self.paths.extend(adapter.paths());
        let changed = changed(&changes);
        if let Some(quantization) = &mut self.quantization {
            // A sum is not one of the checkpoint's codes.
            for meta in changed.iter().filter_map(|&at| base.weights().get(at)) {
                quantization.encodings.remove(&meta.name);
            }
        }
        // If all quantized weights were changed, the result is plain floats.
        if let Some(plain) = self.quantization.take_if(|quantization| quantization.encodings.is_empty()) {
            self.pieces.extend(plain.pieces);
        }
        self.adapter = Some(MergedAdapter { name: adapter.dir().name()?, changes: changed, untied });
        let adapter = Arc::new(adapter);
        let matrices: Arc<dyn WeightSource + Send> = adapter.clone();
        self.weights = Some(with_adapter(base, &matrices, &changes, options.level)?);
        let made = made_of(&changes, self.metas(), adapter.weights().len());
        self.pieces.extend(pieces::of(&config, &adapter, made, &HashMap::new()));
        Ok(self)
    }

    /// Warns if a change of the embeddings also changes the output.
    fn warn_of_shared_embeddings(&mut self, parts: &AdapterParts, weights: &[WeightMeta]) {
        let has_output = weights.iter().any(|meta| meta.name.ends_with("lm_head.weight"));
        let is_shared = self.dir.config().get("tie_word_embeddings") == Some(&Json::Bool(true));
        let is_changed = parts.pairs.iter().any(|pair| pair.form == ProductForm::Embedding);
        if is_changed && (is_shared || !has_output) {
            self.warnings.push(
                "the model's output is its embeddings: with the embeddings the adapter changes the output as well"
                    .to_owned(),
            );
        }
    }
}

impl MergedAdapter {
    /// Returns warnings about changes that a mapping of the model leaves out, or writes to a tensor of their own.
    pub(crate) fn warnings(
        &self,
        mapping: &Mapping,
        weights: &[WeightMeta],
        kind: CardKind,
    ) -> Result<Vec<String>, AdapterError> {
        let is_changed = |at: usize| self.changes.binary_search(&at).is_ok();
        let mut warnings = left_out::of_adapter(mapping, weights, is_changed, kind);
        let is_dropped = |at: usize| mapping.dropped.iter().any(|dropped| dropped.weight == at);
        if kind == CardKind::Mmproj && self.changes.iter().all(|&at| is_dropped(at)) {
            warnings.push("the adapter changes nothing of the towers: they are the base model's".to_owned());
        }
        let Some(head) = self.untied.filter(|_| kind == CardKind::Text) else { return Ok(warnings) };
        let tensor = weights.get(head).map(|meta| meta.name.clone()).unwrap_or_default();
        if is_dropped(head) {
            return Err(AdapterError::SharedOutput { tensor });
        }
        warnings.push(format!(
            "the adapter changes the output `{}`, which is the embeddings in the base model: it is written as a tensor of \
             its own, and the embeddings stay as they are",
            escape(&tensor)
        ));
        Ok(warnings)
    }
}

/// Returns the names of the weights that each tensor of an adapter changes.
fn made_of(changes: &AdapterChanges, weights: &[WeightMeta], n_tensors: usize) -> Vec<Vec<String>> {
    let pairs = changes.pairs.iter().flat_map(|pair| [(pair.a, pair.base), (pair.b, pair.base)]);
    let replaced = changes.replaced.iter().map(|row| (row.by, row.base));
    let rows = changes.rows.iter().map(|row| (row.by, row.base));
    let biases = changes.biases.iter().map(|row| (row.by, row.base));
    let lengths = changes.lengths.iter().map(|row| (row.1, row.0));
    let mut made = vec![Vec::new(); n_tensors];
    for (tensor, base) in pairs.chain(replaced).chain(rows).chain(biases).chain(lengths) {
        made[tensor].extend(weights.get(base).map(|meta| meta.name.clone()));
    }
    made
}

/// Returns the weights that an adapter changes, by their index.
fn changed(changes: &AdapterChanges) -> Vec<usize> {
    let pairs = changes.pairs.iter().map(|pair| pair.base);
    let replaced = changes.replaced.iter().map(|row| row.base);
    let others = changes.rows.iter().map(|row| row.base).chain(changes.biases.iter().map(|row| row.base));
    let mut all: Vec<usize> = pairs.chain(replaced).chain(others).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the directory with a configuration of a model that has an output of its own.
fn untied_config(dir: ModelDir) -> ModelDir {
    let mut config = dir.config().clone();
    let untie = |map: &mut Map<String, Json>| map.insert(TIED.to_owned(), false.into());
    if let Some(text) = config.get_mut("text_config").and_then(Json::as_object_mut) {
        untie(text);
    }
    untie(&mut config);
    dir.with_config(config)
}

/// An adapter and the weights that it changes.
struct Merge<'a> {
    config: &'a AdapterConfig,
    adapter: &'a AdapterDir,
    parts: &'a AdapterParts,
    names: &'a WeightNames<'a>,
    base: &'a [WeightMeta],
}

impl Merge<'_> {
    fn changes(&self) -> Result<AdapterChanges, AdapterError> {
        let mut changes = AdapterChanges {
            biases: self.biases()?,
            rows: self.rows()?,
            lengths: self.lengths()?,
            ..AdapterChanges::default()
        };
        let mut layers = Vec::new();
        for pair in &self.parts.pairs {
            match self.names.find(&pair.name) {
                Ok(at) if pair.n_experts == 1 => layers.push((pair, at)),
                Err(error) if is_head(&pair.name) => {
                    layers.push((pair, self.base.len()));
                    changes.copies.push(self.tied_head(&pair.name, &pair.meta.shape).ok_or(error)?);
                }
                _ => changes.pairs.extend(experts::merged(pair, self.names, self.base, self.scale(pair))?),
            }
        }
        let copies: Vec<&WeightMeta> = changes.copies.iter().filter_map(|row| self.base.get(row.0)).collect();
        let meta = |at: usize| self.base.get(at).or_else(|| copies.first().copied());
        let found: Vec<_> = layers.iter().filter_map(|(pair, at)| Some((*pair, *at, meta(*at)?))).collect();
        let transposes_layers = transposes_layers(self.config, &found);
        for (pair, base, meta) in found {
            let is_transposed = is_transposed(pair, meta, transposes_layers);
            if let Some(own) = changes.lengths.iter().find(|own| own.0 == base)
                && is_transposed
                && !pair.is_of_mlx
            {
                let tensor = self.adapter.weights()[own.1].name.clone();
                return Err(AdapterError::Stray { tensor, stray: Stray::Magnitude });
            }
            let (a, b, scale, part) = (pair.a, pair.b, self.scale(pair), LoraPart::default());
            changes.pairs.push(LoraPair { base, a, b, scale, is_transposed, part });
        }
        changes.replaced = self.replaced(&mut changes.copies)?;
        Ok(changes)
    }

    fn scale(&self, pair: &MatrixPair) -> f32 {
        (self.config.effective_alpha(&pair.module, pair.rank) / pair.rank as f64) as f32
    }

    /// Returns the embeddings that are the base's output, with the name of the output: it becomes a tensor of its own.
    fn tied_head(&self, name: &str, shape: &Shape) -> Option<(usize, String)> {
        let mut found = EMBEDDINGS.iter().filter_map(|name| self.names.find(name).ok());
        found.find(|&at| self.base[at].shape == *shape).map(|at| (at, name.to_owned()))
    }

    fn replaced(&self, copies: &mut Vec<(usize, String)>) -> Result<Vec<Replaced>, AdapterError> {
        let tensor = |whole: &WholeTensor| {
            let base = self.names.find(&whole.name)?;
            Ok::<_, AdapterError>(Replaced { base, by: whole.index, resizes: false })
        };
        let mut replaced = Vec::with_capacity(self.parts.whole.len());
        for whole in &self.parts.whole {
            let shape = &self.adapter.weights()[whole.index].shape;
            replaced.push(match tensor(whole) {
                Err(error) if is_head(&whole.name) && copies.is_empty() => {
                    copies.push(self.tied_head(&whole.name, shape).ok_or(error)?);
                    Replaced { base: self.base.len(), by: whole.index, resizes: false }
                }
                found => found?,
            });
        }
        // ref: PEFT loads the tensors that its matrices change in place of the base's, if the adapter has them
        replaced.extend(self.parts.bases.iter().filter_map(|whole| tensor(whole).ok()));
        Ok(replaced)
    }

    fn rows(&self) -> Result<Vec<ReplacedRows>, AdapterError> {
        let rows = self.parts.tokens.iter().map(|tokens| {
            let found = self.config.token_rows(tokens.name.trim_end_matches(".weight"));
            let found = found.ok_or_else(|| AdapterError::NoTokens {
                path: self.adapter.config_path(),
                tensor: self.adapter.weights()[tokens.index].name.clone(),
            })?;
            let base = self.names.find(&tokens.name)?;
            Ok(ReplacedRows { base, by: tokens.index, rows: found.to_vec() })
        });
        rows.collect()
    }

    /// Returns the weights whose rows have lengths of their own.
    fn lengths(&self) -> Result<Vec<(usize, usize)>, AdapterError> {
        self.parts.lengths.iter().map(|own| Ok((self.names.find(&own.name)?, own.index))).collect()
    }

    fn biases(&self) -> Result<Vec<AddedBias>, AdapterError> {
        let biases = self.parts.biases.iter().map(|bias| {
            let tensor = self.adapter.weights()[bias.index].name.clone();
            let module = bias.name.trim_end_matches(".bias");
            let pair = self.parts.pairs.iter().find(|pair| pair.module == module);
            let pair = pair.ok_or_else(|| AdapterError::Half {
                missing: tensor.replace(".bias", ".weight"),
                tensor: tensor.clone(),
            })?;
            let base = self.names.find(&bias.name);
            let base = base.map_err(|_| AdapterError::NoBias { tensor, bias: bias.name.clone() })?;
            Ok(AddedBias { base, by: bias.index, scale: self.scale(pair) })
        });
        biases.collect()
    }
}

/// Returns true if the model's square linear layers are stored transposed: if any non-square layer is, or else by
/// `fan_in_fan_out`.
fn transposes_layers(config: &AdapterConfig, found: &[(&MatrixPair, usize, &WeightMeta)]) -> bool {
    let linear = found.iter().filter(|(pair, ..)| pair.form == ProductForm::Linear);
    let shown = linear.into_iter().find_map(|(pair, _, meta)| {
        let (dims, own) = (meta.shape.dims(), pair.meta.shape.dims());
        let is_open = own.iter().rev().eq(own.iter());
        (!is_open && own.iter().rev().eq(dims.iter())).then_some(true)
    });
    shown.unwrap_or(config.fan_in_fan_out)
}

fn is_transposed(pair: &MatrixPair, meta: &WeightMeta, transposes_layers: bool) -> bool {
    let (dims, own) = (meta.shape.dims(), pair.meta.shape.dims());
    let is_turned = match pair.form {
        ProductForm::Embedding => true,
        ProductForm::Linear if own.iter().rev().eq(own.iter()) => transposes_layers,
        ProductForm::Linear => dims != own && own.iter().rev().eq(dims.iter()),
    };
    is_turned != pair.is_of_mlx
}
