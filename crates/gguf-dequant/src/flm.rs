//! FastLLM's quantization: value ranges (minimum and maximum) per row or group, and integer codes of 8 or 4 bits.
//!
//! # Exactness
//! Scale and zero point are derived from a range as in FastLLM's loader, in F32 at every step. The minimum and the
//! product are added in F64 and rounded once.
//!
//! | codes | value | scale, zero point, minimum |
//! |---|---|---|
//! | INT8, INT4 | scale · (code - zero) | range widened to hold 0; (max - min) / (2^bits - 1); -min / scale, rounded half away from zero; |
//! | INT4_NOZERO, INT4_GROUP | minimum + scale · code | the same, minimum = -scale · zero |
//! | INT8 as the Python exporter meant it | scale · (code - 128) | max / 127 |
//! | INT4_NOZERO until July 2023 | minimum + scale · code | (max - min) / 15, minimum as stored |

mod affine;
mod ranged;

use crate::layer::{Weight, WeightOrigin};
use crate::lora::merge;
use crate::{Dequantized, InnerSource, LoraError, LoraPair, Opened, Quantization, Result};
use gguf_checkpoint::fastllm::{Coding, FlmFile, Payload};
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, Shape, SourceError, WeightMeta, WeightSource};

use affine::{Reading, is_present};
use ranged::Ranged;

/// Share of rows that fit the current writers, below which a file is assumed to be of July 2023.
const PRESENT_SHARE: f64 = 0.9;

const METHOD: &str = "FastLLM";

/// Interpretation of the value ranges, where loader and writer differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlmMeaning {
    /// Interpretation of FastLLM's loader.
    #[default]
    Reader,
    /// Interpretation of the program that wrote the file.
    Writer,
}

/// Statistics of a file's ranges that reveal its writer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlmSurvey {
    /// Number of ranges whose minimum is NaN because all their values are zero, by tensor.
    pub zeroed: Vec<(String, u64)>,
    /// True if there are INT8 codes and all their ranges are symmetric, as only the Python exporter writes them.
    pub symmetric_int8: bool,
    /// Share of INT4_NOZERO rows with a negative minimum whose range the current writers could have written; `None`
    /// without such rows.
    pub present_int4: Option<f64>,
}

impl FlmSurvey {
    /// Returns true if INT4_NOZERO ranges look like those of July 2023: the raw extremes of a row.
    pub fn raw_int4(&self) -> bool {
        self.present_int4.is_some_and(|share| share < PRESENT_SHARE)
    }

    /// Returns the interpretation of the ranges of a coding.
    fn reading(&self, coding: Coding, meaning: FlmMeaning) -> Reading {
        match (meaning, coding) {
            (FlmMeaning::Writer, Coding::Int8) if self.symmetric_int8 => Reading::Symmetric,
            (FlmMeaning::Writer, Coding::Int4NoZero) if self.raw_int4() => Reading::Raw,
            (FlmMeaning::Reader | FlmMeaning::Writer, _) => Reading::Loader,
        }
    }
}

/// An invalid value range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("value range {index} is {min} to {max}, which gives no finite scale")]
pub struct RangeError {
    /// Index of the range in the tensor.
    pub index: u64,
    /// Minimum.
    pub min: f32,
    /// Maximum.
    pub max: f32,
}

/// The weights of an `.flm` file as floats.
pub struct FlmOpened {
    /// Float weights, without buffers that a runtime computes itself.
    layer: Dequantized,
    /// Statistics of the ranges.
    pub survey: FlmSurvey,
}

impl FlmOpened {
    /// Names, shapes and types of the weights.
    pub fn weights(&self) -> &[WeightMeta] {
        self.layer.weights()
    }

    /// Merges adapters into the weights.
    ///
    /// A merged weight no longer counts as stored in the file. Indices are those of [`FlmOpened::weights`].
    pub fn merged(self, pairs: &[LoraPair]) -> Result<Self, LoraError> {
        Ok(Self { layer: self.layer.changed(|weights| merge(weights, pairs))?, survey: self.survey })
    }

    /// Converts to the source and the description of its storage.
    pub fn into_opened(self) -> Opened {
        let encodings = self.layer.encodings(METHOD);
        let quantization = (!encodings.is_empty()).then(|| Quantization {
            method: METHOD,
            encodings,
            ..Quantization::default()
        });
        Opened { source: Box::new(self.layer), quantization, members: Vec::new(), warnings: Vec::new() }
    }
}

/// One tensor of a file.
enum FlmWeight {
    /// Floats, by the index of the file's weight.
    Plain(usize),
    Ranged {
        name: String,
        shape: Shape,
        codes: Ranged,
    },
}

/// Creates the float layer over a file, after checking all ranges.
///
/// # Errors
/// A range that is not finite; the source failed.
pub fn open(file: FlmFile, meaning: FlmMeaning, level: SimdLevel) -> Result<FlmOpened> {
    let tensors = tensors(&file);
    let survey = survey(InnerSource { source: &file, level }, &tensors)?;
    let weight = |tensor: FlmWeight| match tensor {
        FlmWeight::Plain(index) => Weight::plain(&file, index),
        FlmWeight::Ranged { name, shape, mut codes } => {
            codes.reading = survey.reading(codes.coding, meaning);
            let meta = WeightMeta { name, shape, ty: ElementType::F32 };
            Weight { meta, origin: WeightOrigin::Coded(Box::new(codes)) }
        }
    };
    let weights = tensors.into_iter().map(weight).collect();
    let layer = Dequantized::new(Box::new(file), level, weights);
    Ok(FlmOpened { layer, survey })
}

/// Returns the tensors of the model.
///
/// The file lists its weights in their order: one of floats, or ranges and codes.
fn tensors(file: &FlmFile) -> Vec<FlmWeight> {
    let mut tensors = Vec::new();
    let mut at = 0;
    for tensor in &file.header().tensors {
        let (own, next) = match &tensor.payload {
            Payload::Plain { .. } => (FlmWeight::Plain(at), at + 1),
            Payload::Codes { coding, ranges, .. } => {
                let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                let codes = Ranged::new(*coding, &shape, *ranges, [at + 1, at]);
                (FlmWeight::Ranged { name, shape, codes }, at + 2)
            }
        };
        at = next;
        if !is_buffer(&tensor.name) {
            tensors.push(own);
        }
    }
    tensors
}

/// Returns true for rotary frequencies, which a runtime computes itself.
fn is_buffer(name: &str) -> bool {
    name.rsplit('.').next() == Some("inv_freq")
}

/// Reads every range once, and checks that each is valid.
fn survey(inner: InnerSource<'_>, tensors: &[FlmWeight]) -> Result<FlmSurvey, SourceError> {
    let mut survey = FlmSurvey::default();
    let (mut n_int8, mut n_symmetric) = (0u64, 0u64);
    let (mut n_rows, mut n_present) = (0u64, 0u64);
    for tensor in tensors {
        let FlmWeight::Ranged { name, codes, .. } = tensor else { continue };
        let mut n_zeroed = 0;
        let looked = codes.each_range(inner, |index, min, max| {
            if min.is_nan() {
                n_zeroed += 1;
            }
            match codes.coding {
                Coding::Int8 => {
                    n_int8 += 1;
                    n_symmetric += u64::from(min == -max);
                }
                Coding::Int4NoZero if min < 0.0 => {
                    n_rows += 1;
                    n_present += u64::from(is_present(min, max));
                }
                Coding::Int4 | Coding::Int4NoZero | Coding::Int4Group => {}
            }
            codes.affine_of(inner, index, min, max).map(drop)
        });
        looked.map_err(|error| error.reading(name))?;
        if n_zeroed > 0 {
            survey.zeroed.push((name.clone(), n_zeroed));
        }
    }
    survey.symmetric_int8 = n_int8 > 0 && n_symmetric == n_int8;
    survey.present_int4 = (n_rows > 0).then(|| n_present as f64 / n_rows as f64);
    Ok(survey)
}
