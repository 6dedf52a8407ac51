//! A set of PyTorch files: selection of the files, and access to their tensors.

use crate::files::{FileSet, Middle, Naming};
use crate::shards::failed;
use crate::torch::{self, StoredTensor};
use crate::{CheckpointError, Container, ModelDir, Part};
use gguf_core::limits::Limits;
use gguf_core::text::escape;
use gguf_core::weight_file::WeightFile;
use gguf_core::{SourceError, WeightMeta, WeightSource};
use std::borrow::Cow;

/// File names that transformers uses.
const NAMING: Naming = Naming {
    index: Cow::Borrowed("pytorch_model.bin.index.json"),
    single: Cow::Borrowed("pytorch_model.bin"),
    prefix: Cow::Borrowed("pytorch_model"),
    suffix: ".bin",
    middle: Middle::Any,
    is_of_transformers: true,
};
/// Prefixes of files that training programs leave next to the weights.
const LEFTOVERS: &[&str] = &[
    "training_args",
    "optimizer",
    "optim_world_size",
    "scheduler",
    "scaler",
    "rng_state",
    "random_states",
    "extra_state",
];

/// Returns true for the name of a file that a training program leaves next to the weights.
pub(crate) fn is_leftover(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    LEFTOVERS.iter().any(|leftover| lower.starts_with(leftover))
}

/// The PyTorch files of a directory, mapped.
///
/// Tensors are in the order of the dictionaries, files are sorted by name: the order of the reference converter.
#[derive(Debug)]
pub(crate) struct TorchFiles {
    files: Vec<OpenShard>,
    weights: Vec<WeightMeta>,
    /// File index and tensor of each weight.
    places: Vec<(usize, StoredTensor)>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct OpenShard {
    name: String,
    file: WeightFile,
}

impl TorchFiles {
    /// Opens the PyTorch files of a directory; `None` if there are none.
    ///
    /// These are the file that the user named, the files that the index names, `pytorch_model.bin`, all
    /// `pytorch_model*.bin`, or the only candidate in `names`.
    ///
    /// # Errors
    /// [`CheckpointError`]: an incomplete index or set, several candidates; a broken file, files that disagree with
    /// one another or with the index.
    pub(crate) fn find(dir: &ModelDir, names: &[String]) -> Result<Option<Self>, CheckpointError> {
        if let Some(file) = dir.chosen_file() {
            return Self::open(dir, &FileSet::of(vec![file.to_owned()])).map(Some);
        }
        if let Some(set) = FileSet::find(dir, &NAMING)? {
            return Self::open(dir, &set).map(Some);
        }
        let names: Vec<&String> = names.iter().filter(|name| !is_leftover(name)).collect();
        match names[..] {
            [] => Ok(None),
            [name] => Self::open(dir, &FileSet::of(vec![name.clone()])).map(Some),
            [first, second, ..] => Err(CheckpointError::Ambiguous {
                dir: dir.path().to_owned(),
                first: first.clone(),
                second: second.clone(),
            }),
        }
    }

    fn open(dir: &ModelDir, set: &FileSet) -> Result<Self, CheckpointError> {
        let mut files = Self {
            files: Vec::new(),
            weights: Vec::new(),
            places: Vec::new(),
            warnings: set.warnings().to_vec(),
        };
        for name in set.names() {
            files.add(dir, name, dir.limits())?;
        }
        let found = set.check(&NAMING, &files)?;
        found.remove_doubles(&mut files.weights);
        found.remove_doubles(&mut files.places);
        files.warnings.extend(found.warnings);
        Ok(files)
    }

    fn add(&mut self, dir: &ModelDir, name: &str, limits: &Limits) -> Result<(), CheckpointError> {
        let path = dir.path().join(name);
        let file = WeightFile::open(&path)?;
        let content = torch::parse(&file, limits)
            .map_err(|source| CheckpointError::Torch { path, source: source.into() })?;
        let index = self.files.len();
        for tensor in content.tensors {
            self.weights.push(tensor.meta.clone());
            self.places.push((index, tensor));
        }
        if let [first, rest @ ..] = &content.others[..] {
            let more = if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
            self.warnings.push(format!("{name}: `{first}`{more} is no tensor and is left out"));
        }
        if let Some((own, others)) = &content.sets {
            let (own, others) = (escape(own), crate::error::listed(others));
            self.warnings.push(format!(
                "{name}: the weights under `{own}` are taken, other weights under {others} are left out: to convert those, save \
                 them alone in PyTorch"
            ));
        }
        self.files.push(OpenShard { name: name.to_owned(), file });
        Ok(())
    }

    fn place(&self, weight: usize) -> (&WeightFile, &StoredTensor) {
        let (file, tensor) = &self.places[weight];
        (&self.files[*file].file, tensor)
    }
}

impl Container for TorchFiles {
    fn format(&self) -> &'static str {
        "PyTorch"
    }

    fn parts(&self) -> Vec<Part<'_>> {
        self.files.iter().map(|file| Part { name: &file.name, metadata: &[] }).collect()
    }

    fn part_of(&self, weight: usize) -> &str {
        &self.files[self.places[weight].0].name
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl WeightSource for TorchFiles {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (file, tensor) = self.place(weight);
        match file.mapped() {
            Some(bytes) => tensor.read_elems(bytes, first, out),
            None => tensor.fetch_elems(file, first, out).map_err(|error| failed(&tensor.meta, error))?,
        }
        Ok(())
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        let (file, tensor) = self.place(weight);
        tensor.borrow(file.mapped()?)
    }

    fn expect(&self, weight: usize) {
        let (file, tensor) = self.place(weight);
        if let Some((offset, n_bytes)) = tensor.window(0, tensor.meta.shape.n_elems()) {
            file.expect(offset, n_bytes);
        }
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let (file, tensor) = self.place(weight);
        // A view that is not in storage order is released as a whole, with its last element.
        let is_end = first + n == tensor.meta.shape.n_elems();
        let window = tensor.window(first, n).or_else(|| tensor.window(0, first + n).filter(|_| is_end));
        if let Some((offset, n_bytes)) = window {
            file.release(offset, n_bytes);
        }
    }
}
