//! Opening of a checkpoint as far as possible: its file contents, and its dequantized weights.

use std::path::Path;

use crate::checkpoint::report::{Aspect, ListedFile, ListedTensor, Problem, WeightFiles};
use gguf_checkpoint::fastllm::FlmFile;
use gguf_checkpoint::msmodelslim::Description;
use gguf_checkpoint::{Checkpoint, Container as _, ModelDir};
use gguf_conversion::{ConvertError, ConvertOptions, FlmOptions, ModelSource, Vocabulary};
use gguf_core::{WeightMeta, WeightSource};

pub(super) struct OpenedCheckpoint {
    /// The model, without weights if they cannot be read.
    pub(super) source: ModelSource,
    /// The weight files, if they can be read.
    pub(super) container: Option<WeightFiles>,
    /// The tensors as stored in the files.
    pub(super) tensors: Vec<ListedTensor>,
    /// The tensors in the files.
    pub(super) metas: Vec<WeightMeta>,
    /// Problems found while opening.
    pub(super) problems: Vec<Problem>,
}

impl OpenedCheckpoint {
    /// Opens a FastLLM file or a directory, as far as possible.
    pub(super) fn open(path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let is_flm = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("flm"));
        if is_flm && path.is_file() { Self::fastllm(path, options) } else { Self::directory(path, options) }
    }

    fn directory(path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let dir = ModelDir::open(path, &options.limits)?;
        let mut opened = Self {
            source: ModelSource::without_weights(dir.clone()),
            container: None,
            tensors: Vec::new(),
            metas: Vec::new(),
            problems: Vec::new(),
        };
        let checkpoint = match Checkpoint::with_dir(dir) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                opened.problems.push(Problem::new(Aspect::Weights, &error.into()));
                return Ok(opened);
            }
        };
        let names: Vec<&str> = checkpoint.parts().iter().map(|part| part.name).collect();
        // A broken description counts as one: opening the weights reports the error.
        let is_described = !matches!(Description::find(checkpoint.dir()), Ok(None));
        let format = if is_described { "msModelSlim" } else { checkpoint.format() };
        opened.container = Some(WeightFiles::new(format, files(checkpoint.dir().path(), &names)?));
        opened.tensors = tensors(&checkpoint, |weight| checkpoint.part_of(weight));
        opened.metas = checkpoint.weights().to_vec();
        match ModelSource::over(checkpoint, options) {
            Ok(source) => opened.source = source,
            Err(error) => opened.problems.push(Problem::new(Aspect::Quantization, &error)),
        }
        Ok(opened)
    }

    fn fastllm(path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let file = FlmFile::open(path, &options.limits)?;
        let part = file.parts().first().map(|part| part.name.to_owned()).unwrap_or_default();
        let container = WeightFiles::new(file.format(), files(path.parent().unwrap_or(path), &[&part])?);
        let tensors = tensors(&file, |_| &part);
        let config = file.header().configuration();
        let metas = file.weights().to_vec();
        drop(file);
        let (source, problems) = match ModelSource::open_flm(path, &FlmOptions::default(), options) {
            Ok(source) => (source, Vec::new()),
            Err(error) => {
                // Try again without weights, or else use only the dictionary.
                let keys_only = ConvertOptions { vocab_only: true, ..options.clone() };
                let (source, part) = match ModelSource::open_flm(path, &FlmOptions::default(), &keys_only) {
                    Ok(source) => (source, Aspect::Weights),
                    Err(_) => {
                        let dir = ModelDir::of_file(path, config, &options.limits);
                        let mut source = ModelSource::without_weights(dir);
                        source.vocabulary = Vocabulary::Absent;
                        (source, Aspect::Architecture)
                    }
                };
                (source, vec![Problem::new(part, &error)])
            }
        };
        Ok(Self { source, container: Some(container), tensors, metas, problems })
    }
}

fn files(dir: &Path, names: &[&str]) -> Result<Vec<ListedFile>, ConvertError> {
    let file = |name: &&str| {
        let n_bytes = fs_err::metadata(dir.join(name))?.len();
        Ok(ListedFile { name: (*name).to_owned(), n_bytes })
    };
    names.iter().map(file).collect()
}

fn tensors<'a>(source: &dyn WeightSource, part_of: impl Fn(usize) -> &'a str) -> Vec<ListedTensor> {
    let stored = |(index, weight): (usize, &WeightMeta)| {
        // Elements narrower than a byte are packed.
        let bits = u128::from(weight.shape.n_elems()) * u128::from(weight.ty.bits());
        ListedTensor {
            name: weight.name.clone(),
            ty: weight.ty,
            shape: weight.shape.clone(),
            n_bytes: u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX),
            file: part_of(index).to_owned(),
        }
    };
    source.weights().iter().enumerate().map(stored).collect()
}
