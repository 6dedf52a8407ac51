//! Model that is verified or compared with: a GGUF file, or a checkpoint as the file that it would become.

use std::path::{Path, PathBuf};

use regex::Regex;

use crate::arch::{ArchError, OutType};
use crate::cli::{Common, Session, UsageError};
use crate::convert::{
    Conversion, ConvertError, ConvertOptions, DiffusionConversion, ModelSource, ShownOptions,
};
use crate::core::TensorSource;
use crate::core::text::{escape, plural};
use crate::gguf::{FileType, GgufFile, Metadata, OpenOptions};
use crate::job::input::must_be_model;
use crate::job::{JobError, beside_text, must_be_language_model};
use crate::tokenizer::{Encoder, TokenizerError};
use crate::verify::{Model, ModelParts, OriginTokenizer, Recall};

enum ModelOrigin {
    Gguf(Box<GgufFile>),
    /// Checkpoint that is converted while it is read.
    Checkpoint(Box<Conversion>),
    /// Checkpoint of an image or video model.
    Image(Box<DiffusionConversion>),
}

fn metadata(origin: &ModelOrigin) -> &Metadata {
    match origin {
        ModelOrigin::Gguf(file) => file.metadata(),
        ModelOrigin::Checkpoint(conversion) => conversion.metadata(),
        ModelOrigin::Image(conversion) => conversion.metadata(),
    }
}

/// Plans the conversion of an image or video model; `None` for other paths. Without a type, it gets those from which
/// its files are quantized.
fn plan_image(
    path: &Path,
    file_type: Option<OutType>,
    common: &Common,
) -> Result<Option<DiffusionConversion>, ConvertError> {
    let options = ConvertOptions { file_type, level: common.simd, ..ConvertOptions::default() };
    DiffusionConversion::find(path, &options)
}

/// Plans the conversion of a checkpoint. One without tokenizer files can still be run on token ids.
///
/// With an adapter, the checkpoint is what `merge-lora` makes of both.
fn plan_checkpoint(
    path: &Path,
    adapter: Option<&Path>,
    shown: ShownOptions,
    common: &Common,
) -> Result<Conversion, ConvertError> {
    // F32 holds the weights of any checkpoint exactly, and nothing is written. Annotations keep semantics of the
    // checkpoint for which a file has no standard key.
    let file_type = Some(OutType::F32);
    let options =
        ConvertOptions { file_type, annotate: true, level: common.simd, ..ConvertOptions::default() };
    let options = shown.of(options);
    match plan(path, adapter, &options) {
        Err(ConvertError::Tokenizer(TokenizerError::NothingFits { .. })) => {
            plan(path, adapter, &ConvertOptions { tokenizer: false, ..options })
        }
        Err(ConvertError::Arch(error @ ArchError::Leftover { .. })) => {
            plan_without(path, adapter, &options, error)
        }
        planned => planned,
    }
}

fn plan(path: &Path, adapter: Option<&Path>, options: &ConvertOptions) -> Result<Conversion, ConvertError> {
    let Some(adapter) = adapter else { return Conversion::plan(path, options) };
    Conversion::of(ModelSource::open(path, options)?.merged(adapter, options)?, options)
}

/// Plans a checkpoint with tensors that its architecture does not have. Its file was made with `--drop`, so it is
/// compared without them.
fn plan_without(
    path: &Path,
    adapter: Option<&Path>,
    options: &ConvertOptions,
    error: ArchError,
) -> Result<Conversion, ConvertError> {
    let ArchError::Leftover { card, names, drop: Some(pattern), .. } = &error else {
        return Err(error.into());
    };
    let Ok(pattern) = Regex::new(pattern) else { return Err(error.into()) };
    let planned = plan(path, adapter, &ConvertOptions { drop: vec![pattern], ..options.clone() })?;
    let n = plural(names.len() as u64, "tensor");
    let first = names.first().map(|(name, _)| escape(name).to_string()).unwrap_or_default();
    log::warn!(
        "{}: {n} of the checkpoint that `{card}` does not have, first `{first}`: compared without, as a file is \
         that was made with `--drop`",
        escape(&path.display().to_string())
    );
    Ok(planned)
}

/// Opened model with its parts.
pub(crate) struct OpenedModel {
    origin: ModelOrigin,
    parts: ModelParts,
    /// Keys and tensors of a checkpoint that the converted model does not have.
    lost: Vec<String>,
    recall: Option<Recall>,
}

impl OpenedModel {
    pub(crate) fn open(path: &Path, common: &Common) -> anyhow::Result<Self> {
        Self::open_with(path, common, false)
    }

    /// Opens a model. With `lock` the file is read into memory and kept there.
    pub(super) fn open_with(path: &Path, common: &Common, lock: bool) -> anyhow::Result<Self> {
        Self::open_as(ShownOptions::default(), None, (path, None), common, lock)
    }

    /// Opens the baseline. A checkpoint is converted with the options that the keys of the first model show.
    pub(super) fn open_baseline(
        models: &[PathBuf],
        (path, adapter): (&Path, Option<&Path>),
        common: &Common,
        lock: bool,
    ) -> anyhow::Result<Self> {
        let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
        // A checkpoint or a refused file shows no options; its own verdict says why it is refused.
        let first = models.first().filter(|_| !is_gguf).and_then(|model| GgufFile::open(model).ok());
        let shown =
            first.as_ref().map_or_else(ShownOptions::default, |file| ShownOptions::by_keys(file.metadata()));
        // Files in other types are made of the types that suit the checkpoint.
        let file_type = first.as_ref().and_then(|file| file.metadata().get("general.file_type")?.as_u64());
        let is_wide = [FileType::F32, FileType::F16, FileType::Bf16]
            .iter()
            .any(|ty| file_type == Some(u64::from(ty.id())));
        Self::open_as(shown, is_wide.then_some(OutType::F32), (path, adapter), common, lock)
    }

    fn open_as(
        shown: ShownOptions,
        image_type: Option<OutType>,
        (path, adapter): (&Path, Option<&Path>),
        common: &Common,
        lock: bool,
    ) -> anyhow::Result<Self> {
        let image = if adapter.is_some() { None } else { plan_image(path, image_type, common)? };
        let origin = if let Some(image) = image {
            ModelOrigin::Image(Box::new(image))
        } else if path.is_dir() {
            ModelOrigin::Checkpoint(Box::new(plan_checkpoint(path, adapter, shown, common)?))
        } else {
            let options = OpenOptions { may_read: true, lock, ..OpenOptions::default() };
            let file = GgufFile::open_with(path, &options)?;
            must_be_model(&file)?;
            ModelOrigin::Gguf(Box::new(file))
        };
        Ok(Self::of(origin))
    }

    /// Returns the options that `file` shows it was converted with; `None` if there are none, or if this is a file.
    pub(super) fn shown_by(&self, file: &Self) -> Option<ShownOptions> {
        let (ModelOrigin::Checkpoint(plain), ModelOrigin::Gguf(file)) = (&self.origin, &file.origin) else {
            return None;
        };
        let shown = ShownOptions::between(plain, file.metadata(), file.tensors());
        (shown != ShownOptions::default()).then_some(shown)
    }

    /// Converts a checkpoint with these options; `None` if it does not accept one of them.
    fn converted_with(
        (path, adapter): (&Path, Option<&Path>),
        shown: ShownOptions,
        common: &Common,
    ) -> Option<Self> {
        let conversion = plan_checkpoint(path, adapter, shown, common).ok()?;
        Some(Self::of(ModelOrigin::Checkpoint(Box::new(conversion))))
    }

    fn of(origin: ModelOrigin) -> Self {
        let parts = ModelParts::of(metadata(&origin));
        let lost = match &origin {
            ModelOrigin::Gguf(_) | ModelOrigin::Image(_) => Vec::new(),
            ModelOrigin::Checkpoint(conversion) => conversion.lost(),
        };
        Self { origin, parts, lost, recall: None }
    }

    /// Keeps the results of this baseline, for some of the text or for the next of several models that are compared with
    /// it.
    pub(super) fn with_recall(self, n_models: usize) -> Self {
        let recall = if n_models > 1 { Recall::of_many() } else { Recall::default() };
        Self { recall: Some(recall), ..self }
    }

    /// Refuses a baseline of another kind than this file, as an adapter beside a model.
    pub(super) fn must_be_of_the_kind_of(&self, baseline: &Self) -> anyhow::Result<()> {
        let (ModelOrigin::Gguf(own), ModelOrigin::Gguf(other)) = (&self.origin, &baseline.origin) else {
            return Ok(());
        };
        let kind =
            |file: &GgufFile| beside_text(file.metadata(), file.tensors()).unwrap_or("a language model");
        let (found, expected) = (kind(other), kind(own));
        if found == expected {
            return Ok(());
        }
        let text = format!("{} is {found}, {} is {expected}", other.path().display(), own.path().display());
        Err(UsageError(text).into())
    }

    /// Refuses what no text runs through.
    pub(super) fn must_be_language_model(&self, path: &Path) -> Result<(), JobError> {
        match &self.origin {
            ModelOrigin::Gguf(file) => must_be_language_model(file),
            ModelOrigin::Checkpoint(_) => Ok(()),
            ModelOrigin::Image(conversion) => {
                let what = beside_text(conversion.metadata(), conversion.tensors());
                what.map_or(Ok(()), |what| Err(JobError::NotALanguageModel { path: path.to_owned(), what }))
            }
        }
    }

    pub(crate) fn with<R>(&self, origin: Option<&OriginTokenizer>, work: impl FnOnce(&Model<'_>) -> R) -> R {
        let (source, file): (&dyn TensorSource, _) = match &self.origin {
            ModelOrigin::Gguf(file) => (&**file, Some(&**file)),
            ModelOrigin::Checkpoint(conversion) => (&**conversion, None),
            ModelOrigin::Image(conversion) => (&**conversion, None),
        };
        self.parts.with(source, self.metadata(), file, |model| {
            work(&Model { origin, lost: &self.lost, recall: self.recall.as_ref(), ..*model })
        })
    }

    pub(super) fn metadata(&self) -> &Metadata {
        metadata(&self.origin)
    }

    /// Total bytes of all parts of a file.
    pub(super) fn size_bytes(&self) -> Option<u64> {
        match &self.origin {
            ModelOrigin::Gguf(file) => Some(file.file_bytes()),
            ModelOrigin::Checkpoint(_) | ModelOrigin::Image(_) => None,
        }
    }

    /// File type that a file declares in `general.file_type`; `checkpoint` for a checkpoint.
    pub(super) fn file_type(&self) -> Option<String> {
        match &self.origin {
            ModelOrigin::Gguf(file) => {
                let id = file.metadata().get("general.file_type")?.as_u64()?;
                FileType::from_id(u32::try_from(id).ok()?).map(|found| found.name().to_owned())
            }
            ModelOrigin::Checkpoint(_) | ModelOrigin::Image(_) => Some("checkpoint".to_owned()),
        }
    }

    /// Tokenizer, if it could be built.
    pub(super) fn encoder(&self) -> Option<&Encoder> {
        self.parts.encoder()
    }

    /// Files that are read; no output may replace them.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        match &self.origin {
            ModelOrigin::Gguf(file) => file.paths(),
            ModelOrigin::Checkpoint(conversion) => conversion.input_paths(),
            ModelOrigin::Image(conversion) => conversion.input_paths().to_vec(),
        }
    }
}

/// Baseline converted with the options of the last file that shows some. Files with the same options share it, and its
/// results.
#[derive(Default)]
pub(super) struct ConvertedBaseline(Option<(ShownOptions, OpenedModel)>);

impl ConvertedBaseline {
    /// Returns the baseline converted again if it is a checkpoint and the file shows that it was converted with
    /// options. `reference` is the baseline's path, and the adapter that is merged into it.
    pub(super) fn of(
        &mut self,
        reference: Option<(&Path, Option<&Path>)>,
        file: &OpenedModel,
        baseline: Option<&OpenedModel>,
        n_models: usize,
        session: &Session,
    ) -> Option<&OpenedModel> {
        let shown = baseline?.shown_by(file)?;
        if self.0.as_ref().is_none_or(|(known, _)| *known != shown) {
            // If the checkpoint does not accept an option, the file was not made with it.
            let again = OpenedModel::converted_with(reference?, shown, &session.common)?;
            self.0 = Some((shown, again.with_recall(n_models)));
        }
        session.note(&format!("baseline converted with `{}`, as the file was", shown.names().join(" ")));
        self.0.as_ref().map(|(_, alike)| alike)
    }
}
