//! Recognition of weight formats, by file name.
//!
//! One table lists all formats: each row states which names match and either the function that opens the files, or
//! the reason for refusal and a workaround. To add a format, add a row.

use std::path::{Path, PathBuf};

use crate::config::{ModelDir, PARAMS};
use crate::error::number_of;
use crate::folders::folders;
use crate::shards::SafetensorsShards;
use crate::torch::{TorchFiles, is_leftover};
use crate::{CheckpointError, Container, modules, msmodelslim};
use gguf_core::limits::Limits;

struct FormatProbe {
    /// Prefix of its file names, compared without case.
    starts: &'static str,
    /// Possible suffixes.
    ends: &'static [&'static str],
    handling: FormatHandling,
}

enum FormatHandling {
    Read {
        open: OpenFormat,
        given: GivenPath,
        /// A file required next to the weights, because nothing else describes them.
        required_file: Option<&'static str>,
    },
    Refused {
        what: &'static str,
        way_out: &'static str,
    },
}

/// Function that opens the weights of a directory, given the file names that match the format; `None` if there are
/// none.
type OpenFormat = fn(&ModelDir, &[String]) -> Result<Option<Box<dyn Container>>, CheckpointError>;

/// Kinds of path that a user may give for a format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivenPath {
    /// Only the directory with all files.
    Directory,
    /// The directory, or one file next to the configuration.
    DirectoryOrFile,
}

/// Table of all formats.
///
/// A file belongs to the first row that matches its name; if a directory has several formats, the first is read. Rows
/// are compared by address, so this must be a `static`.
static PROBES: &[FormatProbe] = &[
    FormatProbe {
        starts: "quant_model_weight",
        ends: &[".safetensors", ".safetensors.index.json"],
        handling: FormatHandling::Read {
            open: |dir, _| match msmodelslim::weights_stem(dir)? {
                Some(stem) => Ok(boxed(SafetensorsShards::named(dir, &stem)?)),
                None => Ok(None),
            },
            given: GivenPath::Directory,
            required_file: Some("quant_model_description.json"),
        },
    },
    FormatProbe {
        starts: "model",
        ends: &[".safetensors", ".safetensors.index.json"],
        handling: FormatHandling::Read {
            open: |dir, _| Ok(boxed(SafetensorsShards::open(dir)?)),
            given: GivenPath::Directory,
            required_file: None,
        },
    },
    FormatProbe {
        starts: MISTRAL,
        ends: &[".safetensors", ".safetensors.index.json"],
        handling: FormatHandling::Read {
            open: |dir, _| {
                if !dir.is_mistral_format() {
                    return Ok(None);
                }
                Ok(boxed(SafetensorsShards::named(dir, MISTRAL)?))
            },
            given: GivenPath::Directory,
            required_file: Some(PARAMS),
        },
    },
    FormatProbe {
        starts: "consolidated",
        ends: &[".pth", ".pt"],
        handling: FormatHandling::Refused {
            what: "a checkpoint in Meta's own layout",
            way_out: "use the repository's Hugging Face files, or make them with transformers' \
                      `convert_llama_weights_to_hf.py`",
        },
    },
    refused("", &[".distcp"], FSDP, FSDP_WAY_OUT),
    refused("pytorch_model_fsdp_", &[""], FSDP, FSDP_WAY_OUT),
    refused("sharded_state", &[""], FSDP, FSDP_WAY_OUT),
    refused("global_step", &[""], DEEPSPEED, DEEPSPEED_WAY_OUT),
    refused("zero_pp_rank_", &[""], DEEPSPEED, DEEPSPEED_WAY_OUT),
    refused("bf16_zero_pp_rank_", &[""], DEEPSPEED, DEEPSPEED_WAY_OUT),
    refused("mp_rank_", &["_model_states.pt"], DEEPSPEED, DEEPSPEED_WAY_OUT),
    refused("zero_to_fp32", &[".py"], DEEPSPEED, DEEPSPEED_WAY_OUT),
    refused("mp_rank_", &[""], MEGATRON, MEGATRON_WAY_OUT),
    refused("iter_", &[""], MEGATRON, MEGATRON_WAY_OUT),
    refused("model_optim_rng", &[".pt"], MEGATRON, MEGATRON_WAY_OUT),
    refused("distrib_optim", &[".pt"], MEGATRON, MEGATRON_WAY_OUT),
    refused("latest_checkpointed_iteration", &[".txt"], MEGATRON, MEGATRON_WAY_OUT),
    refused(
        "lit_model",
        &[".pth"],
        "a checkpoint of LitGPT",
        "`litgpt convert_from_litgpt` writes the one of transformers",
    ),
    // A world of one has the whole model.
    FormatProbe {
        starts: "model_world_size_1_",
        ends: &[".pt"],
        handling: FormatHandling::Read {
            open: open_torch,
            given: GivenPath::DirectoryOrFile,
            required_file: None,
        },
    },
    refused(
        "model_world_size_",
        &[".pt"],
        "a checkpoint of verl, in parts of its ranks,",
        "put the parts together with verl: `python -m verl.model_merger merge --backend fsdp --local_dir DIR --target_dir OUT`",
    ),
    refused(
        "",
        &[".nemo"],
        "a checkpoint of NeMo",
        "export it with NeMo's `llm.export_ckpt` (target `hf`) first",
    ),
    refused(
        "",
        &[".msgpack", ".msgpack.index.json"],
        "a checkpoint of Flax (JAX)",
        "load it with transformers' `from_pretrained(DIR, from_flax=True)` and save it with `save_pretrained`",
    ),
    refused("orbax", &[""], "a checkpoint of Orbax (JAX)", JAX_WAY_OUT),
    refused("ocdbt.process_", &[""], "a checkpoint of Orbax (JAX)", JAX_WAY_OUT),
    refused("", &[".h5", ".h5.index.json", ".keras"], "a checkpoint of TensorFlow", TENSORFLOW_WAY_OUT),
    refused("", &[".ckpt.index", ".ckpt.meta"], "a checkpoint of TensorFlow", TENSORFLOW_WAY_OUT),
    refused("saved_model", &[".pb"], "a checkpoint of TensorFlow", TENSORFLOW_WAY_OUT),
    refused(
        "",
        &[".onnx", ".onnx_data"],
        "a model in ONNX",
        "convert the checkpoint from which it was exported",
    ),
    refused(
        "",
        &[".tflite", ".task", ".litertlm"],
        "a model of LiteRT",
        "convert the checkpoint from which it was exported",
    ),
    refused(
        "",
        &[".mlpackage", ".mlmodelc"],
        "a model of Core ML",
        "convert the checkpoint from which it was exported",
    ),
    refused("", &[".engine"], "an engine of TensorRT", "convert the checkpoint from which it was built"),
    FormatProbe {
        starts: "",
        ends: &[".flm"],
        handling: FormatHandling::Refused {
            what: "a FastLLM `.flm` file",
            way_out: "use `gguf-convert flm2gguf FILE`",
        },
    },
    FormatProbe {
        starts: "adapter_model",
        ends: &[""],
        handling: FormatHandling::Refused {
            what: "an adapter without its base model",
            way_out: ADAPTER_WAY_OUT,
        },
    },
    FormatProbe {
        starts: "adapters.",
        ends: &["npz"],
        handling: FormatHandling::Refused { what: "an adapter of an old MLX", way_out: super::MLX_WAY_OUT },
    },
    FormatProbe {
        starts: "weights",
        ends: &[".npz"],
        handling: FormatHandling::Refused { what: "a checkpoint of an old MLX", way_out: MLX_MODEL_WAY_OUT },
    },
    FormatProbe {
        starts: "adapters.",
        ends: &["safetensors"],
        handling: FormatHandling::Refused {
            what: "an adapter without its base model",
            way_out: ADAPTER_WAY_OUT,
        },
    },
    FormatProbe {
        starts: "",
        ends: &[".gguf"],
        handling: FormatHandling::Refused {
            what: "a GGUF file as a checkpoint",
            way_out: "`gguf-quantize FILE.gguf` changes its types, `gguf-convert gguf2hf FILE.gguf -o DIR` makes a checkpoint of it",
        },
    },
    FormatProbe {
        starts: "",
        ends: &[".bin", ".pth", ".pt", ".ckpt"],
        handling: FormatHandling::Read {
            open: open_torch,
            given: GivenPath::DirectoryOrFile,
            required_file: None,
        },
    },
];

fn open_torch(dir: &ModelDir, names: &[String]) -> Result<Option<Box<dyn Container>>, CheckpointError> {
    Ok(boxed(TorchFiles::find(dir, names)?))
}

const ADAPTER_WAY_OUT: &str = "`gguf-convert lora2gguf DIR --base BASE` converts it, `gguf-convert merge-lora BASE DIR` \
                               merges it into its base model";
const FSDP: &str = "a checkpoint of FSDP, in parts of torch.distributed.checkpoint,";
const FSDP_WAY_OUT: &str = "put the parts together with `accelerate merge-weights`, or with `python -m \
                            torch.distributed.checkpoint.format_utils dcp_to_torch DIR pytorch_model.bin`";
const DEEPSPEED: &str = "a checkpoint of DeepSpeed, in parts of its ranks,";
const DEEPSPEED_WAY_OUT: &str =
    "put the parts together with the `zero_to_fp32.py` that DeepSpeed saves next to them";
const MEGATRON: &str = "a checkpoint of Megatron, in parts of its ranks,";
const MEGATRON_WAY_OUT: &str = "convert it to Hugging Face's form with the tools of the training program first \
                                (Megatron Bridge, `tools/checkpoint/convert.py`)";
const JAX_WAY_OUT: &str = "convert it to Hugging Face's form with the tools of the training program first";
const TENSORFLOW_WAY_OUT: &str =
    "load it with transformers' `from_pretrained(DIR, from_tf=True)` and save it with `save_pretrained`";

const fn refused(
    starts: &'static str,
    ends: &'static [&'static str],
    what: &'static str,
    way_out: &'static str,
) -> FormatProbe {
    FormatProbe { starts, ends, handling: FormatHandling::Refused { what, way_out } }
}

const MLX_MODEL_WAY_OUT: &str = "convert the model that MLX was given, or save the arrays with `mx.save_safetensors` as `model.safetensors`";

/// Prefix of the weight files in Mistral's own format.
const MISTRAL: &str = "consolidated";

fn boxed<C: Container + 'static>(found: Option<C>) -> Option<Box<dyn Container>> {
    found.map(|container| Box::new(container) as Box<dyn Container>)
}

impl FormatProbe {
    /// Returns the format of a file, by its name.
    fn of(name: &str) -> Option<&'static Self> {
        PROBES.iter().find(|probe| probe.has(name))
    }

    fn has(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        lower.strip_prefix(self.starts).is_some_and(|rest| self.ends.iter().any(|end| rest.ends_with(end)))
            // The name must be more than the suffix.
            && !self.ends.contains(&lower.as_str())
    }

    /// Returns true if this is the row of Mistral's own format.
    fn is_mistral(&self) -> bool {
        self.starts == MISTRAL && matches!(self.handling, FormatHandling::Read { .. })
    }

    /// Returns the error for a path if the format is refused.
    fn refusal(&self, path: &Path) -> Option<CheckpointError> {
        match self.handling {
            FormatHandling::Refused { what, way_out } => {
                Some(CheckpointError::Unsupported { path: path.to_owned(), what, way_out })
            }
            FormatHandling::Read { .. } => None,
        }
    }
}

/// Opens the weights of a directory, or the one file that the user named.
pub(super) fn open(dir: &ModelDir) -> Result<Box<dyn Container>, CheckpointError> {
    let names = dir.file_names()?;
    let chosen = dir.chosen_file().and_then(FormatProbe::of);
    let is_meant = |probe: &&FormatProbe| match chosen {
        Some(chosen) => std::ptr::eq(*probe, chosen),
        None => !dir.is_mistral_format() || probe.is_mistral(),
    };
    for probe in PROBES.iter().filter(is_meant) {
        let FormatHandling::Read { open, .. } = probe.handling else { continue };
        let is_own = |name: &&String| FormatProbe::of(name).is_some_and(|own| std::ptr::eq(own, probe));
        let own: Vec<String> = match dir.chosen_file() {
            Some(file) => vec![file.to_owned()],
            None => names.iter().filter(is_own).filter(|name| dir.file(name).is_some()).cloned().collect(),
        };
        if let Some(container) = open(dir, &own)? {
            return Ok(container);
        }
    }
    if let Some(refusal) = refusal(dir.path(), &names) {
        return Err(refusal);
    }
    let no_weights = |others, inner| CheckpointError::NoWeights { dir: dir.path().to_owned(), others, inner };
    if let Some(inner) = inner_weights(dir.path(), &names) {
        return Err(no_weights(Vec::new(), Some(inner)));
    }
    let required_file =
        names.iter().filter_map(|name| FormatProbe::of(name)).find_map(|probe| match probe.handling {
            FormatHandling::Read { required_file, .. } => required_file,
            FormatHandling::Refused { .. } => None,
        });
    Err(match required_file {
        Some(name) => CheckpointError::FileMissing { dir: dir.path().to_owned(), name },
        None => no_weights(other_safetensors(dir, &names), None),
    })
}

/// Maximum number of files that a message names.
const MAX_NAMED: usize = 3;

/// Returns the first files with tensors among `names` and in the folders there.
fn other_safetensors(dir: &ModelDir, names: &[String]) -> Vec<String> {
    let in_folder = |(folder, names): (PathBuf, Vec<String>)| {
        let folder = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        names.into_iter().map(move |name| format!("{folder}/{name}"))
    };
    let nested = folders(dir.path(), names).flat_map(in_folder);
    let mut all: Vec<String> = names.iter().cloned().chain(nested).collect();
    all.retain(|name| name.ends_with(".safetensors"));
    all.truncate(MAX_NAMED);
    all
}

/// Returns the last folder inside of a directory with weights that can be read: the checkpoint of a training. Of numbered
/// folders, it is the one with the highest number.
fn inner_weights(dir: &Path, names: &[String]) -> Option<PathBuf> {
    let found = folders(dir, names).filter(|(_, names)| names.iter().any(|name| is_read(name)));
    found.map(|(folder, _)| folder).max_by_key(|folder| (number_of(folder), folder.clone()))
}

/// Returns true for the name of weights that can be read.
fn is_read(name: &str) -> bool {
    FormatProbe::of(name).is_some_and(|probe| matches!(probe.handling, FormatHandling::Read { .. }))
        && !is_leftover(name)
}

/// Returns the error for a directory that contains a refused format, itself or up to two folders down, if there is nothing
/// else in the folders; `None` if it has none.
fn refusal(dir: &Path, names: &[String]) -> Option<CheckpointError> {
    // A GGUF file beside weights is what was made of them.
    let is_gguf = |name: &str| Path::new(name).extension().is_some_and(|end| end == "gguf");
    let is_weights =
        |name: &String| name.ends_with(".safetensors") || FormatProbe::of(name).is_some() && !is_gguf(name);
    let is_made = |name: &String, names: &[String]| is_gguf(name) && names.iter().any(is_weights);
    let first = |dir: &Path, names: &[String]| {
        let mut own = names.iter().filter(|name| !is_made(name, names));
        own.find_map(|name| FormatProbe::of(name)?.refusal(&dir.join(name)))
    };
    first(dir, names).or_else(|| match inner_weights(dir, names) {
        Some(_) => None,
        None => folders(dir, names).find_map(|(folder, names)| {
            let inner = || folders(&folder, &names).find_map(|(inner, names)| first(&inner, &names));
            first(&folder, &names).or_else(inner)
        }),
    })
}

/// Splits a path into the directory and, if it names a file, the file's name.
fn place(path: &Path) -> Result<(&Path, Option<String>), CheckpointError> {
    let found = fs_err::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CheckpointError::NotFound { path: path.to_owned() },
        _ => error.into(),
    })?;
    if found.is_dir() {
        return Ok((path, None));
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let probe = FormatProbe::of(name);
    if let Some(refusal) = probe.and_then(|probe| probe.refusal(path)) {
        return Err(refusal);
    }
    match probe.map(|probe| &probe.handling) {
        Some(FormatHandling::Read { given: GivenPath::DirectoryOrFile, .. }) => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            Ok((dir.unwrap_or(Path::new(".")), Some(name.to_owned())))
        }
        _ => Err(CheckpointError::NotADirectory { path: path.to_owned() }),
    }
}

impl ModelDir {
    /// Opens a directory and reads `config.json`, or `params.json` if all weights are in Mistral's own format.
    ///
    /// For a PyTorch file, the directory is the one that contains it.
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
            Some(config) => {
                let dir = dir.with_config(config);
                Ok(match modules::beside(&dir) {
                    Some(others) => dir.with_others(others),
                    None => dir,
                })
            }
            // A directory of a refused format often has no configuration: report the format instead.
            None => {
                if let Some((folder, others)) = modules::transformer(&dir)? {
                    return Ok(Self::open(&folder, limits)?.with_others(others));
                }
                let names = dir.file_names()?;
                let is_mistral =
                    names.iter().filter_map(|name| FormatProbe::of(name)).any(FormatProbe::is_mistral);
                let name = if is_mistral { PARAMS } else { "config.json" };
                let missing = || CheckpointError::FileMissing { dir: path.to_owned(), name };
                let refused = if dir.chosen_file().is_some() { None } else { refusal(path, &names) };
                Err(refused.unwrap_or_else(missing))
            }
        }
    }

    /// Opens a directory in Mistral's own format: `params.json` and `consolidated*.safetensors`, regardless of other
    /// files.
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

    /// Returns true if there are weights in Mistral's own format and in no other supported format.
    fn has_mistral_weights_only(&self) -> Result<bool, CheckpointError> {
        let names = self.file_names()?;
        let read = |name: &String| {
            FormatProbe::of(name).filter(|probe| matches!(probe.handling, FormatHandling::Read { .. }))
        };
        let mut found = names.iter().filter_map(read).peekable();
        Ok(self.chosen_file().is_none() && found.peek().is_some() && found.all(FormatProbe::is_mistral))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(name: &str) -> Option<bool> {
        FormatProbe::of(name).map(|probe| matches!(probe.handling, FormatHandling::Read { .. }))
    }

    #[test]
    fn names_tell_the_form() {
        for name in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "quant_model_weights.safetensors",
            "Consolidated.safetensors",
        ] {
            assert_eq!(reads(name), Some(true), "{name}");
        }
        for name in ["pytorch_model.bin", "weights.PT", "a.ckpt", "a.pth"] {
            assert_eq!(reads(name), Some(true), "{name}");
        }
        for name in [
            "consolidated.00.pth",
            "adapter_model.bin",
            "a.flm",
            "A.GGUF",
            "__0_0.distcp",
            "pytorch_model_fsdp_0",
            "global_step500",
            "zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "mp_rank_00",
            "model_optim_rng.pt",
            "flax_model.msgpack",
            "tf_model.h5",
            "model.ckpt.index",
            "model.onnx",
            "m.nemo",
            "weights.npz",
        ] {
            assert_eq!(reads(name), Some(false), "{name}");
        }
        for name in ["config.json", ".bin", "other.safetensors", "tokenizer.model"] {
            assert_eq!(reads(name), None, "{name}");
        }
    }

    #[test]
    fn every_row_can_be_reached() {
        for (at, probe) in PROBES.iter().enumerate() {
            for end in probe.ends {
                let name = format!("{}x{end}", probe.starts);
                let found = FormatProbe::of(&name).map(std::ptr::from_ref);
                assert_eq!(found, Some(std::ptr::from_ref(probe)), "row {at}: {name}");
            }
        }
    }
}
