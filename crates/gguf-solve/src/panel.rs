//! Panels of rows side by side, which the solver works on.

use gguf_blocks::states::{BlockState, Min, StateForm};
use gguf_core::numeric::{f16_to_f32, f32_to_f16};
use gguf_matmul::{MatrixTile, MatrixView, ordered_multiply, ordered_multiply_add};

use crate::SolveError;

/// Number of rows of a panel: a multiple of the tile width of the product kernels at every level.
pub(crate) const LANES: usize = 128;

/// One number for each row of a panel.
pub(crate) type Lane = [f32; LANES];

pub(crate) const ZERO: Lane = [0.0; LANES];

/// Number of columns whose lanes are filled together, so that they stay in the cache.
const TILE: usize = 16;

/// Up to [`LANES`] rows, a lane for each row. Lanes without a row are zero and do not affect the others.
///
/// An element is `d · scale · value - d_min · min`. For types that add a minimum, `d_min` has the opposite sign here,
/// and `min` is 1.
pub(crate) struct Panel {
    /// Weights, by column.
    pub w: Vec<Lane>,
    /// Weights minus the elements, by column.
    pub e: Vec<Lane>,
    /// Values of the codes, by column.
    pub v: Vec<Lane>,
    /// Scales, by block.
    pub d: Vec<Lane>,
    /// Scales of the minima, by block.
    pub d_min: Vec<Lane>,
    /// Scales, by group.
    pub scales: Vec<Lane>,
    /// Minima, by group.
    pub mins: Vec<Lane>,
}

impl Panel {
    /// Creates a panel for rows of `n_cols` columns, whole blocks.
    pub(crate) fn new(form: &StateForm, n_cols: usize) -> Self {
        let (n_blocks, n_groups) = (n_cols / form.n_elems(), n_cols / form.group);
        let lanes = |n: usize| vec![ZERO; n];
        Self {
            w: lanes(n_cols),
            e: lanes(n_cols),
            v: lanes(n_cols),
            d: lanes(n_blocks),
            d_min: lanes(n_blocks),
            scales: lanes(n_groups),
            mins: lanes(n_groups),
        }
    }

    /// Loads weights, and the scales and minima of blocks; their codes are ignored.
    pub(crate) fn load(&mut self, form: &StateForm, rows: &[f32], blocks: &[u8]) -> Result<(), SolveError> {
        fill_lanes(&mut self.w, rows);
        for lanes in [&mut self.d, &mut self.d_min, &mut self.scales, &mut self.mins] {
            lanes.fill(ZERO);
        }
        let mut state = BlockState::ZERO;
        let n_groups = form.n_groups();
        let sign = if form.min == Min::Added { -1.0 } else { 1.0 };
        for (row, blocks) in blocks.chunks(self.d.len() * form.ty.block_bytes()).enumerate() {
            for (index, block) in blocks.chunks(form.ty.block_bytes()).enumerate() {
                form.unpack(block, &mut state)?;
                self.d[index][row] = f16_to_f32(state.d);
                self.d_min[index][row] = sign * f16_to_f32(state.d_min);
                for group in 0..n_groups {
                    self.scales[index * n_groups + group][row] = f32::from(state.scales[group]);
                    self.mins[index * n_groups + group][row] = f32::from(state.mins[group]);
                }
            }
        }
        Ok(())
    }

    /// Writes the blocks of the rows.
    pub(crate) fn store(&self, form: &StateForm, blocks: &mut [u8]) -> Result<(), SolveError> {
        let (n_groups, n_elems) = (form.n_groups(), form.n_elems());
        let sign = if form.min == Min::Added { -1.0 } else { 1.0 };
        let codes = codes_of(form);
        let mut state = BlockState::ZERO;
        for (row, blocks) in blocks.chunks_mut(self.d.len() * form.ty.block_bytes()).enumerate() {
            for (index, block) in blocks.chunks_mut(form.ty.block_bytes()).enumerate() {
                state.d = f32_to_f16(self.d[index][row]);
                state.d_min =
                    if form.min == Min::None { 0 } else { f32_to_f16(sign * self.d_min[index][row]) };
                for group in 0..n_groups {
                    state.scales[group] = self.scales[index * n_groups + group][row] as i8;
                    state.mins[group] = self.mins[index * n_groups + group][row] as u8;
                }
                let values = &self.v[index * n_elems..][..n_elems];
                for (code, value) in state.codes.iter_mut().zip(values) {
                    *code = codes[usize::from((value[row] as i8).cast_unsigned())];
                }
                form.pack(&state, block)?;
            }
        }
        Ok(())
    }
}

/// Copies rows to lanes; lanes without a row are zero.
pub(crate) fn fill_lanes(columns: &mut [Lane], rows: &[f32]) {
    let n_cols = columns.len();
    for (tile, lanes) in columns.chunks_mut(TILE).enumerate() {
        lanes.fill(ZERO);
        for (row, values) in rows.chunks(n_cols).enumerate() {
            for (lane, value) in lanes.iter_mut().zip(&values[tile * TILE..]) {
                lane[row] = *value;
            }
        }
    }
}

/// Returns the code of each value, indexed by the value's byte.
fn codes_of(form: &StateForm) -> [u8; 256] {
    let mut codes = [0; 256];
    for (code, value) in form.values.iter().enumerate() {
        codes[usize::from(value.cast_unsigned())] = code as u8;
    }
    codes
}

pub(crate) fn product(out: &mut [Lane], a: MatrixView<'_>, b: &[Lane]) {
    let n_rows = out.len();
    let mut out = MatrixTile::whole(out.as_flattened_mut(), n_rows, LANES);
    ordered_multiply(&mut out, a, MatrixView::new(b.as_flattened(), b.len(), LANES, LANES), 1.0);
}

pub(crate) fn product_added(out: &mut [Lane], a: MatrixView<'_>, b: &[Lane]) {
    let n_rows = out.len();
    let mut out = MatrixTile::whole(out.as_flattened_mut(), n_rows, LANES);
    ordered_multiply_add(&mut out, a, MatrixView::new(b.as_flattened(), b.len(), LANES, LANES), 1.0);
}
