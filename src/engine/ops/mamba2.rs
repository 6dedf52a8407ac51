//! Mamba 2 (Dao, Gu 2024), the recurrent form of state-space duality: per head
//! `s[n] = s[n] exp(Δ A) + Δ B[n] x`, `y = Σ_n C[n] s[n] + D x`, gated by `silu(z)`, then normed.

use crate::engine::EngineError;
use crate::engine::ops::columns::{HeadState, LinearRule, TOKENS, parts, rows_of, state_floats};
use crate::engine::ops::logs::softplus;
use crate::engine::ops::math;
use crate::engine::ops::matmul::MatrixView;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ConvEnd, LoadedConv, ScanPart, zeroed};
use crate::engine::plan::{GatedActivation, Mamba2};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// Mamba 2 of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn mamba2(
        &self,
        m: &Mamba2,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let &Mamba2 { n_heads, head_dim, n_groups, n_states, .. } = m;
        let (n_tokens, width, inner) = (batch.n_tokens(), m.xbc.n_rows, m.z.n_rows);
        let [mut raw, mut xbc] = [(); 2].map(|()| self.take(n_tokens * width));
        let [mut z, mut y] = [(); 2].map(|()| self.take(n_tokens * inner));
        let mut steps = self.take(n_tokens * n_heads);
        let products = vec![
            Product::plain(&m.z, &mut z),
            Product::plain(&m.xbc, &mut raw),
            Product::plain(&m.step, &mut steps),
        ];
        self.products(x, n_tokens, products)?;
        let conv = LoadedConv::new(&self.weights, &m.conv)?;
        self.convolve(&conv, batch, &raw, &mut xbc, ConvEnd::Silu)?;
        self.slot("conv", &xbc, width);
        let [a, d, bias] = [&m.a, &m.d, &m.step_bias].map(|vector| self.weights.vector(vector));
        let (a, d, bias) = (a?, d?, bias?);
        let level = self.weights.level;
        let n_state = state_floats(n_states, head_dim);
        self.scan(batch, &mut y, ((inner, head_dim), n_state), |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / head_dim;
            let group = head / (n_heads / n_groups);
            let [decay, input] = zeroed(buffer, [TOKENS * n_states, TOKENS * head_dim]);
            let mut state = HeadState::new(state, n_states, head_dim);
            let values = |token: usize| &xbc[token * width..][columns.clone()];
            for part in parts(tokens.clone()) {
                for (t, token) in part.clone().enumerate() {
                    let step = softplus(steps[token * n_heads + head] + bias[head]).max(m.step_min);
                    decay[t * n_states..][..n_states].fill(math::exp(step * a[head]));
                    let input = &mut input[t * head_dim..][..head_dim];
                    input.iter_mut().zip(values(token)).for_each(|(y, &x)| *y = step * x);
                }
                let n = part.len();
                let of_group =
                    |group: usize| rows_of(&xbc, &part, (inner + group * n_states, n_states, width));
                let rule = LinearRule {
                    decay: MatrixView::new(decay, n, n_states, n_states),
                    key: of_group(group),
                    query: of_group(n_groups + group),
                };
                let mut tile = tile.rows_mut(part.start - tokens.start..part.end - tokens.start);
                state.take_in(level, &rule, MatrixView::new(input, n, head_dim, head_dim), &mut tile);
                for (t, token) in part.enumerate() {
                    let y = tile.row_mut(t);
                    math::add_scaled(level, y, values(token), d[head]);
                    math::gated(level, GatedActivation::Swiglu, &z[token * inner..][columns.clone()], y);
                }
            }
        })?;
        self.slot("scan", &y, inner);
        let wanted = batch.gather(&mut y, inner);
        if let Some(norm) = &m.norm {
            self.norm_parts(&self.weights.norm(norm)?, wanted, inner, m.n_groups);
        }
        self.products(wanted, batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        self.give([raw, xbc, z, y, steps]);
        Ok(())
    }
}
