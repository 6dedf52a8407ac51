//! Description of a finished ladder: `ladder.json`, and the data of its page.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::arch::diffusion::{DiffusionRules, ImageTask};
use crate::cli::memory::{ContextMemory, ModelMemory};
use crate::cli::modelfile::PromptForm;
use crate::cli::quantize::ladder::PageArgs;
use crate::cli::quantize::ladder::figures::{DigestedFile, MeasuredFigures};
use crate::core::text::escape;
use crate::gguf::{GgufError, GgufFile, Metadata, Value};
use crate::job::ladder::{LadderFile, LadderReport, RecordedFile};
use crate::verify::Verdict;

/// Tags of the hub that name what a model does.
const PIPELINES: [&str; 9] = [
    "text-generation",
    "image-text-to-text",
    "audio-text-to-text",
    "any-to-any",
    "feature-extraction",
    "sentence-similarity",
    "text-ranking",
    "fill-mask",
    "translation",
];

/// Finished ladder.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct LadderDocument {
    /// Program and version that wrote the files.
    pub(super) made_by: String,
    /// Name of the person or organization that publishes the files.
    pub(super) quantized_by: Option<String>,
    /// Model that was quantized.
    pub(super) model: LadderModel,
    /// Importance matrix of the files that have one; null without one.
    pub(super) importance: Option<LadderImportance>,
    /// Calibration of the rounding; null without one.
    pub(super) calibration: Option<LadderCalibration>,
    /// Text that the files were verified on; null without a verification.
    pub(super) verification: Option<DigestedFile>,
    /// Files, in the order of the types that were asked for.
    pub(super) files: Vec<LadderEntry>,
    /// Vision and audio towers in a file of their own, for llama.cpp's `--mmproj`; null if the model has none.
    pub(super) projector: Option<LadderEntry>,
    /// Draft heads in a file of their own, for speculative decoding; null if the model has none.
    pub(super) draft_heads: Option<LadderEntry>,
    /// Size of all quantizations in bytes.
    pub(super) file_bytes: u64,
    /// Size in bytes of the tensors that were quantized or copied: one that several files hold in the same type counts
    /// once.
    pub(super) made_bytes: u64,
    /// Command that made the files, as a shell reads it; the last one, if they were made by several.
    pub(super) command: String,
    /// Commands that made the files, each once.
    pub(super) commands: Vec<String>,
    /// Form of a prompt, and how to run a file; null for an image or video model.
    pub(super) usage: Option<LadderUsage>,
}

/// How to run a file of a folder.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LadderUsage {
    /// Repository that the upload line names.
    pub(super) repository: String,
    /// Type that is recommended.
    #[serde(rename = "type")]
    pub(super) name: String,
    /// Type that is recommended for Ollama, which loads no file in parts; null if all are in parts.
    pub(super) ollama: Option<String>,
    /// Form of a prompt.
    #[serde(flatten)]
    pub(super) form: PromptForm,
    /// True if a Modelfile is in the folder.
    pub(super) modelfile: bool,
}

/// Model that was quantized.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct LadderModel {
    /// Name of the model.
    pub(super) name: String,
    /// Repository of the hub, if it is known.
    pub(super) repository: Option<String>,
    /// Architecture, as the files declare it.
    pub(super) architecture: String,
    /// License, as the model card declares it.
    pub(super) license: Option<String>,
    /// Languages, as the model card declares them.
    pub(super) languages: Vec<String>,
    /// What the model does, as a tag of the hub.
    pub(super) pipeline: String,
    /// True for an image or video model.
    pub(super) image: bool,
    /// Programs that load the files; empty if none is known.
    pub(super) runtimes: Vec<String>,
    /// Number of weights.
    pub(super) weights: u64,
}

/// Importance matrix of a ladder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LadderImportance {
    /// File of the matrix.
    pub(super) matrix: DigestedFile,
    /// Text that it was measured on; null for a matrix that was given.
    pub(super) text: Option<DigestedFile>,
}

/// Calibration of the rounding of a ladder's files.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LadderCalibration {
    /// Name of the method that chose codes and scales.
    pub(super) solver: String,
    /// Number of tokens of calibration text.
    pub(super) tokens: usize,
    /// Texts that were given, without folders and without what the model wrote itself.
    pub(super) texts: Vec<DigestedFile>,
}

/// File of a finished ladder.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LadderEntry {
    /// The file, as records describe it.
    #[serde(flatten)]
    pub(super) file: RecordedFile,
    /// Memory that the file takes when it runs, by length of context, with keys and values as F16; empty if that is not
    /// known.
    pub(super) memory: Vec<ContextMemory>,
    /// Figures of the verification; null without one.
    pub(super) figures: Option<MeasuredFigures>,
    /// Digest of what they were measured with: the text, the model, the version.
    pub(super) figures_id: Option<String>,
}

impl LadderModel {
    /// Describes the model of a ladder. `source` is as it was given.
    pub(super) fn new(report: &LadderReport, source: &Path, given: &PageArgs) -> Self {
        let model = Self::of_keys(&report.metadata, report.image.as_ref(), source, report.n_weights);
        let own = |text: &Option<String>| text.as_deref().map(|text| escape(text).into_owned());
        Self {
            repository: own(&given.base_model).or(model.repository),
            license: own(&given.license).or(model.license),
            ..model
        }
    }

    /// Describes the model of these keys; `image` are the rules of an image or video model.
    fn of_keys(metadata: &Metadata, image: Option<&DiffusionRules>, source: &Path, weights: u64) -> Self {
        let text =
            |key: &str| metadata.get(key).and_then(Value::as_str).map(|text| escape(text).into_owned());
        let list = |key: &str| match metadata.get(key).and_then(Value::as_array) {
            Some(values) => {
                let text = |value: Value| value.as_str().map(|text| escape(text).into_owned());
                (0..values.len()).filter_map(|at| text(values.get(at)?)).collect()
            }
            None => Vec::new(),
        };
        let architecture = text("general.architecture").unwrap_or_default();
        let tags: Vec<String> = list("general.tags");
        let is_tag = |known: &&str| tags.iter().any(|tag| tag == *known);
        let pipeline = if let Some(rules) = image {
            let tag = ImageTask::ALL.map(ImageTask::tag).into_iter().find(is_tag);
            tag.unwrap_or_else(|| rules.card().map(|card| card.task).unwrap_or_default().tag())
        } else {
            let is_audio = metadata.get("clip.has_audio_encoder").and_then(Value::as_bool) == Some(true);
            let is_encoder = metadata.contains(&format!("{architecture}.pooling_type"));
            let usual = match architecture.as_str() {
                "clip" if is_audio => "audio-text-to-text",
                "clip" => "image-text-to-text",
                _ if is_encoder => "feature-extraction",
                _ => PIPELINES[0],
            };
            PIPELINES.into_iter().find(is_tag).unwrap_or(usual)
        };
        let file_name = || source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self {
            name: text("general.name").unwrap_or_else(|| escape(&file_name()).into_owned()),
            repository: repository(source).or_else(|| text("general.repo_url").as_deref().and_then(of_url)),
            architecture,
            license: text("general.license"),
            languages: list("general.languages"),
            pipeline: pipeline.to_owned(),
            image: image.is_some(),
            runtimes: runtimes(image).iter().map(ToString::to_string).collect(),
            weights,
        }
    }
}

/// Returns the programs that load the files of a model; `image` are the rules of an image or video model.
fn runtimes(image: Option<&DiffusionRules>) -> &'static [&'static str] {
    match image.map(DiffusionRules::card) {
        None => &["llama.cpp"],
        // Its shapes are in keys, which stable-diffusion.cpp does not read.
        Some(Some(card)) if card.reshape => &["ComfyUI-GGUF"],
        Some(Some(_)) => &["ComfyUI-GGUF", "stable-diffusion.cpp"],
        Some(None) => &[],
    }
}

/// Returns the repository of the hub that a source was read from: named itself, or a folder of the hub's own cache.
fn repository(source: &Path) -> Option<String> {
    let folder = source
        .components()
        .find_map(|part| part.as_os_str().to_str()?.strip_prefix("models--")?.split_once("--"));
    if let Some((org, name)) = folder {
        return Some(format!("{org}/{name}")).filter(|name| is_repository(name));
    }
    let text = source
        .to_str()
        .filter(|_| source.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound))?;
    let text = text.strip_prefix("hf://").unwrap_or(text);
    let name = text.split('@').next()?;
    is_repository(name).then(|| name.to_owned())
}

/// Returns true for `ORG/NAME` as the hub allows it: nothing that a page, an address or a shell would read otherwise.
fn is_repository(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = |part: &str| !part.trim_matches('.').is_empty() && part.chars().all(is_allowed);
    text.split('/').count() == 2 && text.split('/').all(is_name)
}

/// Returns the repository in an address of the hub.
fn of_url(url: &str) -> Option<String> {
    let path = url.strip_prefix("https://huggingface.co/")?.trim_end_matches('/');
    is_repository(path).then(|| path.to_owned())
}

impl LadderEntry {
    /// Describes the quantizations of a report.
    pub(super) fn all(report: &LadderReport) -> anyhow::Result<Vec<Self>> {
        let entry = |file| Ok(Self { memory: memory(file)?, ..Self::of(file)? });
        report.quantizations().into_iter().map(entry).collect()
    }

    /// Describes a file without its memory.
    pub(super) fn of(file: &LadderFile) -> anyhow::Result<Self> {
        let figures = file.figures.clone().map(serde_json::from_value).transpose()?;
        let figures_id = file.figures_id.clone();
        let mut file = RecordedFile::of(file, false)?;
        for part in &mut file.parts {
            part.name = escape(&part.name).into_owned();
        }
        Ok(Self { file, memory: Vec::new(), figures, figures_id })
    }

    pub(super) fn mean_kld(&self) -> Option<f64> {
        self.figures.as_ref()?.figures.mean_kld
    }

    /// Returns true if the file was judged and failed.
    pub(super) fn fails(&self) -> bool {
        self.figures.as_ref().is_some_and(|found| found.figures.verdict == Verdict::Fail.name())
    }
}

/// Returns the memory that a written file takes with contexts of the usual lengths; nothing if the engine does not know
/// the architecture.
fn memory(file: &LadderFile) -> Result<Vec<ContextMemory>, GgufError> {
    let Some(path) = file.plan.paths.first() else { return Ok(Vec::new()) };
    Ok(ModelMemory::of_file(&GgufFile::open(path)?).unwrap_or_default())
}

/// Returns the recommended file of those that do not fail: the smallest that is very good or, if nothing was measured, the one of Q4_K_M, or the
/// one in the middle.
pub(super) fn recommended<'f>(files: impl Iterator<Item = &'f LadderEntry>) -> Option<&'f LadderEntry> {
    let files: Vec<&LadderEntry> = files.filter(|entry| !entry.fails()).collect();
    let word =
        |entry: &LadderEntry| Some(entry.figures.as_ref()?.figures.recommendation.starts_with("recommended"));
    let is_measured = files.iter().any(|entry| entry.mean_kld().is_some());
    let usual = || files.iter().find(|entry| !is_measured && entry.file.name == "Q4_K_M");
    let named = files.iter().find(|entry| word(entry) == Some(true)).or_else(usual);
    let best = |a: &&&LadderEntry, b: &&&LadderEntry| {
        let kld = |entry: &LadderEntry| entry.mean_kld().unwrap_or(f64::INFINITY);
        kld(a).total_cmp(&kld(b))
    };
    named
        .or_else(|| if is_measured { files.iter().min_by(best) } else { files.get(files.len() / 2) })
        .copied()
}

/// Returns the recommended file of those that Ollama loads: it takes none in parts.
pub(super) fn for_ollama(files: &[LadderEntry]) -> Option<&LadderEntry> {
    recommended(files.iter().filter(|entry| entry.file.parts.len() == 1))
}

/// Returns the text that the figures of some files are of.
pub(super) fn text_of(files: &[LadderEntry]) -> Option<DigestedFile> {
    files.iter().find_map(|entry| Some(entry.figures.as_ref()?.text.clone()))
}

/// Returns the importance matrix that the list of a folder names.
pub(super) fn old_importance(folder: &Path) -> Option<LadderImportance> {
    #[derive(Deserialize)]
    struct OldList {
        importance: Option<LadderImportance>,
    }
    let text = fs_err::read_to_string(folder.join("ladder.json")).ok()?;
    serde_json::from_str::<OldList>(&text).ok()?.importance
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Array;

    #[test]
    fn repositories_are_read_off_sources() {
        let found = |text: &str| repository(Path::new(text));
        assert_eq!(found("org/Model-7B@main").as_deref(), Some("org/Model-7B"));
        assert_eq!(found("hf://org/Model-7B").as_deref(), Some("org/Model-7B"));
        let cached = "/c/hub/models--org--Model-7B/snapshots/abc";
        assert_eq!(found(cached).as_deref(), Some("org/Model-7B"));
        assert_eq!(found("https://host/dir"), None);
        assert_eq!(found("models/llama.gguf/x"), None);
        assert_eq!(of_url("https://huggingface.co/org/name/").as_deref(), Some("org/name"));
        assert_eq!(of_url("https://example.org/org/name"), None);
        for name in ["a/b) [c](d", "a/$(id)", "a/b\nc", "a/..", "a/b?x", "/b"] {
            assert_eq!(of_url(&format!("https://huggingface.co/{name}")), None, "{name}");
        }
    }

    #[test]
    fn a_model_is_described_by_its_keys() {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("general.license", "apache-2.0");
        metadata.set("general.languages", Value::Array(Array::String(vec![b"en".to_vec(), b"de".to_vec()])));
        let describe = |metadata: &Metadata, image: Option<&DiffusionRules>| {
            LadderModel::of_keys(metadata, image, Path::new("dir/tiny-F16.gguf"), 7)
        };
        let model = describe(&metadata, None);
        assert_eq!((model.name.as_str(), model.pipeline.as_str()), ("tiny-F16", "text-generation"));
        assert_eq!(model.languages, ["en", "de"]);
        metadata.set("llama.pooling_type", 1_u32);
        assert_eq!(describe(&metadata, None).pipeline, "feature-extraction");
    }

    #[test]
    fn an_image_model_is_described_by_its_card() {
        let of = |arch: &str, tag: &str| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", arch);
            metadata.set("general.file_type", 1_u32);
            metadata.set("general.tags", Value::Array(Array::String(vec![tag.as_bytes().to_vec()])));
            let rules = DiffusionRules::of_file(&metadata, &[]).unwrap();
            let model = LadderModel::of_keys(&metadata, rules.as_ref(), Path::new("x.safetensors"), 7);
            assert!(model.image);
            (model.pipeline, model.runtimes)
        };
        let both = vec!["ComfyUI-GGUF".to_owned(), "stable-diffusion.cpp".to_owned()];
        assert_eq!(of("flux", "gguf"), ("text-to-image".to_owned(), both.clone()));
        assert_eq!(of("wan", "text-generation"), ("text-to-video".to_owned(), both.clone()));
        assert_eq!(of("wan", "image-to-video"), ("image-to-video".to_owned(), both));
        assert_eq!(of("sdxl", "gguf").1, ["ComfyUI-GGUF"]);
    }
}
