//! What a path is: one table of the forms that weights come in. A row says how a form is recognized, and what opens it,
//! or why it is refused and the way out. A form that is added is a row here.

use std::path::Path;

use crate::checkpoint::config::{ModelDir, PARAMS};
use crate::checkpoint::shards::SafetensorsShards;
use crate::checkpoint::torch::TorchFiles;
use crate::checkpoint::{CheckpointError, Container, msmodelslim};
use crate::core::limits::Limits;

/// One form of weights.
struct Probe {
    /// What the names of its files begin with, in any case.
    starts: &'static str,
    /// What they end with.
    ends: &'static [&'static str],
    fate: Fate,
}

/// What becomes of a form.
enum Fate {
    Read {
        open: Open,
        given: Given,
        /// A file that must lie beside the weights: without it nothing tells what they are.
        beside: Option<&'static str>,
    },
    Refused {
        what: &'static str,
        way_out: &'static str,
    },
}

/// Opens the weights of a directory, of whose files these have the names of the form; `None` if there are none.
type Open = fn(&ModelDir, &[String]) -> Result<Option<Box<dyn Container>>, CheckpointError>;

/// What a user names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    /// The directory with all files.
    Directory,
    /// The directory, or one file with the configuration beside it.
    DirectoryOrFile,
}

/// The forms. A file belongs to the first row that has its name; of several forms in a directory the first is read.
/// Rows are told apart by where they lie, so there must be one table only.
static PROBES: &[Probe] = &[
    Probe {
        starts: "quant_model_weight",
        ends: &[".safetensors", ".safetensors.index.json"],
        fate: Fate::Read {
            open: |dir, _| match msmodelslim::weights_stem(dir)? {
                Some(stem) => Ok(boxed(SafetensorsShards::named(dir, &stem)?)),
                None => Ok(None),
            },
            given: Given::Directory,
            beside: Some("quant_model_description.json"),
        },
    },
    Probe {
        starts: "model",
        ends: &[".safetensors", ".safetensors.index.json"],
        fate: Fate::Read {
            open: |dir, _| Ok(boxed(SafetensorsShards::open(dir)?)),
            given: Given::Directory,
            beside: None,
        },
    },
    Probe {
        starts: MISTRAL,
        ends: &[".safetensors", ".safetensors.index.json"],
        fate: Fate::Read {
            open: |dir, _| {
                if !dir.is_mistral_format() {
                    return Ok(None);
                }
                Ok(boxed(SafetensorsShards::named(dir, MISTRAL)?))
            },
            given: Given::Directory,
            beside: Some(PARAMS),
        },
    },
    Probe {
        starts: "consolidated",
        ends: &[".pth", ".pt"],
        fate: Fate::Refused {
            what: "a checkpoint in Meta's own layout",
            way_out: "use the repository's Hugging Face files, or make them with transformers' \
                      `convert_llama_weights_to_hf.py`",
        },
    },
    Probe {
        starts: "",
        ends: &[".flm"],
        fate: Fate::Refused { what: "a FastLLM `.flm` file", way_out: "use `gguf-convert flm2gguf FILE`" },
    },
    Probe {
        starts: "adapter_model",
        ends: &[""],
        fate: Fate::Refused {
            what: "an adapter without its base model",
            way_out: "`gguf-convert lora2gguf DIR --base BASE` converts it, `gguf-convert merge-lora BASE DIR` merges it into its \
                      base model",
        },
    },
    Probe {
        starts: "adapters.",
        ends: &["safetensors", "npz"],
        fate: Fate::Refused { what: "an adapter of MLX", way_out: super::MLX_WAY_OUT },
    },
    Probe {
        starts: "",
        ends: &[".gguf"],
        fate: Fate::Refused {
            what: "a GGUF file as a checkpoint",
            way_out: "name the file: `gguf-quantize FILE.gguf` changes the types of a GGUF file",
        },
    },
    Probe {
        starts: "",
        ends: &[".bin", ".pth", ".pt", ".ckpt"],
        fate: Fate::Read {
            open: |dir, names| Ok(boxed(TorchFiles::find(dir, names)?)),
            given: Given::DirectoryOrFile,
            beside: None,
        },
    },
];

/// What the names of weight files in Mistral's own format begin with.
const MISTRAL: &str = "consolidated";

fn boxed<C: Container + 'static>(found: Option<C>) -> Option<Box<dyn Container>> {
    found.map(|container| Box::new(container) as Box<dyn Container>)
}

impl Probe {
    /// The form of a file, by its name.
    fn of(name: &str) -> Option<&'static Self> {
        PROBES.iter().find(|probe| probe.has(name))
    }

    fn has(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        lower.strip_prefix(self.starts).is_some_and(|rest| self.ends.iter().any(|end| rest.ends_with(end)))
            // A name is more than an ending.
            && !self.ends.contains(&lower.as_str())
    }

    /// Whether this is the row of Mistral's own format.
    fn is_mistral(&self) -> bool {
        self.starts == MISTRAL && matches!(self.fate, Fate::Read { .. })
    }

    /// The error for a path of a form that is not read.
    fn refusal(&self, path: &Path) -> Option<CheckpointError> {
        match self.fate {
            Fate::Refused { what, way_out } => {
                Some(CheckpointError::Unsupported { path: path.to_owned(), what, way_out })
            }
            Fate::Read { .. } => None,
        }
    }
}

/// Opens the weights of a directory, or the one file that was asked for.
///
/// # Errors
/// [`CheckpointError`]: no weights, weights of a form that is not read, or broken ones.
pub(super) fn open(dir: &ModelDir) -> Result<Box<dyn Container>, CheckpointError> {
    let names = dir.file_names()?;
    let chosen = dir.chosen_file().and_then(Probe::of);
    let is_meant = |probe: &&Probe| match chosen {
        Some(chosen) => std::ptr::eq(*probe, chosen),
        None => !dir.is_mistral_format() || probe.is_mistral(),
    };
    for probe in PROBES.iter().filter(is_meant) {
        let Fate::Read { open, .. } = probe.fate else { continue };
        let is_own = |name: &&String| Probe::of(name).is_some_and(|own| std::ptr::eq(own, probe));
        let own: Vec<String> = match dir.chosen_file() {
            Some(file) => vec![file.to_owned()],
            None => names.iter().filter(is_own).cloned().collect(),
        };
        if let Some(container) = open(dir, &own)? {
            return Ok(container);
        }
    }
    if let Some(refusal) = refusal(dir.path(), &names) {
        return Err(refusal);
    }
    let beside = names.iter().filter_map(|name| Probe::of(name)).find_map(|probe| match probe.fate {
        Fate::Read { beside, .. } => beside,
        Fate::Refused { .. } => None,
    });
    Err(match beside {
        Some(name) => CheckpointError::FileMissing { dir: dir.path().to_owned(), name },
        None => CheckpointError::NoWeights { dir: dir.path().to_owned() },
    })
}

/// The error for a directory with files of a form that is not read; `None` if it has none.
fn refusal(dir: &Path, names: &[String]) -> Option<CheckpointError> {
    names.iter().find_map(|name| Probe::of(name)?.refusal(&dir.join(name)))
}

/// The directory of a path, and the one file that the path names.
fn place(path: &Path) -> Result<(&Path, Option<String>), CheckpointError> {
    let found = fs_err::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CheckpointError::NotFound { path: path.to_owned() },
        _ => error.into(),
    })?;
    if found.is_dir() {
        return Ok((path, None));
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let probe = Probe::of(name);
    if let Some(refusal) = probe.and_then(|probe| probe.refusal(path)) {
        return Err(refusal);
    }
    match probe.map(|probe| &probe.fate) {
        Some(Fate::Read { given: Given::DirectoryOrFile, .. }) => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            Ok((dir.unwrap_or(Path::new(".")), Some(name.to_owned())))
        }
        _ => Err(CheckpointError::NotADirectory { path: path.to_owned() }),
    }
}

impl ModelDir {
    /// Opens a directory and reads `config.json`; `params.json` where all weights are in Mistral's own format. For a
    /// PyTorch file this is the directory it lies in.
    ///
    /// # Errors
    /// [`CheckpointError`]: not a directory, no configuration, broken JSON, I/O.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, CheckpointError> {
        let (path, file) = place(path)?;
        let dir = Self::without_config(path, file, limits);
        if dir.file(PARAMS).is_some() && dir.has_mistral_weights_only()? {
            return dir.with_params();
        }
        match dir.json("config.json")? {
            Some(config) => Ok(dir.with_config(config)),
            // A directory of another form often has no configuration: name the form instead.
            None => {
                let names = dir.file_names()?;
                let is_mistral = names.iter().filter_map(|name| Probe::of(name)).any(Probe::is_mistral);
                let name = if is_mistral { PARAMS } else { "config.json" };
                let missing = || CheckpointError::FileMissing { dir: path.to_owned(), name };
                Err(refusal(path, &names).unwrap_or_else(missing))
            }
        }
    }

    /// Opens a directory in Mistral's own format: `params.json`, and weights in `consolidated*.safetensors`, whatever else
    /// lies there.
    ///
    /// # Errors
    /// As [`ModelDir::open`]; there is no `params.json`.
    pub fn open_mistral(path: &Path, limits: &Limits) -> Result<Self, CheckpointError> {
        let (path, file) = place(path)?;
        Self::without_config(path, file, limits).with_params()
    }

    fn with_params(self) -> Result<Self, CheckpointError> {
        match self.json(PARAMS)? {
            Some(params) => Ok(self.with_config(params).into_mistral()),
            None => Err(CheckpointError::FileMissing { dir: self.path().to_owned(), name: PARAMS }),
        }
    }

    /// Whether there are weights in Mistral's own format and in no other that is read.
    fn has_mistral_weights_only(&self) -> Result<bool, CheckpointError> {
        let names = self.file_names()?;
        let read = |name: &String| Probe::of(name).filter(|probe| matches!(probe.fate, Fate::Read { .. }));
        let mut found = names.iter().filter_map(read).peekable();
        Ok(self.chosen_file().is_none() && found.peek().is_some() && found.all(Probe::is_mistral))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_read(name: &str) -> Option<bool> {
        Probe::of(name).map(|probe| matches!(probe.fate, Fate::Read { .. }))
    }

    #[test]
    fn names_tell_the_form() {
        for name in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "quant_model_weights.safetensors",
            "Consolidated.safetensors",
        ] {
            assert_eq!(is_read(name), Some(true), "{name}");
        }
        for name in ["pytorch_model.bin", "weights.PT", "a.ckpt", "a.pth"] {
            assert_eq!(is_read(name), Some(true), "{name}");
        }
        for name in ["consolidated.00.pth", "adapter_model.bin", "a.flm", "A.GGUF"] {
            assert_eq!(is_read(name), Some(false), "{name}");
        }
        for name in ["config.json", ".bin", "other.safetensors", "tokenizer.model"] {
            assert_eq!(is_read(name), None, "{name}");
        }
    }

    #[test]
    fn every_row_can_be_reached() {
        for (at, probe) in PROBES.iter().enumerate() {
            for end in probe.ends {
                let name = format!("{}x{end}", probe.starts);
                let found = Probe::of(&name).map(std::ptr::from_ref);
                assert_eq!(found, Some(std::ptr::from_ref(probe)), "row {at}: {name}");
            }
        }
    }
}
