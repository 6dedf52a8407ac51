//! Conversion of PEFT's LoRA adapters: to GGUF adapters, or merged into the weights of their base model.
//!
//! A pair of matrices represents a tensor of the base model. The base's card maps it like the base's own tensor; the
//! card's operations are then applied to the two factors.

mod adapter_merge;
mod adapter_vocabulary;
mod config;
mod error;
mod experts;
mod mapped;
mod mlx;
mod names;
mod pair;
mod parts;
mod pieces;
mod settings;
mod tokenizer;

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::conversion::QUANTIZATION_VERSION;
use crate::metadata::{GeneralMetadata, MetadataFiles, MetadataInputs, general_metadata};
use crate::mlx::SavedByMlx;
use crate::naming::ParameterCounts;
use crate::{ConvertError, ConvertOptions, left_out};
use config::AdapterConfig;
use gguf_arch::{CardKind, EntryType, Mapping, OutType, OutputSpec, TensorContent, TypeRule};
use gguf_checkpoint::{AdapterDir, Checkpoint, CheckpointError, ModelDir};
use gguf_core::account::Piece;
use gguf_core::{Shape, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource};
use gguf_format::Metadata;
use gguf_views::{self, FactorError, LowRank, ReadPolicy, Recipe, ShapeError};
use mapped::{MappedAdapter, check_base, mapped};
use pair::ProductForm;
use parts::{AdapterParts, is_norm};

pub use error::{AdapterError, Stray};
pub(crate) use names::module_name;

/// Name of the token embedding; runtimes look up its rows and expect both of its factors transposed.
const EMBEDDING: &str = "token_embd.weight";

impl From<AdapterError> for ConvertError {
    fn from(error: AdapterError) -> Self {
        Self::Peft(Box::new(error))
    }
}

/// Options of an adapter's conversion, in addition to [`ConvertOptions`].
#[derive(Clone, Debug, Default)]
pub struct AdapterOptions {
    /// Directory of the base model; `None` for the one that the adapter's configuration names.
    pub base: Option<PathBuf>,
    /// True to write the strength used in training where it differs from `lora_alpha` divided by the rank.
    pub scale_alpha: bool,
}

/// Plan of a GGUF adapter. No matrix has been read; as a [`TensorSource`] it produces rows on demand.
pub struct AdapterConversion {
    adapter: AdapterDir,
    tensors: Vec<TensorMeta>,
    recipes: Vec<Recipe>,
    metadata: Metadata,
    general: GeneralMetadata,
    file_type: OutType,
    paths: Vec<PathBuf>,
    policy: ReadPolicy,
    warnings: Vec<String>,
    /// Keys and tensors, with what becomes of them.
    pieces: Vec<Piece>,
}

impl fmt::Debug for AdapterConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterConversion")
            .field("adapter", &self.adapter)
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl AdapterConversion {
    /// Plans the conversion of an adapter directory.
    ///
    /// # Errors
    /// [`ConvertError`]: unreadable files, a base that is unknown or has other tensors, adapter tensors that a GGUF
    /// adapter cannot hold.
    pub fn plan(
        path: &Path,
        adapter_options: &AdapterOptions,
        options: &ConvertOptions,
    ) -> Result<Self, ConvertError> {
        let mut adapter = AdapterDir::open(path, &options.limits)?;
        let config = AdapterConfig::of(&adapter)?;
        let mut warnings = adapter.warnings().to_vec();
        let base = base_dir(&adapter, &config, adapter_options)?;
        let base = ModelDir::open(&base, &options.limits)?;
        mlx::original(&mut adapter, config.mlx.is_some(), base.config())?;
        let mut paths = adapter.paths();
        paths.push(base.path().join("config.json"));

        let parts = AdapterParts::of(adapter.weights(), &config, is_norm, &options.drop)?;
        if parts.is_empty() {
            return Err(AdapterError::Empty { path: path.to_owned() }.into());
        }
        warnings.extend(parts.other_ranks(&config));
        warnings.extend(settings::doubts(&adapter));
        warnings.extend(tokenizer::not_in_adapter(&base, &adapter));
        let stored = base_weights(&base, &mut warnings);
        let MappedAdapter { parts, mapping } =
            mapped(&base, &adapter, parts, &stored, options, &mut warnings)?;
        check_base(&parts, &stored)?;
        let metas = parts.metas(adapter.weights());
        let left_out = left_out::of_adapter(&mapping, &metas, |_| true, CardKind::Text);
        if mapping.outputs.is_empty() {
            return Err(AdapterError::Nothing { path: path.to_owned(), why: left_out.join("; ") }.into());
        }
        warnings.extend(left_out);
        warnings.extend(tied_output(&parts, &base));
        let strengths = PairScaling::of(&config, &parts, adapter_options.scale_alpha, &mut warnings);
        let made = AdapterTensors::of(&adapter, &parts, &mapping, &strengths)?;
        let (tensors, recipes): (Vec<_>, Vec<_>) = made.0.into_iter().unzip();

        let files = MetadataFiles::read(adapter.dir(), options.metadata_file.as_deref())?;
        let general = general_metadata(&MetadataInputs {
            dir_name: &adapter.dir().name()?,
            config: &adapter.dir().json("config.json")?.unwrap_or_default(),
            files: &files,
            model_name: options.model_name.as_deref(),
            counts: ParameterCounts::of(&tensors),
        });
        warnings.extend(general.warnings.iter().map(ToString::to_string));
        let metadata = metadata(&mapping, &general, strengths.alpha, &config, options);
        let policy = ReadPolicy { level: options.level, allow_nonfinite: options.allow_nonfinite };
        let file_type = mapping.file_type;
        let mut made = vec![Vec::new(); adapter.weights().len()];
        for (tensor, recipe) in tensors.iter().zip(&recipes) {
            recipe.weights().into_iter().for_each(|weight| made[weight].push(tensor.name.clone()));
        }
        let pieces = pieces::of(&config, &adapter, made, &pieces::dropped(&parts, &mapping));
        Ok(Self { adapter, tensors, recipes, metadata, general, file_type, paths, policy, warnings, pieces })
    }

    /// Metadata keys of the output, in file order.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Name of the file type in upper case, as used in file names.
    pub fn encoding(&self) -> String {
        self.file_type.name().to_uppercase()
    }

    /// Names of the adapter's weights that output tensor `tensor` is made of.
    pub fn sources(&self, tensor: usize) -> impl Iterator<Item = &str> {
        let weights = self.adapter.weights();
        let indices = self.recipes.get(tensor).map(Recipe::weights).unwrap_or_default();
        indices.into_iter().filter_map(|index| weights.get(index).map(|weight| weight.name.as_str()))
    }

    /// Oddities of the adapter that do not stop the conversion.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Default file name of the output; `encoding` is the name of the file type.
    pub fn default_file_name(&self, encoding: &str) -> String {
        self.general.default_adapter_file_name(encoding)
    }

    /// Paths of all files that are read; an output must not replace them.
    pub fn input_paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

impl TensorSource for AdapterConversion {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (meta, recipe) = (&self.tensors[tensor], &self.recipes[tensor]);
        let read = recipe.read_rows(&self.adapter, meta.ty, self.policy, first_row, out);
        let failed =
            |error: gguf_views::ViewError| SourceError { tensor: meta.name.clone(), source: error.into() };
        read.map(|_| ()).map_err(failed)
    }

    fn expect(&self, tensor: usize) {
        self.recipes[tensor].weights().into_iter().for_each(|weight| self.adapter.expect(weight));
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        self.recipes[tensor].release_rows(&self.adapter, first_row, n_rows);
    }
}

/// Returns the base's directory: the given one, or else the one that the adapter names.
fn base_dir(
    adapter: &AdapterDir,
    config: &AdapterConfig,
    options: &AdapterOptions,
) -> Result<PathBuf, AdapterError> {
    let given = options.base.as_deref().or_else(|| config.base_dir());
    given
        .map(Path::to_owned)
        .ok_or_else(|| AdapterError::NoBase { path: adapter.config_path(), named: config.base.clone() })
}

/// Returns the tensors of the base from their headers, with the names that transformers gives them; empty if the base has no
/// weights.
fn base_weights(base: &ModelDir, warnings: &mut Vec<String>) -> Vec<WeightMeta> {
    match Checkpoint::with_dir(base.clone()) {
        Ok(checkpoint) => {
            let mlx = SavedByMlx::find(&checkpoint);
            let name = |meta: &WeightMeta| {
                let name = mlx.as_ref().map_or_else(|| meta.name.clone(), |mlx| mlx.name_of_part(&meta.name));
                WeightMeta { name, ..meta.clone() }
            };
            checkpoint.weights().iter().map(name).collect()
        }
        Err(CheckpointError::NoWeights { .. } | CheckpointError::FileMissing { .. }) => Vec::new(),
        Err(error) => {
            warnings.push(format!("{error}; the adapter is not held against the weights of its base"));
            Vec::new()
        }
    }
}

/// Returns a warning if the adapter changes the embeddings or the output of a model that has one matrix for both.
fn tied_output(parts: &AdapterParts, base: &ModelDir) -> Option<String> {
    let is_tied = base.config().get("tie_word_embeddings") == Some(&Json::Bool(true));
    let has_embedding = parts.pairs.iter().any(|pair| pair.form == ProductForm::Embedding);
    let what = match parts.pairs.iter().find(|pair| names::is_head(&pair.name)) {
        _ if !is_tied => return None,
        _ if has_embedding => "the embeddings, which are the model's output as well",
        Some(_) => "the output, which is the embeddings of the base model",
        None => return None,
    };
    Some(format!(
        "the adapter changes {what}: llama.cpp 0.5.0 stops when it applies such an adapter; `gguf-convert merge-lora` merges it"
    ))
}

struct PairScaling {
    /// Value of `adapter.lora.alpha`.
    alpha: f64,
    /// Factor for one matrix of each pair.
    factors: Vec<f64>,
}

impl PairScaling {
    /// Decides, and warns where runtimes will not reproduce the strength used in training.
    fn of(
        config: &AdapterConfig,
        parts: &AdapterParts,
        scale_alpha: bool,
        warnings: &mut Vec<String>,
    ) -> Self {
        let effective: Vec<f64> =
            parts.pairs.iter().map(|pair| config.effective_alpha(&pair.module, pair.rank)).collect();
        let differs = |alpha: &&f64| alpha.to_bits() != config.alpha.to_bits();
        let others = effective.iter().filter(differs).count();
        if config.alpha == 0.0 {
            warnings.push(
                "`lora_alpha` is 0: in training the adapter changed nothing, llama.cpp applies it with a strength of 1"
                    .to_owned(),
            );
        }
        if others == 0 || config.alpha == 0.0 {
            return Self { alpha: config.alpha, factors: vec![1.0; effective.len()] };
        }
        if !scale_alpha {
            warnings.push(format!(
                "{} gives {others} of {} matrices another strength than `lora_alpha` {}, which is what is written, as by \
                 llama.cpp's converter: `--scale-alpha` writes the strength of the training",
                config.why_scaled(),
                effective.len(),
                config.alpha,
            ));
            return Self { alpha: config.alpha, factors: vec![1.0; effective.len()] };
        }
        // Use the alpha of most pairs, so that few matrices change; on a tie, the first one.
        let count = |alpha: f64| effective.iter().filter(|other| other.to_bits() == alpha.to_bits()).count();
        let usual = effective.iter().copied().filter(|alpha| *alpha != 0.0);
        let alpha = usual.rev().max_by_key(|alpha| count(*alpha)).unwrap_or(config.alpha);
        Self { alpha, factors: effective.iter().map(|own| own / alpha).collect() }
    }
}

/// Tensors of the file, each with its recipe.
struct AdapterTensors(Vec<(TensorMeta, Recipe)>);

impl AdapterTensors {
    fn of(
        adapter: &AdapterDir,
        parts: &AdapterParts,
        mapping: &Mapping,
        strengths: &PairScaling,
    ) -> Result<Self, ConvertError> {
        let mut made = Self(Vec::with_capacity(mapping.outputs.len() * 2));
        for output in &mapping.outputs {
            match first_source(&output.content).map(|first| first.checked_sub(parts.whole.len())) {
                Some(None) => made.whole(adapter, parts, output)?,
                Some(Some(pair)) => {
                    let tensor = || parts.pairs.get(pair).map(|pair| pair.name.clone()).unwrap_or_default();
                    let failed = |source| AdapterError::Factors { tensor: tensor(), source };
                    let product = product(adapter, parts, output, strengths).map_err(failed)?;
                    made.pair(output, &product, mapping.file_type).map_err(failed)?;
                }
                None => {}
            }
        }
        Ok(made)
    }

    /// Adds a norm, which the adapter stores as a whole tensor.
    fn whole(
        &mut self,
        adapter: &AdapterDir,
        parts: &AdapterParts,
        output: &OutputSpec,
    ) -> Result<(), ConvertError> {
        let mut output = output.clone();
        let mut tensor = String::new();
        if let TensorContent::Sources(assembly) = &mut output.content {
            for source in &mut assembly.sources {
                if let Some(whole) = parts.whole.get(source.weight) {
                    tensor.clone_from(&adapter.weights()[whole.index].name);
                    source.weight = whole.index;
                }
            }
        }
        if !output.name.contains("_norm") || output.shape.rank() != 1 {
            return Err(AdapterError::NotNorm { tensor, target: output.name }.into());
        }
        let recipe = gguf_views::recipe(&output, adapter.weights())?;
        let ty = output.ggml_type(OutType::F32);
        self.0.push((TensorMeta { name: output.name, shape: output.shape, ty }, recipe));
        Ok(())
    }

    /// Adds the two factors of a tensor.
    fn pair(
        &mut self,
        output: &OutputSpec,
        product: &LowRank,
        file_type: OutType,
    ) -> Result<(), FactorError> {
        let transposed;
        // ref: the embedding's factor is looked up by row, so the matrix named A elsewhere has a row for each token
        let (a, b) = if output.name.contains(EMBEDDING) {
            transposed = product.transposed()?;
            (&product.b, &transposed.b)
        } else {
            (&product.a, &product.b)
        };
        // `EntryType::Source` is meant for the base's weights, not for the factors.
        let entry = match output.type_rule.entry {
            EntryType::Source => EntryType::Auto,
            entry => entry,
        };
        let rule = TypeRule { entry, ..output.type_rule };
        for (view, ending) in [(a, ".lora_a"), (b, ".lora_b")] {
            let name = output.name.clone() + ending;
            let shape = Shape::new(view.shape().to_vec()).ok_or(ShapeError::Empty)?;
            let recipe = Recipe::new(view).ok_or(ShapeError::Empty)?;
            let ty = rule.ggml_type(&name, shape.dims(), file_type);
            self.0.push((TensorMeta { name, shape, ty }, recipe));
        }
        Ok(())
    }
}

/// Returns the first weight of which an output is made.
fn first_source(content: &TensorContent) -> Option<usize> {
    match content {
        TensorContent::Sources(assembly) => assembly.sources.first().map(|source| source.weight),
        TensorContent::Joined { parts, .. } => parts.iter().find_map(first_source),
        _ => None,
    }
}

/// Returns the two factors of an output.
fn product(
    adapter: &AdapterDir,
    parts: &AdapterParts,
    output: &OutputSpec,
    strengths: &PairScaling,
) -> Result<LowRank, FactorError> {
    let n_whole = parts.whole.len();
    let of = |weight: usize| {
        let at = weight.checked_sub(n_whole).ok_or(FactorError::Join)?;
        let pair = parts.pairs.get(at).ok_or(FactorError::Join)?;
        let product = pair.product(adapter.weights())?;
        match strengths.factors.get(at) {
            Some(by) if by.to_bits() != f64::to_bits(1.0) => Ok(product.scaled(*by)),
            _ => Ok(product),
        }
    };
    let product = gguf_views::factors(&output.content, &of)?;
    if product.shape() != output.shape.dims() {
        let (from, to) = (product.shape(), output.shape.dims().to_vec());
        return Err(ShapeError::Reshape { from, to }.into());
    }
    Ok(product)
}

/// Returns all keys in file order.
fn metadata(
    mapping: &Mapping,
    general: &GeneralMetadata,
    alpha: f64,
    config: &AdapterConfig,
    options: &ConvertOptions,
) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", mapping.card.gguf.as_str());
    metadata.set("general.type", "adapter");
    metadata.set("adapter.type", "lora");
    for (key, value) in &general.entries {
        metadata.set(key.as_str(), value.clone());
    }
    metadata.set("adapter.lora.alpha", alpha as f32);
    if !config.invocation_tokens.is_empty() {
        metadata.set("adapter.alora.invocation_tokens", config.invocation_tokens.clone());
    }
    metadata.set("general.quantization_version", QUANTIZATION_VERSION);
    for (key, value) in &options.set {
        metadata.set(key.as_str(), value.clone());
    }
    metadata
}
