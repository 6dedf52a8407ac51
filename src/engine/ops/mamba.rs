//! Mamba (Gu, Dao 2023), section 3: `s_c[n] = s_c[n] exp(Δ_c A_c[n]) + Δ_c x_c B[n]`, `y_c = Σ_n s_c[n] C[n] + D_c x_c`,
//! gated by `silu(z)`.

use crate::core::simd::VectorLoop;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ConvEnd, LoadedConv, ScanPart, transposed, zeroed};
use crate::engine::ops::rowwise::{ValueFunction, map};
use crate::engine::plan::{GatedActivation, Mamba, Norm};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

/// Channels of one task.
pub(crate) const CHANNELS: usize = 64;

/// One token of some channels.
struct Step<'a> {
    /// `[n_states, channels]`, as are the decay rates.
    state: &'a mut [f32],
    a: &'a [f32],
    /// Columns of `a`, and the first that belongs to the channels.
    a_cols: (usize, usize),
    b: &'a [f32],
    c: &'a [f32],
    delta: &'a [f32],
    /// `delta * x`.
    input: &'a [f32],
    out: &'a mut [f32],
}

impl VectorLoop for Step<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { state, a, a_cols: (stride, first), b, c, delta, input, out } = self;
        let n = delta.len();
        // Lengths that are known to be the same need no checks inside the loop.
        let (input, out) = (&input[..n], &mut out[..n]);
        for (at, (row, (&b, &c))) in state.chunks_exact_mut(n).zip(b.iter().zip(c)).enumerate() {
            let a = &a[at * stride + first..][..n];
            for (i, s) in row.iter_mut().enumerate() {
                *s = *s * math::exp(delta[i] * a[i]) + input[i] * b;
                out[i] += *s * c;
            }
        }
    }
}

impl Runner<'_> {
    /// Mamba of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn mamba(
        &self,
        m: &Mamba,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_tokens, width, n_states) = (batch.n_tokens(), m.x.n_rows, m.n_states);
        let [mut raw, mut z, mut u, mut y] = [(); 4].map(|()| self.take(n_tokens * width));
        self.products(x, n_tokens, vec![Product::plain(&m.x, &mut raw), Product::plain(&m.z, &mut z)])?;
        let conv = LoadedConv::new(&self.weights, &m.conv)?;
        self.convolve(&conv, batch, &raw, &mut u, ConvEnd::Silu)?;
        self.slot("conv", &u, width);
        let mut narrow = self.take(n_tokens * m.step_in.n_rows);
        let [mut b, mut c] = [(); 2].map(|()| self.take(n_tokens * n_states));
        let products = vec![
            Product::plain(&m.step_in, &mut narrow),
            Product::plain(&m.b, &mut b),
            Product::plain(&m.c, &mut c),
        ];
        self.products(&u, n_tokens, products)?;
        self.norm_in_place(m.step_norm.as_ref(), &mut narrow, m.step_in.n_rows)?;
        self.norm_in_place(m.b_norm.as_ref(), &mut b, n_states)?;
        self.norm_in_place(m.c_norm.as_ref(), &mut c, n_states)?;
        // What went into the convolution is not needed any more.
        let mut steps = raw;
        self.products(&narrow, n_tokens, vec![Product::plain(&m.step, &mut steps)])?;
        let a = transposed(&self.weights.vector(&m.a)?, n_states);
        let d = self.weights.vector(&m.d)?;
        let level = self.weights.level;
        self.scan(batch, &mut y, ((width, CHANNELS), n_states * CHANNELS), |part, tile, buffer| {
            let ScanPart { tokens, columns: channels, state, .. } = part;
            let n = channels.len();
            let [step, input] = zeroed(buffer, [n, n]);
            let state = &mut state[..n_states * n];
            for (t, token) in tokens.enumerate() {
                let at = token * width + channels.start;
                let (x, y) = (&u[at..at + n], tile.row_mut(t));
                step.copy_from_slice(&steps[at..at + n]);
                map(level, ValueFunction::Softplus, None, step);
                for i in 0..n {
                    input[i] = step[i] * x[i];
                    y[i] = d[channels.start + i] * x[i];
                }
                level.vectorize(Step {
                    state: &mut *state,
                    a: &a,
                    a_cols: (width, channels.start),
                    b: &b[token * n_states..][..n_states],
                    c: &c[token * n_states..][..n_states],
                    delta: step,
                    input,
                    out: &mut *y,
                });
                math::gated(level, GatedActivation::Swiglu, &z[at..at + n], y);
            }
        })?;
        self.slot("scan", &y, width);
        let wanted = batch.select(&y, width);
        self.products(&wanted, batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        drop(wanted);
        self.give([steps, z, u, y, narrow, b, c]);
        Ok(())
    }

    /// Normalizes rows in place if there is a norm.
    pub(crate) fn norm_in_place(
        &self,
        norm: Option<&Norm>,
        x: &mut [f32],
        n_cols: usize,
    ) -> Result<(), EngineError> {
        if let Some(norm) = norm {
            self.norm_parts(&self.weights.norm(norm)?, x, n_cols, 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::simd::SimdLevel;

    #[test]
    fn a_step_equals_the_formula() {
        let (n, n_states, stride, first) = (3, 4, 5, 1);
        let value = |i: usize, seed: usize| ((i * 37 + seed * 11) % 23) as f32 / 11.0 - 1.0;
        let all = |n: usize, seed: usize| (0..n).map(|i| value(i, seed)).collect::<Vec<f32>>();
        let (mut state, a) = (all(n * n_states, 1), all(stride * n_states, 2));
        let (b, c, step, input) = (all(n_states, 3), all(n_states, 4), all(n, 5), all(n, 6));
        let (before, mut out) = (state.clone(), vec![0.5; n]);
        SimdLevel::detect().vectorize(Step {
            state: &mut state,
            a: &a,
            a_cols: (stride, first),
            b: &b,
            c: &c,
            delta: &step,
            input: &input,
            out: &mut out,
        });
        for ch in 0..n {
            let mut y = 0.5;
            for s in 0..n_states {
                let decay = (step[ch] * a[s * stride + first + ch]).exp();
                y += (before[s * n + ch] * decay + input[ch] * b[s]) * c[s];
            }
            assert!((out[ch] - y).abs() < 1e-5, "{ch}");
        }
    }
}
