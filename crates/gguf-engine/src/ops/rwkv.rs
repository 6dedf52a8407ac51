//! Parts that the mixers of RWKV share: the token shift, heads and norms.

use rayon::prelude::*;

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::past::move_on;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, Norm, NormFormula, Vector};
use crate::exec::workers::{ROWS_PER_TASK, Tasks};
use crate::ops::columns::{TOKENS, state_floats};
use crate::ops::scan::ScanShape;
use crate::resolve::resolver::Resolver;

/// Token shift: the previous token minus each token, `[n_tokens, n_cols]`; before the first token of a chunk there are
/// zeros.
pub(crate) fn shifted(cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], n_cols: usize) -> Buffer {
    let mut out = cx.take(batch.n_tokens() * n_cols);
    let mut cache = cx.past.map(|past| past.take(n_cols));
    let mut last = match (cx.past, &mut cache) {
        (Some(past), Some(cache)) => past.chunk_parts(cache),
        _ => Vec::new(),
    };
    let shift = |token: usize, row: &mut [f32]| {
        let at = &x[token * n_cols..][..n_cols];
        if batch.places[token].position == 0 {
            row.iter_mut().zip(at).for_each(|(y, &x)| *y = -x);
        } else {
            // The first token of a chunk that continues a sequence follows the last token of the previous step.
            let chunk = batch.cuts.binary_search(&token).ok();
            let before: &[f32] = match chunk.and_then(|chunk| last.get(chunk)) {
                Some(row) => row,
                None => &x[(token - 1) * n_cols..][..n_cols],
            };
            row.iter_mut().zip(before).zip(at).for_each(|((y, &before), &x)| *y = before - x);
        }
    };
    cx.workers.install(|| {
        out.par_chunks_mut(ROWS_PER_TASK * n_cols).enumerate().run(&|(task, rows)| {
            cx.clock.time(WorkKind::Activation, || {
                for (at, row) in rows.chunks_mut(n_cols).enumerate() {
                    shift(task * ROWS_PER_TASK + at, row);
                }
            });
        });
    });
    for (last, cut) in last.iter_mut().zip(batch.cuts.windows(2)) {
        move_on(last, &x[cut[0] * n_cols..cut[1] * n_cols]);
    }
    cx.give_cache(cache);
    out
}

pub(crate) fn lerp(cx: &Context<'_>, lerp: &Vector, x: &[f32], shifted: &[f32]) -> Result<Buffer> {
    let weight = cx.weights.vector(lerp)?;
    let n = weight.len();
    let mut out = cx.take(x.len());
    cx.workers.install(|| {
        let tasks = out.par_chunks_mut(ROWS_PER_TASK * n).zip(x.par_chunks(ROWS_PER_TASK * n));
        tasks.zip(shifted.par_chunks(ROWS_PER_TASK * n)).run(&|((out, x), shifted)| {
            cx.clock.time(WorkKind::Activation, || {
                for ((out, x), shifted) in out.chunks_mut(n).zip(x.chunks(n)).zip(shifted.chunks(n)) {
                    let values = out.iter_mut().zip(x).zip(shifted).zip(&weight);
                    values.for_each(|(((y, &x), &shifted), &w)| *y = x + w * shifted);
                }
            });
        });
    });
    Ok(out)
}

/// Epsilon of the norm of a head's output; no key declares it.
const HEAD_NORM_EPS: f32 = 64e-5;

/// Heads of a mixer. Each has a state of `[dim, dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WkvHeads {
    /// Number of heads.
    pub n: usize,
    /// Width of a head.
    pub dim: usize,
}

impl WkvHeads {
    /// Returns the shape of the scan over the heads' states.
    pub(crate) fn scan_shape(self) -> ScanShape {
        ScanShape { n_cols: self.n * self.dim, step: self.dim, n_state: state_floats(self.dim, self.dim) }
    }

    /// Returns the number of floats that a sequence keeps: the last row of the stream for the token shift, and the
    /// states.
    pub(crate) fn remembered(self, n_embd: usize) -> usize {
        n_embd + self.n * state_floats(self.dim, self.dim)
    }

    /// Returns the number of values of a token's row and of all states, without the padding of [`Self::remembered`].
    pub(crate) fn kept(self, n_embd: usize) -> usize {
        n_embd + self.n * self.dim * self.dim
    }

    /// Returns the bytes of a thread's state, and of `n` rows of a head for each token of a block.
    pub(crate) fn thread_bytes(self, n: usize) -> usize {
        4 * (state_floats(self.dim, self.dim) + TOKENS * n * self.dim)
    }

    pub(crate) fn resolve(b: &Resolver<'_>) -> Result<WkvHeads> {
        let dim = b.divisor("wkv.head_size", b.n_embd)?;
        Ok(WkvHeads { n: b.n_embd / dim, dim })
    }
}

/// Claims the shares of `n` uses, stored in one tensor.
pub(crate) fn lerps(b: &mut Resolver<'_>, name: &str, n: usize) -> Result<Vec<Vector>> {
    let n_embd = b.n_embd;
    let all = b.need_vector(name, n.saturating_mul(n_embd))?;
    Ok((0..n).map(|at| Vector { tensor: all.tensor, first: at * n_embd, len: n_embd }).collect())
}

/// Claims the norm of the heads' outputs, if the layer has one.
pub(crate) fn wkv_norm(b: &mut Resolver<'_>, layer: usize) -> Result<Option<Norm>> {
    let name = format!("blk.{layer}.time_mix_ln");
    b.tensors.norm(&name, b.n_embd, NormFormula::Layer, HEAD_NORM_EPS)
}

/// Claims a matrix of `[n_embd, n_embd]`.
pub(crate) fn square(b: &mut Resolver<'_>, name: &str) -> Result<Matrix> {
    b.tensors.need_matrix(name, b.n_embd, b.n_embd)
}
