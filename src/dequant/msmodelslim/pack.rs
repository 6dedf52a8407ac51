//! Codes of a quantized weight as GGUF blocks.

use std::ops::Range;

use super::error::MsModelSlimError;
use super::format::CodeFormat;
use super::grid::Stored;
use super::linear::{Linear, Stretch};
use super::scan::minimum;
use crate::core::GgmlType;
use crate::dequant::Below;
use crate::quant::pack::{BLOCK_ELEMS, pack_mxfp4, pack_q4_0, pack_q4_1, pack_q5_0, pack_q8_0};

/// Returns the bytes of `n_elems` elements of a row.
pub(super) fn n_bytes(ty: GgmlType, n_elems: u64) -> usize {
    n_elems as usize / BLOCK_ELEMS * ty.block_bytes()
}

/// Writes columns of a row, in whole blocks, as blocks of `ty`, a type listed by [`super::scan::Facts::packings`].
///
/// # Errors
/// As [`Linear::stretches`].
///
/// # Panics
/// If the type is not listed.
pub(super) fn pack(
    below: Below<'_>,
    linear: &Linear,
    ty: GgmlType,
    row: u64,
    cols: &Range<u64>,
    out: &mut [u8],
) -> Result<(), MsModelSlimError> {
    linear.stretches(below, row, cols.start, (cols.end - cols.start) as usize, |stretch| {
        let start = n_bytes(ty, stretch.column - cols.start);
        let len = n_bytes(ty, stretch.codes.len() as u64);
        pack_stretch(linear, ty, &stretch, &mut out[start..start + len]);
    })
}

fn pack_stretch(linear: &Linear, ty: GgmlType, stretch: &Stretch<'_>, out: &mut [u8]) {
    let (scale, offset) = (stretch.scale as f32, stretch.offset);
    // Planning checked that the results fit the type's codes, and that offsets are integers where required.
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
                if linear.format == CodeFormat::E2m1 && linear.scale.stored == Stored::Exponent =>
            {
                // A power of two from 2^-127 to 2^127: its exponent in F64, with the other bias.
                let exponent = (stretch.scale.to_bits() >> 52) + 127 - 1023;
                pack_mxfp4(codes, exponent as u8, out);
            }
            _ => panic!("`{}` has no packing as {ty}", linear.name),
        }
    }
}
