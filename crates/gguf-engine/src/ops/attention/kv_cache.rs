//! KV cache of continued sequences. Keys and values are stored in the layout that the heads read, keys as columns, so
//! that a step adds a column and rearranges nothing.

use std::ops::Range;

use rayon::prelude::*;

use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::mask::Mask;
use crate::exec::matmul::MatrixView;
use crate::exec::past::{OpCache, Past};
use crate::exec::timings::WorkKind;
use crate::exec::workers::Tasks;
use crate::ops::attention::heads::{GatheredKv, KEY_ROWS, ScoreParams};
use crate::ops::attention::{Projected, rows_of_head};

/// Layout of a sequence's keys and values: for each key-value head `[dk, width]` keys, then `[capacity, dv]` values.
#[derive(Clone, Copy)]
struct KvCacheLayout {
    n_heads: usize,
    dk: usize,
    dv: usize,
    width: usize,
    capacity: usize,
}

/// Returns the number of floats that a sequence of at most `capacity` tokens keeps.
pub(crate) fn sequence_floats(a: &ScoreParams<'_>, capacity: usize) -> usize {
    let layout = KvCacheLayout::new(a, capacity);
    layout.n_heads.saturating_mul(layout.head_floats())
}

impl KvCacheLayout {
    fn new(a: &ScoreParams<'_>, capacity: usize) -> Self {
        // Kernels work on whole vectors, so the last columns may have no meaning. The number of vectors is odd, because
        // rows a power of two apart would evict one another from the caches.
        let width = (capacity.div_ceil(KEY_ROWS) | 1) * KEY_ROWS;
        Self { n_heads: a.n_kv_heads, dk: a.dk, dv: a.dv, width, capacity }
    }

    fn head_floats(&self) -> usize {
        self.dk.saturating_mul(self.width).saturating_add(self.dv.saturating_mul(self.capacity))
    }

    /// Adds the keys and values of all heads of the tokens at these positions of the sequence.
    fn add(&self, part: &mut [f32], positions: Range<usize>, k: &[f32], v: &[f32]) {
        let n = positions.len();
        for (head, part) in part.chunks_exact_mut(self.head_floats().max(1)).enumerate() {
            let (columns, values) = part.split_at_mut(self.dk * self.width);
            let keys = rows_of_head(k, 0, n, head, self.n_heads, self.dk);
            for (row, line) in columns.chunks_exact_mut(self.width).enumerate() {
                let line = line[positions.clone()].iter_mut().enumerate();
                line.for_each(|(token, x)| *x = keys.row(token)[row]);
            }
            let rows = values.chunks_exact_mut(self.dv.max(1)).skip(positions.start).take(n);
            let own = rows_of_head(v, 0, n, head, self.n_heads, self.dv);
            rows.enumerate().for_each(|(token, row)| row.copy_from_slice(own.row(token)));
        }
    }
}

/// Keys and values of the sequences of a step.
pub(crate) struct KvCache<'p> {
    layout: KvCacheLayout,
    parts: Vec<&'p mut [f32]>,
}

impl KvCache<'_> {
    /// Returns a head's keys and values, for a chunk's sequence.
    pub(crate) fn of(&self, chunk: usize, head: usize, n_keys: usize) -> GatheredKv<'_> {
        let KvCacheLayout { dk, dv, width, .. } = self.layout;
        let part = &self.parts[chunk][head * self.layout.head_floats()..];
        let (columns, values) = part.split_at(dk * width);
        GatheredKv {
            keys: MatrixView::new(columns, dk, width, width),
            values: MatrixView::new(values, n_keys, dv, dv),
        }
    }
}

/// Adds the keys and values of a step to the kept ones and returns all of them.
pub(crate) fn cache_step<'p>(
    cx: &Context<'_>,
    a: &ScoreParams<'_>,
    batch: &ChunkBatch,
    projected: Projected<'_>,
    past: &Past,
    cache: &'p mut OpCache,
) -> KvCache<'p> {
    let layout = KvCacheLayout::new(a, past.capacity);
    let mut parts = past.chunk_parts_as_left(cache);
    cx.workers.install(|| {
        parts.par_iter_mut().zip(batch.cuts.par_windows(2)).zip(&past.before).run(&|(
            (part, cut),
            &before,
        )| {
            cx.clock.time(WorkKind::Attention, || {
                let (k, v) = (layout.n_heads * layout.dk, layout.n_heads * layout.dv);
                let (k, v) = (&projected.k[cut[0] * k..], &projected.v[cut[0] * v..]);
                layout.add(part, before..before + cut[1] - cut[0], k, v);
            });
        });
    });
    KvCache { layout, parts }
}

/// Returns the number of floats that a sequence of at most `n_ctx` tokens keeps for these heads.
pub(crate) fn remembered(a: &ScoreParams<'_>, n_ctx: usize) -> Result<usize, &'static str> {
    match a.mask {
        Mask::Full | Mask::Symmetric(_) => Err("its tokens see those behind them"),
        Mask::Causal | Mask::Window(_) | Mask::Chunked(_) => Ok(sequence_floats(a, n_ctx)),
    }
}
