//! Kimi delta attention (Kimi Linear, 2025): the gated delta rule with a decay per key channel,
//! `g = A softplus(f + bias)` or, bounded, `g = bound sig(|A| (f + bias))`; then a norm per head and a gate `sig`.

use crate::core::simd::VectorLoop;
use crate::engine::EngineError;
use crate::engine::ops::columns::{DeltaRule, HeadState, TOKENS, parts, rows_of, state_floats};
use crate::engine::ops::delta_net::of_length;
use crate::engine::ops::logs::softplus;
use crate::engine::ops::math;
use crate::engine::ops::matmul::{MatrixTile, MatrixView};
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ConvEnd, LoadedConv, ScanPart, zeroed};
use crate::engine::ops::rowwise::ValueFunction;
use crate::engine::plan::Kda;
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

/// `ln` of what stays of a key channel.
#[expect(clippy::inline_always, reason = "it must be compiled inside the level's function")]
#[inline(always)]
fn log_decay(a: f32, x: f32, bound: Option<f32>) -> f32 {
    match bound {
        Some(bound) => bound * math::sigmoid(a.abs() * x),
        None => a * softplus(x),
    }
}

/// What stays of the key channels of a head, from what they forget before its function.
struct DecayLoop<'a> {
    a: f32,
    bound: Option<f32>,
    bias: &'a [f32],
    x: &'a mut [f32],
}

impl VectorLoop for DecayLoop<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { a, bound, bias, x } = self;
        for (x, &bias) in x.iter_mut().zip(bias) {
            *x = math::exp(log_decay(a, *x + bias, bound));
        }
    }
}

impl Runner<'_> {
    /// Kimi delta attention of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn kda(
        &self,
        m: &Kda,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_tokens, dim, inner) = (batch.n_tokens(), m.head_dim, m.q.n_rows);
        let [mut raw, mut q, mut k, mut v, mut y] = [(); 5].map(|()| self.take(n_tokens * inner));
        let streams = [(&m.q, &m.convs[0], &mut q), (&m.k, &m.convs[1], &mut k), (&m.v, &m.convs[2], &mut v)];
        for (matrix, conv, out) in streams {
            self.products(x, n_tokens, vec![Product::plain(matrix, &mut raw)])?;
            let conv = LoadedConv::new(&self.weights, conv)?;
            self.convolve(&conv, batch, &raw, out, ConvEnd::Silu)?;
        }
        let mut beta = self.take(n_tokens * m.n_heads);
        self.products(x, n_tokens, vec![Product::plain(&m.beta, &mut beta)])?;
        let forget = self.low_rank(&m.forget, x, n_tokens, ValueFunction::Same)?;
        let gate = self.low_rank(&m.gate, x, n_tokens, ValueFunction::Same)?;
        let (a, bias) = (self.weights.vector(&m.a)?, self.weights.vector(&m.forget_bias)?);
        let norm = self.weights.norm(&m.norm)?;
        let level = self.weights.level;
        let scale = 1.0 / (dim as f64).sqrt();
        self.scan(batch, &mut y, ((inner, dim), state_floats(dim, dim)), |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / dim;
            let [query, key, decay, core] = zeroed(buffer, [TOKENS * dim; 4]);
            let mut state = HeadState::new(state, dim, dim);
            let mut betas = [0.0; TOKENS];
            for part in parts(tokens.clone()) {
                let n = part.len();
                for (t, token) in part.clone().enumerate() {
                    let at = token * inner + columns.start..token * inner + columns.end;
                    let own = t * dim..(t + 1) * dim;
                    of_length(level, &q[at.clone()], &mut query[own.clone()], scale);
                    of_length(level, &k[at.clone()], &mut key[own.clone()], 1.0);
                    betas[t] = math::sigmoid(beta[token * m.n_heads + head]);
                    let out = &mut decay[own];
                    out.copy_from_slice(&forget[at]);
                    let bias = &bias[columns.clone()];
                    level.vectorize(DecayLoop { a: a[head], bound: m.bound, bias, x: out });
                }
                let values = rows_of(&v, &part, (columns.start, dim, inner));
                let [decay, key, query] = [&*decay, &*key, &*query].map(|x| MatrixView::new(x, n, dim, dim));
                let rule = DeltaRule { decay, beta: &betas, key, query };
                state.take_in(level, &rule, values, &mut MatrixTile::whole(core, n, dim));
                for (core, token) in core.chunks_exact(dim).zip(part) {
                    let y = tile.row_mut(token - tokens.start);
                    norm.row(level, core, y);
                    math::times_sigmoid(level, y, &gate[token * inner..][columns.clone()]);
                }
            }
        })?;
        self.slot("scan", &y, inner);
        self.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        self.give([raw, q, k, v, y, beta, forget, gate]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_replaces_the_softplus_and_takes_either_sign() {
        assert!((log_decay(-2.0, 1.0, None) + 2.0 * 1.313_261_7).abs() < 1e-5);
        let expected = -5.0 / (1.0 + (-2.0f32).exp());
        for a in [2.0, -2.0] {
            assert!((log_decay(a, 1.0, Some(-5.0)) - expected).abs() < 1e-5);
        }
    }
}
