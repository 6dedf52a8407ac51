//! Layers with hyper-connections: each branch reads a mixture of the streams, and its output is distributed among them.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::weights::Norm;
use crate::layers::layer::LayerPlan;
use crate::ops::dense::FfnInputs;
use crate::ops::hyper::LayerConnections;

/// Computes `a = A(n1 read(x))`, `x = write(x, a)`; `f = F(n2 read(x))`, `x = write(x, f)`, over `x` of
/// `[n_tokens, n_streams * n_embd]`.
pub(crate) fn hyper_layer(
    cx: &Context<'_>,
    layer: &LayerPlan,
    connections: &LayerConnections,
    batch: &ChunkBatch,
    x: &mut [f32],
) -> Result<()> {
    let n_embd = cx.n_embd;
    let (n_tokens, n_wanted) = (batch.n_tokens(), batch.n_wanted());
    let width = x.len() / n_tokens.max(1);
    if let Some(ngrams) = &layer.extras.ngrams {
        ngrams.run(cx, batch, x)?;
    }
    let mut read = cx.take(n_tokens * n_embd);
    let weights = connections.mixer.read(cx, x, n_tokens, &mut read)?;
    let mut input = cx.take(n_tokens * n_embd);
    norm_branch_input(cx, layer.pre_mixer.as_ref(), &read, &mut input)?;
    cx.slot("mixer_input", &input, n_embd);
    let x = batch.gather(x, width);
    let mut branch = cx.take(n_wanted * n_embd);
    if let Some(mixer) = layer.mixer.op() {
        mixer.run(cx, batch, &input, &mut branch)?;
        cx.slot("mixer", &branch, n_embd);
        finish_branch(cx, layer.post_mixer.as_ref(), layer.residual_scale, &mut branch)?;
        let own = batch.select(&weights, connections.mixer.n_weights());
        connections.mixer.write(cx, x, &own, &branch);
    }
    cx.give([read, input, weights]);
    let [mut read, mut input] = [(); 2].map(|()| cx.take(n_wanted * n_embd));
    let weights = connections.ffn.read(cx, x, n_wanted, &mut read)?;
    norm_branch_input(cx, layer.pre_ffn.as_ref(), &read, &mut input)?;
    cx.slot("ffn_input", &input, n_embd);
    let inputs = FfnInputs { input: &input, stream: &read, entry: &[] };
    layer.ffn.run(cx, batch, inputs, &mut branch)?;
    cx.slot("ffn", &branch, n_embd);
    finish_branch(cx, layer.post_ffn.as_ref(), layer.residual_scale, &mut branch)?;
    connections.ffn.write(cx, x, &weights, &branch);
    math::scale_and_cap(cx.weights.level, x, layer.rescale, None);
    cx.give([read, input, weights, branch]);
    cx.slot("output", x, width);
    Ok(())
}

fn norm_branch_input(cx: &Context<'_>, norm: Option<&Norm>, x: &[f32], out: &mut [f32]) -> Result<()> {
    match norm {
        Some(norm) => cx.norm_rows(&cx.weights.norm(norm)?, x, out, cx.n_embd),
        None => out.copy_from_slice(x),
    }
    Ok(())
}

fn finish_branch(cx: &Context<'_>, norm: Option<&Norm>, scale: f32, branch: &mut [f32]) -> Result<()> {
    cx.norm_in_place(norm, branch, cx.n_embd)?;
    cx.scale_rows(branch, scale);
    Ok(())
}
