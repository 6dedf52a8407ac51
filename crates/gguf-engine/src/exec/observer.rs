//! Observers of a run.

use std::ops::ControlFlow;

use crate::exec::weights::Matrix;
use gguf_core::TensorSource;

/// Receives the intermediate values of a run, for importance matrices and traces.
pub trait Observer: Sync {
    /// Receives the activations that a matrix is about to be multiplied with; `x` holds whole rows of `matrix.n_cols`.
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        let _ = (source, matrix, x);
    }

    /// Receives the activations of several matrices that are multiplied with the same rows, as [`Observer::input`]:
    /// queries, keys and values, or gate and up projection. Parts of one tensor count once. Called by the thread that
    /// runs the model.
    fn inputs(&self, source: &dyn TensorSource, matrices: &[&Matrix], x: &[f32]) {
        for matrix in matrices {
            self.input(source, matrix, x);
        }
    }

    /// Called before a batch goes through a layer. Layers are counted from 0 over all stacks, the encoder's first;
    /// batches in the order in which they run.
    fn enter(&self, layer: usize, batch: usize) {
        let _ = (layer, batch);
    }

    /// Called after all batches have gone through a layer. On `Break` the run ends with
    /// [`EngineError::Stopped`](crate::EngineError::Stopped).
    fn leave(&self, layer: usize) -> ControlFlow<()> {
        let _ = layer;
        ControlFlow::Continue(())
    }

    /// Receives the experts that a router chose for each token, with their weights, best first. The layer continues
    /// with the routes as the observer leaves them.
    fn routes(&self, routes: &mut [Vec<(usize, f32)>]) {
        let _ = routes;
    }

    /// Called before a branch whose output is `factor` times the product of `matrix` and is added unchanged to
    /// `stream`, rows of `matrix.n_rows`. Not called for branches whose output is normed, weighted by token or mixed
    /// first.
    fn branch(&self, matrix: &Matrix, factor: f32, stream: &[f32]) {
        let _ = (matrix, factor, stream);
    }

    /// Receives a named intermediate of a layer, in rows of `n_cols`.
    fn slot(&self, layer: usize, name: &str, x: &[f32], n_cols: usize) {
        let _ = (layer, name, x, n_cols);
    }
}
