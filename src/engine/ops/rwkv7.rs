//! RWKV 7 (Peng et al. 2025, "Goose"): per head, with values in rows of the state,
//! `S ← S diag(w) - (S κ)(κ a)ᵀ + v kᵀ`, `o = S r`, where `κ` is the key of length 1 that is removed.

use crate::core::simd::VectorLoop;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::zeroed;
use crate::engine::plan::{LowRank, Rwkv7, Vector};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;

/// `exp(DECAY sig(..))` is what stays of a state: at least `exp(-exp(-0.5))`.
const DECAY: f32 = -0.606_531;

/// One token of a head; the state is `[key, value]`.
struct Step<'a> {
    state: &'a mut [f32],
    decay: &'a [f32],
    key: &'a [f32],
    /// The key that is removed, and how much of it.
    removed: &'a [f32],
    rate: &'a [f32],
    receptance: &'a [f32],
    value: &'a [f32],
    /// What the removed key recalls.
    recalled: &'a mut [f32],
    /// Zeros.
    out: &'a mut [f32],
}

impl VectorLoop for Step<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { state, decay, key, removed, rate, receptance, value, recalled, out } = self;
        let n = value.len().max(1);
        recalled.fill(0.0);
        for (row, &kappa) in state.chunks_exact(n).zip(removed) {
            for (&s, y) in row.iter().zip(&mut *recalled) {
                *y += s * kappa;
            }
        }
        for (at, row) in state.chunks_exact_mut(n).enumerate() {
            let (w, k, lost, r) = (decay[at], key[at], removed[at] * rate[at], receptance[at]);
            for (((s, &v), &old), y) in row.iter_mut().zip(value).zip(&*recalled).zip(&mut *out) {
                *s = *s * w + v * k - old * lost;
                *y += *s * r;
            }
        }
    }
}

/// Vectors as long as the heads are together.
struct Vectors {
    k_k: Vec<f32>,
    k_a: Vec<f32>,
    r_k: Vec<f32>,
}

/// What the heads read, `[n_tokens, ..]` each.
struct Inputs {
    r: Buffer,
    w: Buffer,
    k: Buffer,
    v: Buffer,
    a: Buffer,
    g: Option<Buffer>,
}

impl Runner<'_> {
    /// RWKV 7 of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn rwkv7(
        &self,
        m: &Rwkv7,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let inner = m.r.n_rows;
        let inputs = self.rwkv7_inputs(m, batch, x)?;
        let mut y = self.take(batch.n_tokens() * inner);
        self.rwkv7_heads(m, batch, &inputs, &mut y)?;
        self.slot("scan", &y, inner);
        let Inputs { r, w, k, v, a, g } = inputs;
        if let Some(g) = g {
            self.each_row((&mut y, inner), (&g, inner), |y, g| {
                y.iter_mut().zip(g).for_each(|(y, &g)| *y *= g);
            });
            self.give([g]);
        }
        self.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        self.give([r, w, k, v, a, y]);
        Ok(())
    }

    fn rwkv7_inputs(&self, m: &Rwkv7, batch: &ChunkBatch, x: &[f32]) -> Result<Inputs, EngineError> {
        let (n_tokens, n_embd) = (batch.n_tokens(), m.r.n_cols);
        let shifted = self.shifted(batch, x, n_embd);
        let seen = |at: usize| self.lerp(&m.lerp[at], x, &shifted);
        let project = |x: &[f32], matrix: &_| -> Result<Buffer, EngineError> {
            let mut out = self.take(n_tokens * m.r.n_rows);
            self.products(x, n_tokens, vec![Product::plain(matrix, &mut out)])?;
            Ok(out)
        };
        // A low-rank part with its bias, through a function.
        let part =
            |x: &[f32], (low_rank, bias): &(LowRank, Vector), inner: fn(f32) -> f32, end: fn(f32) -> f32| {
                let bias = self.weights.vector(bias)?;
                let mut out = self.low_rank(low_rank, x, n_tokens, inner)?;
                out.chunks_mut(bias.len().max(1))
                    .for_each(|row| row.iter_mut().zip(&bias).for_each(|(y, &b)| *y = end(*y + b)));
                Ok::<_, EngineError>(out)
            };
        let (r_of, w_of, k_of, v_of, a_of) = (seen(0)?, seen(1)?, seen(2)?, seen(3)?, seen(4)?);
        let r = project(&r_of, &m.r)?;
        let w = part(&w_of, &m.w, math::tanh, |w| math::exp(DECAY * math::sigmoid(w)))?;
        let k = project(&k_of, &m.k)?;
        let mut v = project(&v_of, &m.v)?;
        match &m.v_mix {
            None => drop(batch.carried.set(v.to_vec())),
            Some(mix) => {
                let share = part(&v_of, mix, |x| x, math::sigmoid)?;
                let first = batch.carried.get().map_or(&[][..], Vec::as_slice);
                for ((v, &first), &share) in v.iter_mut().zip(first).zip(&*share) {
                    *v += (first - *v) * share;
                }
                self.give([share]);
            }
        }
        let a = part(&a_of, &m.a, |x| x, math::sigmoid)?;
        let g = match &m.g {
            Some(low_rank) => {
                let g_of = seen(5)?;
                let g = self.low_rank(low_rank, &g_of, n_tokens, math::sigmoid)?;
                self.give([g_of]);
                Some(g)
            }
            None => None,
        };
        self.give([shifted, r_of, w_of, k_of, v_of, a_of]);
        Ok(Inputs { r, w, k, v, a, g })
    }

    fn rwkv7_heads(
        &self,
        m: &Rwkv7,
        batch: &ChunkBatch,
        inputs: &Inputs,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let (dim, inner) = (m.head_dim, m.r.n_rows);
        let vector = |vector: &Vector| self.weights.vector(vector);
        let vectors = Vectors { k_k: vector(&m.k_k)?, k_a: vector(&m.k_a)?, r_k: vector(&m.r_k)? };
        let norm = m.norm.as_ref().map(|norm| self.weights.norm(norm)).transpose()?;
        let level = self.weights.level;
        self.scan(batch, y, (inner, dim), |tokens, columns, tile, buffer| {
            let [state, key, removed, recalled] = zeroed(buffer, [dim * dim, dim, dim, dim]);
            let mut scratch = Vec::new();
            let of = |vector: &'_ [f32], at: usize| vector[columns.start + at];
            for (t, token) in tokens.enumerate() {
                let at = token * inner + columns.start..token * inner + columns.end;
                let [r, w, k, v, a] =
                    [&inputs.r, &inputs.w, &inputs.k, &inputs.v, &inputs.a].map(|part| &part[at.clone()]);
                for i in 0..dim {
                    removed[i] = k[i] * of(&vectors.k_k, i);
                    let weighed = k[i] * of(&vectors.k_a, i);
                    key[i] = k[i] + a[i] * weighed - weighed;
                }
                let length = math::moments(level, removed, 0.0).1.sqrt().max(1e-12);
                math::scale_and_cap(level, removed, (1.0 / length) as f32, None);
                let out = tile.row_mut(t);
                out.fill(0.0);
                level.vectorize(Step {
                    state: &mut *state,
                    decay: w,
                    key,
                    removed,
                    rate: a,
                    receptance: r,
                    value: v,
                    recalled: &mut *recalled,
                    out: &mut *out,
                });
                if let Some(norm) = &norm {
                    norm.head(level, out, columns.start / dim, &mut scratch);
                }
                let bonus: f32 = (0..dim).map(|i| key[i] * r[i] * of(&vectors.r_k, i)).sum();
                math::add_scaled(level, out, v, bonus);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::simd::SimdLevel;

    #[test]
    fn a_step_equals_the_formula() {
        let n = 5;
        let all = |n: usize, seed: usize| {
            (0..n).map(|i| ((i * 43 + seed * 19) % 37) as f32 / 18.0 - 1.0).collect::<Vec<f32>>()
        };
        let (mut state, decay, key, removed) = (all(n * n, 1), all(n, 2), all(n, 3), all(n, 4));
        let (rate, receptance, value) = (all(n, 5), all(n, 6), all(n, 7));
        let (before, mut recalled, mut out) = (state.clone(), vec![3.0; n], vec![0.0; n]);
        SimdLevel::detect().vectorize(Step {
            state: &mut state,
            decay: &decay,
            key: &key,
            removed: &removed,
            rate: &rate,
            receptance: &receptance,
            value: &value,
            recalled: &mut recalled,
            out: &mut out,
        });
        for i in 0..n {
            let old: f32 = (0..n).map(|m| before[m * n + i] * -removed[m]).sum();
            let o: f32 = (0..n)
                .map(|j| {
                    let s = decay[j] * before[j * n + i] + value[i] * key[j] + old * removed[j] * rate[j];
                    s * receptance[j]
                })
                .sum();
            assert!((out[i] - o).abs() < 1e-5, "{i}");
        }
    }
}
