//! Run of a layer with a single residual stream.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::weights::{LoadedNorm, Norm};
use crate::layers::layer::{LayerExtras, LayerPlan, Wiring};
use crate::ops::dense::FfnInputs;
use crate::ops::mixer::BranchEnd;
use crate::ops::stream_mix::{MixRows, mix_streams};

/// Runs a layer over its single stream, `[n_tokens, n_embd]`.
pub(crate) fn plain_layer(
    cx: &Context<'_>,
    layer: &LayerPlan,
    batch: &ChunkBatch,
    x: &mut [f32],
) -> Result<()> {
    let n_embd = cx.n_embd;
    // With normed wiring, the stream continues from the scaled normed inputs, and the branches are added unscaled.
    let is_normed = layer.wiring == Wiring::Normed;
    let rho = if is_normed { 1.0 } else { layer.residual_scale };
    let load = |norm: &Option<Norm>| norm.as_ref().map(|norm| cx.weights.norm(norm)).transpose();
    let (pre_mixer, post_mixer) = (load(&layer.pre_mixer)?, load(&layer.post_mixer)?);
    let (pre_ffn, post_ffn) = (load(&layer.pre_ffn)?, load(&layer.post_ffn)?);
    let mut mixer_input = cx.take(x.len());
    let mixed = read_mix(cx, layer.mix.as_ref().map(|mix| &mix.mixer), batch, MixRows::All, x)?;
    norm_or_copy(cx, pre_mixer.as_ref(), mixed.as_deref().unwrap_or(x), &mut mixer_input);
    cx.give_some(mixed);
    cx.slot("mixer_input", &mixer_input, n_embd);
    let begins = layer.mix.as_ref().is_some_and(|mix| mix.keeps);
    if begins {
        cx.carried.keep_stream(batch.start, x);
    }
    let x = batch.gather(x, n_embd);
    let entry = layer.needs_entry().then(|| {
        let mut entry = cx.take(x.len());
        entry.copy_from_slice(x);
        entry
    });
    let mut branch = cx.take(x.len());
    let mut ffn_input = cx.take(x.len());
    // With parallel wiring, the feed-forward also reads the layer's input.
    if layer.wiring == Wiring::Parallel {
        match &pre_ffn {
            Some(norm) => cx.norm_rows(norm, x, &mut ffn_input, n_embd),
            None => ffn_input.copy_from_slice(&batch.select(&mixer_input, n_embd)),
        }
    }
    if begins {
        // The stream begins anew with the mixer's output.
        x.fill(0.0);
    }
    observe_branch(cx, layer.mixer_end(), rho, x);
    if let Some(mixer) = layer.mixer.op() {
        mixer.run(cx, batch, &mixer_input, &mut branch)?;
        cx.slot("mixer", &branch, n_embd);
        if is_normed {
            cx.restart(x, &batch.select(&mixer_input, n_embd), layer.residual_scale);
        }
        cx.add_rows(x, &mut branch, post_mixer.as_ref(), rho, n_embd);
    }
    if let Some(laurel) = &layer.extras.laurel {
        laurel.run(cx, &batch.select(&mixer_input, n_embd), x)?;
    }
    if let Some(cross) = &layer.cross {
        cx.norm_rows(&cx.weights.norm(&cross.norm)?, x, &mut ffn_input, n_embd);
        cross.attention.run_across(cx, batch, &ffn_input, &mut branch)?;
        cx.slot("cross", &branch, n_embd);
        cx.add_rows(x, &mut branch, None, rho, n_embd);
    }
    if layer.wiring != Wiring::Parallel {
        let mixed = read_mix(cx, layer.mix.as_ref().map(|mix| &mix.ffn), batch, MixRows::Wanted, x)?;
        norm_or_copy(cx, pre_ffn.as_ref(), mixed.as_deref().unwrap_or(x), &mut ffn_input);
        cx.give_some(mixed);
        cx.slot("ffn_input", &ffn_input, n_embd);
        if is_normed {
            cx.restart(x, &ffn_input, layer.residual_scale);
        }
    }
    cx.give([mixer_input]);
    observe_branch(cx, layer.ffn_end(), rho, x);
    let inputs = FfnInputs { input: &ffn_input, stream: x, entry: entry.as_deref().unwrap_or_default() };
    layer.ffn.run(cx, batch, inputs, &mut branch)?;
    cx.slot("ffn", &branch, n_embd);
    cx.add_rows(x, &mut branch, post_ffn.as_ref(), rho, n_embd);
    math::scale_and_cap(cx.weights.level, x, layer.rescale, None);
    cx.give([ffn_input, branch]);
    cx.give_some(entry);
    run_extras(cx, &layer.extras, batch, x)?;
    cx.slot("output", x, n_embd);
    Ok(())
}

/// Writes the rows of `x` to `out`, normed if there is a norm.
fn norm_or_copy(cx: &Context<'_>, norm: Option<&LoadedNorm>, x: &[f32], out: &mut [f32]) {
    match norm {
        Some(norm) => cx.norm_rows(norm, x, out, cx.n_embd),
        None => out.copy_from_slice(x),
    }
}

/// Returns the stream mix that a branch reads instead of the stream, if there is a norm for its scores.
fn read_mix(
    cx: &Context<'_>,
    score: Option<&Norm>,
    batch: &ChunkBatch,
    rows: MixRows,
    x: &[f32],
) -> Result<Option<Buffer>> {
    score.map(|score| mix_streams(cx, score, batch, rows, x)).transpose()
}

/// Shows the observer the stream that the output of a branch will be added to.
fn observe_branch(cx: &Context<'_>, end: Option<BranchEnd<'_>>, factor: f32, stream: &[f32]) {
    if let (Some(observer), Some(end)) = (cx.observer, end) {
        observer.branch(end.matrix, factor * end.factor, stream);
    }
}

/// Runs the parts after the branches on the wanted rows of the stream.
fn run_extras(cx: &Context<'_>, extras: &LayerExtras, batch: &ChunkBatch, x: &mut [f32]) -> Result<()> {
    let n_embd = cx.n_embd;
    // With AltUp, the embedding is added to the streams that the layer does not compute.
    if let Some(embedding) = extras.embedding.as_ref().filter(|_| extras.altup.is_none()) {
        let mut added = cx.take(x.len());
        embedding.run(cx, batch, x, &mut added)?;
        let post = cx.weights.norm(&embedding.post)?;
        cx.add_rows(x, &mut added, Some(&post), 1.0, n_embd);
        cx.give([added]);
    }
    if let Some(factor) = cx.weights.optional(extras.start_scale.as_ref())? {
        let of_batch = batch.start * n_embd..(batch.start + batch.n_tokens()) * n_embd;
        let mut start = cx.buffers.copy(&batch.select(&cx.carried.start[of_batch], n_embd));
        cx.add_rows(x, &mut start, None, factor.first().copied().unwrap_or(1.0), n_embd);
        cx.give([start]);
    }
    if let Some(factor) = cx.weights.optional(extras.out_scale.as_ref())? {
        cx.scale_rows(x, factor.first().copied().unwrap_or(1.0));
    }
    cx.norm_in_place(extras.exit_norm.as_ref(), x, n_embd)?;
    Ok(())
}
