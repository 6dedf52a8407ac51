//! Lightning attention (MiniMax-01): `[q|k|v] = silu(W x)` per head, `S ← e^-σ S + k vᵀ`, `o = Sᵀq`; then a norm of all
//! heads together and the gate `sig(G x)`.

use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{LinearStep, linear_step, zeroed};
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
        self.scan(batch, &mut y, (inner, dim), |tokens, columns, tile, buffer| {
            let head = columns.start / dim;
            let [state, decay, row] = zeroed(buffer, [dim * dim, dim, 3 * dim]);
            decay.fill(math::exp(-m.slopes[head]));
            for (t, token) in tokens.enumerate() {
                let raw = &qkv[token * width + head * 3 * dim..][..3 * dim];
                row.iter_mut().zip(raw).for_each(|(y, &x)| *y = x * math::sigmoid(x));
                let y = tile.row_mut(t);
                y.fill(0.0);
                let (query, key, value) = (&row[..dim], &row[dim..2 * dim], &row[2 * dim..]);
                linear_step(level, LinearStep { state: &mut *state, decay, key, query, value, out: y });
            }
        })?;
        self.slot("scan", &y, inner);
        self.norm_in_place(Some(&m.norm), &mut y, inner)?;
        self.each_row((&mut y, inner), (&gate, inner), |y, gate| {
            math::times_sigmoid(y, gate);
        });
        self.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        self.give([qkv, gate, y]);
        Ok(())
    }
}
