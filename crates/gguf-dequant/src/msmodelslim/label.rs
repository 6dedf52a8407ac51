//! The quantization types (labels) that a description assigns to tensors.

use super::error::MsModelSlimError;

/// Quantization type of a weight; the treatment of activations is not distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// Plain floats.
    Float,
    /// Int8 codes with scales and offsets.
    W8A16,
    /// Int8 codes with scales.
    W8A8Dynamic,
    /// Int8 codes whose scale is only stored multiplied by that of the activations.
    W8A8,
    /// Both [`Label::W8A8Dynamic`] and [`Label::W8A8`].
    W8A8Mix,
    /// Four-bit codes with scales and offsets.
    W4A16,
    /// Four-bit codes with one or two levels of scales.
    W4A8Dynamic,
    /// Four-bit codes, one byte each.
    W4A4Dynamic,
    /// E4M3 with one float scale per row.
    Fp8,
    /// E4M3 with power-of-two scales.
    Mxfp8,
    /// E2M1 with power-of-two scales.
    Mxfp4,
    /// E2M1 with power-of-two scales and a float scale on top.
    Mxfp4Dual,
    /// Scales of a cache or of attention.
    Cache,
}

impl Label {
    pub(super) fn parse(tensor: &str, label: &str) -> Result<Self, MsModelSlimError> {
        let refused =
            |why| MsModelSlimError::Refused { tensor: tensor.to_owned(), label: label.to_owned(), why };
        Ok(match label {
            "FLOAT" | "W16A16S" => Self::Float,
            "W8A16" => Self::W8A16,
            "W8A8_DYNAMIC" => Self::W8A8Dynamic,
            "W8A8" | "W8A8S" => Self::W8A8,
            "W8A8_MIX" => Self::W8A8Mix,
            "W4A16" => Self::W4A16,
            "W4A8_DYNAMIC" => Self::W4A8Dynamic,
            "W4A4_DYNAMIC" => Self::W4A4Dynamic,
            "WFP8AFP8_DYNAMIC" => Self::Fp8,
            "W8A8_MXFP8" => Self::Mxfp8,
            "W4A4_MXFP4" | "W4A8_MXFP" => Self::Mxfp4,
            "W4A4_MXFP4_DUALSCALE" => Self::Mxfp4Dual,
            "C8" | "KV8" | "FAQuant" => Self::Cache,
            "W8A8SC" | "W16A16SC" => {
                return Err(refused("the weights are a compressed stream; use the uncompressed checkpoint"));
            }
            "W8A8_TIMESTEP" => return Err(refused("its scales change with the step of a diffusion model")),
            "NF4" => return Err(refused("the scales of its blocks are not in the file")),
            _ if label.contains("FLATQUANT") => {
                return Err(refused("FlatQuant checkpoints need run-time activation transforms"));
            }
            _ if label.ends_with("_SVD") => {
                return Err(refused(
                    "a product of low rank belongs to every weight, which no block type holds",
                ));
            }
            _ => {
                return Err(MsModelSlimError::UnknownLabel {
                    tensor: tensor.to_owned(),
                    label: label.to_owned(),
                });
            }
        })
    }

    /// Returns true if offsets are required: an asymmetric type must not lose them.
    pub(super) fn needs_offset(self) -> bool {
        matches!(self, Self::W8A16 | Self::W4A16 | Self::W4A4Dynamic)
    }

    pub(super) fn is_four_bit(self) -> bool {
        matches!(self, Self::W4A16 | Self::W4A8Dynamic | Self::W4A4Dynamic)
    }
}

/// Suffixes of the parameters of a quantized weight.
pub(super) const PARAMETERS: &[&str] = &[
    "deq_scale",
    "input_offset",
    "input_scale",
    "quant_bias",
    "scale_bias",
    "weight_dual_scale",
    "weight_offset",
    "weight_offset_second",
    "weight_scale",
    "weight_scale_second",
];

/// Suffixes of cache scales; the third and fourth are misspelled in an example of the tool.
pub(super) const CACHE: &[&str] =
    &["kv_cache_scale", "kv_cache_offset", "kv_cacahe_scale", "kv_cacahe_offset"];

/// Returns the reason if a tensor with this suffix belongs to a computation at run time; `None` for all others.
pub(super) fn run_time(ending: &str) -> Option<&'static str> {
    match ending {
        "heads_rotation" | "kronecker_rotation_m" | "kronecker_rotation_n" => {
            Some("QuaRot checkpoints with online rotations transform activations at run time")
        }
        "left_trans" | "right_trans" | "clip_ratio" => {
            Some("FlatQuant checkpoints need run-time activation transforms")
        }
        "svd_lowrank_l1" | "svd_lowrank_l2" => {
            Some("a product of low rank belongs to the weight, which no block type holds")
        }
        _ => None,
    }
}
