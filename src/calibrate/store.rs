//! Statistics in a directory, so that another quantization of the model needs no run.
//!
//! # Layout
//! - `statistics.json`: what they are of (version of this format, digests of the model and its tokenizer, the kinds of
//!   text with the windows that are held back of each, tokens, seed), and for each layer its inputs: `columns`, the `matrices` that are multiplied with their rows,
//!   and for each kind the number `at` of their moments and the `rows` that were summed, or null.
//! - `moments-00000.safetensors` and so on, one for each entry of `layers`: tensor `kind0.input3` holds the moments of kind
//!   0 with the number 3, sums `XᵀX` that are not divided by the rows, as the upper triangle row by row:
//!   `h = zeros((n, n)); h[triu_indices(n)] = x` with numpy, in f32. Sums of several kinds and runs can be added.
//! - `importance.safetensors`: sums of squares of each column (`kind0/NAME.sums`, f64, a row per matrix of the tensor)
//!   and the rows that were summed (`kind0/NAME.counts`), as llama-imatrix counts them.
//!
//! A part of them, of a share of the text, says in `statistics.json` what it is a part of, and holds sums as they were in memory,
//! so that those of all parts come to the bits of a single run: `kind0.input3` in f64, what was rounded off in
//! `kind0.input3.rests` (f64) for the rows and columns `kind0.input3.places` (i64, `[n, 2]`) where anything was, and
//! `kind0/NAME.rests`. `SHA256SUMS` has a line for each of its files.

mod combine;
mod error;
mod folder;
mod manifest;
mod part;
mod read;
mod tensor_file;
mod write;

pub use combine::{CombinedStatistics, combine_statistics};
pub use error::StatisticsError;
pub(super) use manifest::CheckEntry;
pub use part::{PartWriter, StatisticsPart};
pub(super) use read::read_importance;
pub use read::{Statistics, StatisticsKind};
pub use write::StatisticsWriter;
pub(super) use write::write_importance;

use crate::core::TensorSource;
use crate::gguf::Metadata;
use crate::verify::{Fingerprint, Model};

const MANIFEST: &str = "statistics.json";
const IMPORTANCE: &str = "importance.safetensors";
/// Digests of the files of a part, as `sha256sum` reads them.
const SUMS: &str = "SHA256SUMS";

/// Name of the file of a layer's moments, counted as they were collected.
fn moments_file(at: usize) -> String {
    format!("moments-{at:05}.safetensors")
}

/// Name of moments within a layer's file.
fn moments_name(kind: usize, at: usize) -> String {
    format!("kind{kind}.input{at}")
}

/// Name of what was rounded off from sums.
fn rests_name(name: &str) -> String {
    format!("{name}.rests")
}

/// Name of where it was.
fn places_name(name: &str) -> String {
    format!("{name}.places")
}

/// Elements of an upper triangle.
fn triangle(n_cols: usize) -> Option<u64> {
    let n = n_cols as u64;
    n.checked_mul(n.checked_add(1)?).map(|twice| twice / 2)
}

/// What tells a model and its tokenizer from others: all keys that its graph and its text depend on, all tensors' names,
/// types and shapes, and the first row of each.
///
/// # Errors
/// A model that cannot be read.
pub(super) fn identity(model: &Model<'_>) -> Result<(String, String), StatisticsError> {
    let (metadata, source): (&Metadata, &dyn TensorSource) = (model.metadata, model.source);
    let mut whole = Fingerprint::new();
    whole.model(metadata, source).map_err(std::io::Error::other)?;
    let mut tokenizer = Fingerprint::new();
    tokenizer.metadata(metadata, |key| key.starts_with("tokenizer."));
    Ok((whole.hex(), tokenizer.hex()))
}
