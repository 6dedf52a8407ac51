//! Quantized checkpoints as floats: a layer over the container that runs before any card sees a tensor.
//!
//! [`open`] finds the description, lets the method's file put its modules together, and checks that nothing is left
//! over. Everything is planned from headers and scales; codes are decoded when rows are read.
//!
//! | file | subject |
//! |---|---|
//! | `settings` | what the configuration files say |
//! | `tensors` | who belongs to which module, and what is left |
//! | `encoding` | how a weight is stored, for people |
//! | `targets` | modules that should be quantized and are not |
//! | `layer` | the source of floats over the source of codes |
//! | `values` | scales and zero points, read in pieces |
//! | `bits` `nibbles` | integer codes in words; pairs of codes in a byte |
//! | `grouped` | integer matrices with a scale and a zero point for each group of columns |
//! | `gptq` `awq` `autoround` `compressed` | who writes them, and how |
//! | `sparse` | matrices of bits and values |
//! | `fp4` `mxfp4` `modelopt` | FP4 with powers of two or E4M3 for scales |
//! | `linear_shape` | shapes that a file does not say |
//! | `bitsandbytes` `hqq` `quanto` `bitnet` | layouts of one tool each |
//! | `msmodelslim` | Ascend's, with a description of its own |
//! | `fp8` | FP8 by blocks, rows, tensors |

pub mod flm;
pub mod msmodelslim;

mod autoround;
mod awq;
mod bitnet;
mod bits;
mod bitsandbytes;
mod compressed;
mod encoding;
mod error;
mod fp4;
mod fp8;
mod gptq;
mod grouped;
mod hqq;
mod layer;
mod linear_shape;
mod modelopt;
mod mxfp4;
mod nibbles;
mod quanto;
mod settings;
mod sparse;
mod targets;
mod tensors;
mod values;

use crate::core::WeightSource;

pub use encoding::{Encoding, Encodings, StoredClass, stored_classes, tensor_class};
pub use error::DequantError;
pub use layer::{Decoder, Dequantized};
pub use settings::{Configurations, HF_QUANT_CONFIG, Method, QUANTIZE_CONFIG, QUANTO_QMAP, Settings};
use tensors::Finished;
pub use tensors::Tensors;

use layer::Planned;

/// The weights of a checkpoint as floats, and what there is to say about them.
pub struct Opened {
    /// Floats under plain names.
    pub source: Box<dyn WeightSource + Send>,
    /// The method, if the checkpoint is quantized.
    pub method: Option<Method>,
    /// How the quantized weights of `source` are stored.
    pub encodings: Encodings,
    /// Names of the stored tensors that quantized weights were put together from.
    pub members: Vec<String>,
    /// Tensors that were left out: scales of activations and caches.
    pub left_out: Vec<String>,
    /// Weights of the layers that the configuration targets, but that are plain floats.
    pub plain_targets: Vec<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Looks at a container and its configuration, and puts a layer over it if it holds codes.
///
/// # Errors
/// [`DequantError`]: a method that is not read, parts that are missing or contradict, codes without description.
pub fn open(files: &Configurations, source: Box<dyn WeightSource + Send>) -> Result<Opened, DequantError> {
    let settings = settings::find(files)?;
    let mut warnings = Vec::new();
    let mut tensors = Tensors::new(&*source);
    if let Some(settings) = &settings {
        plan(settings, files, &mut tensors, &mut warnings)?;
        tensors.check_no_bare_codes()?;
    }
    let Finished { plan, members, left_out } = tensors.finish()?;
    let Some(settings) = settings else {
        let (encodings, plain_targets) = (Encodings::new(), Vec::new());
        return Ok(Opened { source, method: None, encodings, members, left_out, plain_targets, warnings });
    };
    let encodings = encodings(&*source, settings.method, &plan);
    let plain_targets = targets::plain(&settings, &*source, &plan)?;
    let source = Box::new(Dequantized::new(source, plan));
    let method = Some(settings.method);
    Ok(Opened { source, method, encodings, members, left_out, plain_targets, warnings })
}

/// How the weights of a plan are stored.
fn encodings(source: &dyn WeightSource, method: Method, plan: &[Planned]) -> Encodings {
    let encoding = |planned: &Planned| match planned {
        Planned::Plain(_) => None,
        Planned::Coded(meta, decoder) => {
            let n_bytes = encoding::n_bytes(source, decoder.members());
            Some((meta.name.clone(), Encoding { method: method.title(), form: decoder.form(), n_bytes }))
        }
    };
    plan.iter().filter_map(encoding).collect()
}

/// Hands on to the method's file: it takes the tensors of its modules and puts decoders in their place.
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
