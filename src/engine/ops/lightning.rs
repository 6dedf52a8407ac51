//! Lightning attention (MiniMax-01): `[q|k|v] = silu(W x)` per head, `S ← e^-σ S + k vᵀ`, `o = Sᵀq`; then a norm of all
//! heads together and the gate `sig(G x)`.

use crate::engine::EngineError;
use crate::engine::ops::columns::{HeadState, LinearRule, TOKENS, parts, state_floats};
use crate::engine::ops::math;
use crate::engine::ops::matmul::MatrixView;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ScanPart, zeroed};
use crate::engine::ops::rowwise::{ValueFunction, map};
use crate::engine::plan::Lightning;
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// Lightning attention of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn lightning(
        &self,
        m: &Lightning,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_tokens, dim, inner, width) = (batch.n_tokens(), m.head_dim, m.gate.n_rows, m.qkv.n_rows);
        let mut qkv = self.take(n_tokens * width);
        let [mut gate, mut y] = [(); 2].map(|()| self.take(n_tokens * inner));
        let products = vec![Product::plain(&m.qkv, &mut qkv), Product::plain(&m.gate, &mut gate)];
        self.products(x, n_tokens, products)?;
        let level = self.weights.level;
        self.scan(batch, &mut y, ((inner, dim), state_floats(dim, dim)), |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let head = columns.start / dim;
            let [decay, rows] = zeroed(buffer, [TOKENS * dim, TOKENS * 3 * dim]);
            let mut state = HeadState::new(state, dim, dim);
            decay.fill(math::exp(-m.slopes[head]));
            for part in parts(tokens.clone()) {
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
        self.slot("scan", &y, inner);
        self.norm_in_place(Some(&m.norm), &mut y, inner)?;
        self.each_row((&mut y, inner), (&gate, inner), |y, gate| {
            math::times_sigmoid(level, y, gate);
        });
        self.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        self.give([qkv, gate, y]);
        Ok(())
    }
}
