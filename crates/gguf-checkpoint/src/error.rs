//! Errors of opening a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use crate::fastllm::FlmError;
use crate::folders::folders_of_tensors;
use crate::json::JsonError;
use crate::safetensors::HeaderError;
use crate::torch::TorchError;
use gguf_core::Hint;
use gguf_core::input::INCOMPLETE;
use gguf_core::text::{bytes, escape};

/// Reasons why a checkpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum CheckpointError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{}: no such file or directory", shown(path))]
    NotFound { path: PathBuf },
    #[error("{}: not a directory", shown(path))]
    NotADirectory { path: PathBuf },
    #[error("{}: `{name}` is missing", shown(dir))]
    FileMissing { dir: PathBuf, name: &'static str },
    #[error(
        "{}: no weights found (`model*.safetensors`, or PyTorch's `pytorch_model*.bin`, `*.pth`, `*.pt`, `*.ckpt`)",
        shown(dir)
    )]
    NoWeights {
        dir: PathBuf,
        /// Files with tensors under other names.
        others: Vec<String>,
        /// A folder inside with weights.
        inner: Option<PathBuf>,
    },
    #[error("{}: {what} cannot be read yet", shown(path))]
    Unsupported { path: PathBuf, what: &'static str, way_out: &'static str },
    #[error(
        "{n_empty} of {n} tensors have no elements, as ZeRO stage 3 saves what other ranks have: {}{}",
        listed(names),
        more(n_empty - names.len())
    )]
    Partitioned { names: Vec<String>, n_empty: usize, n: usize },
    #[error("{}: MLX saved these weights {change}", shown(path))]
    SavedByMlx { path: PathBuf, change: String },
    #[error("{}: {} to read whole, at most {} allowed", shown(path), bytes(*n_bytes), bytes(*limit))]
    TooLarge { path: PathBuf, n_bytes: u64, limit: u64 },
    #[error("{}: offset {offset}: not valid UTF-8", shown(path))]
    NotUtf8 { path: PathBuf, offset: u64 },
    #[error("{}: {source}", shown(path))]
    Json { path: PathBuf, source: JsonError },
    #[error("{}: `weight_map` is missing or is not an object of strings", shown(index))]
    WeightMap { index: PathBuf },
    #[error("{}: shard `{}` is outside the directory", shown(index), escape(shard))]
    ShardOutside { index: PathBuf, shard: String },
    #[error("{}: shard `{}` is missing", shown(named_by), escape(shard))]
    ShardMissing { named_by: PathBuf, shard: String },
    #[error("{}: {n_shards} shards, at most {limit} allowed", shown(path))]
    TooManyShards { path: PathBuf, n_shards: usize, limit: usize },
    #[error("tensor `{}` is in `{}` and in `{}`", escape(tensor), escape(first), escape(second))]
    InTwoShards { tensor: String, first: String, second: String },
    #[error("{}: `{}` and `{}` could both be the weights", shown(dir), escape(first), escape(second))]
    Ambiguous { dir: PathBuf, first: String, second: String },
    #[error("{}: {source}", shown(path))]
    Torch { path: PathBuf, source: Box<TorchError> },
    #[error("{}: `{}` is not text", shown(path), escape(key))]
    Label { path: PathBuf, key: String },
    #[error("{}: several {what}: {}", shown(dir), listed(names))]
    Several { dir: PathBuf, what: &'static str, names: Vec<String> },
    #[error(
        "{} of {n} matrices are flattened to one dimension ({}): a training with FSDP saved its own share of them",
        names.len(),
        listed(&names[..names.len().min(3)])
    )]
    Flattened { names: Vec<String>, n: usize },
    #[error("{}: the weights are in parts per device (`rank_0`)", shown(dir))]
    Unmerged { dir: PathBuf },
    #[error("{}: {source}", shown(path))]
    Safetensors { path: PathBuf, source: HeaderError },
    #[error("{}: {source}", shown(path))]
    FastLlm { path: PathBuf, source: FlmError },
}

/// Formats a path for messages; escaped, since it may come from an untrusted index.
fn shown(path: &Path) -> String {
    escape(&path.display().to_string()).into_owned()
}

/// Returns names in backticks.
pub(crate) fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", escape(name))).collect::<Vec<_>>().join(", ")
}

/// Returns the rest of a list of which one name is shown.
pub(crate) fn more(n: usize) -> String {
    if n == 0 { String::new() } else { format!(" (and {n} more)") }
}

impl Hint for CheckpointError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NotFound { path } => match hub_id(path) {
                Some((id, name)) => {
                    return vec![
                        format!(
                            "models are read from a directory: `hf download {id} --local-dir {name}` fetches one"
                        ),
                        format!("or, with git and git-lfs: `git clone https://huggingface.co/{id}`"),
                    ];
                }
                None => "give the directory that holds `config.json` and the weights",
            },
            Self::NotADirectory { path } if is_safetensors(path) => {
                let folder = "give the directory that holds `config.json` and the weights";
                return vec![folder.to_owned(), OF_IMAGES.to_owned()];
            }
            Self::FileMissing { dir: path, .. } | Self::NoWeights { dir: path, .. } if is_of_images(path) => {
                OF_IMAGES
            }
            Self::FileMissing { name: "params.json", .. } => {
                "Mistral's own format is `params.json` next to `consolidated*.safetensors`"
            }
            Self::FileMissing { name: "quant_model_description.json", .. } => {
                "msModelSlim writes it beside `quant_model_weight*.safetensors`: fetch it from there (a checkpoint without such files \
                 is one for `gguf-convert hf2gguf DIR`)"
            }
            Self::FileMissing { dir, name: name @ ("adapter_config.json" | "adapter_model.safetensors") } => {
                if let Some(inner) = inner_with(dir, name).pop() {
                    return vec![format!("`{}` holds an adapter: give that folder", shown(&inner))];
                }
                "an adapter of PEFT is a directory with `adapter_config.json` and `adapter_model.safetensors` (of MLX: \
                 `adapters.safetensors`)"
            }
            Self::FileMissing { dir, name } => match &inner_with(dir, name)[..] {
                [] => match &folders_of_tensors(dir)[..] {
                    [] => "give the directory that holds `config.json` and the weights",
                    inner => {
                        return vec![format!(
                            "there are weights in {}: give that folder, or one file",
                            shown_all(inner)
                        )];
                    }
                },
                [inner] => return vec![format!("`{}` has one: give that directory", shown(inner))],
                inner => return vec![format!("{} have one: give one of them", shown_all(inner))],
            },
            Self::NotADirectory { .. } => "give the directory that holds `config.json` and the weights",
            Self::NoWeights { inner: Some(inner), .. } if inner.join("config.json").is_file() => {
                return vec![format!("`{}` holds a checkpoint: give that directory", shown(inner))];
            }
            Self::NoWeights { inner: Some(inner), dir, .. } => {
                return vec![format!(
                    "`{}` holds weights: move its files next to `{}`, or put the configuration and the tokenizer files there",
                    shown(inner),
                    shown(&dir.join("config.json"))
                )];
            }
            Self::NoWeights { others, .. } if others.len() > 1 => {
                return vec![format!(
                    "{} are not read under these names: if they are the parts of one model, rename them to \
                     `model-00001-of-{:05}.safetensors` and so on, as transformers expects them",
                    listed(others),
                    others.len().max(2)
                )];
            }
            Self::NoWeights { others, .. } if !others.is_empty() => {
                return vec![format!(
                    "{} is not read under this name: rename the file that holds the model to `model.safetensors`, as transformers \
                     expects it, next to config.json",
                    listed(others)
                )];
            }
            Self::NoWeights { .. } => {
                "download the weights too; with git, large files need `git lfs pull`; `--vocab-only` needs no weights"
            }
            Self::Unsupported { way_out, .. } => way_out,
            Self::Partitioned { .. } => {
                "put the parts together with the `zero_to_fp32.py` that DeepSpeed saves next to its checkpoint, or train with \
                 `stage3_gather_16bit_weights_on_model_save`"
            }
            Self::Flattened { .. } => {
                "save the model with the state dict type FULL_STATE_DICT, or join the parts with `accelerate merge-weights`"
            }
            Self::SavedByMlx { .. } => "convert the model that MLX was given, as transformers saves it",
            Self::Torch { source, .. } => return source.hints(),
            Self::Ambiguous { first, second, .. } if is_a_series(first, second) => {
                "if they are the parts of one model, rename them to `pytorch_model-00001-of-00002.bin` and so on, as transformers \
                 expects them"
            }
            Self::Ambiguous { .. } => "give the file itself; `config.json` must be next to it",
            Self::FastLlm { source, .. } => return source.hints(),
            Self::ShardMissing { .. } => "the download is not complete: fetch the missing file again",
            Self::Unmerged { .. } => "merge the parts, or save the quantized model from one process",
            Self::Several { .. } => "move the file that does not belong to the model out of the directory",
            Self::InTwoShards { .. } => {
                "the two differ: if one file does not belong to the model, move it out of the directory; else load the model with \
                 transformers and save it again"
            }
            Self::Safetensors { source, .. } => match source {
                HeaderError::TooLong { declared, .. } if is_lfs_pointer(*declared) => {
                    "this is a git LFS pointer, not the file: run `git lfs pull`"
                }
                HeaderError::Empty
                | HeaderError::NoLength { .. }
                | HeaderError::Truncated { .. }
                | HeaderError::DataTruncated { .. } => INCOMPLETE,
                HeaderError::TooLong { declared, .. } if is_text(*declared) => {
                    "this is text, perhaps the answer of a server in place of the file: fetch it again"
                }
                HeaderError::Dtype { .. } => "the file is damaged, or newer than this program",
                _ => "the file is damaged, or not written by the safetensors library: fetch it again",
            },
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}

/// Hint for users that give an image or video model, or its LoRA, in place of a language model.
const OF_IMAGES: &str = "`gguf-convert hf2gguf` converts image and video models; their LoRAs are not merged: the runtime applies \
                         them to the GGUF as they are (ComfyUI: LoraLoader)";

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("safetensors"))
}

/// Returns true for a folder of diffusers: a pipeline, a model, or a LoRA.
fn is_of_images(dir: &Path) -> bool {
    const FILES: [&str; 4] = [
        "model_index.json",
        "diffusion_pytorch_model.safetensors",
        "diffusion_pytorch_model.safetensors.index.json",
        "pytorch_lora_weights.safetensors",
    ];
    FILES.iter().any(|name| dir.join(name).is_file())
}

/// Maximum number of entries of a folder that are looked at for a hint.
const MAX_ENTRIES: usize = 1024;

/// Returns true for names that differ in digits alone.
fn is_a_series(first: &str, second: &str) -> bool {
    let [first, second] = [first, second].map(|name| name.replace(|c: char| c.is_ascii_digit(), ""));
    first == second
}

impl CheckpointError {
    /// Returns true if a folder inside has the file that is missing.
    pub fn is_inside(&self) -> bool {
        matches!(self, Self::FileMissing { dir, name } if !inner_with(dir, name).is_empty())
    }
}

/// Returns the folders inside that have the file; of those whose names differ in digits alone, the one with the highest number.
fn inner_with(dir: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(dir).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let mut inner: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.join(name).is_file()).collect();
    inner.sort_by_key(|path| (number_of(path), path.clone()));
    let names: Vec<String> = inner.iter().map(|path| shown(path)).collect();
    match inner.pop() {
        Some(last) if names.iter().all(|name| is_a_series(name, &names[0])) => vec![last],
        last => inner.into_iter().chain(last).collect(),
    }
}

fn shown_all(paths: &[PathBuf]) -> String {
    listed(&paths.iter().map(|path| shown(path)).collect::<Vec<_>>())
}

/// Returns the number in the name of a folder; 0 without one.
pub(crate) fn number_of(path: &Path) -> u64 {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Returns the hub id (`owner/model`) that a nonexistent path looks like, and the model part of it.
pub fn hub_id(path: &Path) -> Option<(&str, &str)> {
    let id = path.to_str()?;
    let (owner, name) = id.split_once('/')?;
    let is_word = |word: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !word.is_empty() && word.len() <= 96 && !word.starts_with('.') && word.chars().all(is_allowed)
    };
    // If a directory `owner` exists, the user meant a path below it.
    (is_word(owner) && is_word(name) && !Path::new(owner).is_dir()).then_some((id, name))
}

/// True if the first eight bytes of a file are those of a git LFS pointer (`version `).
fn is_lfs_pointer(declared: u64) -> bool {
    declared.to_le_bytes() == *b"version "
}

/// True if the first eight bytes of a file are printed characters.
fn is_text(declared: u64) -> bool {
    declared.to_le_bytes().iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_inside_that_may_be_meant_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let hint = |path: &str| {
            let path = dir.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, "").unwrap();
            let error = CheckpointError::FileMissing { dir: dir.path().to_owned(), name: "config.json" };
            error.hints().concat().replace(&format!("{}/", dir.path().display()), "")
        };
        let all = "there are weights in `split/models`: give that folder, or one file";
        assert_eq!(hint("split/models/a.safetensors"), all);
        assert_eq!(hint("checkpoint-9/config.json"), "`checkpoint-9` has one: give that directory");
        assert_eq!(hint("checkpoint-10/config.json"), "`checkpoint-10` has one: give that directory");
        let all = "`high`, `checkpoint-9`, `checkpoint-10` have one: give one of them";
        assert_eq!(hint("high/config.json"), all);
    }

    #[test]
    fn names_of_the_hub_are_told_from_paths() {
        let id = |path: &str| hub_id(Path::new(path)).map(|found| found.0.to_owned());
        for name in ["Qwen/Qwen3-0.6B", "org/name", "a/b_c.d"] {
            assert_eq!(id(name).as_deref(), Some(name));
        }
        // `src` exists in the directory in which tests run.
        for path in ["model", "a/b/c", "/a/b", "./a", "../a", "a/", "a/.b", "~/model", "a/b c", "src/nothing"]
        {
            assert_eq!(id(path), None, "{path}");
        }
    }
}
