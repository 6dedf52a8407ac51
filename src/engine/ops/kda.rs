//! Kimi delta attention (Kimi Linear, 2025): the gated delta rule with a decay per key channel,
//! `g = A softplus(f + bias)` or, bounded, `g = bound sig(|A| (f + bias))`; then a norm per head and a gate `sig`.

use crate::engine::EngineError;
use crate::engine::ops::delta_net::{DeltaStep, of_length};
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ConvEnd, LoadedConv, softplus, zeroed};
use crate::engine::plan::Kda;
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

/// `ln` of what stays of a key channel.
fn log_decay(a: f32, x: f32, bound: Option<f32>) -> f32 {
    match bound {
        Some(bound) => bound * math::sigmoid(a.abs() * x),
        None => a * softplus(x),
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
        let parts = [(&m.q, &m.convs[0], &mut q), (&m.k, &m.convs[1], &mut k), (&m.v, &m.convs[2], &mut v)];
        for (matrix, conv, out) in parts {
            self.products(x, n_tokens, vec![Product::plain(matrix, &mut raw)])?;
            let conv = LoadedConv::new(&self.weights, conv)?;
            self.convolve(&conv, batch, &raw, out, ConvEnd::Silu)?;
        }
        let mut beta = self.take(n_tokens * m.n_heads);
        self.products(x, n_tokens, vec![Product::plain(&m.beta, &mut beta)])?;
        let forget = self.low_rank(&m.forget, x, n_tokens, |x| x)?;
        let gate = self.low_rank(&m.gate, x, n_tokens, |x| x)?;
        let (a, bias) = (self.weights.vector(&m.a)?, self.weights.vector(&m.forget_bias)?);
        let norm = self.weights.norm(&m.norm)?;
        let level = self.weights.level;
        let scale = 1.0 / (dim as f64).sqrt();
        self.scan(batch, &mut y, (inner, dim), |tokens, columns, tile, buffer| {
            let head = columns.start / dim;
            let [state, query, key, decay, delta, core] =
                zeroed(buffer, [dim * dim, dim, dim, dim, dim, dim]);
            for (t, token) in tokens.enumerate() {
                let at = token * inner + columns.start..token * inner + columns.end;
                of_length(level, &q[at.clone()], query, scale);
                of_length(level, &k[at.clone()], key, 1.0);
                for ((w, &f), &bias) in decay.iter_mut().zip(&forget[at.clone()]).zip(&bias[columns.clone()])
                {
                    *w = math::exp(log_decay(a[head], f + bias, m.bound));
                }
                core.fill(0.0);
                level.vectorize(DeltaStep {
                    state: &mut *state,
                    decay,
                    beta: math::sigmoid(beta[token * m.n_heads + head]),
                    key,
                    query,
                    value: &v[at.clone()],
                    delta: &mut *delta,
                    out: &mut *core,
                });
                let y = tile.row_mut(t);
                norm.row(level, core, y);
                math::times_sigmoid(y, &gate[at]);
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
