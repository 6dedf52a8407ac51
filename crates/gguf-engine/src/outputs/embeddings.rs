//! Embeddings and scores of texts, and the states that masked tokens are predicted from.

use crate::Result;
use crate::exec::batch::TokenChunk;
use crate::exec::hidden::Hidden;
use crate::exec::observer::Observer;
use crate::layers::forward::Engine;
use crate::ops::pooling::{pooled, product};
use gguf_core::progress::Progress;

impl Engine<'_> {
    /// Returns a vector for each text. `hidden` holds the states of all tokens, one text after another, of `lengths[i]`
    /// tokens each. For models that score texts, the vectors are the scores. States are averaged if the file does not
    /// declare how they are pooled.
    pub fn embeddings(
        &self,
        hidden: &Hidden,
        lengths: &[usize],
        progress: &dyn Progress,
    ) -> Result<Vec<Vec<f32>>> {
        let pooling = &self.plan.pooling;
        let n_embd = self.plan.n_embd;
        let mut rows = Vec::with_capacity(lengths.len() * n_embd);
        let mut rest = hidden.states();
        for &n in lengths.iter().filter(|&&n| n > 0) {
            let (own, later) = rest.split_at((n * n_embd).min(rest.len()));
            rows.extend(pooled(pooling.row, own, n_embd));
            rest = later;
        }
        let n_texts = rows.len() / n_embd;
        let run = self.head_run(progress, None);
        let mut width = n_embd;
        for matrix in &pooling.dense {
            rows = product(&run, matrix, &rows, n_texts)?;
            width = matrix.n_rows;
        }
        if let Some(classifier) = &pooling.classifier {
            (rows, width) = classifier.run(&run, rows, n_texts, width)?;
        }
        Ok(rows.chunks(width.max(1)).map(<[f32]>::to_vec).collect())
    }

    /// Runs chunks of models that predict masked tokens, and returns the states of the wanted rows for
    /// [`Engine::scores`] and [`Engine::divergences`].
    pub fn masked_states(
        &self,
        chunks: &[TokenChunk],
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden> {
        let hidden = self.forward(chunks, progress, observer)?;
        let transform = self.plan.masked.as_ref().and_then(|masked| masked.transform.as_ref());
        let Some(transform) = transform else { return Ok(hidden) };
        let Hidden { n_rows, states } = hidden;
        let run = self.head_run(progress, None);
        let (states, _) = transform.run(&run, states.into_vec(), n_rows, self.plan.n_embd)?;
        Ok(Hidden { n_rows, states: states.into() })
    }
}
