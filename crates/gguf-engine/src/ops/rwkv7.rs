//! RWKV 7 (Peng et al. 2025, "Goose"): per head, with values in rows of the state,
//! `S ← S diag(w) - (S κ)(κ a)ᵀ + v kᵀ`, `o = S r`, where `κ` is the removed key, of length 1.

use rayon::prelude::*;

use crate::exec::batch::ChunkBatch;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::matmul::MatrixView;
use crate::exec::product::Product;
use crate::exec::rowwise::ValueFunction;
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::exec::workers::Tasks;
use crate::ops::columns::{HeadState, ReplaceRule, TOKENS, column_view, token_blocks};
use crate::ops::kept::Kept;
use crate::ops::low_rank::LowRank;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::rwkv::{WkvHeads, lerp, lerps, shifted, square, wkv_norm};
use crate::ops::scan::{ScanPart, scan, zeroed};
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};

/// RWKV 7: a delta rule with separate gates for removing and writing keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv7 {
    /// Shares of the previous token in the inputs of receptances, decays, keys, values, learning rates and gates.
    pub(crate) lerp: Vec<Vector>,
    /// Receptance projection.
    pub r: Matrix,
    /// Key projection.
    pub k: Matrix,
    /// Value projection.
    pub v: Matrix,
    /// Projection of the decays, and its bias.
    pub w: (LowRank, Vector),
    /// Projection of the shares of the first layer's values, and its bias; absent in the first layer, which supplies
    /// them.
    pub(crate) v_mix: Option<(LowRank, Vector)>,
    /// Projection of the learning rates, and its bias.
    pub a: (LowRank, Vector),
    /// Gate of the output.
    pub g: Option<LowRank>,
    /// Factors of the removed keys.
    pub(crate) k_k: Vector,
    /// Factors of the learning rates in the written keys.
    pub(crate) k_a: Vector,
    /// Weight of the current token.
    pub(crate) r_k: Vector,
    /// Norm of each head's output.
    pub norm: Option<Norm>,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub heads: WkvHeads,
}

/// Factor of the decay's exponent: a state decays by `exp(DECAY sig(..))`, at least `exp(-exp(-0.5))`.
const DECAY: f32 = -0.606_531;
/// Number of values that one task mixes.
const PART: usize = 1 << 14;

struct Vectors {
    k_k: Vec<f32>,
    k_a: Vec<f32>,
    r_k: Vec<f32>,
}

/// Inputs of the heads, `[n_tokens, ..]` each.
struct Rwkv7Inputs {
    r: Buffer,
    w: Buffer,
    k: Buffer,
    v: Buffer,
    a: Buffer,
    g: Option<Buffer>,
}

impl MixerOp for Rwkv7 {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let inner = self.r.n_rows;
        let inputs = rwkv7_inputs(cx, self, batch, x)?;
        let mut y = cx.take(batch.n_tokens() * inner);
        rwkv7_heads(cx, self, batch, &inputs, &mut y)?;
        cx.slot("scan", &y, inner);
        let Rwkv7Inputs { r, w, k, v, a, g } = inputs;
        if let Some(g) = g {
            cx.each_row(&mut y, inner, &g, inner, |y, g| {
                y.iter_mut().zip(g).for_each(|(y, &g)| *y *= g);
            });
            cx.give([g]);
        }
        cx.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        cx.give([r, w, k, v, a, y]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        Ok(self.heads.remembered(self.r.n_cols))
    }

    fn kept(&self) -> Kept {
        Kept::state(self.heads.kept(self.r.n_cols))
    }

    fn thread_bytes(&self, _: usize) -> usize {
        self.heads.thread_bytes(3)
    }
}

fn rwkv7_inputs(cx: &Context<'_>, m: &Rwkv7, batch: &ChunkBatch, x: &[f32]) -> Result<Rwkv7Inputs> {
    let (n_tokens, n_embd) = (batch.n_tokens(), m.r.n_cols);
    let shifted = shifted(cx, batch, x, n_embd);
    let seen = |at: usize| lerp(cx, &m.lerp[at], x, &shifted);
    let project = |x: &[f32], matrix: &_| -> Result<Buffer> {
        let mut out = cx.take(n_tokens * m.r.n_rows);
        cx.products(x, n_tokens, vec![Product::plain(matrix, &mut out)])?;
        Ok(out)
    };
    // A low-rank product with its bias, followed by a function.
    let part = |x: &[f32], (low_rank, bias): &(LowRank, Vector), inner: ValueFunction, end: ValueFunction| {
        let bias = cx.weights.vector(bias)?;
        let mut out = low_rank.run(cx, x, n_tokens, inner)?;
        cx.map_rows(end, Some(&bias), &mut out, bias.len());
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
            cx.workers.install(|| {
                let parts = v.par_chunks_mut(PART).zip(first.par_chunks(PART)).zip(share.par_chunks(PART));
                parts.run(&|((v, first), share)| {
                    for ((v, &first), &share) in v.iter_mut().zip(first).zip(share) {
                        *v += (first - *v) * share;
                    }
                });
            });
            cx.give([share]);
        }
    }
    let a = part(&a_of, &m.a, ValueFunction::Same, ValueFunction::Sigmoid)?;
    let g = match &m.g {
        Some(low_rank) => {
            let g_of = seen(5)?;
            let g = low_rank.run(cx, &g_of, n_tokens, ValueFunction::Sigmoid)?;
            cx.give([g_of]);
            Some(g)
        }
        None => None,
    };
    cx.give([shifted, r_of, w_of, k_of, v_of, a_of]);
    Ok(Rwkv7Inputs { r, w, k, v, a, g })
}

fn rwkv7_heads(
    cx: &Context<'_>,
    m: &Rwkv7,
    batch: &ChunkBatch,
    inputs: &Rwkv7Inputs,
    y: &mut [f32],
) -> Result<()> {
    let (dim, inner) = (m.heads.dim, m.r.n_rows);
    let vector = |vector: &Vector| cx.weights.vector(vector);
    let vectors = Vectors { k_k: vector(&m.k_k)?, k_a: vector(&m.k_a)?, r_k: vector(&m.r_k)? };
    let norm = m.norm.as_ref().map(|norm| cx.weights.norm(norm)).transpose()?;
    let level = cx.weights.level;
    scan(cx, batch, y, m.heads.scan_shape(), |part, tile, buffer| {
        let ScanPart { tokens, columns, state, .. } = part;
        let [key, removed, lost] = zeroed(buffer, [TOKENS * dim; 3]);
        let mut state = HeadState::new(state, dim, dim);
        let mut scratch = Vec::new();
        let [k_k, k_a, r_k] =
            [&vectors.k_k, &vectors.k_a, &vectors.r_k].map(|vector| &vector[columns.clone()]);
        for part in token_blocks(tokens.clone()) {
            let n = part.len();
            let Rwkv7Inputs { r, w, k, v, a, .. } = inputs;
            let [r, w, k, v, a] = [r, w, k, v, a].map(|x| column_view(x, &part, columns.clone(), inner));
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
            let [keys, removed, lost] = [&*key, &*removed, &*lost].map(|x| MatrixView::new(x, n, dim, dim));
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

impl Rwkv7 {
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Rwkv7> {
        let at = |name: &str| format!("blk.{layer}.time_mix_{name}");
        let n_embd = b.n_embd;
        let heads = WkvHeads::resolve(b)?;
        let has_gate = b.tensors.has(&at("g1.weight"));
        let lerp = lerps(b, &at("lerp_fused.weight"), if has_gate { 6 } else { 5 })?;
        let rank = |b: &Resolver<'_>, name: &str| b.keys.need_count(&format!("attention.{name}_lora_rank"));
        let part = |b: &mut Resolver<'_>, name: &str, key: &str| {
            let rank = rank(b, key)?;
            let low_rank = LowRank::resolve(b, &at(&format!("{name}1")), &at(&format!("{name}2")), rank)?;
            Ok::<_, EngineError>((low_rank, b.need_vector(&at(&format!("{name}0.weight")), n_embd)?))
        };
        let v_mix = if layer == 0 {
            // The other layers mix in the first layer's values; its own mix tensors exist in files but are not used.
            for name in ["v0.weight", "v1.weight", "v2.weight"] {
                let _ = b.tensors.claim(&at(name));
            }
            None
        } else {
            Some(part(b, "v", "value_residual_mix")?)
        };
        let g = if has_gate {
            let rank = rank(b, "gate")?;
            Some(LowRank::resolve(b, &at("g1"), &at("g2"), rank)?)
        } else {
            None
        };
        Ok(Rwkv7 {
            lerp,
            r: square(b, &at("receptance"))?,
            k: square(b, &at("key"))?,
            v: square(b, &at("value"))?,
            w: part(b, "w", "decay")?,
            v_mix,
            a: part(b, "a", "iclr")?,
            g,
            k_k: b.need_vector(&at("k_k.weight"), n_embd)?,
            k_a: b.need_vector(&at("k_a.weight"), n_embd)?,
            r_k: b.need_vector(&at("r_k.weight"), n_embd)?,
            norm: wkv_norm(b, layer)?,
            out: square(b, &at("output"))?,
            heads,
        })
    }
}
