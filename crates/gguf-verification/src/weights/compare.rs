//! Comparison of the rows of one tensor with the rows that they were made from.

use crate::weights::limits::{ErrorLimits, STRICT_RATIO, exceeds};
use crate::weights::tensor::{BadBlock, BadRow, FirstDifference, Marked, TensorTally};
use crate::weights::tensor_reader::TensorReader;
use gguf_blocks::{can_quantize, first_non_finite, quantize_rows};
use gguf_core::comparison::ComparisonSums;
use gguf_core::scratch::renew;
use gguf_core::{GgmlType, ImatrixNeed};
use gguf_engine::EngineError;

/// Pair of tensors: the coarser one, whose codes are judged, and the finer one, from which they are made.
#[derive(Clone)]
pub(crate) struct Comparison<'a> {
    pub(crate) coded: TensorReader<'a>,
    pub(crate) reference: TensorReader<'a>,
    pub(crate) limits: ErrorLimits,
}

/// Buffers of a thread.
#[derive(Default)]
pub(crate) struct RowBuffers {
    coded: Vec<u8>,
    bytes: Vec<u8>,
    own: Vec<u8>,
    reference: Vec<f32>,
    own_row: Vec<f32>,
    row: Vec<f32>,
    flat: Vec<f32>,
}

/// Result of some rows, along with the bad blocks by the stricter limit that applies if nearly all blocks are
/// reproduced.
#[derive(Default)]
pub(crate) struct RowsResult {
    pub(crate) tally: TensorTally,
    pub(crate) strict: Marked<BadBlock>,
}

impl Comparison<'_> {
    pub(crate) fn rows(
        &self,
        first: u64,
        n: u64,
        buffers: &mut RowBuffers,
    ) -> Result<RowsResult, EngineError> {
        let ty = self.coded.meta().ty;
        let n_cols = self.coded.n_cols()?;
        self.reference.floats(first, n, &mut buffers.bytes, &mut buffers.reference)?;
        for (at, row) in buffers.reference.chunks_mut(n_cols.max(1)).enumerate() {
            let row_number = first + at as u64;
            let factor = self.reference.factor(row_number) / self.coded.factor(row_number);
            if factor != 1.0 {
                for value in row.iter_mut() {
                    *value *= factor;
                }
            }
        }
        let coded = self.coded.bytes(first, n, &mut buffers.coded)?;
        let mut both = RowsResult::default();
        renew(&mut buffers.own, coded.len());
        let (own, reference) = (&mut buffers.own, &buffers.reference);
        buffers.flat.resize(n_cols, 1.0);
        let flat = (ty.info().imatrix == ImatrixNeed::Required).then_some(buffers.flat.as_slice());
        if ty.is_quantized() && first_non_finite(reference).is_some() {
            both.tally.unjudged = Some("the baseline has values that are not finite".to_owned());
            return Ok(both);
        }
        let is_exact = !ty.is_quantized() && !can_quantize(ty);
        if is_exact || !can_quantize(ty) {
            // Types that no quantizer makes of floats (integers, F64) are compared as they are.
            own.copy_from_slice(coded);
        } else if let Err(error) = quantize_rows(ty, self.coded.level, n_cols, reference, flat, own) {
            both.tally.unjudged = Some(format!("the baseline's values: {error}"));
            return Ok(both);
        }
        let mut detour = Detour { n_left: PATIENCE, flat };
        let row_bytes = coded.len() / usize::try_from(n).unwrap_or(1).max(1);
        let rows = coded.chunks(row_bytes.max(1)).zip(own.chunks(row_bytes.max(1)));
        for (at, ((coded, own), reference)) in rows.zip(reference.chunks(n_cols.max(1))).enumerate() {
            let mut row =
                ComparedRow { number: first + at as u64, coded, own, by_detour: Vec::new(), reference };
            if ty.is_quantized() && coded != own {
                row.by_detour = detour.take(self, &row);
            }
            renew(&mut buffers.own_row, n_cols);
            renew(&mut buffers.row, n_cols);
            self.coded.decode(own, &mut buffers.own_row)?;
            let values = if coded == own {
                &buffers.own_row
            } else {
                self.coded.decode(coded, &mut buffers.row)?;
                &buffers.row
            };
            if ty.is_quantized() {
                self.blocks(&row, values, &buffers.own_row, &mut both);
            } else {
                let expected = if is_exact { reference } else { &buffers.own_row };
                self.values(&row, values, expected, &mut both.tally);
            }
        }
        Ok(both)
    }

    fn blocks(&self, row: &ComparedRow<'_>, values: &[f32], own: &[f32], both: &mut RowsResult) {
        let ty = self.coded.meta().ty;
        let (n_elems, n_bytes) = (ty.block_elems(), ty.block_bytes());
        let n_blocks = (row.reference.len() / n_elems).max(1) as f64;
        let usual = row.reference.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n_blocks;
        let (mut file_row, mut own_row) = (ComparisonSums::default(), ComparisonSums::default());
        let tally = &mut both.tally;
        let decoded = values.chunks(n_elems).zip(own.chunks(n_elems)).zip(row.reference.chunks(n_elems));
        let encoded = row.coded.chunks(n_bytes).zip(row.own.chunks(n_bytes));
        for (at, (((values, own), reference), (coded, own_coded))) in decoded.zip(encoded).enumerate() {
            let own_sums = ComparisonSums::of(own, reference);
            let block = at * n_bytes..(at + 1) * n_bytes;
            let is_same = |other: &Vec<u8>| other.get(block.clone()) == Some(coded);
            let is_equal = coded == own_coded || row.by_detour.iter().any(is_same);
            let sums = if is_equal { own_sums } else { ComparisonSums::of(values, reference) };
            file_row.add(&sums);
            own_row.add(&own_sums);
            tally.n_blocks += 1;
            tally.n_equal_blocks += u64::from(is_equal);
            tally.n_by_detour += u64::from(is_equal && coded != own_coded);
            if is_equal {
                tally.histogram.count(1.0);
                continue;
            }
            let granted = self.limits.granted(own_sums.errors, sums.reference, usual);
            let (error, ratio) = (sums.relative_error(), ratio(sums.errors, granted));
            tally.histogram.count(ratio);
            if exceeds(ratio, STRICT_RATIO) {
                let block = BadBlock { row: row.number, block: at as u64, error, ratio, sums };
                if self.limits.is_bad_block(&sums, usual, ratio) {
                    tally.bad_blocks.mark(block.clone());
                }
                both.strict.mark(block);
            }
        }
        tally.file.add(&file_row);
        tally.own.add(&own_row);
        if row.reference.len() > 1 {
            tally.columns.add_row(values, own, row.reference);
        }
        if row.coded != row.own {
            let granted = self.limits.granted(own_row.errors, file_row.reference, 0.0);
            let agree = |factor: f64| stretches_agree(factor, values, own, row.reference);
            tally.bad_rows_of(row.number, &file_row, &own_row, granted, &self.limits, agree);
        }
    }

    /// Compares floats: they are equal, or as near as the rounding of both sides allows.
    fn values(&self, row: &ComparedRow<'_>, values: &[f32], expected: &[f32], tally: &mut TensorTally) {
        let rounding = unit(self.coded.meta().ty) + unit(self.reference.meta().ty);
        let file = ComparisonSums::of(values, row.reference);
        tally.file.add(&file);
        tally.own.add(&ComparisonSums::of(expected, row.reference));
        tally.n_blocks += values.len() as u64;
        let through = |x: f32| [round_to(GgmlType::Bf16, x), round_to(GgmlType::F16, x)];
        let mut n_beyond = 0;
        for (column, ((&x, &e), &r)) in values.iter().zip(expected).zip(row.reference).enumerate() {
            if x == e || (x.is_nan() && e.is_nan()) {
                tally.n_equal_blocks += 1;
                continue;
            }
            tally.n_differing += 1;
            let (distance, size) = (f64::from(x) - f64::from(r), f64::from(r).abs());
            if exceeds(distance.abs(), 1.001 * rounding * size + SUBNORMAL) {
                n_beyond += 1;
            }
            let ty = self.coded.meta().ty;
            for (n, y) in tally.n_through.iter_mut().zip(through(r)) {
                *n += u64::from(round_to(ty, y) == x);
            }
            let difference =
                || FirstDifference { row: row.number, column: column as u64, found: x, expected: e };
            tally.first_difference.get_or_insert_with(difference);
        }
        tally.n_beyond += n_beyond;
        if n_beyond > 0 {
            let error = file.relative_error();
            let factor = is_scaled(&file, 1e-3).then(|| 1.0 / file.slope());
            tally.bad_rows.mark(BadRow { row: row.number, error, ratio: f64::INFINITY, factor });
        }
    }
}

impl TensorTally {
    /// Marks a row whose error is too large, or that is scaled.
    fn bad_rows_of(
        &mut self,
        row: u64,
        file: &ComparisonSums,
        own: &ComparisonSums,
        granted: f64,
        limits: &ErrorLimits,
        agree: impl Fn(f64) -> bool,
    ) {
        let (error, ratio) = (file.relative_error(), ratio(file.errors, granted));
        let own_error = own.relative_error();
        let factor = own.slope() / file.slope();
        let shape = file.shape_error();
        // The error that remains after scaling must be the type's own.
        let is_scaled = limits.shows_row_scales()
            && factor > 0.0
            && factor.ln().abs() > ErrorLimits::row_scale(own_error)
            && shape.powi(2) * file.reference <= 2.25 * granted.max(own.errors)
            && agree(factor);
        if limits.is_bad_row(file, ratio) || is_scaled {
            self.bad_rows.mark(BadRow { row, error, ratio, factor: is_scaled.then_some(factor) });
        }
    }
}

/// Smallest distance of two F16 values; smaller differences between floats are not judged.
const SUBNORMAL: f64 = 6.0e-8;

struct ComparedRow<'a> {
    number: u64,
    coded: &'a [u8],
    own: &'a [u8],
    /// Codes that our quantizer makes of the row after rounding it to F16 and to BF16; empty if they explain nothing.
    by_detour: Vec<Vec<u8>>,
    reference: &'a [f32],
}

/// Number of rows of a chunk without a detour after which the chunk is no longer checked for one.
const PATIENCE: u32 = 4;

/// Quantization by way of a file in F16 or BF16: a near tie in F32 becomes an exact one there, and a block takes
/// another scale.
struct Detour<'a> {
    /// Rows without a result before the check is given up.
    n_left: u32,
    flat: Option<&'a [f32]>,
}

impl Detour<'_> {
    /// Returns the row's codes by way of each type if they explain some of its blocks.
    fn take(&mut self, comparison: &Comparison<'_>, row: &ComparedRow<'_>) -> Vec<Vec<u8>> {
        let ty = comparison.coded.meta().ty;
        let from = comparison.reference.meta().ty;
        if self.n_left == 0 || from.is_quantized() {
            return Vec::new();
        }
        let codes = |through: GgmlType| {
            let values: Vec<f32> = row.reference.iter().map(|&x| round_to(through, x)).collect();
            let mut codes = vec![0; row.coded.len()];
            let is_finite = first_non_finite(&values).is_none();
            let done = is_finite
                && quantize_rows(ty, comparison.coded.level, values.len(), &values, self.flat, &mut codes)
                    .is_ok();
            done.then_some(codes)
        };
        let types = [GgmlType::F16, GgmlType::Bf16].into_iter().filter(|&through| through != from);
        let all: Vec<Vec<u8>> = types.filter_map(codes).collect();
        let n_bytes = ty.block_bytes();
        let blocks = || row.coded.chunks(n_bytes).zip(row.own.chunks(n_bytes)).enumerate();
        let is_explained = |codes: &Vec<u8>| {
            blocks().any(|(at, (coded, own))| {
                coded != own && codes.get(at * n_bytes..(at + 1) * n_bytes) == Some(coded)
            })
        };
        if all.iter().any(is_explained) {
            self.n_left = PATIENCE;
            return all;
        }
        self.n_left -= 1;
        Vec::new()
    }
}

/// Number of consecutive values of a row whose scale is estimated separately.
const STRETCH: usize = 32;
/// Share of the stretches that must have the row's scale. Rows that were multiplied reach 0.75 and more, in every type
/// and with importance that varies by e^3. Rows that only such importance moved reach one half.
const AGREEING: f64 = 0.7;

/// Returns true if a row is multiplied by `factor` over its whole length. An importance matrix that favours a few
/// columns moves only the scale of the blocks that contain them, and with it that of the row.
fn stretches_agree(factor: f64, values: &[f32], own: &[f32], reference: &[f32]) -> bool {
    let expected = factor.ln();
    let stretches = values.chunks(STRETCH).zip(own.chunks(STRETCH)).zip(reference.chunks(STRETCH));
    let (mut n, mut n_agreeing) = (0.0, 0.0);
    for ((values, own), reference) in stretches {
        let found =
            (ComparisonSums::of(own, reference).slope() / ComparisonSums::of(values, reference).slope()).ln();
        n += 1.0;
        n_agreeing += f64::from(u8::from((found - expected).abs() <= 0.5 * expected.abs()));
    }
    n_agreeing >= AGREEING * n
}

/// Returns true if the values are the reference with another scale.
fn is_scaled(sums: &ComparisonSums, tolerance: f64) -> bool {
    sums.slope() > 0.0 && sums.shape_error() < tolerance && (sums.slope() - 1.0).abs() > tolerance
}

/// Square root of the errors divided by the granted errors; 1 if both are 0.
pub(crate) fn ratio(errors: f64, granted: f64) -> f64 {
    if errors == 0.0 && granted == 0.0 { 1.0 } else { (errors / granted).sqrt() }
}

/// Largest relative error of rounding to a float type.
fn unit(ty: GgmlType) -> f64 {
    match ty {
        GgmlType::F16 => 2f64.powi(-11),
        GgmlType::Bf16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

fn round_to(ty: GgmlType, value: f32) -> f32 {
    match ty {
        GgmlType::F16 => gguf_core::numeric::f16_to_f32(gguf_core::numeric::f32_to_f16(value)),
        GgmlType::Bf16 => gguf_core::numeric::bf16_to_f32(gguf_core::numeric::f32_to_bf16(value)),
        _ => value,
    }
}
