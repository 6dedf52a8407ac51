//! Checkpoints of Ascend's msModelSlim: codes, scales and offsets are converted to weights under the names of the
//! float model.
//!
//! A description labels every tensor, and the labels decide. Activation parameters and cache scales have no place in
//! a GGUF file: they are left out with a one-line warning. Smoothing may have given RMS norms a bias, which the
//! layers after the norms absorb. Operations that the NPU computes at run time (rotations, FlatQuant) are refused.
//!
//! # Exactness
//! `(code - offset) * scale`, rounded once to F32 (`linear.rs`). Files hold the offset that is subtracted. The
//! kernels add its negative, so an export made for them has the other sign ([`OffsetSign`]).

mod bias;
mod build;
mod coded;
mod error;
mod facts;
mod format;
mod grid;
mod label;
mod labelled;
mod linear;
mod module;
mod norms;
mod pack;
mod scan;
mod sort;

use std::sync::Arc;

use rayon::prelude::*;
use serde_json::{Map, Value as Json};

use crate::{DequantOptions, Dequantized, InnerSource, Opened, Quantization};
use gguf_checkpoint::msmodelslim::Description;
use gguf_core::WeightSource;
use gguf_core::text::escape;

use self::labelled::Labelled;
use self::linear::{Linear, Sign};
use self::scan::{gathered, other_sign_fits};
use self::sort::SortedTensors;

pub(crate) use self::error::MsModelSlimError;

/// Sign convention of offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffsetSign {
    /// Offsets as written by the tool: every version that writes a description writes offsets that are subtracted.
    #[default]
    Auto,
    /// Offsets are subtracted from the codes.
    File,
    /// Offsets are added to the codes, as in the kernels of the NPU.
    Npu,
}

impl OffsetSign {
    fn sign(self) -> Sign {
        match self {
            Self::Auto | Self::File => Sign::Subtracted,
            Self::Npu => Sign::Added,
        }
    }
}

const METHOD: &str = "msModelSlim";
/// Reason for the tensors that no weight is made of.
const OF_RUNTIME: &str = "activations are quantized with it, or the weights and their scales tell it";

/// Opens a checkpoint as the float model whose configuration is `config`.
///
/// Assembles the weights, checks all scales and offsets, and determines which static layers have a bias (this reads
/// their codes once).
///
/// # Errors
/// [`MsModelSlimError`]: tensors and labels that do not fit together, a type that cannot be converted, numbers that are
/// not finite.
pub(super) fn open(
    description: &Description,
    config: &Map<String, Json>,
    source: Box<dyn WeightSource + Send>,
    options: DequantOptions,
) -> Result<Opened, MsModelSlimError> {
    let inner = InnerSource { source: &*source, level: options.level };
    let tensors = Labelled::new(inner, description);
    let sorted = SortedTensors::new(&tensors)?;
    let linears = linears(&tensors, &sorted, options.offset_sign.sign())?;

    let mut warnings = sorted.warnings(&tensors);
    warnings.extend(scale_warnings(&linears));
    warnings.extend(sign_warning(inner, &linears)?);
    let (weights, added_biases) = build::weights(&tensors, &sorted, &linears, NormKind::of(config))?;
    let layer = Dequantized::new(source, options.level, weights);
    let (encodings, pieces) = (layer.encodings(METHOD), layer.pieces(OF_RUNTIME));
    let quantization =
        Some(Quantization { method: METHOD, encodings, pieces, added_biases, ..Quantization::default() });
    Ok(Opened { source: Box::new(layer), quantization, members: Vec::new(), warnings })
}

/// Kind of norm of an architecture: with or without a bias of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NormKind {
    /// Norms without a bias.
    Rms,
    Biased,
}

impl NormKind {
    fn of(config: &Map<String, Json>) -> Self {
        let text = config.get("text_config").and_then(Json::as_object).unwrap_or(config);
        let is_rms =
            text.contains_key("rms_norm_eps") || text.get("rmsnorm").and_then(Json::as_bool) == Some(true);
        if is_rms { Self::Rms } else { Self::Biased }
    }
}

/// Assembles the quantized weights, with the properties of their scales and offsets.
fn linears(
    tensors: &Labelled<'_>,
    sorted: &SortedTensors<'_>,
    sign: Sign,
) -> Result<Vec<Arc<Linear>>, MsModelSlimError> {
    let mut linears = Vec::with_capacity(sorted.modules.len());
    for module in &sorted.modules {
        linears.push(module.linear(tensors, sign)?);
    }
    // All results are collected before the first error is returned, so that the reported error does not depend on
    // threads.
    let found: Vec<Result<Arc<Linear>, MsModelSlimError>> = sorted
        .modules
        .par_iter()
        .zip(linears)
        .map(|(module, linear)| gathered(tensors, module, linear).map(Arc::new))
        .collect();
    found.into_iter().collect()
}

/// Returns warnings about scales that are valid but unusual.
fn scale_warnings(linears: &[Arc<Linear>]) -> Vec<String> {
    type ScaleCount = fn(&Linear) -> u64;
    let counts: [(ScaleCount, &str); 2] = [
        (|linear| linear.facts.n_zero, "are zero: what they belong to is zero"),
        (|linear| linear.facts.n_negative, "are negative, which the tool does not write"),
    ];
    let mut warnings = Vec::new();
    for (count, what) in counts {
        let n: u64 = linears.iter().map(|linear| count(linear)).sum();
        if let Some(linear) = linears.iter().find(|linear| count(linear) > 0) {
            warnings
                .push(format!("{n} scales {what} (`{}` is the first weight with one)", escape(&linear.name)));
        }
    }
    warnings
}

/// Checks up to 32 weights with offsets, spread over the model, for a wrong sign.
///
/// The weights of most rows are centred, so a sign that moves their mean away from zero is suspect.
fn sign_warning(inner: InnerSource<'_>, linears: &[Arc<Linear>]) -> Result<Option<String>, MsModelSlimError> {
    const SAMPLES: usize = 32;
    let with_offsets: Vec<&Arc<Linear>> = linears.iter().filter(|linear| linear.offset.is_some()).collect();
    let step = with_offsets.len().div_ceil(SAMPLES).max(1);
    let (mut n, mut n_other) = (0, 0);
    let sign = with_offsets.first().map(|linear| linear.sign);
    for linear in with_offsets.into_iter().step_by(step) {
        n += 1;
        n_other += usize::from(other_sign_fits(inner, linear)?);
    }
    if 2 * n_other <= n {
        return Ok(None);
    }
    let (now, other) = match sign {
        Some(Sign::Added) => ("added to", "subtracted (`--offset-sign file`)"),
        Some(Sign::Subtracted) | None => ("subtracted from", "added (`--offset-sign npu`)"),
    };
    Ok(Some(format!(
        "offsets are {now} the codes, but in {n_other} of {n} weights that were looked at the rows are centred only if \
         they are {other}"
    )))
}
