//! Codes of a quantized weight as GGUF blocks: the types that can hold them, and their bytes.

use std::ops::Range;

use super::error::MsModelSlimError;
use super::facts::{ScaleFacts, minimum};
use super::format::CodeFormat;
use super::grid::NumberFormat;
use super::linear::{Linear, ScaledRun};
use crate::InnerSource;
use gguf_blocks::pack::{BLOCK_ELEMS, pack_mxfp4, pack_q4_0, pack_q4_1, pack_q5_0, pack_q8_0};
use gguf_core::{GgmlType, Packing};

/// Largest relative error of a scale in F16 (it keeps at least four bits); other weights are converted through
/// floats.
const MAX_SCALE_ERROR: f32 = 1.0 / 16.0;

/// Returns the types that can hold the weight, best first.
pub(super) fn packings(inner: InnerSource<'_>, linear: &Linear) -> Result<Vec<Packing>, MsModelSlimError> {
    if linear.columns.is_some() {
        return Ok(Vec::new());
    }
    let block = BLOCK_ELEMS as u64;
    let has_blocks = linear.n_cols().is_multiple_of(block) && linear.has_groups_of(block);
    let mut found = Vec::new();
    if linear.format.is_integer() && has_blocks {
        found = integer_packings(inner, linear)?;
    } else if linear.scale.stored == NumberFormat::Exponent && linear.second.is_none() {
        if linear.format == CodeFormat::E2m1 && has_blocks {
            found.push(Packing::exact(GgmlType::Mxfp4));
        }
        found.extend(float_packings(&linear.facts, linear.format));
    }
    found.retain(|packing| packing.scale_error <= MAX_SCALE_ERROR);
    Ok(found)
}

fn integer_packings(inner: InnerSource<'_>, linear: &Linear) -> Result<Vec<Packing>, MsModelSlimError> {
    let facts = &linear.facts;
    let (low, high) =
        match (linear.format, facts.offsets) {
            (CodeFormat::Int8, Some(_)) if facts.is_integral => {
                if reaches_beyond(inner, linear, -128.0, 127.0)? { (-383.0, 382.0) } else { (-128.0, 127.0) }
            }
            (CodeFormat::Int8, None) => (-128.0, 127.0),
            (_, offsets) if linear.format.is_four_bit() => {
                let (least, most) = offsets.unwrap_or((0.0, 0.0));
                (-8.0 - most, 7.0 - least)
            }
            _ => return Ok(Vec::new()),
        };
    let fits = |min: f32, max: f32| facts.is_integral && low >= min && high <= max;
    let scale = facts.scale_error;
    let mut found = Vec::new();
    if linear.format.is_four_bit() {
        if fits(-8.0, 7.0) {
            found.push(Packing::rounded(GgmlType::Q4_0, scale));
        }
        found.push(Packing::rounded(GgmlType::Q4_1, scale.max(facts.min_error)));
        if fits(-16.0, 15.0) {
            found.push(Packing::rounded(GgmlType::Q5_0, scale));
        }
    }
    if fits(-128.0, 127.0) {
        found.push(Packing::rounded(GgmlType::Q8_0, scale));
    }
    Ok(found)
}

/// Returns the narrow float types that hold every product of a code and a power-of-two scale: the highest and
/// lowest bit must be in range.
fn float_packings(facts: &ScaleFacts, format: CodeFormat) -> Vec<Packing> {
    // Largest magnitude and smallest step of the code format.
    let (largest, step) = if format == CodeFormat::E2m1 { (6.0, 0.5) } else { (448.0, 2f64.powi(-9)) };
    let (least, most) = facts.exponents;
    let holds = |max: f64, min: f64| most * largest <= max && least * step >= min;
    let mut found = Vec::new();
    if holds(f64::from(f32::from_bits(0x7f7f_0000)), 2f64.powi(-133)) {
        found.push(Packing::exact(GgmlType::Bf16));
    }
    if holds(65504.0, 2f64.powi(-24)) {
        found.push(Packing::exact(GgmlType::F16));
    }
    found
}

/// Returns true if any code minus its offset is outside `min ..= max`.
fn reaches_beyond(
    inner: InnerSource<'_>,
    linear: &Linear,
    min: f32,
    max: f32,
) -> Result<bool, MsModelSlimError> {
    let n_cols = linear.n_cols() as usize;
    for row in 0..linear.n_rows() {
        let mut is_beyond = false;
        linear.stretches(inner, row, 0, n_cols, |stretch| {
            let codes = stretch.codes.iter().map(|code| f32::from(code.cast_signed()) - stretch.offset);
            is_beyond |= codes.into_iter().any(|code| code < min || code > max);
        })?;
        if is_beyond {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the bytes of `n_elems` elements of a row.
pub(super) fn n_bytes(ty: GgmlType, n_elems: u64) -> usize {
    n_elems as usize / BLOCK_ELEMS * ty.block_bytes()
}

/// Writes columns of a row, in whole blocks, as blocks of `ty`, a type listed by [`packings`].
///
/// # Panics
/// If the type is not listed.
pub(super) fn pack(
    inner: InnerSource<'_>,
    linear: &Linear,
    ty: GgmlType,
    row: u64,
    cols: &Range<u64>,
    out: &mut [u8],
) -> Result<(), MsModelSlimError> {
    linear.stretches(inner, row, cols.start, (cols.end - cols.start) as usize, |stretch| {
        let start = n_bytes(ty, stretch.column - cols.start);
        let len = n_bytes(ty, stretch.codes.len() as u64);
        pack_stretch(linear, ty, &stretch, &mut out[start..start + len]);
    })
}

fn pack_stretch(linear: &Linear, ty: GgmlType, stretch: &ScaledRun<'_>, out: &mut [u8]) {
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
                if linear.format == CodeFormat::E2m1 && linear.scale.stored == NumberFormat::Exponent =>
            {
                // A power of two from 2^-127 to 2^127: its exponent in F64, with the other bias.
                let exponent = (stretch.scale.to_bits() >> 52) + 127 - 1023;
                pack_mxfp4(codes, exponent as u8, out);
            }
            _ => panic!("`{}` has no packing as {ty}", linear.name),
        }
    }
}
