//! BitNet: ternary weights, four rows in a byte, one scale for the tensor.

use std::ops::Range;

use crate::core::{ElementType, Shape, SourceError, WeightSource};
use crate::transform::dequant::values::{SCALE_TYPES, Values, with_bytes};
use crate::transform::dequant::{Decoder, DequantError, Settings, Tensors};

struct Ternary {
    name: String,
    codes: usize,
    scale: Values,
    /// The scale divides instead of multiplying.
    is_divisor: bool,
    /// Rows of bytes: row `k · n_packed + r` lies in bits `2k` of row `r`.
    n_packed: u64,
    n_cols: u64,
    members: [usize; 2],
}

/// `bitnet`.
///
/// # Errors
/// [`DequantError`]: a scale that is missing or zero, sizes that do not fit.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<(), DequantError> {
    let is_divisor = match settings.text("linear_class")? {
        None | Some("bitlinear") => true,
        Some("autobitlinear") => false,
        Some(name) => {
            return Err(settings.variant("linear_class", name, "expected bitlinear or autobitlinear"));
        }
    };
    let packed: Vec<(&str, usize)> = tensors
        .ending(".weight")
        .into_iter()
        .filter(|row| tensors.meta(row.1).ty == ElementType::U8)
        .collect();
    for (module, codes) in packed {
        settings.check_not_ignored(&format!("{module}.weight"))?;
        let scale = tensors.member(module, ".weight_scale")?;
        let values = Values::new(tensors, scale, &SCALE_TYPES)?;
        if values.n != 1 {
            return Err(tensors.shape_error(scale, "1 element".to_owned()));
        }
        if is_divisor && values.get(tensors.source(), 0)? == 0.0 {
            return Err(tensors.zero_divisor(scale));
        }
        let (n_packed, n_cols) = tensors.matrix(codes)?;
        let shape = n_packed.checked_mul(4).and_then(|rows| Shape::new(vec![rows, n_cols]));
        let shape = shape.ok_or_else(|| tensors.shape_error(codes, "a size that fits 63 bits".to_owned()))?;
        let name = tensors.meta(codes).name.clone();
        let members = [codes, scale];
        let decoder =
            Ternary { name: name.clone(), codes, scale: values, is_divisor, n_packed, n_cols, members };
        tensors.take(scale);
        tensors.replace(codes, name, shape, Box::new(decoder));
    }
    Ok(())
}

impl Ternary {
    fn read(
        &self,
        source: &dyn WeightSource,
        rows: Range<u64>,
        cols: &Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let scale = self.scale.get(source, 0)?;
        let value = |t: f32| if self.is_divisor { t / scale } else { t * scale };
        let values = [value(-1.0), value(0.0), value(1.0)];
        let width = (cols.end - cols.start) as usize;
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            let (shift, packed) = (2 * (row / self.n_packed), row % self.n_packed);
            let first = packed * self.n_cols;
            with_bytes(source, self.codes, 1, first + cols.start..first + cols.end, |bytes| {
                for ((col, out), &byte) in cols.clone().zip(out).zip(bytes) {
                    let code = byte >> shift & 3;
                    *out = *values.get(usize::from(code)).ok_or_else(|| DequantError::IndexOutOfRange {
                        tensor: self.name.clone(),
                        index: first + col,
                        found: i64::from(code),
                        expected: "a code of 0, 1 or 2".to_owned(),
                    })?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Decoder for Ternary {
    fn decode(
        &self,
        source: &dyn WeightSource,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        self.read(source, rows, &cols, out).map_err(|error| error.reading(&self.name))
    }

    fn members(&self) -> &[usize] {
        &self.members
    }
}
