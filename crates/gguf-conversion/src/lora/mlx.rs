//! Adapters of MLX: their configuration, and pairs of matrices from their tensors.
//!
//! # Layout
//! A layer: `lora_a` `[in, rank]`, `lora_b` `[rank, out]`, W + scale · (A · B)ᵀ. An embedding: `[tokens, rank]`, `[rank, width]`,
//! W + scale · A · B. A stack of experts: `[experts, rank, in]`, `[experts, out, rank]`, W + scale · B · A. With `m` `[out]`
//! (DoRA), each row is then divided by its length and multiplied by m. `scale` is not divided by the rank. Older versions of mlx-vlm
//! name the matrices of a layer `A` and `B`, and the scale `alpha`.

use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::lora::AdapterError;
use crate::mlx::SavedByMlx;
use gguf_checkpoint::json::as_f64;
use gguf_checkpoint::{AdapterDir, CheckpointError};
use gguf_core::WeightMeta;
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_core::numeric::held_by_f32;

/// Suffixes of the tensors of a pair, and those of older versions of mlx-vlm.
pub(super) const HALVES: [&str; 2] = [".lora_a", ".lora_b"];
pub(super) const OLD_HALVES: [&str; 2] = [".A", ".B"];
/// Suffix of the lengths of a weight's rows.
pub(super) const LENGTHS: &str = ".m";
/// Name of the object with rank and scale.
const PARAMETERS: &str = "lora_parameters";
/// Keys that only MLX's configurations have.
const KEYS: [&str; 2] = [PARAMETERS, "fine_tune_type"];
/// Kinds of trainings whose tensors are read.
const TRAININGS: [&str; 3] = ["lora", "dora", "full"];

/// Settings of an adapter of MLX.
#[derive(Clone, Copy, Debug)]
pub(super) struct MlxSettings {
    /// Factor of the products.
    pub(super) scale: f64,
    /// True if the lengths of rows were trained, too.
    pub(super) has_lengths: bool,
}

pub(super) fn is_configured(config: &Map<String, Json>) -> bool {
    KEYS.into_iter().any(|key| config.contains_key(key))
}

impl MlxSettings {
    pub(super) fn of(path: &Path, config: &Map<String, Json>) -> Result<Self, AdapterError> {
        let path = || path.to_owned();
        let training = match config.get(KEYS[1]) {
            None | Some(Json::Null) => "lora",
            Some(value) => value.as_str().unwrap_or_default(),
        };
        if !TRAININGS.contains(&training) {
            let expected = "`lora`, `dora` or `full`";
            return Err(AdapterError::Value { path: path(), key: KEYS[1].to_owned(), expected });
        }
        let has_lengths = training == "dora";
        // Whole weights have no strength.
        if training == "full" {
            return Ok(Self { scale: 1.0, has_lengths });
        }
        let scale = match config.get(PARAMETERS) {
            None if config.contains_key("rank") => config.get("alpha"),
            parameters => parameters.and_then(|parameters| parameters.get("scale")),
        };
        let scale = scale.filter(|value| !value.is_null());
        let scale =
            scale.ok_or_else(|| AdapterError::NoKey { path: path(), key: "lora_parameters.scale" })?;
        let scale = as_f64(scale).filter(|&value| held_by_f32(value).is_some()).ok_or_else(|| {
            let key = "lora_parameters.scale".to_owned();
            AdapterError::Value { path: path(), key, expected: "a number" }
        })?;
        Ok(Self { scale, has_lengths })
    }
}

/// Returns a warning about an alpha next to the scale, which mlx-lm reads no more.
pub(super) fn other_scale(config: &Map<String, Json>) -> Option<String> {
    let parameters = config.get(PARAMETERS)?;
    let [scale, alpha, rank] = ["scale", "alpha", "rank"].map(|key| parameters.get(key).and_then(as_f64));
    let (scale, alpha, rank) = (scale?, alpha?, rank.filter(|rank| *rank > 0.0)?);
    let older = scale * alpha / rank;
    (older.to_bits() != scale.to_bits()).then(|| {
        format!(
            "adapter_config.json: `lora_parameters` has `alpha` {alpha} next to `scale` {scale}: mlx-lm takes the scale alone, as \
             is done here, but older versions multiplied it by alpha / rank; if one of those trained the adapter, set `scale` to \
             {older}"
        )
    })
}

/// Gives the tensors of an adapter of MLX the names that transformers has in a model with this configuration. Returns what
/// MLX changes in such a model; `None` for other adapters.
pub(super) fn original(
    adapter: &mut AdapterDir,
    is_of_mlx: bool,
    config: &Map<String, Json>,
) -> Result<Option<SavedByMlx>, CheckpointError> {
    let Some(path) = adapter.paths().pop().filter(|_| is_of_mlx) else { return Ok(None) };
    let saved = SavedByMlx::of_adapter(path, config);
    saved.check()?;
    adapter.reshape(|meta| saved.original(meta));
    Ok(Some(saved))
}

/// Returns what becomes of the keys of a configuration.
///
/// # Exactness
/// mlx-lm 0.32 reads the kind of training, the scale and, to make the layers that the tensors fill, the number of layers and
/// the rank.
pub(super) fn pieces(file: &str, config: &Map<String, Json>) -> Vec<Piece> {
    let piece = |key: &String| {
        let piece = match key.as_str() {
            PARAMETERS | "fine_tune_type" | "model" | "alpha" => {
                Piece::written(PieceKind::Key, key, vec!["matrices and their strength".to_owned()])
            }
            "num_layers" | "lora_layers" => {
                Piece::not(PieceKind::Key, key, Fate::WithoutEffect, "the tensors tell it")
            }
            _ => Piece::not(PieceKind::Key, key, Fate::WithoutEffect, "it is of the training"),
        };
        piece.within(file)
    };
    config.keys().map(piece).collect()
}

/// Returns the rank of the first pair.
pub(super) fn rank(weights: &[WeightMeta]) -> Option<u64> {
    let is_half = |meta: &&WeightMeta| [HALVES[1], OLD_HALVES[1]].iter().any(|end| meta.name.ends_with(end));
    let first = weights.iter().find(is_half)?;
    match *first.shape.dims() {
        [rank, _] | [_, _, rank] => Some(rank),
        _ => None,
    }
}
