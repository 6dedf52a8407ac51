//! Kimi delta attention (Kimi Linear, 2025): the gated delta rule with a decay per key channel,
//! `g = A softplus(f + bias)` or, if bounded, `g = bound sig(|A| (f + bias))`. A norm per head and a gate `sig` follow.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::matmul::{MatrixTile, MatrixView};
use crate::exec::product::Product;
use crate::exec::rowwise::ValueFunction;
use crate::exec::scalar::{self, softplus};
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::ops::columns::{DeltaRule, HeadState, TOKENS, column_view, state_floats, token_blocks};
use crate::ops::conv::{Conv, ConvEnd, LoadedConv};
use crate::ops::delta_net::of_length;
use crate::ops::kept::Kept;
use crate::ops::low_rank::LowRank;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::scan::{ScanPart, ScanShape, scan, zeroed};
use crate::resolve::resolver::Resolver;
use gguf_core::simd::VectorLoop;

/// Kimi delta attention: a delta net with a decay per key channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kda {
    /// Query projection.
    pub q: Matrix,
    /// Key projection.
    pub k: Matrix,
    /// Value projection.
    pub v: Matrix,
    /// Convolutions of queries, keys and values.
    pub(crate) convs: [Conv; 3],
    /// Projection of the decay of each key channel, before its function.
    pub forget: LowRank,
    /// Bias of the decay's projection.
    pub(crate) forget_bias: Vector,
    /// Decay rates, one per head, with the sign of the file.
    pub a: Vector,
    /// Lower bound of the decay's logarithm, if it is bounded.
    pub bound: Option<f32>,
    /// Write gates, one per head.
    pub beta: Matrix,
    /// Gate of the output.
    pub gate: LowRank,
    /// Norm of each head's output, before the gate.
    pub norm: Norm,
    /// Output projection.
    pub out: Matrix,
    /// Number of heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

/// Returns the logarithm of a key channel's decay.
#[expect(clippy::inline_always, reason = "it must be compiled inside the level's function")]
#[inline(always)]
fn log_decay(a: f32, x: f32, bound: Option<f32>) -> f32 {
    match bound {
        Some(bound) => bound * scalar::sigmoid(a.abs() * x),
        None => a * softplus(x),
    }
}

/// Loop over the key channels of a head: turns projections `x` into decay factors.
struct DecayLoop<'a> {
    a: f32,
    bound: Option<f32>,
    bias: &'a [f32],
    x: &'a mut [f32],
}

impl VectorLoop for DecayLoop<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { a, bound, bias, x } = self;
        for (x, &bias) in x.iter_mut().zip(bias) {
            *x = scalar::exp(log_decay(a, *x + bias, bound));
        }
    }
}

impl MixerOp for Kda {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (n_tokens, dim, inner) = (batch.n_tokens(), self.head_dim, self.q.n_rows);
        let [mut raw, mut q, mut k, mut v, mut y] = [(); 5].map(|()| cx.take(n_tokens * inner));
        let streams = [
            (&self.q, &self.convs[0], &mut q),
            (&self.k, &self.convs[1], &mut k),
            (&self.v, &self.convs[2], &mut v),
        ];
        for (matrix, conv, out) in streams {
            cx.products(x, n_tokens, vec![Product::plain(matrix, &mut raw)])?;
            let conv = LoadedConv::new(&cx.weights, conv)?;
            conv.run(cx, batch, &raw, out, ConvEnd::Silu)?;
        }
        let mut beta = cx.take(n_tokens * self.n_heads);
        cx.products(x, n_tokens, vec![Product::plain(&self.beta, &mut beta)])?;
        let forget = self.forget.run(cx, x, n_tokens, ValueFunction::Same)?;
        let gate = self.gate.run(cx, x, n_tokens, ValueFunction::Same)?;
        let (a, bias) = (cx.weights.vector(&self.a)?, cx.weights.vector(&self.forget_bias)?);
        let norm = cx.weights.norm(&self.norm)?;
        let level = cx.weights.level;
        let scale = 1.0 / (dim as f64).sqrt();
        let shape = ScanShape { n_cols: inner, step: dim, n_state: state_floats(dim, dim) };
        scan(cx, batch, &mut y, shape, |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / dim;
            let [query, key, decay, core] = zeroed(buffer, [TOKENS * dim; 4]);
            let mut state = HeadState::new(state, dim, dim);
            let mut betas = [0.0; TOKENS];
            for part in token_blocks(tokens.clone()) {
                let n = part.len();
                for (t, token) in part.clone().enumerate() {
                    let at = token * inner + columns.start..token * inner + columns.end;
                    let own = t * dim..(t + 1) * dim;
                    of_length(level, &q[at.clone()], &mut query[own.clone()], scale);
                    of_length(level, &k[at.clone()], &mut key[own.clone()], 1.0);
                    betas[t] = scalar::sigmoid(beta[token * self.n_heads + head]);
                    let out = &mut decay[own];
                    out.copy_from_slice(&forget[at]);
                    let bias = &bias[columns.clone()];
                    level.vectorize(DecayLoop { a: a[head], bound: self.bound, bias, x: out });
                }
                let values = column_view(&v, &part, columns.clone(), inner);
                let [decay, key, query] = [&*decay, &*key, &*query].map(|x| MatrixView::new(x, n, dim, dim));
                let rule = DeltaRule { decay, beta: &betas, key, query };
                state.take_in(level, &rule, values, &mut MatrixTile::whole(core, n, dim));
                for (core, token) in core.chunks_exact(dim).zip(part) {
                    let y = tile.row_mut(token - tokens.start);
                    norm.row(level, core, y);
                    math::times_sigmoid(level, y, &gate[token * inner..][columns.clone()]);
                }
            }
        })?;
        cx.slot("scan", &y, inner);
        cx.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        cx.give([raw, q, k, v, y, beta, forget, gate]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        let convs: usize = self.convs.iter().map(|conv| conv.remembered(self.q.n_rows)).sum();
        Ok(convs + self.n_heads * state_floats(self.head_dim, self.head_dim))
    }

    fn kept(&self) -> Kept {
        let convs: usize = self.convs.iter().map(|conv| conv.remembered(self.q.n_rows)).sum();
        Kept::state(convs + self.n_heads * self.head_dim * self.head_dim)
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.head_dim, self.head_dim) + TOKENS * 4 * self.head_dim)
    }
}

impl Kda {
    /// Resolves the Kimi delta attention of a layer.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Kda> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = b.n_embd;
        let n_heads = b.state_heads(layer)?;
        let head_dim = b.keys.need_count("kda.head_dim")?;
        let n_taps = b.keys.need_count("ssm.conv_kernel")?;
        let inner = n_heads.saturating_mul(head_dim);
        let [q, k, v] = if b.tensors.has(&at("attn_qkv.weight")) {
            b.cut(&at("attn_qkv"), [inner; 3], n_embd)?
        } else {
            let mut matrix = |name| b.tensors.need_matrix(&at(name), inner, n_embd);
            [matrix("attn_q")?, matrix("attn_k")?, matrix("attn_v")?]
        };
        let mut conv = |name| Conv::resolve(b, &at(name), inner, n_taps);
        let convs = [conv("ssm_conv1d_q")?, conv("ssm_conv1d_k")?, conv("ssm_conv1d_v")?];
        // Files with a bound also declare that the gate is the bounded one.
        if b.keys.flag("kda.safe_gate")? == Some(false) {
            return Err(b.keys.unknown("kda.safe_gate", "true", "false"));
        }
        let gate = if b.tensors.has(&at("ssm_g.weight")) { "ssm_g" } else { "ssm_g_a" };
        Ok(Kda {
            q,
            k,
            v,
            convs,
            forget: low_rank_gate(b, &at("ssm_f_a"), &at("ssm_f_b"), inner, head_dim)?,
            forget_bias: b.need_vector(&at("ssm_dt.bias"), inner)?,
            a: b.need_vector(&at("ssm_a"), n_heads)?,
            bound: b.keys.nonzero("kda.gate_lower_bound")?.map(|bound| bound as f32),
            beta: b.tensors.need_matrix(&at("ssm_beta"), n_heads, n_embd)?,
            gate: low_rank_gate(b, &at(gate), &at("ssm_g_b"), inner, head_dim)?,
            norm: b.need_norm_of(&at("ssm_norm"), head_dim)?,
            out: b.tensors.need_matrix(&at("attn_output"), n_embd, inner)?,
            n_heads,
            head_dim,
        })
    }
}

/// Resolves a gate of one matrix, or of two with rank `rank` in between.
fn low_rank_gate(
    b: &mut Resolver<'_>,
    first: &str,
    second: &str,
    width: usize,
    rank: usize,
) -> Result<LowRank> {
    let n_embd = b.n_embd;
    let second = b.tensors.matrix(second, width, rank)?;
    let n_rows = if second.is_some() { rank } else { width };
    Ok(LowRank { first: b.tensors.need_matrix(first, n_rows, n_embd)?, second })
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
