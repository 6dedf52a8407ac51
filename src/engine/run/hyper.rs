//! Layers of several residual streams: each branch reads a mixture of them, and its output is shared out among them.

use crate::engine::EngineError;
use crate::engine::ops::ffn::FfnInputs;
use crate::engine::ops::math;
use crate::engine::plan::{LayerConnections, LayerPlan, Norm};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// `a = A(n1 read(x))`, `x = write(x, a)`; `f = F(n2 read(x))`, `x = write(x, f)`, over `x` of
    /// `[n_tokens, n_streams * n_embd]`.
    pub(super) fn hyper_layer(
        &self,
        layer: &LayerPlan,
        connections: &LayerConnections,
        batch: &ChunkBatch,
        x: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_embd = self.plan.n_embd;
        let (n_tokens, n_wanted) = (batch.n_tokens(), batch.n_wanted());
        let width = x.len() / n_tokens.max(1);
        if let Some(ngrams) = &layer.extras.ngrams {
            self.add_ngrams(ngrams, batch, x)?;
        }
        let mut read = self.take(n_tokens * n_embd);
        let weights = self.read_streams(&connections.mixer, x, n_tokens, &mut read)?;
        let mut input = self.take(n_tokens * n_embd);
        self.norm_branch_input(layer.pre_mixer.as_ref(), &read, &mut input)?;
        self.slot("mixer_input", &input, n_embd);
        let x = batch.gather(x, width);
        let mut branch = self.take(n_wanted * n_embd);
        if self.mixer(&layer.mixer, batch, &input, &mut branch)? {
            self.slot("mixer", &branch, n_embd);
            self.finish_branch(layer.post_mixer.as_ref(), layer.residual_scale, &mut branch)?;
            let own = batch.select(&weights, connections.mixer.n_weights());
            self.write_streams(&connections.mixer, x, &own, &branch);
        }
        self.give([read, input, weights]);
        let [mut read, mut input] = [(); 2].map(|()| self.take(n_wanted * n_embd));
        let weights = self.read_streams(&connections.ffn, x, n_wanted, &mut read)?;
        self.norm_branch_input(layer.pre_ffn.as_ref(), &read, &mut input)?;
        self.slot("ffn_input", &input, n_embd);
        let inputs = FfnInputs { input: &input, stream: &read, entry: &[] };
        self.ffn(&layer.ffn, batch, inputs, &mut branch)?;
        self.slot("ffn", &branch, n_embd);
        self.finish_branch(layer.post_ffn.as_ref(), layer.residual_scale, &mut branch)?;
        self.write_streams(&connections.ffn, x, &weights, &branch);
        math::scale_and_cap(self.weights.level, x, layer.rescale, None);
        self.give([read, input, weights, branch]);
        self.slot("output", x, width);
        Ok(())
    }

    fn norm_branch_input(&self, norm: Option<&Norm>, x: &[f32], out: &mut [f32]) -> Result<(), EngineError> {
        match norm {
            Some(norm) => self.norm_rows(&self.weights.norm(norm)?, x, out, self.plan.n_embd),
            None => out.copy_from_slice(x),
        }
        Ok(())
    }

    fn finish_branch(&self, norm: Option<&Norm>, scale: f32, branch: &mut [f32]) -> Result<(), EngineError> {
        self.norm_in_place(norm, branch, self.plan.n_embd)?;
        self.scale_rows(branch, scale);
        Ok(())
    }
}
