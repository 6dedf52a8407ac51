//! RWKV 6 (Peng et al. 2024, "Finch"): per head `o_j = Σ_i r_i (u_i k_i v_j + S_ij)`, `S_ij ← w_i S_ij + k_i v_j`, with
//! `w = exp(-exp(decay))`; and the form in a Qwen 2 body, `S ← w S + (1 - w) k vᵀ`, `o = Sᵀr / sqrt(dim)`.

use crate::engine::EngineError;
use crate::engine::ops::columns::{
    HeadState, LinearRule, ReadFirstRule, TOKENS, parts, rows_of, state_floats,
};
use crate::engine::ops::math;
use crate::engine::ops::matmul::MatrixView;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ScanPart, zeroed};
use crate::engine::ops::rowwise::ValueFunction;
use crate::engine::plan::{GatedActivation, LowRank, Rwkv6};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;

/// What the heads read, `[n_tokens, ..]` each.
struct Inputs {
    w: Buffer,
    k: Buffer,
    v: Buffer,
    r: Buffer,
    g: Buffer,
}

impl Runner<'_> {
    /// RWKV 6 of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn rwkv6(
        &self,
        m: &Rwkv6,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let inner = m.r.n_rows;
        let inputs = self.rwkv6_inputs(m, batch, x)?;
        let mut y = self.take(batch.n_tokens() * inner);
        self.rwkv6_heads(m, batch, &inputs, &mut y)?;
        self.slot("scan", &y, inner);
        if let Some(norm) = &m.norm {
            self.norm_parts(&self.weights.norm(norm)?, &mut y, inner, m.n_heads);
        }
        let (is_silu, level) = (m.first.is_some(), self.weights.level);
        self.each_row((&mut y, inner), (&inputs.g, inner), |y, g| {
            if is_silu {
                math::gated(level, GatedActivation::Swiglu, g, y);
            } else {
                math::times_sigmoid(level, y, g);
            }
        });
        self.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        let Inputs { w, k, v, r, g } = inputs;
        self.give([w, k, v, r, g, y]);
        Ok(())
    }

    fn rwkv6_inputs(&self, m: &Rwkv6, batch: &ChunkBatch, x: &[f32]) -> Result<Inputs, EngineError> {
        let (n_tokens, n_embd) = (batch.n_tokens(), m.r.n_cols);
        let shifted = self.shifted(batch, x, n_embd);
        let chooser = self.lerp(&m.lerp_x, x, &shifted)?;
        let bias = self.weights.vector(&m.decay_bias)?;
        // What one of the five reads: x + sx (lerp + W2 tanh(W1 chooser)).
        let seen = |at: usize| -> Result<Buffer, EngineError> {
            let lerp = self.weights.vector(&m.lerp[at])?;
            let low_rank = LowRank { first: m.mix_in[at].clone(), second: Some(m.mix_out[at].clone()) };
            let mut seen = self.low_rank(&low_rank, &chooser, n_tokens, ValueFunction::Tanh)?;
            self.each_row((&mut seen, n_embd), (&shifted, n_embd), |y, sx| {
                y.iter_mut().zip(sx).zip(&lerp).for_each(|((y, &sx), &lerp)| *y = sx * (lerp + *y));
            });
            self.each_row((&mut seen, n_embd), (x, n_embd), |y, x| {
                y.iter_mut().zip(x).for_each(|(y, &x)| *y += x);
            });
            Ok(seen)
        };
        let project = |at: usize, matrix| -> Result<Buffer, EngineError> {
            let x = seen(at)?;
            let out =
                self.low_rank(&LowRank { first: matrix, second: None }, &x, n_tokens, ValueFunction::Same)?;
            self.give([x]);
            Ok(out)
        };
        let decays_of = seen(0)?;
        let mut w = self.low_rank(&m.decay, &decays_of, n_tokens, ValueFunction::Tanh)?;
        self.give([decays_of]);
        self.map_rows(ValueFunction::ExpOfExp, Some(&bias), &mut w, bias.len());
        let inputs = Inputs {
            w,
            k: project(1, m.k.clone())?,
            v: project(2, m.v.clone())?,
            r: project(3, m.r.clone())?,
            g: project(4, m.g.clone())?,
        };
        self.give([shifted, chooser]);
        Ok(inputs)
    }

    fn rwkv6_heads(
        &self,
        m: &Rwkv6,
        batch: &ChunkBatch,
        inputs: &Inputs,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let (dim, inner, kv_width) = (m.head_dim, m.r.n_rows, m.k.n_rows);
        let first = self.weights.optional(m.first.as_ref())?;
        let level = self.weights.level;
        let scale = 1.0 / (dim as f32).sqrt();
        self.scan(batch, y, ((inner, dim), state_floats(dim, dim)), |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let kv_head = columns.start / dim / (m.n_heads / m.n_kv_heads);
            let [scaled_key, scaled_r] = zeroed(buffer, [TOKENS * dim; 2]);
            let mut state = HeadState::new(state, dim, dim);
            for part in parts(tokens.clone()) {
                let n = part.len();
                let (own, of_kv) = ((columns.start, dim, inner), (kv_head * dim, dim, kv_width));
                let [decay, receptance] = [&inputs.w, &inputs.r].map(|x| rows_of(x, &part, own));
                let [key, values] = [&inputs.k, &inputs.v].map(|x| rows_of(x, &part, of_kv));
                let mut tile = tile.rows_mut(part.start - tokens.start..part.end - tokens.start);
                if let Some(first) = &first {
                    let rule = ReadFirstRule { decay, first: &first[columns.clone()], key, receptance };
                    state.take_in(level, &rule, values, &mut tile);
                } else {
                    for t in 0..n {
                        let scaled = scaled_key[t * dim..].iter_mut().zip(key.row(t)).zip(decay.row(t));
                        scaled.for_each(|((y, &key), &decay)| *y = key * (1.0 - decay));
                        let scaled = scaled_r[t * dim..].iter_mut().zip(receptance.row(t));
                        scaled.for_each(|(y, &r)| *y = r * scale);
                    }
                    let [key, query] = [&*scaled_key, &*scaled_r].map(|x| MatrixView::new(x, n, dim, dim));
                    state.take_in(level, &LinearRule { decay, key, query }, values, &mut tile);
                }
            }
        })
    }
}
