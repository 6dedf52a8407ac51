//! Matrices times activations: each block of decoded panels is multiplied with the whole batch before the next block is
//! decoded, so that every weight is decoded once.

use crate::exec::activation::{Activation, GatedActivation, PlainActivation};
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::matmul::{MatrixTile, MatrixView, TileGrid, multiply_rows};
use crate::exec::panel::{DecodedPanel, Panel, SLICE_TOKENS, cuts, panel_rows};
use crate::exec::timings::WorkKind;
use crate::exec::weights::Matrix;
use crate::exec::workers::lend;
use crate::{EngineError, Result};

/// Product `out = act(W x)`; all products of a call share `x`.
pub(crate) struct Product<'a> {
    pub(crate) weight: &'a Matrix,
    pub(crate) act: Option<&'a Activation>,
    /// Output, `[n_tokens, weight.n_rows]`.
    pub(crate) out: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// Returns a product without activation.
    pub(crate) fn plain(weight: &'a Matrix, out: &'a mut [f32]) -> Self {
        Self { weight, act: None, out }
    }

    fn gate(&self) -> Option<&'a Matrix> {
        self.act.and_then(Activation::gate)
    }
}

/// Scale and bias that follow a product.
pub(crate) struct Affix {
    bias: Option<Vec<f32>>,
    scale: f32,
}

impl Affix {
    /// Computes `out = scale * x w + bias`, for the rows of a panel.
    ///
    /// # Exactness
    /// The result for a row of `x` depends on that row alone, not on the number of rows. So it depends neither on the
    /// batch, nor on which other tokens an expert gets, nor on which machine runs which part of a text.
    pub(crate) fn multiply(
        &self,
        out: &mut MatrixTile<'_>,
        x: MatrixView<'_>,
        w: MatrixView<'_>,
        panel: &Panel<'_>,
    ) {
        multiply_rows(out, x, w, self.scale);
        let Some(bias) = &self.bias else { return };
        let bias = &bias[panel.first..panel.first + panel.n];
        for row in 0..out.n_rows() {
            out.row_mut(row).iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
    }
}

/// Activation that follows the products of a job.
enum JobActivation {
    None,
    Plain(PlainActivation),
    Gated { act: GatedActivation, gate: Affix },
}

struct ProductJob<'a> {
    weight: Affix,
    act: JobActivation,
    grid: TileGrid<'a>,
}

impl Context<'_> {
    /// Loads the scale and bias of a matrix.
    pub(crate) fn affix(&self, matrix: &Matrix) -> Result<Affix> {
        let scale = self.weights.optional(matrix.scale.as_ref())?;
        let scale = scale.and_then(|s| s.first().copied()).unwrap_or(1.0);
        Ok(Affix { bias: self.weights.optional(matrix.bias.as_ref())?, scale })
    }

    /// Shows the observer the rows that matrices are about to be multiplied with.
    pub(crate) fn observe<'m>(&self, matrices: impl Iterator<Item = &'m Matrix>, x: &[f32]) {
        let Some(observer) = self.observer else { return };
        // Parts of a fused tensor see the same rows: they count once.
        let mut seen: Vec<&Matrix> = Vec::new();
        for matrix in matrices {
            if !seen.iter().any(|other| (other.tensor, other.expert) == (matrix.tensor, matrix.expert)) {
                seen.push(matrix);
            }
        }
        if !seen.is_empty() {
            observer.inputs(self.weights.source, &seen, x);
        }
    }

    /// Computes the products of `x` (`[n_tokens, n_cols]`).
    pub(crate) fn products(&self, x: &[f32], n_tokens: usize, products: Vec<Product<'_>>) -> Result<()> {
        let n_cols = products.first().map_or(0, |p| p.weight.n_cols);
        if n_tokens == 0 {
            return Ok(());
        }
        if let Some(count) = self.count {
            count.product(n_cols);
            return Ok(());
        }
        let x = &x[..n_tokens * n_cols];
        self.observe(products.iter().flat_map(|p| p.gate().into_iter().chain([p.weight])), x);
        let slices = cuts(n_tokens, SLICE_TOKENS);
        let (mut jobs, mut panels, mut tiles) = (Vec::with_capacity(products.len()), Vec::new(), Vec::new());
        for product in products {
            let n_rows = product.weight.n_rows;
            for (across, panel) in Panel::of(product.weight, product.gate()).enumerate() {
                panels.push(panel);
                tiles.push((jobs.len(), across));
            }
            jobs.push(ProductJob {
                weight: self.affix(product.weight)?,
                act: match product.act {
                    None => JobActivation::None,
                    Some(Activation::Plain(act)) => JobActivation::Plain(*act),
                    Some(Activation::Gated { act, gate }) => {
                        JobActivation::Gated { act: *act, gate: self.affix(gate)? }
                    }
                },
                grid: TileGrid::new(product.out, n_rows, slices.clone(), cuts(n_rows, panel_rows(n_cols))),
            });
        }
        self.each_block(&panels, |block, first, decoded| {
            // All panels of a slice come before the next slice, so that activations are read from memory once.
            self.workers.each(block.len() * (slices.len() - 1), |scratch, task| {
                if self.progress.is_cancelled() {
                    return Err(EngineError::Cancelled);
                }
                let (slice, panel) = (task / block.len(), task % block.len());
                let (job, across) = tiles[first + panel];
                let (start, n) = (slices[slice], slices[slice + 1] - slices[slice]);
                let rows = MatrixView::new(&x[start * n_cols..], n, n_cols, n_cols);
                let mut out = jobs[job].grid.take(slice, across);
                self.tile(&jobs[job], &block[panel], decoded[panel], rows, &mut out, &mut scratch.tile);
                Ok(())
            })
        })
    }

    /// Multiplies one panel with one slice of tokens.
    fn tile(
        &self,
        job: &ProductJob<'_>,
        panel: &Panel<'_>,
        decoded: DecodedPanel<'_>,
        rows: MatrixView<'_>,
        out: &mut MatrixTile<'_>,
        gates: &mut Vec<f32>,
    ) {
        self.clock.time(WorkKind::Product, || job.weight.multiply(out, rows, decoded.weight, panel));
        let level = self.weights.level;
        match &job.act {
            JobActivation::None => {}
            JobActivation::Plain(act) => self.clock.time(WorkKind::Activation, || {
                (0..out.n_rows()).for_each(|row| math::activate(level, *act, out.row_mut(row)));
            }),
            JobActivation::Gated { act, gate } => {
                let weights = decoded.gate.expect("panels of a product with a gate have its rows too");
                let n = out.n_rows();
                let mut gates = MatrixTile::whole(lend(gates, n * panel.n), n, panel.n);
                self.clock.time(WorkKind::Product, || gate.multiply(&mut gates, rows, weights, panel));
                self.clock.time(WorkKind::Activation, || {
                    (0..n).for_each(|row| math::gated(level, *act, gates.row_mut(row), out.row_mut(row)));
                });
            }
        }
    }
}
