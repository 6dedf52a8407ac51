//! The product of a panel with tokens: one algorithm for all levels of vector instructions.
#![expect(
    clippy::inline_always,
    reason = "code that is compiled once per vector level must be inlined into its entry"
)]

use super::lanes::Lanes;
use super::panel::{IntegerPanel, STRIP, StripGroup, StripPairs};
use super::rounded::{RECORD, RoundedView, SUMS_16, SUMS_32};

/// Sums of products of all strips of a panel with all tokens of a view.
pub(super) struct Multiply<'a> {
    pub(super) x: RoundedView<'a>,
    pub(super) w: &'a IntegerPanel<'a>,
    /// Sums to add to, `[n_strips, n_tokens]`.
    pub(super) sums: &'a mut [[f32; STRIP]],
}

impl Multiply<'_> {
    /// Adds all products, `T` tokens at a time.
    #[inline(always)]
    pub(super) fn run<L: Lanes, const T: usize>(self, l: L) {
        let Self { x, w, sums } = self;
        for group in 0..w.layout().n_groups() {
            let (records, steps) = x.group(group);
            for (strip, sums) in sums.chunks_exact_mut(x.n_tokens()).enumerate() {
                let w = w.strip_group(strip, group);
                add_all::<L, T>(l, &w, records, steps, |at| at, sums);
                for (some, rests) in x.rests(group) {
                    let (records, steps) = (&rests.records[some.clone()], &rests.steps[some.clone()]);
                    let tokens = &rests.tokens[some];
                    add_all::<L, T>(l, &w, records, steps, |at| tokens[at] - x.first_token(), sums);
                }
            }
        }
    }
}

/// Adds the products of a group of columns of a strip with records, the sums of each being at `place`.
#[inline(always)]
fn add_all<L: Lanes, const T: usize>(
    l: L,
    w: &StripGroup<'_>,
    records: &[[i32; RECORD]],
    steps: &[f32],
    place: impl Fn(usize) -> usize,
    sums: &mut [[f32; STRIP]],
) {
    let done = add_tiles::<L, T>(l, w, records, steps, 0, &place, sums);
    let done = add_tiles::<L, 2>(l, w, records, steps, done, &place, sums);
    add_tiles::<L, 1>(l, w, records, steps, done, &place, sums);
}

/// Adds the products with as many records after the first `done` as there are whole tiles of `T`, and returns the
/// number of records that are done.
#[inline(always)]
fn add_tiles<L: Lanes, const T: usize>(
    l: L,
    w: &StripGroup<'_>,
    records: &[[i32; RECORD]],
    steps: &[f32],
    mut done: usize,
    place: &impl Fn(usize) -> usize,
    sums: &mut [[f32; STRIP]],
) -> usize {
    let (records, steps) = (records[done..].as_chunks::<T>().0, steps[done..].as_chunks::<T>().0);
    for (x, steps) in records.iter().zip(steps) {
        let products = tile(l, w, x);
        for t in 0..T {
            let sums = &mut sums[place(done + t)];
            let sum = l.add(l.load(sums), l.mul(products[t], l.splat(steps[t])));
            l.store(sum, sums);
        }
        done += T;
    }
    done
}

/// Returns the products of a group of columns of a strip with the integers of `T` records.
#[inline(always)]
fn tile<L: Lanes, const T: usize>(l: L, w: &StripGroup<'_>, x: &[[i32; RECORD]; T]) -> [L::F; T] {
    let mut scaled = [l.zero_f(); T];
    let (mut codes, mut minima) = (w.codes, w.minima);
    let (mut first, mut first_sum) = (0, if w.shared == 16 { SUMS_16 } else { SUMS_32 });
    for scales in w.scales.clone() {
        let (own, later) = codes.split_at(codes.len().min(w.scaled_pairs));
        codes = later;
        let (run, mut rest) = own.split_at(own.len().min(w.run_pairs));
        let mut part = dots(l, run, x, first);
        first += run.len();
        while !rest.is_empty() {
            let (run, later) = rest.split_at(rest.len().min(w.run_pairs));
            let dots = dots(l, run, x, first);
            for t in 0..T {
                part[t] = l.add(part[t], dots[t]);
            }
            first += run.len();
            rest = later;
        }
        let scale = l.load(&scales[0]);
        for t in 0..T {
            scaled[t] = l.add(scaled[t], l.mul(part[t], scale));
        }
        if w.n_minima > 0 {
            let (own, later) = minima.split_at(minima.len().min(w.n_minima));
            let dots = dots(l, own, x, first_sum);
            let scale = l.load(&scales[1]);
            for t in 0..T {
                scaled[t] = l.sub(scaled[t], l.mul(dots[t], scale));
            }
            first_sum += own.len();
            minima = later;
        }
    }
    scaled
}

/// Returns the sums of products of pairs as F32, for all rows of a strip and `T` tokens.
#[inline(always)]
fn dots<L: Lanes, const T: usize>(
    l: L,
    codes: &[StripPairs],
    x: &[[i32; RECORD]; T],
    first: usize,
) -> [L::F; T] {
    assert!(first <= RECORD && codes.len() <= RECORD - first, "pairs of a record");
    let mut dots = [l.zero_i(); T];
    // One pair at a time: in an unrolled loop the compiler adds up products first, for which registers are missing.
    for (codes, at) in codes.iter().zip(first..RECORD) {
        let w = l.load_pairs(codes);
        for t in 0..T {
            dots[t] = l.dot(dots[t], w, x[t][at]);
        }
    }
    // A loop, because a closure would be a function without the instructions.
    let mut sums = [l.zero_f(); T];
    for t in 0..T {
        sums[t] = l.to_f(dots[t]);
    }
    sums
}
