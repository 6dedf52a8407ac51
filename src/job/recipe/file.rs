//! The recipe as a GGUF file.
//!
//! # Layout
//! `general.type` is `recipe`. Keys under `gguf_foundry.recipe.`:
//!
//! | key | type | meaning |
//! |---|---|---|
//! | `version` | u32 | 1 |
//! | `made_by` | string | program and version |
//! | `file.name`, `file.bytes`, `file.sha256` | string, u64, string | the file |
//! | `source.sha256` | string | identity of the source |
//! | `imatrix.sha256` | string | digest of the importance matrix, if one is needed |
//! | `header.bytes` | u64 | bytes of the file before its tensor data |
//! | `header.base_sha256` | string | digest of the source's header, if the file's is stored as differences from it |
//! | `tensors.ways` | array of u8 | for each tensor: 0 bytes of its own, 1 made without importance, 2 with |
//! | `tensors.sources` | array of i32 | for each tensor: index of its tensor in the source, or -1 |
//!
//! Tensors of type I8 hold frames of zstd: `header`; `gaps`, the bytes that belong to no tensor, one after the other, if
//! they are not all zero; `tensor.N`, the bytes of tensor N, or their exclusive or with those that are made.

use std::path::{Path, PathBuf};

use crate::core::text::hex;
use crate::core::{GgmlType, Shape, TensorMeta};
use crate::gguf::{Array, FilePlan, GgufFile, LayoutOptions, Metadata, Value, WriteError};
use crate::job::Result;
use crate::job::recipe::examine::Origin;
use crate::job::recipe::trial::Way;
use crate::job::recipe::{RecipeError, open, text_key};

const TYPE: &str = "recipe";
const VERSION: u32 = 1;
pub(super) const HEADER: &str = "header";
pub(super) const GAPS: &str = "gaps";

pub(super) fn is_recipe(metadata: &Metadata) -> bool {
    text_key(metadata, "general.type") == Some(TYPE)
}

pub(super) fn tensor_part(tensor: usize) -> String {
    format!("tensor.{tensor}")
}

fn key(name: &str) -> String {
    format!("gguf_foundry.recipe.{name}")
}

/// Facts of a recipe that are written as keys.
pub(super) struct RecipeKeys<'a> {
    pub(super) name: &'a str,
    pub(super) file_bytes: u64,
    pub(super) sha256: &'a str,
    pub(super) source_sha256: &'a str,
    pub(super) matrix_sha256: Option<&'a str>,
    pub(super) header_bytes: u64,
    pub(super) base_sha256: Option<&'a str>,
    /// For each tensor: how it is made.
    pub(super) origins: Vec<Option<Origin>>,
}

impl RecipeKeys<'_> {
    /// Plans the recipe with parts of these names and sizes.
    pub(super) fn plan(&self, path: &Path, parts: &[(String, u64)]) -> Result<FilePlan, WriteError> {
        let mut metadata = Metadata::new();
        metadata.set("general.type", TYPE);
        metadata.set(key("version"), VERSION);
        metadata.set(key("made_by"), format!("gguf-foundry {}", env!("CARGO_PKG_VERSION")));
        metadata.set(key("file.name"), self.name);
        metadata.set(key("file.bytes"), self.file_bytes);
        metadata.set(key("file.sha256"), self.sha256);
        metadata.set(key("source.sha256"), self.source_sha256);
        if let Some(sha256) = self.matrix_sha256 {
            metadata.set(key("imatrix.sha256"), sha256);
        }
        metadata.set(key("header.bytes"), self.header_bytes);
        if let Some(sha256) = self.base_sha256 {
            metadata.set(key("header.base_sha256"), sha256);
        }
        let way = |origin: &Option<Origin>| match origin.map(|origin| origin.way) {
            None => 0,
            Some(Way::Plain) => 1,
            Some(Way::Importance) => 2,
        };
        let source = |origin: &Option<Origin>| {
            origin.and_then(|origin| i32::try_from(origin.source).ok()).unwrap_or(-1)
        };
        metadata.set(key("tensors.ways"), Value::Array(Array::U8(self.origins.iter().map(way).collect())));
        metadata
            .set(key("tensors.sources"), Value::Array(Array::I32(self.origins.iter().map(source).collect())));
        let part = |(name, n_bytes): &(String, u64)| {
            Some(TensorMeta { name: name.clone(), shape: Shape::new(vec![*n_bytes])?, ty: GgmlType::I8 })
        };
        let tensors: Vec<TensorMeta> = parts.iter().filter_map(part).collect();
        FilePlan::new(&metadata, &tensors, &LayoutOptions::default())
            .map_err(|error| WriteError::Plan { path: path.to_owned(), error })
    }
}

/// Opened recipe.
pub(super) struct RecipeFile {
    path: PathBuf,
    parts: GgufFile,
    /// Name of the file, without a folder.
    pub(super) name: String,
    pub(super) file_bytes: u64,
    pub(super) sha256: String,
    pub(super) source_sha256: String,
    pub(super) matrix_sha256: Option<String>,
    pub(super) header_bytes: u64,
    pub(super) base_sha256: Option<String>,
    /// For each tensor: index in the source and way; `None` for bytes of its own.
    pub(super) origins: Vec<Option<(usize, Way)>>,
}

impl RecipeFile {
    /// Opens a recipe and checks its keys.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let parts = open(path)?;
        let metadata = parts.metadata();
        if !is_recipe(metadata) {
            let found = text_key(metadata, "general.type").unwrap_or("model").to_owned();
            return Err(RecipeError::NotARecipe { path: path.to_owned(), found }.into());
        }
        let version = metadata.get(&key("version"));
        if version != Some(&Value::U32(VERSION)) {
            let found = version.and_then(Value::as_u64).map_or_else(|| "none".to_owned(), |n| n.to_string());
            return Err(RecipeError::Version { path: path.to_owned(), found }.into());
        }
        Self::checked(path, parts).map_err(Into::into)
    }

    fn checked(path: &Path, parts: GgufFile) -> Result<Self, RecipeError> {
        let damaged = |name: &str| RecipeError::Damaged {
            path: path.to_owned(),
            what: format!("key `{}` is missing or has another form", key(name)),
        };
        let metadata = parts.metadata();
        let text =
            |name: &str| text_key(metadata, &key(name)).map(str::to_owned).ok_or_else(|| damaged(name));
        let digest = |name: &str| {
            let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|c| c.is_ascii_hexdigit());
            text(name).ok().filter(is_digest).ok_or_else(|| damaged(name))
        };
        let number = |name: &str| match metadata.get(&key(name)) {
            Some(Value::U64(n)) => Ok(*n),
            _ => Err(damaged(name)),
        };
        let optional = |name: &str| metadata.contains(&key(name)).then(|| digest(name)).transpose();
        let Some(Value::Array(Array::U8(ways))) = metadata.get(&key("tensors.ways")) else {
            return Err(damaged("tensors.ways"));
        };
        let Some(Value::Array(Array::I32(sources))) = metadata.get(&key("tensors.sources")) else {
            return Err(damaged("tensors.sources"));
        };
        if ways.len() != sources.len() {
            return Err(damaged("tensors.sources"));
        }
        let origin = |(way, source): (&u8, &i32)| match (way, usize::try_from(*source)) {
            (0, Err(_)) => Ok(None),
            (1, Ok(source)) => Ok(Some((source, Way::Plain))),
            (2, Ok(source)) => Ok(Some((source, Way::Importance))),
            _ => Err(damaged("tensors.ways")),
        };
        let origins: Result<Vec<_>, _> = ways.iter().zip(sources).map(origin).collect();
        Ok(Self {
            path: path.to_owned(),
            name: text("file.name")?,
            file_bytes: number("file.bytes")?,
            sha256: digest("file.sha256")?,
            source_sha256: digest("source.sha256")?,
            matrix_sha256: optional("imatrix.sha256")?,
            header_bytes: number("header.bytes")?,
            base_sha256: optional("header.base_sha256")?,
            origins: origins?,
            parts,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.parts.parts().iter().map(crate::gguf::Part::file_bytes).sum()
    }

    pub(super) fn part(&self, name: &str) -> Option<&[u8]> {
        self.parts.tensor_index(name).map(|at| self.parts.raw_tensor(at))
    }

    /// Error of a recipe that contradicts itself.
    pub(super) fn damaged(&self, what: impl Into<String>) -> RecipeError {
        RecipeError::Damaged { path: self.path.clone(), what: what.into() }
    }
}

pub(super) fn digest_of(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    hex(&Sha256::digest(bytes))
}
