//! A set of safetensors files: which files belong to it, and where the bytes of each weight lie.

use std::collections::HashMap;
use std::path::{Component, Path};

use crate::checkpoint::config::{self, ModelDir};
use crate::checkpoint::{CheckpointError, Container, Part, detect, safetensors};
use crate::core::limits::Limits;
use crate::core::mmap::MappedFile;
use crate::core::{SourceError, WeightMeta, WeightSource};

/// What the names of a float model's files begin with.
const MODEL: &str = "model";

/// The safetensors shards of a directory, mapped. Tensors are ordered by name within a shard, shards by name: the
/// order of the reference converter.
#[derive(Debug)]
pub(super) struct SafetensorsShards {
    dir: ModelDir,
    /// What the names of the files begin with.
    stem: String,
    shards: Vec<Shard>,
    weights: Vec<WeightMeta>,
    places: Vec<Place>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    file: MappedFile,
    metadata: Vec<(String, String)>,
}

/// Where the bytes of a weight lie.
#[derive(Clone, Copy, Debug)]
struct Place {
    shard: usize,
    offset: u64,
    n_bytes: u64,
}

impl SafetensorsShards {
    /// Opens the headers of all shards. The shards are those that `model.safetensors.index.json` names; without an
    /// index `model.safetensors`; without that all files `model*.safetensors`.
    ///
    /// # Errors
    /// [`CheckpointError`]: a missing or broken file, an index and shards that disagree.
    pub(super) fn open(dir: ModelDir) -> Result<Self, CheckpointError> {
        Self::named(dir, MODEL)
    }

    /// As [`SafetensorsShards::open`], for files whose names begin with `stem` in place of `model`; shards without an
    /// index are then counted ones (`-00001-of-00003`).
    ///
    /// # Errors
    /// As [`SafetensorsShards::open`].
    pub(super) fn named(dir: ModelDir, stem: &str) -> Result<Self, CheckpointError> {
        let limits = *dir.limits();
        let index = read_index(&dir, stem, &limits)?;
        let shard_names = match &index {
            Some(index) => index_shards(&dir, stem, index)?,
            None => shards_without_index(&dir, stem)?,
        };
        if shard_names.len() > limits.n_parts {
            let (n_shards, limit) = (shard_names.len(), limits.n_parts);
            return Err(CheckpointError::TooManyShards { path: dir.path().to_owned(), n_shards, limit });
        }
        let stem = stem.to_owned();
        let mut set = Self { dir, stem, shards: Vec::new(), weights: Vec::new(), places: Vec::new() };
        for name in shard_names {
            set.add_shard(name, &limits)?;
        }
        set.check_unique()?;
        if let Some(index) = &index {
            set.check_index(index)?;
        }
        Ok(set)
    }

    fn add_shard(&mut self, name: String, limits: &Limits) -> Result<(), CheckpointError> {
        let path = self.dir.path().join(&name);
        let file = MappedFile::open(&path)?;
        let header = safetensors::parse_header(&file, limits)
            .map_err(|source| CheckpointError::Safetensors { path, source })?;
        let shard = self.shards.len();
        for tensor in header.tensors {
            self.places.push(Place { shard, offset: tensor.offset, n_bytes: tensor.n_bytes });
            self.weights.push(tensor.meta);
        }
        self.shards.push(Shard { name, file, metadata: header.metadata });
        Ok(())
    }

    /// No tensor may be in two shards: which of them counts would be a guess.
    fn check_unique(&self) -> Result<(), CheckpointError> {
        let mut seen: HashMap<&str, usize> = HashMap::with_capacity(self.weights.len());
        for (weight, meta) in self.weights.iter().enumerate() {
            if let Some(first) = seen.insert(&meta.name, weight) {
                return Err(CheckpointError::InTwoShards {
                    tensor: meta.name.clone(),
                    first: self.part_of(first).to_owned(),
                    second: self.part_of(weight).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The index and the shards must list the same tensors; in which shard a tensor lies is the shards' word.
    fn check_index(&self, index: &[(String, String)]) -> Result<(), CheckpointError> {
        let path = || self.dir.path().join(index_name(&self.stem));
        let mut present: HashMap<&str, bool> =
            self.weights.iter().map(|meta| (meta.name.as_str(), false)).collect();
        let mut absent: Vec<&(String, String)> = Vec::new();
        for entry in index {
            match present.get_mut(entry.0.as_str()) {
                Some(listed) => *listed = true,
                None => absent.push(entry),
            }
        }
        if let Some((tensor, shard)) = absent.iter().min() {
            let (tensor, shard, n_more) = (tensor.clone(), shard.clone(), absent.len() - 1);
            return Err(CheckpointError::NotInShards { index: path(), tensor, shard, n_more });
        }
        let unlisted = |&weight: &usize| present.get(self.weights[weight].name.as_str()) == Some(&false);
        let extra: Vec<usize> = (0..self.weights.len()).filter(unlisted).collect();
        if let Some(&weight) = extra.iter().min_by_key(|&&weight| &self.weights[weight].name) {
            return Err(CheckpointError::NotInIndex {
                index: path(),
                tensor: self.weights[weight].name.clone(),
                shard: self.part_of(weight).to_owned(),
                n_more: extra.len() - 1,
            });
        }
        Ok(())
    }

    /// The file and byte range of elements of a weight.
    fn range(&self, weight: usize, first: u64, n: u64) -> (&MappedFile, u64, u64) {
        let place = self.places[weight];
        let bits = u64::from(self.weights[weight].ty.bits());
        // The whole tensor was checked to fit 63 bits, so a product that overflows lies outside it.
        let bytes = |elems: u64| elems.checked_mul(bits).filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        match (bytes(first), bytes(n)) {
            (Some(begin), Some(len)) if begin.checked_add(len).is_some_and(|end| end <= place.n_bytes) => {
                (&self.shards[place.shard].file, place.offset + begin, len)
            }
            _ => panic!("elements {first}..+{n} lie outside weight {weight}"),
        }
    }

    fn slice(&self, weight: usize, rel_offset: u64, n_bytes: usize) -> &[u8] {
        let place = self.places[weight];
        // The header's ranges were checked against the mapped length, which fits `usize`.
        let start = (place.offset + rel_offset) as usize;
        &self.shards[place.shard].file[start..start + n_bytes]
    }
}

impl Container for SafetensorsShards {
    fn parts(&self) -> Vec<Part<'_>> {
        self.shards.iter().map(|shard| Part { name: &shard.name, metadata: &shard.metadata }).collect()
    }

    fn part_of(&self, weight: usize) -> &str {
        &self.shards[self.places[weight].shard].name
    }

    fn read_ahead(&self, weight: usize, first: u64, n: u64) {
        let (file, offset, n_bytes) = self.range(weight, first, n);
        file.will_need(offset, n_bytes);
    }
}

impl WeightSource for SafetensorsShards {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let n_elems = out.len() as u64 * 8 / u64::from(self.weights[weight].ty.bits());
        let (file, offset, n_bytes) = self.range(weight, first, n_elems);
        assert_eq!(n_bytes, out.len() as u64, "the buffer holds whole elements");
        out.copy_from_slice(self.slice(weight, offset - self.places[weight].offset, out.len()));
        // Whoever reads in pieces reads the next piece next.
        file.will_need(offset + n_bytes, n_bytes);
        Ok(())
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        Some(self.slice(weight, 0, self.places[weight].n_bytes as usize))
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let (file, offset, n_bytes) = self.range(weight, first, n);
        file.release(offset, n_bytes);
    }
}

fn index_name(stem: &str) -> String {
    format!("{stem}.safetensors.index.json")
}

/// The pairs of tensor and shard in the index, in file order; `None` without an index.
fn read_index(
    dir: &ModelDir,
    stem: &str,
    limits: &Limits,
) -> Result<Option<Vec<(String, String)>>, CheckpointError> {
    let Some(path) = dir.file(&index_name(stem)) else { return Ok(None) };
    let mut index = config::load_object(&path, limits)?;
    let entries = match index.remove("weight_map") {
        Some(serde_json::Value::Object(map)) => map
            .into_iter()
            .map(|(tensor, shard)| Some((tensor, shard.as_str()?.to_owned())))
            .collect::<Option<Vec<_>>>(),
        _ => None,
    };
    entries.map(Some).ok_or(CheckpointError::WeightMap { index: path })
}

/// The shards an index names, sorted. Each must be there, under a name that stays inside the directory; what a link
/// points to is the user's business (the hub's cache is made of links).
fn index_shards(
    dir: &ModelDir,
    stem: &str,
    index: &[(String, String)],
) -> Result<Vec<String>, CheckpointError> {
    let mut shards: Vec<String> = index.iter().map(|entry| entry.1.clone()).collect();
    shards.sort_unstable();
    shards.dedup();
    for shard in &shards {
        let inside = Path::new(shard).components().all(|part| matches!(part, Component::Normal(_)));
        let index = || dir.path().join(index_name(stem));
        if !inside || shard.is_empty() {
            return Err(CheckpointError::ShardOutside { index: index(), shard: shard.clone() });
        }
        if dir.file(shard).is_none() {
            return Err(CheckpointError::ShardMissing { named_by: index(), shard: shard.clone() });
        }
    }
    Ok(shards)
}

/// `model.safetensors`, or all `model*.safetensors`, sorted. A set that counts its files (`-00001-of-00003`) must be
/// whole.
fn shards_without_index(dir: &ModelDir, stem: &str) -> Result<Vec<String>, CheckpointError> {
    let single = format!("{stem}.safetensors");
    if dir.file(&single).is_some() {
        return Ok(vec![single]);
    }
    let names = dir.file_names()?;
    let is_shard = |name: &&String| match stem {
        MODEL => name.starts_with(MODEL) && name.ends_with(".safetensors"),
        _ => counted(name).is_some_and(|(counted, _)| counted == stem),
    };
    let shards: Vec<String> = names.iter().filter(is_shard).cloned().collect();
    if shards.is_empty() {
        return Err(detect::unreadable(dir.path(), &names));
    }
    for shard in &shards {
        let Some((stem, count)) = counted(shard) else { continue };
        let limit = dir.limits().n_parts;
        if count > limit {
            let path = dir.path().to_owned();
            return Err(CheckpointError::TooManyShards { path, n_shards: count, limit });
        }
        let expected = (1..=count).map(|i| format!("{stem}-{i:05}-of-{count:05}.safetensors"));
        if let Some(shard) = expected.into_iter().find(|name| shards.binary_search(name).is_err()) {
            return Err(CheckpointError::ShardMissing { named_by: dir.path().to_owned(), shard });
        }
    }
    Ok(shards)
}

/// Stem and count of a name like `model-00001-of-00003.safetensors`.
pub(super) fn counted(name: &str) -> Option<(&str, usize)> {
    let (rest, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(count) && is_number(number)).then(|| count.parse().ok().map(|count| (stem, count)))?
}
