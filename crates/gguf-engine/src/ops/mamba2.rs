//! Mamba 2 (Dao, Gu 2024), the recurrent form of state-space duality: per head `s[n] = s[n] exp(Δ A) + Δ B[n] x`,
//! `y = Σ_n C[n] s[n] + D x`, gated by `silu(z)`, then normed.

use crate::Result;
use crate::exec::activation::GatedActivation;
use crate::exec::batch::ChunkBatch;
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

/// Mamba 2: heads with one decay rate each, in groups that share the input and output weights of their states.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// Projection to the gate of the output.
    pub z: Matrix,
    /// Projection to the values `x`, and per group to the input weights `B` and output weights `C` of the states.
    pub xbc: Matrix,
    /// Projection to the step sizes, one per head.
    pub step: Matrix,
    /// Convolution of `xbc`.
    pub conv: Conv,
    /// Bias of the step sizes.
    pub(crate) step_bias: Vector,
    /// Smallest step size.
    pub step_min: f32,
    /// Decay rates, one per head, negative.
    pub a: Vector,
    /// Factors `D` of the values in the output, one per head.
    pub d: Vector,
    /// Norm of the gated output, for each group separately.
    pub norm: Option<Norm>,
    /// Output projection.
    pub out: Matrix,
    /// Number of heads.
    pub n_heads: usize,
    /// Number of values of a head.
    pub head_dim: usize,
    /// Number of groups; head `h` belongs to `h / (n_heads / n_groups)`.
    pub n_groups: usize,
    /// Number of values that a state has for each value of its head.
    pub n_states: usize,
}

impl MixerOp for Mamba2 {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let &Mamba2 { n_heads, head_dim, n_groups, n_states, .. } = self;
        let (n_tokens, width, inner) = (batch.n_tokens(), self.xbc.n_rows, self.z.n_rows);
        let [mut raw, mut xbc] = [(); 2].map(|()| cx.take(n_tokens * width));
        let [mut z, mut y] = [(); 2].map(|()| cx.take(n_tokens * inner));
        let mut steps = cx.take(n_tokens * n_heads);
        let products = vec![
            Product::plain(&self.z, &mut z),
            Product::plain(&self.xbc, &mut raw),
            Product::plain(&self.step, &mut steps),
        ];
        cx.products(x, n_tokens, products)?;
        let conv = LoadedConv::new(&cx.weights, &self.conv)?;
        conv.run(cx, batch, &raw, &mut xbc, ConvEnd::Silu)?;
        cx.slot("conv", &xbc, width);
        let [a, d, bias] = [&self.a, &self.d, &self.step_bias].map(|vector| cx.weights.vector(vector));
        let (a, d, bias) = (a?, d?, bias?);
        let level = cx.weights.level;
        let shape = ScanShape { n_cols: inner, step: head_dim, n_state: state_floats(n_states, head_dim) };
        scan(cx, batch, &mut y, shape, |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / head_dim;
            let group = head / (n_heads / n_groups);
            let [decay, input] = zeroed(buffer, [TOKENS * n_states, TOKENS * head_dim]);
            let mut state = HeadState::new(state, n_states, head_dim);
            let values = |token: usize| &xbc[token * width..][columns.clone()];
            for part in token_blocks(tokens.clone()) {
                for (t, token) in part.clone().enumerate() {
                    let step = softplus(steps[token * n_heads + head] + bias[head]).max(self.step_min);
                    decay[t * n_states..][..n_states].fill(scalar::exp(step * a[head]));
                    let input = &mut input[t * head_dim..][..head_dim];
                    input.iter_mut().zip(values(token)).for_each(|(y, &x)| *y = step * x);
                }
                let n = part.len();
                let of_group = |group: usize| {
                    let first = inner + group * n_states;
                    column_view(&xbc, &part, first..first + n_states, width)
                };
                let rule = LinearRule {
                    decay: MatrixView::new(decay, n, n_states, n_states),
                    key: of_group(group),
                    query: of_group(n_groups + group),
                };
                let mut tile = tile.rows_mut(part.start - tokens.start..part.end - tokens.start);
                state.take_in(level, &rule, MatrixView::new(input, n, head_dim, head_dim), &mut tile);
                for (t, token) in part.enumerate() {
                    let y = tile.row_mut(t);
                    math::add_scaled(level, y, values(token), d[head]);
                    math::gated(level, GatedActivation::Swiglu, &z[token * inner..][columns.clone()], y);
                }
            }
        })?;
        cx.slot("scan", &y, inner);
        let wanted = batch.gather(&mut y, inner);
        if let Some(norm) = &self.norm {
            cx.norm_parts(&cx.weights.norm(norm)?, wanted, inner, self.n_groups);
        }
        cx.products(wanted, batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        cx.give([raw, xbc, z, y, steps]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        Ok(self.conv.remembered(self.xbc.n_rows) + self.n_heads * state_floats(self.n_states, self.head_dim))
    }

    fn kept(&self) -> Kept {
        Kept::state(self.conv.remembered(self.xbc.n_rows) + self.n_heads * self.n_states * self.head_dim)
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.n_states, self.head_dim) + TOKENS * (self.n_states + self.head_dim))
    }
}

impl Mamba2 {
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Mamba2> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = b.n_embd;
        let StateSizes { inner, n_states, n_taps } = StateSizes::resolve(b)?;
        // The key of Mamba's rank is the number of heads here.
        let n_heads = b.divisor("ssm.time_step_rank", inner)?;
        let n_groups = b.divisor("ssm.group_count", n_heads)?;
        let width = n_groups.saturating_mul(n_states).saturating_mul(2).saturating_add(inner);
        let [z, xbc, step] = b.cut(&at("ssm_in"), [inner, width, n_heads], n_embd)?;
        Ok(Mamba2 {
            z,
            xbc,
            step,
            conv: Conv::resolve(b, &at("ssm_conv1d"), width, n_taps)?,
            step_bias: b.need_vector(&at("ssm_dt.bias"), n_heads)?,
            step_min: b.keys.number("ssm.time_step_min")?.unwrap_or(0.0) as f32,
            a: b.need_vector(&at("ssm_a"), n_heads)?,
            d: b.need_vector(&at("ssm_d"), n_heads)?,
            norm: b.norm_of(&at("ssm_norm"), inner)?,
            out: b.tensors.need_matrix(&at("ssm_out"), n_embd, inner)?,
            n_heads,
            head_dim: inner / n_heads,
            n_groups,
            n_states,
        })
    }
}
