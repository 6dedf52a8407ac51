//! Statistics in a directory, so that another quantization of the model does not need a run.
//!
//! # Layout
//! - `statistics.json`: version of this format, digests of the model and its tokenizer, seed, tokens of a sequence, and
//!   the kinds of text with the windows that are held out of each. For each layer it lists the inputs: `columns`, the
//!   `matrices` that are multiplied with their rows, and for each kind the number `at` of their moments and the `rows`
//!   that were summed, or null.
//! - `moments-00000.safetensors` and so on, one for each entry of `layers`: tensor `kind0.input3` holds the moments of
//!   kind 0 with number 3. These are sums `XᵀX`, not divided by the number of rows, stored in f32 as the upper triangle
//!   row by row: `h = zeros((n, n)); h[triu_indices(n)] = x` with numpy. Sums of several kinds and runs can be added.
//! - `importance.safetensors`: sums of squares of each column (`kind0/NAME.sums`, f64, a row per matrix of the tensor)
//!   and the number of rows that were summed (`kind0/NAME.counts`), as llama-imatrix counts them.

mod error;
mod folder;
mod manifest;
mod read;
mod tensor_file;
mod write;

pub use error::StatisticsError;
pub use manifest::StatisticsCounts;
pub(super) use manifest::WindowEntry;
pub(super) use read::read_importance;
pub use read::{Statistics, StatisticsKind};
pub use write::StatisticsWriter;
pub(super) use write::write_importance;

use gguf_core::TensorSource;
use gguf_core::progress::Silent;
use gguf_format::Metadata;
use gguf_verification::{Fingerprint, Model};

const MANIFEST: &str = "statistics.json";
const IMPORTANCE: &str = "importance.safetensors";

/// Name of the file of a layer's moments, numbered in the order of collection.
fn moments_file(at: usize) -> String {
    format!("moments-{at:05}.safetensors")
}

/// Name of the tensor of moments within a layer's file.
fn moments_name(kind: usize, at: usize) -> String {
    format!("kind{kind}.input{at}")
}

/// Number of elements of an upper triangle.
fn triangle(n_cols: usize) -> Option<u64> {
    let n = n_cols as u64;
    n.checked_mul(n.checked_add(1)?).map(|twice| twice / 2)
}

/// Digests that identify a model and its tokenizer. They cover all keys that its graph and its text depend on,
/// and the names, types, shapes and values of all tensors.
///
/// # Errors
/// A model that cannot be read.
pub(super) fn identity(model: &Model<'_>) -> Result<(String, String), StatisticsError> {
    let (metadata, source): (&Metadata, &dyn TensorSource) = (model.metadata, model.source);
    let mut whole = Fingerprint::default();
    whole.model(metadata, source, &Silent).map_err(std::io::Error::other)?;
    let mut tokenizer = Fingerprint::default();
    tokenizer.metadata(metadata, |key| key.starts_with("tokenizer."));
    Ok((whole.hex(), tokenizer.hex()))
}
