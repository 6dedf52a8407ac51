//! Start and end of a run: the residual stream before the first layer and after the last.

use std::ops::Range;

use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::hidden::Hidden;
use crate::exec::math;
use crate::exec::timings::WorkKind;
use crate::exec::weights::Norm;
use crate::layers::graph::GraphPlan;
use crate::ops::stream_mix::{MixRows, mix_streams};
use crate::{EngineError, Result};

/// Returns the residual stream before the first layer, or several streams, and keeps what later layers look up.
pub(crate) fn begin(cx: &mut Context<'_>, plan: &GraphPlan, chunks: &[TokenChunk]) -> Result<Buffer> {
    let x = cx.clock.time(WorkKind::Embed, || embed(cx, plan, chunks))?;
    if plan.needs_tokens() {
        cx.carried.tokens = chunks.iter().flat_map(|chunk| &chunk.tokens).copied().collect();
    }
    if plan.needs_start() {
        cx.carried.start = x.to_vec();
    }
    plan.extras().try_fold(x, |x, extra| extra.begin(cx, chunks, x))
}

/// Embeds the tokens: returns the residual stream before the first layer.
fn embed(cx: &Context<'_>, plan: &GraphPlan, chunks: &[TokenChunk]) -> Result<Buffer> {
    let n_embd = plan.n_embd;
    let vocabulary = plan.embedding.n_rows;
    let n_tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
    let mut x = cx.take(n_tokens * n_embd);
    let token_type = cx.weights.optional(plan.token_types.as_ref())?;
    let norm = plan.embed_norm.as_ref().map(|norm| cx.weights.norm(norm)).transpose()?;
    let mut rows = x.chunks_mut(n_embd);
    let (mut bytes, mut scratch) = (Vec::new(), vec![0.0; n_embd]);
    for (prompt, chunk) in chunks.iter().enumerate() {
        let before = cx.past.map_or(0, |past| past.before[prompt]);
        for (at, (&token, row)) in chunk.tokens.iter().zip(&mut rows).enumerate() {
            let position = before + at;
            let own = plan.extras().fold(token, |token, extra| extra.substitute(token));
            let at = usize::try_from(own).ok().filter(|&at| at < vocabulary);
            let at = at.ok_or(EngineError::Token { prompt, token, vocabulary })?;
            cx.weights.rows(plan.embedding.tensor, at, 1, &mut bytes, row)?;
            math::scale_and_cap(cx.weights.level, row, plan.embed_scale, None);
            if let Some(token_type) = &token_type {
                math::add_scaled(cx.weights.level, row, token_type, 1.0);
            }
            if let Some(positions) = &plan.positions {
                cx.weights.rows(positions.tensor, position, 1, &mut bytes, &mut scratch)?;
                math::add_scaled(cx.weights.level, row, &scratch, 1.0);
            }
            if let Some(norm) = &norm {
                scratch.copy_from_slice(row);
                norm.row(cx.weights.level, &scratch, row);
            }
        }
    }
    cx.slot("embedding", &x, n_embd);
    Ok(x)
}

/// Returns the wanted rows after the final norm.
pub(crate) fn finish(
    cx: &Context<'_>,
    plan: &GraphPlan,
    chunks: &[TokenChunk],
    batches: Vec<(Range<usize>, ChunkBatch)>,
    x: &[f32],
    norm: Option<&Norm>,
) -> Result<Hidden> {
    let (n_embd, width) = (plan.n_embd, plan.stream_width());
    let mut rest = chunks;
    let narrow = |(tokens, batch): (Range<usize>, ChunkBatch)| {
        let (own, later) = rest.split_at(batch.cuts.len() - 1);
        rest = later;
        let is_whole = batch.is_whole();
        let rows = own.iter().map(|chunk| chunk.rows.clone());
        (tokens, is_whole, if is_whole { batch.narrowed(rows) } else { batch })
    };
    let batches: Vec<(Range<usize>, bool, ChunkBatch)> = batches.into_iter().map(narrow).collect();
    let mut states = cx.take(batches.iter().map(|(_, _, batch)| batch.n_wanted() * width).sum());
    let mut left = &mut states[..];
    for (tokens, is_whole, batch) in &batches {
        let (rows, later) = std::mem::take(&mut left).split_at_mut(batch.n_wanted() * width);
        left = later;
        let x = &x[tokens.start * width..tokens.end * width];
        if *is_whole {
            batch.copy_wanted(x, width, rows);
        } else {
            rows.copy_from_slice(&x[..rows.len()]);
        }
        if let Some(score) = &plan.final_mix {
            let mixed = mix_streams(cx, score, batch, MixRows::Wanted, rows)?;
            rows.copy_from_slice(&mixed);
            cx.give([mixed]);
        }
    }
    let mut states = plan.extras().rev().try_fold(states, |states, extra| extra.end(cx, states))?;
    cx.norm_in_place(norm, &mut states, n_embd)?;
    cx.buffers.check()?;
    cx.slot("final", &states, n_embd);
    Ok(Hidden { n_rows: states.len() / n_embd, states })
}
