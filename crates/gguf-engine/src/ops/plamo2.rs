//! State space mixer of PLaMo 2 (Preferred Networks 2025): Mamba 2 with two differences. Gate and values are
//! interleaved by head in one projection; `B`, `C` and the step sizes are computed from the convolved values and
//! normed.
//!
//! `[B|C|δ] = norm(W u)`, `Δ = softplus(V δ + bias)`. Per head `s[n] = s[n] exp(Δ A) + Δ B[n] u`,
//! `y = (Σ_n C[n] s[n] + D u) silu(z)`.

use crate::exec::activation::GatedActivation;
use crate::exec::batch::ChunkBatch;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::matmul::MatrixView;
use crate::exec::product::Product;
use crate::exec::scalar::{self, softplus};
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::ops::columns::{HeadState, LinearRule, TOKENS, column_view, state_floats, token_blocks};
use crate::ops::conv::{Conv, ConvEnd, LoadedConv};
use crate::ops::kept::Kept;
use crate::ops::mamba::StateSizes;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::scan::{ScanPart, ScanShape, scan, zeroed};
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};

/// State space mixer of PLaMo 2: heads of Mamba 2 whose `B`, `C` and step sizes are computed from the convolved values
/// and normed, as in Mamba.
#[derive(Clone, Debug, PartialEq)]
pub struct Plamo2 {
    /// Projection to each head's gate, then its values.
    pub(crate) zx: Matrix,
    /// Convolution of the values.
    pub conv: Conv,
    /// Projection to the input weights of the states, `B`, from the convolved values.
    pub b: Matrix,
    /// Projection to the output weights of the states, `C`, from the convolved values.
    pub c: Matrix,
    /// Low-rank projection of the step sizes, from the convolved values.
    pub(crate) step_in: Matrix,
    pub(crate) b_norm: Norm,
    pub(crate) c_norm: Norm,
    /// Norm of the low-rank step sizes.
    pub(crate) step_norm: Norm,
    /// Projection from the low rank to the step sizes, one per head.
    pub step: Matrix,
    /// Decay rates, one per head, negative.
    pub a: Vector,
    /// Factors `D` of the values in the output, one per head.
    pub d: Vector,
    /// Output projection.
    pub out: Matrix,
    /// Number of heads.
    pub n_heads: usize,
    /// Number of values of a head.
    pub head_dim: usize,
    /// Number of values that a state has for each value of its head.
    pub n_states: usize,
}

/// Inputs of the states, for all tokens.
struct Plamo2Inputs {
    /// Input weights `B`, `[n_tokens, n_states]`.
    b: Buffer,
    /// Output weights `C`, `[n_tokens, n_states]`.
    c: Buffer,
    /// Step sizes before the softplus, `[n_tokens, n_heads]`.
    steps: Buffer,
}

impl MixerOp for Plamo2 {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let &Plamo2 { n_heads, head_dim, n_states, .. } = self;
        let (n_tokens, inner, width) = (batch.n_tokens(), self.out.n_cols, self.zx.n_rows);
        let mut zx = cx.take(n_tokens * width);
        cx.products(x, n_tokens, vec![Product::plain(&self.zx, &mut zx)])?;
        let [mut raw, mut u] = [(); 2].map(|()| cx.take(n_tokens * inner));
        cx.each_row(&mut raw, inner, &zx, width, |raw, zx| {
            for (values, both) in raw.chunks_mut(head_dim).zip(zx.chunks(2 * head_dim)) {
                values.copy_from_slice(&both[head_dim..]);
            }
        });
        let conv = LoadedConv::new(&cx.weights, &self.conv)?;
        conv.run(cx, batch, &raw, &mut u, ConvEnd::Silu)?;
        cx.slot("conv", &u, inner);
        let Plamo2Inputs { b, c, steps } = plamo2_inputs(cx, self, n_tokens, &u)?;
        let (a, d) = (cx.weights.vector(&self.a)?, cx.weights.vector(&self.d)?);
        let level = cx.weights.level;
        // The input of the convolution is no longer needed.
        let mut y = raw;
        let shape = ScanShape { n_cols: inner, step: head_dim, n_state: state_floats(n_states, head_dim) };
        scan(cx, batch, &mut y, shape, |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / head_dim;
            let [decay, input] = zeroed(buffer, [TOKENS * n_states, TOKENS * head_dim]);
            let mut state = HeadState::new(state, n_states, head_dim);
            let values = |token: usize| &u[token * inner..][columns.clone()];
            for part in token_blocks(tokens.clone()) {
                for (t, token) in part.clone().enumerate() {
                    let step = softplus(steps[token * n_heads + head]);
                    decay[t * n_states..][..n_states].fill(scalar::exp(step * a[head]));
                    let input = &mut input[t * head_dim..][..head_dim];
                    input.iter_mut().zip(values(token)).for_each(|(y, &u)| *y = step * u);
                }
                let n = part.len();
                let rule = LinearRule {
                    decay: MatrixView::new(decay, n, n_states, n_states),
                    key: column_view(&b, &part, 0..n_states, n_states),
                    query: column_view(&c, &part, 0..n_states, n_states),
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
        cx.slot("scan", &y, inner);
        cx.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        cx.give([zx, u, y, b, c, steps]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        Ok(self.conv.remembered(self.out.n_cols) + self.n_heads * state_floats(self.n_states, self.head_dim))
    }

    fn kept(&self) -> Kept {
        Kept::state(self.conv.remembered(self.out.n_cols) + self.n_heads * self.n_states * self.head_dim)
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.n_states, self.head_dim) + TOKENS * (self.n_states + self.head_dim))
    }
}

/// Computes the inputs of the states from the convolved values.
fn plamo2_inputs(cx: &Context<'_>, m: &Plamo2, n_tokens: usize, u: &[f32]) -> Result<Plamo2Inputs> {
    let mut narrow = cx.take(n_tokens * m.step_in.n_rows);
    let [mut b, mut c] = [(); 2].map(|()| cx.take(n_tokens * m.n_states));
    let products = vec![
        Product::plain(&m.b, &mut b),
        Product::plain(&m.c, &mut c),
        Product::plain(&m.step_in, &mut narrow),
    ];
    cx.products(u, n_tokens, products)?;
    cx.norm_in_place(Some(&m.b_norm), &mut b, m.n_states)?;
    cx.norm_in_place(Some(&m.c_norm), &mut c, m.n_states)?;
    cx.norm_in_place(Some(&m.step_norm), &mut narrow, m.step_in.n_rows)?;
    let mut steps = cx.take(n_tokens * m.n_heads);
    cx.products(&narrow, n_tokens, vec![Product::plain(&m.step, &mut steps)])?;
    cx.give([narrow]);
    Ok(Plamo2Inputs { b, c, steps })
}

impl Plamo2 {
    pub(crate) fn resolve(builder: &mut Resolver<'_>, layer: usize) -> Result<Plamo2> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = builder.n_embd;
        let StateSizes { inner, n_states, n_taps } = StateSizes::resolve(builder)?;
        // The key of Mamba's rank is the number of heads here; the rank has no key.
        let n_heads = builder.divisor("ssm.time_step_rank", inner)?;
        let rank = builder.n_cols(&at("ssm_dt"))?;
        // All heads share one group, and files of this mixer declare 0 groups.
        if let Some(n) = builder.keys.count("ssm.group_count")?.filter(|&n| n > 1) {
            return Err(builder.keys.unknown("ssm.group_count", "0 or 1", &n.to_string()));
        }
        let [b, c, step_in] = builder.cut(&at("ssm_x"), [n_states, n_states, rank], inner)?;
        let mut norm = |name: &str, len: usize| -> Result<Norm> {
            let found = builder.norm_of(&at(name), len)?;
            found.ok_or_else(|| EngineError::MissingTensor { tensor: at(name) })
        };
        let (b_norm, c_norm) = (norm("ssm_b_norm", n_states)?, norm("ssm_c_norm", n_states)?);
        let step_norm = norm("ssm_dt_norm", rank)?;
        Ok(Plamo2 {
            zx: builder.tensors.need_matrix(&at("ssm_in"), inner.saturating_mul(2), n_embd)?,
            conv: Conv::resolve(builder, &at("ssm_conv1d"), inner, n_taps)?,
            b,
            c,
            step_in,
            b_norm,
            c_norm,
            step_norm,
            step: builder.tensors.need_matrix(&at("ssm_dt"), n_heads, rank)?,
            a: builder.need_vector(&at("ssm_a"), n_heads)?,
            d: builder.need_vector(&at("ssm_d"), n_heads)?,
            out: builder.tensors.need_matrix(&at("ssm_out"), n_embd, inner)?,
            n_heads,
            head_dim: inner / n_heads,
            n_states,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::testkit::formulas::{assert_near, normed, times};
    use crate::testkit::models::TinyModel;

    const EPS: f64 = 1e-5;
    const GRAPH: &str = "mixer = 'plamo2'";
    const D: usize = 10;
    const H: usize = 3;
    const P: usize = 4;
    /// Number of states per value.
    const N: usize = 5;
    /// Low rank of the step sizes.
    const R: usize = 6;
    const K: usize = 3;
    const INNER: usize = H * P;

    fn model() -> TinyModel {
        let sizes = [
            ("block_count", 1),
            ("embedding_length", D),
            ("ssm.inner_size", INNER),
            ("ssm.state_size", N),
            ("ssm.time_step_rank", H),
            ("ssm.conv_kernel", K),
            ("ssm.group_count", 0),
        ];
        let mut model = TinyModel::new("x", &sizes, EPS as f32);
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
        // Rates of decay are negative.
        model.set("blk.0.ssm_a", &[-0.9, -0.5, -0.2]);
        model
    }

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    /// Returns the result of the formula, token by token and head by head.
    fn by_formula(model: &TinyModel, tokens: &[u32]) -> Vec<f64> {
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
        let error = |model: &TinyModel| model.plan(GRAPH).unwrap_err().to_string();
        let mut groups = model();
        groups.metadata.set("x.ssm.group_count", 2u32);
        assert_eq!(error(&groups), "key `x.ssm.group_count`: expected 0 or 1, found 2");
        let mut bare = model();
        bare.tensors.retain(|meta| meta.name != "blk.0.ssm_b_norm");
        assert_eq!(error(&bare), "tensor `blk.0.ssm_b_norm` is missing");
        let mut states = model();
        states.metadata.set("x.ssm.state_size", N as u32 + 1);
        assert_eq!(error(&states), "tensor `blk.0.ssm_x.weight`: expected shape [18, 12], found [16, 12]");
    }
}
