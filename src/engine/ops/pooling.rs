//! One vector for each text: its states pooled, then what the model does with that, up to scores; and the states that masked
//! tokens are predicted from.

use crate::core::progress::Progress;
use crate::engine::EngineError;
use crate::engine::ops::head::Hidden;
use crate::engine::ops::math::{self, SoftmaxRow};
use crate::engine::ops::product::Product;
use crate::engine::plan::{Classifier, HeadActivation, Matrix, PlainActivation, PooledRow};
use crate::engine::run::forward::{Engine, TokenChunk};
use crate::engine::run::observer::Observer;
use crate::engine::run::runner::Runner;

impl Engine<'_> {
    /// A vector for each text, of whose states `hidden` has all, one text after the other, each of so many tokens as
    /// `lengths` says. Of models that score texts the vectors are scores. Where the file does not say how states are
    /// pooled, they are averaged.
    ///
    /// # Errors
    /// Unreadable weights, cancellation.
    pub fn embeddings(
        &self,
        hidden: &Hidden,
        lengths: &[usize],
        progress: &dyn Progress,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
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
            (rows, width) = run.classify(classifier, rows, n_texts, width)?;
        }
        Ok(rows.chunks(width.max(1)).map(<[f32]>::to_vec).collect())
    }
}

impl Engine<'_> {
    /// Runs chunks of models that predict masked tokens: the states of the wanted rows, as [`Engine::scores`] and
    /// [`Engine::divergences`] read them.
    ///
    /// # Errors
    /// As [`Engine::forward`].
    pub fn masked_states(
        &self,
        chunks: &[TokenChunk],
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden, EngineError> {
        let hidden = self.forward(chunks, progress, observer)?;
        let transform = self.plan.masked.as_ref().and_then(|masked| masked.transform.as_ref());
        let Some(transform) = transform else { return Ok(hidden) };
        let Hidden { n_rows, states } = hidden;
        let run = self.head_run(progress, None);
        let (states, _) = run.classify(transform, states.into_vec(), n_rows, self.plan.n_embd)?;
        Ok(Hidden { n_rows, states: states.into() })
    }
}

/// One row of a text's states.
fn pooled(row: PooledRow, states: &[f32], n_embd: usize) -> Vec<f32> {
    let mut rows = states.chunks(n_embd);
    let one = match row {
        PooledRow::First => rows.next(),
        PooledRow::Last => rows.next_back(),
        PooledRow::Mean | PooledRow::Unsaid => {
            let mut sums = vec![0.0f64; n_embd];
            let n = rows.len() as f64;
            for row in rows {
                sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            return sums.into_iter().map(|sum| (sum / n) as f32).collect();
        }
    };
    one.map(<[f32]>::to_vec).unwrap_or_default()
}

fn product(run: &Runner<'_>, matrix: &Matrix, x: &[f32], n_rows: usize) -> Result<Vec<f32>, EngineError> {
    let mut out = vec![0.0; n_rows * matrix.n_rows];
    run.products(x, n_rows, vec![Product::plain(matrix, &mut out)])?;
    Ok(out)
}

impl Runner<'_> {
    /// `softmax(out(norm(act(dense x))))`, as far as the head has these parts; and the width of what comes out.
    fn classify(
        &self,
        head: &Classifier,
        mut x: Vec<f32>,
        n_rows: usize,
        mut width: usize,
    ) -> Result<(Vec<f32>, usize), EngineError> {
        if let Some(dense) = &head.dense {
            x = product(self, dense, &x, n_rows)?;
            width = dense.n_rows;
            match head.act {
                HeadActivation::Tanh => x.iter_mut().for_each(|x| *x = f64::from(*x).tanh() as f32),
                HeadActivation::GeluErf => {
                    math::activate(self.weights.level, PlainActivation::GeluErf, &mut x);
                }
            }
        }
        if let Some(norm) = &head.norm {
            let raw = x.clone();
            self.norm_rows(&self.weights.norm(norm)?, &raw, &mut x, width);
        }
        if let Some(out) = &head.out {
            x = product(self, out, &x, n_rows)?;
            width = out.n_rows;
        }
        if head.softmax {
            for row in x.chunks_mut(width.max(1)) {
                let sum = math::softmax(self.weights.level, row, SoftmaxRow::default());
                for x in row.iter_mut() {
                    *x = (f64::from(*x) / sum) as f32;
                }
            }
        }
        Ok((x, width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_pooled_as_said() {
        let states = [1.0, 2.0, 3.0, 4.0, 8.0, 9.0];
        for (row, expected) in [
            (PooledRow::First, [1.0, 2.0]),
            (PooledRow::Last, [8.0, 9.0]),
            (PooledRow::Mean, [4.0, 5.0]),
            (PooledRow::Unsaid, [4.0, 5.0]),
        ] {
            assert_eq!(pooled(row, &states, 2), expected, "{row:?}");
        }
    }
}
