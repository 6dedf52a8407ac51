//! A set of safetensors files and the byte ranges of their weights.

use crate::config::ModelDir;
use crate::files::{FileSet, Middle, Naming};
use crate::{CheckpointError, Container, Part, safetensors};
use gguf_core::limits::Limits;
use gguf_core::weight_file::WeightFile;
use gguf_core::{SourceError, WeightMeta, WeightSource};

/// Prefix of the file names of a float model.
const MODEL: &str = "model";

/// Returns the file naming for a prefix `stem`.
fn naming(stem: &str) -> Naming {
    Naming {
        index: format!("{stem}.safetensors.index.json").into(),
        single: format!("{stem}.safetensors").into(),
        prefix: stem.to_owned().into(),
        suffix: ".safetensors",
        // Older files of Mistral use another numbering (`consolidated.00.safetensors`).
        middle: if [MODEL, "consolidated"].contains(&stem) { Middle::Any } else { Middle::Count },
        is_of_transformers: stem == MODEL,
    }
}

/// The safetensors shards of a directory, mapped.
///
/// Tensors are ordered by name within a shard, shards by name: the order of the reference converter.
#[derive(Debug)]
pub(super) struct SafetensorsShards {
    dir: ModelDir,
    shards: Vec<Shard>,
    weights: Vec<WeightMeta>,
    ranges: Vec<ShardRange>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    file: WeightFile,
    metadata: Vec<(String, String)>,
}

/// Shard and byte range of a weight.
#[derive(Clone, Copy, Debug)]
struct ShardRange {
    shard: usize,
    offset: u64,
    n_bytes: u64,
}

impl SafetensorsShards {
    /// Opens the shards of a directory; `None` if there are none.
    ///
    /// # Errors
    /// [`CheckpointError`]: a broken file, an incomplete index or set, an index and shards that disagree.
    pub(super) fn open(dir: &ModelDir) -> Result<Option<Self>, CheckpointError> {
        Self::named(dir, MODEL)
    }

    /// Opens files whose names begin with `stem` instead of `model`, as [`SafetensorsShards::open`].
    ///
    /// Without an index, only shards with counted names (`-00001-of-00003`) are read.
    pub(super) fn named(dir: &ModelDir, stem: &str) -> Result<Option<Self>, CheckpointError> {
        let naming = naming(stem);
        let Some(files) = FileSet::find(dir, &naming)? else { return Ok(None) };
        let limits = *dir.limits();
        let dir = dir.clone();
        let mut set = Self::empty(dir);
        set.warnings.extend_from_slice(files.warnings());
        for name in files.names() {
            set.add_shard(name.clone(), &limits)?;
        }
        let found = files.check(&naming, &set)?;
        found.remove_doubles(&mut set.weights);
        found.remove_doubles(&mut set.ranges);
        set.warnings.extend(found.warnings);
        Ok(Some(set))
    }

    /// Opens one file of any name.
    pub(super) fn single(dir: &ModelDir, name: &str) -> Result<Self, CheckpointError> {
        let limits = *dir.limits();
        let mut set = Self::empty(dir.clone());
        set.add_shard(name.to_owned(), &limits)?;
        Ok(set)
    }

    /// Opens one file and lists its tensors in the order of their data.
    pub(super) fn in_data_order(dir: &ModelDir, name: &str) -> Result<Self, CheckpointError> {
        Ok(Self::single(dir, name)?.sorted_by_data())
    }

    /// Returns the set with its tensors in the order of their data, file by file.
    pub(super) fn sorted_by_data(mut self) -> Self {
        let mut all: Vec<_> = std::mem::take(&mut self.ranges).into_iter().zip(self.weights).collect();
        // Empty tensors share an offset with others; they come first and stay sorted by name.
        all.sort_by_key(|(range, _)| (range.shard, range.offset, range.n_bytes > 0));
        (self.ranges, self.weights) = all.into_iter().unzip();
        self
    }

    fn empty(dir: ModelDir) -> Self {
        let (shards, weights, ranges, warnings) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { dir, shards, weights, ranges, warnings }
    }

    fn add_shard(&mut self, name: String, limits: &Limits) -> Result<(), CheckpointError> {
        let path = self.dir.path().join(&name);
        let file = WeightFile::open(&path)?;
        let header = safetensors::read_header(&file, limits)?
            .map_err(|source| CheckpointError::Safetensors { path, source })?;
        let shard = self.shards.len();
        for tensor in header.tensors {
            self.ranges.push(ShardRange { shard, offset: tensor.offset, n_bytes: tensor.n_bytes });
            self.weights.push(tensor.meta);
        }
        self.shards.push(Shard { name, file, metadata: header.metadata });
        Ok(())
    }

    /// Returns the file, offset and length of elements of a weight.
    fn range(&self, weight: usize, first: u64, n: u64) -> (&WeightFile, u64, u64) {
        let range = self.ranges[weight];
        let bits = u64::from(self.weights[weight].ty.bits());
        // The whole tensor was checked to fit 63 bits, so a product that overflows is outside it.
        let bytes = |elems: u64| elems.checked_mul(bits).filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        match (bytes(first), bytes(n)) {
            (Some(begin), Some(len)) if begin.checked_add(len).is_some_and(|end| end <= range.n_bytes) => {
                (&self.shards[range.shard].file, range.offset + begin, len)
            }
            _ => panic!("elements {first}..+{n} are outside weight {weight}"),
        }
    }
}

impl Container for SafetensorsShards {
    fn format(&self) -> &'static str {
        "safetensors"
    }

    fn parts(&self) -> Vec<Part<'_>> {
        self.shards.iter().map(|shard| Part { name: &shard.name, metadata: &shard.metadata }).collect()
    }

    fn part_of(&self, weight: usize) -> &str {
        &self.shards[self.ranges[weight].shard].name
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
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
        file.read_at(offset, out).map_err(|error| failed(&self.weights[weight], error))?;
        // A caller that reads in pieces will read the following piece next.
        file.will_need(offset + n_bytes, n_bytes);
        Ok(())
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        let range = self.ranges[weight];
        // The header's ranges were checked against the mapped length, which fits `usize`.
        let bytes = self.shards[range.shard].file.mapped()?;
        Some(&bytes[range.offset as usize..][..range.n_bytes as usize])
    }

    fn expect(&self, weight: usize) {
        let range = self.ranges[weight];
        self.shards[range.shard].file.expect(range.offset, range.n_bytes);
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let (file, offset, n_bytes) = self.range(weight, first, n);
        file.release(offset, n_bytes);
    }
}

/// Creates the error for a tensor whose bytes cannot be read.
pub(super) fn failed(weight: &WeightMeta, error: std::io::Error) -> SourceError {
    SourceError { tensor: weight.name.clone(), source: error.into() }
}
