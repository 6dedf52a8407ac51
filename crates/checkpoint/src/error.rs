//! Errors of opening a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use crate::fastllm::FlmError;
use crate::json::JsonError;
use crate::safetensors::HeaderError;
use crate::torch::TorchError;
use gguf_core::Hint;
use gguf_core::text::{bytes, escape};

/// Reasons why a checkpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum CheckpointError {
    /// Reading failed; the inner error names the path.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// There is nothing at the path.
    #[error("{}: no such file or directory", shown(path))]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The path is not a directory.
    #[error("{}: not a directory", shown(path))]
    NotADirectory { path: PathBuf },
    /// A required file is missing.
    #[error("{}: `{name}` is missing", shown(dir))]
    FileMissing { dir: PathBuf, name: &'static str },
    /// There are no weights in any known format.
    #[error(
        "{}: no weights found (`model*.safetensors`, or PyTorch's `pytorch_model*.bin`, `*.pth`, `*.pt`, `*.ckpt`)",
        shown(dir)
    )]
    NoWeights { dir: PathBuf },
    /// A weight format that is recognized but not supported.
    #[error("{}: {what} cannot be read yet", shown(path))]
    Unsupported {
        /// The file by which the format was recognized.
        path: PathBuf,
        what: &'static str,
        way_out: &'static str,
    },
    /// Weights of a training whose ranks have not put their parts together.
    #[error(
        "{n_empty} of {n} tensors have no elements, as ZeRO stage 3 saves what other ranks have: {}{}",
        listed(names),
        more(n_empty - names.len())
    )]
    Partitioned {
        /// First empty tensors.
        names: Vec<String>,
        n_empty: usize,
        n: usize,
    },
    /// Weights that MLX saved in a form that cannot be undone.
    #[error("{}: MLX saved these weights {change}", shown(path))]
    SavedByMlx {
        /// The weight file.
        path: PathBuf,
        /// What MLX has changed.
        change: String,
    },
    /// A text file larger than the limit.
    #[error("{}: {} to read whole, at most {} allowed", shown(path), bytes(*n_bytes), bytes(*limit))]
    TooLarge { path: PathBuf, n_bytes: u64, limit: u64 },
    /// A text file that is not UTF-8.
    #[error("{}: offset {offset}: not valid UTF-8", shown(path))]
    NotUtf8 {
        path: PathBuf,
        /// Absolute offset of the first bad byte.
        offset: u64,
    },
    /// A broken JSON file.
    #[error("{}: {source}", shown(path))]
    Json { path: PathBuf, source: JsonError },
    /// An index without a usable `weight_map`.
    #[error("{}: `weight_map` is missing or is not an object of strings", shown(index))]
    WeightMap { index: PathBuf },
    /// An index that names a shard outside the directory.
    #[error("{}: shard `{}` is outside the directory", shown(index), escape(shard))]
    ShardOutside { index: PathBuf, shard: String },
    /// A missing shard.
    #[error("{}: shard `{}` is missing", shown(named_by), escape(shard))]
    ShardMissing {
        /// The index that names the shard, or the directory if the count in the other shards' names implies it.
        named_by: PathBuf,
        shard: String,
    },
    /// More shards than the limit.
    #[error("{}: {n_shards} shards, at most {limit} allowed", shown(path))]
    TooManyShards { path: PathBuf, n_shards: usize, limit: usize },
    /// Tensors of the index that no shard holds.
    #[error("{}: tensor `{}` is not in shard `{}`{}", shown(index), escape(tensor), escape(shard), more(*n_more))]
    NotInShards {
        index: PathBuf,
        /// The first such tensor, by name.
        tensor: String,
        /// The shard that the index declares for it.
        shard: String,
        n_more: usize,
    },
    /// Tensors of shards that the index does not list.
    #[error("{}: tensor `{}` of shard `{}` is not listed{}", shown(index), escape(tensor), escape(shard), more(*n_more))]
    NotInIndex {
        index: PathBuf,
        /// The first such tensor, by name.
        tensor: String,
        /// The shard that holds it.
        shard: String,
        n_more: usize,
    },
    /// A tensor that two shards hold.
    #[error("tensor `{}` is in `{}` and in `{}`", escape(tensor), escape(first), escape(second))]
    InTwoShards { tensor: String, first: String, second: String },
    /// Several files could be the weights.
    #[error("{}: `{}` and `{}` could both be the weights", shown(dir), escape(first), escape(second))]
    Ambiguous { dir: PathBuf, first: String, second: String },
    /// A PyTorch file that is broken or of an unsupported form.
    #[error("{}: {source}", shown(path))]
    Torch { path: PathBuf, source: Box<TorchError> },
    /// An msModelSlim description with a label that is not text.
    #[error("{}: `{}` is not text", shown(path), escape(key))]
    Label { path: PathBuf, key: String },
    /// Files of which only one can belong to the model.
    #[error("{}: several {what}: {}", shown(dir), listed(names))]
    Several {
        dir: PathBuf,
        /// The kind of the files.
        what: &'static str,
        names: Vec<String>,
    },
    /// Weights that each device saved separately.
    #[error("{}: the weights are in parts per device (`rank_0`)", shown(dir))]
    Unmerged { dir: PathBuf },
    /// A broken safetensors file.
    #[error("{}: {source}", shown(path))]
    Safetensors { path: PathBuf, source: HeaderError },
    /// A broken FastLLM file.
    #[error("{}: {source}", shown(path))]
    FastLlm { path: PathBuf, source: FlmError },
}

/// Formats a path for messages; escaped, since it may come from an untrusted index.
fn shown(path: &Path) -> String {
    escape(&path.display().to_string()).into_owned()
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", escape(name))).collect::<Vec<_>>().join(", ")
}

fn more(n: usize) -> String {
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
            Self::FileMissing { name: "params.json", .. } => {
                "Mistral's own format is `params.json` next to `consolidated*.safetensors`"
            }
            Self::FileMissing { name: "adapter_config.json" | "adapter_model.safetensors", .. } => {
                "an adapter of PEFT is a directory with `adapter_config.json` and `adapter_model.safetensors`"
            }
            Self::FileMissing { .. } | Self::NotADirectory { .. } => {
                "give the directory that holds `config.json` and the weights"
            }
            Self::NoWeights { .. } => {
                "download the weights too; with git, large files need `git lfs pull`; `--vocab-only` needs no weights"
            }
            Self::Unsupported { way_out, .. } => way_out,
            Self::Partitioned { .. } => {
                "put the parts together with the `zero_to_fp32.py` that DeepSpeed saves next to its checkpoint, or train with \
                 `stage3_gather_16bit_weights_on_model_save`"
            }
            Self::SavedByMlx { .. } => "convert the model that MLX was given, as transformers saves it",
            Self::Torch { source, .. } => return source.hints(),
            Self::Ambiguous { .. } => "give the file itself; `config.json` must be next to it",
            Self::FastLlm { source, .. } => return source.hints(),
            Self::ShardMissing { .. } | Self::NotInShards { .. } => {
                "the download is not complete: fetch the missing file again"
            }
            Self::NotInIndex { .. } => {
                "the index and the shards come from different versions: fetch both again"
            }
            Self::Unmerged { .. } => "merge the parts, or save the quantized model from one process",
            Self::Several { .. } | Self::InTwoShards { .. } => {
                "move the file that does not belong to the model out of the directory"
            }
            Self::Safetensors { source, .. } => match source {
                HeaderError::TooLong { declared, .. } if is_lfs_pointer(*declared) => {
                    "this is a git LFS pointer, not the file: run `git lfs pull`"
                }
                HeaderError::NoLength { .. }
                | HeaderError::Truncated { .. }
                | HeaderError::DataTruncated { .. } => "the file is cut short: fetch it again",
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
