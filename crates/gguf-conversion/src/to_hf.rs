//! Conversion of a GGUF file back to a Hugging Face checkpoint that transformers loads.

mod modules;
mod weights;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use gguf_arch::{self, ArchError, Inverse, Registry, RopeFreqsLlama3, with_dropped_ones};
use gguf_checkpoint::safetensors_writer::{
    SideFile, WriteCheckpointError, WriteCheckpointOptions, write_checkpoint,
};
use gguf_core::output::{NewDirectory, OutputError};
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, Hint, SourceError, TensorSource, WeightSource};
use gguf_format::{Metadata, Value};
use gguf_tokenizer::{self, TokenizerError};
use gguf_views::decoded::Decoded;
use gguf_views::{Recipe, RecipeError, View, ViewError, match_rope_freqs};
use weights::HfWeights;

/// Tensor of Llama 3's rope factors; a checkpoint has their parameters instead.
const ROPE_FREQS: &str = "rope_freqs.weight";
/// Upper bound of Llama 3's rope factors.
const MAX_FACTOR: f32 = 1e20;
/// Upper bound of the number of rope factors, above any rotary dimension.
const MAX_ROPE_FREQS: usize = 1 << 16;

/// Reasons why a GGUF file cannot be converted back.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ToHfError {
    #[error(transparent)]
    Arch(#[from] ArchError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error("tensor `{tensor}`: {source}")]
    Read { tensor: String, source: ViewError },
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("tensor `{ROPE_FREQS}`: not the factors of any released Llama 3 model")]
    RopeFreqs,
    #[error(transparent)]
    Write(#[from] WriteCheckpointError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Hint for ToHfError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Arch(error) => error.hints(),
            Self::Tokenizer(_) => {
                vec!["`--no-tokenizer` writes the weights and the configuration alone".to_owned()]
            }
            Self::Write(error) => error.hints(),
            Self::Output(error) => error.hints(),
            Self::Recipe(_) | Self::Read { .. } | Self::Source(_) | Self::RopeFreqs | Self::Io(_) => {
                Vec::new()
            }
        }
    }
}

/// Options for writing the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct ToHfOptions {
    /// Type of all weights except integers; `None` selects the narrowest of BF16, F16 and F32 that holds every value
    /// exactly.
    pub ty: Option<ElementType>,
    /// True to write the tokenizer files.
    pub tokenizer: bool,
    /// Largest shard in bytes.
    pub max_shard_bytes: u64,
    /// Memory for buffers in bytes, over all threads.
    pub memory_bytes: u64,
    /// True to flush files to disk before they get their final names.
    pub sync: bool,
    /// Vector instructions to use.
    pub level: SimdLevel,
}

impl Default for ToHfOptions {
    fn default() -> Self {
        Self {
            ty: None,
            tokenizer: true,
            max_shard_bytes: 5 << 30,
            memory_bytes: 128 << 20,
            sync: true,
            level: SimdLevel::detect(),
        }
    }
}

/// Summary of a written checkpoint.
#[derive(Clone, Debug)]
pub struct ToHfReport {
    /// Class of the model, as in `architectures`.
    pub class: String,
    /// Type of all weights except integers.
    pub ty: ElementType,
    /// Paths of all files.
    pub paths: Vec<PathBuf>,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Total size of the weights in bytes.
    pub n_bytes: u64,
    /// Metadata keys that a checkpoint cannot hold.
    pub lost: Vec<String>,
    /// Tensors that are computed back with rounding.
    pub rounded: Vec<String>,
    /// Other warnings.
    pub warnings: Vec<String>,
}

/// Returns the parameters that give the file's rope factors, if it has any.
fn rope_freqs(
    metadata: &Metadata,
    source: &Decoded<'_>,
    level: SimdLevel,
) -> Result<Option<RopeFreqsLlama3>, ToHfError> {
    let Some(at) = source.weights().iter().position(|weight| weight.name == ROPE_FREQS) else {
        return Ok(None);
    };
    let read_error = |source| ToHfError::Read { tensor: ROPE_FREQS.to_owned(), source };
    let view = View::weight(at, &source.weights()[at]);
    let recipe = Recipe::new(&view).ok_or(ToHfError::RopeFreqs)?;
    let n = usize::try_from(recipe.shape().n_elems()).map_err(|_| ToHfError::RopeFreqs)?;
    if n > MAX_ROPE_FREQS {
        return Err(ToHfError::RopeFreqs);
    }
    let mut factors = vec![0.0; n];
    recipe.read_f32(source, level, 0, &mut factors).map_err(read_error)?;
    // Proportional rope: the card determines the number of rotated pairs.
    if factors.iter().any(|&factor| factor > MAX_FACTOR) {
        return Ok(None);
    }
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let theta = metadata.get(&format!("{arch}.rope.freq_base")).and_then(Value::as_f64).unwrap_or(10000.0);
    match_rope_freqs(&factors, theta).map(Some).ok_or(ToHfError::RopeFreqs)
}

/// Checkpoint files and configuration entries of the vocabulary.
#[derive(Debug, Default)]
struct VocabularyOutput {
    files: Vec<SideFile>,
    /// Special ids for `config.json`.
    config_ids: Vec<(&'static str, u64)>,
    lost: Vec<String>,
    warnings: Vec<String>,
}

impl VocabularyOutput {
    /// Builds the files; none without a vocabulary, and none for texts that the files cannot hold.
    fn of(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let found = match gguf_tokenizer::to_hf(metadata) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Self::default()),
            Err(error) if error.is_beyond_json() => {
                let warning = format!("no tokenizer files are written: {error}");
                return Ok(Self { warnings: vec![warning], ..Self::without_files(metadata) });
            }
            Err(error) => return Err(error),
        };
        let file = |name, bytes| SideFile { name, bytes };
        let mut files: Vec<SideFile> =
            found.tokenizer_json.map(|text| file("tokenizer.json", text.into_bytes())).into_iter().collect();
        files.push(file("tokenizer_config.json", found.tokenizer_config_json.into_bytes()));
        files.extend(found.sentencepiece_model.map(|(name, bytes)| file(name, bytes)));
        files.extend(found.added_tokens_json.map(|text| file("added_tokens.json", text.into_bytes())));
        files.extend(
            found.generation_config_json.map(|text| file("generation_config.json", text.into_bytes())),
        );
        Ok(Self { files, config_ids: found.config_ids, lost: found.lost, warnings: Vec::new() })
    }

    /// Returns no files, only the special ids: `config.json` gets these in any case, since the model needs them as
    /// well.
    fn without_files(metadata: &Metadata) -> Self {
        Self { config_ids: gguf_tokenizer::special_ids(metadata), ..Self::default() }
    }
}

/// Completes the configuration with the entries that do not come from the card, and serializes it.
fn config_file(mut config: Map<String, Json>, ty: ElementType, ids: &[(&'static str, u64)]) -> SideFile {
    let name = match ty {
        ElementType::Bf16 => "bfloat16",
        ElementType::F16 => "float16",
        _ => "float32",
    };
    config.insert("torch_dtype".to_owned(), name.into());
    for (key, id) in ids {
        config.insert((*key).to_owned(), json!(id));
    }
    SideFile { name: "config.json", bytes: format!("{:#}\n", Json::Object(config)).into_bytes() }
}

/// Writes the checkpoint of a GGUF file into a new or empty directory.
///
/// It has safetensors shards with their index, `config.json`, the tokenizer files, and the files of
/// sentence-transformers if the GGUF file declares a pooling.
///
/// # Errors
/// [`ToHfError`]: an architecture without a card, tensors unknown to its card, a vocabulary without an inverse, I/O
/// errors. The directory appears, or is filled, only when all its files are complete.
pub fn gguf_to_hf(
    registry: &Registry,
    metadata: &Metadata,
    tensors: &dyn TensorSource,
    dir: &Path,
    options: &ToHfOptions,
    progress: &dyn Progress,
) -> Result<ToHfReport, ToHfError> {
    let directory = NewDirectory::of(dir)?;
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    // If a card of this architecture writes `x.scale` itself, it is a weight like any other.
    let is_own = |name: &str| {
        let cards = registry.cards().iter().filter(|card| card.gguf == arch);
        let mut targets = cards.flat_map(|card| &card.entries).flat_map(|entry| &entry.targets);
        targets.any(|target| target.name.matches(name).is_some())
    };
    let source = Decoded::with_own(tensors, options.level, &is_own)?;
    let source = source.reshaped(|name, shape| with_dropped_ones(arch, name, shape));
    let rope_freqs = rope_freqs(metadata, &source, options.level)?;
    let Inverse { config, outputs, inexact, mut lost, notes: mut warnings, .. } =
        gguf_arch::invert(registry, metadata, source.weights(), rope_freqs.as_ref(), Some(&source))?;
    let class = config.get("architectures").and_then(|classes| classes[0].as_str()).unwrap_or_default();
    let class = class.to_owned();
    let tokenizer = if options.tokenizer {
        VocabularyOutput::of(metadata)?
    } else {
        VocabularyOutput::without_files(metadata)
    };
    let (dense, outputs): (Vec<_>, Vec<_>) = outputs.into_iter().partition(modules::is_dense);
    let mut weights = HfWeights::new(source, &outputs, options.level)?;
    let ty = match options.ty {
        Some(ty) => ty,
        None => weights.narrowest()?,
    };
    weights.set_type(ty);

    // The configuration is written last: without it, no tool takes the directory for a checkpoint.
    let mut files = tokenizer.files;
    files.extend(modules::files(
        &class,
        metadata,
        Decoded::with_own(tensors, options.level, &is_own)?,
        &dense,
        options,
    )?);
    files.push(config_file(config, ty, &tokenizer.config_ids));
    let write = WriteCheckpointOptions {
        max_shard_bytes: options.max_shard_bytes,
        memory_bytes: options.memory_bytes,
        sync: options.sync,
    };
    lost.extend(tokenizer.lost);
    warnings.extend(tokenizer.warnings);
    let paths = write_checkpoint(directory, &weights, &files, &write, progress)?;
    Ok(ToHfReport {
        class,
        ty,
        paths,
        n_tensors: weights.weights().len() + dense.len(),
        n_bytes: weights.n_bytes(),
        rounded: inexact,
        lost,
        warnings,
    })
}
