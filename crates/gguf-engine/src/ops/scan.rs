//! Scan over the tokens of every chunk, shared by mixers with a recurrent state.

use std::ops::Range;
use std::sync::Mutex;

use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::matmul::{MatrixTile, TileGrid};
use crate::exec::timings::WorkKind;
use crate::exec::workers::{WorkerBuffers, lend};
use crate::{EngineError, Result};
use gguf_core::sync::Unpoisoned;

/// Returns the transpose `[n_cols, n_rows]` of `[n_rows, n_cols]`.
pub(crate) fn transposed(rows: &[f32], n_cols: usize) -> Vec<f32> {
    (0..n_cols).flat_map(|col| rows.iter().skip(col).step_by(n_cols.max(1)).copied()).collect()
}

/// Part of a scan that one task works on.
pub(crate) struct ScanPart<'a> {
    pub(crate) chunk: usize,
    pub(crate) tokens: Range<usize>,
    pub(crate) columns: Range<usize>,
    /// State after the earlier tokens.
    pub(crate) state: &'a mut [f32],
}

/// Columns of a scan's output, and the state that is kept for them.
#[derive(Clone, Copy)]
pub(crate) struct ScanShape {
    pub(crate) n_cols: usize,
    /// Number of columns per task: those of one head in most mixers.
    pub(crate) step: usize,
    /// Number of floats of a task's state.
    pub(crate) n_state: usize,
}

/// Calls `task` for every chunk and every step of the columns of `out`, with its part, its tile of `out` and a buffer.
/// The state of each is zeros, or the state at which the sequence stopped.
pub(crate) fn scan(
    cx: &Context<'_>,
    batch: &ChunkBatch,
    out: &mut [f32],
    shape: ScanShape,
    task: impl Fn(ScanPart<'_>, &mut MatrixTile<'_>, &mut Vec<f32>) + Sync,
) -> Result<()> {
    let ScanShape { n_cols, step, n_state } = shape;
    let cuts: Vec<usize> = (0..n_cols).step_by(step.max(1)).chain(std::iter::once(n_cols)).collect();
    let n_across = cuts.len() - 1;
    let past = cx.past.filter(|_| n_state > 0);
    let mut cache = past.map(|past| past.take(n_across * n_state));
    let states: Vec<Mutex<&mut [f32]>> = match (past, &mut cache) {
        (Some(past), Some(cache)) => {
            let parts = past.chunk_parts(cache).into_iter();
            parts.flat_map(|part| part.chunks_mut(n_state)).map(Mutex::new).collect()
        }
        _ => Vec::new(),
    };
    let grid = TileGrid::new(out, n_cols, batch.cuts.clone(), cuts.clone());
    cx.each((batch.cuts.len() - 1) * n_across, |scratch, at| {
        if cx.progress.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let (chunk, across) = (at / n_across, at % n_across);
        let tokens = batch.cuts[chunk]..batch.cuts[chunk + 1];
        let mut tile = grid.take(chunk, across);
        let WorkerBuffers { rows, tile: buffer, .. } = scratch;
        let mut kept = states.get(at).map(|state| state.lock().unpoisoned());
        let state = match &mut kept {
            Some(state) => &mut state[..],
            None => {
                let state = lend(rows, n_state);
                state.fill(0.0);
                state
            }
        };
        let part = ScanPart { chunk, tokens, columns: cuts[across]..cuts[across + 1], state };
        cx.clock.time(WorkKind::Scan, || task(part, &mut tile, buffer));
        Ok(())
    })?;
    drop(states);
    cx.give_cache(cache);
    Ok(())
}

/// Splits a thread's buffer into zeroed slices of these lengths.
pub(crate) fn zeroed<const N: usize>(buffer: &mut Vec<f32>, lengths: [usize; N]) -> [&mut [f32]; N] {
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
