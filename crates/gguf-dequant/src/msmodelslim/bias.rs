//! Biases that are not stored as such: those of static W8A8 layers, which are part of an integer tensor, and those
//! that absorb the bias of the norm before the layer.

use std::ops::Range;
use std::sync::Arc;

use super::error::MsModelSlimError;
use super::grid::{NumberFormat, ScaleGrid};
use super::labelled::Labelled;
use super::linear::Linear;
use crate::rectangle::Rectangle;
use crate::{CodedWeight, InnerSource, Result};
use gguf_core::ElementType;
use gguf_core::little_endian::i32s;

/// Number of rows after which the pages of a weight that was read are released.
const RELEASE_ROWS: u64 = 1024;

/// A computed bias.
#[derive(Debug)]
pub(super) struct Bias {
    pub(super) n_rows: u64,
    pub(super) base: LayerBias,
    pub(super) fold: Option<Fold>,
}

/// The bias of the layer itself.
#[derive(Debug)]
pub(super) enum LayerBias {
    Zero,
    Tensor(usize),
    /// The integer bias of a static layer, and its weight.
    Static(StaticBias, Arc<Linear>),
}

/// The contribution of a norm's bias to the layer's bias: its product with the weight.
#[derive(Debug)]
pub(super) struct Fold {
    /// Bias of the norm, one per column.
    pub(super) norm_bias: Arc<[f32]>,
    pub(super) weight: WeightRows,
}

/// A weight whose rows can be read.
#[derive(Clone, Debug)]
pub(super) enum WeightRows {
    /// A quantized weight.
    Linear(Arc<Linear>),
    /// Index of a float tensor.
    Plain(usize),
}

/// Inputs of the bias of a static W8A8 layer.
#[derive(Clone, Debug)]
pub(super) struct StaticBias {
    pub(super) quant_bias: usize,
    pub(super) input_offset: f64,
    /// Scale of the integer product.
    pub(super) deq_scale: ScaleGrid,
}

impl StaticBias {
    /// Computes the bias of a row, and its largest possible magnitude due to rounding alone.
    ///
    /// The layer computes `((x / input_scale + input_offset) · w + quant_bias) * deq_scale`. The tool rounded
    /// `bias / deq_scale - rowsum * input_offset`, the last product in F32.
    fn row(
        &self,
        inner: InnerSource<'_>,
        linear: &Linear,
        row: u64,
        codes: &mut Vec<u8>,
    ) -> Result<(f64, f64), MsModelSlimError> {
        let quant_bias = inner.with_elems(self.quant_bias, row..row + 1, |bytes| i32s(bytes).next())?;
        let quant_bias = quant_bias.unwrap_or(0);
        let mut deq_scale = Vec::new();
        self.deq_scale.read(inner, row..row + 1, &mut deq_scale)?;
        let deq_scale = deq_scale.first().copied().unwrap_or(0.0);
        let mut correction = 0.0;
        if self.input_offset != 0.0 {
            linear.read_codes(inner, row, 0, linear.n_cols() as usize, codes)?;
            let sum: i64 = codes.iter().map(|code| i64::from(code.cast_signed())).sum();
            correction = sum as f64 * self.input_offset;
        }
        let rounding = (0.5 + correction.abs() / f64::from(1 << 23)) * deq_scale.abs();
        Ok(((f64::from(quant_bias) + correction) * deq_scale, rounding))
    }

    /// Returns true if the layer has no bias: all recovered values are within the tool's rounding.
    pub(super) fn is_absent(
        &self,
        inner: InnerSource<'_>,
        linear: &Linear,
    ) -> Result<bool, MsModelSlimError> {
        let mut codes = Vec::new();
        for row in 0..linear.n_rows() {
            let (bias, rounding) = self.row(inner, linear, row, &mut codes)?;
            // The comparison itself is in F64, so a tiny excess over the bound is tolerated.
            if bias.abs() > rounding * (1.0 + 1e-9) {
                return Ok(false);
            }
            if row % RELEASE_ROWS == RELEASE_ROWS - 1 {
                linear.release_rows(inner, row + 1 - RELEASE_ROWS..row + 1);
            }
        }
        Ok(true)
    }
}

impl CodedWeight for Bias {
    /// Computes some elements: a bias is one row.
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let mut codes = Vec::new();
        let mut values = Vec::new();
        for (row, out) in part.cols.clone().zip(out) {
            let base = match &self.base {
                LayerBias::Zero => 0.0,
                LayerBias::Tensor(at) => {
                    elements(inner, *at, row..row + 1, &mut values)?.first().copied().unwrap_or(0.0)
                }
                LayerBias::Static(bias, linear) => bias.row(inner, linear, row, &mut codes)?.0,
            };
            let folded = self.fold.as_ref().map(|fold| fold.row(inner, row)).transpose()?;
            *out = (base + folded.unwrap_or(0.0)) as f32;
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &[]
    }

    fn form(&self) -> String {
        "computed".to_owned()
    }
}

impl Fold {
    /// Computes the product of a row with the norm's bias, summed in F64 from left to right.
    fn row(&self, inner: InnerSource<'_>, row: u64) -> Result<f64, MsModelSlimError> {
        let n = self.norm_bias.len();
        let dot = |weights: &mut dyn Iterator<Item = f64>| -> f64 {
            weights.zip(self.norm_bias.iter()).map(|(weight, &bias)| weight * f64::from(bias)).sum()
        };
        match &self.weight {
            WeightRows::Linear(linear) => {
                let mut weights = vec![0.0; n];
                linear.read_values(inner, row, 0, &mut weights)?;
                Ok(dot(&mut weights.iter().map(|&weight| f64::from(weight))))
            }
            WeightRows::Plain(at) => {
                let (n, mut weights) = (n as u64, Vec::new());
                let weights = elements(inner, *at, row * n..(row + 1) * n, &mut weights)?;
                Ok(dot(&mut weights.iter().copied()))
            }
        }
    }
}

/// Reads elements of a float tensor; its type was checked while planning.
fn elements<'v>(
    inner: InnerSource<'_>,
    weight: usize,
    range: Range<u64>,
    values: &'v mut Vec<f64>,
) -> Result<&'v [f64], MsModelSlimError> {
    let ty: ElementType = inner.meta(weight).ty;
    ScaleGrid::by_row(weight, NumberFormat::Float(ty)).read(inner, range, values)?;
    Ok(values)
}

/// Returns true if two float tensors hold the same numbers.
pub(super) fn are_equal(tensors: &Labelled<'_>, a: usize, b: usize) -> Result<bool, MsModelSlimError> {
    Ok(tensors.floats(a)? == tensors.floats(b)?)
}
