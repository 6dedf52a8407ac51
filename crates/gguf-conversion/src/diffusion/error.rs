//! Errors of converting an image or video model.

use std::path::PathBuf;

use gguf_core::text::escape;
use gguf_core::{ElementType, Hint, Shape};

/// Reasons why a file is not converted as an image or video model.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum DiffusionError {
    #[error("{}: this is {what}", shown(path))]
    Refused { path: PathBuf, what: String, way_out: String },
    #[error(
        "{}: no image or video model that is known: {n_tensors} tensors, the first is `{}`{}",
        shown(path),
        escape(first),
        class.as_ref().map_or_else(String::new, |class| format!(", of class `{}`", escape(class)))
    )]
    Unknown { path: PathBuf, n_tensors: usize, first: String, class: Option<String> },
    #[error("{problem}; config.json says that `{}` quantized it", escape(method))]
    Quantized { method: String, problem: String },
    #[error("{}: `{}` and `{}` are both image or video models", shown(path), shown(first), shown(second))]
    Several { path: PathBuf, first: PathBuf, second: PathBuf },
    #[error("{}: models of two architectures, `{first}` and `{second}`", shown(path))]
    TwoArchitectures { path: PathBuf, first: String, second: String },
    #[error(
        "{}: the model of `{arch}` lacks {names}, which every such model or every other block has",
        shown(path)
    )]
    Missing { path: PathBuf, arch: String, names: String, others: Option<String> },
    #[error(
        "{}: `{arch}` in the layout of {program}: tensor `{}`: its name in the original is not known",
        shown(path),
        escape(tensor)
    )]
    NotInLayout { path: PathBuf, arch: String, program: String, tensor: String },
    #[error(
        "{}: tensor `{}` is missing: with `{}` it makes `{}`",
        shown(path),
        escape(part),
        escape(other),
        escape(of)
    )]
    Part { path: PathBuf, part: String, other: String, of: String },
    #[error("{}: tensor `{}`: shape {shape}, expected {}", shown(path), escape(tensor), escape(expected))]
    PartShape { path: PathBuf, tensor: String, shape: Shape, expected: String },
    #[error(
        "{}: tensor `{}`: it lacks the prefix `{}`, which other tensors of its module have",
        shown(path),
        escape(name),
        escape(prefix)
    )]
    MixedPrefix { path: PathBuf, name: String, prefix: String },
    #[error(
        "{}: tensor `{}`: a weight of {ty}, which is the code of an unknown quantization",
        shown(path),
        escape(tensor)
    )]
    Codes { path: PathBuf, tensor: String, ty: ElementType },
    #[error("{}: tensor `{}`: name of {found} bytes, 1 to {most} allowed", shown(path), escape(tensor))]
    NameLength { path: PathBuf, tensor: String, found: usize, most: u64 },
    #[error("{}: two tensors are named `{}` without their prefix", shown(path), escape(name))]
    Twice { path: PathBuf, name: String },
    #[error(
        "{}: tensor `{}`: shape {shape}, at most {most} dimensions can be written",
        shown(path),
        escape(tensor)
    )]
    Dimensions { path: PathBuf, tensor: String, shape: Shape, most: u32 },
}

fn shown(path: &std::path::Path) -> String {
    escape(&path.display().to_string()).into_owned()
}

impl DiffusionError {
    /// Returns true if the names tell what the file is.
    pub(crate) fn is_recognized(&self) -> bool {
        !self.is_unsupported()
    }

    /// Returns true if the names tell what the file is instead of a model, and names that file.
    pub(super) fn tells_of(&mut self, file: PathBuf) -> bool {
        match self {
            Self::Refused { path, .. } => *path = file,
            _ => return false,
        }
        true
    }

    /// Returns true for what a quantization of the weights may lead to.
    pub(super) fn is_about_weights(&self) -> bool {
        matches!(
            self,
            Self::Unknown { .. }
                | Self::NotInLayout { .. }
                | Self::Part { .. }
                | Self::PartShape { .. }
                | Self::Codes { .. }
        )
    }

    /// Returns true if the file may be sound but is not converted.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Unknown { .. })
    }
}

impl Hint for DiffusionError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Refused { way_out, .. } => vec![way_out.clone()],
            Self::Unknown { class: Some(_), .. } => vec![
                "no card describes these tensors, and no runtime is known that reads GGUF files of such a model: it stays as it is, for diffusers"
                    .to_owned(),
            ],
            Self::Unknown { .. } => vec![
                "if it is a language model, give its folder, with config.json and tokenizer".to_owned(),
                "image models are known by the names of their original release: `gguf-convert archs` lists them; `--card FILE` adds \
                 one"
                .to_owned(),
            ],
            Self::NotInLayout { .. } => vec![
                "it may be another model with names of this one, which is not converted; else convert the single file of the \
                 original release"
                    .to_owned(),
            ],
            Self::Part { .. } | Self::PartShape { .. } => vec![
                "the checkpoint is incomplete or damaged: fetch it again, or convert the single file of the original release".to_owned(),
            ],
            Self::Missing { arch, others: Some(others), .. } => vec![format!(
                "no known model of `{arch}` has {others}: it is another model, which is not converted, or a part of one"
            )],
            Self::Missing { .. } => vec![
                "convert the whole model: this file is a part of one, or a merge or a download has left layers out".to_owned(),
            ],
            Self::Several { .. } => vec!["name one of the files".to_owned()],
            Self::TwoArchitectures { .. } => {
                vec!["a GGUF file holds one model: convert the files that this one was put together from".to_owned()]
            }
            Self::MixedPrefix { .. } | Self::Twice { .. } => vec![
                "the file was put together from several: convert the original, or save it again with one form of names"
                    .to_owned(),
            ],
            Self::Codes { .. } | Self::Quantized { .. } => vec!["convert the original checkpoint, in BF16, F16 or FP8".to_owned()],
            Self::NameLength { .. } | Self::Dimensions { .. } => {
                vec!["no runtime reads such a tensor; `--drop REGEX` leaves it out".to_owned()]
            }
        }
    }
}
