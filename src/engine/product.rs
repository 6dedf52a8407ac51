//! Matrices times activations: panels of rows are decoded to f32 and multiplied with the whole batch before the
//! next panel is decoded, so that every weight is decoded once.

use crate::arch::graph::FfnKind;
use crate::engine::EngineError;
use crate::engine::graph::Run;
use crate::engine::math;
use crate::engine::matmul::{Grid, Tile, View, multiply};
use crate::engine::plan::Matrix;
use crate::engine::workers::{Scratch, lend};

/// Bytes of a decoded panel: it stays in a core's second-level cache beside the activations.
const PANEL_BYTES: usize = 512 << 10;
/// Rows of a panel at most: enough to hide the packing of activations, few enough to share among cores.
const PANEL_ROWS: usize = 96;
/// Tokens that a panel is multiplied with at a time.
const SLICE_TOKENS: usize = 1024;

/// One product `out = act(W x)`; all products of a call share `x`.
pub(super) struct Product<'a> {
    pub(super) weight: &'a Matrix,
    /// A gate projection of the same size: `out = act(gate x) * (W x)`.
    pub(super) gate: Option<&'a Matrix>,
    pub(super) act: Option<FfnKind>,
    /// `[n_tokens, weight.n_rows]`.
    pub(super) out: &'a mut [f32],
}

impl<'a> Product<'a> {
    pub(super) fn plain(weight: &'a Matrix, out: &'a mut [f32]) -> Self {
        Self { weight, gate: None, act: None, out }
    }
}

/// A matrix with its vectors in memory.
struct Loaded<'a> {
    matrix: &'a Matrix,
    bias: Option<Vec<f32>>,
    scale: f32,
}

struct Job<'a> {
    weight: Loaded<'a>,
    gate: Option<Loaded<'a>>,
    act: Option<FfnKind>,
    grid: Grid<'a>,
    cuts: Vec<usize>,
}

fn panel_rows(n_cols: usize) -> usize {
    (PANEL_BYTES / (4 * n_cols.max(1))).clamp(16, PANEL_ROWS) / 16 * 16
}

impl Run<'_> {
    fn load<'m>(&self, matrix: &'m Matrix) -> Result<Loaded<'m>, EngineError> {
        let scale = self.weights.optional(matrix.scale.as_ref())?;
        let scale = scale.and_then(|s| s.first().copied()).unwrap_or(1.0);
        Ok(Loaded { matrix, bias: self.weights.optional(matrix.bias.as_ref())?, scale })
    }

    /// Computes the products of `x` (`[n_tokens, n_cols]`).
    pub(super) fn products(
        &self,
        x: &[f32],
        n_tokens: usize,
        products: Vec<Product<'_>>,
    ) -> Result<(), EngineError> {
        let n_cols = products.first().map_or(0, |p| p.weight.n_cols);
        if n_tokens == 0 {
            return Ok(());
        }
        if let Some(observer) = self.observer {
            // Parts of a fused tensor see the same rows: they count once.
            let mut seen = Vec::new();
            for matrix in products.iter().flat_map(|p| [p.gate, Some(p.weight)]).flatten() {
                if !seen.contains(&(matrix.tensor, matrix.expert)) {
                    seen.push((matrix.tensor, matrix.expert));
                    observer.input(self.weights.source, matrix, &x[..n_tokens * n_cols]);
                }
            }
        }
        let mut jobs = Vec::with_capacity(products.len());
        let mut tasks = Vec::new();
        for product in products {
            let n_rows = product.weight.n_rows;
            let cuts: Vec<usize> =
                (0..n_rows).step_by(panel_rows(n_cols)).chain(std::iter::once(n_rows)).collect();
            tasks.extend((0..cuts.len() - 1).map(|panel| (jobs.len(), panel)));
            jobs.push(Job {
                weight: self.load(product.weight)?,
                gate: product.gate.map(|gate| self.load(gate)).transpose()?,
                act: product.act,
                grid: Grid::new(product.out, n_rows, vec![0, n_tokens], cuts.clone()),
                cuts,
            });
        }
        self.workers.each(tasks.len(), |scratch, at| {
            if self.progress.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let (job, panel) = tasks[at];
            self.panel(&jobs[job], panel, x, n_tokens, scratch)
        })
    }

    fn panel(
        &self,
        job: &Job<'_>,
        panel: usize,
        x: &[f32],
        n_tokens: usize,
        scratch: &mut Scratch,
    ) -> Result<(), EngineError> {
        let (first, end) = (job.cuts[panel], job.cuts[panel + 1]);
        let n = end - first;
        let n_cols = job.weight.matrix.n_cols;
        let Scratch { bytes, panel: decoded, tile: gate_tile } = scratch;
        let n_panels = if job.gate.is_some() { 2 } else { 1 };
        let decoded = lend(decoded, n_panels * n * n_cols);
        let (weight_panel, gate_panel) = decoded.split_at_mut(n * n_cols);
        let mut n_bytes = 0;
        let sides = [(Some(&job.weight), weight_panel), (job.gate.as_ref(), gate_panel)];
        for (loaded, out) in sides {
            let Some(loaded) = loaded else { continue };
            let matrix = loaded.matrix;
            self.weights.rows(matrix.tensor, matrix.first_row + first, n, bytes, out)?;
            n_bytes += self.weights.row_bytes(matrix.tensor, n)?;
        }
        let decoded = &*decoded;
        let side = |at: usize| View::new(&decoded[at * n * n_cols..], n, n_cols, n_cols).transposed();
        let mut out = job.grid.take(0, panel);
        let mut start = 0;
        while start < n_tokens {
            let slice = SLICE_TOKENS.min(n_tokens - start);
            let rows = View::new(&x[start * n_cols..], slice, n_cols, n_cols);
            let mut out = out.rows_mut(start..start + slice);
            multiply(&mut out, rows, side(0), job.weight.scale, false);
            add_bias(&mut out, job.weight.bias.as_deref(), first..end);
            match (&job.gate, job.act) {
                (Some(gate), Some(kind)) => {
                    let mut gates = Tile::whole(lend(gate_tile, slice * n), slice, n);
                    multiply(&mut gates, rows, side(1), gate.scale, false);
                    add_bias(&mut gates, gate.bias.as_deref(), first..end);
                    for row in 0..slice {
                        math::gated(self.weights.level, kind, gates.row_mut(row), out.row_mut(row));
                    }
                }
                (None, Some(kind)) => {
                    (0..slice).for_each(|row| math::activate(self.weights.level, kind, out.row_mut(row)));
                }
                (_, None) => {}
            }
            start += slice;
        }
        self.progress.advance(n_bytes as u64);
        Ok(())
    }
}

fn add_bias(tile: &mut Tile<'_>, bias: Option<&[f32]>, rows: std::ops::Range<usize>) {
    let Some(bias) = bias else { return };
    for row in 0..tile.n_rows() {
        for (y, b) in tile.row_mut(row).iter_mut().zip(&bias[rows.clone()]) {
            *y += b;
        }
    }
}
