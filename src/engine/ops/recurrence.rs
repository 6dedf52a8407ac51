//! What mixers with a state share: convolutions, the walk over the tokens of every chunk, the linear step.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::core::simd::VectorLoop;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::matmul::{MatrixTile, TileGrid};
use crate::engine::plan::Conv;
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::past::{Place, move_on};
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;
use crate::engine::run::weights::{LoadedNorm, WeightReader};
use crate::engine::run::workers::{WorkerBuffers, lend};

/// Channels that one task convolves.
const CONV_CHANNELS: usize = 256;
/// Rows that one task of an elementwise operation has.
const ROWS_PER_TASK: usize = 64;

/// A convolution whose weights are in memory, taps outermost.
pub(super) struct LoadedConv {
    /// `[n_taps, n_channels]`.
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    n_taps: usize,
    n_channels: usize,
}

impl LoadedConv {
    pub(super) fn new(weights: &WeightReader<'_>, conv: &Conv) -> Result<Self, EngineError> {
        let rows = weights.vector(&conv.weight)?;
        let n_taps = conv.n_taps;
        let n_channels = rows.len() / n_taps.max(1);
        let weight = transposed(&rows, n_taps);
        Ok(Self { weight, bias: weights.optional(conv.bias.as_ref())?, n_taps, n_channels })
    }
}

/// `[n_rows, n_cols]` as `[n_cols, n_rows]`.
pub(super) fn transposed(rows: &[f32], n_cols: usize) -> Vec<f32> {
    (0..n_cols).flat_map(|col| rows.iter().skip(col).step_by(n_cols.max(1)).copied()).collect()
}

/// What a task of a walk over the tokens works on.
pub(super) struct ScanPart<'a> {
    pub(super) chunk: usize,
    /// Tokens of the chunk.
    pub(super) tokens: Range<usize>,
    pub(super) columns: Range<usize>,
    /// What is left of the tokens before.
    pub(super) state: &'a mut [f32],
}

/// What follows a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConvEnd {
    /// Nothing.
    Plain,
    /// `silu`.
    Silu,
}

/// `out += tap * x`, and at the end `out = silu(out)`.
struct ConvRow<'a> {
    out: &'a mut [f32],
    taps: &'a [(&'a [f32], &'a [f32])],
    end: ConvEnd,
}

impl VectorLoop for ConvRow<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        for (weight, x) in self.taps {
            for ((y, &w), &x) in self.out.iter_mut().zip(*weight).zip(*x) {
                *y += w * x;
            }
        }
        if self.end == ConvEnd::Silu {
            for y in self.out {
                *y /= 1.0 + math::exp(-*y);
            }
        }
    }
}

impl Runner<'_> {
    /// Convolves the channels of `x` over the tokens of every chunk into `out`, both `[n_tokens, n_channels]`.
    pub(super) fn convolve(
        &self,
        conv: &LoadedConv,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
        end: ConvEnd,
    ) -> Result<(), EngineError> {
        let LoadedConv { weight, bias, n_taps, n_channels } = conv;
        let (level, n_before) = (self.weights.level, n_taps.saturating_sub(1));
        let mut place = self.past.map(|past| past.take(n_before * n_channels));
        let mut before = match (self.past, &mut place) {
            (Some(past), Some(place)) => past.parts(place),
            _ => Vec::new(),
        };
        self.scan(batch, out, ((*n_channels, CONV_CHANNELS), 0), |part, tile, _| {
            let ScanPart { chunk, tokens, columns: channels, .. } = part;
            let before = before.get(chunk).map_or(&[][..], |rows| rows);
            let mut taps = Vec::with_capacity(*n_taps);
            for (t, at) in tokens.clone().enumerate() {
                taps.clear();
                let skipped = n_taps.saturating_sub(t + 1);
                if !before.is_empty() {
                    for tap in 0..skipped {
                        taps.push((
                            &weight[tap * n_channels..][channels.clone()],
                            &before[(t + tap) * n_channels..][channels.clone()],
                        ));
                    }
                }
                for tap in skipped..*n_taps {
                    let from = at + 1 + tap - n_taps;
                    taps.push((
                        &weight[tap * n_channels..][channels.clone()],
                        &x[from * n_channels..][channels.clone()],
                    ));
                }
                let out = tile.row_mut(t);
                match bias {
                    Some(bias) => out.copy_from_slice(&bias[channels.clone()]),
                    None => out.fill(0.0),
                }
                level.vectorize(ConvRow { out, taps: &taps, end });
            }
        })?;
        for (before, cut) in before.iter_mut().zip(batch.cuts.windows(2)) {
            move_on(before, &x[cut[0] * n_channels..cut[1] * n_channels]);
        }
        self.give_place(place);
        Ok(())
    }

    pub(super) fn give_place(&self, place: Option<Place>) {
        if let (Some(past), Some(place)) = (self.past, place) {
            past.give(place);
        }
    }

    /// Calls `task` for every chunk and every `step` of the `n_cols` columns of `out` with what it works on, its tile of
    /// `out` and a buffer. Each has a state of `n_state` floats: zeros, or what it was when the sequence stopped.
    pub(super) fn scan(
        &self,
        batch: &ChunkBatch,
        out: &mut [f32],
        ((n_cols, step), n_state): ((usize, usize), usize),
        task: impl Fn(ScanPart<'_>, &mut MatrixTile<'_>, &mut Vec<f32>) + Sync,
    ) -> Result<(), EngineError> {
        let cuts: Vec<usize> = (0..n_cols).step_by(step.max(1)).chain(std::iter::once(n_cols)).collect();
        let n_across = cuts.len() - 1;
        let past = self.past.filter(|_| n_state > 0);
        let mut place = past.map(|past| past.take(n_across * n_state));
        let states: Vec<Mutex<&mut [f32]>> = match (past, &mut place) {
            (Some(past), Some(place)) => {
                let parts = past.parts(place).into_iter();
                parts.flat_map(|part| part.chunks_mut(n_state)).map(Mutex::new).collect()
            }
            _ => Vec::new(),
        };
        let grid = TileGrid::new(out, n_cols, batch.cuts.clone(), cuts.clone());
        self.workers.each((batch.cuts.len() - 1) * n_across, |scratch, at| {
            if self.progress.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let (chunk, across) = (at / n_across, at % n_across);
            let tokens = batch.cuts[chunk]..batch.cuts[chunk + 1];
            let mut tile = grid.take(chunk, across);
            let WorkerBuffers { rows, tile: buffer, .. } = scratch;
            let mut kept = states.get(at).map(|state| state.lock().unwrap_or_else(PoisonError::into_inner));
            let state = match &mut kept {
                Some(state) => &mut state[..],
                None => {
                    let state = lend(rows, n_state);
                    state.fill(0.0);
                    state
                }
            };
            let part = ScanPart { chunk, tokens, columns: cuts[across]..cuts[across + 1], state };
            self.clock.time(WorkKind::Scan, || task(part, &mut tile, buffer));
            Ok(())
        })?;
        drop(states);
        self.give_place(place);
        Ok(())
    }

    /// Calls `task` for pairs of rows of `out` and `x`.
    pub(super) fn each_row(
        &self,
        (out, n_out): (&mut [f32], usize),
        (x, n_x): (&[f32], usize),
        task: impl Fn(&mut [f32], &[f32]) + Sync,
    ) {
        self.workers.install(|| {
            let rows = out.par_chunks_mut(ROWS_PER_TASK * n_out).zip(x.par_chunks(ROWS_PER_TASK * n_x));
            rows.for_each(|(out, x)| {
                self.clock.time(WorkKind::Activation, || {
                    out.chunks_mut(n_out).zip(x.chunks(n_x)).for_each(|(out, x)| task(out, x));
                });
            });
        });
    }

    /// Normalizes the rows of `x` in place, cut in `n_parts` that are normed alone.
    pub(super) fn norm_parts(&self, norm: &LoadedNorm, x: &mut [f32], n_cols: usize, n_parts: usize) {
        let level = self.weights.level;
        let width = n_cols / n_parts.max(1);
        self.workers.install(|| {
            x.par_chunks_mut(ROWS_PER_TASK * n_cols).for_each_init(Vec::new, |scratch, rows| {
                self.clock.time(WorkKind::Norm, || {
                    for row in rows.chunks_mut(n_cols) {
                        row.chunks_mut(width)
                            .enumerate()
                            .for_each(|(at, part)| norm.head(level, part, at, scratch));
                    }
                });
            });
        });
    }
}

/// Cuts a thread's buffer in zeroed slices of these lengths.
pub(super) fn zeroed<const N: usize>(buffer: &mut Vec<f32>, lengths: [usize; N]) -> [&mut [f32]; N] {
    let mut rest = lend(buffer, lengths.iter().sum());
    rest.fill(0.0);
    lengths.map(|len| {
        let (part, later) = std::mem::take(&mut rest).split_at_mut(len);
        rest = later;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_cut_and_zeroed() {
        let mut buffer = vec![1.0; 4];
        let [a, b] = zeroed(&mut buffer, [2, 3]);
        assert_eq!((&*a, &*b), (&[0.0; 2][..], &[0.0; 3][..]));
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
