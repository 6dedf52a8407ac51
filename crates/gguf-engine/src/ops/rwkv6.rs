//! RWKV 6 (Peng et al. 2024, "Finch"): per head `o_j = Σ_i r_i (u_i k_i v_j + S_ij)`, `S_ij ← w_i S_ij + k_i v_j`, with
//! `w = exp(-exp(decay))`. The form with Qwen 2 layers is `S ← w S + (1 - w) k vᵀ`, `o = Sᵀr / sqrt(dim)`.

use crate::exec::activation::GatedActivation;
use crate::exec::batch::ChunkBatch;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::matmul::MatrixView;
use crate::exec::product::Product;
use crate::exec::rowwise::ValueFunction;
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::ops::columns::{HeadState, LinearRule, ReadFirstRule, TOKENS, column_view, token_blocks};
use crate::ops::kept::Kept;
use crate::ops::low_rank::LowRank;
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::rwkv::{WkvHeads, lerp, lerps, shifted, square, wkv_norm};
use crate::ops::scan::{ScanPart, scan, zeroed};
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};

/// RWKV 6: a state per head with a decay per key channel, and token shifts whose shares depend on the tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv6 {
    /// Share of the previous token in the input of the low-rank shares.
    pub(crate) lerp_x: Vector,
    /// Shares of the previous token in the inputs of decays, keys, values, receptances and gates.
    pub(crate) lerp: [Vector; 5],
    /// Low-rank additions to the shares: projections to the low rank.
    pub(crate) mix_in: [Matrix; 5],
    /// Low-rank additions to the shares: projections from the low rank to the stream's width.
    pub(crate) mix_out: [Matrix; 5],
    /// Receptance projection.
    pub r: Matrix,
    /// Key projection.
    pub k: Matrix,
    /// Value projection.
    pub v: Matrix,
    /// Gate projection.
    pub g: Matrix,
    /// Projection of the decays.
    pub decay: LowRank,
    pub(crate) decay_bias: Vector,
    /// Weight of the current token; without it, states are read after they are written.
    pub first: Option<Vector>,
    /// Norm of each head's output.
    pub norm: Option<Norm>,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub heads: WkvHeads,
    /// Number of key-value heads; head `h` uses `h / (heads.n / n_kv_heads)`.
    pub n_kv_heads: usize,
}

/// Inputs of the heads, `[n_tokens, ..]` each.
struct Rwkv6Inputs {
    w: Buffer,
    k: Buffer,
    v: Buffer,
    r: Buffer,
    g: Buffer,
}

impl MixerOp for Rwkv6 {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let inner = self.r.n_rows;
        let inputs = rwkv6_inputs(cx, self, batch, x)?;
        let mut y = cx.take(batch.n_tokens() * inner);
        rwkv6_heads(cx, self, batch, &inputs, &mut y)?;
        cx.slot("scan", &y, inner);
        if let Some(norm) = &self.norm {
            cx.norm_parts(&cx.weights.norm(norm)?, &mut y, inner, self.heads.n);
        }
        let (is_silu, level) = (self.first.is_some(), cx.weights.level);
        cx.each_row(&mut y, inner, &inputs.g, inner, |y, g| {
            if is_silu {
                math::gated(level, GatedActivation::Swiglu, g, y);
            } else {
                math::times_sigmoid(level, y, g);
            }
        });
        cx.products(batch.gather(&mut y, inner), batch.n_wanted(), vec![Product::plain(&self.out, out)])?;
        let Rwkv6Inputs { w, k, v, r, g } = inputs;
        cx.give([w, k, v, r, g, y]);
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
        self.heads.thread_bytes(2)
    }
}

fn rwkv6_inputs(cx: &Context<'_>, m: &Rwkv6, batch: &ChunkBatch, x: &[f32]) -> Result<Rwkv6Inputs> {
    let (n_tokens, n_embd) = (batch.n_tokens(), m.r.n_cols);
    let shifted = shifted(cx, batch, x, n_embd);
    let chooser = lerp(cx, &m.lerp_x, x, &shifted)?;
    let bias = cx.weights.vector(&m.decay_bias)?;
    // Input of one of the five projections: x + sx (lerp + W2 tanh(W1 chooser)).
    let seen = |at: usize| -> Result<Buffer> {
        let lerp = cx.weights.vector(&m.lerp[at])?;
        let low_rank = LowRank { first: m.mix_in[at].clone(), second: Some(m.mix_out[at].clone()) };
        let mut seen = low_rank.run(cx, &chooser, n_tokens, ValueFunction::Tanh)?;
        cx.each_row(&mut seen, n_embd, &shifted, n_embd, |y, sx| {
            y.iter_mut().zip(sx).zip(&lerp).for_each(|((y, &sx), &lerp)| *y = sx * (lerp + *y));
        });
        cx.each_row(&mut seen, n_embd, x, n_embd, |y, x| {
            y.iter_mut().zip(x).for_each(|(y, &x)| *y += x);
        });
        Ok(seen)
    };
    let project = |at: usize, matrix| -> Result<Buffer> {
        let x = seen(at)?;
        let out = LowRank { first: matrix, second: None }.run(cx, &x, n_tokens, ValueFunction::Same)?;
        cx.give([x]);
        Ok(out)
    };
    let decays_of = seen(0)?;
    let mut w = m.decay.run(cx, &decays_of, n_tokens, ValueFunction::Tanh)?;
    cx.give([decays_of]);
    cx.map_rows(ValueFunction::ExpOfExp, Some(&bias), &mut w, bias.len());
    let inputs = Rwkv6Inputs {
        w,
        k: project(1, m.k.clone())?,
        v: project(2, m.v.clone())?,
        r: project(3, m.r.clone())?,
        g: project(4, m.g.clone())?,
    };
    cx.give([shifted, chooser]);
    Ok(inputs)
}

fn rwkv6_heads(
    cx: &Context<'_>,
    m: &Rwkv6,
    batch: &ChunkBatch,
    inputs: &Rwkv6Inputs,
    y: &mut [f32],
) -> Result<()> {
    let (dim, inner, kv_width) = (m.heads.dim, m.r.n_rows, m.k.n_rows);
    let first = cx.weights.optional(m.first.as_ref())?;
    let level = cx.weights.level;
    let scale = 1.0 / (dim as f32).sqrt();
    scan(cx, batch, y, m.heads.scan_shape(), |part, tile, buffer| {
        let ScanPart { tokens, columns, state, .. } = part;
        let kv_head = columns.start / dim / (m.heads.n / m.n_kv_heads);
        let [scaled_key, scaled_r] = zeroed(buffer, [TOKENS * dim; 2]);
        let mut state = HeadState::new(state, dim, dim);
        for part in token_blocks(tokens.clone()) {
            let n = part.len();
            let [decay, receptance] =
                [&inputs.w, &inputs.r].map(|x| column_view(x, &part, columns.clone(), inner));
            let of_kv = kv_head * dim..(kv_head + 1) * dim;
            let [key, values] =
                [&inputs.k, &inputs.v].map(|x| column_view(x, &part, of_kv.clone(), kv_width));
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

impl Rwkv6 {
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Rwkv6> {
        let at = |name: &str| format!("blk.{layer}.time_mix_{name}");
        let n_embd = b.n_embd;
        let heads = WkvHeads::resolve(b)?;
        let kv_key = "attention.head_count_kv";
        let n_kv_heads = match b.keys.layer_count(kv_key, layer)?.filter(|&n| n > 0) {
            Some(n) if !heads.n.is_multiple_of(n) => {
                return Err(b.keys.unknown(kv_key, "a divisor of the number of heads", &n.to_string()));
            }
            found => found.unwrap_or(heads.n),
        };
        let rank = b.keys.need_count("time_mix_extra_dim")?;
        let decay_rank = b.keys.need_count("time_decay_extra_dim")?;
        let shares = lerps(b, &at("lerp_fused.weight"), 5)?;
        let mix_in = b.cut(&at("w1"), [rank; 5], n_embd)?;
        let mix_out = b.tensors.experts(&at("w2"), 5, n_embd, rank)?;
        let five = || EngineError::MissingTensor { tensor: at("w2.weight") };
        let kv_width = n_kv_heads * heads.dim;
        Ok(Rwkv6 {
            lerp_x: b.need_vector(&at("lerp_x.weight"), n_embd)?,
            lerp: shares.try_into().map_err(|_| five())?,
            mix_in,
            mix_out: mix_out.try_into().map_err(|_| five())?,
            r: square(b, &at("receptance"))?,
            k: b.tensors.need_matrix(&at("key"), kv_width, n_embd)?,
            v: b.tensors.need_matrix(&at("value"), kv_width, n_embd)?,
            g: square(b, &at("gate"))?,
            decay: LowRank::resolve(b, &at("decay_w1"), &at("decay_w2"), decay_rank)?,
            decay_bias: b.need_vector(&at("decay.weight"), n_embd)?,
            first: b.tensors.vector(&at("first.weight"), n_embd)?,
            norm: wkv_norm(b, layer)?,
            out: square(b, &at("output"))?,
            heads,
            n_kv_heads,
        })
    }
}
