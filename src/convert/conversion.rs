//! A conversion: everything about the output, decided from headers; then a source of its tensors.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value as Json};

use crate::arch::{self, Dropped, FileType, Inputs, Mapping, Options, Registry};
use crate::checkpoint::{CheckpointError, ModelDir};
use crate::convert::codes::{self, KeptRole};
use crate::convert::metadata::{GeneralMetadata, MetadataFiles, MetadataInputs, general_metadata};
use crate::convert::naming::ParameterCounts;
use crate::convert::{ConvertError, ConvertOptions, ModelSource};
use crate::convert::{pooling, vocabulary};
use crate::core::{GgmlType, Packing, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource};
use crate::gguf::Metadata;
use crate::transform::{self, ReadPolicy, Recipe};

/// Version of the block formats that files declare.
const QUANTIZATION_VERSION: u32 = 2;
const FILE_TYPE: &str = "general.file_type";

/// A checkpoint seen as the GGUF file it becomes. Nothing has been written, and no weight read; as a
/// [`TensorSource`] it produces rows on demand.
pub struct Conversion {
    source: ModelSource,
    mapping: Mapping,
    metadata: Metadata,
    general: GeneralMetadata,
    tensors: Vec<TensorMeta>,
    recipes: Vec<Recipe>,
    /// Per tensor: how its codes are kept, if they are.
    packings: Vec<Option<Packing>>,
    /// Type that the file counts as, if that is not the one asked for.
    counts_as: Option<GgmlType>,
    /// Per tensor: whether anything but zero was seen while reading.
    seen: Vec<AtomicBool>,
    policy: ReadPolicy,
    warnings: Vec<String>,
}

impl fmt::Debug for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversion")
            .field("card", &self.mapping.card.name())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

/// The weights of a conversion without any.
struct NoWeights;

impl WeightSource for NoWeights {
    fn weights(&self) -> &[WeightMeta] {
        &[]
    }

    fn read_elems(&self, weight: usize, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        panic!("there is no weight {weight}")
    }
}

impl Conversion {
    /// Plans the conversion of a directory.
    ///
    /// # Errors
    /// [`ConvertError`]: the checkpoint, its configuration, its tokenizer, or the card do not fit together.
    pub fn plan(path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        Self::of(ModelSource::open(path, options)?, options)
    }

    /// Plans the conversion of a model that is open.
    ///
    /// # Errors
    /// As [`Conversion::plan`].
    pub fn of(source: ModelSource, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let registry = registry(options)?;
        let dir = &source.dir;
        let weights = source.metas();

        let mut warnings = source.warnings.clone();
        let mut optional = |name| optional_json(dir, name, &mut warnings);
        let tokenizer_config = optional("tokenizer_config.json")?;
        let generation_config = optional("generation_config.json")?;
        let files = dir.file_names()?;
        let inputs = Inputs {
            config: dir.config(),
            weights,
            stored: &source.stored,
            tokenizer_config: tokenizer_config.as_ref(),
            generation_config: generation_config.as_ref(),
            files: &files,
            pooling: pooling::read(dir)?,
        };
        let arch_options = Options {
            file_type: options.file_type,
            no_mtp: options.no_mtp,
            metadata_only: options.vocab_only,
        };
        let mapping = arch::resolve(&registry, &inputs, &arch_options)?;

        let recipes = mapping.outputs.iter().map(|output| transform::recipe(output, weights));
        let recipes = recipes.collect::<Result<Vec<_>, _>>()?;
        let floats: &dyn WeightSource = source.weights.as_deref().map_or(&NoWeights, |weights| weights);
        let chosen = codes::choose(options.codes, &mapping, &recipes, floats)?;
        let (types, packings): (Vec<_>, Vec<_>) = chosen.into_iter().unzip();
        let named = mapping.outputs.iter().zip(types);
        let tensors: Vec<TensorMeta> = named
            .map(|(output, ty)| TensorMeta { name: output.name.clone(), shape: output.shape.clone(), ty })
            .collect();

        let metadata_files = MetadataFiles::read(dir, options.metadata_file.as_deref())?;
        let general = general_metadata(&MetadataInputs {
            dir_name: &dir.name(),
            config: dir.config(),
            files: &metadata_files,
            model_name: options.model_name.as_deref(),
            counts: ParameterCounts::of(&tensors),
        });
        warnings.extend(general.warnings.iter().map(ToString::to_string));

        let built = vocabulary::build(&source, &mapping, options)?;
        warnings.extend(built.warnings.iter().map(ToString::to_string));

        let mut metadata = metadata(&mapping, &general, &built.rows, options);
        let counts_as = codes::counts_as(options.codes, mapping.file_type, &tensors, &packings);
        let is_given = options.set.iter().any(|(key, _)| key == FILE_TYPE);
        if let Some(ty) = counts_as.filter(|_| !is_given && metadata.contains(FILE_TYPE)) {
            metadata.set(FILE_TYPE, codes::file_type_id(ty));
        }
        let seen = tensors.iter().map(|_| AtomicBool::new(false)).collect();
        let policy = ReadPolicy { level: options.level, allow_nonfinite: options.allow_nonfinite };
        Ok(Self {
            source,
            mapping,
            metadata,
            general,
            tensors,
            recipes,
            packings,
            counts_as,
            seen,
            policy,
            warnings,
        })
    }

    /// The keys of the output, in file order.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The card's view of the checkpoint.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Type of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.mapping.file_type
    }

    /// Name of the file's type, as file names have it: `F16`, `MXFP4_MOE`.
    #[must_use]
    pub fn encoding(&self) -> String {
        match self.counts_as {
            Some(GgmlType::Mxfp4) => "MXFP4_MOE".to_owned(),
            Some(ty) => ty.name().to_owned(),
            None => self.mapping.file_type.name().to_uppercase(),
        }
    }

    /// Weights that are left out, with the reasons.
    pub fn dropped(&self) -> impl Iterator<Item = (&str, &str)> {
        let name = |dropped: &Dropped| self.weights().get(dropped.weight).map(|weight| weight.name.as_str());
        self.mapping.dropped.iter().filter_map(move |dropped| Some((name(dropped)?, dropped.why.as_str())))
    }

    /// Names of the weights that a tensor is made of.
    pub fn sources(&self, tensor: usize) -> impl Iterator<Item = &str> {
        let weights = self.weights();
        let indices = self.recipes.get(tensor).map(Recipe::weights).unwrap_or_default();
        indices.into_iter().filter_map(|index| weights.get(index).map(|weight| weight.name.as_str()))
    }

    /// What is odd about the checkpoint but does not stop the conversion.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The default file name of the output; `encoding` is the file type's name (`F16`, `Q4_K_M`).
    #[must_use]
    pub fn default_file_name(&self, encoding: &str) -> String {
        if self.source.weights.is_some() {
            self.general.default_file_name(encoding)
        } else {
            self.general.default_vocab_file_name()
        }
    }

    /// All files that are read; an output must not replace them.
    #[must_use]
    pub fn input_paths(&self) -> Vec<PathBuf> {
        self.source.paths.clone()
    }

    /// Tensors that keep the codes of a quantized checkpoint, by role.
    #[must_use]
    pub fn kept(&self) -> Vec<KeptRole> {
        codes::kept(&self.tensors, &self.packings)
    }

    /// Keeps the codes of the tensors that `wanted` names in blocks of `ty`, scales rounded to what a block stores,
    /// where their codes fit such blocks. For a quantization in one pass: it takes tensors of its own type as they are.
    ///
    /// # Errors
    /// The source failed.
    pub fn keep(&mut self, ty: GgmlType, wanted: impl Fn(&str) -> bool) -> Result<(), ConvertError> {
        let Some(weights) = self.source.weights.as_deref() else { return Ok(()) };
        for ((tensor, packing), recipe) in self.tensors.iter_mut().zip(&mut self.packings).zip(&self.recipes)
        {
            if !wanted(&tensor.name) {
                continue;
            }
            let found = codes::packings(recipe, weights)?;
            if let Some(found) = found.into_iter().find(|found| found.ty == ty) {
                tensor.ty = ty;
                *packing = Some(found);
            }
        }
        Ok(())
    }

    /// Matrices that turned out to hold nothing but zeros, after everything was read.
    pub fn zero_tensors(&self) -> impl Iterator<Item = &str> {
        let pairs = self.tensors.iter().zip(&self.seen);
        pairs
            .filter(|(tensor, seen)| tensor.shape.rank() > 1 && !seen.load(Ordering::Relaxed))
            .map(|(tensor, _)| tensor.name.as_str())
    }

    fn weights(&self) -> &[WeightMeta] {
        self.source.metas()
    }
}

/// The embedded cards, and the one given by hand.
///
/// # Errors
/// A card that breaks the rules; I/O errors.
pub fn registry(options: &ConvertOptions) -> Result<Registry, ConvertError> {
    let mut registry = Registry::embedded()?;
    if let Some(path) = &options.card {
        let text = fs_err::read_to_string(path)?;
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        registry.add(&name, &text)?;
    }
    Ok(registry)
}

/// A JSON file that may be missing; one that is broken is a warning, as for the reference.
fn optional_json(
    dir: &ModelDir,
    name: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<Map<String, Json>>, ConvertError> {
    match dir.json(name) {
        Ok(map) => Ok(map),
        Err(CheckpointError::Io(error)) => Err(error.into()),
        Err(error) => {
            warnings.push(format!("{error}; the file is left out"));
            Ok(None)
        }
    }
}

/// All keys in file order: architecture, early rows, type, `general.*`, hyper-parameters, tokenizer, and what was set
/// by hand.
fn metadata(
    mapping: &Mapping,
    general: &GeneralMetadata,
    tokenizer: &Metadata,
    options: &ConvertOptions,
) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", mapping.card.gguf.as_str());
    for (key, value) in mapping.early.iter() {
        metadata.set(key, value.clone());
    }
    metadata.set("general.type", "model");
    for (key, value) in &general.entries {
        metadata.set(key.as_str(), value.clone());
    }
    for (key, value) in mapping.metadata.iter() {
        metadata.set(key, value.clone());
    }
    metadata.set("general.quantization_version", QUANTIZATION_VERSION);
    for (key, value) in tokenizer.iter() {
        metadata.set(key, value.clone());
    }
    for (key, value) in &options.set {
        metadata.set(key.as_str(), value.clone());
    }
    metadata
}

impl TensorSource for Conversion {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let Some(weights) = self.source.weights.as_deref() else { return Ok(()) };
        let (meta, recipe) = (&self.tensors[tensor], &self.recipes[tensor]);
        let read = match &self.packings[tensor] {
            Some(packing) => recipe.read_packed(weights, packing.ty, first_row, out),
            None => recipe.read_rows(weights, meta.ty, self.policy, first_row, out),
        };
        read.map_err(|error| SourceError { tensor: meta.name.clone(), source: error.into() })?;
        let seen = &self.seen[tensor];
        if !seen.load(Ordering::Relaxed) && out.iter().any(|&byte| byte != 0) {
            seen.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        if let Some(weights) = self.source.weights.as_deref() {
            self.recipes[tensor].release_rows(weights, first_row, n_rows);
        }
    }
}
