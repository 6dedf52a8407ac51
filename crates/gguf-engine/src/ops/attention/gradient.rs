//! Gradient of softmax attention. With `P` the softmax of the scores and `dP = dO Vᵀ`: `dS = P (dP - Σ P dP)`,
//! `dQ = scale dS K`, `dK = scale dSᵀ Q`, `dV = Pᵀ dO`; a sink has the probability that is left, and no value.

use std::sync::Mutex;

use rayon::prelude::*;

use crate::Result;
use crate::exec::batch::{ChunkBatch, TokenPlace};
use crate::exec::context::Context;
use crate::exec::decode::transpose;
use crate::exec::gradient::Gradients;
use crate::exec::math::{self, SoftmaxRow};
use crate::exec::matmul::{MatrixTile, MatrixView, TileGrid, multiply, multiply_transposed_add};
use crate::exec::product::Product;
use crate::exec::scalar::tanh;
use crate::exec::workers::{ROWS_PER_TASK, Tasks, Workers};
use crate::ops::attention::heads::ScoreParams;
use crate::ops::attention::{
    Attention, HeadSpan, KvSource, Projected, QkTransform, mix, norm_and_rotate, rows_of_head,
};
use gguf_core::simd::SimdLevel;
use gguf_core::sync::Unpoisoned;

const QUERY_ROWS: usize = 96;

impl Attention {
    /// Returns a part that has no gradient, if there is one.
    pub(crate) fn without_gradient(&self) -> Option<&'static str> {
        let norms = [&self.q_norm, &self.k_norm];
        let is_whole = |span| matches!(span, HeadSpan::Head | HeadSpan::Projection);
        let parts = [
            (self.has_gated_queries() || self.gate.is_some(), "gates of the heads"),
            (self.norm_after_rope, "norms behind the rotation"),
            (
                norms.iter().any(|norm| norm.as_ref().is_some_and(|norm| !is_whole(norm.span))),
                "norms by head",
            ),
            (self.rope_2d, "a rotation by two positions"),
            (self.clamp.is_some(), "clamped projections"),
            (self.relative.is_some(), "a bias by relative position"),
            (self.temperature.is_some(), "queries scaled by their position"),
            (self.v_norm.is_some(), "a norm of the values"),
            (self.kv != KvSource::Own, "keys and values of another layer"),
            (self.sub_norm.is_some() || self.out_scale.is_some(), "a norm or factor of the heads' outputs"),
            (self.switched.is_some(), "adapters that tokens switch on"),
        ];
        parts.into_iter().find_map(|(is_there, what)| is_there.then_some(what))
    }

    /// Adds the gradient of the input `x` to `dx`, and hands out those of the weights; `dy` is that of the output.
    pub(crate) fn gradient(
        &self,
        cx: &Context<'_>,
        to: &mut dyn Gradients,
        batch: &ChunkBatch,
        (x, dy): (&[f32], &[f32]),
        dx: &mut [f32],
    ) -> Result<()> {
        let n = batch.n_tokens();
        let [mut q, mut k, mut v] = [&self.q, &self.k, &self.v].map(|matrix| cx.take(n * matrix.n_rows));
        let products = [(&self.q, &mut q), (&self.k, &mut k), (&self.v, &mut v)];
        cx.products(x, n, products.into_iter().map(|(matrix, out)| Product::plain(matrix, out)).collect())?;
        let bare = [self.q_norm.as_ref().map(|_| q.clone()), self.k_norm.as_ref().map(|_| k.clone())];
        norm_and_rotate(cx, self, &QkTransform::queries(self), &batch.places, &mut q)?;
        norm_and_rotate(cx, self, &QkTransform::keys(self), &batch.places, &mut k)?;
        let projected = Projected { q: &q, k: &k, v: &v };
        let mut context = cx.take(n * self.n_heads * self.dv);
        mix(cx, self.scores(), batch, &batch.cuts, projected, &mut context)?;
        let mut d_context = cx.zeros(context.len());
        cx.product_gradient(to, &self.out, &context, dy, &mut d_context)?;
        let [mut dq, mut dk, mut dv] = [cx.take(q.len()), cx.take(k.len()), cx.take(v.len())];
        let sinks = cx.weights.optional(self.sinks.as_ref())?;
        let scores = ScoresGradient { a: self.scores(), sinks: sinks.as_deref(), level: cx.weights.level };
        let out = ProjectedGradient { q: &mut dq, k: &mut dk, v: &mut dv };
        let d_sinks = scores.run(cx.workers, &batch.cuts, projected, &d_context, out)?;
        if let Some(sinks) = &self.sinks {
            to.vector(sinks, &d_sinks);
        }
        let [bare_q, bare_k] = bare;
        for (matrix, norm, bare, d) in
            [(&self.q, &self.q_norm, bare_q, &mut dq), (&self.k, &self.k_norm, bare_k, &mut dk)]
        {
            self.rotate_back(cx, &batch.places, d, matrix.n_rows);
            if let (Some(norm), Some(bare)) = (norm, bare) {
                let width = if norm.span == HeadSpan::Projection { matrix.n_rows } else { self.dk };
                cx.norm_gradient(to, &norm.norm, &bare, d, width)?;
            }
            cx.product_gradient(to, matrix, x, d, dx)?;
        }
        cx.product_gradient(to, &self.v, x, &dv, dx)?;
        cx.give([q, k, v, context, d_context, dq, dk, dv]);
        Ok(())
    }

    /// Turns the gradients of rotated rows into those of the rows.
    fn rotate_back(&self, cx: &Context<'_>, places: &[TokenPlace], d: &mut [f32], width: usize) {
        let Some(rope) = self.rope else { return };
        cx.workers.install(|| {
            let tasks = d.par_chunks_mut(ROWS_PER_TASK * width).zip(places.par_chunks(ROWS_PER_TASK));
            tasks.run(&|(rows, places)| {
                for (row, place) in rows.chunks_mut(width).zip(places) {
                    let table = cx.ropes.table(rope, place.chunk_len as usize);
                    table.rotate_back(cx.weights.level, row, self.dk, place.position as usize);
                }
            });
        });
    }
}

/// Gradients of queries, keys and values, in the layout of these.
struct ProjectedGradient<'a> {
    q: &'a mut [f32],
    k: &'a mut [f32],
    v: &'a mut [f32],
}

/// Gradient of the part between the projections.
struct ScoresGradient<'a> {
    a: ScoreParams<'a>,
    sinks: Option<&'a [f32]>,
    level: SimdLevel,
}

impl ScoresGradient<'_> {
    /// Computes the gradients of queries, keys and values from that of the heads' outputs; returns that of the sinks.
    /// Every chunk and key-value head is a task.
    fn run(
        &self,
        workers: &Workers,
        cuts: &[usize],
        x: Projected<'_>,
        d_out: &[f32],
        out: ProjectedGradient<'_>,
    ) -> Result<Vec<f32>> {
        let ScoreParams { n_heads, n_kv_heads, dk, dv, mask, .. } = self.a;
        let grid = |data, n: usize, width: usize| {
            TileGrid::new(data, n * width, cuts.to_vec(), (0..=n).map(|head| head * width).collect())
        };
        let ProjectedGradient { q, k, v } = out;
        let (q_grid, k_grid) = (grid(q, n_heads, dk), grid(k, n_kv_heads, dk));
        let v_grid = grid(v, n_kv_heads, dv);
        let n_chunks = cuts.len() - 1;
        let sinks: Vec<Mutex<f64>> = (0..n_chunks * n_heads).map(|_| Mutex::default()).collect();
        workers.each(n_chunks * n_kv_heads, |_, task| {
            let (chunk, kv_head) = (task / n_kv_heads, task % n_kv_heads);
            let (start, n) = (cuts[chunk], cuts[chunk + 1] - cuts[chunk]);
            let keys = rows_of_head(x.k, start, n, kv_head, n_kv_heads, dk);
            let (key_columns, value_columns) =
                (columns(keys), columns(rows_of_head(x.v, start, n, kv_head, n_kv_heads, dv)));
            let key_columns = MatrixView::new(&key_columns, dk, n, n);
            let value_columns = MatrixView::new(&value_columns, dv, n, n);
            let (mut d_keys, mut d_values) = (k_grid.take(chunk, kv_head), v_grid.take(chunk, kv_head));
            clear(&mut d_keys);
            clear(&mut d_values);
            let group = n_heads / n_kv_heads;
            for head in kv_head * group..(kv_head + 1) * group {
                let mut d_queries = q_grid.take(chunk, head);
                let mut of_sink = 0.0;
                for first in (0..n).step_by(QUERY_ROWS) {
                    let len = QUERY_ROWS.min(n - first);
                    let n_keys = mask.end_key(first + len - 1, n);
                    let queries = rows_of_head(x.q, start + first, len, head, n_heads, dk);
                    let d_out = rows_of_head(d_out, start + first, len, head, n_heads, dv);
                    // With a cap, the softmax scales scores before it caps them.
                    let scale = if self.a.cap.is_some() { 1.0 } else { self.a.scale };
                    let mut p = product(queries, key_columns.columns(0..n_keys), scale);
                    let mut d = product(d_out, value_columns.columns(0..n_keys), 1.0);
                    for (at, (p, d)) in p.chunks_mut(n_keys).zip(d.chunks_mut(n_keys)).enumerate() {
                        of_sink += self.row(head, first + at, n, p, d);
                    }
                    let [p, d] = [&p, &d].map(|tile| MatrixView::new(tile, len, n_keys, n_keys));
                    multiply(&mut d_queries.rows_mut(first..first + len), d, keys.rows(0..n_keys), 1.0);
                    multiply_transposed_add(&mut d_keys.rows_mut(0..n_keys), d, queries);
                    multiply_transposed_add(&mut d_values.rows_mut(0..n_keys), p, d_out);
                }
                *sinks[chunk * n_heads + head].lock().unpoisoned() = of_sink;
            }
            Ok(())
        })?;
        let of_head =
            |head: usize| (0..n_chunks).map(|chunk| *sinks[chunk * n_heads + head].lock().unpoisoned()).sum();
        Ok((0..n_heads)
            .map(|head| {
                let sum: f64 = of_head(head);
                sum as f32
            })
            .collect())
    }

    /// Turns the scores of a query into probabilities, and the gradient of these into that of the products of query and
    /// keys. Returns the gradient of the head's sink.
    fn row(&self, head: usize, position: usize, n: usize, p: &mut [f32], d: &mut [f32]) -> f64 {
        let ScoreParams { scale, cap, mask, alibi, .. } = self.a;
        let seen = mask.first_key(position)..mask.end_key(position, n);
        for values in [&mut *p, &mut *d] {
            values[..seen.start].fill(0.0);
            values[seen.end..].fill(0.0);
        }
        let (p, d) = (&mut p[seen.clone()], &mut d[seen.clone()]);
        let slopes: Option<Vec<f32>> = cap.map(|cap| {
            let slope = |score: &f32| scale * (1.0 - tanh(score * scale / cap).powi(2));
            p.iter().map(slope).collect()
        });
        let options = SoftmaxRow {
            cap: cap.map(|cap| (scale, cap)),
            slope: alibi.map(|slopes| slopes[head]),
            own: position as isize - seen.start as isize,
            bias: None,
            sink: self.sinks.map(|sinks| sinks[head]),
        };
        let sum = math::softmax(self.level, p, options);
        let (mut total, mut along) = (0.0, 0.0);
        for (p, d) in p.iter_mut().zip(&*d) {
            *p = (f64::from(*p) / sum) as f32;
            total += f64::from(*p);
            along += f64::from(*p) * f64::from(*d);
        }
        for (at, (p, d)) in p.iter().zip(d).enumerate() {
            *d = p * (*d - along as f32) * slopes.as_ref().map_or(scale, |slopes| slopes[at]);
        }
        (total - 1.0) * along
    }
}

fn clear(tile: &mut MatrixTile<'_>) {
    (0..tile.n_rows()).for_each(|row| tile.row_mut(row).fill(0.0));
}

fn columns(rows: MatrixView<'_>) -> Vec<f32> {
    let mut out = vec![0.0; rows.n_rows() * rows.n_cols()];
    transpose(rows, &mut MatrixTile::whole(&mut out, rows.n_cols(), rows.n_rows()));
    out
}

fn product(a: MatrixView<'_>, b: MatrixView<'_>, factor: f32) -> Vec<f32> {
    let mut out = vec![0.0; a.n_rows() * b.n_cols()];
    multiply(&mut MatrixTile::whole(&mut out, a.n_rows(), b.n_cols()), a, b, factor);
    out
}

#[cfg(test)]
mod tests;
