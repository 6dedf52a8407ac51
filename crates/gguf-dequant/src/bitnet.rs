//! BitNet: ternary weights, four rows per byte, one scale for the tensor.
//!
//! # Layout
//! `weight` U8 `[out/4, in]`: bits 2k of row r are row `k·out/4 + r`, value - 1. `bitlinear`: `W = value /
//! weight_scale`; `autobitlinear`: `value · weight_scale`.

use crate::rectangle::Rectangle;
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{CodedWeight, InnerSource, Result, Settings, Tensors};
use gguf_blocks::pack::{f16_error, pack_tq2_0};
use gguf_core::{ElementType, GgmlType, Packing};

struct Ternary {
    codes: usize,
    scale: NumberTensor,
    /// True if the scale divides instead of multiplying.
    is_divisor: bool,
    /// Number of byte rows: weight row `k · n_packed + r` is in bits `2k` of byte row `r`.
    n_packed: u64,
    n_cols: u64,
    members: [usize; 2],
}

/// Plans all modules of `bitnet`.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
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
        let values = NumberTensor::new(tensors, scale, &SCALE_TYPES)?;
        if values.n != 1 {
            return Err(tensors.shape_error(scale, "1 element"));
        }
        if is_divisor && values.get(tensors.inner(), 0)? == 0.0 {
            return Err(tensors.zero_divisor(scale));
        }
        let (n_packed, n_cols) = tensors.matrix(codes)?;
        let shape = tensors.weight_shape(codes, n_packed.checked_mul(4).map(|rows| vec![rows, n_cols]))?;
        let name = tensors.meta(codes).name.clone();
        let members = [codes, scale];
        let coded = Ternary { codes, scale: values, is_divisor, n_packed, n_cols, members };
        tensors.replace(codes, name, shape, Box::new(coded));
    }
    Ok(())
}

impl Ternary {
    /// Returns the value of a code of +1.
    fn value_of_one(&self, inner: InnerSource<'_>) -> Result<f32> {
        let scale = self.scale.get(inner, 0)?;
        Ok(if self.is_divisor { 1.0 / scale } else { scale })
    }

    /// Reads codes 0, 1 and 2 of a rectangle's columns of a row.
    fn read_codes(&self, inner: InnerSource<'_>, part: &Rectangle, row: u64, out: &mut [u8]) -> Result<()> {
        let (shift, packed) = (2 * (row / self.n_packed), row % self.n_packed);
        let elems = part.elems(packed, self.n_cols);
        inner.try_with_elems(self.codes, elems.clone(), |bytes| {
            let mut is_bad = false;
            for (out, &byte) in out.iter_mut().zip(bytes) {
                *out = byte >> shift & 3;
                is_bad |= *out == 3;
            }
            // The loop has no exit so that it is vectorized; the search runs only if a bad code was found.
            match out.iter().position(|&code| is_bad && code == 3) {
                None => Ok(()),
                Some(at) => {
                    Err(inner.out_of_range(self.codes, elems.start + at as u64, 3, "a code of 0, 1 or 2"))
                }
            }
        })
    }
}

impl CodedWeight for Ternary {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let one = self.value_of_one(inner)?;
        let mut codes = vec![0; part.width()];
        for (row, out) in part.split_rows(out, part.width()) {
            self.read_codes(inner, part, row, &mut codes)?;
            for (out, &code) in out.iter_mut().zip(&codes) {
                *out = f32::from(code.cast_signed() - 1) * one;
            }
        }
        Ok(())
    }

    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        if !self.n_cols.is_multiple_of(GgmlType::Tq2_0.block_elems() as u64) {
            return Ok(Vec::new());
        }
        let one = self.value_of_one(inner)?;
        let error = f16_error(one);
        let packing = Packing::rounded(GgmlType::Tq2_0, error);
        Ok(if error.is_finite() { vec![packing] } else { Vec::new() })
    }

    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        assert_eq!(ty, GgmlType::Tq2_0, "the only packing");
        let one = self.value_of_one(inner)?;
        let mut codes = vec![0; part.width()];
        let (block_elems, block_bytes) = (GgmlType::Tq2_0.block_elems(), GgmlType::Tq2_0.block_bytes());
        for (row, out) in part.split_rows(out, codes.len() / block_elems * block_bytes) {
            self.read_codes(inner, part, row, &mut codes)?;
            for (codes, out) in codes.as_chunks().0.iter().zip(out.chunks_exact_mut(block_bytes)) {
                pack_tq2_0(codes, one, out);
            }
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        "ternary, one scale".to_owned()
    }
}
