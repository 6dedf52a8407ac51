//! Input of a conversion: the directory, its container, and the layers that turn codes into floats.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use crate::diffusion::text_encoder;
use crate::drops::Drops;
use crate::mlx::SavedByMlx;
use crate::{ConvertError, ConvertOptions, modules};
use gguf_arch::CardKind;
use gguf_checkpoint::modules::WithModules;
use gguf_checkpoint::msmodelslim::Description;
use gguf_checkpoint::pieces::of_notes;
use gguf_checkpoint::{Checkpoint, CheckpointError, ModelDir, Part};
use gguf_core::account::{Piece, PieceKind};
use gguf_core::text::escape;
use gguf_core::{WeightMeta, WeightSource};
use gguf_dequant::{self, DequantOptions, Quantization};
use gguf_tokenizer::GivenVocabulary;

/// Origin of a model's vocabulary.
#[derive(Clone, Debug, Default)]
pub enum Vocabulary {
    /// The files of the directory.
    #[default]
    Files,
    /// The container, which stores the vocabulary.
    Given(Box<GivenVocabulary>),
    /// No vocabulary.
    Absent,
}

/// Adapter that is merged into a model.
#[derive(Clone, Debug)]
pub struct MergedAdapter {
    /// Name of its directory.
    pub name: String,
    /// Indices of the weights that it changes, sorted.
    pub changes: Vec<usize>,
    /// Index of an output that the base shares with its embeddings, and the adapter does not; index of the embeddings.
    pub untied: Option<(usize, usize)>,
}

/// Model in the form that cards expect: a configuration, and floats under plain names.
#[derive(Clone)]
pub struct ModelSource {
    /// Configuration and small files.
    pub dir: ModelDir,
    /// Weights; `None` if only the vocabulary is read.
    pub weights: Option<Arc<dyn WeightSource + Send>>,
    /// Quantization of the checkpoint's weights, if any.
    pub quantization: Option<Quantization>,
    /// Stored tensors from which quantized weights were assembled.
    pub stored: Vec<WeightMeta>,
    /// Adapter that is merged into the weights.
    pub adapter: Option<MergedAdapter>,
    /// Origin of the vocabulary.
    pub vocabulary: Vocabulary,
    /// Paths of the files that are read; an output must not replace them.
    pub paths: Vec<PathBuf>,
    /// Set if MLX saved the weights.
    pub(super) mlx: Option<SavedByMlx>,
    /// Oddities of the weights that do not stop the conversion.
    pub warnings: Vec<String>,
    /// Stored tensors that are not among the weights, and keys of the weights' files, with what becomes of them.
    pub(super) pieces: Vec<Piece>,
    /// Names in the files of weights that have other names here.
    pub(super) stored_names: HashMap<String, String>,
}

impl fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelSource")
            .field("dir", &self.dir)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl ModelSource {
    /// Opens a checkpoint directory of any supported form, or a PyTorch file with its configuration next to it.
    pub fn open(path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let dir = if options.mistral_format {
            ModelDir::open_mistral(path, &options.limits)?
        } else {
            ModelDir::open(path, &options.limits)?
        };
        if options.vocab_only {
            return Ok(Self::without_weights(dir));
        }
        Self::over(Checkpoint::with_dir(dir)?, options)
    }

    /// Returns a source without weights.
    pub fn without_weights(dir: ModelDir) -> Self {
        Self {
            dir,
            weights: None,
            quantization: None,
            stored: Vec::new(),
            adapter: None,
            vocabulary: Vocabulary::Files,
            paths: Vec::new(),
            mlx: None,
            warnings: Vec::new(),
            pieces: Vec::new(),
            stored_names: HashMap::new(),
        }
    }

    /// Marks the input factors of these weights as written: they are next to the weights' blocks.
    pub(super) fn keep_input_factors(&mut self, weights: &[usize]) {
        let metas = self.weights.as_ref().map_or(&[][..], |source| source.weights());
        // A stack of experts is not a module: the factor's name continues the stack's name.
        let stem = |name| str::strip_suffix(name, ".weight").unwrap_or(name);
        let names = weights.iter().filter_map(|&weight| Some(metas.get(weight)?.name.as_str()));
        let modules: HashMap<&str, &str> = names.map(|name| (stem(name), name)).collect();
        let weight_of = |name: &str| {
            let suffixes = [".input_scale", ".input_global_scale", "_input_scale"];
            suffixes.iter().find_map(|suffix| modules.get(name.strip_suffix(suffix)?))
        };
        for piece in self.quantization.iter_mut().flat_map(|own| &mut own.pieces) {
            if let Some(weight) = weight_of(&piece.name) {
                let name = std::mem::take(&mut piece.name);
                *piece = Piece::written(PieceKind::Tensor, name, vec![(*weight).to_owned()]);
            }
        }
    }

    /// Wraps an open checkpoint in the layer that its quantization needs.
    ///
    /// # Errors
    /// A quantization that is not supported, or contradicts the tensors.
    pub fn over(checkpoint: Checkpoint, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let mut source = Self::without_weights(checkpoint.dir().clone());
        source.paths = checkpoint.paths();
        source.warnings.extend_from_slice(checkpoint.warnings());
        let mut files = configurations(&source.dir)?;
        if let Some(description) = &mut files.msmodelslim {
            description.rename(checkpoint.renamed());
        }
        let dense_modules = options.dense_modules;
        let is_of_towers = options.kind == CardKind::Mmproj;
        let names = checkpoint.renamed().map(|(stored, own)| (own.to_owned(), stored.to_owned()));
        source.stored_names = names.collect();
        source.pieces = of_notes(&checkpoint.parts());
        source.warnings.extend(turned(&checkpoint.parts()));
        source.mlx = SavedByMlx::find(&checkpoint);
        if let Some(mlx) = &source.mlx {
            mlx.check()?;
            source.warnings.extend(mlx.doubt());
        }
        let described = text_encoder::described(&checkpoint.parts())?;
        let mut drops = Drops::of(&options.drop);
        let stored = drops.apply(Box::new(checkpoint));
        let stored = text_encoder::decoded(stored, &described, options.level, &mut source.warnings)?;
        let dequant = DequantOptions { offset_sign: options.offset_sign, level: options.level };
        let opened = gguf_dequant::open(&files, stored, dequant)?;
        source.warnings.extend(opened.warnings);
        source.stored = opened.members;
        source.quantization = opened.quantization;
        // A weight that was assembled from codes has a name that no stored tensor has.
        let mut weights = WithModules::new(drops.apply(opened.source));
        source.warnings.extend(drops.warnings());
        source.pieces.extend(drops.pieces());
        modules::add_dense(&source.dir, dense_modules, &mut weights)?;
        if let Some(folder) = modules::tower_folder(&source.dir).filter(|_| is_of_towers) {
            weights.add_folder(&source.dir, folder)?;
        }
        source.paths.extend_from_slice(weights.paths());
        if dense_modules && weights.paths().is_empty() {
            source.warnings.push("there are no dense modules with weights of their own".to_owned());
        }
        source.warnings.extend(weights.pieces().iter().filter_map(|piece| piece.why.clone()));
        source.pieces.extend_from_slice(weights.pieces());
        source.weights = Some(match weights.paths() {
            [] => Arc::from(weights.into_base()),
            _ => Arc::new(weights),
        });
        if let Some(mlx) = &source.mlx {
            let stored = source.metas().iter().map(|meta| (mlx.original_name(&meta.name), meta.name.clone()));
            let stored: Vec<_> = stored.filter(|(own, stored)| own != stored).collect();
            source.stored_names.extend(stored);
            source.quantization.iter_mut().for_each(|quantization| mlx.rename(quantization));
            let weights = source.weights.take();
            let weights = weights.map(|weights| mlx.as_saved_by_transformers(weights, options.level));
            source.weights = match weights {
                Some(weights) if is_of_towers => Some(mlx.with_channels_first(weights)?),
                weights => weights,
            };
        }
        Ok(source)
    }

    /// Opens a checkpoint of msModelSlim only.
    ///
    /// # Errors
    /// As for [`ModelSource::open`]; the description is missing.
    pub fn open_msmodelslim(path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let dir = ModelDir::open(path, &options.limits)?;
        if Description::find(&dir)?.is_none() {
            let (dir, name) = (path.to_owned(), "quant_model_description.json");
            return Err(CheckpointError::FileMissing { dir, name }.into());
        }
        Self::open(path, options)
    }

    /// Names, shapes and types of the weights.
    pub fn metas(&self) -> &[WeightMeta] {
        self.weights.as_ref().map_or(&[], |weights| weights.weights())
    }
}

/// Frameworks that name themselves in the headers of weight files and store matrices as [inputs, outputs].
const TURNED: [&str; 6] = ["tf", "flax", "jax", "np", "pd", "paddle"];

/// Returns a warning about weights of a framework that stores matrices the other way round.
fn turned(parts: &[Part<'_>]) -> Option<String> {
    let format =
        |part: &Part<'_>| part.metadata.iter().find(|entry| entry.0 == "format").map(|entry| entry.1.clone());
    let (part, format) = parts.iter().find_map(|part| Some((part.name, format(part)?)))?;
    TURNED.contains(&format.as_str()).then(|| {
        format!(
            "{}: `format` is `{format}`, of a framework that stores matrices as [inputs, outputs]: they are read as PyTorch's \
             [outputs, inputs], which no shape of a square one contradicts; convert what transformers saves for PyTorch",
            escape(part)
        )
    })
}

/// Reads the files that may describe a quantization.
fn configurations(dir: &ModelDir) -> Result<gguf_dequant::Configurations, ConvertError> {
    let mut config = dir.config().clone();
    if let Some(quantization) = config.get("quantization").filter(|_| dir.is_mistral_format()) {
        // Mistral's own spelling of FP8; other methods are declared under this key as in other configurations.
        let mut quantization = quantization.clone();
        let is_fp8 = quantization.get("qformat_weight").and_then(Json::as_str) == Some("fp8_e4m3");
        if let Some(map) = quantization.as_object_mut().filter(|_| is_fp8) {
            map.insert("quant_method".to_owned(), "fp8".into());
        }
        config.insert("quantization_config".to_owned(), quantization);
    }
    Ok(gguf_dequant::Configurations {
        config,
        hf_quant_config: dir.json(gguf_dequant::HF_QUANT_CONFIG)?,
        quantize_config: dir.json(gguf_dequant::QUANTIZE_CONFIG)?,
        quant_config: dir.json(gguf_dequant::QUANT_CONFIG)?,
        quantization_config: dir.json(gguf_dequant::QUANTIZATION_CONFIG)?,
        quanto_qmap: dir.json(gguf_dequant::QUANTO_QMAP)?,
        msmodelslim: Description::find(dir)?,
    })
}
