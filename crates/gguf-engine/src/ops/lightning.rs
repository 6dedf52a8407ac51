//! Lightning attention (MiniMax-01): `[q|k|v] = silu(W x)` per head, `S ← e^-σ S + k vᵀ`, `o = Sᵀq`. A norm of all
//! heads together and the gate `sig(G x)` follow.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::matmul::MatrixView;
use crate::exec::product::Product;
use crate::exec::rowwise::{ValueFunction, map};
use crate::exec::weights::{Matrix, Norm};
use crate::exec::{math, scalar};
use crate::ops::attention::resolve::alibi_slopes;
use crate::ops::columns::{HeadState, LinearRule, TOKENS, state_floats, token_blocks};
use crate::ops::kept::Kept;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::scan::{ScanPart, ScanShape, scan, zeroed};
use crate::resolve::resolver::Resolver;

/// Lightning attention: linear attention with a decay rate per head.
#[derive(Clone, Debug, PartialEq)]
pub struct Lightning {
    /// Projection of each head's query, key and value.
    pub qkv: Matrix,
    /// Gate of the output.
    pub gate: Matrix,
    /// Norm of all heads together, before the gate.
    pub norm: Norm,
    /// Output projection.
    pub out: Matrix,
    /// Number of heads.
    pub n_heads: usize,
    /// Width of a query, key or value head.
    pub head_dim: usize,
    /// Decay rates `σ`, one per head.
    pub slopes: Vec<f32>,
}

impl MixerOp for Lightning {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (n_tokens, dim, inner, width) =
            (batch.n_tokens(), self.head_dim, self.gate.n_rows, self.qkv.n_rows);
        let mut qkv = cx.take(n_tokens * width);
        let [mut gate, mut y] = [(); 2].map(|()| cx.take(n_tokens * inner));
        let products = vec![Product::plain(&self.qkv, &mut qkv), Product::plain(&self.gate, &mut gate)];
        cx.products(x, n_tokens, products)?;
        let level = cx.weights.level;
        let shape = ScanShape { n_cols: inner, step: dim, n_state: state_floats(dim, dim) };
        scan(cx, batch, &mut y, shape, |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / dim;
            let [decay, rows] = zeroed(buffer, [TOKENS * dim, TOKENS * 3 * dim]);
            let mut state = HeadState::new(state, dim, dim);
            decay.fill(scalar::exp(-self.slopes[head]));
            for part in token_blocks(tokens.clone()) {
                let n = part.len();
                for (row, token) in rows.chunks_exact_mut(3 * dim).zip(part.clone()) {
                    row.copy_from_slice(&qkv[token * width + head * 3 * dim..][..3 * dim]);
                    map(level, ValueFunction::Silu, None, row);
                }
                let view = |at: usize| MatrixView::new(&rows[at * dim..], n, dim, 3 * dim);
                let decay = MatrixView::new(decay, n, dim, dim);
                let rule = LinearRule { decay, key: view(1), query: view(0) };
                let mut tile = tile.rows_mut(part.start - tokens.start..part.end - tokens.start);
                state.take_in(level, &rule, view(2), &mut tile);
            }
        })?;
        cx.slot("scan", &y, inner);
        cx.norm_in_place(Some(&self.norm), &mut y, inner)?;
        cx.each_row(&mut y, inner, &gate, inner, |y, gate| {
            math::times_sigmoid(level, y, gate);
        });
        cx.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        cx.give([qkv, gate, y]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        Ok(self.n_heads * state_floats(self.head_dim, self.head_dim))
    }

    fn kept(&self) -> Kept {
        Kept::state(self.n_heads * self.head_dim * self.head_dim)
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.head_dim, self.head_dim) + TOKENS * 4 * self.head_dim)
    }
}

impl Lightning {
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Lightning> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = b.n_embd;
        let n_heads = b.state_heads(layer)?;
        let key = b.keys.count("attention.key_length")?.filter(|&n| n > 0);
        let head_dim = key.unwrap_or(n_embd / n_heads);
        let inner = n_heads.saturating_mul(head_dim);
        // Decay rates fall with the depth of the layer.
        let depth = layer as f64 / (b.n_layers as f64 - 1.0).max(1.0);
        let factor = (1.0 - depth + 1e-5) as f32;
        Ok(Lightning {
            qkv: b.tensors.need_matrix(&at("attn_qkv"), inner.saturating_mul(3), n_embd)?,
            gate: b.tensors.need_matrix(&at("attn_gate"), inner, n_embd)?,
            norm: b.need_norm_of(&at("attn_norm_2"), inner)?,
            out: b.tensors.need_matrix(&at("attn_output"), n_embd, inner)?,
            n_heads,
            head_dim,
            slopes: alibi_slopes(n_heads, 8.0).into_iter().map(|slope| slope * factor).collect(),
        })
    }
}
