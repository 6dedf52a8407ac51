//! Checkpoints as published: weight files and their configuration, read as named tensors and byte ranges.
//!
//! Nothing here depends on the model architecture.

pub mod config;
pub mod fastllm;
pub mod json;
pub mod modules;
pub mod msmodelslim;
pub mod pickle;
pub mod pieces;
pub mod safetensors;
pub mod safetensors_writer;
pub mod torch;

mod adapter;
mod bare;
mod channels;
mod error;
mod files;
mod folders;
mod probe;
mod selected;
mod shards;
mod wrappers;

use std::path::{Path, PathBuf};

use gguf_core::limits::Limits;
use gguf_core::{WeightMeta, WeightSource};
use wrappers::Owner;

pub use adapter::{AdapterDir, MLX_WAY_OUT, unmerged_adapter};
pub use bare::{BarePath, BareWeights, NamedConfig};
pub use channels::ChannelsFirst;
pub use config::{ModelDir, load_object, parse_object};
pub use error::{CheckpointError, hub_id};
pub use selected::SelectedWeights;

/// One weight file of a container.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// File name within the directory.
    pub name: &'a str,
    /// Text entries of the file's header, in addition to the tensors.
    pub metadata: &'a [(String, String)],
}

/// A weight file format: one file or a set of files that hold weights.
pub trait Container: WeightSource + Send + std::fmt::Debug {
    /// Name of the format.
    fn format(&self) -> &'static str;

    /// The weight files, in order.
    fn parts(&self) -> Vec<Part<'_>>;

    /// Name of the file that holds a weight.
    ///
    /// # Panics
    /// If there is no such weight.
    fn part_of(&self, weight: usize) -> &str;

    /// Warnings about oddities in the files that do not prevent reading them.
    fn warnings(&self) -> &[String] {
        &[]
    }
}

/// Reads the numbers of a type through its field `container`, with the list of weights that the type shows.
macro_rules! read_through_container {
    ($name:ident, |$own:ident| $weights:expr) => {
        impl gguf_core::WeightSource for $name {
            fn weights(&self) -> &[gguf_core::WeightMeta] {
                let $own = self;
                $weights
            }

            fn read_elems(
                &self,
                weight: usize,
                first: u64,
                out: &mut [u8],
            ) -> Result<(), gguf_core::SourceError> {
                self.container.read_elems(weight, first, out)
            }

            fn origin(&self, weight: usize) -> Option<(&dyn gguf_core::WeightSource, usize)> {
                Some((&*self.container, weight))
            }
        }
    };
}
pub(crate) use read_through_container;

/// A model directory and its weights, in any supported container.
///
/// The weights are what the files hold: codes and scales of a quantized checkpoint are ordinary tensors here.
/// Prefixes that training wrappers add to tensor names are removed.
#[derive(Debug)]
pub struct Checkpoint {
    dir: ModelDir,
    container: Box<dyn Container>,
    weights: Vec<WeightMeta>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens a Hugging Face directory, or one PyTorch file next to its configuration.
    ///
    /// Reads the configuration and the headers of all weight files.
    ///
    /// # Errors
    /// [`CheckpointError`]: a missing or broken file, a form that cannot be read, an index and shards that disagree.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, CheckpointError> {
        Self::with_dir(ModelDir::open(path, limits)?)
    }

    /// Opens the weights of a directory that is already open.
    pub fn with_dir(dir: ModelDir) -> Result<Self, CheckpointError> {
        let container = probe::open(&dir)?;
        let mut weights = container.weights().to_vec();
        let mut warnings = container.warnings().to_vec();
        warnings.extend(wrappers::unwrap(&mut weights, Owner::Model));
        Ok(Self { dir, container, weights, warnings })
    }

    /// Pairs of a stored tensor name and the name used here, for tensors whose names differ.
    pub fn renamed(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.container.weights().iter().zip(&self.weights);
        pairs.map(|(stored, own)| (&*stored.name, &*own.name)).filter(|(stored, own)| stored != own)
    }

    /// The directory and its configuration.
    pub fn dir(&self) -> &ModelDir {
        &self.dir
    }

    /// Name of the weight files' format.
    pub fn format(&self) -> &'static str {
        self.container.format()
    }

    /// The weight files with the metadata of their headers.
    pub fn parts(&self) -> Vec<Part<'_>> {
        self.container.parts()
    }

    /// Paths of the files that hold the weights.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.parts().iter().map(|part| self.dir.path().join(part.name)).collect()
    }

    /// Name of the file that holds a weight.
    ///
    /// # Panics
    /// If there is no such weight.
    pub fn part_of(&self, weight: usize) -> &str {
        self.container.part_of(weight)
    }

    /// Warnings about oddities in the files that do not prevent reading them.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

read_through_container!(Checkpoint, |own| &own.weights);
