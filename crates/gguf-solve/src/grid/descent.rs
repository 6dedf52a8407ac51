//! Coordinate descent: scales of parts, codes of units, scales of blocks, each set to the minimum of `e H_r eᵀ` with
//! the others fixed.

use std::ops::Range;

use gguf_blocks::grid_states::GRID_ELEMS;
use gguf_core::simd::{SimdLevel, VectorLoop};

use crate::Metric;
use crate::descent::rounded;
use crate::grid::choice::{Code, Grid, PreparedMetric, product as unit_product};
use crate::grid::panel::GridPanel;
use crate::lanes::{add_product, limit, round, take_product, times};
use crate::panel::{LANES, Lane, ZERO, product, product_added};
use crate::unit::{UNIT, Unit};

/// Maximum number of columns of a part.
const PART: usize = 32;

/// Buffers of a descent.
pub(crate) struct GridDescent {
    /// Gradients `e H_r` of the columns of a block.
    gradients: Vec<Lane>,
    /// Products with a part of `H_r`.
    products: Vec<Lane>,
    /// Right operand of a product: changes of errors, or values.
    factors: Vec<Lane>,
    ready: [PreparedMetric; PART / UNIT],
}

impl GridDescent {
    pub(crate) fn new() -> Self {
        let lanes = || vec![ZERO; GRID_ELEMS];
        Self { gradients: lanes(), products: lanes(), factors: lanes(), ready: Default::default() }
    }

    /// Runs one pass over all columns of a panel.
    pub(crate) fn pass(&mut self, grid: &Grid, level: SimdLevel, metric: &Metric, panel: &mut GridPanel) {
        for first in (0..metric.n_cols()).step_by(GRID_ELEMS) {
            let block = first..first + GRID_ELEMS;
            let rows = metric.rows(block.clone());
            product(&mut self.gradients, rows, &panel.e);
            for start in block.clone().step_by(grid.form.part) {
                let columns = start..start + grid.form.part;
                let changes = &mut self.factors[..columns.len()];
                changes.copy_from_slice(&panel.e[columns.clone()]);
                let gradients = &self.gradients[start - first..][..columns.len()];
                let (ready, columns_of) = (&mut self.ready, columns.clone());
                level.vectorize(PartSteps { grid, metric, ready, columns: columns_of, panel, gradients });
                for (change, after) in changes.iter_mut().zip(&panel.e[columns.clone()]) {
                    for r in 0..LANES {
                        change[r] = after[r] - change[r];
                    }
                }
                product_added(&mut self.gradients, rows.columns(columns), changes);
            }
            self.fit_block(grid, level, metric, block, panel);
        }
    }

    /// Solves the exact least squares for the scale of a block.
    fn fit_block(
        &mut self,
        grid: &Grid,
        level: SimdLevel,
        metric: &Metric,
        columns: Range<usize>,
        panel: &mut GridPanel,
    ) {
        for (factor, column) in self.factors.iter_mut().zip(columns.clone()) {
            *factor = times(&panel.q[column], &panel.odd[column / grid.form.part]);
        }
        let own = metric.rows(columns.clone()).columns(columns.clone());
        product(&mut self.products, own, &self.factors);
        let (gradients, products, directions) = (&*self.gradients, &*self.products, &*self.factors);
        let unit = grid.form.unit;
        level.vectorize(FitGridBlock { unit, columns, panel, gradients, products, directions });
    }
}

/// Steps for scale and codes of one part.
struct PartSteps<'a> {
    grid: &'a Grid,
    metric: &'a Metric,
    ready: &'a mut [PreparedMetric; PART / UNIT],
    columns: Range<usize>,
    panel: &'a mut GridPanel,
    gradients: &'a [Lane],
}

impl VectorLoop for PartSteps<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (grid, panel, first) = (self.grid, self.panel, self.columns.start);
        let n = self.columns.len();
        let mut h = [[0.0; PART]; PART];
        for (i, h) in h[..n].iter_mut().enumerate() {
            h[..n].copy_from_slice(self.metric.row(first + i, self.columns.clone()));
        }
        for (unit, ready) in self.ready[..n / UNIT].iter_mut().enumerate() {
            let at = unit * UNIT;
            grid.prepare(&std::array::from_fn(|i| std::array::from_fn(|j| h[at + i][at + j])), ready);
        }
        let (block, part) = (first / GRID_ELEMS, first / n);
        for row in 0..panel.n_rows {
            let d = panel.d[block][row];
            if d == 0.0 {
                continue;
            }
            let mut local = PartState {
                d,
                odd: panel.odd[part][row],
                g: [0.0; PART],
                q: [0.0; PART],
                codes: [Code::default(); PART / UNIT],
                gain: 0.0,
            };
            for i in 0..n {
                local.g[i] = self.gradients[i][row];
                local.q[i] = panel.q[first + i][row];
            }
            for unit in 0..n / UNIT {
                local.codes[unit] = panel.codes[first / UNIT + unit][row];
            }
            let local = local.best(grid, &h, self.ready);
            panel.odd[part][row] = local.odd;
            for unit in 0..n / UNIT {
                panel.codes[first / UNIT + unit][row] = local.codes[unit];
                panel.set(grid, first / UNIT + unit, row);
            }
        }
    }
}

/// State of a part of one row.
#[derive(Clone, Copy)]
struct PartState {
    d: f32,
    odd: f32,
    /// Gradients of the columns.
    g: [f32; PART],
    q: [f32; PART],
    codes: [Code; PART / UNIT],
    /// Decrease of `e H_r eᵀ` so far.
    gain: f32,
}

type PartMetric = [[f32; PART]; PART];

impl PartState {
    /// Returns the best of several trials: the fitted scale, and for shared shifts also the opposite shift.
    #[inline(always)]
    fn best(self, grid: &Grid, h: &PartMetric, ready: &[PreparedMetric]) -> Self {
        let n = grid.form.part;
        let mut best = self;
        let fitted = self.fitted_odd(grid, h);
        let mut consider = |mut trial: Self, odd: f32| {
            trial.set_odd(n, h, odd);
            for (unit, ready) in ready[..n / UNIT].iter().enumerate() {
                trial.choose(grid, h, ready, unit);
            }
            if trial.gain > best.gain {
                best = trial;
            }
        };
        consider(self, fitted);
        if grid.shifted() == Some(n) {
            let mut other = self;
            other.turn_shift(grid, h);
            let fitted = other.fitted_odd(grid, h);
            consider(other, fitted);
        }
        best
    }

    /// Returns the odd number nearest to the apex of the parabola.
    #[inline(always)]
    fn fitted_odd(&self, grid: &Grid, h: &PartMetric) -> f32 {
        let n = grid.form.part;
        let products = part_product(h, &self.q, n);
        let (mut slope, mut bend) = (0.0, 0.0);
        for i in 0..n {
            slope += self.q[i] * self.g[i];
            bend += self.q[i] * products[i];
        }
        let bend = bend * self.d;
        // Bend and scale have the same sign if the step makes sense; 0 and NaN have none.
        if bend * self.d > 0.0 {
            let apex = limit(self.odd + slope / bend, -1024.0, 1024.0);
            let level = limit(round(0.5 * (apex - 1.0)), 0.0, f32::from(grid.form.n_levels - 1));
            2.0 * level + 1.0
        } else {
            self.odd
        }
    }

    /// Applies a change of the errors to gradients and gain.
    #[inline(always)]
    fn take(&mut self, n: usize, h: &PartMetric, change: &[f32; PART]) {
        let products = part_product(h, change, n);
        let mut rise = 0.0;
        for i in 0..n {
            rise += change[i] * (2.0 * self.g[i] + products[i]);
            self.g[i] += products[i];
        }
        self.gain -= rise;
    }

    #[inline(always)]
    fn set_odd(&mut self, n: usize, h: &PartMetric, odd: f32) {
        if odd != self.odd {
            let step = self.d * (self.odd - odd);
            let change = self.q.map(|value| step * value);
            self.take(n, h, &change);
            self.odd = odd;
        }
    }

    #[inline(always)]
    fn turn_shift(&mut self, grid: &Grid, h: &PartMetric) {
        let n = grid.form.part;
        let step = self.d * self.odd;
        let mut change = [0.0; PART];
        for unit in 0..n / UNIT {
            self.codes[unit].signs ^= 1;
            let values = grid.values(self.codes[unit]);
            for i in 0..UNIT {
                let at = unit * UNIT + i;
                change[at] = step * (self.q[at] - values[i]);
                self.q[at] = values[i];
            }
        }
        self.take(n, h, &change);
    }

    /// Chooses the code of a unit.
    #[inline(always)]
    fn choose(&mut self, grid: &Grid, h: &PartMetric, ready: &PreparedMetric, unit: usize) {
        let (n, first) = (grid.form.part, unit * UNIT);
        let step = self.d * self.odd;
        let old: Unit = std::array::from_fn(|i| self.q[first + i]);
        let mut c = unit_product(&ready.h, &old);
        for i in 0..UNIT {
            c[i] += self.g[first + i] / step;
        }
        let code = grid.improve(ready, &c, self.codes[unit]);
        if code != self.codes[unit] {
            let values = grid.values(code);
            let mut change = [0.0; PART];
            for i in 0..UNIT {
                change[first + i] = step * (old[i] - values[i]);
                self.q[first + i] = values[i];
            }
            self.codes[unit] = code;
            self.take(n, h, &change);
        }
    }
}

/// Computes `h x` of the first `n` columns.
#[inline(always)]
fn part_product(h: &PartMetric, x: &[f32; PART], n: usize) -> [f32; PART] {
    let mut out = [0.0; PART];
    for j in 0..n {
        for i in 0..PART {
            out[i] += h[j][i] * x[j];
        }
    }
    out
}

/// Least squares fit of a block's scale.
struct FitGridBlock<'a> {
    unit: f32,
    columns: Range<usize>,
    panel: &'a mut GridPanel,
    gradients: &'a [Lane],
    /// Product of `H_bb` with the directions.
    products: &'a [Lane],
    /// Derivative of the elements with respect to `d`.
    directions: &'a [Lane],
}

impl VectorLoop for FitGridBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let block = self.columns.start / GRID_ELEMS;
        let (mut slope, mut bend) = (ZERO, ZERO);
        for ((direction, gradient), product) in self.directions.iter().zip(self.gradients).zip(self.products)
        {
            add_product(&mut slope, direction, gradient);
            add_product(&mut bend, direction, product);
        }
        let mut change = ZERO;
        for r in 0..LANES {
            let d = self.panel.d[block][r];
            let (slope, bend) = (f64::from(slope[r]), f64::from(bend[r]));
            if d != 0.0 && bend > 0.0 {
                let new = rounded((f64::from(d) + slope / bend) / f64::from(self.unit)) * self.unit;
                let x = f64::from(new) - f64::from(d);
                // Rounding may make the new scale worse.
                if new != 0.0 && new.is_finite() && x * (2.0 * slope - bend * x) > 0.0 {
                    change[r] = new - d;
                    self.panel.d[block][r] = new;
                }
            }
        }
        for (column, direction) in self.columns.zip(self.directions) {
            take_product(&mut self.panel.e[column], &change, direction);
        }
    }
}
