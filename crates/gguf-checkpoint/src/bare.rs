//! Weights without a configuration: image and video models, which their tensor names alone describe. They are one
//! file, or the weight files of a folder.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::files::counted;
use crate::pieces::of_notes;
use crate::shards::SafetensorsShards;
use crate::torch::TorchFiles;
use crate::wrappers::{self, Owner};
use crate::{CheckpointError, Container, ModelDir};
use gguf_core::WeightMeta;
use gguf_core::account::Piece;
use gguf_core::limits::Limits;

const SAFETENSORS: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";
const TORCH: [&str; 4] = [".pt", ".pth", ".ckpt", ".bin"];
/// Stem of the weights in a folder of diffusers.
const DIFFUSERS: &str = "diffusion_pytorch_model";
/// Configuration of a model, and of the sampling of a pipeline of diffusers.
const CONFIG: &str = "config.json";
const SCHEDULER: &str = "scheduler/scheduler_config.json";
const PIPELINE_INDEX: &str = "model_index.json";
/// Maximum number of files of a folder that are looked at.
const MAX_PLACES: usize = 16;
/// Folders of the denoising model in a pipeline of diffusers.
const PIPELINE: [&str; 2] = ["transformer", "unet"];

/// Configuration file: its name in the folder, and its members.
pub type NamedConfig = (&'static str, Map<String, Value>);

/// Weights of a model that has no configuration, in the order in which their data is stored.
#[derive(Debug)]
pub struct BareWeights {
    dir: ModelDir,
    /// Path as given, or the folder of a pipeline that is read.
    path: PathBuf,
    container: Box<dyn Container>,
    /// The weights under their names without the words of training wrappers.
    weights: Vec<WeightMeta>,
    warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BarePlace {
    /// One file of this name.
    File(String),
    /// Files whose names begin with this stem, perhaps with an index.
    Shards(String),
}

/// Path that may have such weights.
#[derive(Clone, Debug)]
pub struct BarePath {
    path: PathBuf,
    dir: PathBuf,
    place: BarePlace,
    /// True if nothing else can be there: the names need not be recognized to tell.
    pub is_certain: bool,
}

impl BarePath {
    /// Looks at a path; empty if it is the model of a configuration, or something else that is read in another way.
    ///
    /// A single safetensors file is always such a path. A PyTorch file or a folder is one if there is no configuration of
    /// a language model. A folder may have several: its files, and the folder of the denoising model in a pipeline of
    /// diffusers.
    pub fn find(path: &Path, limits: &Limits) -> Result<Vec<Self>, CheckpointError> {
        let Ok(found) = fs_err::metadata(path) else { return Ok(Vec::new()) };
        if found.is_dir() {
            return Self::in_folder(path, limits);
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let lower = name.to_ascii_lowercase();
        let is_torch = TORCH.iter().any(|end| lower.ends_with(end));
        if !lower.ends_with(SAFETENSORS) && !is_torch {
            return Ok(Vec::new());
        }
        if is_torch && is_of_language(&ModelDir::without_config(dir, None, limits)) {
            return Ok(Vec::new());
        }
        let place = match counted(&name, SAFETENSORS) {
            Some((stem, _)) => BarePlace::Shards(stem.to_owned()),
            None => BarePlace::File(name),
        };
        let (path, dir) = (path.to_owned(), dir.to_owned());
        Ok(vec![Self { path, dir, place, is_certain: !is_torch }])
    }

    fn in_folder(path: &Path, limits: &Limits) -> Result<Vec<Self>, CheckpointError> {
        let dir = ModelDir::without_config(path, None, limits);
        let names = dir.file_names()?;
        let is_pipeline = dir.file(PIPELINE_INDEX).is_some();
        if (is_of_language(&dir) && !is_pipeline) || names.iter().any(|name| name == "adapter_config.json") {
            return Ok(Vec::new());
        }
        let is_certain = is_pipeline || dir.file(CONFIG).is_some();
        let places = BarePlace::among(&names).into_iter();
        let own = places.map(|place| Self { path: path.to_owned(), dir: path.to_owned(), place, is_certain });
        let mut found: Vec<Self> = own.collect();
        for folder in PIPELINE.iter().map(|name| path.join(name)).filter(|_| is_pipeline) {
            if folder.is_dir() {
                found.extend(Self::in_folder(&folder, limits)?);
            }
        }
        Ok(found)
    }

    /// Path as given, with the name of the file in a folder of several.
    pub fn shown(&self) -> PathBuf {
        match &self.place {
            BarePlace::File(name) => self.dir.join(name),
            BarePlace::Shards(stem) => self.dir.join(stem),
        }
    }

    /// Returns true for the name that a language model's weights have in a folder, which needs its configuration then.
    pub fn is_named_as_language(&self) -> bool {
        let (BarePlace::File(name) | BarePlace::Shards(name)) = &self.place;
        let is_model = matches!(self.place, BarePlace::Shards(_)) || name.ends_with(SAFETENSORS);
        name.starts_with("pytorch_model") || (name.starts_with("model") && is_model)
    }

    /// Opens the weights; reads the headers of all files.
    pub fn open(&self, limits: &Limits) -> Result<BareWeights, CheckpointError> {
        let dir = ModelDir::without_config(&self.dir, None, limits);
        let missing =
            || CheckpointError::NoWeights { dir: self.dir.clone(), others: Vec::new(), inner: None };
        let container: Box<dyn Container> = match &self.place {
            BarePlace::File(name) if name.to_ascii_lowercase().ends_with(SAFETENSORS) => {
                Box::new(SafetensorsShards::in_data_order(&dir, name)?)
            }
            BarePlace::File(name) => {
                let chosen = ModelDir::without_config(&self.dir, Some(name.clone()), limits);
                Box::new(TorchFiles::find(&chosen, &[])?.ok_or_else(missing)?)
            }
            BarePlace::Shards(stem) => {
                let shards = SafetensorsShards::named(&dir, stem)?.ok_or_else(missing)?;
                Box::new(shards.sorted_by_data())
            }
        };
        let (mut weights, mut warnings) = (container.weights().to_vec(), container.warnings().to_vec());
        warnings.extend(wrappers::unwrap(&mut weights, Owner::Adapter));
        Ok(BareWeights { dir, path: self.path.clone(), container, weights, warnings })
    }
}

/// Returns true if a folder has the configuration of a language model, which its weights need.
fn is_of_language(dir: &ModelDir) -> bool {
    if dir.file("params.json").is_some() {
        return true;
    }
    // Configurations of diffusers, and of models in their form, name a class and no architecture.
    match dir.json(CONFIG) {
        Ok(Some(config)) => !config.contains_key("_class_name"),
        Ok(None) => false,
        // Whoever needs the configuration reports what is wrong with it.
        Err(_) => true,
    }
}

impl BarePlace {
    /// Finds the weights among the files of a folder: all that may be some.
    fn among(names: &[String]) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for stem in names.iter().filter_map(|name| name.strip_suffix(INDEX)) {
            found.push(Self::Shards(stem.to_owned()));
        }
        let files = names.iter().filter(|name| name.ends_with(SAFETENSORS));
        for name in files {
            let place = match counted(name, SAFETENSORS) {
                Some((stem, _)) => Self::Shards(stem.to_owned()),
                None => Self::File(name.clone()),
            };
            if !found.contains(&place) {
                found.push(place);
            }
        }
        let of_diffusers =
            [Self::Shards(DIFFUSERS.to_owned()), Self::File(format!("{DIFFUSERS}{SAFETENSORS}"))];
        if let Some(own) = of_diffusers.into_iter().find(|own| found.contains(own)) {
            return vec![own];
        }
        if found.is_empty() {
            // Variants of other precision are beside it.
            if let Some(own) = names.iter().find(|name| **name == format!("{DIFFUSERS}.bin")) {
                return vec![Self::File(own.clone())];
            }
            let torch = names.iter().filter(|name| TORCH.iter().any(|end| name.ends_with(end)));
            found.extend(torch.map(|name| Self::File(name.clone())));
        }
        found.truncate(MAX_PLACES);
        found
    }
}

impl BareWeights {
    /// Path of the model: the given file or folder, or the folder of a pipeline that is read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the model: that of its file without the extension, or of its folder; never empty.
    pub fn name(&self) -> std::io::Result<String> {
        let of_folder = |path: &Path| ModelDir::without_config(path, None, self.dir.limits()).name();
        let own = if self.path.is_dir() {
            let pipeline = self.path.parent().filter(|parent| parent.join(PIPELINE_INDEX).is_file());
            of_folder(pipeline.unwrap_or(&self.path))?
        } else {
            self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
        };
        Ok(if own.is_empty() { "model".to_owned() } else { own })
    }

    /// Returns the folders of a pipeline with further denoising models, such as `transformer_2`.
    pub fn further_models(&self) -> Vec<String> {
        let Some(pipeline) = self.path.parent().filter(|parent| parent.join(PIPELINE_INDEX).is_file()) else {
            return Vec::new();
        };
        let is_further = |name: &String| {
            let is_numbered = |stem: &str| name.strip_prefix(stem).is_some_and(|rest| rest.starts_with('_'));
            PIPELINE.iter().any(|stem| is_numbered(stem)) && !self.path.ends_with(name)
        };
        let entries = fs_err::read_dir(pipeline).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().join(CONFIG).is_file());
        let mut names: Vec<String> =
            folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(is_further);
        names.sort_unstable();
        names
    }

    /// Returns the configuration files beside the weights, by their names in the folder of the model or of its pipeline.
    pub fn configs(&self) -> Result<Vec<NamedConfig>, CheckpointError> {
        let own = self.dir.json(CONFIG)?.map(|json| (CONFIG, json));
        let pipeline = self.dir.path().parent().filter(|parent| parent.join(PIPELINE_INDEX).is_file());
        let of_pipeline = pipeline
            .map(|path| ModelDir::without_config(path, None, self.dir.limits()).json(SCHEDULER))
            .transpose()?
            .flatten();
        Ok(own.into_iter().chain(of_pipeline.map(|json| (SCHEDULER, json))).collect())
    }

    /// Returns what becomes of the notes in the headers of the files.
    pub fn notes(&self) -> Vec<Piece> {
        of_notes(&self.container.parts())
    }

    /// Entries of the headers, in addition to the tensors; the first of each name.
    pub fn entries(&self) -> impl Iterator<Item = (String, String)> {
        let parts = self.container.parts();
        let all: Vec<_> = parts.iter().flat_map(|part| part.metadata.to_vec()).collect();
        all.into_iter()
    }

    /// Paths of the files that are read.
    pub fn paths(&self) -> Vec<PathBuf> {
        let parts = self.container.parts();
        let mut paths: Vec<PathBuf> = parts.iter().map(|part| self.dir.path().join(part.name)).collect();
        paths.extend(self.dir.file(CONFIG));
        paths
    }

    /// Warnings about oddities in the files that do not prevent reading them.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

crate::read_through_container!(BareWeights, |own| &own.weights);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_found_in_a_folder() {
        let among = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            BarePlace::among(&names)
        };
        let file = |name: &str| BarePlace::File(name.to_owned());
        let shards = |stem: &str| BarePlace::Shards(stem.to_owned());
        assert_eq!(among(&["a.safetensors", "vae.pth"]), [file("a.safetensors")]);
        let of_wan = [
            "diffusion_pytorch_model-00001-of-00002.safetensors",
            "diffusion_pytorch_model.safetensors.index.json",
        ];
        assert_eq!(among(&of_wan), [shards(DIFFUSERS)]);
        assert_eq!(among(&["a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors"]), [shards("a")]);
        let variants = ["diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.safetensors"];
        assert_eq!(among(&variants), [file("diffusion_pytorch_model.safetensors")]);
        assert_eq!(among(&["m.pt"]), [file("m.pt")]);
        let variants = ["diffusion_pytorch_model.bin", "diffusion_pytorch_model.fp16.bin"];
        assert_eq!(among(&variants), [file("diffusion_pytorch_model.bin")]);
        assert_eq!(among(&["readme.md"]), []);
        assert_eq!(
            among(&["a.safetensors", "b.safetensors"]),
            [file("a.safetensors"), file("b.safetensors")]
        );
    }

    #[test]
    fn a_configuration_of_a_language_model_decides() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &Path| BarePath::find(path, &Limits::default()).unwrap();
        let find = || at(dir.path());
        fs_err::write(dir.path().join("x.safetensors"), b"").unwrap();
        assert!(find().len() == 1 && !find()[0].is_certain);
        fs_err::write(dir.path().join("config.json"), br#"{"_class_name": "WanModel"}"#).unwrap();
        assert!(find().len() == 1 && find()[0].is_certain);
        fs_err::write(dir.path().join("config.json"), br#"{"architectures": ["X"]}"#).unwrap();
        assert!(find().is_empty());
        assert!(at(&dir.path().join("x.safetensors"))[0].is_certain);
    }
}
