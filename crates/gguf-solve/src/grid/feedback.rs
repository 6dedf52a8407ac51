//! Rounding with error feedback, a unit at a time.
//!
//! For units in some order, `H_r = M D Mᵀ` with `M` upper triangular and ones on its diagonal. Let `e` be the errors of
//! the units before a unit `g`, `b` the correction that they require of its columns, and `x = w + b M_gg⁻¹`. Then
//! `e H_r eᵀ` of `g` and the units before it is least where `((x - q) M_gg) D_g ((x - q) M_gg)ᵀ` is, however the later
//! units are chosen.

use std::ops::Range;

use gguf_blocks::grid_states::GRID_ELEMS;
use gguf_core::simd::{SimdLevel, VectorLoop};

use crate::grid::choice::{Grid, PreparedMetric};
use crate::grid::panel::GridPanel;
use crate::lanes::add_scaled;
use crate::metric::UnitFactor;
use crate::panel::{Lane, ZERO, product_added};
use crate::unit::{UNIT, Unit};
use crate::{Metric, SolveError};

/// Number of columns that are rounded before their errors are passed to the rest.
const BLOCK: usize = 64;

/// Buffers for the errors in the order of rounding.
pub(crate) struct GridFeedback {
    errors: Vec<Lane>,
    asked: Vec<Lane>,
    ready: PreparedMetric,
}

impl GridFeedback {
    pub(crate) fn new(n_cols: usize) -> Self {
        Self { errors: vec![ZERO; n_cols], asked: vec![ZERO; BLOCK], ready: PreparedMetric::default() }
    }

    /// Chooses the codes of a panel for its present scales.
    pub(crate) fn round(
        &mut self,
        grid: &Grid,
        level: SimdLevel,
        metric: &Metric,
        panel: &mut GridPanel,
    ) -> Result<(), SolveError> {
        let factor = metric.of_units()?;
        for first in (0..metric.n_cols()).step_by(BLOCK) {
            let places = first..metric.n_cols().min(first + BLOCK);
            let asked = &mut self.asked[..places.len()];
            asked.fill(ZERO);
            if first > 0 {
                let coefficients = factor.feedback(places.clone()).columns(0..first);
                product_added(asked, coefficients, &self.errors[..first]);
            }
            let errors = &mut self.errors[places.clone()];
            let ready = &mut self.ready;
            level.vectorize(RoundUnits { grid, factor, ready, panel, places, asked, errors });
        }
        Ok(())
    }
}

/// Rounding of the units of one block, one after the other.
struct RoundUnits<'a> {
    grid: &'a Grid,
    factor: &'a UnitFactor,
    ready: &'a mut PreparedMetric,
    panel: &'a mut GridPanel,
    places: Range<usize>,
    asked: &'a mut [Lane],
    errors: &'a mut [Lane],
}

impl VectorLoop for RoundUnits<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let feedback = self.factor.feedback(self.places.clone()).columns(self.places.clone());
        for at in (0..self.places.len()).step_by(UNIT) {
            let place = self.places.start + at;
            let unit = self.factor.order[place] / UNIT;
            // Computes b M_gg⁻¹ column by column: known columns of the unit feed the next like errors do, with the
            // opposite sign.
            for k in 0..UNIT {
                let (known, rest) = self.asked.split_at_mut(at + k);
                let row = feedback.row(at + k);
                for (error, coefficient) in self.errors[..at].iter().zip(row) {
                    add_scaled(&mut rest[0], error, *coefficient);
                }
                for (solved, coefficient) in known[at..].iter().zip(&row[at..]) {
                    add_scaled(&mut rest[0], solved, -*coefficient);
                }
            }
            self.grid.prepare(&self.factor.conditional(place), self.ready);
            let targets = &self.asked[at..at + UNIT];
            choose(self.grid, self.panel, unit, self.ready, targets);
            let columns = unit * UNIT..(unit + 1) * UNIT;
            self.errors[at..at + UNIT].copy_from_slice(&self.panel.e[columns]);
        }
    }
}

/// Chooses the codes of a unit for all rows.
#[inline(always)]
fn choose(grid: &Grid, panel: &mut GridPanel, unit: usize, ready: &PreparedMetric, asked: &[Lane]) {
    let first = unit * UNIT;
    for row in 0..panel.n_rows {
        let step = panel.d[first / GRID_ELEMS][row] * panel.odd[first / grid.form.part][row];
        // A block without a scale has no codes to choose from.
        if step != 0.0 {
            let inverse = 1.0 / step;
            let x: Unit = std::array::from_fn(|i| (panel.w[first + i][row] + asked[i][row]) * inverse);
            panel.codes[unit][row] = grid.near(ready, &x, panel.codes[unit][row].signs);
        }
        panel.set(grid, unit, row);
    }
}
