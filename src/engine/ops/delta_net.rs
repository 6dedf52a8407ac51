//! Gated delta nets (Yang et al. 2024): per value head `S ← e^g S`, `d = β (v - Sᵀk)`, `S ← S + k dᵀ`,
//! `o = Sᵀq / sqrt(dk)`, with q and k of length 1, `β = sig(b)` and `g = A softplus(a + bias)`; then a norm per head and
//! the gate `silu(z)`.

use crate::core::simd::{SimdLevel, VectorLoop};
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ConvEnd, LoadedConv, softplus, zeroed};
use crate::engine::plan::{DeltaGates, DeltaNet, GatedActivation};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

/// Under the root of the lengths of queries and keys.
const EPS: f64 = 1e-6;

/// One token of the delta rule.
pub(super) struct DeltaStep<'a> {
    /// `[dk, dv]`.
    pub(super) state: &'a mut [f32],
    /// Per row of the state.
    pub(super) decay: &'a [f32],
    pub(super) beta: f32,
    pub(super) key: &'a [f32],
    pub(super) query: &'a [f32],
    pub(super) value: &'a [f32],
    /// What the keys recall, then what is written.
    pub(super) delta: &'a mut [f32],
    /// Zeros.
    pub(super) out: &'a mut [f32],
}

impl VectorLoop for DeltaStep<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { state, decay, beta, key, query, value, delta, out } = self;
        let n = value.len().max(1);
        delta.fill(0.0);
        for ((row, &w), &k) in state.chunks_exact_mut(n).zip(decay).zip(key) {
            for (s, d) in row.iter_mut().zip(&mut *delta) {
                *s *= w;
                *d += *s * k;
            }
        }
        for (d, &v) in delta.iter_mut().zip(value) {
            *d = beta * (v - *d);
        }
        for ((row, &k), &q) in state.chunks_exact_mut(n).zip(key).zip(query) {
            for ((s, &d), y) in row.iter_mut().zip(&*delta).zip(&mut *out) {
                *s += k * d;
                *y += q * *s;
            }
        }
    }
}

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
        self.scan(batch, &mut y, (inner, dv), |tokens, columns, tile, buffer| {
            let head = columns.start / dv;
            let key_head = if packed.is_some() { head / per_key } else { head % n_key_heads };
            let [state, q, k, decay, delta, core] = zeroed(buffer, [dk * dv, dk, dk, dk, dv, dv]);
            for (t, token) in tokens.enumerate() {
                let row = &qkv[token * width..][..width];
                of_length(level, &row[key_head * dk..][..dk], q, scale);
                of_length(level, &row[(n_key_heads + key_head) * dk..][..dk], k, 1.0);
                let (beta, step) = rows.of(token, head, n_heads);
                decay.fill(math::exp(a[head] * softplus(step + bias[head])));
                core.fill(0.0);
                level.vectorize(DeltaStep {
                    state: &mut *state,
                    decay,
                    beta: math::sigmoid(beta),
                    key: k,
                    query: q,
                    value: &row[2 * n_key_heads * dk + head * dv..][..dv],
                    delta: &mut *delta,
                    out: &mut *core,
                });
                let y = tile.row_mut(t);
                norm.row(level, core, y);
                math::gated(level, GatedActivation::Swiglu, &z[token * inner..][columns.clone()], y);
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
    fn a_delta_step_equals_the_formula() {
        let (dk, dv, beta) = (4, 19, 0.7);
        let all = |n: usize, seed: usize| {
            (0..n).map(|i| ((i * 53 + seed * 17) % 29) as f32 / 14.0 - 1.0).collect::<Vec<f32>>()
        };
        let (mut state, decay, key, query) = (all(dk * dv, 1), all(dk, 2), all(dk, 3), all(dk, 4));
        let (value, mut delta, mut out) = (all(dv, 5), vec![9.0; dv], vec![0.0; dv]);
        let before = state.clone();
        SimdLevel::detect().vectorize(DeltaStep {
            state: &mut state,
            decay: &decay,
            beta,
            key: &key,
            query: &query,
            value: &value,
            delta: &mut delta,
            out: &mut out,
        });
        for j in 0..dv {
            let recalled: f32 = (0..dk).map(|i| before[i * dv + j] * decay[i] * key[i]).sum();
            let d = beta * (value[j] - recalled);
            let o: f32 = (0..dk).map(|i| query[i] * (before[i * dv + j] * decay[i] + key[i] * d)).sum();
            assert!((out[j] - o).abs() < 1e-5, "{j}");
        }
    }

    #[test]
    fn packed_gates_go_by_key_head() {
        let packed: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let rows = GateRows { beta: &packed, alpha: &[], packed: Some(2) };
        assert_eq!([0, 1, 2, 3].map(|head| rows.of(0, head, 4)), [(0., 2.), (1., 3.), (4., 6.), (5., 7.)]);
        assert_eq!(rows.of(1, 2, 4), (12.0, 14.0));
    }
}
