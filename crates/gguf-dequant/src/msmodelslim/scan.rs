//! Scan of the scales and offsets of a weight while planning: numbers that are not finite, zeros, and a wrong sign.

use super::error::MsModelSlimError;
use super::facts::ScaleFacts;
use super::grid::{NumberFormat, ScaleGrid};
use super::labelled::Labelled;
use super::linear::Linear;
use super::module::LabelledModule;
use crate::InnerSource;
use gguf_core::little_endian::u64s;

/// Number of elements that are read at a time.
const STEP: u64 = 1 << 14;

/// Calls `visit` for every number of a grid.
fn each(
    inner: InnerSource<'_>,
    grid: &ScaleGrid,
    n: u64,
    mut visit: impl FnMut(u64, f64) -> Result<(), MsModelSlimError>,
) -> Result<(), MsModelSlimError> {
    let mut values = Vec::new();
    for first in (0..n).step_by(STEP as usize) {
        grid.read(inner, first..n.min(first + STEP), &mut values)?;
        for (at, &value) in values.iter().enumerate() {
            visit(first + at as u64, value)?;
        }
    }
    Ok(())
}

/// Checks that every number of a grid is finite.
///
/// # Errors
/// A number is not finite, or has more than an F32 in its 64 bits; the source failed.
pub(super) fn check(inner: InnerSource<'_>, grid: &ScaleGrid) -> Result<(), MsModelSlimError> {
    let meta = inner.meta(grid.weight);
    let n = meta.shape.n_elems();
    if grid.stored == NumberFormat::Bits {
        for first in (0..n).step_by(STEP as usize) {
            let bad = inner.with_elems(grid.weight, first..n.min(first + STEP), |bytes| {
                u64s(bytes).enumerate().find(|(_, word)| word >> 32 != 0)
            })?;
            if let Some((at, value)) = bad {
                let (tensor, index) = (meta.name.clone(), first + at as u64);
                return Err(MsModelSlimError::HighBits { tensor, index, value });
            }
        }
    }
    each(inner, grid, n, |index, value| {
        if value.is_finite() {
            return Ok(());
        }
        Err(MsModelSlimError::NonFinite { tensor: meta.name.clone(), index, value })
    })
}

/// Returns a weight with the properties of its scales and offsets, and without offsets that are all zero.
///
/// # Errors
/// Numbers that are not finite; offsets of a symmetric type; the source failed.
pub(super) fn gathered(
    tensors: &Labelled<'_>,
    module: &LabelledModule<'_>,
    mut linear: Linear,
) -> Result<Linear, MsModelSlimError> {
    linear.facts = gather(tensors, module, &mut linear)?;
    linear.members = std::iter::once(linear.codes).chain(linear.grids().map(|grid| grid.weight)).collect();
    Ok(linear)
}

/// Reads all scales and offsets.
///
/// Offsets that are all zero are removed from the weight, and replaced by the offsets of a second stage, if there
/// is one.
fn gather(
    tensors: &Labelled<'_>,
    module: &LabelledModule<'_>,
    linear: &mut Linear,
) -> Result<ScaleFacts, MsModelSlimError> {
    let inner = tensors.inner;
    let mut facts =
        ScaleFacts { exponents: (f64::INFINITY, 0.0), is_integral: true, ..ScaleFacts::default() };
    check(inner, &linear.scale)?;
    if let Some(second) = &linear.second {
        check(inner, second)?;
    }
    if let Some(offset) = linear.offset.take() {
        check(inner, &offset)?;
        let found = first_non_zero(inner, &offset)?;
        match found {
            Some((index, value)) if !module.label.needs_offset() => {
                let tensor = inner.meta(offset.weight).name.clone();
                let label = module.text.to_owned();
                return Err(MsModelSlimError::OffsetOfSymmetric { tensor, label, index, value });
            }
            Some(_) => linear.offset = Some(offset),
            None => {}
        }
    }
    if let Some(offset) = module.second_offset(tensors, linear)? {
        check(inner, &offset)?;
        linear.offset = first_non_zero(inner, &offset)?.map(|_| offset);
    }
    for row in 0..linear.n_rows() {
        linear.scales(inner, row, |scale, offset| facts.add(scale, offset))?;
    }
    if linear.offset.is_none() {
        facts.offsets = None;
    }
    Ok(facts)
}

fn first_non_zero(inner: InnerSource<'_>, grid: &ScaleGrid) -> Result<Option<(u64, f64)>, MsModelSlimError> {
    let mut found = None;
    each(inner, grid, inner.meta(grid.weight).shape.n_elems(), |index, value| {
        if value != 0.0 && found.is_none() {
            found = Some((index, value));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns true if the codes of sampled rows are much better centred around zero with the other sign of the offsets.
pub(super) fn other_sign_fits(inner: InnerSource<'_>, linear: &Linear) -> Result<bool, MsModelSlimError> {
    const ROWS: u64 = 64;
    let n_cols = linear.n_cols() as usize;
    let (mut chosen, mut other) = (0.0, 0.0);
    for row in (0..linear.n_rows()).step_by((linear.n_rows() / ROWS).max(1) as usize) {
        linear.stretches(inner, row, 0, n_cols, |stretch| {
            let sum: i64 = stretch.codes.iter().map(|code| i64::from(code.cast_signed())).sum();
            let mean = sum as f64 / stretch.codes.len() as f64;
            let offset = f64::from(stretch.offset);
            chosen += (mean - offset).abs();
            other += (mean + offset).abs();
        })?;
    }
    Ok(2.0 * other < chosen)
}
