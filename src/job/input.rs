//! Model that a job reads, and the opened model.

use std::path::{Path, PathBuf};

use regex::Regex;

use crate::arch::diffusion::DiffusionRules;
use crate::arch::{ArchError, OutType};
use crate::convert::{
    AdapterConversion, AdapterOptions, Conversion, ConvertError, ConvertOptions, DiffusionConversion,
    FlmOptions, ModelSource, Piece,
};
use crate::core::output::OutputKind;
use crate::core::{GgmlType, TensorMeta, TensorSource};
use crate::gguf::{GgufFile, Metadata, output_kind};
use crate::job::{Guard, JobError, Result};
use crate::quant::SmallRows;
use crate::quantize::Input;

/// Model that a job reads. A model on a server is given by the directory that `remote::RemoteCheckpoint` has made for
/// it.
#[derive(Clone, Debug)]
pub enum JobInput {
    /// GGUF file; any part of a split model.
    Gguf(PathBuf),
    /// Directory of a Hugging Face checkpoint, or a file in one; file or folder of an image or video model.
    Checkpoint(PathBuf),
    /// Directory of a checkpoint quantized by Ascend's msModelSlim.
    MsModelSlim(PathBuf),
    /// FastLLM file.
    Flm {
        /// Path of the file.
        path: PathBuf,
        /// Settings that the file lacks.
        options: FlmOptions,
    },
    /// Checkpoint with a LoRA adapter that is merged into it.
    Merged {
        /// Directory of the base model.
        base: PathBuf,
        /// Directory of the adapter.
        adapter: PathBuf,
    },
    /// LoRA adapter, which becomes a GGUF adapter.
    Adapter {
        /// Directory of the adapter.
        path: PathBuf,
        /// Base model and strength.
        options: AdapterOptions,
    },
}

/// Extensions of files of weights: such a file alone is the checkpoint of an image or video model, or refused as one.
const WEIGHT_FILES: [&str; 5] = ["safetensors", "ckpt", "pt", "pth", "flm"];

impl JobInput {
    /// Input that a local path names: a folder or a file of weights is a checkpoint, any other file is GGUF.
    pub fn of_path(path: PathBuf) -> Self {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if path.is_dir() || WEIGHT_FILES.iter().any(|own| extension.eq_ignore_ascii_case(own)) {
            Self::Checkpoint(path)
        } else {
            Self::Gguf(path)
        }
    }

    /// Returns true for an image or video model. Only headers are read.
    pub fn is_image_model(&self, options: &ConvertOptions) -> Result<bool> {
        match self {
            Self::Gguf(path) => Ok(image_rules(&open_model(path)?).is_some()),
            Self::Checkpoint(path) => Ok(DiffusionConversion::find(path, options)?.is_some()),
            _ => Ok(false),
        }
    }

    /// Path of the file or directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Gguf(path)
            | Self::Checkpoint(path)
            | Self::MsModelSlim(path)
            | Self::Flm { path, .. }
            | Self::Adapter { path, .. } => path,
            Self::Merged { base, .. } => base,
        }
    }

    /// Directory in which an output without a name is written: that of the model or of the merged adapter.
    pub fn directory(&self) -> &Path {
        let path = match self {
            // The base model's directory may contain its own conversion.
            Self::Merged { adapter, .. } => adapter,
            _ => self.path(),
        };
        match path.parent() {
            Some(parent) if matches!(self, Self::Gguf(_)) => parent,
            Some(parent) if !path.is_dir() && parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) if !path.is_dir() => parent,
            _ => path,
        }
    }

    pub(super) fn open(&self, options: &ConvertOptions) -> Result<OpenedInput> {
        let converted = |source: ModelSource| conversion(source, options);
        match self {
            Self::Gguf(path) => Ok(OpenedInput::File(Box::new(open_model(path)?))),
            Self::Checkpoint(path) => match DiffusionConversion::find(path, options)? {
                Some(conversion) => Ok(OpenedInput::Diffusion(Box::new(conversion))),
                None => converted(ModelSource::open(path, options)?),
            },
            Self::MsModelSlim(path) => converted(ModelSource::open_msmodelslim(path, options)?),
            Self::Flm { path, options: flm } => converted(ModelSource::open_flm(path, flm, options)?),
            Self::Merged { base, adapter } => {
                let source = ModelSource::open(base, options)?;
                // Merged sums are F32, so `auto` is resolved by the types before the merge.
                let file_type = options.file_type.or_else(|| Some(OutType::auto(source.metas())));
                let options = ConvertOptions { file_type, ..options.clone() };
                conversion(source.merged(adapter, &options)?, &options)
            }
            Self::Adapter { path, options: adapter } => {
                Ok(OpenedInput::Adapter(Box::new(AdapterConversion::plan(path, adapter, options)?)))
            }
        }
    }

    /// Registers everything that is read of the model, whatever the options.
    pub(super) fn guard(
        &self,
        guard: &mut Guard<'_>,
        opened: &OpenedInput,
        convert: &ConvertOptions,
    ) -> Result<()> {
        let role = match self {
            Self::Gguf(_) => "the model",
            Self::Adapter { .. } => "the adapter",
            _ => "the checkpoint",
        };
        if !matches!(self, Self::Gguf(_)) {
            guard.read(role, self.path())?;
        }
        guard.read_all(role, opened.paths())?;
        match self {
            Self::Gguf(_) => return Ok(()),
            Self::Adapter { options, .. } => guard.read_all("the base model", &options.base)?,
            _ => guard.read("the directory of the checkpoint", self.directory())?,
        }
        guard.read_all("the card", &convert.card)?;
        guard.read_all("the metadata", &convert.metadata_file)?;
        guard.read_all("the chat template", &convert.chat_template)?;
        Ok(())
    }
}

fn open_model(path: &Path) -> Result<GgufFile> {
    let file = GgufFile::open(path)?;
    must_be_model(&file)?;
    Ok(file)
}

/// Refuses GGUF files that hold no weights: importance matrices and recipes.
pub(crate) fn must_be_model(file: &GgufFile) -> Result<()> {
    match output_kind(file.metadata()) {
        OutputKind::Model => Ok(()),
        kind => Err(JobError::NotAModel { path: file.path().to_owned(), kind }),
    }
}

/// Rules of the file of an image or video model; `None` for a language model.
fn image_rules(file: &GgufFile) -> Option<DiffusionRules> {
    // Embedded cards are valid.
    DiffusionRules::of_file(file.metadata(), file.tensors()).ok().flatten()
}

fn conversion(source: ModelSource, options: &ConvertOptions) -> Result<OpenedInput> {
    let conversion = Conversion::of(source, options).map_err(|error| of_drops(error, &options.drop))?;
    Ok(OpenedInput::Conversion(Box::new(conversion)))
}

/// Names the pattern of `--drop` that leaves out what an error misses.
fn of_drops(error: ConvertError, patterns: &[Regex]) -> JobError {
    let missing: Vec<&String> = match &error {
        ConvertError::Arch(ArchError::Missing { names, .. } | ArchError::Alone { lacks: names, .. }) => {
            names.iter().collect()
        }
        ConvertError::Arch(ArchError::Stack { missing, .. }) => vec![missing],
        _ => Vec::new(),
    };
    let is_its = |pattern: &&Regex| missing.iter().any(|name| pattern.is_match(name));
    match patterns.iter().find(is_its).map(ToString::to_string) {
        Some(pattern) => JobError::Dropped { pattern, error: Box::new(error) },
        None => error.into(),
    }
}

/// Opened model: headers are read, weights are not.
pub(super) enum OpenedInput {
    File(Box<GgufFile>),
    Conversion(Box<Conversion>),
    Adapter(Box<AdapterConversion>),
    Diffusion(Box<DiffusionConversion>),
}

impl OpenedInput {
    pub(super) fn source(&self) -> &dyn TensorSource {
        match self {
            Self::File(file) => &**file,
            Self::Conversion(conversion) => &**conversion,
            Self::Adapter(adapter) => &**adapter,
            Self::Diffusion(conversion) => &**conversion,
        }
    }

    /// Metadata of the file, or those that the conversion writes.
    pub(super) fn metadata(&self) -> &Metadata {
        match self {
            Self::File(file) => file.metadata(),
            Self::Conversion(conversion) => conversion.metadata(),
            Self::Adapter(adapter) => adapter.metadata(),
            Self::Diffusion(conversion) => conversion.metadata(),
        }
    }

    pub(super) fn input(&self) -> Input<'_> {
        match self {
            Self::File(file) => Input::file(file),
            Self::Conversion(_) | Self::Adapter(_) => Input::new(self.source(), self.metadata()),
            Self::Diffusion(conversion) => Input {
                diffusion: Some(conversion.rules().clone()),
                ..Input::new(self.source(), self.metadata())
            },
        }
    }

    /// Paths of all files that are read.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::File(file) => file.paths(),
            Self::Conversion(conversion) => conversion.input_paths(),
            Self::Adapter(adapter) => adapter.input_paths().to_vec(),
            Self::Diffusion(conversion) => conversion.input_paths().to_vec(),
        }
    }

    /// Rules of an image or video model; `None` for a language model.
    pub(super) fn image_rules(&self) -> Option<DiffusionRules> {
        match self {
            Self::File(file) => image_rules(file),
            Self::Diffusion(conversion) => Some(conversion.rules().clone()),
            Self::Conversion(_) | Self::Adapter(_) => None,
        }
    }

    pub(super) fn file(&self) -> Option<&GgufFile> {
        match self {
            Self::File(file) => Some(file),
            Self::Conversion(_) | Self::Adapter(_) | Self::Diffusion(_) => None,
        }
    }

    pub(super) fn conversion(&self) -> Option<&Conversion> {
        match self {
            Self::Conversion(conversion) => Some(conversion),
            Self::File(_) | Self::Adapter(_) | Self::Diffusion(_) => None,
        }
    }

    /// Returns what becomes of the pieces of what is converted; nothing for a file.
    pub(super) fn account(&self) -> Vec<Piece> {
        match self {
            Self::Conversion(conversion) => conversion.account(),
            Self::Adapter(adapter) => adapter.account(),
            Self::Diffusion(conversion) => conversion.account(),
            Self::File(_) => Vec::new(),
        }
    }

    /// Names of the weights that a converted tensor is made of; none for a file.
    pub(super) fn sources(&self, tensor: usize) -> Vec<String> {
        match self {
            Self::File(_) => Vec::new(),
            Self::Conversion(conversion) => conversion.sources(tensor).map(ToOwned::to_owned).collect(),
            Self::Adapter(adapter) => adapter.sources(tensor).map(ToOwned::to_owned).collect(),
            Self::Diffusion(conversion) => conversion.sources(tensor).map(ToOwned::to_owned).collect(),
        }
    }

    /// Name of the type that the converter writes; empty for a file, which is not converted.
    pub(super) fn encoding(&self) -> String {
        match self {
            Self::File(_) => String::new(),
            Self::Conversion(conversion) => conversion.encoding(),
            Self::Adapter(adapter) => adapter.encoding(),
            Self::Diffusion(conversion) => conversion.encoding(),
        }
    }

    /// Tensors of a conversion with rows that were too small for their type; complete once all of it was read.
    pub(super) fn small_rows(&self) -> Vec<(&TensorMeta, SmallRows)> {
        match self {
            Self::Conversion(conversion) => conversion.small_rows(),
            Self::Diffusion(conversion) => conversion.small_rows(),
            Self::File(_) | Self::Adapter(_) => Vec::new(),
        }
    }

    /// Keeps the checkpoint's integers of some tensors.
    pub(super) fn keep(&mut self, ty: GgmlType, wanted: impl Fn(&str) -> bool) -> Result<(), ConvertError> {
        match self {
            Self::Conversion(conversion) => conversion.keep(ty, wanted),
            Self::File(_) | Self::Adapter(_) | Self::Diffusion(_) => Ok(()),
        }
    }
}
