//! Scales and offsets: numbers that apply to groups of columns of a row.

use std::ops::Range;

use super::error::MsModelSlimError;
use crate::InnerSource;
use gguf_core::numeric::{bf16_to_f32, f16_to_f32};
use gguf_core::{ElementType, SourceError, WeightMeta};

/// Storage format of the numbers of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberFormat {
    /// A float of this type.
    Float(ElementType),
    /// The exponent of a power of two, with a bias of 127.
    Exponent,
    /// The bits of an F32 in the low half of 64.
    Bits,
}

/// Numbers that apply to groups of columns, the same number of them for every row.
#[derive(Clone, Debug)]
pub(super) struct ScaleGrid {
    /// Index of the tensor in the checkpoint.
    pub(super) weight: usize,
    /// Numbers per row.
    pub(super) groups: u64,
    pub(super) stored: NumberFormat,
    /// Divisor of the stored numbers.
    pub(super) divisor: f64,
}

impl ScaleGrid {
    /// Creates a grid without a divisor.
    pub(super) fn plain(weight: usize, groups: u64, stored: NumberFormat) -> Self {
        Self { weight, groups, stored, divisor: 1.0 }
    }

    /// Creates a grid of one number per row, without a divisor.
    pub(super) fn by_row(weight: usize, stored: NumberFormat) -> Self {
        Self::plain(weight, 1, stored)
    }

    /// Decodes one number from raw bytes.
    fn decode(&self, bytes: &[u8]) -> f64 {
        let bits =
            |n: usize| bytes.iter().take(n).rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        let value = match self.stored {
            NumberFormat::Float(ElementType::F64) => f64::from_bits(bits(8)),
            NumberFormat::Float(ElementType::F16) => f64::from(f16_to_f32(bits(2) as u16)),
            NumberFormat::Float(ElementType::Bf16) => f64::from(bf16_to_f32(bits(2) as u16)),
            NumberFormat::Float(_) => f64::from(f32::from_bits(bits(4) as u32)),
            NumberFormat::Exponent if bits(1) == 255 => f64::NAN,
            NumberFormat::Exponent => 2f64.powi(bits(1) as i32 - 127),
            NumberFormat::Bits => f64::from(f32::from_bits(bits(8) as u32)),
        };
        value / self.divisor
    }

    /// Reads numbers `range` of the grid.
    pub(super) fn read(
        &self,
        inner: InnerSource<'_>,
        range: Range<u64>,
        out: &mut Vec<f64>,
    ) -> Result<(), SourceError> {
        out.clear();
        // All element types used here were checked to be whole bytes.
        let elem_bytes = inner.meta(self.weight).ty.bytes().unwrap_or(1);
        inner.with_elems(self.weight, range, |bytes| {
            out.extend(bytes.chunks_exact(elem_bytes).map(|bytes| self.decode(bytes)));
        })
    }
}

/// Returns the storage format of a tensor of floats.
pub(super) fn float(meta: &WeightMeta) -> Result<NumberFormat, MsModelSlimError> {
    if meta.ty.is_plain_float() {
        return Ok(NumberFormat::Float(meta.ty));
    }
    Err(wrong_type(meta, "floats"))
}

/// Returns the storage format of a tensor of exponents.
pub(super) fn exponent(meta: &WeightMeta) -> Result<NumberFormat, MsModelSlimError> {
    match meta.ty {
        ElementType::U8 | ElementType::F8E8M0 => Ok(NumberFormat::Exponent),
        _ => Err(wrong_type(meta, "exponents in U8")),
    }
}

/// Returns the storage format of the scale of an integer product.
pub(super) fn deq(meta: &WeightMeta) -> Result<NumberFormat, MsModelSlimError> {
    match meta.ty {
        ElementType::I64 => Ok(NumberFormat::Bits),
        _ => float(meta).map_err(|_| wrong_type(meta, "floats, or their bits in I64")),
    }
}

fn wrong_type(meta: &WeightMeta, expected: &'static str) -> MsModelSlimError {
    MsModelSlimError::ParameterType { tensor: meta.name.clone(), found: meta.ty, expected }
}
