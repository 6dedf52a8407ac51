//! Quantized checkpoints as floats: a layer over the container that runs before any card sees a tensor.
//!
//! [`open`] finds the description, lets the method's file put its modules together, and checks that nothing is left
//! over; [`flm::open`] does the same for FastLLM's files, which need no description. Everything is planned from headers
//! and scales; codes are decoded when rows are read. Every method says how its codes lie by implementing
//! `CodedWeight`; `Dequantized` is the one source over them.
//!
//! | file | subject |
//! |---|---|
//! | `coded` | what a method implements |
//! | `layer` | the source of floats over the source of codes |
//! | `settings` | what the configuration files say |
//! | `tensors` | who belongs to which module, and what is left |
//! | `encoding` | how a weight is stored, for people |
//! | `targets` | modules that should be quantized and are not |
//! | `patterns` | names of modules as configurations have them |
//! | `values` | scales and zero points, read in pieces |
//! | `bits` `nibbles` | integer codes in words; pairs of codes in a byte |
//! | `grouped` | integer matrices with a scale and a zero point for each group of columns |
//! | `gptq` `awq` `autoround` `compressed` | who writes them, and how |
//! | `sparse` | matrices of bits and values |
//! | `mlx` | what is refused of MLX |
//! | `fp4` `mxfp4` `modelopt` | FP4 with powers of two or E4M3 for scales |
//! | `stack` `fp4_turned` | stacks of experts, and those packed across their rows |
//! | `linear_shape` | shapes that a file does not say |
//! | `bitsandbytes` `hqq` `quanto` `bitnet` | layouts of one tool each |
//! | `fp8` | FP8 by blocks, rows, tensors |
//! | `msmodelslim` | Ascend's, with a description of its own |
//! | `flm` | FastLLM's, with value ranges for scales |
//! | `lora` `rows` | adapters that are merged as weights are read; rows that take the place of others |

pub mod flm;
pub(crate) mod msmodelslim;

mod autoround;
mod awq;
mod bitnet;
mod bits;
mod bitsandbytes;
mod coded;
mod compressed;
mod encoding;
mod error;
mod fp4;
mod fp4_turned;
mod fp8;
mod gptq;
mod grouped;
mod hqq;
mod layer;
mod linear_shape;
mod lora;
mod mlx;
mod modelopt;
mod mxfp4;
mod nibbles;
mod patterns;
mod quanto;
mod rows;
mod settings;
mod sparse;
mod stack;
mod targets;
mod tensors;
mod values;

use crate::core::simd::SimdLevel;
use crate::core::{WeightMeta, WeightSource};

pub use encoding::{Encoding, Encodings, Quantization, StoredClass, stored_classes, tensor_class};
pub use error::DequantError;
pub use lora::{LoraError, LoraPair, Replaced, with_adapter};
pub use rows::ReplacedRows;
pub use settings::{Configurations, HF_QUANT_CONFIG, QUANTIZE_CONFIG, QUANTO_QMAP};

use coded::{Below, CodedWeight};
use layer::Dequantized;
use msmodelslim::OffsetSign;
use settings::{Method, Settings};
use tensors::{Finished, Tensors};

/// What the layer is asked for.
#[derive(Clone, Copy, Debug)]
pub struct DequantOptions {
    /// How the offsets of an msModelSlim checkpoint are meant.
    pub offset_sign: OffsetSign,
    /// Vector instructions to use.
    pub level: SimdLevel,
}

/// The weights of a checkpoint as floats, and what there is to say about them.
pub struct Opened {
    /// Floats under plain names.
    pub source: Box<dyn WeightSource + Send>,
    /// How they are stored, if the checkpoint is quantized.
    pub quantization: Option<Quantization>,
    /// Names of the stored tensors that quantized weights were put together from.
    pub members: Vec<WeightMeta>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Looks at a container and its configuration, and puts a layer over it if it holds codes.
///
/// # Errors
/// [`DequantError`]: a method that is not read, parts that are missing or contradict, codes without description.
pub fn open(
    files: &Configurations,
    source: Box<dyn WeightSource + Send>,
    options: DequantOptions,
) -> Result<Opened, DequantError> {
    if let Some(description) = &files.msmodelslim {
        return Ok(msmodelslim::open(description, &files.config, source, options)?);
    }
    let mut warnings = Vec::new();
    mlx::refuse(files, source.weights())?;
    let settings = match mlx::passed_over(files, source.weights()) {
        Some(warning) => {
            warnings.push(warning);
            None
        }
        None => settings::find(files)?,
    };
    let mut tensors = Tensors::new(&*source, options.level);
    let settings = settings.or_else(|| fp8::undescribed(&tensors));
    if let Some(settings) = &settings {
        plan(settings, files, &mut tensors, &mut warnings)?;
        tensors.check_no_bare_codes()?;
    }
    let Finished { weights, members, left_out } = tensors.finish()?;
    let Some(settings) = settings else {
        return Ok(Opened { source, quantization: None, members, warnings });
    };
    let plain_targets = targets::plain(&settings, &weights)?;
    let layer = Dequantized::new(source, options.level, weights);
    let method = settings.method.title();
    let encodings = layer.encodings(method);
    let quantization = Some(Quantization { method, encodings, left_out, plain_targets });
    Ok(Opened { source: Box::new(layer), quantization, members, warnings })
}

/// Hands on to the method's file: it takes the tensors of its modules and puts coded weights in their place.
fn plan(
    settings: &Settings,
    files: &Configurations,
    tensors: &mut Tensors<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), DequantError> {
    match settings.method {
        Method::Fp8 | Method::FbgemmFp8 => fp8::plan(settings, tensors),
        Method::Gptq => gptq::plan(settings, tensors, warnings),
        Method::Awq => awq::plan(settings, tensors),
        Method::AutoRound => autoround::plan(settings, tensors),
        Method::CompressedTensors => compressed::plan(settings, tensors),
        Method::Bitsandbytes => bitsandbytes::plan(settings, tensors),
        Method::Mxfp4 => mxfp4::plan(settings, tensors),
        Method::Modelopt => modelopt::plan(settings, tensors),
        Method::Hqq => hqq::plan(settings, tensors),
        Method::Quanto => quanto::plan(settings, &files.config, tensors),
        Method::Bitnet => bitnet::plan(settings, tensors),
    }
}
