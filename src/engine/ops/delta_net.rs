//! Gated delta nets (Yang et al. 2024): per value head `S ← e^g S`, `d = β (v - Sᵀk)`, `S ← S + k dᵀ`,
//! `o = Sᵀq / sqrt(dk)`, with q and k of length 1, `β = sig(b)` and `g = A softplus(a + bias)`; then a norm per head and
//! the gate `silu(z)`, or `sig(z)`.

use crate::arch::graph::GdnGate;
use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::columns::{DeltaRule, HeadState, TOKENS, parts, rows_of, state_floats};
use crate::engine::ops::logs::softplus;
use crate::engine::ops::math;
use crate::engine::ops::matmul::{MatrixTile, MatrixView};
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ConvEnd, LoadedConv, ScanPart, zeroed};
use crate::engine::plan::{DeltaGates, DeltaNet, GatedActivation};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

/// Under the root of the lengths of queries and keys.
const EPS: f64 = 1e-6;

/// `out = factor * x / sqrt(Σ x² + eps)`.
pub(super) fn of_length(level: SimdLevel, x: &[f32], out: &mut [f32], factor: f64) {
    let squares = math::moments(level, x, 0.0).1;
    let scale = (factor / (squares + EPS).sqrt()) as f32;
    out.iter_mut().zip(x).for_each(|(y, &x)| *y = scale * x);
}

/// Write gate and step size of a head, before their functions.
struct GateRows<'a> {
    beta: &'a [f32],
    alpha: &'a [f32],
    /// Value heads of a key head, if both are in one row.
    packed: Option<usize>,
}

impl GateRows<'_> {
    fn of(&self, token: usize, head: usize, n_heads: usize) -> (f32, f32) {
        match self.packed {
            None => (self.beta[token * n_heads + head], self.alpha[token * n_heads + head]),
            Some(n) => {
                let at = token * 2 * n_heads + head / n * 2 * n + head % n;
                (self.beta[at], self.beta[at + n])
            }
        }
    }
}

impl Runner<'_> {
    /// The delta net of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn delta_net(
        &self,
        m: &DeltaNet,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let &DeltaNet { n_heads, n_key_heads, dk, dv, .. } = m;
        let (n_tokens, width, inner) = (batch.n_tokens(), m.qkv.n_rows, m.z.n_rows);
        let [mut raw, mut qkv] = [(); 2].map(|()| self.take(n_tokens * width));
        let [mut z, mut y] = [(); 2].map(|()| self.take(n_tokens * inner));
        let mut gates = self.take(2 * n_tokens * n_heads);
        let (both, half) = (&mut gates[..], n_tokens * n_heads);
        let mut products = vec![Product::plain(&m.qkv, &mut raw), Product::plain(&m.z, &mut z)];
        let per_key = n_heads / n_key_heads;
        let packed = match &m.gates {
            DeltaGates::Packed(matrix) => {
                products.push(Product::plain(matrix, both));
                Some(per_key)
            }
            DeltaGates::Apart { beta, alpha } => {
                let (b, a) = both.split_at_mut(half);
                products.extend([Product::plain(beta, b), Product::plain(alpha, a)]);
                None
            }
        };
        self.products(x, n_tokens, products)?;
        let rows = GateRows { beta: &gates, alpha: &gates[half..], packed };
        let conv = LoadedConv::new(&self.weights, &m.conv)?;
        self.convolve(&conv, batch, &raw, &mut qkv, ConvEnd::Silu)?;
        self.slot("conv", &qkv, width);
        let (a, bias) = (self.weights.vector(&m.a)?, self.weights.vector(&m.step_bias)?);
        let norm = self.weights.norm(&m.norm)?;
        let level = self.weights.level;
        let scale = 1.0 / (dk as f64).sqrt();
        self.scan(batch, &mut y, ((inner, dv), state_floats(dk, dv)), |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / dv;
            let key_head = if packed.is_some() { head / per_key } else { head % n_key_heads };
            let [q, k, decay, core] = zeroed(buffer, [TOKENS * dk, TOKENS * dk, TOKENS * dk, TOKENS * dv]);
            let mut state = HeadState::new(state, dk, dv);
            let mut betas = [0.0; TOKENS];
            for part in parts(tokens.clone()) {
                let n = part.len();
                for (t, token) in part.clone().enumerate() {
                    let (row, own) = (&qkv[token * width..][..width], t * dk..(t + 1) * dk);
                    of_length(level, &row[key_head * dk..][..dk], &mut q[own.clone()], scale);
                    of_length(level, &row[(n_key_heads + key_head) * dk..][..dk], &mut k[own.clone()], 1.0);
                    let (beta, step) = rows.of(token, head, n_heads);
                    betas[t] = math::sigmoid(beta);
                    decay[own].fill(math::exp(a[head] * softplus(step + bias[head])));
                }
                let values = rows_of(&qkv, &part, (2 * n_key_heads * dk + head * dv, dv, width));
                let [decay, key, query] = [&*decay, &*k, &*q].map(|x| MatrixView::new(x, n, dk, dk));
                let rule = DeltaRule { decay, beta: &betas, key, query };
                state.take_in(level, &rule, values, &mut MatrixTile::whole(core, n, dv));
                for (core, token) in core.chunks_exact(dv).zip(part) {
                    let y = tile.row_mut(token - tokens.start);
                    norm.row(level, core, y);
                    let z = &z[token * inner..][columns.clone()];
                    match m.gate {
                        GdnGate::Silu => math::gated(level, GatedActivation::Swiglu, z, y),
                        GdnGate::Sigmoid => math::times_sigmoid(level, y, z),
                    }
                }
            }
        })?;
        self.slot("scan", &y, inner);
        let wanted = batch.select(&y, inner);
        self.products(&wanted, batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        drop(wanted);
        self.give([raw, qkv, z, y, gates]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_gates_go_by_key_head() {
        let packed: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let rows = GateRows { beta: &packed, alpha: &[], packed: Some(2) };
        assert_eq!([0, 1, 2, 3].map(|head| rows.of(0, head, 4)), [(0., 2.), (1., 3.), (4., 6.), (5., 7.)]);
        assert_eq!(rows.of(1, 2, 4), (12.0, 14.0));
    }
}
