//! Merge of an adapter into the weights of its base, at the level of the checkpoint: cards see the sums.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::lora::config::AdapterConfig;
use crate::lora::error::Stray;
use crate::lora::mapped::{alternating_source, transposed_source};
use crate::lora::names::{WeightNames, is_head};
use crate::lora::pair::{MatrixPair, ProductForm};
use crate::lora::parts::{AdapterParts, WholeTensor};
use crate::lora::{AdapterError, adapter_vocabulary, experts, mlx, pieces, settings, tokenizer};
use crate::mapping::{CardScope, map};
use crate::source::MergedAdapter;
use crate::{ConvertError, ConvertOptions, ModelSource, drops, left_out, sentence};
use gguf_arch::{CardKind, Mapping};
use gguf_checkpoint::{AdapterDir, ModelDir};
use gguf_core::text::escape;
use gguf_core::{Shape, WeightMeta, WeightSource};
use gguf_dequant::{AdapterChanges, AddedBias, LoraPair, LoraPart, Replaced, ReplacedRows, with_adapter};
use gguf_format::OtherFiles;

/// Configuration key for models whose output is their embeddings.
const TIED: &str = "tie_word_embeddings";
/// Name of the output.
const HEAD: &str = "lm_head.weight";
/// Endings of the classes that have an output.
const WITH_OUTPUT: [&str; 3] = ["ForCausalLM", "ForConditionalGeneration", "LMHeadModel"];
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
        let Some(base) = self.weights.clone() else { return Ok(self) };
        let mut adapter = AdapterDir::open(path, &options.limits)?;
        let config = AdapterConfig::of(&adapter)?;
        let saved_by_mlx = mlx::original(&mut adapter, config.mlx.is_some(), self.dir.config())?;
        if !config.invocation_tokens.is_empty() {
            return Err(AdapterError::Activated { path: adapter.config_path() }.into());
        }
        let parts = AdapterParts::of(adapter.weights(), &config, |_| true, &options.drop)?;
        if parts.is_empty() {
            return Err(AdapterError::Empty { path: path.to_owned() }.into());
        }
        if let Some(saved) = saved_by_mlx.filter(|saved| saved.has_norms_with_one() && self.mlx.is_none())
            && let Some(norm) = parts.whole.iter().find(|whole| whole.name.contains("norm"))
        {
            return Err(AdapterError::MlxNorm { path: saved.path, tensor: norm.name.clone() }.into());
        }
        let names = WeightNames::of(base.weights(), parts.base_names());
        let (transposed, alternating) = told_by_card(&self, &parts, options);
        let merge = Merge {
            config: &config,
            adapter: &adapter,
            parts: &parts,
            names: &names,
            base: base.weights(),
            transposed,
            alternating,
            is_tied: has_tied_output(self.dir.config()) && !config.ties_output,
        };
        let mut changes = merge.changes()?;
        let is_tied = self.dir.config().get(TIED) == Some(&Json::Bool(true));
        let resized =
            adapter_vocabulary::resize(&mut changes.replaced, base.weights(), adapter.weights(), is_tied)?;
        if let Some(resized) = resized {
            self.dir = resized.configured(self.dir);
            self.warnings.push(resized.to_string());
        }
        let untied = changes.copies.first().map(|copy| (base.weights().len(), copy.0));
        if untied.is_some() {
            self.dir = untied_config(self.dir);
        }

        self.warnings.extend_from_slice(adapter.warnings());
        self.warnings.extend(parts.other_ranks(&config));
        self.warnings.extend(settings::doubts(&adapter));
        self.take_files(&adapter)?;
        if untied.is_none() {
            self.warn_of_shared_embeddings(&parts, base.weights());
        }
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
        let mut pieces = pieces::of(&config, &adapter, made, &HashMap::new());
        self.warnings = drops::of_adapter(&options.drop, std::mem::take(&mut self.warnings), &mut pieces);
        self.pieces.extend(pieces);
        Ok(self)
    }

    /// Takes the adapter's tokenizer, and what sentence-transformers has there, in place of the base's.
    fn take_files(&mut self, adapter: &AdapterDir) -> Result<(), ConvertError> {
        let own = adapter.dir();
        let mut names = sentence::files(own)?;
        if !names.is_empty() && self.dir.file(&names[0]).is_some() {
            self.warnings.push(format!(
                "the adapter's `{}`, with the modules of sentence-transformers that it lists, takes the place of the base model's",
                names[0]
            ));
        }
        if let Some(tokenizer) = tokenizer::of_adapter(&self.dir, adapter)? {
            self.warnings.push(tokenizer.warning);
            names.extend(tokenizer.names);
        }
        if !names.is_empty() {
            self.paths.extend(names.iter().filter_map(|name| own.file(name)));
            let others = OtherFiles { dir: own.path().to_owned(), names };
            self.dir = self.dir.clone().with_others(others);
        }
        Ok(())
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
        let Some((head, embeddings)) = self.untied.filter(|_| kind == CardKind::Text) else {
            return Ok(warnings);
        };
        let name = |at: usize| weights.get(at).map(|meta| meta.name.clone()).unwrap_or_default();
        let tensor = name(head);
        if is_dropped(head) {
            return Err(if is_changed(head) {
                AdapterError::SharedOutput { tensor }
            } else {
                AdapterError::KeptOutput { tensor: name(embeddings) }
            });
        }
        let output = escape(&tensor);
        warnings.push(match (is_changed(head), is_changed(embeddings)) {
            (true, false) => format!(
                "the adapter changes the output `{output}`, which is the embeddings in the base model: it is written as a tensor \
                 of its own, and the embeddings stay as they are"
            ),
            (true, true) => format!(
                "the adapter changes the embeddings and the output `{output}`, which are one tensor in the base model: the output \
                 is written as a tensor of its own"
            ),
            (false, _) => format!(
                "the adapter replaces the embeddings `{}`, and PEFT keeps the base model's as the output: they are written as \
                 `{output}`",
                escape(&name(embeddings))
            ),
        });
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
    /// Weights that the base stores transposed.
    transposed: BTreeSet<usize>,
    /// Weights in which rows of several matrices alternate.
    alternating: BTreeSet<usize>,
    /// True if the base's output is its embeddings, and need not remain so.
    is_tied: bool,
}

impl Merge<'_> {
    fn changes(&self) -> Result<AdapterChanges, AdapterError> {
        let mut changes =
            AdapterChanges { biases: self.biases()?, rows: self.rows()?, ..AdapterChanges::default() };
        let mut layers = Vec::new();
        for pair in &self.parts.pairs {
            if pair.n_experts == 1 && (self.names.find(&pair.name).is_ok() || is_head(&pair.name)) {
                layers.push((pair, self.find(&pair.name, &pair.meta.shape, &mut changes.copies)?));
            } else {
                changes.pairs.extend(experts::merged(
                    pair,
                    self.names,
                    self.base,
                    &self.alternating,
                    self.scale(pair),
                )?);
            }
        }
        changes.lengths = self.lengths(&layers)?;
        let copies: Vec<&WeightMeta> = changes.copies.iter().filter_map(|row| self.base.get(row.0)).collect();
        let meta = |at: usize| self.base.get(at).or_else(|| copies.first().copied());
        let found: Vec<_> = layers.iter().filter_map(|(pair, at)| Some((*pair, *at, meta(*at)?))).collect();
        for (pair, base, meta) in found {
            let is_transposed = is_transposed(pair, meta, self.transposed.contains(&base));
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

    /// Returns the weight of a name. An output that is the base's embeddings becomes a tensor of its own, behind the
    /// base's.
    fn find(
        &self,
        name: &str,
        shape: &Shape,
        copies: &mut Vec<(usize, String)>,
    ) -> Result<usize, AdapterError> {
        match self.names.find(name) {
            Err(error) if is_head(name) => {
                if copies.is_empty() {
                    copies.push(self.tied_head(name, shape).ok_or(error)?);
                }
                Ok(self.base.len())
            }
            found => found,
        }
    }

    /// Returns the embeddings that are the base's output, with the name of the output: it becomes a tensor of its own.
    fn tied_head(&self, name: &str, shape: &Shape) -> Option<(usize, String)> {
        let mut found = EMBEDDINGS.iter().filter_map(|name| self.names.find(name).ok());
        found.find(|&at| self.base[at].shape == *shape).map(|at| (at, name.to_owned()))
    }

    fn replaced(&self, copies: &mut Vec<(usize, String)>) -> Result<Vec<Replaced>, AdapterError> {
        let mut replaced = Vec::with_capacity(self.parts.whole.len());
        for whole in &self.parts.whole {
            let shape = &self.adapter.weights()[whole.index].shape;
            let tied =
                || self.tied_head(&whole.name, shape).filter(|_| self.names.find(&whole.name).is_err());
            let base = match tied().filter(|_| self.config.ties_output && is_head(&whole.name)) {
                Some((embeddings, _)) => embeddings,
                None => self.find(&whole.name, shape, copies)?,
            };
            replaced.push(Replaced { base, by: whole.index, resizes: false });
            // ref: PEFT wraps a copy of the module, and the output keeps the base's
            if self.is_tied
                && copies.is_empty()
                && self.names.find(HEAD).is_err()
                && self.config.saves(&whole.name)
            {
                copies.extend(self.tied_head(HEAD, shape).filter(|kept| kept.0 == base));
            }
        }
        let tensor = |whole: &WholeTensor| {
            let base = self.names.find(&whole.name).ok()?;
            Some(Replaced { base, by: whole.index, resizes: false })
        };
        // ref: PEFT loads the tensors that its matrices change in place of the base's, if the adapter has them
        replaced.extend(self.parts.bases.iter().filter_map(tensor));
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

    /// Returns the weights whose rows have lengths of their own: those of pairs.
    fn lengths(&self, layers: &[(&MatrixPair, usize)]) -> Result<Vec<(usize, usize)>, AdapterError> {
        let of_pair = |own: &WholeTensor| layers.iter().find(|(pair, _)| pair.name == own.name);
        let find = |own| of_pair(own).map_or_else(|| self.names.find(&own.name), |(_, at)| Ok(*at));
        self.parts.lengths.iter().map(|own| Ok((find(own)?, own.index))).collect()
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

/// Returns the weights that the base stores transposed, and those in which rows of several matrices alternate, by its card.
/// PEFT, too, goes by the class of each layer (`Conv1D`), whatever `fan_in_fan_out` says; only square matrices do not tell it by
/// their shapes.
fn told_by_card(
    source: &ModelSource,
    parts: &AdapterParts,
    options: &ConvertOptions,
) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let is_open = |pair: &MatrixPair| match *pair.meta.shape.dims() {
        [n, k] => (n == k && pair.form == ProductForm::Linear) || pair.name.contains(".experts."),
        _ => true,
    };
    if !parts.pairs.iter().any(is_open) {
        return (BTreeSet::new(), BTreeSet::new());
    }
    let mapping = map(source, source.metas(), options, CardScope::Part, &mut Vec::new());
    let outputs = || mapping.iter().flat_map(|mapping| &mapping.outputs);
    (outputs().filter_map(transposed_source).collect(), outputs().filter_map(alternating_source).collect())
}

/// Returns true for models that write text by an output that is their embeddings. The class tells those that have an
/// output: encoders have none, and tie it all the same.
fn has_tied_output(config: &Map<String, Json>) -> bool {
    let class = config.get("architectures").and_then(|classes| classes.get(0)?.as_str()).unwrap_or_default();
    let text = config.get("text_config").and_then(Json::as_object);
    let is_untied = |config: &Map<String, Json>| config.get(TIED) == Some(&Json::Bool(false));
    WITH_OUTPUT.iter().any(|end| class.ends_with(end)) && !is_untied(config) && !text.is_some_and(is_untied)
}

fn is_transposed(pair: &MatrixPair, meta: &WeightMeta, is_stored_so: bool) -> bool {
    let (dims, own) = (meta.shape.dims(), pair.meta.shape.dims());
    let is_turned = match pair.form {
        ProductForm::Embedding => true,
        ProductForm::Linear if own.iter().rev().eq(own.iter()) => is_stored_so,
        ProductForm::Linear => dims != own && own.iter().rev().eq(dims.iter()),
    };
    is_turned != pair.is_of_mlx
}
