//! Gated delta net (Yang et al. 2024): per value head `S ← e^g S`, `d = β (v - Sᵀk)`, `S ← S + k dᵀ`,
//! `o = Sᵀq / sqrt(dk)`, with q and k of length 1, `β = sig(b)` and `g = A softplus(a + bias)`. A norm per head and the
//! gate `silu(z)` or `sig(z)` follow.

use serde::Deserialize;

use crate::Result;
use crate::exec::activation::GatedActivation;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::matmul::{MatrixTile, MatrixView};
use crate::exec::product::Product;
use crate::exec::scalar::{self, softplus};
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::ops::columns::{DeltaRule, HeadState, TOKENS, column_view, state_floats, token_blocks};
use crate::ops::conv::{Conv, ConvEnd, LoadedConv};
use crate::ops::kept::Kept;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::scan::{ScanPart, ScanShape, scan, zeroed};
use crate::resolve::resolver::Resolver;
use gguf_core::simd::SimdLevel;

/// Words of the mixer `gdn` in cards.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GdnWords {
    gate: GdnGate,
}

/// Function of the output's gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GdnGate {
    /// `silu(z)`.
    #[default]
    Silu,
    /// `sig(z)`.
    Sigmoid,
}

/// Matrices of a delta net's gates.
#[derive(Clone, Debug, PartialEq)]
pub enum DeltaGates {
    /// One matrix. For each key head, the write gates of its value heads come first, then their step sizes. A value
    /// head `h` uses key head `h / (n_heads / n_key_heads)`.
    Packed(Matrix),
    /// One matrix each. A value head `h` uses key head `h % n_key_heads`.
    Apart {
        /// Write gates, one per value head.
        beta: Matrix,
        /// Step sizes, one per value head.
        alpha: Matrix,
    },
}

/// Gated delta net: the state of a value head is a matrix that decays by a gate and corrects the values that its keys
/// recall.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNet {
    /// Projection of queries, keys and values.
    pub qkv: Matrix,
    /// Convolution of queries, keys and values.
    pub conv: Conv,
    /// Projection of the output's gate.
    pub z: Matrix,
    /// Write gates and step sizes.
    pub gates: DeltaGates,
    /// Bias of the step sizes, one per value head.
    pub(crate) step_bias: Vector,
    /// Decay rates, one per value head, negative.
    pub a: Vector,
    /// Norm of each head's output, before the gate.
    pub norm: Norm,
    /// Function of the output's gate.
    pub gate: GdnGate,
    /// Output projection.
    pub out: Matrix,
    /// Number of value heads.
    pub n_heads: usize,
    pub(crate) n_key_heads: usize,
    /// Width of a query or key head.
    pub dk: usize,
    /// Width of a value head.
    pub dv: usize,
}

/// Term inside the root of the lengths of queries and keys.
const EPS: f64 = 1e-6;

/// Scales a row to length `factor`: `out = factor * x / sqrt(Σ x² + eps)`.
pub(crate) fn of_length(level: SimdLevel, x: &[f32], out: &mut [f32], factor: f64) {
    let squares = math::moments(level, x, 0.0).1;
    let scale = (factor / (squares + EPS).sqrt()) as f32;
    out.iter_mut().zip(x).for_each(|(y, &x)| *y = scale * x);
}

/// Write gates and step sizes of tokens, before their functions.
struct GateRows<'a> {
    beta: &'a [f32],
    alpha: &'a [f32],
    /// Number of value heads per key head, if both are in one row.
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

impl MixerOp for DeltaNet {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let &DeltaNet { n_heads, n_key_heads, dk, dv, .. } = self;
        let (n_tokens, width, inner) = (batch.n_tokens(), self.qkv.n_rows, self.z.n_rows);
        let [mut raw, mut qkv] = [(); 2].map(|()| cx.take(n_tokens * width));
        let [mut z, mut y] = [(); 2].map(|()| cx.take(n_tokens * inner));
        let mut gates = cx.take(2 * n_tokens * n_heads);
        let (both, half) = (&mut gates[..], n_tokens * n_heads);
        let mut products = vec![Product::plain(&self.qkv, &mut raw), Product::plain(&self.z, &mut z)];
        let per_key = n_heads / n_key_heads;
        let packed = match &self.gates {
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
        cx.products(x, n_tokens, products)?;
        let rows = GateRows { beta: &gates, alpha: &gates[half..], packed };
        let conv = LoadedConv::new(&cx.weights, &self.conv)?;
        conv.run(cx, batch, &raw, &mut qkv, ConvEnd::Silu)?;
        cx.slot("conv", &qkv, width);
        let (a, bias) = (cx.weights.vector(&self.a)?, cx.weights.vector(&self.step_bias)?);
        let norm = cx.weights.norm(&self.norm)?;
        let level = cx.weights.level;
        let scale = 1.0 / (dk as f64).sqrt();
        let shape = ScanShape { n_cols: inner, step: dv, n_state: state_floats(dk, dv) };
        scan(cx, batch, &mut y, shape, |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / dv;
            let key_head = if packed.is_some() { head / per_key } else { head % n_key_heads };
            let [q, k, decay, core] = zeroed(buffer, [TOKENS * dk, TOKENS * dk, TOKENS * dk, TOKENS * dv]);
            let mut state = HeadState::new(state, dk, dv);
            let mut betas = [0.0; TOKENS];
            for part in token_blocks(tokens.clone()) {
                let n = part.len();
                for (t, token) in part.clone().enumerate() {
                    let (row, own) = (&qkv[token * width..][..width], t * dk..(t + 1) * dk);
                    of_length(level, &row[key_head * dk..][..dk], &mut q[own.clone()], scale);
                    of_length(level, &row[(n_key_heads + key_head) * dk..][..dk], &mut k[own.clone()], 1.0);
                    let (beta, step) = rows.of(token, head, n_heads);
                    betas[t] = scalar::sigmoid(beta);
                    decay[own].fill(scalar::exp(a[head] * softplus(step + bias[head])));
                }
                let first = 2 * n_key_heads * dk + head * dv;
                let values = column_view(&qkv, &part, first..first + dv, width);
                let [decay, key, query] = [&*decay, &*k, &*q].map(|x| MatrixView::new(x, n, dk, dk));
                let rule = DeltaRule { decay, beta: &betas, key, query };
                state.take_in(level, &rule, values, &mut MatrixTile::whole(core, n, dv));
                for (core, token) in core.chunks_exact(dv).zip(part) {
                    let y = tile.row_mut(token - tokens.start);
                    norm.row(level, core, y);
                    let z = &z[token * inner..][columns.clone()];
                    match self.gate {
                        GdnGate::Silu => math::gated(level, GatedActivation::Swiglu, z, y),
                        GdnGate::Sigmoid => math::times_sigmoid(level, y, z),
                    }
                }
            }
        })?;
        cx.slot("scan", &y, inner);
        let wanted = batch.select(&y, inner);
        cx.products(&wanted, batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        drop(wanted);
        cx.give([raw, qkv, z, y, gates]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        Ok(self.conv.remembered(self.qkv.n_rows) + self.n_heads * state_floats(self.dk, self.dv))
    }

    fn kept(&self) -> Kept {
        Kept::state(self.conv.remembered(self.qkv.n_rows) + self.n_heads * self.dk * self.dv)
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.dk, self.dv) + TOKENS * (3 * self.dk + self.dv))
    }
}

impl DeltaNet {
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize, words: &GdnWords) -> Result<DeltaNet> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = b.n_embd;
        let inner = b.keys.need_count("ssm.inner_size")?;
        let dk = b.keys.need_count("ssm.state_size")?;
        let n_taps = b.keys.need_count("ssm.conv_kernel")?;
        let n_heads = b.divisor("ssm.time_step_rank", inner)?;
        let n_key_heads = b.divisor("ssm.group_count", n_heads)?;
        let dv = inner / n_heads;
        let width = n_key_heads.saturating_mul(dk).saturating_mul(2).saturating_add(inner);
        let packed = b.tensors.matrix(&at("ssm_ba"), n_heads.saturating_mul(2), n_embd)?;
        let gates = match packed {
            Some(matrix) => DeltaGates::Packed(matrix),
            None => DeltaGates::Apart {
                beta: b.tensors.need_matrix(&at("ssm_beta"), n_heads, n_embd)?,
                alpha: b.tensors.need_matrix(&at("ssm_alpha"), n_heads, n_embd)?,
            },
        };
        Ok(DeltaNet {
            qkv: b.tensors.need_matrix(&at("attn_qkv"), width, n_embd)?,
            conv: Conv::resolve(b, &at("ssm_conv1d"), width, n_taps)?,
            z: b.tensors.need_matrix(&at("attn_gate"), inner, n_embd)?,
            gates,
            step_bias: b.need_vector(&at("ssm_dt.bias"), n_heads)?,
            a: b.need_vector(&at("ssm_a"), n_heads)?,
            norm: b.need_norm_of(&at("ssm_norm"), dv)?,
            out: b.tensors.need_matrix(&at("ssm_out"), n_embd, inner)?,
            gate: words.gate,
            n_heads,
            n_key_heads,
            dk,
            dv,
        })
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
