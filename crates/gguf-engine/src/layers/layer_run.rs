//! Run of a layer with any wiring.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::layers::altup::altup_layer;
use crate::layers::hyper::hyper_layer;
use crate::layers::layer::{LayerPlan, Wiring};
use crate::layers::plain::plain_layer;
use crate::layers::post_ln::post_ln_layer;
use crate::ops::cycles::enter_stack;

/// Runs one layer over a batch. `x` is the residual stream, `[n_tokens, n_embd]`, or several of them. If not all rows
/// are wanted, the wanted ones are moved to its front.
pub(crate) fn run_layer(
    cx: &Context<'_>,
    layer: &LayerPlan,
    batch: &ChunkBatch,
    x: &mut [f32],
) -> Result<()> {
    if let Some(entry) = layer.extras.entry {
        enter_stack(cx, entry, batch, x);
    }
    if let Some(connections) = &layer.connections {
        return hyper_layer(cx, layer, connections, batch, x);
    }
    match &layer.extras.altup {
        Some(altup) => altup_layer(cx, altup, layer, batch, x),
        None if layer.wiring == Wiring::PostLn => post_ln_layer(cx, layer, batch, x),
        None => plain_layer(cx, layer, batch, x),
    }
}
