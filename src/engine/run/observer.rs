//! Who looks on while a model runs.

use crate::core::TensorSource;
use crate::engine::plan::Matrix;

/// Sees what flows through a run: importance matrices and traces are made of it.
pub trait Observer: Sync {
    /// Rows of activations that a matrix is about to be multiplied with; `x` holds whole rows of `matrix.n_cols`.
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        let _ = (source, matrix, x);
    }

    /// The experts that a router chose, of each token in its order with their weights, best first.
    fn routes(&self, source: &dyn TensorSource, router: &Matrix, routes: &[Vec<(usize, f32)>]) {
        let _ = (source, router, routes);
    }

    /// False if [`Observer::input`] is not looked at, so that nothing need be copied for it.
    fn wants_inputs(&self) -> bool {
        true
    }

    /// A named intermediate of a layer, in rows of `n_cols`.
    fn slot(&self, layer: usize, name: &str, x: &[f32], n_cols: usize) {
        let _ = (layer, name, x, n_cols);
    }
}
