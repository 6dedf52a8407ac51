//! Mamba, a selective state space model (Gu, Dao 2023), section 3: `s_c[n] = s_c[n] exp(Δ_c A_c[n]) + Δ_c x_c B[n]`,
//! `y_c = Σ_n s_c[n] C[n] + D_c x_c`, gated by `silu(z)`.

use crate::Result;
use crate::exec::activation::GatedActivation;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::rowwise::{ValueFunction, map};
use crate::exec::weights::{Matrix, Norm, NormFormula, Vector};
use crate::exec::{math, scalar};
use crate::ops::conv::{Conv, ConvEnd, LoadedConv};
use crate::ops::kept::Kept;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::scan::{ScanPart, ScanShape, scan, transposed, zeroed};
use crate::resolve::resolver::Resolver;
use gguf_core::simd::VectorLoop;

/// Mamba: a state per channel, with a decay rate for each of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba {
    /// Projection to the input of the convolution.
    pub x: Matrix,
    /// Projection to the gate of the output.
    pub z: Matrix,
    /// Convolution of `x`.
    pub conv: Conv,
    /// Low-rank projection of the step sizes, from the convolved `x`.
    pub(crate) step_in: Matrix,
    /// Projection to the input weights of the states, `B`, from the convolved `x`.
    pub b: Matrix,
    /// Projection to the output weights of the states, `C`, from the convolved `x`.
    pub c: Matrix,
    /// Norm of the low-rank step sizes.
    pub(crate) step_norm: Option<Norm>,
    pub(crate) b_norm: Option<Norm>,
    pub(crate) c_norm: Option<Norm>,
    /// Projection from the low rank to the step sizes, one per channel.
    pub step: Matrix,
    /// Decay rates, `[n_channels, n_states]`, negative.
    pub a: Vector,
    /// Factors `D` of `x` in the output, one per channel.
    pub d: Vector,
    /// Output projection.
    pub out: Matrix,
    /// Number of values of a channel's state.
    pub n_states: usize,
}

pub(crate) const CHANNELS: usize = 64;

/// Step of one token for some channels.
struct ScanStep<'a> {
    /// States, `[n_states, channels]`, as the decay rates.
    state: &'a mut [f32],
    a: &'a [f32],
    /// Number of columns of `a`, and the first one of the channels.
    a_cols: (usize, usize),
    b: &'a [f32],
    c: &'a [f32],
    delta: &'a [f32],
    /// Product `delta * x`.
    input: &'a [f32],
    out: &'a mut [f32],
}

impl VectorLoop for ScanStep<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { state, a, a_cols: (stride, first), b, c, delta, input, out } = self;
        let n = delta.len();
        // Slices of equal known length need no bounds checks inside the loop.
        let (input, out) = (&input[..n], &mut out[..n]);
        for (at, (row, (&b, &c))) in state.chunks_exact_mut(n).zip(b.iter().zip(c)).enumerate() {
            let a = &a[at * stride + first..][..n];
            for (i, s) in row.iter_mut().enumerate() {
                *s = *s * scalar::exp(delta[i] * a[i]) + input[i] * b;
                out[i] += *s * c;
            }
        }
    }
}

impl MixerOp for Mamba {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (n_tokens, width, n_states) = (batch.n_tokens(), self.x.n_rows, self.n_states);
        let [mut raw, mut z, mut u, mut y] = [(); 4].map(|()| cx.take(n_tokens * width));
        cx.products(x, n_tokens, vec![Product::plain(&self.x, &mut raw), Product::plain(&self.z, &mut z)])?;
        let conv = LoadedConv::new(&cx.weights, &self.conv)?;
        conv.run(cx, batch, &raw, &mut u, ConvEnd::Silu)?;
        cx.slot("conv", &u, width);
        let mut narrow = cx.take(n_tokens * self.step_in.n_rows);
        let [mut b, mut c] = [(); 2].map(|()| cx.take(n_tokens * n_states));
        let products = vec![
            Product::plain(&self.step_in, &mut narrow),
            Product::plain(&self.b, &mut b),
            Product::plain(&self.c, &mut c),
        ];
        cx.products(&u, n_tokens, products)?;
        cx.norm_in_place(self.step_norm.as_ref(), &mut narrow, self.step_in.n_rows)?;
        cx.norm_in_place(self.b_norm.as_ref(), &mut b, n_states)?;
        cx.norm_in_place(self.c_norm.as_ref(), &mut c, n_states)?;
        // The input of the convolution is no longer needed.
        let mut steps = raw;
        cx.products(&narrow, n_tokens, vec![Product::plain(&self.step, &mut steps)])?;
        let a = transposed(&cx.weights.vector(&self.a)?, n_states);
        let d = cx.weights.vector(&self.d)?;
        let level = cx.weights.level;
        let shape = ScanShape { n_cols: width, step: CHANNELS, n_state: n_states * CHANNELS };
        scan(cx, batch, &mut y, shape, |part, tile, buffer| {
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
                level.vectorize(ScanStep {
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
        cx.slot("scan", &y, width);
        let wanted = batch.select(&y, width);
        cx.products(&wanted, batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        drop(wanted);
        cx.give([steps, z, u, y, narrow, b, c]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        let n_parts = self.x.n_rows.div_ceil(CHANNELS);
        Ok(self.conv.remembered(self.x.n_rows) + n_parts * CHANNELS * self.n_states)
    }

    fn kept(&self) -> Kept {
        let n_channels = self.x.n_rows;
        Kept::state(self.conv.remembered(n_channels) + n_channels * self.n_states)
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (self.n_states + 2) * self.x.n_rows.min(crate::ops::mamba::CHANNELS)
    }
}

/// Epsilon of Mamba's norms without weights; no key declares it (Falcon Mamba's `mixer_rms_eps`).
const FREE_NORM_EPS: f32 = 1e-6;

/// Sizes of the states, shared by Mamba's variants.
pub(crate) struct StateSizes {
    pub(crate) inner: usize,
    pub(crate) n_states: usize,
    /// Number of tokens that the convolution before the scan spans.
    pub(crate) n_taps: usize,
}

impl StateSizes {
    /// Reads the sizes from the keys `ssm.*`.
    pub(crate) fn resolve(b: &Resolver<'_>) -> Result<StateSizes> {
        Ok(StateSizes {
            inner: b.keys.need_count("ssm.inner_size")?,
            n_states: b.keys.need_count("ssm.state_size")?,
            n_taps: b.keys.need_count("ssm.conv_kernel")?,
        })
    }
}

impl Mamba {
    pub(crate) fn resolve(resolver: &mut Resolver<'_>, layer: usize) -> Result<Mamba> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = resolver.n_embd;
        let StateSizes { inner, n_states, n_taps } = StateSizes::resolve(resolver)?;
        let rank = resolver.keys.need_count("ssm.time_step_rank")?;
        let [x, z] = resolver.cut(&at("ssm_in"), [inner, inner], n_embd)?;
        let [step_in, b, c] = resolver.cut(&at("ssm_x"), [rank, n_states, n_states], inner)?;
        let is_normed = resolver.keys.flag("ssm.dt_b_c_rms")?.unwrap_or(false);
        let free = Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: FREE_NORM_EPS };
        let mut norm = |name: &str, len: usize| -> Result<Option<Norm>> {
            Ok(resolver.norm_of(&at(name), len)?.or_else(|| is_normed.then(|| free.clone())))
        };
        let (step_norm, b_norm, c_norm) =
            (norm("ssm_dt_norm", rank)?, norm("ssm_b_norm", n_states)?, norm("ssm_c_norm", n_states)?);
        Ok(Mamba {
            x,
            z,
            conv: Conv::resolve(resolver, &at("ssm_conv1d"), inner, n_taps)?,
            step_in,
            b,
            c,
            step_norm,
            b_norm,
            c_norm,
            step: resolver.tensors.need_matrix(&at("ssm_dt"), inner, rank)?,
            a: resolver.need_vector(&at("ssm_a"), inner.saturating_mul(n_states))?,
            d: resolver.need_vector(&at("ssm_d"), inner)?,
            out: resolver.tensors.need_matrix(&at("ssm_out"), n_embd, inner)?,
            n_states,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::simd::SimdLevel;

    #[test]
    fn a_step_equals_the_formula() {
        let (n, n_states, stride, first) = (3, 4, 5, 1);
        let value = |i: usize, seed: usize| ((i * 37 + seed * 11) % 23) as f32 / 11.0 - 1.0;
        let all = |n: usize, seed: usize| (0..n).map(|i| value(i, seed)).collect::<Vec<f32>>();
        let (mut state, a) = (all(n * n_states, 1), all(stride * n_states, 2));
        let (b, c, step, input) = (all(n_states, 3), all(n_states, 4), all(n, 5), all(n, 6));
        let (before, mut out) = (state.clone(), vec![0.5; n]);
        SimdLevel::detect().vectorize(ScanStep {
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
