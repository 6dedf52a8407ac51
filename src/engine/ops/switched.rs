//! Adapters that tokens turn on (Granite Switch): `y = W x + B_s A_s x`, where `s` is the token's slot. A head of attention
//! over the tokens so far finds it: keys of `gain` for tokens that turn an adapter on and `-gain` for others, a query of 1,
//! values of the slot and of 0.

use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::plan::{Activation, Dense, Switch, Switched, SwitchedAttention, SwitchedDense};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;

impl Switch {
    /// The token whose embedding a token has.
    pub(crate) fn substitute(&self, token: u32) -> u32 {
        let found = self.tokens.iter().find(|own| own.token == token);
        found.map_or(token, |own| own.substitute)
    }

    /// The slots of a chunk's tokens: `round(Σ_j p_j s_j)` over the tokens so far, in f32 as the reference: with two
    /// adapters turned on the mean may lie halfway, and all other tokens together weigh too little to count.
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

/// Queries of the wanted rows, keys and values of all.
pub(super) struct SwitchedHeads<'a> {
    pub(super) q: &'a mut [f32],
    pub(super) k: &'a mut [f32],
    pub(super) v: &'a mut [f32],
}

impl Runner<'_> {
    /// Slots of a batch's tokens.
    fn batch_slots(&self, batch: &ChunkBatch) -> &[u32] {
        &self.carried.slots[batch.start..batch.start + batch.n_tokens()]
    }

    /// Adds the tokens' additions to the projections of the rows `x`; `queries` are the wanted ones of them.
    pub(super) fn switch_heads(
        &self,
        switched: &SwitchedAttention,
        batch: &ChunkBatch,
        (x, queries): (&[f32], &[f32]),
        heads: SwitchedHeads<'_>,
    ) -> Result<(), EngineError> {
        let (slots, SwitchedHeads { q, k, v }) = (self.batch_slots(batch), heads);
        self.add_switched(&switched.k, slots, x, k)?;
        self.add_switched(&switched.v, slots, x, v)?;
        self.add_switched(&switched.q, &batch.select(slots, 1), queries, q)
    }

    /// Adds the tokens' additions to the output projection of the wanted rows.
    pub(super) fn switch_output(
        &self,
        switched: &SwitchedAttention,
        batch: &ChunkBatch,
        context: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        self.add_switched(&switched.out, &batch.select(self.batch_slots(batch), 1), context, out)
    }

    /// A dense feed-forward of the wanted rows whose products have additions.
    pub(super) fn switched_dense(
        &self,
        dense: &Dense,
        switched: &SwitchedDense,
        (batch, x): (&ChunkBatch, &[f32]),
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_tokens, width, level) = (batch.n_wanted(), dense.up.n_rows, self.weights.level);
        let slots = batch.select(self.batch_slots(batch), 1);
        let mut inner = self.take(n_tokens * width);
        self.products(x, n_tokens, vec![Product::plain(&dense.up, &mut inner)])?;
        self.add_switched(&switched.up, &slots, x, &mut inner)?;
        match &dense.act {
            Activation::Plain(act) => math::activate(level, *act, &mut inner),
            Activation::Gated { act, gate } => {
                let mut gates = self.take(n_tokens * width);
                self.products(x, n_tokens, vec![Product::plain(gate, &mut gates)])?;
                if let Some(switched) = &switched.gate {
                    self.add_switched(switched, &slots, x, &mut gates)?;
                }
                self.each_row((&mut inner, width), (&gates, width), |inner, gate| {
                    math::gated(level, *act, gate, inner);
                });
                self.give([gates]);
            }
        }
        self.norm_in_place(dense.sub_norm.as_ref(), &mut inner, width)?;
        self.products(&inner, n_tokens, vec![Product::plain(&dense.down, out)])?;
        self.add_switched(&switched.down, &slots, &inner, out)?;
        self.give([inner]);
        Ok(())
    }

    /// `out += B_s A_s x`, row by row by its slot.
    fn add_switched(
        &self,
        switched: &Switched,
        slots: &[u32],
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        for (slot, (down, up)) in switched.down.iter().zip(&switched.up).enumerate() {
            let is_own = |row: &usize| slots[*row] as usize == slot;
            let rows: Vec<usize> = (0..slots.len()).filter(is_own).collect();
            if rows.is_empty() {
                continue;
            }
            let mut input: Buffer = self.take(rows.len() * down.n_cols);
            for (to, row) in input.chunks_mut(down.n_cols).zip(&rows) {
                to.copy_from_slice(&x[row * down.n_cols..][..down.n_cols]);
            }
            let mut narrow = self.take(rows.len() * down.n_rows);
            self.products(&input, rows.len(), vec![Product::plain(down, &mut narrow)])?;
            let mut wide = self.take(rows.len() * up.n_rows);
            self.products(&narrow, rows.len(), vec![Product::plain(up, &mut wide)])?;
            for (added, row) in wide.chunks(up.n_rows).zip(&rows) {
                let out = &mut out[row * up.n_rows..][..up.n_rows];
                math::add_scaled(self.weights.level, out, added, 1.0);
            }
            self.give([input, narrow, wide]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::ops::noise::{NoiseModel, assert_near, normed, times};
    use crate::engine::plan::{Switch, SwitchToken};
    use crate::gguf::{Array, Value};

    const EPS: f64 = 1e-5;
    const GRAPH: &str = "residual = 'single'";
    /// Width of the stream.
    const D: usize = 10;
    /// Width of the feed-forward.
    const F: usize = 7;
    /// Rank of additions.
    const R: usize = 3;
    const TOKENS: [u32; 9] = [1, 5, 12, 3, 7, 14, 2, 12, 9];

    /// A feed-forward with two adapters, which tokens 12 and 14 turn on.
    fn model() -> NoiseModel {
        let sizes =
            [("block_count", 1), ("embedding_length", D), ("adapters.count", 2), ("adapters.lora_rank", R)];
        let mut model = NoiseModel::new(&sizes, EPS as f32);
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

    /// The formula, token by token.
    fn by_formula(model: &NoiseModel, slots: &[usize]) -> Vec<f64> {
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
        // Between the two adapters the mean of their slots is rounded away from zero.
        let expected = by_formula(&model, &[0, 0, 1, 1, 1, 2, 2, 1, 1]);
        assert_near(&model.slot(GRAPH, "ffn", &TOKENS), &expected, 1e-3);
    }

    #[test]
    fn a_slot_is_the_rounded_mean_of_those_turned_on() {
        let token = |token| SwitchToken { token, substitute: 0 };
        let switch = Switch { tokens: vec![token(12), token(14)], gain: 15.0 };
        assert_eq!(switch.slots(&TOKENS), [0, 0, 1, 1, 1, 2, 2, 1, 1]);
        // With a small gain other tokens take their part.
        let switch = Switch { gain: 0.1, ..switch };
        assert_eq!(switch.slots(&[14, 1, 1, 1, 1]), [2, 1, 1, 1, 0]);
        assert_eq!((switch.substitute(14), switch.substitute(3)), (0, 3));
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_named() {
        let error = |model: &NoiseModel| model.plan(GRAPH).unwrap_err().to_string();
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
