//! RWKV 7 (Peng et al. 2025, "Goose"): per head, with values in rows of the state,
//! `S ← S diag(w) - (S κ)(κ a)ᵀ + v kᵀ`, `o = S r`, where `κ` is the key of length 1 that is removed.

use rayon::prelude::*;

use crate::engine::EngineError;
use crate::engine::ops::columns::{HeadState, ReplaceRule, TOKENS, parts, rows_of, state_floats};
use crate::engine::ops::math;
use crate::engine::ops::matmul::MatrixView;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::{ScanPart, zeroed};
use crate::engine::ops::rowwise::ValueFunction;
use crate::engine::plan::{LowRank, Rwkv7, Vector};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;

/// `exp(DECAY sig(..))` is what stays of a state: at least `exp(-exp(-0.5))`.
const DECAY: f32 = -0.606_531;
/// Values that one task mixes.
const PART: usize = 1 << 14;

/// Vectors as long as the heads are together.
struct Vectors {
    k_k: Vec<f32>,
    k_a: Vec<f32>,
    r_k: Vec<f32>,
}

/// What the heads read, `[n_tokens, ..]` each.
struct Inputs {
    r: Buffer,
    w: Buffer,
    k: Buffer,
    v: Buffer,
    a: Buffer,
    g: Option<Buffer>,
}

impl Runner<'_> {
    /// RWKV 7 of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn rwkv7(
        &self,
        m: &Rwkv7,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let inner = m.r.n_rows;
        let inputs = self.rwkv7_inputs(m, batch, x)?;
        let mut y = self.take(batch.n_tokens() * inner);
        self.rwkv7_heads(m, batch, &inputs, &mut y)?;
        self.slot("scan", &y, inner);
        let Inputs { r, w, k, v, a, g } = inputs;
        if let Some(g) = g {
            self.each_row((&mut y, inner), (&g, inner), |y, g| {
                y.iter_mut().zip(g).for_each(|(y, &g)| *y *= g);
            });
            self.give([g]);
        }
        self.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&m.out, out)])?;
        self.give([r, w, k, v, a, y]);
        Ok(())
    }

    fn rwkv7_inputs(&self, m: &Rwkv7, batch: &ChunkBatch, x: &[f32]) -> Result<Inputs, EngineError> {
        let (n_tokens, n_embd) = (batch.n_tokens(), m.r.n_cols);
        let shifted = self.shifted(batch, x, n_embd);
        let seen = |at: usize| self.lerp(&m.lerp[at], x, &shifted);
        let project = |x: &[f32], matrix: &_| -> Result<Buffer, EngineError> {
            let mut out = self.take(n_tokens * m.r.n_rows);
            self.products(x, n_tokens, vec![Product::plain(matrix, &mut out)])?;
            Ok(out)
        };
        // A low-rank part with its bias, through a function.
        let part =
            |x: &[f32], (low_rank, bias): &(LowRank, Vector), inner: ValueFunction, end: ValueFunction| {
                let bias = self.weights.vector(bias)?;
                let mut out = self.low_rank(low_rank, x, n_tokens, inner)?;
                self.map_rows(end, Some(&bias), &mut out, bias.len());
                Ok::<_, EngineError>(out)
            };
        let (r_of, w_of, k_of, v_of, a_of) = (seen(0)?, seen(1)?, seen(2)?, seen(3)?, seen(4)?);
        let r = project(&r_of, &m.r)?;
        let w = part(&w_of, &m.w, ValueFunction::Tanh, ValueFunction::ExpOfSigmoid(DECAY))?;
        let k = project(&k_of, &m.k)?;
        let mut v = project(&v_of, &m.v)?;
        match &m.v_mix {
            None => drop(batch.carried.set(v.to_vec())),
            Some(mix) => {
                let share = part(&v_of, mix, ValueFunction::Same, ValueFunction::Sigmoid)?;
                let first = batch.carried.get().map_or(&[][..], Vec::as_slice);
                self.workers.install(|| {
                    let parts =
                        v.par_chunks_mut(PART).zip(first.par_chunks(PART)).zip(share.par_chunks(PART));
                    parts.for_each(|((v, first), share)| {
                        for ((v, &first), &share) in v.iter_mut().zip(first).zip(share) {
                            *v += (first - *v) * share;
                        }
                    });
                });
                self.give([share]);
            }
        }
        let a = part(&a_of, &m.a, ValueFunction::Same, ValueFunction::Sigmoid)?;
        let g = match &m.g {
            Some(low_rank) => {
                let g_of = seen(5)?;
                let g = self.low_rank(low_rank, &g_of, n_tokens, ValueFunction::Sigmoid)?;
                self.give([g_of]);
                Some(g)
            }
            None => None,
        };
        self.give([shifted, r_of, w_of, k_of, v_of, a_of]);
        Ok(Inputs { r, w, k, v, a, g })
    }

    fn rwkv7_heads(
        &self,
        m: &Rwkv7,
        batch: &ChunkBatch,
        inputs: &Inputs,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let (dim, inner) = (m.head_dim, m.r.n_rows);
        let vector = |vector: &Vector| self.weights.vector(vector);
        let vectors = Vectors { k_k: vector(&m.k_k)?, k_a: vector(&m.k_a)?, r_k: vector(&m.r_k)? };
        let norm = m.norm.as_ref().map(|norm| self.weights.norm(norm)).transpose()?;
        let level = self.weights.level;
        self.scan(batch, y, ((inner, dim), state_floats(dim, dim)), |part, tile, buffer| {
            let ScanPart { tokens, columns, state, .. } = part;
            let [key, removed, lost] = zeroed(buffer, [TOKENS * dim; 3]);
            let mut state = HeadState::new(state, dim, dim);
            let mut scratch = Vec::new();
            let [k_k, k_a, r_k] =
                [&vectors.k_k, &vectors.k_a, &vectors.r_k].map(|vector| &vector[columns.clone()]);
            for part in parts(tokens.clone()) {
                let n = part.len();
                let Inputs { r, w, k, v, a, .. } = inputs;
                let own = (columns.start, dim, inner);
                let [r, w, k, v, a] = [r, w, k, v, a].map(|x| rows_of(x, &part, own));
                for t in 0..n {
                    let own = t * dim..(t + 1) * dim;
                    let (key, removed) = (&mut key[own.clone()], &mut removed[own.clone()]);
                    let (k, a) = (k.row(t), a.row(t));
                    for i in 0..dim {
                        removed[i] = k[i] * k_k[i];
                        let weighed = k[i] * k_a[i];
                        key[i] = k[i] + a[i] * weighed - weighed;
                    }
                    let length = math::moments(level, removed, 0.0).1.sqrt().max(1e-12);
                    math::scale_and_cap(level, removed, (1.0 / length) as f32, None);
                    lost[own].iter_mut().zip(&*removed).zip(a).for_each(|((y, &x), &a)| *y = x * a);
                }
                let [keys, removed, lost] =
                    [&*key, &*removed, &*lost].map(|x| MatrixView::new(x, n, dim, dim));
                let rule = ReplaceRule { decay: w, key: keys, removed, lost, receptance: r };
                let mut tile = tile.rows_mut(part.start - tokens.start..part.end - tokens.start);
                state.take_in(level, &rule, v, &mut tile);
                for t in 0..n {
                    let (out, key, r) = (tile.row_mut(t), keys.row(t), r.row(t));
                    if let Some(norm) = &norm {
                        norm.head(level, out, columns.start / dim, &mut scratch);
                    }
                    let bonus: f32 = (0..dim).map(|i| key[i] * r[i] * r_k[i]).sum();
                    math::add_scaled(level, out, v.row(t), bonus);
                }
            }
        })
    }
}
