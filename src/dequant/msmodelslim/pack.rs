//! Codes of a quantized weight as GGUF blocks.

use super::error::MsModelSlimError;
use super::linear::{Encoding, Linear, Stored, Stretch};
use super::scan::minimum;
use crate::core::{GgmlType, WeightSource};
use crate::quant::pack::{BLOCK_ELEMS, pack_mxfp4, pack_q4_0, pack_q4_1, pack_q5_0, pack_q8_0};

/// Writes elements `first ..` as blocks of `ty`, one of the types that [`super::scan::Facts::packings`] names.
///
/// # Errors
/// As [`Linear::stretches`].
///
/// # Panics
/// If the range is not whole blocks, or the type is none of those.
pub(super) fn pack(
    source: &dyn WeightSource,
    linear: &Linear,
    ty: GgmlType,
    first: u64,
    out: &mut [u8],
) -> Result<(), MsModelSlimError> {
    let (n_cols, bytes) = (linear.n_cols(), ty.block_bytes());
    let (mut at, mut done) = (first, 0);
    while done < out.len() {
        let (row, column) = (at / n_cols, at % n_cols);
        let n = (n_cols - column).min(((out.len() - done) / bytes * BLOCK_ELEMS) as u64);
        let len = n as usize / BLOCK_ELEMS * bytes;
        let part = &mut out[done..done + len];
        linear.stretches(source, row, column, n as usize, |stretch| {
            let start = (stretch.column - column) as usize / BLOCK_ELEMS * bytes;
            let len = stretch.codes.len() / BLOCK_ELEMS * bytes;
            pack_stretch(linear, ty, &stretch, &mut part[start..start + len]);
        })?;
        at += n;
        done += len;
    }
    Ok(())
}

fn pack_stretch(linear: &Linear, ty: GgmlType, stretch: &Stretch<'_>, out: &mut [u8]) {
    let (scale, offset) = (stretch.scale as f32, stretch.offset);
    // The planner saw that the results fit the type's codes, and that offsets are whole where it matters.
    let shifted = |code: u8, by: i32| i32::from(code.cast_signed()) + by;
    let whole = offset as i32;
    for (codes, out) in stretch.codes.as_chunks().0.iter().zip(out.chunks_exact_mut(ty.block_bytes())) {
        let codes: &[u8; BLOCK_ELEMS] = codes;
        match ty {
            GgmlType::Q8_0 => pack_q8_0(&codes.map(|code| shifted(code, -whole) as i8), scale, out),
            GgmlType::Q4_0 => pack_q4_0(&codes.map(|code| shifted(code, 8 - whole) as u8), scale, out),
            GgmlType::Q5_0 => pack_q5_0(&codes.map(|code| shifted(code, 16 - whole) as u8), scale, out),
            GgmlType::Q4_1 => {
                let min = minimum(stretch.scale, offset);
                pack_q4_1(&codes.map(|code| shifted(code, 8) as u8), scale, min, out);
            }
            GgmlType::Mxfp4
                if linear.encoding == Encoding::E2m1 && linear.scale.stored == Stored::Exponent =>
            {
                // A power of two from 2^-127 to 2^127: its exponent in F64, with the other bias.
                let exponent = (stretch.scale.to_bits() >> 52) + 127 - 1023;
                pack_mxfp4(codes, exponent as u8, out);
            }
            _ => panic!("`{}` has no packing as {ty}", linear.name),
        }
    }
}
