//! Run of a layer with post-LN wiring (BERT): the stream itself is normed after each branch is added.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::weights::Norm;
use crate::layers::layer::LayerPlan;
use crate::ops::dense::FfnInputs;

/// Computes `h = n1(x + A x)`, then `h = n2(h + x)` if there is a norm for it, then `y = n3(h + F h)`.
pub(crate) fn post_ln_layer(
    cx: &Context<'_>,
    layer: &LayerPlan,
    batch: &ChunkBatch,
    x: &mut [f32],
) -> Result<()> {
    let n_embd = cx.n_embd;
    let mut input = cx.take(x.len());
    input.copy_from_slice(x);
    cx.slot("mixer_input", &input, n_embd);
    let x = batch.gather(x, n_embd);
    let mut branch = cx.take(x.len());
    if let Some(mixer) = layer.mixer.op() {
        mixer.run(cx, batch, &input, &mut branch)?;
        cx.slot("mixer", &branch, n_embd);
        cx.add_rows(x, &mut branch, None, layer.residual_scale, n_embd);
    }
    norm_stream(cx, layer.post_mixer.as_ref(), x, &mut branch)?;
    if layer.post_input.is_some() {
        branch.copy_from_slice(&batch.select(&input, n_embd));
        cx.add_rows(x, &mut branch, None, 1.0, n_embd);
        norm_stream(cx, layer.post_input.as_ref(), x, &mut branch)?;
    }
    cx.give([input]);
    cx.slot("ffn_input", x, n_embd);
    let inputs = FfnInputs { input: x, stream: x, entry: &[] };
    layer.ffn.run(cx, batch, inputs, &mut branch)?;
    cx.slot("ffn", &branch, n_embd);
    cx.add_rows(x, &mut branch, None, layer.residual_scale, n_embd);
    norm_stream(cx, layer.post_ffn.as_ref(), x, &mut branch)?;
    cx.slot("output", x, n_embd);
    cx.give([branch]);
    Ok(())
}

/// Norms the rows of the stream in place, with `scratch` of the same length.
fn norm_stream(cx: &Context<'_>, norm: Option<&Norm>, x: &mut [f32], scratch: &mut [f32]) -> Result<()> {
    let Some(norm) = norm else { return Ok(()) };
    scratch.copy_from_slice(x);
    cx.norm_rows(&cx.weights.norm(norm)?, scratch, x, cx.n_embd);
    Ok(())
}
