//! Activations rounded to 16 bits.
#![expect(
    clippy::inline_always,
    reason = "code that is compiled once per vector level must be inlined into its entry"
)]

use std::ops::Range;

use gguf_core::simd::{SimdLevel, VectorLoop};

use super::{GROUP, HIGH, LARGEST};

/// Number of pairs of a record: the activations of a group, and their sums over 16 and over 32 columns.
pub(super) const RECORD: usize = SUMS_32 + GROUP / 32;
/// First pair of the sums over 16 columns.
pub(super) const SUMS_16: usize = GROUP / 2;
/// First pair of the sums over 32 columns.
pub(super) const SUMS_32: usize = SUMS_16 + GROUP / 16;

/// Number of tokens of a part.
const PART_TOKENS: usize = 64;

/// Multiple of the mean magnitude of a group above which its largest magnitude makes the step too coarse for the others.
const UNEVEN: f32 = 32.0;

/// Value below which activations are scaled by [`LIFT`] before they are rounded, so that the inverse of their step is
/// finite.
const TINY: f32 = f32::from_bits((127 - 100) << 23);
/// Power of two that scales tiny activations.
const LIFT: f32 = f32::from_bits((127 + 100) << 23);

/// Activations rounded to 16 bits, `[n_tokens, n_cols]`, with one step for each group of columns of a token.
#[derive(Clone, Debug, Default)]
pub struct RoundedRows {
    n_tokens: usize,
    n_cols: usize,
    /// Pairs of integers, `[n_groups, n_tokens]` records.
    pub(super) records: Vec<[i32; RECORD]>,
    /// Steps, `[n_groups, n_tokens]`.
    pub(super) steps: Vec<f32>,
    /// What the records of uneven groups leave, `[n_groups, n_parts]`.
    rests: Vec<Rests>,
}

/// What the records of some tokens' uneven groups leave, rounded with smaller steps. Empty for most.
#[derive(Clone, Debug, Default)]
pub(super) struct Rests {
    /// Ascending.
    pub(super) tokens: Vec<usize>,
    pub(super) records: Vec<[i32; RECORD]>,
    pub(super) steps: Vec<f32>,
}

impl Rests {
    fn clear(&mut self) {
        self.tokens.clear();
        self.records.clear();
        self.steps.clear();
    }

    #[inline(always)]
    fn push(&mut self, token: usize, x: &[f32; GROUP]) {
        let mut record = [0; RECORD];
        self.tokens.push(token);
        self.steps.push(round(x, &mut record));
        self.records.push(record);
    }
}

/// Some tokens of one group of columns, to be rounded by any thread.
#[derive(Debug)]
pub struct RoundedPart<'a> {
    n_cols: usize,
    columns: Range<usize>,
    first_token: usize,
    records: &'a mut [[i32; RECORD]],
    steps: &'a mut [f32],
    rests: &'a mut Rests,
}

impl RoundedRows {
    /// Returns the bytes of a row of `n_cols` columns at most: if all groups are uneven.
    #[must_use]
    pub const fn row_bytes(n_cols: usize) -> usize {
        n_cols.div_ceil(GROUP) * 2 * (4 * RECORD + 8)
    }

    /// Makes room for other rows and returns their parts, each of which must be rounded.
    pub fn parts(&mut self, n_tokens: usize, n_cols: usize) -> Vec<RoundedPart<'_>> {
        (self.n_tokens, self.n_cols) = (n_tokens, n_cols);
        let n = n_tokens * n_cols.div_ceil(GROUP);
        // A longer vector is not a copy of the shorter one, and the system maps its pages as they are written.
        if self.records.len() < n {
            (self.records, self.steps) = (vec![[0; RECORD]; n], vec![0.0; n]);
        }
        let (records, steps) = (&mut self.records[..n], &mut self.steps[..n]);
        let n_parts = n_tokens.div_ceil(PART_TOKENS);
        self.rests.resize_with(n_parts * n_cols.div_ceil(GROUP), Rests::default);
        let groups = records.chunks_mut(n_tokens.max(1)).zip(steps.chunks_mut(n_tokens.max(1)));
        let groups = groups.zip(self.rests.chunks_mut(n_parts.max(1)));
        let parts = groups.enumerate().flat_map(|(group, ((records, steps), rests))| {
            let columns = group * GROUP..n_cols.min((group + 1) * GROUP);
            let parts = records.chunks_mut(PART_TOKENS).zip(steps.chunks_mut(PART_TOKENS)).zip(rests);
            parts.enumerate().map(move |(part, ((records, steps), rests))| RoundedPart {
                n_cols,
                columns: columns.clone(),
                first_token: part * PART_TOKENS,
                records,
                steps,
                rests,
            })
        });
        parts.collect()
    }

    /// Returns all rows.
    #[must_use]
    pub fn view(&self) -> RoundedView<'_> {
        RoundedView { rows: self, tokens: 0..self.n_tokens }
    }
}

impl RoundedPart<'_> {
    /// Rounds the part of activations `x`, `[n_tokens, n_cols]`.
    ///
    /// # Panics
    /// If `x` is too short.
    pub fn round(self, level: SimdLevel, x: &[f32]) {
        level.vectorize(RoundPart { part: self, x });
    }
}

struct RoundPart<'a> {
    part: RoundedPart<'a>,
    x: &'a [f32],
}

impl VectorLoop for RoundPart<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let RoundedPart { n_cols, columns, first_token, records, steps, rests } = self.part;
        rests.clear();
        let rows = self.x[first_token * n_cols..].chunks(n_cols);
        for (at, ((row, record), step)) in rows.zip(records).zip(steps).enumerate() {
            let row = &row[columns.clone()];
            let mut x = [0.0; GROUP];
            x[..row.len()].copy_from_slice(row);
            *step = round(&x, record);
            if is_uneven(&x, row.len(), *step) {
                subtract(&mut x, record, *step);
                rests.push(first_token + at, &x);
            }
        }
    }
}

/// Whether the largest of the first `n` activations is more than [`UNEVEN`] times their mean.
#[inline(always)]
fn is_uneven(x: &[f32; GROUP], n: usize, step: f32) -> bool {
    let mut sums = [0f32; 16];
    for x in x.as_chunks::<16>().0 {
        for i in 0..16 {
            sums[i] += x[i].abs();
        }
    }
    let mean = sums.iter().sum::<f32>() / n as f32;
    step * LARGEST as f32 > UNEVEN * mean
}

/// Subtracts the integers of a record times their step.
#[inline(always)]
fn subtract(x: &mut [f32; GROUP], record: &[i32; RECORD], step: f32) {
    // In F64, product and difference are exact: they have less than 53 bits.
    let rest = |x: f32, r: i32| (f64::from(x) - f64::from(step) * f64::from(r)) as f32;
    for (x, pair) in x.as_chunks_mut::<2>().0.iter_mut().zip(record) {
        *x = [rest(x[0], i32::from(*pair as i16)), rest(x[1], pair >> 16)];
    }
}

/// Writes the record of activations and returns their step.
#[inline(always)]
fn round(x: &[f32; GROUP], record: &mut [i32; RECORD]) -> f32 {
    // Constant whose addition rounds to the nearest integer, halves to even, below 2^22.
    const ROUND: f32 = 12_582_912.0;
    // As numbers, bits of magnitudes ascend from 0 over infinity to NaN.
    let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        record.fill(0);
        return f32::NAN;
    }
    if largest == 0.0 {
        record.fill(0);
        return 0.0;
    }
    let lift = if largest < TINY { LIFT } else { 1.0 };
    let inverse = LARGEST as f32 / (largest * lift);
    let mut rounded = [0i32; GROUP];
    for i in 0..GROUP {
        rounded[i] = ((x[i] * lift * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    }
    let pair = |low: i32, high: i32| low & 0xffff | high << 16;
    for i in 0..GROUP / 2 {
        record[i] = pair(rounded[2 * i], rounded[2 * i + 1]);
    }
    // Sums have at most 32 · 32767 in magnitude: `low` is in -256..256, `high` in -2048..=2048.
    let split = |sum: i32| {
        let high = (sum + HIGH / 2) >> HIGH.trailing_zeros();
        pair(sum - high * HIGH, high)
    };
    let mut sums = [0i32; GROUP / 16];
    for i in 0..GROUP / 16 {
        for k in 0..16 {
            sums[i] += rounded[16 * i + k];
        }
        record[SUMS_16 + i] = split(sums[i]);
    }
    for i in 0..GROUP / 32 {
        record[SUMS_32 + i] = split(sums[2 * i] + sums[2 * i + 1]);
    }
    largest / LARGEST as f32
}

/// Some consecutive tokens of rounded activations.
#[derive(Clone, Debug)]
pub struct RoundedView<'a> {
    rows: &'a RoundedRows,
    tokens: Range<usize>,
}

impl<'a> RoundedView<'a> {
    /// Number of tokens.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Number of columns.
    #[must_use]
    pub fn n_cols(&self) -> usize {
        self.rows.n_cols
    }

    /// Returns a view of some of the tokens.
    ///
    /// # Panics
    /// If the range is not inside the view.
    #[must_use]
    pub fn tokens(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.n_tokens());
        let first = self.tokens.start;
        Self { rows: self.rows, tokens: first + range.start..first + range.end }
    }

    /// Returns what the records of a group of columns leave, in parts, each with the range of its entries whose tokens are in
    /// the view. Tokens are counted from the first of all rows.
    pub(super) fn rests(&self, group: usize) -> impl Iterator<Item = (Range<usize>, &'a Rests)> + use<'a> {
        let n_parts = self.rows.n_tokens.div_ceil(PART_TOKENS);
        let tokens = self.tokens.clone();
        let parts = tokens.start / PART_TOKENS..tokens.end.div_ceil(PART_TOKENS);
        let rests = &self.rows.rests[group * n_parts..][parts];
        rests.iter().map(move |rests| {
            let before = |end: usize| rests.tokens.partition_point(|&token| token < end);
            (before(tokens.start)..before(tokens.end), rests)
        })
    }

    /// Number of tokens before the view.
    pub(super) fn first_token(&self) -> usize {
        self.tokens.start
    }

    /// Returns the records and steps of a group of columns.
    pub(super) fn group(&self, group: usize) -> (&'a [[i32; RECORD]], &'a [f32]) {
        let first = group * self.rows.n_tokens;
        let range = first + self.tokens.start..first + self.tokens.end;
        (&self.rows.records[range.clone()], &self.rows.steps[range])
    }
}
