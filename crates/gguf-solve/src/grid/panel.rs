//! Rows side by side, like [`crate::panel`], for types on grids.

use gguf_blocks::grid_states::{GRID_ELEMS, GridForm, GridState};
use gguf_core::numeric::{f16_to_f32, f32_to_f16};

use crate::SolveError;
use crate::grid::choice::{Code, Grid};
use crate::panel::{LANES, Lane, ZERO, fill_lanes};
use crate::unit::UNIT;

/// Up to [`LANES`] rows. An element is `d · odd · value`, where `d` is the block's scale times the type's unit.
pub(crate) struct GridPanel {
    pub n_rows: usize,
    /// Weights, by column.
    pub w: Vec<Lane>,
    /// Weights minus the elements, by column.
    pub e: Vec<Lane>,
    /// Values with their signs, by column.
    pub q: Vec<Lane>,
    /// Scales, by block.
    pub d: Vec<Lane>,
    /// `2 level + 1`, by part.
    pub odd: Vec<Lane>,
    /// Codes, by unit.
    pub codes: Vec<[Code; LANES]>,
}

impl GridPanel {
    /// Creates a panel for rows of `n_cols` columns, whole blocks.
    pub(crate) fn new(form: &GridForm, n_cols: usize) -> Self {
        let lanes = |n: usize| vec![ZERO; n];
        Self {
            n_rows: 0,
            w: lanes(n_cols),
            e: lanes(n_cols),
            q: lanes(n_cols),
            d: lanes(n_cols / GRID_ELEMS),
            odd: lanes(n_cols / form.part),
            codes: vec![[Code::default(); LANES]; n_cols / UNIT],
        }
    }

    pub(crate) fn load(&mut self, grid: &Grid, rows: &[f32], blocks: &[u8]) -> Result<(), SolveError> {
        let form = grid.form;
        self.n_rows = rows.len() / self.w.len();
        fill_lanes(&mut self.w, rows);
        for lanes in [&mut self.e, &mut self.q, &mut self.d, &mut self.odd] {
            lanes.fill(ZERO);
        }
        let mut state = GridState::ZERO;
        let n_points = UNIT / form.dims;
        for (row, blocks) in blocks.chunks(self.d.len() * form.ty.block_bytes()).enumerate() {
            for (index, block) in blocks.chunks(form.ty.block_bytes()).enumerate() {
                form.unpack(block, &mut state)?;
                self.d[index][row] = f16_to_f32(state.d) * form.unit;
                for (part, level) in state.levels[..form.n_parts()].iter().enumerate() {
                    self.odd[index * form.n_parts() + part][row] = f32::from(2 * level + 1);
                }
                for unit in 0..GRID_ELEMS / UNIT {
                    let mut code = Code { points: [0; 2], signs: state.signs[unit] };
                    let points = &state.points[unit * n_points..][..n_points];
                    code.points[..n_points].copy_from_slice(points);
                    let unit = index * GRID_ELEMS / UNIT + unit;
                    self.codes[unit][row] = code;
                    self.set(grid, unit, row);
                }
            }
        }
        Ok(())
    }

    /// Sets the values and errors of a unit's columns from its code.
    #[inline(always)]
    pub(crate) fn set(&mut self, grid: &Grid, unit: usize, row: usize) {
        let first = unit * UNIT;
        let values = grid.values(self.codes[unit][row]);
        let step = self.d[first / GRID_ELEMS][row] * self.odd[first / grid.form.part][row];
        for (column, value) in (first..first + UNIT).zip(values) {
            self.q[column][row] = value;
            self.e[column][row] = self.w[column][row] - step * value;
        }
    }

    /// Writes the blocks of the rows.
    pub(crate) fn store(&self, form: &GridForm, blocks: &mut [u8]) -> Result<(), SolveError> {
        let mut state = GridState::ZERO;
        let n_points = UNIT / form.dims;
        for (row, blocks) in blocks.chunks_mut(self.d.len() * form.ty.block_bytes()).enumerate() {
            for (index, block) in blocks.chunks_mut(form.ty.block_bytes()).enumerate() {
                state.d = f32_to_f16(self.d[index][row] / form.unit);
                for (part, level) in state.levels[..form.n_parts()].iter_mut().enumerate() {
                    *level = (self.odd[index * form.n_parts() + part][row] as u8) >> 1;
                }
                for unit in 0..GRID_ELEMS / UNIT {
                    let code = self.codes[index * GRID_ELEMS / UNIT + unit][row];
                    state.signs[unit] = code.signs;
                    state.points[unit * n_points..][..n_points].copy_from_slice(&code.points[..n_points]);
                }
                form.pack(&state, block)?;
            }
        }
        Ok(())
    }
}
