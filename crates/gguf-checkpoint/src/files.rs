//! Selection of the files of a checkpoint: those named by an index, one of a fixed name, or all that match a pattern.
//!
//! Also checks that the files and the index agree.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Component, Path};

use crate::config::{self, ModelDir};
use crate::error::more;
use crate::{CheckpointError, Container, pieces};
use gguf_core::text::escape;
use gguf_core::{SourceError, WeightSource};

/// File names of a weight format.
#[derive(Clone, Debug)]
pub(super) struct Naming {
    /// File name of the index.
    pub(super) index: Cow<'static, str>,
    /// File name of an unsharded checkpoint.
    pub(super) single: Cow<'static, str>,
    pub(super) prefix: Cow<'static, str>,
    pub(super) suffix: &'static str,
    /// Allowed text between prefix and suffix.
    pub(super) middle: Middle,
    /// True if transformers reads files of these names.
    pub(super) is_of_transformers: bool,
}

/// Allowed text between prefix and suffix of a shard name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Middle {
    /// Anything.
    Any,
    /// Only a count (`-00001-of-00003`).
    Count,
}

/// The files of a checkpoint, sorted by name.
#[derive(Debug)]
pub(super) struct FileSet {
    names: Vec<String>,
    /// Pairs of tensor name and file name, in the order of the index.
    index: Option<Vec<(String, String)>>,
    /// Warnings about files of the same format that are not used.
    warnings: Vec<String>,
}

impl FileSet {
    /// Selects the files of a checkpoint; `None` if there are none.
    ///
    /// This is the single file, unless the index names it among others; else the files that the index names; without
    /// an index all files that match the pattern.
    ///
    /// If there is a single file and also an index or shards of another save, only the single file is used, as in
    /// transformers, and a warning is added.
    ///
    /// # Errors
    /// [`CheckpointError`]: a broken index, a file that is missing or outside the directory, too many files.
    pub(super) fn find(dir: &ModelDir, naming: &Naming) -> Result<Option<Self>, CheckpointError> {
        let has_single = dir.file(&naming.single).is_some();
        let index = match read_index(dir, &naming.index) {
            // Errors in an index that is not used do not matter.
            Err(error) if has_single && !matches!(error, CheckpointError::Io(_)) => Some(Vec::new()),
            index => index?,
        };
        let is_named = |index: &Vec<(String, String)>| index.iter().any(|entry| entry.1 == naming.single);
        let (index, stale) = match index {
            Some(index) if has_single && !is_named(&index) => (None, true),
            index => (index, false),
        };
        let names = match &index {
            Some(index) => index_shards(dir, &naming.index, index)?,
            None => shards_without_index(dir, naming)?,
        };
        let mut others: Vec<String> = Vec::new();
        if stale {
            others.push(naming.index.to_string());
        }
        if !names.is_empty() {
            let is_shard = |name: &String| {
                counted(name, naming.suffix).is_some_and(|(stem, _)| stem == naming.prefix)
                    && !names.contains(name)
            };
            others.extend(dir.file_names()?.into_iter().filter(is_shard));
        }
        let mut warnings: Vec<String> = second_set(&names, &others).into_iter().collect();
        // Only transformers' own files say what it reads.
        if naming.is_of_transformers {
            warnings.extend(foreign(dir, &names, &others)?);
        }
        if names.len() > dir.limits().n_parts {
            let (n_shards, limit) = (names.len(), dir.limits().n_parts);
            return Err(CheckpointError::TooManyShards { path: dir.path().to_owned(), n_shards, limit });
        }
        Ok((index.is_some() || !names.is_empty()).then_some(Self { names, index, warnings }))
    }

    /// Warnings about files of the same format that are not used.
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Creates a set from names that were chosen elsewhere, without an index.
    pub(super) fn of(names: Vec<String>) -> Self {
        Self { names, index: None, warnings: Vec::new() }
    }

    /// File names, sorted.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Checks the tensors of all files against one another and against the index.
    ///
    /// A tensor may be in two files only if both hold the same bytes: choosing one of different ones would be a guess. An
    /// index that lists other tensors than the files have is a warning, as a model may do without them; if they disagree
    /// about the file of a tensor, the files are right.
    pub(super) fn check(
        &self,
        naming: &Naming,
        files: &impl Container,
    ) -> Result<Disagreement, CheckpointError> {
        let weights = files.weights();
        let mut found = Disagreement::default();
        let mut seen: HashMap<&str, usize> = HashMap::with_capacity(weights.len());
        for (weight, meta) in weights.iter().enumerate() {
            let Some(&first) = seen.get(meta.name.as_str()) else {
                seen.insert(&meta.name, weight);
                continue;
            };
            if !is_same(files, first, weight).map_err(io::Error::other)? {
                return Err(CheckpointError::InTwoShards {
                    tensor: meta.name.clone(),
                    first: files.part_of(first).to_owned(),
                    second: files.part_of(weight).to_owned(),
                });
            }
            found.doubles.push(weight);
        }
        if let Some(index) = &self.index {
            let listed: HashSet<&str> = index.iter().map(|entry| entry.0.as_str()).collect();
            let absent = listed.iter().copied().filter(|name| !seen.contains_key(name)).collect();
            let extra = seen.keys().copied().filter(|name| !listed.contains(name)).collect();
            let warning = |names, what| other_names(&naming.index, names, what);
            found.warnings.extend(warning(absent, "it lists, but no shard has"));
            found.warnings.extend(warning(extra, "it does not list, but a shard has"));
        }
        Ok(found)
    }
}

/// Differences between the files of a set, and between them and their index, that do not prevent reading them.
#[derive(Debug, Default)]
pub(super) struct Disagreement {
    /// Weights that an earlier file has, too; ascending.
    doubles: Vec<usize>,
    pub(super) warnings: Vec<String>,
}

impl Disagreement {
    /// Removes the entries of the weights that an earlier file has, too.
    pub(super) fn remove_doubles<T>(&self, entries: &mut Vec<T>) {
        let mut weight = 0..;
        entries.retain(|_| weight.next().is_some_and(|weight| self.doubles.binary_search(&weight).is_err()));
    }
}

/// Returns true if two weights have the same type, shape and bytes.
fn is_same(files: &impl WeightSource, first: usize, second: usize) -> Result<bool, SourceError> {
    // Whole elements of every type.
    const CHUNK: u64 = 3 << 18;
    let (meta, other) = (&files.weights()[first], &files.weights()[second]);
    if (meta.ty, &meta.shape) != (other.ty, &other.shape) {
        return Ok(false);
    }
    let per_chunk = CHUNK * 8 / u64::from(meta.ty.bits());
    let n = meta.shape.n_elems();
    let mut buffers = [const { Vec::new() }; 2];
    for start in (0..n).step_by(per_chunk as usize) {
        let n_bytes = per_chunk.min(n - start) * u64::from(meta.ty.bits()) / 8;
        for (buffer, weight) in buffers.iter_mut().zip([first, second]) {
            buffer.resize(n_bytes as usize, 0u8);
            files.read_elems(weight, start, buffer)?;
        }
        if buffers[0] != buffers[1] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the warning about tensors in which the index and the files differ.
fn other_names(index: &str, mut names: Vec<&str>, what: &str) -> Option<String> {
    names.sort_unstable();
    let first = escape(names.first()?);
    let more = more(names.len() - 1);
    Some(format!("`{index}` is not that of these files: {what} `{first}`{more}"))
}

/// Returns the warning about a file with tensors that is neither of the set nor of a kind that models have beside it.
fn foreign(dir: &ModelDir, taken: &[String], others: &[String]) -> Result<Option<String>, CheckpointError> {
    let is_foreign = |name: &String| {
        name.ends_with(".safetensors")
            && pieces::of_file(name).why.is_some_and(|why| why == pieces::OF_OTHERS)
            && !taken.contains(name)
            && !others.contains(name)
    };
    let found = dir.file_names()?.into_iter().find(is_foreign).filter(|_| !taken.is_empty());
    Ok(found.map(|name| {
        format!(
            "`{}` is not read, as by transformers: if the model needs its tensors, list them in an index \
             (`model.safetensors.index.json`)",
            escape(&name)
        )
    }))
}

/// Returns the warning about a second set of weights in the folder.
fn second_set(taken: &[String], others: &[String]) -> Option<String> {
    let listed = |names: &[String]| {
        let quoted: Vec<String> = names.iter().take(3).map(|name| format!("`{}`", escape(name))).collect();
        match names.len() {
            n @ 4.. => format!("{} and {} more", quoted.join(", "), n - 3),
            _ => quoted.join(" and "),
        }
    };
    if taken.is_empty() || others.is_empty() {
        return None;
    }
    Some(format!(
        "two sets of weights: {} taken, as by transformers, and {} left out; move the set that does not belong to the model out \
         of the directory",
        are(&listed(taken), taken.len()),
        are(&listed(others), others.len())
    ))
}

fn are(names: &str, n: usize) -> String {
    format!("{names} {}", if n == 1 { "is" } else { "are" })
}

/// Returns the pairs of tensor and shard in the index, in file order; `None` without an index.
fn read_index(dir: &ModelDir, name: &str) -> Result<Option<Vec<(String, String)>>, CheckpointError> {
    let Some(path) = dir.file(name) else { return Ok(None) };
    let mut index = config::load_object(&path, dir.limits())?;
    let entries = match index.remove("weight_map") {
        Some(serde_json::Value::Object(map)) => map
            .into_iter()
            .map(|(tensor, shard)| Some((tensor, shard.as_str()?.trim_start_matches("./").to_owned())))
            .collect::<Option<Vec<_>>>(),
        _ => None,
    };
    entries.map(Some).ok_or(CheckpointError::WeightMap { index: path })
}

/// Returns the shards that an index names, sorted.
///
/// Each must exist and its name must stay inside the directory. A link may point anywhere: the hub's cache is made of
/// links.
fn index_shards(
    dir: &ModelDir,
    name: &str,
    index: &[(String, String)],
) -> Result<Vec<String>, CheckpointError> {
    let mut shards: Vec<String> = index.iter().map(|entry| entry.1.clone()).collect();
    shards.sort_unstable();
    shards.dedup();
    for shard in &shards {
        let inside = Path::new(shard).components().all(|part| matches!(part, Component::Normal(_)));
        let index = || dir.path().join(name);
        if !inside || shard.is_empty() {
            return Err(CheckpointError::ShardOutside { index: index(), shard: shard.clone() });
        }
        if dir.file(shard).is_none() {
            return Err(CheckpointError::ShardMissing { named_by: index(), shard: shard.clone() });
        }
    }
    Ok(shards)
}

/// Returns the single file, or all files that match the pattern, sorted.
///
/// A set with counted names (`-00001-of-00003`) must be complete.
fn shards_without_index(dir: &ModelDir, naming: &Naming) -> Result<Vec<String>, CheckpointError> {
    if dir.file(&naming.single).is_some() {
        return Ok(vec![naming.single.to_string()]);
    }
    let mut shards = dir.file_names()?;
    shards.retain(|name| {
        let is_own = match naming.middle {
            Middle::Count => counted(name, naming.suffix).is_some_and(|(stem, _)| stem == naming.prefix),
            Middle::Any => name.starts_with(&*naming.prefix) && name.ends_with(naming.suffix),
        };
        // Trainers give folders such names, too.
        is_own && dir.file(name).is_some()
    });
    for shard in &shards {
        let Some((stem, count)) = counted(shard, naming.suffix) else { continue };
        let limit = dir.limits().n_parts;
        if count > limit {
            let path = dir.path().to_owned();
            return Err(CheckpointError::TooManyShards { path, n_shards: count, limit });
        }
        let expected = (1..=count).map(|i| format!("{stem}-{i:05}-of-{count:05}{}", naming.suffix));
        if let Some(shard) = expected.into_iter().find(|name| shards.binary_search(name).is_err()) {
            return Err(CheckpointError::ShardMissing { named_by: dir.path().to_owned(), shard });
        }
    }
    Ok(shards)
}

/// Returns the stem and the count of a name like `model-00001-of-00003.safetensors`.
pub(super) fn counted<'a>(name: &'a str, suffix: &str) -> Option<(&'a str, usize)> {
    let (rest, count) = name.strip_suffix(suffix)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(count) && is_number(number)).then(|| count.parse().ok().map(|count| (stem, count)))?
}
