//! Run of a layer with AltUp streams, of which it computes one.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::math;
use crate::layers::layer::LayerPlan;
use crate::layers::plain::plain_layer;
use crate::ops::altup::{LayerAltUp, copy_stream, correct, each_token, predict};

/// Runs a layer over the streams `x`, `[n_tokens, n, n_embd]`: all are predicted, the active one goes through the
/// layer, and its change corrects all. If not all rows are wanted, the wanted ones are moved to the front.
pub(crate) fn altup_layer(
    cx: &Context<'_>,
    altup: &LayerAltUp,
    layer: &LayerPlan,
    batch: &ChunkBatch,
    x: &mut [f32],
) -> Result<()> {
    let (n_embd, width) = (cx.n_embd, altup.n() * cx.n_embd);
    let mut active = cx.take(batch.n_tokens() * n_embd);
    copy_stream(cx, x, altup.active, &mut active);
    predict(cx, altup, &active, x)?;
    copy_stream(cx, x, altup.active, &mut active);
    plain_layer(cx, layer, batch, &mut active)?;
    let x = batch.gather(x, width);
    let computed = &mut active[..batch.n_wanted() * n_embd];
    correct(cx, altup, computed, x)?;
    if let Some(embedding) = &layer.extras.embedding {
        copy_stream(cx, x, altup.active, computed);
        let scale = cx.weights.vector(&altup.correct_scale)?;
        each_token(cx, computed, n_embd, |_, row| row.iter_mut().zip(&scale).for_each(|(x, s)| *x *= s));
        let mut added = cx.take(computed.len());
        embedding.run(cx, batch, computed, &mut added)?;
        cx.norm_rows(&cx.weights.norm(&embedding.post)?, &added, computed, n_embd);
        cx.give([added]);
        let (level, added) = (cx.weights.level, &*computed);
        // Added to all streams but the first, whichever is active.
        each_token(cx, x, width, |token, streams| {
            let added = &added[token * n_embd..][..n_embd];
            for stream in streams[n_embd..].chunks_mut(n_embd) {
                math::add_scaled(level, stream, added, 1.0);
            }
        });
    }
    cx.give([active]);
    cx.slot("streams", x, width);
    Ok(())
}
