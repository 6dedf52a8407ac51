//! Who looks on while a model runs.

use std::ops::ControlFlow;

use crate::core::TensorSource;
use crate::engine::exec::weights::Matrix;

/// Sees what flows through a run: importance matrices and traces are made of it.
pub trait Observer: Sync {
    /// Rows of activations that a matrix is about to be multiplied with; `x` holds whole rows of `matrix.n_cols`.
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        let _ = (source, matrix, x);
    }

    /// [`Observer::input`] of several matrices that are multiplied with the same rows: queries, keys and values, gate and up
    /// projection. Parts of one tensor count once. Called by the thread that runs the model.
    fn inputs(&self, source: &dyn TensorSource, matrices: &[&Matrix], x: &[f32]) {
        for matrix in matrices {
            self.input(source, matrix, x);
        }
    }

    /// A batch is about to go through a layer. Layers are counted from 0 over all stacks, those of an encoder first,
    /// batches as they are run.
    fn enter(&self, layer: usize, batch: usize) {
        let _ = (layer, batch);
    }

    /// All batches have gone through a layer. On `Break` the run ends with
    /// [`EngineError::Stopped`](crate::engine::EngineError::Stopped).
    fn leave(&self, layer: usize) -> ControlFlow<()> {
        let _ = layer;
        ControlFlow::Continue(())
    }

    /// The experts that a router chose, of each token in its order with their weights, best first. What is left in them
    /// is what the layer goes on with.
    fn routes(&self, source: &dyn TensorSource, router: &Matrix, routes: &mut [Vec<(usize, f32)>]) {
        let _ = (source, router, routes);
    }

    /// A branch is about to be computed whose output is `factor` times the product of `matrix` and is added to `stream`,
    /// rows of `matrix.n_rows`, as it is. Not called for branches whose output is normed, weighed by token or mixed first.
    fn branch(&self, matrix: &Matrix, factor: f32, stream: &[f32]) {
        let _ = (matrix, factor, stream);
    }

    /// False if neither [`Observer::input`] nor [`Observer::inputs`] is looked at, so that nothing need be copied for it.
    fn wants_inputs(&self) -> bool {
        true
    }

    /// A named intermediate of a layer, in rows of `n_cols`.
    fn slot(&self, layer: usize, name: &str, x: &[f32], n_cols: usize) {
        let _ = (layer, name, x, n_cols);
    }
}
