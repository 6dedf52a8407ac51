//! Names of quantization methods.

use crate::{DequantError, Result};

/// A supported quantization method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// `fp8`
    Fp8,
    /// `fbgemm_fp8`
    FbgemmFp8,
    /// `gptq`
    Gptq,
    /// `awq`
    Awq,
    /// `auto-round`
    AutoRound,
    /// `compressed-tensors`
    CompressedTensors,
    /// `bitsandbytes`
    Bitsandbytes,
    /// `mxfp4`
    Mxfp4,
    /// `modelopt`
    Modelopt,
    /// `hqq`
    Hqq,
    /// `quanto`
    Quanto,
    /// `bitnet`
    Bitnet,
    /// `gemma`
    Gemma,
    /// `w8a8_int8`, `blockwise_int8`
    Int8,
    /// MLX, whose settings name no method.
    Mlx,
}

/// Method names of configurations, in lower case, with `-` for `_`.
const METHODS: &[(&str, Method)] = &[
    ("fp8", Method::Fp8),
    ("fbgemm-fp8", Method::FbgemmFp8),
    ("w8a8-fp8", Method::Fp8),
    ("w8a8-int8", Method::Int8),
    ("blockwise-int8", Method::Int8),
    ("mxfp8", Method::Fp8),
    ("gptq", Method::Gptq),
    ("gptq-marlin", Method::Gptq),
    ("awq", Method::Awq),
    ("awq-marlin", Method::Awq),
    ("auto-round", Method::AutoRound),
    ("intel/auto-round", Method::AutoRound),
    ("compressed-tensors", Method::CompressedTensors),
    ("bitsandbytes", Method::Bitsandbytes),
    ("mxfp4", Method::Mxfp4),
    ("modelopt", Method::Modelopt),
    ("hqq", Method::Hqq),
    ("quanto", Method::Quanto),
    ("bitnet", Method::Bitnet),
    ("gemma", Method::Gemma),
];

impl Method {
    /// Returns the name in its official spelling.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Fp8 => "FP8",
            Self::FbgemmFp8 => "FBGEMM",
            Self::Gptq => "GPTQ",
            Self::Awq => "AWQ",
            Self::AutoRound => "AutoRound",
            Self::CompressedTensors => "compressed-tensors",
            Self::Bitsandbytes => "bitsandbytes",
            Self::Mxfp4 => "MXFP4",
            Self::Modelopt => "ModelOpt",
            Self::Hqq => "HQQ",
            Self::Quanto => "quanto",
            Self::Bitnet => "BitNet",
            Self::Gemma => "Gemma's integers",
            Self::Int8 => "INT8",
            Self::Mlx => "MLX",
        }
    }
}

/// Unsupported methods, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("torchao", "its tensors are versioned subclasses without a stable layout"),
    ("eetq", "int8 weights are stored in a GPU tile order"),
    ("aqlm", "weights are sums of learned code books"),
    ("vptq", "weights are vectors of learned code books"),
    ("higgs", "weights are rotated and stored for one GPU kernel"),
    ("quip", "weights are rotated by Hadamard matrices at run time"),
    ("fouroversix", "its layout is not stable"),
    ("metal", "weights are packed for one GPU kernel"),
    ("nvfp4", "scales are stored in the order of one GPU kernel"),
    ("quip-sharp", "weights are rotated by Hadamard matrices at run time"),
    ("spqr", "weights are stored with sparse outliers for one GPU kernel"),
    ("fp-quant", "weights are rotated at run time"),
    ("quark", "its exports have several layouts that no file tells apart"),
    ("exl2", "weights are stored for one GPU kernel"),
    ("exl3", "weights are stored for one GPU kernel"),
    ("marlin", "weights are stored in a GPU tile order"),
    ("sinq", "its layout is not stable"),
    ("bitblas", "weights are stored in a GPU tile order"),
    ("qqq", "weights are stored in a GPU tile order"),
];

/// Finds the method of a name.
///
/// # Errors
/// An unknown or unsupported method.
pub(super) fn method(file: &'static str, name: &str) -> Result<Method> {
    let plain = name.to_ascii_lowercase().replace('_', "-");
    if let Some((_, method)) = METHODS.iter().find(|row| row.0 == plain) {
        return Ok(*method);
    }
    let method = name.to_owned();
    if let Some((_, reason)) = REFUSED.iter().find(|row| row.0 == plain) {
        let reason = (*reason).to_owned();
        return Err(DequantError::UnsupportedMethod { file: file.to_owned(), method, reason });
    }
    let known = METHODS.iter().map(|row| format!("`{}`", row.0)).collect::<Vec<_>>().join(", ");
    Err(DequantError::UnknownMethod { file: file.to_owned(), method, known })
}
