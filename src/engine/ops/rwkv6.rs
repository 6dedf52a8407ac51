//! RWKV 6 (Peng et al. 2024, "Finch"): per head `o_j = Σ_i r_i (u_i k_i v_j + S_ij)`, `S_ij ← w_i S_ij + k_i v_j`, with
//! `w = exp(-exp(decay))`; and the form in a Qwen 2 body, `S ← w S + (1 - w) k vᵀ`, `o = Sᵀr / sqrt(dim)`.

use crate::core::simd::VectorLoop;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{LinearStep, linear_step, zeroed};
use crate::engine::plan::{LowRank, Rwkv6};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;

/// One token of a head whose state is read before it is written.
struct Step<'a> {
    state: &'a mut [f32],
    decay: &'a [f32],
    first: &'a [f32],
    key: &'a [f32],
    receptance: &'a [f32],
    value: &'a [f32],
    /// Zeros.
    out: &'a mut [f32],
}

impl VectorLoop for Step<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { state, decay, first, key, receptance, value, out } = self;
        let rows = state.chunks_exact_mut(value.len().max(1));
        for ((((row, &w), &u), &k), &r) in rows.zip(decay).zip(first).zip(key).zip(receptance) {
            for ((s, &v), y) in row.iter_mut().zip(value).zip(&mut *out) {
                let kv = k * v;
                *y += r * (u * kv + *s);
                *s = *s * w + kv;
            }
        }
    }
}

/// What the heads read, `[n_tokens, ..]` each.
struct Inputs {
    w: Buffer,
    k: Buffer,
    v: Buffer,
    r: Buffer,
    g: Buffer,
}

impl Runner<'_> {
    /// RWKV 6 of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn rwkv6(
        &self,
        m: &Rwkv6,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let inner = m.r.n_rows;
        let inputs = self.rwkv6_inputs(m, batch, x)?;
        let mut y = self.take(batch.n_tokens() * inner);
        self.rwkv6_heads(m, batch, &inputs, &mut y)?;
        self.slot("scan", &y, inner);
        if let Some(norm) = &m.norm {
            self.norm_parts(&self.weights.norm(norm)?, &mut y, inner, m.n_heads);
        }
        let is_silu = m.first.is_some();
        self.each_row((&mut y, inner), (&inputs.g, inner), |y, g| {
            for (y, &g) in y.iter_mut().zip(g) {
                let gate = math::sigmoid(g);
                *y *= if is_silu { g * gate } else { gate };
            }
        });
        self.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        let Inputs { w, k, v, r, g } = inputs;
        self.give([w, k, v, r, g, y]);
        Ok(())
    }

    fn rwkv6_inputs(&self, m: &Rwkv6, batch: &ChunkBatch, x: &[f32]) -> Result<Inputs, EngineError> {
        let (n_tokens, n_embd) = (batch.n_tokens(), m.r.n_cols);
        let shifted = self.shifted(batch, x, n_embd);
        let chooser = self.lerp(&m.lerp_x, x, &shifted)?;
        let bias = self.weights.vector(&m.decay_bias)?;
        // What one of the five reads: x + sx (lerp + W2 tanh(W1 chooser)).
        let seen = |at: usize| -> Result<Buffer, EngineError> {
            let lerp = self.weights.vector(&m.lerp[at])?;
            let low_rank = LowRank { first: m.mix_in[at].clone(), second: Some(m.mix_out[at].clone()) };
            let mut seen = self.low_rank(&low_rank, &chooser, n_tokens, math::tanh)?;
            self.each_row((&mut seen, n_embd), (&shifted, n_embd), |y, sx| {
                y.iter_mut().zip(sx).zip(&lerp).for_each(|((y, &sx), &lerp)| *y = sx * (lerp + *y));
            });
            self.each_row((&mut seen, n_embd), (x, n_embd), |y, x| {
                y.iter_mut().zip(x).for_each(|(y, &x)| *y += x);
            });
            Ok(seen)
        };
        let project = |at: usize, matrix| -> Result<Buffer, EngineError> {
            let x = seen(at)?;
            let out = self.low_rank(&LowRank { first: matrix, second: None }, &x, n_tokens, |x| x)?;
            self.give([x]);
            Ok(out)
        };
        let decays_of = seen(0)?;
        let mut w = self.low_rank(&m.decay, &decays_of, n_tokens, math::tanh)?;
        self.give([decays_of]);
        w.chunks_mut(bias.len().max(1)).for_each(|row| {
            row.iter_mut().zip(&bias).for_each(|(w, &bias)| *w = math::exp(-math::exp(*w + bias)));
        });
        let inputs = Inputs {
            w,
            k: project(1, m.k.clone())?,
            v: project(2, m.v.clone())?,
            r: project(3, m.r.clone())?,
            g: project(4, m.g.clone())?,
        };
        self.give([shifted, chooser]);
        Ok(inputs)
    }

    fn rwkv6_heads(
        &self,
        m: &Rwkv6,
        batch: &ChunkBatch,
        inputs: &Inputs,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let (dim, inner, kv_width) = (m.head_dim, m.r.n_rows, m.k.n_rows);
        let first = self.weights.optional(m.first.as_ref())?;
        let level = self.weights.level;
        let scale = 1.0 / (dim as f32).sqrt();
        self.scan(batch, y, (inner, dim), |tokens, columns, tile, buffer| {
            let kv_head = columns.start / dim / (m.n_heads / m.n_kv_heads);
            let [state, scaled_key, scaled_r] = zeroed(buffer, [dim * dim, dim, dim]);
            for (t, token) in tokens.enumerate() {
                let kv = token * kv_width + kv_head * dim;
                let (key, value) = (&inputs.k[kv..kv + dim], &inputs.v[kv..kv + dim]);
                let receptance = &inputs.r[token * inner..][columns.clone()];
                let decay = &inputs.w[token * inner..][columns.clone()];
                let out = tile.row_mut(t);
                out.fill(0.0);
                let state = &mut *state;
                if let Some(first) = &first {
                    let first = &first[columns.clone()];
                    level.vectorize(Step { state, decay, first, key, receptance, value, out });
                } else {
                    for i in 0..dim {
                        scaled_key[i] = key[i] * (1.0 - decay[i]);
                        scaled_r[i] = receptance[i] * scale;
                    }
                    let (key, query) = (&*scaled_key, &*scaled_r);
                    linear_step(level, LinearStep { state, decay, key, query, value, out });
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::simd::SimdLevel;

    #[test]
    fn a_step_reads_the_state_before_it_writes() {
        let n = 6;
        let all = |n: usize, seed: usize| {
            (0..n).map(|i| ((i * 29 + seed * 13) % 31) as f32 / 15.0 - 1.0).collect::<Vec<f32>>()
        };
        let (mut state, decay, first, key, receptance, value) =
            (all(n * n, 1), all(n, 2), all(n, 3), all(n, 4), all(n, 5), all(n, 6));
        let (before, mut out) = (state.clone(), vec![0.0; n]);
        SimdLevel::detect().vectorize(Step {
            state: &mut state,
            decay: &decay,
            first: &first,
            key: &key,
            receptance: &receptance,
            value: &value,
            out: &mut out,
        });
        for j in 0..n {
            let o: f32 =
                (0..n).map(|i| receptance[i] * (first[i] * key[i] * value[j] + before[i * n + j])).sum();
            assert!((out[j] - o).abs() < 1e-5);
            for i in 0..n {
                let s = before[i * n + j] * decay[i] + key[i] * value[j];
                assert!((state[i * n + j] - s).abs() < 1e-5);
            }
        }
    }
}
