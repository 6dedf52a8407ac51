//! Layers whose norms are behind the sums (BERT): the stream itself is normed after each branch has been added.

use crate::engine::EngineError;
use crate::engine::ops::ffn::FfnInputs;
use crate::engine::plan::{LayerPlan, Norm};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// `h = n1(x + A x)`, where there is a norm for it `h = n2(h + x)`, then `y = n3(h + F h)`.
    pub(super) fn post_ln_layer(
        &self,
        layer: &LayerPlan,
        batch: &ChunkBatch,
        x: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_embd = self.plan.n_embd;
        let mut input = self.take(x.len());
        input.copy_from_slice(x);
        self.slot("mixer_input", &input, n_embd);
        let x = batch.gather(x, n_embd);
        let mut branch = self.take(x.len());
        if self.mixer(&layer.mixer, batch, &input, &mut branch)? {
            self.slot("mixer", &branch, n_embd);
            self.add_rows(x, &mut branch, None, layer.residual_scale, n_embd);
        }
        self.norm_stream(layer.post_mixer.as_ref(), x, &mut branch)?;
        if layer.post_input.is_some() {
            branch.copy_from_slice(&batch.select(&input, n_embd));
            self.add_rows(x, &mut branch, None, 1.0, n_embd);
            self.norm_stream(layer.post_input.as_ref(), x, &mut branch)?;
        }
        self.give([input]);
        self.slot("ffn_input", x, n_embd);
        let inputs = FfnInputs { input: x, stream: x, entry: &[] };
        self.ffn(&layer.ffn, batch, inputs, &mut branch)?;
        self.slot("ffn", &branch, n_embd);
        self.add_rows(x, &mut branch, None, layer.residual_scale, n_embd);
        self.norm_stream(layer.post_ffn.as_ref(), x, &mut branch)?;
        self.slot("output", x, n_embd);
        self.give([branch]);
        Ok(())
    }

    /// Norms the rows of the stream in place, by way of `scratch`, which is as long.
    fn norm_stream(
        &self,
        norm: Option<&Norm>,
        x: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<(), EngineError> {
        let Some(norm) = norm else { return Ok(()) };
        scratch.copy_from_slice(x);
        self.norm_rows(&self.weights.norm(norm)?, scratch, x, self.plan.n_embd);
        Ok(())
    }
}
