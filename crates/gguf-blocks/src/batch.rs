//! A cache-sized run of blocks for the lane code, padded with zeros to whole vectors.

use super::codec::SourceRows;
use super::lanes::{Lanes, MAX_WIDTH};

/// Elements in a batch: 16 super-blocks, and whole vectors of blocks at every level.
pub(super) const BATCH: usize = 4096;

/// Consecutive blocks, across row boundaries, with their importance weights.
pub(super) struct BlockBatch {
    /// Elements, followed by zeros.
    pub x: [f32; BATCH],
    /// Weights as set by [`BlockBatch::weigh`].
    pub weights: [f32; BATCH],
    /// Elements before the padding.
    pub n_elems: usize,
    /// Index of the first element in the rows.
    pub first: usize,
}

impl BlockBatch {
    pub(super) const EMPTY: Self = Self { x: [0.0; BATCH], weights: [0.0; BATCH], n_elems: 0, first: 0 };

    /// Loads the blocks from element `first` on; returns false after the last.
    #[inline(always)]
    pub(super) fn load(&mut self, rows: &SourceRows<'_>, first: usize) -> bool {
        let rest = rows.src.get(first..).unwrap_or(&[]);
        let n_elems = rest.len().min(BATCH);
        self.x[..n_elems].copy_from_slice(&rest[..n_elems]);
        self.x[n_elems..].fill(0.0);
        self.n_elems = n_elems;
        self.first = first;
        n_elems > 0
    }

    /// Sets the weights to `importance * sqrt(sigma2 + x^2)`, with `sigma2` given per block of `E` elements.
    #[inline(always)]
    pub(super) fn weigh<L: Lanes, const E: usize>(
        &mut self,
        l: L,
        rows: &SourceRows<'_>,
        importance: &[f32],
        sigma2: impl Fn(usize) -> f32,
    ) {
        let blocks = self.x.as_chunks::<E>().0.iter().zip(self.weights.as_chunks_mut::<E>().0);
        for (index, (x, weights)) in blocks.enumerate().take(self.n_elems / E) {
            let column = (self.first + index * E) % rows.n_cols;
            let importance = &importance[column..column + E];
            let sigma2 = l.splat(sigma2(index));
            for at in (0..E).step_by(L::WIDTH) {
                let x = l.load(&x[at..]);
                l.store(l.load(&importance[at..]) * l.sqrt(sigma2 + x * x), &mut weights[at..]);
            }
        }
    }

    /// Computes `search::abs_max` of each block of `E` elements, a multiple of 16.
    #[inline(always)]
    pub(super) fn abs_maxes<L: Lanes, const E: usize>(&self, l: L, out: &mut [f32]) {
        for at in (0..self.n_elems / E).step_by(L::WIDTH) {
            let mut amax = l.splat(0.0);
            for column in (0..E).step_by(16) {
                for value in l.tile(&self.x[at * E + column..], E) {
                    amax = l.c_max(amax, l.abs(value));
                }
            }
            l.store(amax, &mut out[at..]);
        }
    }

    /// Computes the magnitude of `search::signed_max` of each block of `E` elements, a multiple of 16: NaN is ignored.
    #[inline(always)]
    pub(super) fn largest_magnitudes<L: Lanes, const E: usize>(&self, l: L, out: &mut [f32]) {
        for at in (0..self.n_elems / E).step_by(L::WIDTH) {
            let mut amax = l.splat(0.0);
            for column in (0..E).step_by(16) {
                for value in l.tile(&self.x[at * E + column..], E) {
                    amax = l.c_max(l.abs(value), amax);
                }
            }
            l.store(amax, &mut out[at..]);
        }
    }

    /// Sums the magnitudes of each block of `E` elements, a multiple of 16, in index order.
    #[inline(always)]
    pub(super) fn sums_of_magnitudes<L: Lanes, const E: usize>(&self, l: L, out: &mut [f32]) {
        for at in (0..self.n_elems / E).step_by(L::WIDTH) {
            let mut sum = l.splat(0.0);
            for column in (0..E).step_by(16) {
                for value in l.tile(&self.x[at * E + column..], E) {
                    sum = sum + l.abs(value);
                }
            }
            l.store(sum, &mut out[at..]);
        }
    }
}

/// Sums the squares of `WIDTH` runs of `n` floats, a multiple of 16, that start `stride` apart, in index order.
#[inline(always)]
pub(super) fn sums_of_squares<L: Lanes>(l: L, src: &[f32], n: usize, stride: usize) -> L::F {
    let mut sum = l.splat(0.0);
    for at in (0..n).step_by(16) {
        for value in l.tile(&src[at..], stride) {
            sum = sum + value * value;
        }
    }
    sum
}

/// Gathers one float per lane from `value(lane)`.
#[inline(always)]
pub(super) fn gather<L: Lanes>(l: L, value: impl Fn(usize) -> f32) -> L::F {
    let mut values = [0.0; MAX_WIDTH];
    for (lane, slot) in values[..L::WIDTH].iter_mut().enumerate() {
        *slot = value(lane);
    }
    l.load(&values)
}
