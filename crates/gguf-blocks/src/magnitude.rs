//! Checks that a type can hold the magnitudes of rows. Most types scale their blocks by an F16 and search scales by
//! sums of powers of the values: rows far from typical weights become zeros, or are clipped at the type's limit.

use std::cell::Cell;
use std::ops::RangeInclusive;

use gguf_core::GgmlType;
use gguf_core::simd::{SimdLevel, VectorLoop};

use super::codec::SourceRows;
use super::{QuantError, codec, importance};

/// Range of a row's largest magnitude in which the type is as accurate as anywhere: rows outside are decoded again and
/// checked. Every type was measured from 1e-45 to 3e38. NVFP4, whose scales are 8-bit floats, has the narrowest range,
/// followed by IQ4_XS and Q6_K.
fn ordinary(ty: GgmlType) -> RangeInclusive<f32> {
    if ty == GgmlType::Nvfp4 { 0.05..=2e3 } else { 1e-3..=2e3 }
}

/// Range of the largest importance weight. Weights are multiplied with squares of the values.
const ORDINARY_IMPORTANCE: RangeInclusive<f32> = 1e-9..=1e9;

/// Factor above which a block is lost: its relative error over that of the same block at ordinary magnitude.
const WORSE: f64 = 1.5;
/// Relative error that is allowed in addition for large values.
const GRANTED_LARGE: f64 = 0.05;
/// Relative error that is allowed in addition for small values: the precision of F16 decreases gradually.
const GRANTED_SMALL: f64 = 0.25;

/// Rows that are not zero and became zeros or nearly, because their values are too small for the type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SmallRows {
    /// Number of such rows.
    pub n_rows: u64,
    /// The first such row.
    pub first: Option<SmallRow>,
}

/// A row that is too small for a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmallRow {
    /// Index of the row.
    pub row: u64,
    /// Largest magnitude of the row.
    pub largest: f32,
}

impl SmallRows {
    /// Adds the result of other rows of the same tensor; `first_row` is the row that their indices count from.
    pub fn add(&mut self, other: Self, first_row: u64) {
        self.n_rows += other.n_rows;
        let theirs = other.first.map(|found| SmallRow { row: found.row + first_row, ..found });
        self.first = match (self.first, theirs) {
            (Some(ours), Some(theirs)) if theirs.row < ours.row => Some(theirs),
            (ours, theirs) => ours.or(theirs),
        };
    }
}

/// Returns true if the type holds all rows of `n_cols` columns as accurately as any others, by their largest
/// magnitudes. Then all values are finite, no row is zero, and [`check_rows`] is needed only if importance weights are
/// unusual.
///
/// Takes one pass at the level's full width. If this is true, [`first_non_finite`](super::first_non_finite) need not be
/// called.
pub fn are_ordinary_rows(ty: GgmlType, level: SimdLevel, values: &[f32], n_cols: usize) -> bool {
    let ordinary = ordinary(ty);
    let (least, most) = (ordinary.start().to_bits(), ordinary.end().to_bits());
    // Without the sign, floats compare like integers. The first value that is large enough is near the start of the
    // row.
    let has_large = |row: &[f32]| row.iter().any(|value| value.to_bits() & 0x7fff_ffff >= least);
    level.vectorize(LargestBits { values }) <= most && values.chunks(n_cols.max(1)).all(has_large)
}

/// Computes the bits of the largest magnitude, which are above infinity's if there is a NaN.
struct LargestBits<'a> {
    values: &'a [f32],
}

impl VectorLoop for LargestBits<'_> {
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        // More than a vector at a time, so that one maximum need not wait for the other; signed, because the baseline
        // has only signed comparisons.
        const N: usize = 64;
        let mut lanes = [0; N];
        let (chunks, rest) = self.values.as_chunks::<N>();
        for chunk in chunks {
            for (largest, value) in lanes.iter_mut().zip(chunk) {
                *largest = larger(*largest, *value);
            }
        }
        let largest = rest.iter().fold(0, |largest, value| larger(largest, *value));
        lanes.into_iter().fold(largest, i32::max) as u32
    }
}

/// Returns the larger of some bits and those of a value without its sign.
#[inline(always)]
fn larger(largest: i32, value: f32) -> i32 {
    let bits = (value.to_bits() & 0x7fff_ffff) as i32;
    if bits > largest { bits } else { largest }
}

/// Largest magnitudes of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Smallest of the rows' largest magnitudes that is not zero; infinite if all are zeros.
    pub smallest: f32,
    /// Largest magnitude of all rows; NaN or infinite if some value is.
    pub largest: f32,
}

impl Extent {
    /// Computes the extent of rows of `n_cols` columns.
    pub fn of(values: &[f32], n_cols: usize) -> Self {
        let mut extent = Self { smallest: f32::INFINITY, largest: 0.0 };
        for row in values.chunks(n_cols.max(1)) {
            let largest = magnitude(row);
            if largest != 0.0 && largest < extent.smallest {
                extent.smallest = largest;
            }
            if largest > extent.largest || largest.is_nan() {
                extent.largest = largest;
            }
            if extent.largest.is_nan() {
                break;
            }
        }
        extent
    }

    /// Returns true if all values are finite.
    pub fn is_finite(&self) -> bool {
        self.largest.is_finite()
    }

    /// Returns true if the type holds such rows; then [`check_rows`] is needed only if importance weights are unusual.
    pub fn is_ordinary(&self, ty: GgmlType) -> bool {
        let ordinary = ordinary(ty);
        self.largest <= *ordinary.end() && self.smallest >= *ordinary.start()
    }
}

/// Returns the largest magnitude; NaN if there is one, else infinity if there is one.
fn magnitude(values: &[f32]) -> f32 {
    f32::from_bits(LargestBits { values }.run())
}

/// Returns true if sums of products of importance weights with ordinary values neither overflow nor vanish.
pub fn is_ordinary_importance(weights: &[f32]) -> bool {
    let largest = magnitude(weights);
    largest == 0.0 || ORDINARY_IMPORTANCE.contains(&largest)
}

/// Checks that the blocks written by [`quantize_rows`](super::quantize_rows) represent the rows.
///
/// Rows of ordinary magnitude are skipped. The others are decoded, and where the error is out of proportion, compared
/// with the same values at ordinary magnitude.
///
/// # Shapes
/// As [`quantize_rows`](super::quantize_rows).
///
/// # Errors
/// [`QuantError::Magnitude`] for values that became zeros, were clipped or are not finite because they are too large;
/// [`QuantError::ImportanceMagnitude`] for weights that made the search for scales fail.
pub fn check_rows(
    ty: GgmlType,
    level: SimdLevel,
    n_cols: usize,
    src: &[f32],
    imatrix: Option<&[f32]>,
    blocks: &[u8],
) -> Result<SmallRows, QuantError> {
    let mut small = SmallRows::default();
    if matches!(ty, GgmlType::F32 | GgmlType::F64) || n_cols == 0 {
        return Ok(small);
    }
    let imatrix = imatrix.filter(|_| ty.info().imatrix != gguf_core::ImatrixNeed::Ignored);
    imatrix.map(importance::check).transpose()?;
    let odd_importance = imatrix.is_some_and(|weights| !is_ordinary_importance(weights));
    let row_bytes = n_cols / ty.block_elems() * ty.block_bytes();
    let check = LossCheck { ty, level, imatrix };
    let ordinary = ordinary(ty);
    let mut back = Vec::new();
    for (at, (row, bytes)) in src.chunks_exact(n_cols).zip(blocks.chunks_exact(row_bytes.max(1))).enumerate()
    {
        let largest = magnitude(row);
        if largest == 0.0 || !odd_importance && ordinary.contains(&largest) {
            continue;
        }
        back.resize(n_cols, 0.0);
        super::dequantize(ty, level, bytes, &mut back)?;
        if largest > *ordinary.end() {
            if let Some((column, largest)) = check.large(row, &back) {
                return Err(QuantError::Magnitude { ty, row: at, column, largest });
            }
        } else if largest < *ordinary.start() && check.is_lost(row, &back, GRANTED_SMALL) {
            small.add(SmallRows { n_rows: 1, first: Some(SmallRow { row: 0, largest }) }, at as u64);
        } else if odd_importance && check.is_lost(row, &back, GRANTED_SMALL) {
            let largest = imatrix.map_or(0.0, magnitude);
            return Err(QuantError::ImportanceMagnitude { ty, row: at, largest });
        }
    }
    Ok(small)
}

/// Compares rows with their decoded blocks.
struct LossCheck<'a> {
    ty: GgmlType,
    level: SimdLevel,
    imatrix: Option<&'a [f32]>,
}

impl LossCheck<'_> {
    /// Returns column and largest magnitude of the first block with large values that is lost.
    fn large(&self, row: &[f32], back: &[f32]) -> Option<(usize, f32)> {
        // Plain types have no blocks; the whole row is checked at once.
        let n = if self.ty.is_quantized() { self.ty.block_elems() } else { row.len() };
        let pairs = row.chunks(n).zip(back.chunks(n)).enumerate();
        for (index, (block, back)) in pairs {
            let largest = magnitude(block);
            if largest <= *ordinary(self.ty).end() {
                continue;
            }
            let found = relative_error(block, back);
            let weights = self.imatrix.map(|weights| &weights[index * n..(index + 1) * n]);
            if found > 2.0 * GRANTED_LARGE && found > WORSE * self.at_ordinary(block, weights) + GRANTED_LARGE
            {
                return Some((index * n, largest));
            }
        }
        None
    }

    fn is_lost(&self, row: &[f32], back: &[f32], granted: f64) -> bool {
        let found = relative_error(row, back);
        back.iter().all(|&value| value == 0.0)
            || (found > granted && found > WORSE * self.at_ordinary(row, self.imatrix) + granted)
    }

    /// Returns the error of the same values at ordinary magnitude: quantizers are invariant to powers of two.
    fn at_ordinary(&self, values: &[f32], imatrix: Option<&[f32]>) -> f64 {
        let scaled = |values: &[f32]| -> Vec<f32> {
            let largest = f64::from(magnitude(values));
            let factor = if largest > 0.0 { (-largest.log2().floor()).exp2() } else { 1.0 };
            values.iter().map(|&value| (f64::from(value) * factor) as f32).collect()
        };
        let (values, weights) = (scaled(values), imatrix.map(scaled));
        let Some(quantize) = codec(self.ty).and_then(|codec| codec.quantize) else { return 1.0 };
        let mut bytes = vec![0; values.len() / self.ty.block_elems() * self.ty.block_bytes()];
        let refused = Cell::new(None);
        let rows =
            SourceRows { n_cols: values.len(), src: &values, imatrix: weights.as_deref(), refused: &refused };
        quantize(self.level, &rows, &mut bytes);
        let mut back = vec![0.0; values.len()];
        match super::dequantize(self.ty, self.level, &bytes, &mut back) {
            Ok(()) if refused.get().is_none() => relative_error(&values, &back),
            _ => 1.0,
        }
    }
}

/// Returns the root mean square of the differences over that of the values; infinite if the result is not finite.
fn relative_error(values: &[f32], back: &[f32]) -> f64 {
    let (mut error, mut square) = (0.0, 0.0);
    for (&value, &back) in values.iter().zip(back) {
        let (value, back) = (f64::from(value), f64::from(back));
        error += (value - back) * (value - back);
        square += value * value;
    }
    let ratio = (error / square).sqrt();
    if ratio.is_finite() { ratio } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_those_of_rows_and_see_what_is_no_number() {
        let extent = Extent::of(&[0.0, -3.0, 0.5, 0.25, 0.0, -0.0], 2);
        assert_eq!(extent, Extent { smallest: 0.5, largest: 3.0 });
        assert!(extent.is_ordinary(GgmlType::Q6K) && Extent::of(&[0.0; 4], 2).is_ordinary(GgmlType::Nvfp4));
        assert!(!Extent::of(&[1.0, 1.0, 1e-20, 0.0], 2).is_ordinary(GgmlType::Q6K));
        assert!(!Extent::of(&[1.0, 1e9], 2).is_ordinary(GgmlType::Q6K));
        for value in [f32::NAN, -f32::NAN, f32::NEG_INFINITY] {
            assert!(!Extent::of(&[1.0, value, 2.0, 3.0], 2).is_finite(), "{value}");
            assert!(!Extent::of(&[1.0, value, 2.0, 3.0], 2).is_ordinary(GgmlType::Q6K), "{value}");
        }
    }

    #[test]
    fn rows_are_ordinary_or_not_at_every_level_wherever_the_odd_value_is() {
        let n_cols = 96;
        for level in SimdLevel::available() {
            let is_ordinary = |values: &[f32]| are_ordinary_rows(GgmlType::Q6K, level, values, n_cols);
            let mut values: Vec<f32> = (0..3 * n_cols).map(|at| 0.5 - (at % 7) as f32).collect();
            for at in 0..values.len() {
                assert!(is_ordinary(&values), "{level}");
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2001.0, -3e38] {
                    let before = std::mem::replace(&mut values[at], bad);
                    assert!(!is_ordinary(&values), "{bad} at {at} at {level}");
                    values[at] = before;
                }
            }
            for row in 0..3 {
                for small in [0.0, -0.0, 9e-4, -9e-4, 1e-45] {
                    let mut values = values.clone();
                    values[row * n_cols..][..n_cols].fill(small);
                    assert!(!is_ordinary(&values), "row {row} of {small} at {level}");
                    for at in row * n_cols..(row + 1) * n_cols {
                        let before = std::mem::replace(&mut values[at], -1e-3);
                        assert!(is_ordinary(&values), "{small} but at {at} at {level}");
                        values[at] = before;
                    }
                }
            }
            assert!(is_ordinary(&[]) && !is_ordinary(&[0.0; 5]) && is_ordinary(&[0.0, -2e3]), "{level}");
        }
    }

    #[test]
    fn the_first_small_row_is_the_one_of_lowest_index_in_whatever_order_they_come() {
        let one = |row| SmallRows { n_rows: 1, first: Some(SmallRow { row, largest: 1e-20 }) };
        let mut sum = SmallRows::default();
        sum.add(one(3), 100);
        sum.add(one(1), 10);
        sum.add(SmallRows::default(), 0);
        assert_eq!((sum.n_rows, sum.first.unwrap().row), (2, 11));
    }
}
