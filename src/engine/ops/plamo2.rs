//! The state-space mixer of PLaMo 2 (Preferred Networks 2025): Mamba 2 whose gate and values stand head by head in one
//! projection, and whose `B`, `C` and steps are made of the convolved values and normed,
//! `[B|C|δ] = norm(W u)`, `Δ = softplus(V δ + bias)`. Per head `s[n] = s[n] exp(Δ A) + Δ B[n] u`,
//! `y = (Σ_n C[n] s[n] + D u) silu(z)`.

use crate::engine::EngineError;
use crate::engine::ops::columns::{HeadState, LinearRule, TOKENS, parts, rows_of, state_floats};
use crate::engine::ops::logs::softplus;
use crate::engine::ops::math;
use crate::engine::ops::matmul::MatrixView;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ConvEnd, LoadedConv, ScanPart, zeroed};
use crate::engine::plan::{GatedActivation, Plamo2};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;

/// What the states take in, of all tokens.
struct Inputs {
    /// `[n_tokens, n_states]`.
    b: Buffer,
    /// `[n_tokens, n_states]`.
    c: Buffer,
    /// `[n_tokens, n_heads]`, before the softplus.
    steps: Buffer,
}

impl Runner<'_> {
    /// PLaMo 2's mixer of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn plamo2(
        &self,
        m: &Plamo2,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let &Plamo2 { n_heads, head_dim, n_states, .. } = m;
        let (n_tokens, inner, width) = (batch.n_tokens(), m.out.n_cols, m.zx.n_rows);
        let mut zx = self.take(n_tokens * width);
        self.products(x, n_tokens, vec![Product::plain(&m.zx, &mut zx)])?;
        let [mut raw, mut u] = [(); 2].map(|()| self.take(n_tokens * inner));
        self.each_row((&mut raw, inner), (&zx, width), |raw, zx| {
            for (values, both) in raw.chunks_mut(head_dim).zip(zx.chunks(2 * head_dim)) {
                values.copy_from_slice(&both[head_dim..]);
            }
        });
        let conv = LoadedConv::new(&self.weights, &m.conv)?;
        self.convolve(&conv, batch, &raw, &mut u, ConvEnd::Silu)?;
        self.slot("conv", &u, inner);
        let Inputs { b, c, steps } = self.plamo2_inputs(m, n_tokens, &u)?;
        let (a, d) = (self.weights.vector(&m.a)?, self.weights.vector(&m.d)?);
        let level = self.weights.level;
        // What went into the convolution is not needed any more.
        let mut y = raw;
        let n_state = state_floats(n_states, head_dim);
        self.scan(batch, &mut y, ((inner, head_dim), n_state), |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / head_dim;
            let [decay, input] = zeroed(buffer, [TOKENS * n_states, TOKENS * head_dim]);
            let mut state = HeadState::new(state, n_states, head_dim);
            let values = |token: usize| &u[token * inner..][columns.clone()];
            for part in parts(tokens.clone()) {
                for (t, token) in part.clone().enumerate() {
                    let step = softplus(steps[token * n_heads + head]);
                    decay[t * n_states..][..n_states].fill(math::exp(step * a[head]));
                    let input = &mut input[t * head_dim..][..head_dim];
                    input.iter_mut().zip(values(token)).for_each(|(y, &u)| *y = step * u);
                }
                let n = part.len();
                let rule = LinearRule {
                    decay: MatrixView::new(decay, n, n_states, n_states),
                    key: rows_of(&b, &part, (0, n_states, n_states)),
                    query: rows_of(&c, &part, (0, n_states, n_states)),
                };
                let mut tile = tile.rows_mut(part.start - tokens.start..part.end - tokens.start);
                state.take_in(level, &rule, MatrixView::new(input, n, head_dim, head_dim), &mut tile);
                for (t, token) in part.enumerate() {
                    let y = tile.row_mut(t);
                    math::add_scaled(level, y, values(token), d[head]);
                    let z = &zx[token * width + 2 * columns.start..][..head_dim];
                    math::gated(level, GatedActivation::Swiglu, z, y);
                }
            }
        })?;
        self.slot("scan", &y, inner);
        self.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        self.give([zx, u, y, b, c, steps]);
        Ok(())
    }

    /// What the states take in, of the convolved values.
    fn plamo2_inputs(&self, m: &Plamo2, n_tokens: usize, u: &[f32]) -> Result<Inputs, EngineError> {
        let mut narrow = self.take(n_tokens * m.step_in.n_rows);
        let [mut b, mut c] = [(); 2].map(|()| self.take(n_tokens * m.n_states));
        let products = vec![
            Product::plain(&m.b, &mut b),
            Product::plain(&m.c, &mut c),
            Product::plain(&m.step_in, &mut narrow),
        ];
        self.products(u, n_tokens, products)?;
        self.norm_in_place(Some(&m.b_norm), &mut b, m.n_states)?;
        self.norm_in_place(Some(&m.c_norm), &mut c, m.n_states)?;
        self.norm_in_place(Some(&m.step_norm), &mut narrow, m.step_in.n_rows)?;
        let mut steps = self.take(n_tokens * m.n_heads);
        self.products(&narrow, n_tokens, vec![Product::plain(&m.step, &mut steps)])?;
        self.give([narrow]);
        Ok(Inputs { b, c, steps })
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::ops::noise::{NoiseModel, assert_near, normed, times};

    const EPS: f64 = 1e-5;
    const GRAPH: &str = "mixer = 'plamo2'";
    /// Width of the stream.
    const D: usize = 10;
    /// Heads.
    const H: usize = 3;
    /// Values of a head.
    const P: usize = 4;
    /// States of a value.
    const N: usize = 5;
    /// Narrow steps.
    const R: usize = 6;
    /// Taps.
    const K: usize = 3;
    const INNER: usize = H * P;

    fn model() -> NoiseModel {
        let sizes = [
            ("block_count", 1),
            ("embedding_length", D),
            ("ssm.inner_size", INNER),
            ("ssm.state_size", N),
            ("ssm.time_step_rank", H),
            ("ssm.conv_kernel", K),
            ("ssm.group_count", 0),
        ];
        let mut model = NoiseModel::new(&sizes, EPS as f32);
        model.add(&[
            ("token_embd.weight", &[16, D]),
            ("output_norm.weight", &[D]),
            ("blk.0.attn_norm.weight", &[D]),
            ("blk.0.ssm_in.weight", &[2 * INNER, D]),
            ("blk.0.ssm_conv1d.weight", &[INNER, K]),
            ("blk.0.ssm_x.weight", &[2 * N + R, INNER]),
            ("blk.0.ssm_b_norm", &[N]),
            ("blk.0.ssm_c_norm", &[N]),
            ("blk.0.ssm_dt_norm", &[R]),
            ("blk.0.ssm_dt.weight", &[H, R]),
            ("blk.0.ssm_dt.bias", &[H]),
            ("blk.0.ssm_a", &[H]),
            ("blk.0.ssm_d", &[H]),
            ("blk.0.ssm_out.weight", &[D, INNER]),
        ]);
        model
    }

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    /// The formula, token by token and head by head.
    fn by_formula(model: &NoiseModel, tokens: &[u32]) -> Vec<f64> {
        let get = |name: &str| model.get(&format!("blk.0.{name}"));
        let (conv, a, d) = (get("ssm_conv1d.weight"), get("ssm_a"), get("ssm_d"));
        let mut before: Vec<Vec<f64>> = Vec::new();
        let mut state = vec![0.0; INNER * N];
        let mut out = Vec::new();
        for &token in tokens {
            let x = normed(
                &model.get("token_embd.weight")[token as usize * D..][..D],
                &get("attn_norm.weight"),
                EPS,
            );
            let zx = times(&get("ssm_in.weight"), &x);
            let part = |first: usize| -> Vec<f64> {
                (0..INNER).map(|at| zx[at / P * 2 * P + first + at % P]).collect()
            };
            let z = part(0);
            before.push(part(P));
            let u: Vec<f64> = (0..INNER)
                .map(|c| {
                    let taps = before.iter().rev().take(K).enumerate();
                    silu(taps.map(|(back, row)| conv[c * K + K - 1 - back] * row[c]).sum())
                })
                .collect();
            let bcd = times(&get("ssm_x.weight"), &u);
            let b = normed(&bcd[..N], &get("ssm_b_norm"), EPS);
            let c = normed(&bcd[N..2 * N], &get("ssm_c_norm"), EPS);
            let narrow = normed(&bcd[2 * N..], &get("ssm_dt_norm"), EPS);
            let steps = times(&get("ssm_dt.weight"), &narrow);
            let y: Vec<f64> = (0..INNER)
                .map(|at| {
                    let head = at / P;
                    let step = (steps[head] + get("ssm_dt.bias")[head]).exp().ln_1p();
                    let mut y = d[head] * u[at];
                    for n in 0..N {
                        let s = &mut state[at * N + n];
                        *s = *s * (step * a[head]).exp() + step * b[n] * u[at];
                        y += *s * c[n];
                    }
                    y * silu(z[at])
                })
                .collect();
            out.extend(times(&get("ssm_out.weight"), &y));
        }
        out
    }

    #[test]
    fn the_mixer_equals_the_formula() {
        let model = model();
        let tokens: Vec<u32> = (0..17).map(|i| i * 5 % 16).collect();
        assert_near(&model.slot(GRAPH, "mixer", &tokens), &by_formula(&model, &tokens), 1e-4);
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_named() {
        let error = |model: &NoiseModel| model.plan(GRAPH).unwrap_err().to_string();
        let mut groups = model();
        groups.metadata.set("x.ssm.group_count", 2u32);
        assert_eq!(error(&groups), "key `x.ssm.group_count`: expected 0 or 1, found 2");
        let mut bare = model();
        bare.metas.retain(|meta| meta.name != "blk.0.ssm_b_norm");
        assert_eq!(error(&bare), "tensor `blk.0.ssm_b_norm` is missing");
        let mut states = model();
        states.metadata.set("x.ssm.state_size", N as u32 + 1);
        assert_eq!(error(&states), "tensor `blk.0.ssm_x.weight`: expected shape [18, 12], found [16, 12]");
    }
}
