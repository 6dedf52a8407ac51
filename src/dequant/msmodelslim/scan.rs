//! Properties of the scales and offsets of a weight, determined while planning: whether they are finite, and which
//! block types they allow.

use super::error::MsModelSlimError;
use super::format::CodeFormat;
use super::grid::{Grid, Stored};
use super::labelled::Labelled;
use super::linear::Linear;
use super::module::Module;
use crate::core::little_endian::u64s;
use crate::core::{GgmlType, Packing};
use crate::dequant::Below;
use crate::quant::pack::{BLOCK_ELEMS, f16_error};

/// Number of elements that are read at a time.
const STEP: u64 = 1 << 14;

/// Largest relative error of a scale in F16 (it keeps at least four bits); other weights are converted through
/// floats.
const MAX_SCALE_ERROR: f32 = 1.0 / 16.0;

/// Properties of the scales and offsets of a weight.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Largest relative error of a scale in F16.
    scale_error: f32,
    /// Largest relative error of a minimum in F16, as Q4_1 needs it.
    min_error: f32,
    /// Smallest and largest offset, as subtracted; `None` if all are zero.
    pub(super) offsets: Option<(f32, f32)>,
    /// True if all offsets are integers.
    is_integral: bool,
    /// Smallest and largest exponent byte.
    exponents: (f64, f64),
    /// Number of scales that are zero.
    pub(super) n_zero: u64,
    /// Number of negative scales.
    pub(super) n_negative: u64,
}

/// Calls `visit` for every number of a grid.
fn each(
    below: Below<'_>,
    grid: &Grid,
    n: u64,
    mut visit: impl FnMut(u64, f64) -> Result<(), MsModelSlimError>,
) -> Result<(), MsModelSlimError> {
    let mut values = Vec::new();
    for first in (0..n).step_by(STEP as usize) {
        grid.read(below, first..n.min(first + STEP), &mut values)?;
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
pub(super) fn check(below: Below<'_>, grid: &Grid) -> Result<(), MsModelSlimError> {
    let meta = below.meta(grid.weight);
    let n = meta.shape.n_elems();
    if grid.stored == Stored::Bits {
        for first in (0..n).step_by(STEP as usize) {
            let bad = below.with_elems(grid.weight, first..n.min(first + STEP), |bytes| {
                u64s(bytes).enumerate().find(|(_, word)| word >> 32 != 0)
            })?;
            if let Some((at, value)) = bad {
                let (tensor, index) = (meta.name.clone(), first + at as u64);
                return Err(MsModelSlimError::HighBits { tensor, index, value });
            }
        }
    }
    each(below, grid, n, |index, value| {
        if value.is_finite() {
            return Ok(());
        }
        Err(MsModelSlimError::NonFinite { tensor: meta.name.clone(), index, value })
    })
}

impl Facts {
    /// Reads all scales and offsets.
    ///
    /// Offsets that are all zero are removed from the weight, and replaced by the offsets of a second stage, if there
    /// is one.
    ///
    /// # Errors
    /// Numbers that are not finite; offsets of a symmetric type; the source failed.
    pub(super) fn gather(
        tensors: &Labelled<'_>,
        module: &Module<'_>,
        linear: &mut Linear,
    ) -> Result<Self, MsModelSlimError> {
        let below = tensors.below;
        let mut facts = Self { exponents: (f64::INFINITY, 0.0), is_integral: true, ..Self::default() };
        check(below, &linear.scale)?;
        if let Some(second) = &linear.second {
            check(below, second)?;
        }
        if let Some(offset) = linear.offset.take() {
            check(below, &offset)?;
            let found = first_non_zero(below, &offset)?;
            match found {
                Some((index, value)) if !module.label.needs_offset() => {
                    let tensor = below.meta(offset.weight).name.clone();
                    let label = module.text.to_owned();
                    return Err(MsModelSlimError::OffsetOfSymmetric { tensor, label, index, value });
                }
                Some(_) => linear.offset = Some(offset),
                None => {}
            }
        }
        if let Some(offset) = module.second_offset(tensors, linear)? {
            check(below, &offset)?;
            linear.offset = first_non_zero(below, &offset)?.map(|_| offset);
        }
        for row in 0..linear.n_rows() {
            linear.scales(below, row, |scale, offset| facts.add(scale, offset))?;
        }
        if linear.offset.is_none() {
            facts.offsets = None;
        }
        Ok(facts)
    }

    fn add(&mut self, scale: f64, offset: f32) {
        self.scale_error = self.scale_error.max(f16_error(scale as f32));
        self.min_error = self.min_error.max(f16_error(minimum(scale, offset)));
        let (low, high) = self.offsets.unwrap_or((offset, offset));
        self.offsets = Some((low.min(offset), high.max(offset)));
        self.is_integral &= offset == offset.trunc();
        self.exponents = (self.exponents.0.min(scale), self.exponents.1.max(scale));
        self.n_zero += u64::from(scale == 0.0);
        self.n_negative += u64::from(scale < 0.0);
    }

    /// Returns the types that can hold the weight, best first.
    ///
    /// # Errors
    /// As [`Linear::stretches`].
    pub(super) fn packings(
        &self,
        below: Below<'_>,
        linear: &Linear,
    ) -> Result<Vec<Packing>, MsModelSlimError> {
        if linear.columns.is_some() {
            return Ok(Vec::new());
        }
        let block = BLOCK_ELEMS as u64;
        let has_blocks = linear.n_cols().is_multiple_of(block) && linear.has_groups_of(block);
        let mut found = Vec::new();
        if linear.format.is_integer() && has_blocks {
            found = self.integer_packings(below, linear)?;
        } else if linear.scale.stored == Stored::Exponent && linear.second.is_none() {
            if linear.format == CodeFormat::E2m1 && has_blocks {
                found.push(Packing::exact(GgmlType::Mxfp4));
            }
            found.extend(self.float_packings(linear.format));
        }
        found.retain(|packing| packing.scale_error <= MAX_SCALE_ERROR);
        Ok(found)
    }

    fn integer_packings(&self, below: Below<'_>, linear: &Linear) -> Result<Vec<Packing>, MsModelSlimError> {
        let (low, high) = match (linear.format, self.offsets) {
            (CodeFormat::Int8, Some(_)) if self.is_integral => {
                if reaches_beyond(below, linear, -128.0, 127.0)? { (-383.0, 382.0) } else { (-128.0, 127.0) }
            }
            (CodeFormat::Int8, None) => (-128.0, 127.0),
            (_, offsets) if linear.format.is_four_bit() => {
                let (least, most) = offsets.unwrap_or((0.0, 0.0));
                (-8.0 - most, 7.0 - least)
            }
            _ => return Ok(Vec::new()),
        };
        let fits = |min: f32, max: f32| self.is_integral && low >= min && high <= max;
        let scale = self.scale_error;
        let mut found = Vec::new();
        if linear.format.is_four_bit() {
            if fits(-8.0, 7.0) {
                found.push(Packing::rounded(GgmlType::Q4_0, scale));
            }
            found.push(Packing::rounded(GgmlType::Q4_1, scale.max(self.min_error)));
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
    fn float_packings(&self, format: CodeFormat) -> Vec<Packing> {
        // Largest magnitude and smallest step of the code format.
        let (largest, step) = if format == CodeFormat::E2m1 { (6.0, 0.5) } else { (448.0, 2f64.powi(-9)) };
        let (least, most) = self.exponents;
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
}

/// Returns the minimum of Q4_1 for four-bit codes, which are stored with 8 added.
pub(super) fn minimum(scale: f64, offset: f32) -> f32 {
    (-f64::from(offset + 8.0) * scale) as f32
}

fn first_non_zero(below: Below<'_>, grid: &Grid) -> Result<Option<(u64, f64)>, MsModelSlimError> {
    let mut found = None;
    each(below, grid, below.meta(grid.weight).shape.n_elems(), |index, value| {
        if value != 0.0 && found.is_none() {
            found = Some((index, value));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns true if any code minus its offset is outside `min ..= max`.
fn reaches_beyond(below: Below<'_>, linear: &Linear, min: f32, max: f32) -> Result<bool, MsModelSlimError> {
    let n_cols = linear.n_cols() as usize;
    for row in 0..linear.n_rows() {
        let mut is_beyond = false;
        linear.stretches(below, row, 0, n_cols, |stretch| {
            let codes = stretch.codes.iter().map(|code| f32::from(code.cast_signed()) - stretch.offset);
            is_beyond |= codes.into_iter().any(|code| code < min || code > max);
        })?;
        if is_beyond {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if the codes of sampled rows are much better centred around zero with the other sign of the offsets.
///
/// # Errors
/// As [`Linear::stretches`].
pub(super) fn other_sign_fits(below: Below<'_>, linear: &Linear) -> Result<bool, MsModelSlimError> {
    const ROWS: u64 = 64;
    let n_cols = linear.n_cols() as usize;
    let (mut chosen, mut other) = (0.0, 0.0);
    for row in (0..linear.n_rows()).step_by((linear.n_rows() / ROWS).max(1) as usize) {
        linear.stretches(below, row, 0, n_cols, |stretch| {
            let sum: i64 = stretch.codes.iter().map(|code| i64::from(code.cast_signed())).sum();
            let mean = sum as f64 / stretch.codes.len() as f64;
            let offset = f64::from(stretch.offset);
            chosen += (mean - offset).abs();
            other += (mean + offset).abs();
        })?;
    }
    Ok(2.0 * other < chosen)
}
