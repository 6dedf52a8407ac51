//! Hyper-connections (Zhu et al. 2024, arXiv 2409.19606): `n` residual streams `x_s` of width `D`, of which each branch
//! reads a mixture and to which its output `y` is shared out.
//!
//! With a weight per stream (manifold-constrained hyper-connections: Xie et al. 2025, arXiv 2512.24880), `m = W norm([x_1 ..
//! x_n])`: the branch reads `Σ_s (sig(m_s a_r + b_s) + eps) x_s`. Then either each stream takes its part,
//! `x_s += (magnitude sig(m_(n+s) a_w + b_(n+s)) + eps) y`, or the streams are mixed as well,
//! `x_d = 2 sig(m_(n+d) a_w + b_(n+d)) y + Σ_s C_sd x_s` with `C` the n² values `m a_c + b` of the rest, made doubly
//! stochastic by Sinkhorn and Knopp's rounds.
//!
//! With a weight per value, `z_s = norm(x_s)`: the branch reads `Σ_s z_s sig(U silu(D z / n))_s / n`, and
//! `x_s += 2 sig(I_s z / n) y`.

use rayon::prelude::*;

use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::plan::{Connection, GatedStreams, Streams, StreamsEnd, StreamsWrite, WeighedStreams};
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;

/// Rows that one task reads or writes.
const ROWS_PER_TASK: usize = 64;

impl Runner<'_> {
    /// The streams before the first layer: so many copies of each row.
    pub(crate) fn open_streams(&self, streams: &Streams, x: &[f32]) -> Buffer {
        let n_embd = self.plan.n_embd;
        let mut all = self.take(x.len() * streams.n);
        for (rows, row) in all.chunks_mut(n_embd * streams.n).zip(x.chunks(n_embd)) {
            rows.chunks_mut(n_embd).for_each(|stream| stream.copy_from_slice(row));
        }
        all
    }

    /// One stream of all, behind the last layer.
    pub(crate) fn close_streams(&self, streams: &Streams, x: &[f32]) -> Result<Buffer, EngineError> {
        let n_embd = self.plan.n_embd;
        let n_tokens = x.len() / (n_embd * streams.n);
        let mut out = self.take(n_tokens * n_embd);
        match &streams.end {
            StreamsEnd::Read(connection) => {
                let weights = self.read_streams(connection, x, n_tokens, &mut out)?;
                self.give([weights]);
            }
            StreamsEnd::Mean => {
                let (level, part) = (self.weights.level, (streams.n as f32).recip());
                out.fill(0.0);
                for (out, rows) in out.chunks_mut(n_embd).zip(x.chunks(n_embd * streams.n)) {
                    rows.chunks(n_embd).for_each(|stream| math::add_scaled(level, out, stream, part));
                }
            }
        }
        Ok(out)
    }

    /// What a branch reads of the streams `x` (`[n_tokens, n * n_embd]`) into `out` (`[n_tokens, n_embd]`), and the weights
    /// for [`Runner::write_streams`].
    pub(crate) fn read_streams(
        &self,
        connection: &Connection,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<Buffer, EngineError> {
        match connection {
            Connection::Weighed(c) => self.read_weighed(c, x, n_tokens, out),
            Connection::Gated(c) => self.read_gated(c, x, n_tokens, out),
        }
    }

    fn read_weighed(
        &self,
        c: &WeighedStreams,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<Buffer, EngineError> {
        let (width, n_weights, n_embd) = (c.matrix.n_cols, c.matrix.n_rows, self.plan.n_embd);
        let level = self.weights.level;
        let mut normed = self.take(x.len());
        self.norm_rows(&self.weights.norm(&c.norm)?, x, &mut normed, width);
        let mut weights = self.take(n_tokens * n_weights);
        self.products(&normed, n_tokens, vec![Product::plain(&c.matrix, &mut weights)])?;
        self.give([normed]);
        let (base, scale) = (self.weights.vector(&c.base)?, self.weights.vector(&c.scale)?);
        let n = width / n_embd;
        self.workers.install(|| {
            let tasks = out.par_chunks_mut(ROWS_PER_TASK * n_embd).zip(x.par_chunks(ROWS_PER_TASK * width));
            tasks.zip(weights.par_chunks_mut(ROWS_PER_TASK * n_weights)).for_each(|((out, x), weights)| {
                self.clock.time(WorkKind::Norm, || {
                    let rows = out.chunks_mut(n_embd).zip(x.chunks(width)).zip(weights.chunks_mut(n_weights));
                    for ((out, x), weights) in rows {
                        finish_weights(weights, n, &base, &scale, (c.eps, c.write));
                        out.fill(0.0);
                        for (stream, &weight) in x.chunks(n_embd).zip(&*weights) {
                            math::add_scaled(level, out, stream, weight);
                        }
                    }
                });
            });
        });
        Ok(weights)
    }

    fn read_gated(
        &self,
        c: &GatedStreams,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<Buffer, EngineError> {
        let (width, rank, n_embd) = (c.up.n_rows, c.down.n_rows, self.plan.n_embd);
        let n = width / n_embd;
        let part = (n as f32).recip();
        let mut normed = self.take(x.len());
        normed.copy_from_slice(x);
        self.norm_parts(&self.weights.norm(&c.norm)?, &mut normed, width, n);
        let mut narrow = self.take(n_tokens * rank);
        let n_writes = c.inject.as_ref().map_or(0, |inject| inject.n_rows);
        let mut writes = self.take(n_tokens * n_writes);
        let mut products = vec![Product::plain(&c.down, &mut narrow)];
        products.extend(c.inject.as_ref().map(|inject| Product::plain(inject, &mut writes)));
        self.products(&normed, n_tokens, products)?;
        for x in narrow.iter_mut() {
            let scaled = *x * part;
            *x = scaled * math::sigmoid(scaled);
        }
        for x in writes.iter_mut() {
            *x = 2.0 * math::sigmoid(*x * part);
        }
        let mut gates = self.take(n_tokens * width);
        self.products(&narrow, n_tokens, vec![Product::plain(&c.up, &mut gates)])?;
        let level = self.weights.level;
        self.workers.install(|| {
            let tasks =
                normed.par_chunks_mut(ROWS_PER_TASK * width).zip(gates.par_chunks(ROWS_PER_TASK * width));
            tasks.zip(out.par_chunks_mut(ROWS_PER_TASK * n_embd)).for_each(|((x, gates), out)| {
                self.clock.time(WorkKind::Activation, || {
                    math::times_sigmoid(level, x, gates);
                    for (out, x) in out.chunks_mut(n_embd).zip(x.chunks(width)) {
                        out.fill(0.0);
                        x.chunks(n_embd).for_each(|stream| math::add_scaled(level, out, stream, part));
                    }
                });
            });
        });
        self.give([normed, narrow, gates]);
        Ok(writes)
    }

    /// Shares the branch's output (`[n_tokens, n_embd]`) out among the streams.
    pub(crate) fn write_streams(
        &self,
        connection: &Connection,
        x: &mut [f32],
        weights: &[f32],
        branch: &[f32],
    ) {
        let (n_embd, n_weights, level) = (self.plan.n_embd, connection.n_weights(), self.weights.level);
        let (width, first, write) = match connection {
            Connection::Weighed(c) => (c.matrix.n_cols, c.matrix.n_cols / n_embd, c.write),
            Connection::Gated(c) => (c.up.n_rows, 0, StreamsWrite::Add { magnitude: 2.0, eps: 0.0 }),
        };
        let n = width / n_embd;
        self.workers.install(|| {
            let tasks =
                x.par_chunks_mut(ROWS_PER_TASK * width).zip(branch.par_chunks(ROWS_PER_TASK * n_embd));
            tasks.zip(weights.par_chunks(ROWS_PER_TASK * n_weights)).for_each_init(
                Vec::new,
                |scratch, ((x, branch), weights)| {
                    self.clock.time(WorkKind::Activation, || {
                        let rows =
                            x.chunks_mut(width).zip(branch.chunks(n_embd)).zip(weights.chunks(n_weights));
                        for ((x, branch), weights) in rows {
                            let (own, matrix) = weights[first..].split_at(n);
                            if matches!(write, StreamsWrite::Mix { .. }) {
                                mix(level, x, matrix, n, scratch);
                            }
                            for (stream, &weight) in x.chunks_mut(n_embd).zip(own) {
                                math::add_scaled(level, stream, branch, weight);
                            }
                        }
                    });
                },
            );
        });
    }
}

/// Products become weights: of reading, of writing, and the matrix from streams to streams.
fn finish_weights(
    weights: &mut [f32],
    n: usize,
    base: &[f32],
    scale: &[f32],
    (eps, write): (f32, StreamsWrite),
) {
    for (at, (weight, base)) in weights.iter_mut().zip(base).enumerate() {
        *weight = *weight * scale[(at / n).min(scale.len() - 1)] + base;
    }
    let (reads, rest) = weights.split_at_mut(n);
    for weight in reads {
        *weight = math::sigmoid(*weight) + eps;
    }
    let (magnitude, more) = match write {
        StreamsWrite::None => return,
        StreamsWrite::Add { magnitude, eps } => (magnitude, eps),
        StreamsWrite::Mix { .. } => (2.0, 0.0),
    };
    let (writes, matrix) = rest.split_at_mut(n);
    for weight in writes {
        *weight = magnitude * math::sigmoid(*weight) + more;
    }
    if let StreamsWrite::Mix { iterations } = write {
        sinkhorn(matrix, n, eps, iterations);
    }
}

/// Makes `[from, to]` doubly stochastic: softmax of the rows, then columns, and rows and columns in turn, are divided by
/// their sums (Sinkhorn and Knopp 1967; DeepSeek-V4, `hc_split_sinkhorn`).
fn sinkhorn(matrix: &mut [f32], n: usize, eps: f32, iterations: usize) {
    for row in matrix.chunks_mut(n) {
        let peak = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for x in row.iter_mut() {
            *x = math::exp(*x - peak);
        }
        let sum: f32 = row.iter().sum();
        for x in row.iter_mut() {
            *x = *x / sum + eps;
        }
    }
    for round in 0..iterations {
        if round > 0 {
            for row in matrix.chunks_mut(n) {
                let sum = row.iter().sum::<f32>() + eps;
                for x in row.iter_mut() {
                    *x /= sum;
                }
            }
        }
        for col in 0..n {
            let sum = matrix.iter().skip(col).step_by(n).sum::<f32>() + eps;
            matrix.iter_mut().skip(col).step_by(n).for_each(|x| *x /= sum);
        }
    }
}

/// `x_d = Σ_s C_sd x_s`.
fn mix(level: SimdLevel, x: &mut [f32], matrix: &[f32], n: usize, scratch: &mut Vec<f32>) {
    scratch.clear();
    scratch.extend_from_slice(x);
    x.fill(0.0);
    let n_embd = x.len() / n;
    for (to, stream) in x.chunks_mut(n_embd).enumerate() {
        for (from, row) in scratch.chunks(n_embd).zip(matrix.chunks(n)) {
            math::add_scaled(level, stream, from, row[to]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 31) % 103) as f32 / 51.0 - 1.0).collect()
    }

    #[test]
    fn rounds_make_a_matrix_doubly_stochastic() {
        let (n, eps) = (4, 1e-6);
        let mut matrix = values(16, 3);
        let before = matrix.clone();
        sinkhorn(&mut matrix, n, eps, 20);
        for at in 0..n {
            let row: f32 = matrix[at * n..][..n].iter().sum();
            let col: f32 = matrix.iter().skip(at).step_by(n).sum();
            assert!((row - 1.0).abs() < 1e-3 && (col - 1.0).abs() < 1e-5, "{row} {col}");
        }
        // One round in doubles: softmax, then columns.
        let mut once = before.clone();
        sinkhorn(&mut once, n, eps, 1);
        let soft = |from: usize, to: usize| {
            let sum: f64 = before[from * n..][..n].iter().map(|&x| f64::from(x).exp()).sum();
            f64::from(before[from * n + to]).exp() / sum + f64::from(eps)
        };
        for from in 0..n {
            for to in 0..n {
                let sum: f64 = (0..n).map(|s| soft(s, to)).sum::<f64>() + f64::from(eps);
                assert!((f64::from(once[from * n + to]) - soft(from, to) / sum).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn weights_equal_their_formulas() {
        let n = 2;
        let sig = |x: f32| 1.0 / (1.0 + (-x).exp());
        let (products, base) = (values(8, 1), values(8, 2));
        let scale = [0.5, 2.0, -1.5];
        let mut mixed = products.clone();
        finish_weights(&mut mixed, n, &base, &scale, (0.25, StreamsWrite::Mix { iterations: 3 }));
        let mut matrix: Vec<f32> = (4..8).map(|i| products[i] * scale[2] + base[i]).collect();
        sinkhorn(&mut matrix, n, 0.25, 3);
        let write = StreamsWrite::Add { magnitude: 3.0, eps: 0.5 };
        let mut added = products[..4].to_vec();
        finish_weights(&mut added, n, &base[..4], &scale[..2], (0.25, write));
        for i in 0..2 {
            let read = sig(products[i] * 0.5 + base[i]) + 0.25;
            let wrote = sig(products[n + i] * 2.0 + base[n + i]);
            assert!((mixed[i] - read).abs() < 1e-6 && (added[i] - read).abs() < 1e-6);
            assert!((mixed[n + i] - 2.0 * wrote).abs() < 1e-6);
            assert!((added[n + i] - (3.0 * wrote + 0.5)).abs() < 1e-6);
        }
        for (found, expected) in mixed[4..].iter().zip(&matrix) {
            assert!((found - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn streams_go_by_the_columns_of_the_matrix() {
        let mut x = [1.0, 2.0, 10.0, 20.0];
        mix(SimdLevel::detect(), &mut x, &[0.25, 0.75, 0.5, 0.5], 2, &mut Vec::new());
        assert_eq!(x, [5.25, 10.5, 5.75, 11.5]);
    }
}
