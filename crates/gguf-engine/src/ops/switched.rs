//! Switched adapters (LoRA, Granite Switch): `y = W x + B_s A_s x`, where `s` is the token's slot.
//!
//! An attention head over the tokens so far computes the slot. Keys are `gain` for tokens that switch an adapter on and
//! `-gain` for others, the query is 1, and values are the slot or 0.

use crate::Result;
use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::product::Product;
use crate::exec::weights::Matrix;
use crate::ops::model_extra::ModelExtraOp;
use crate::resolve::resolver::Resolver;

/// Adapters of a product: `y += up_s down_s x`, by the slot `s` of the token.
#[derive(Clone, Debug, PartialEq)]
pub struct Switched {
    /// Matrices to the low rank, one per slot.
    pub down: Vec<Matrix>,
    /// Matrices from the low rank, one per slot.
    pub up: Vec<Matrix>,
}

/// Adapters of the products of an attention.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchedAttention {
    /// Adapters of the queries.
    pub q: Switched,
    /// Adapters of the keys.
    pub k: Switched,
    /// Adapters of the values.
    pub v: Switched,
    /// Adapters of the output.
    pub out: Switched,
}

/// Token that switches an adapter on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchToken {
    /// Id of the token.
    pub token: u32,
    /// Token whose embedding is used in its place.
    pub(crate) substitute: u32,
}

/// Switch: computes the slots of adapters from tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Token of slot `i + 1` at index `i`; slot 0 is no adapter.
    pub tokens: Vec<SwitchToken>,
    /// Half of the logarithm of the factor by which a token of an adapter outweighs other tokens.
    pub gain: f32,
}

impl Switch {
    /// Returns the slots of a chunk's tokens: `round(Σ_j p_j s_j)` over the tokens so far. The sum is in f32, as in the
    /// reference: with two adapters switched on, the mean may be halfway between slots, and the weight of all other
    /// tokens together is too small to count.
    pub(crate) fn slots(&self, tokens: &[u32]) -> Vec<u32> {
        let faint = (-2.0 * self.gain).exp();
        let (mut n_on, mut n_off, mut sum) = (0u32, 0u32, 0u32);
        let last = self.tokens.len() as f32;
        let slot = |token: &u32| {
            match self.tokens.iter().position(|own| own.token == *token) {
                Some(at) => {
                    n_on += 1;
                    sum += at as u32 + 1;
                }
                None => n_off += 1,
            }
            if n_on == 0 {
                return 0;
            }
            let share = 1.0 / (n_on as f32 + n_off as f32 * faint);
            (share * sum as f32).clamp(0.0, last).round() as u32
        };
        tokens.iter().map(slot).collect()
    }
}

impl ModelExtraOp for Switch {
    fn resolve(b: &mut Resolver<'_>) -> Result<Option<Switch>> {
        let Some(n) = b.keys.count(COUNT)?.filter(|&n| n > 0) else { return Ok(None) };
        let n_vocab = b.stream_matrix("token_embd")?.n_rows;
        let ids = |name| {
            let ids = b.keys.ids(name)?.ok_or_else(|| b.keys.missing(name))?;
            if ids.len() != n {
                return Err(b.keys.unknown(name, "a token for each adapter", &ids.len().to_string()));
            }
            match ids.iter().find(|&&id| id as usize >= n_vocab) {
                Some(id) => Err(b.keys.unknown(name, "tokens of the vocabulary", &id.to_string())),
                None => Ok(ids),
            }
        };
        let pairs = ids(ACTIVATE)?.into_iter().zip(ids(SUBSTITUTE)?);
        let gain = b.keys.number("adapters.router_gain")?;
        let gain = gain.ok_or_else(|| b.keys.missing("adapters.router_gain"))? as f32;
        let tokens = pairs.map(|(token, substitute)| SwitchToken { token, substitute }).collect();
        Ok(Some(Switch { tokens, gain }))
    }

    fn busiest_token(&self) -> Option<u32> {
        // Tokens without an adapter skip the adapters' products.
        self.tokens.first().map(|own| own.token)
    }

    fn substitute(&self, token: u32) -> u32 {
        let found = self.tokens.iter().find(|own| own.token == token);
        found.map_or(token, |own| own.substitute)
    }

    fn begin(&self, cx: &mut Context<'_>, chunks: &[TokenChunk], x: Buffer) -> Result<Buffer> {
        cx.carried.slots = match cx.past {
            None => chunks.iter().flat_map(|chunk| self.slots(&chunk.tokens)).collect(),
            Some(past) => {
                let places = past.sequences.iter().zip(&past.before);
                places.flat_map(|(&at, &n)| self.slots(&past.tokens[at]).into_iter().skip(n)).collect()
            }
        };
        Ok(x)
    }
}

/// Queries of the wanted rows; keys and values of all rows.
pub(crate) struct SwitchedHeads<'a> {
    pub(crate) q: &'a mut [f32],
    pub(crate) k: &'a mut [f32],
    pub(crate) v: &'a mut [f32],
}

/// Returns the slots of a batch's tokens.
pub(crate) fn batch_slots<'c>(cx: &'c Context<'_>, batch: &ChunkBatch) -> &'c [u32] {
    &cx.carried.slots[batch.start..batch.start + batch.n_tokens()]
}

/// Adds the tokens' adapters to the projections of the rows `x`; `queries` are the wanted rows of `x`.
pub(crate) fn switch_heads(
    cx: &Context<'_>,
    switched: &SwitchedAttention,
    batch: &ChunkBatch,
    x: &[f32],
    queries: &[f32],
    heads: SwitchedHeads<'_>,
) -> Result<()> {
    let (slots, SwitchedHeads { q, k, v }) = (batch_slots(cx, batch), heads);
    add_switched(cx, &switched.k, slots, x, k)?;
    add_switched(cx, &switched.v, slots, x, v)?;
    add_switched(cx, &switched.q, &batch.select(slots, 1), queries, q)
}

/// Adds the tokens' adapters to the output projection of the wanted rows.
pub(crate) fn switch_output(
    cx: &Context<'_>,
    switched: &SwitchedAttention,
    batch: &ChunkBatch,
    context: &[f32],
    out: &mut [f32],
) -> Result<()> {
    add_switched(cx, &switched.out, &batch.select(batch_slots(cx, batch), 1), context, out)
}

/// Computes `out += B_s A_s x`, with each row's slot `s`.
pub(crate) fn add_switched(
    cx: &Context<'_>,
    switched: &Switched,
    slots: &[u32],
    x: &[f32],
    out: &mut [f32],
) -> Result<()> {
    for (slot, (down, up)) in switched.down.iter().zip(&switched.up).enumerate() {
        let is_own = |row: &usize| slots[*row] as usize == slot;
        let rows: Vec<usize> = (0..slots.len()).filter(is_own).collect();
        if rows.is_empty() {
            continue;
        }
        let mut input: Buffer = cx.take(rows.len() * down.n_cols);
        for (to, row) in input.chunks_mut(down.n_cols).zip(&rows) {
            to.copy_from_slice(&x[row * down.n_cols..][..down.n_cols]);
        }
        let mut narrow = cx.take(rows.len() * down.n_rows);
        cx.products(&input, rows.len(), vec![Product::plain(down, &mut narrow)])?;
        let mut wide = cx.take(rows.len() * up.n_rows);
        cx.products(&narrow, rows.len(), vec![Product::plain(up, &mut wide)])?;
        for (added, row) in wide.chunks(up.n_rows).zip(&rows) {
            let out = &mut out[row * up.n_rows..][..up.n_rows];
            math::add_scaled(cx.weights.level, out, added, 1.0);
        }
        cx.give([input, narrow, wide]);
    }
    Ok(())
}

const COUNT: &str = "adapters.count";
const ACTIVATE: &str = "adapters.token_ids_activate";

const SUBSTITUTE: &str = "adapters.token_ids_substitute";

#[derive(Clone, Copy)]
pub(crate) struct AdapterSlots {
    /// Number of slots; slot 0 is no adapter.
    n: usize,
    rank: usize,
}

impl AdapterSlots {
    /// Reads the slots, if the model has adapters.
    pub(crate) fn resolve(b: &Resolver<'_>) -> Result<Option<AdapterSlots>> {
        let Some(n) = b.keys.count(COUNT)?.filter(|&n| n > 0) else { return Ok(None) };
        let rank = b.keys.need_count("adapters.lora_rank")?;
        Ok(Some(AdapterSlots { n: n.saturating_add(1), rank }))
    }
}

/// Resolves the adapters of the product with `base`.
pub(crate) fn additions(
    b: &mut Resolver<'_>,
    name: &str,
    slots: AdapterSlots,
    base: &Matrix,
) -> Result<Switched> {
    let AdapterSlots { n, rank } = slots;
    Ok(Switched {
        down: b.tensors.stack(&format!("{name}.lora_a"), n, rank, base.n_cols)?,
        up: b.tensors.stack(&format!("{name}.lora_b"), n, base.n_rows, rank)?,
    })
}

impl SwitchedAttention {
    /// Resolves the adapters of an attention, if the model has them.
    pub(crate) fn resolve(
        b: &mut Resolver<'_>,
        layer: usize,
        [q, k, v, out]: [&Matrix; 4],
    ) -> Result<Option<Box<SwitchedAttention>>> {
        let Some(slots) = AdapterSlots::resolve(b)? else { return Ok(None) };
        let at = |name: &str| format!("blk.{layer}.{name}");
        Ok(Some(Box::new(SwitchedAttention {
            q: additions(b, &at("attn_q"), slots, q)?,
            k: additions(b, &at("attn_k"), slots, k)?,
            v: additions(b, &at("attn_v"), slots, v)?,
            out: additions(b, &at("attn_output"), slots, out)?,
        })))
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::model_extra::ModelExtraOp;
    use crate::ops::switched::{Switch, SwitchToken};
    use crate::testkit::formulas::{assert_near, normed, times};
    use crate::testkit::models::TinyModel;
    use gguf_format::{Array, Value};

    const EPS: f64 = 1e-5;
    const GRAPH: &str = "residual = 'single'";
    const D: usize = 10;
    /// Width of the feed-forward network.
    const F: usize = 7;
    const R: usize = 3;
    const TOKENS: [u32; 9] = [1, 5, 12, 3, 7, 14, 2, 12, 9];

    /// Returns a feed-forward network with two adapters, which tokens 12 and 14 switch on.
    fn model() -> TinyModel {
        let sizes =
            [("block_count", 1), ("embedding_length", D), ("adapters.count", 2), ("adapters.lora_rank", R)];
        let mut model = TinyModel::new("x", &sizes, EPS as f32);
        model.metadata.set("x.feed_forward_length", F as u32);
        model.metadata.set("x.adapters.router_gain", 15.0f32);
        let ids = |ids: [i32; 2]| Value::Array(Array::I32(ids.to_vec()));
        model.metadata.set("x.adapters.token_ids_activate", ids([12, 14]));
        model.metadata.set("x.adapters.token_ids_substitute", ids([4, 6]));
        model.add(&[
            ("token_embd.weight", &[16, D]),
            ("output_norm.weight", &[D]),
            ("blk.0.attn_norm.weight", &[D]),
        ]);
        for (name, n_rows, n_cols) in [("ffn_gate", F, D), ("ffn_up", F, D), ("ffn_down", D, F)] {
            model.add(&[
                (&format!("blk.0.{name}.weight"), &[n_rows, n_cols]),
                (&format!("blk.0.{name}.lora_a"), &[3, R, n_cols]),
                (&format!("blk.0.{name}.lora_b"), &[3, n_rows, R]),
            ]);
        }
        model
    }

    /// Returns the result of the formula, token by token.
    fn by_formula(model: &TinyModel, slots: &[usize]) -> Vec<f64> {
        let get = |name: &str| model.get(&format!("blk.0.{name}"));
        let mut out = Vec::new();
        for (&token, &slot) in TOKENS.iter().zip(slots) {
            let row = match token {
                12 => 4,
                14 => 6,
                other => other as usize,
            };
            let part = |name: &str, x: &[f64]| -> Vec<f64> {
                let (a, b) = (get(&format!("{name}.lora_a")), get(&format!("{name}.lora_b")));
                let (size_a, size_b) = (a.len() / 3, b.len() / 3);
                let narrow = times(&a[slot * size_a..][..size_a], x);
                let added = times(&b[slot * size_b..][..size_b], &narrow);
                let y = times(&get(&format!("{name}.weight")), x);
                y.iter().zip(added).map(|(y, added)| y + added).collect()
            };
            let x = normed(&model.get("token_embd.weight")[row * D..][..D], &get("attn_norm.weight"), EPS);
            let (gate, up) = (part("ffn_gate", &x), part("ffn_up", &x));
            let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            out.extend(part("ffn_down", &inner));
        }
        out
    }

    #[test]
    fn tokens_take_the_additions_of_their_slots() {
        let model = model();
        // If the mean of the two slots is halfway, it is rounded away from zero.
        let expected = by_formula(&model, &[0, 0, 1, 1, 1, 2, 2, 1, 1]);
        assert_near(&model.slot(GRAPH, "ffn", &TOKENS), &expected, 1e-3);
    }

    #[test]
    fn a_slot_is_the_rounded_mean_of_those_turned_on() {
        let token = |token| SwitchToken { token, substitute: 0 };
        let switch = Switch { tokens: vec![token(12), token(14)], gain: 15.0 };
        assert_eq!(switch.slots(&TOKENS), [0, 0, 1, 1, 1, 2, 2, 1, 1]);
        // With a small gain, the other tokens count too.
        let switch = Switch { gain: 0.1, ..switch };
        assert_eq!(switch.slots(&[14, 1, 1, 1, 1]), [2, 1, 1, 1, 0]);
        assert_eq!((switch.substitute(14), switch.substitute(3)), (0, 3));
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_named() {
        let error = |model: &TinyModel| model.plan(GRAPH).unwrap_err().to_string();
        let mut found = model();
        found.metadata.set("x.adapters.count", 3u32);
        let expected = "key `x.adapters.token_ids_activate`: expected a token for each adapter, found 2";
        assert_eq!(error(&found), expected);
        let mut found = model();
        found.metadata.set("x.adapters.lora_rank", R as u32 + 1);
        let expected = "tensor `blk.0.ffn_gate.lora_a`: expected shape [3, 4, 10], found [3, 3, 10]";
        assert_eq!(error(&found), expected);
        let mut found = model();
        let ids = Value::Array(Array::I32(vec![4, 16]));
        found.metadata.set("x.adapters.token_ids_substitute", ids);
        let expected = "key `x.adapters.token_ids_substitute`: expected tokens of the vocabulary, found 16";
        assert_eq!(error(&found), expected);
        let mut found = model();
        found.metadata.remove("x.adapters.router_gain");
        assert_eq!(error(&found), "key `x.adapters.router_gain` is missing");
    }
}
