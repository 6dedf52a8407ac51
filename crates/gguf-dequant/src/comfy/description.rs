//! Formats of ComfyUI's quantizers, and the description of a weight.

use std::collections::HashMap;

use serde_json::Value as Json;

use crate::{DequantError, Result};
use gguf_checkpoint::json::check_keys;
use gguf_core::{ElementType, WeightSource};

/// Maximum length of a description in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Keys that change no value: types, the arithmetic of runtimes, and what the shape of the factors tells.
const WITHOUT_EFFECT: [&str; 4] = ["orig_dtype", "full_precision_matrix_mult", "per_row", "format"];
/// Group of columns that is rotated if the description has no other.
const ROTATED: u64 = 256;

/// Arrangement of the factors of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// One, one for each row, or one for each square block, in rows of blocks.
    Grid,
    /// A byte for each block of a row, in tiles of 128 rows and 4 blocks. E4M3, times the factor of the tensor.
    TilesE4M3,
    /// Likewise, as exponents of two.
    TilesE8M0,
}

/// Storage of a weight.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) codes: &'static [ElementType],
    pub(super) scales: Scales,
    /// Columns of a block of tiles, or the edge of a square block.
    pub(super) block: u64,
    /// Multiple to which rows and columns are padded.
    pub(super) padded: u64,
    /// True if groups of columns may be rotated.
    can_rotate: bool,
}

const FP8: &[ElementType] = &[ElementType::F8E4M3, ElementType::F8E5M2];
const INT8: &[ElementType] = &[ElementType::I8];

const fn grid(name: &'static str, codes: &'static [ElementType], block: u64, can_rotate: bool) -> Format {
    Format { name, codes, scales: Scales::Grid, block, padded: 1, can_rotate }
}

/// All formats. Those without a description have the first.
pub(super) static FORMATS: [Format; 8] = [
    grid("float8_e4m3fn", FP8, 0, false),
    grid("float8_e5m2", FP8, 0, false),
    grid("float8_e4m3fn_rowwise", FP8, 0, false),
    grid("float8_e4m3fn_blockwise", FP8, 64, false),
    grid("int8_tensorwise", INT8, 0, true),
    grid("int8_blockwise", INT8, 128, false),
    Format { name: "mxfp8", codes: FP8, scales: Scales::TilesE8M0, block: 32, padded: 32, can_rotate: false },
    Format {
        name: "nvfp4",
        codes: &[ElementType::U8, ElementType::I8],
        scales: Scales::TilesE4M3,
        block: 16,
        padded: 16,
        can_rotate: false,
    },
];

impl Format {
    /// Returns true if a factor of the whole tensor comes in addition.
    pub(super) fn has_second(&self) -> bool {
        self.scales == Scales::TilesE4M3
    }

    /// Codes in a byte.
    pub(super) fn per_byte(&self) -> u64 {
        if self.scales == Scales::TilesE4M3 { 2 } else { 1 }
    }
}

/// Returns the descriptions of layers that the entry `_quantization_metadata` of a header holds, by the names that `own`
/// gives them.
///
/// # Errors
/// [`DequantError::BadConfig`]: no JSON, or no `layers`.
pub fn layers_of_header(text: &str, own: impl Fn(&str) -> Option<String>) -> Result<HashMap<String, Json>> {
    let wrong = |problem: String| DequantError::BadConfig {
        file: "__metadata__".to_owned(),
        key: "_quantization_metadata".to_owned(),
        problem,
    };
    let header: Json = serde_json::from_str(text).map_err(|error| wrong(format!("is no JSON: {error}")))?;
    check_keys(text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    let Some(layers) = header.get("layers").and_then(Json::as_object) else {
        return Err(wrong("has no object `layers`".to_owned()));
    };
    Ok(layers.iter().filter_map(|(name, described)| Some((own(name)?, described.clone()))).collect())
}

/// Description of a weight's storage.
pub(super) struct Description {
    pub(super) format: &'static Format,
    /// Edge of a square block.
    pub(super) block: Option<u64>,
    /// Columns of a group that is rotated.
    pub(super) rotated: Option<u64>,
    /// Shape before the padding.
    pub(super) shape: Option<Vec<u64>>,
    /// Keys without a known meaning.
    pub(super) unknown: Vec<String>,
}

impl Description {
    pub(super) fn read(source: &dyn WeightSource, index: usize) -> Result<Self> {
        let meta = &source.weights()[index];
        let broken = |problem: String| DequantError::BadMetadata { tensor: meta.name.clone(), problem };
        let n = meta.shape.n_elems();
        if !matches!(meta.ty, ElementType::U8 | ElementType::I8) || n > MAX_BYTES {
            return Err(broken(format!("{} {} in place of a description in JSON", meta.ty, meta.shape)));
        }
        let mut text = vec![0; usize::try_from(n).unwrap_or(0)];
        source.read_elems(index, 0, &mut text)?;
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        let described: Json =
            serde_json::from_slice(text).map_err(|error| broken(format!("no JSON: {error}")))?;
        check_keys(text).map_err(|error| broken(error.to_string()))?;
        Self::parse(&described, &meta.name)
    }

    /// Parses a description; `tensor` is the name of its tensor.
    pub(super) fn parse(described: &Json, tensor: &str) -> Result<Self> {
        let broken = |problem: String| DequantError::BadMetadata { tensor: tensor.to_owned(), problem };
        let mut members = described.as_object().cloned().unwrap_or_default();
        // Older versions of a quantizer have the numbers one level deeper.
        if let Some(Json::Object(inner)) = members.remove("params") {
            members.extend(inner);
        }
        let Some(name) = members.get("format").and_then(Json::as_str) else {
            return Err(broken("no `format`".to_owned()));
        };
        let unsupported = |found: &str, reason: String| DequantError::UnsupportedVariant {
            place: format!("tensor `{tensor}`"),
            found: found.to_owned(),
            reason,
        };
        let Some(format) = FORMATS.iter().find(|format| format.name == name) else {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            return Err(unsupported(
                name,
                format!("of ComfyUI's formats, these are read: {}", names.join(", ")),
            ));
        };
        let mut this = Self { format, block: None, rotated: None, shape: None, unknown: Vec::new() };
        let (mut is_rotated, mut rotated) = (false, ROTATED);
        let is_set = |value: &&Json| !matches!(value, Json::Null | Json::Bool(false));
        for (key, value) in members.iter().filter(|(_, value)| is_set(value)) {
            let number = || {
                let number = value.as_u64().filter(|&number| number > 0);
                number.ok_or_else(|| broken(format!("`{key}` is {value}, expected a positive number")))
            };
            match key.as_str() {
                "group_size" => this.block = Some(number()?),
                "convrot_groupsize" => rotated = number()?,
                "convrot" if format.can_rotate => is_rotated = true,
                "orig_shape" => {
                    let dims = value.as_array().map(|dims| dims.iter().filter_map(Json::as_u64).collect());
                    this.shape =
                        Some(dims.ok_or_else(|| broken(format!("`{key}` is {value}, expected a shape")))?);
                }
                key if key.contains("rot") => {
                    let reason = "no runtime rotates weights of this format".to_owned();
                    return Err(unsupported(&format!("{name}, {key}"), reason));
                }
                key if WITHOUT_EFFECT.contains(&key) => {}
                key => this.unknown.push(key.to_owned()),
            }
        }
        if is_rotated
            && !(rotated.is_power_of_two() && rotated.trailing_zeros().is_multiple_of(2) && rotated > 1)
        {
            let reason = "rotated groups have 4, 16, 64, 256, ... columns".to_owned();
            return Err(unsupported(&format!("{name}, convrot_groupsize {rotated}"), reason));
        }
        this.rotated = is_rotated.then_some(rotated);
        Ok(this)
    }
}
