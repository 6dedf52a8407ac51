//! Dequantization of checkpoints: a layer between the container and the model code that presents quantized weights as
//! floats.
//!
//! [`open`] finds the quantization settings, calls the planner of the method, which assembles the modules, and checks
//! that no tensor is left over. [`flm::open`] does the same for FastLLM's files, which need no settings. Planning
//! reads only headers and scales; codes are decoded when rows are read. Every method implements `CodedWeight` for its
//! code layouts; `Dequantized` is the only source over them.
//!
//! | file | subject |
//! |---|---|
//! | `coded` | the trait that a method implements |
//! | `rectangle` | the part of a weight that is decoded at once |
//! | `layer` | the float source on top of the stored tensors |
//! | `settings` | quantization settings from the configuration files |
//! | `tensors` | assignment of stored tensors to modules, and the remaining ones |
//! | `encoding` | description of a weight's storage, for messages |
//! | `targets` | modules that should be quantized but are not |
//! | `patterns` | module name patterns of configurations |
//! | `values` | scales and zero points, read in pieces |
//! | `integers` | shapes, offsets and flags, read while planning |
//! | `bits` `nibbles` | integer codes in words; pairs of codes in a byte |
//! | `grouped` | integer matrices with a scale and a zero point for each group of columns |
//! | `gptq` `awq` `autoround` `compressed` | the methods that use `grouped`, and their layouts |
//! | `sparse` | sparse matrices: a bit mask and values |
//! | `mlx` `affine` | words of MLX, and integers with a scale and a bias for each group |
//! | `fp4` `mxfp4` `modelopt` | FP4 with power-of-two or E4M3 scales |
//! | `stack` `fp4_transposed` | stacks of experts, and stacks that are packed across rows |
//! | `linear_shape` | shapes that a file does not declare |
//! | `turned` | linear layers of which a float checkpoint has `[inputs, outputs]` |
//! | `bitsandbytes` `hqq` `quanto` `bitnet` | layouts of one tool each |
//! | `fp8` | FP8 with scales per block, row or tensor |
//! | `int8` | signed bytes likewise; pairs of rows of 4-bit integers |
//! | `comfy` | weights of image and video models as ComfyUI's quantizers store them |
//! | `msmodelslim` | Ascend's msModelSlim, with its own description file |
//! | `flm` | FastLLM, with value ranges in place of scales |
//! | `adapter` `lora` `replaced_rows` `lengths` | adapters merged while weights are read: pairs of matrices, rows that replace others, lengths of rows |
//! | `joined` | weights that are stored in two parts |
//! | `adapted` `operand` | a weight that an adapter changes, and the matrices from which it is computed |

pub mod flm;
pub mod msmodelslim;

mod adapted;
mod adapter;
mod affine;
mod autoround;
mod awq;
mod bitnet;
mod bits;
mod bitsandbytes;
mod coded;
mod comfy;
mod compressed;
mod encoding;
mod error;
mod fp4;
mod fp4_transposed;
mod fp8;
mod gemma;
mod gptq;
mod grouped;
mod hqq;
mod int8;
mod integers;
mod joined;
mod layer;
mod lengths;
mod linear_shape;
mod lora;
mod mlx;
mod modelopt;
mod mxfp4;
mod nibbles;
mod operand;
mod patterns;
mod quanto;
mod rectangle;
mod replaced_rows;
mod settings;
mod sparse;
mod stack;
mod targets;
mod tensors;
mod turned;
mod values;

use gguf_core::simd::SimdLevel;
use gguf_core::{WeightMeta, WeightSource};

pub use adapter::{AdapterChanges, AddedBias, Replaced, with_adapter};
pub use comfy::{ImageWeights, has_comfy_marks, layers_of_header, saved_rank};
pub use encoding::{Encoding, Encodings, Quantization, StoredClass, stored_classes, tensor_class};
pub use error::DequantError;
pub(crate) use error::Result;
pub use joined::{Join, with_joined};
pub use lora::{LoraError, LoraPair, LoraPart};
pub use mlx::has_words;
pub use replaced_rows::ReplacedRows;
pub use settings::{
    Configurations, HF_QUANT_CONFIG, QUANT_CONFIG, QUANTIZATION_CONFIG, QUANTIZE_CONFIG, QUANTO_QMAP,
};

use coded::{CodedWeight, InnerSource};
use layer::Dequantized;
use msmodelslim::OffsetSign;
use settings::{Method, Settings};
use tensors::{DequantPlan, Tensors};

/// Options of the dequantization layer.
#[derive(Clone, Copy, Debug)]
pub struct DequantOptions {
    /// Sign convention of the offsets of an msModelSlim checkpoint.
    pub offset_sign: OffsetSign,
    /// Vector instruction set to use.
    pub level: SimdLevel,
}

/// The weights of a checkpoint as floats, with a description of their storage.
pub struct Opened {
    /// Float weights under the names of an unquantized checkpoint.
    pub source: Box<dyn WeightSource + Send>,
    /// Storage of the weights, if the checkpoint is quantized.
    pub quantization: Option<Quantization>,
    /// Stored tensors of which the quantized weights consist.
    pub members: Vec<WeightMeta>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Inspects a container and its configuration, and adds a dequantization layer if it holds codes.
///
/// # Errors
/// [`DequantError`]: an unsupported method, parts that are missing or contradict, codes without settings.
pub fn open(
    files: &Configurations,
    source: Box<dyn WeightSource + Send>,
    options: DequantOptions,
) -> Result<Opened> {
    if let Some(description) = &files.msmodelslim {
        return Ok(msmodelslim::open(description, &files.config, source, options)?);
    }
    let mut warnings = Vec::new();
    let settings = match (mlx::find(files, source.weights()), mlx::passed_over(files, source.weights())) {
        (Some(settings), _) => Some(settings),
        (None, Some(warning)) => {
            warnings.push(warning);
            None
        }
        (None, None) => match settings::find(files, &mut warnings) {
            // Settings that stayed behind when the model was trained further or merged.
            Err(
                DequantError::UnsupportedMethod { file, method, .. }
                | DequantError::UnknownMethod { file, method, .. },
            ) if source.weights().iter().all(|meta| meta.ty.is_plain_float()) => {
                warnings.push(format!(
                    "{file}: the quantization `{method}` is passed over, the weights are plain floats"
                ));
                None
            }
            found => found?,
        },
    };
    let mut tensors = Tensors::new(&*source, options.level);
    let settings = settings.or_else(|| {
        let (settings, warning) = settings::undescribed(&tensors)?;
        warnings.extend(warning);
        Some(settings)
    });
    if let Some(settings) = &settings {
        plan(settings, files, &mut tensors, &mut warnings)?;
        // BitNet's layers multiply floats by their scales, too.
        if settings.method != Method::Bitnet {
            warnings.extend(tensors.pass_over_scales_of_floats());
        }
        tensors.check_no_bare_codes()?;
    }
    let DequantPlan { weights, members } = tensors.finish()?;
    let Some(settings) = settings else {
        warnings.extend(tensors::integers(source.weights()));
        return Ok(Opened { source, quantization: None, members, warnings });
    };
    let plain_targets = targets::plain(&settings, &weights)?;
    let weights = turned::turn(&files.config, weights);
    let layer = Dequantized::new(source, options.level, weights);
    let method = settings.method.title();
    let encodings = layer.encodings(method);
    let pieces = layer.pieces(encoding::UNUSED).into_iter().chain(settings.pieces()).collect();
    let quantization =
        Some(Quantization { method, encodings, pieces, plain_targets, ..Quantization::default() });
    Ok(Opened { source: Box::new(layer), quantization, members, warnings })
}

/// Calls the planner of the method, which replaces the tensors of its modules by coded weights.
fn plan(
    settings: &Settings,
    files: &Configurations,
    tensors: &mut Tensors<'_>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    match settings.method {
        Method::Fp8 | Method::FbgemmFp8 => fp8::plan(settings, tensors),
        Method::Gptq => gptq::plan(settings, tensors, warnings),
        Method::Awq => awq::plan(settings, tensors),
        Method::AutoRound => autoround::plan(settings, tensors, warnings),
        Method::CompressedTensors => compressed::plan(settings, tensors),
        Method::Bitsandbytes => bitsandbytes::plan(settings, tensors),
        Method::Mxfp4 => mxfp4::plan(settings, tensors),
        Method::Modelopt => modelopt::plan(settings, tensors),
        Method::Hqq => hqq::plan(settings, tensors),
        Method::Quanto => quanto::plan(settings, &files.config, tensors),
        Method::Int8 => int8::plan(settings, tensors),
        Method::Bitnet => bitnet::plan(settings, &files.config, tensors),
        Method::Gemma => gemma::plan(settings, tensors),
        Method::Mlx => mlx::plan(settings, &files.config, tensors, warnings),
    }
}
