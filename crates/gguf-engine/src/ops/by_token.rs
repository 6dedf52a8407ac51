//! Experts by token id (hash layers, the first layers of DeepSeek-V4): a table with a row per token chooses the
//! experts, and the router only weights them.

use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::weights::Matrix;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_core::Shape;

/// Returns the experts of every wanted token, `table.n_cols` each.
pub(crate) fn experts_by_token(
    cx: &Context<'_>,
    table: &Matrix,
    n_experts: usize,
    batch: &ChunkBatch,
) -> Result<Vec<usize>> {
    let tokens = &cx.carried.tokens[batch.start..batch.start + batch.n_tokens()];
    let tokens = batch.select(tokens, 1);
    let mut experts = Vec::with_capacity(tokens.len() * table.n_cols);
    let (mut bytes, mut row) = (Vec::new(), vec![0.0; table.n_cols]);
    for &token in tokens.iter() {
        cx.weights.rows(table.tensor, token as usize, 1, &mut bytes, &mut row)?;
        for &id in &row {
            let expert = expert(id, n_experts).ok_or_else(|| {
                let tensor = cx.weights.source.tensors()[table.tensor].name.clone();
                EngineError::ExpertOfToken { tensor, token, found: id, n_experts }
            })?;
            experts.push(expert);
        }
    }
    Ok(experts)
}

/// Returns the expert that a table's value names, if it names one.
fn expert(id: f32, n_experts: usize) -> Option<usize> {
    let is_id = id >= 0.0 && id.fract() == 0.0 && (id as usize) < n_experts;
    is_id.then_some(id as usize)
}

/// Resolves a layer's table of experts by token, `[n_vocab, n_used]`. Layers before `hash_layer_count` have one.
pub(crate) fn by_token_table(b: &mut Resolver<'_>, layer: usize, n_used: usize) -> Result<Option<Matrix>> {
    if layer >= b.keys.count("hash_layer_count")?.unwrap_or(0) {
        return Ok(None);
    }
    let name = format!("blk.{layer}.ffn_gate_tid2eid");
    let n_vocab = b.tensors.shape("token_embd.weight").map_or(0, Shape::n_rows);
    let n_vocab = usize::try_from(n_vocab).unwrap_or(usize::MAX);
    let table = b.tensors.bare_matrix(&name, n_vocab, n_used)?;
    let missing = || EngineError::MissingTensor { tensor: format!("{name}.weight") };
    table.map(Some).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::formulas::{assert_near, normed, times};
    use crate::testkit::models::TinyModel;
    use crate::{Engine, EngineOptions, TokenChunk};
    use gguf_core::progress::Silent;

    const N_EMBD: usize = 6;
    const N_EXPERTS: usize = 5;
    const WIDTH: usize = 4;
    const EPS: f64 = 1e-5;
    const TABLE: &str = "blk.0.ffn_gate_tid2eid.weight";
    const GRAPH: &str = "moe.norm_topk = true";

    fn model() -> TinyModel {
        let sizes = [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", N_EMBD),
            ("attention.head_count", 0),
            ("expert_count", N_EXPERTS),
            ("expert_used_count", 2),
            ("expert_gating_func", 4),
            ("hash_layer_count", 1),
        ];
        let mut model = TinyModel::new("x", &sizes, EPS as f32);
        model.add(&[
            ("token_embd.weight", &[4, N_EMBD]),
            ("output_norm.weight", &[N_EMBD]),
            ("blk.0.ffn_norm.weight", &[N_EMBD]),
            ("blk.0.ffn_gate_inp.weight", &[N_EXPERTS, N_EMBD]),
            ("blk.0.ffn_gate_exps.weight", &[N_EXPERTS, WIDTH, N_EMBD]),
            ("blk.0.ffn_up_exps.weight", &[N_EXPERTS, WIDTH, N_EMBD]),
            ("blk.0.ffn_down_exps.weight", &[N_EXPERTS, N_EMBD, WIDTH]),
            (TABLE, &[4, 2]),
        ]);
        model.set(TABLE, &[0.0, 3.0, 4.0, 1.0, 2.0, 0.0, 1.0, 3.0]);
        model
    }

    fn by_formula(model: &TinyModel, tokens: &[u32]) -> Vec<f64> {
        let weight = |name: &str| model.get(&format!("blk.0.{name}.weight"));
        let (embedding, table) = (model.get("token_embd.weight"), model.get(TABLE));
        let mut out = Vec::new();
        for &token in tokens {
            let token = token as usize;
            let x = normed(&embedding[token * N_EMBD..][..N_EMBD], &weight("ffn_norm"), EPS);
            let scores = times(&weight("ffn_gate_inp"), &x);
            let chosen = [2 * token, 2 * token + 1].map(|at| table[at] as usize);
            let weights = chosen.map(|expert| scores[expert].exp().ln_1p().sqrt());
            let mut y = vec![0.0; N_EMBD];
            for (expert, share) in chosen.into_iter().zip(weights) {
                let part = |name: &str| weight(name)[expert * WIDTH * N_EMBD..][..WIDTH * N_EMBD].to_vec();
                let (gate, up) = (times(&part("ffn_gate_exps"), &x), times(&part("ffn_up_exps"), &x));
                let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let made = times(&part("ffn_down_exps"), &inner);
                y.iter_mut().zip(made).for_each(|(y, x)| *y += share / weights.iter().sum::<f64>() * x);
            }
            out.extend(y);
        }
        out
    }

    #[test]
    fn a_token_gets_the_experts_of_its_row_with_the_weights_of_the_router() {
        let (model, tokens) = (model(), [2, 0, 3, 3, 1]);
        assert_near(&model.slot(GRAPH, "ffn", &tokens), &by_formula(&model, &tokens), 2e-6);
    }

    #[test]
    fn rows_that_name_no_expert_are_refused() {
        assert_eq!([0.0, 3.0].map(|id| expert(id, 4)), [Some(0), Some(3)]);
        assert_eq!([-1.0, 4.0, 0.5, f32::NAN, f32::INFINITY].map(|id| expert(id, 4)), [None; 5]);
        let mut model = model();
        model.set(TABLE, &[0.0, 3.0, 4.0, 1.0, 2.0, 5.0, 1.0, 3.0]);
        let engine =
            Engine::new(model.plan(GRAPH).unwrap(), &model.tensors, EngineOptions::default()).unwrap();
        let run = |tokens: Vec<u32>| {
            let chunk = TokenChunk { rows: 0..tokens.len(), tokens, ..TokenChunk::default() };
            engine.forward(&[chunk], &Silent, None).map_err(|error| error.to_string())
        };
        assert!(run(vec![0, 1, 3]).is_ok());
        let expected = format!("tensor `{TABLE}`: token 2: expected experts from 0 to less than 5, found 5");
        assert_eq!(run(vec![0, 2]).err(), Some(expected));
    }

    #[test]
    fn the_file_says_which_layers_have_a_table() {
        let error = |model: &TinyModel| model.plan(GRAPH).unwrap_err().to_string();
        let mut none = model();
        none.metadata.set("x.hash_layer_count", 0u32);
        assert_eq!(error(&none), format!("1 tensors are not used by the graph: `{TABLE}`"));
        let mut short = model();
        short.tensors.retain(|meta| meta.name != TABLE);
        assert_eq!(error(&short), format!("tensor `{TABLE}` is missing"));
        short.add(&[(TABLE, &[3, 2])]);
        assert_eq!(error(&short), format!("tensor `{TABLE}`: expected shape [4, 2], found [3, 2]"));
        // Scores choose nothing here, so a bias of the choice has no use.
        let mut biased = model();
        biased.add(&[("blk.0.exp_probs_b.bias", &[N_EXPERTS])]);
        assert_eq!(error(&biased), "1 tensors are not used by the graph: `blk.0.exp_probs_b.bias`");
    }
}
