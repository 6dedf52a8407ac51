//! The way back: a GGUF file becomes a Hugging Face checkpoint that transformers loads.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use serde_json::{Value as Json, json};

use crate::arch::{self, ArchError, Inverse, Registry, RopeFreqsLlama3};
use crate::checkpoint::safetensors_writer::{WriteCheckpointError, WriteCheckpointOptions, write_checkpoint};
use crate::core::numeric::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::core::output::OutputFile;
use crate::core::progress::Progress;
use crate::core::simd::SimdLevel;
use crate::core::{ElementType, Hint, SourceError, TensorSource, WeightMeta, WeightSource};
use crate::gguf::{Metadata, Value};
use crate::tokenizer::{self, TokenizerError};
use crate::views::decoded::Decoded;
use crate::views::{Recipe, RecipeError, View, ViewError, match_rope_freqs, recipe};

/// Llama 3's rope factors; a checkpoint has their parameters instead.
const ROPE_FREQS: &str = "rope_freqs.weight";
/// More factors than any rotary dimension has.
const MAX_ROPE_FREQS: usize = 1 << 16;
/// Elements decoded at a time by one thread.
const STEP_ELEMS: u64 = 1 << 18;

/// Why a GGUF file cannot be taken back.
#[derive(Debug, thiserror::Error)]
pub enum ToHfError {
    /// The architecture, or what its card makes of the file.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// The vocabulary.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// An operation that does not fit its tensor.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A tensor could not be decoded.
    #[error("tensor `{tensor}`: {source}")]
    Read {
        /// The tensor of the checkpoint to be.
        tensor: String,
        /// Why.
        source: ViewError,
    },
    /// A factor beside the blocks of a tensor could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Rope factors that no known parameters give.
    #[error("tensor `{ROPE_FREQS}`: not the factors of any released Llama 3 model")]
    RopeFreqs,
    /// The weights could not be written.
    #[error(transparent)]
    Write(#[from] WriteCheckpointError),
    /// Something is in the way.
    #[error("{}: directory is not empty", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The file system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Hint for ToHfError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Arch(error) => error.hints(),
            Self::Tokenizer(error) => error.hints(),
            Self::NotEmpty { .. } => vec!["give a new directory with `-o`".to_owned()],
            _ => Vec::new(),
        }
    }
}

/// How to write the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct ToHfOptions {
    /// Type of all weights; `None` takes the narrowest of BF16, F16 and F32 that holds every value exactly.
    pub ty: Option<ElementType>,
    /// Largest shard in bytes.
    pub max_shard_bytes: u64,
    /// Memory for buffers, over all threads.
    pub memory_bytes: u64,
    /// Whether files reach the disk before they get their names.
    pub sync: bool,
    /// Vector instructions to use.
    pub level: SimdLevel,
}

/// What was written.
#[derive(Clone, Debug)]
pub struct ToHfReport {
    /// The model class.
    pub class: String,
    /// Type of the weights.
    pub ty: ElementType,
    /// All files.
    pub paths: Vec<PathBuf>,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Bytes of all weights.
    pub n_bytes: u64,
    /// What the checkpoint cannot carry: keys, and tensors that are computed anew.
    pub lost: Vec<String>,
}

/// The weights of the checkpoint to be, made from the GGUF's tensors as they are read.
struct Weights<'a> {
    source: Decoded<'a>,
    recipes: Vec<Recipe>,
    metas: Vec<WeightMeta>,
    level: SimdLevel,
}

impl WeightSource for Weights<'_> {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let meta = &self.metas[weight];
        let elem_bytes = meta.ty.bytes().unwrap_or(4);
        let mut floats = vec![0.0; out.len() / elem_bytes];
        self.recipes[weight]
            .read_f32(&self.source, self.level, first, &mut floats)
            .map_err(|error| SourceError { tensor: meta.name.clone(), source: error.into() })?;
        match meta.ty {
            ElementType::Bf16 => encode(&floats, out, |x| f32_to_bf16(x).to_le_bytes()),
            ElementType::F16 => encode(&floats, out, |x| f32_to_f16(x).to_le_bytes()),
            _ => encode(&floats, out, f32::to_le_bytes),
        }
        Ok(())
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let n_cols = self.metas[weight].shape.n_cols().max(1);
        self.recipes[weight].release_rows(&self.source, first / n_cols, n / n_cols);
    }
}

fn encode<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (raw, &value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *raw = bytes(value);
    }
}

impl Weights<'_> {
    /// True if every value of every tensor is the same after a round trip through the type.
    fn all_exact(&self, ty: ElementType) -> Result<bool, ToHfError> {
        let is_exact = |x: f32| {
            let back = match ty {
                ElementType::Bf16 => bf16_to_f32(f32_to_bf16(x)),
                _ => f16_to_f32(f32_to_f16(x)),
            };
            back.to_bits() == x.to_bits()
        };
        for (weight, recipe) in self.recipes.iter().enumerate() {
            let n = recipe.shape().n_elems();
            let inexact = AtomicBool::new(false);
            (0..n.div_ceil(STEP_ELEMS)).into_par_iter().try_for_each(|step| {
                if inexact.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let first = step * STEP_ELEMS;
                let mut values = vec![0.0; STEP_ELEMS.min(n - first) as usize];
                recipe
                    .read_f32(&self.source, self.level, first, &mut values)
                    .map_err(|source| ToHfError::Read { tensor: self.metas[weight].name.clone(), source })?;
                if !values.iter().all(|&x| is_exact(x)) {
                    inexact.store(true, Ordering::Relaxed);
                }
                Ok::<(), ToHfError>(())
            })?;
            if inexact.into_inner() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn narrowest(&self) -> Result<ElementType, ToHfError> {
        for ty in [ElementType::Bf16, ElementType::F16] {
            if self.all_exact(ty)? {
                return Ok(ty);
            }
        }
        Ok(ElementType::F32)
    }
}

/// The parameters behind the file's rope factors, if it has any.
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
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let theta = metadata.get(&format!("{arch}.rope.freq_base")).and_then(Value::as_f64).unwrap_or(10000.0);
    match_rope_freqs(&factors, theta).map(Some).ok_or(ToHfError::RopeFreqs)
}

/// Writes the checkpoint of a GGUF file into a new or empty directory: safetensors shards and index, `config.json`,
/// and the tokenizer's files.
///
/// # Errors
/// [`ToHfError`]: an architecture without a card, tensors that its card does not know, a vocabulary without an
/// inverse, the file system. Weights get their names only when all are complete.
pub fn gguf_to_hf(
    registry: &Registry,
    metadata: &Metadata,
    tensors: &dyn TensorSource,
    dir: &Path,
    options: &ToHfOptions,
    progress: &dyn Progress,
) -> Result<ToHfReport, ToHfError> {
    let source = Decoded::new(tensors, options.level)?;
    let rope_freqs = rope_freqs(metadata, &source, options.level)?;
    let inverse = arch::invert(registry, metadata, source.weights(), rope_freqs.as_ref())?;
    let Inverse { mut config, outputs, .. } = inverse;
    let class = config.get("architectures").and_then(|classes| classes[0].as_str()).unwrap_or_default();
    let class = class.to_owned();
    let mut lost: Vec<String> = inverse
        .inexact
        .iter()
        .map(|tensor| format!("`{tensor}` comes back through arithmetic that rounds"))
        .collect();
    let vocabulary = tokenizer::to_hf(metadata)?;
    let recipes =
        outputs.iter().map(|output| recipe(output, source.weights())).collect::<Result<Vec<_>, _>>()?;
    let weight = |(output, recipe): (&arch::OutputSpec, &Recipe)| WeightMeta {
        name: output.name.clone(),
        shape: recipe.shape().clone(),
        ty: ElementType::F32,
    };
    let metas = outputs.iter().zip(&recipes).map(weight).collect();
    let mut weights = Weights { source, recipes, metas, level: options.level };
    let ty = match options.ty {
        Some(ty) => ty,
        None => weights.narrowest()?,
    };
    for weight in &mut weights.metas {
        weight.ty = ty;
    }

    fs_err::create_dir_all(dir)?;
    if fs_err::read_dir(dir)?.next().is_some() {
        return Err(ToHfError::NotEmpty { path: dir.to_owned() });
    }
    let name = match ty {
        ElementType::Bf16 => "bfloat16",
        ElementType::F16 => "float16",
        _ => "float32",
    };
    config.insert("torch_dtype".to_owned(), name.into());
    let mut files: Vec<(&str, Vec<u8>)> = Vec::new();
    if let Some(vocabulary) = vocabulary {
        for (key, id) in vocabulary.config_ids {
            config.insert(key.to_owned(), json!(id));
        }
        files.push(("tokenizer.json", vocabulary.tokenizer_json.into_bytes()));
        files.push(("tokenizer_config.json", vocabulary.tokenizer_config_json.into_bytes()));
        files.extend(vocabulary.sentencepiece_model);
        files.extend(vocabulary.added_tokens_json.map(|text| ("added_tokens.json", text.into_bytes())));
        files.extend(
            vocabulary.generation_config_json.map(|text| ("generation_config.json", text.into_bytes())),
        );
        lost.extend(vocabulary.lost);
    }
    files.push(("config.json", format!("{:#}\n", Json::Object(config)).into_bytes()));

    let write = WriteCheckpointOptions {
        max_shard_bytes: options.max_shard_bytes,
        memory_bytes: options.memory_bytes,
        sync: options.sync,
    };
    let mut paths = write_checkpoint(dir, &weights, &write, progress)?;
    // The configuration comes last: without it nothing takes the directory for a checkpoint.
    for (name, bytes) in files {
        let path = dir.join(name);
        let output = OutputFile::create(&path)?;
        output.write_at(0, &bytes)?;
        output.commit(options.sync)?;
        paths.push(path);
    }
    let elem_bytes = ty.bytes().unwrap_or(4) as u64;
    let n_elems: u64 = weights.metas.iter().map(|weight| weight.shape.n_elems()).sum();
    Ok(ToHfReport {
        class,
        ty,
        paths,
        n_tensors: weights.metas.len(),
        n_bytes: n_elems.saturating_mul(elem_bytes),
        lost,
    })
}
