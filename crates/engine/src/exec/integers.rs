//! Activations rounded for products in integers.

use std::ops::Range;

use rayon::prelude::*;

use crate::exec::context::Context;
use crate::exec::matmul::MatrixView;
use crate::exec::matmul::integer::{PanelLayout, RoundedRows, RoundedView};
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, WeightReader};
use crate::exec::workers::Tasks;

/// Rows of activations, and the same rounded if a matrix of the call is multiplied in integers.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) n_cols: usize,
    pub(crate) rounded: Option<&'a RoundedRows>,
}

/// Some rows of activations.
#[derive(Clone)]
pub(crate) struct InputRows<'a> {
    pub(crate) floats: MatrixView<'a>,
    pub(crate) rounded: Option<RoundedView<'a>>,
}

impl<'a> Inputs<'a> {
    /// Returns some of the rows.
    pub(crate) fn rows(&self, range: Range<usize>) -> InputRows<'a> {
        let floats = &self.x[range.start * self.n_cols..];
        InputRows {
            floats: MatrixView::new(floats, range.len(), self.n_cols, self.n_cols),
            rounded: self.rounded.map(|rounded| rounded.view().tokens(range)),
        }
    }
}

impl WeightReader<'_> {
    /// Returns the layout of a matrix's panels, if it is multiplied in integers.
    pub(crate) fn layout(&self, matrix: &Matrix) -> Option<PanelLayout> {
        self.arithmetic.layout(&self.source.tensors()[matrix.tensor], matrix.n_cols)
    }
}

impl Context<'_> {
    /// Rounds activations `x`, `[n_tokens, n_cols]`, if a matrix is multiplied in integers.
    pub(crate) fn round<'m>(
        &self,
        x: &[f32],
        n_cols: usize,
        mut matrices: impl Iterator<Item = &'m Matrix>,
    ) -> Option<RoundedRows> {
        if !matrices.any(|matrix| self.weights.layout(matrix).is_some()) {
            return None;
        }
        let mut rounded = self.integers.take_rounded();
        let parts = rounded.parts(x.len() / n_cols.max(1), n_cols);
        self.workers.install(|| {
            parts.into_par_iter().run(&|part| {
                self.clock.time(WorkKind::Product, || part.round(self.weights.level, x));
            });
        });
        Some(rounded)
    }
}
