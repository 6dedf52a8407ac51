//! Coordinate descent: scales, minima and codes, one after the other, each set to the minimum of `e H_r eᵀ` with the
//! others fixed.

use std::ops::Range;

use gguf_blocks::states::{MAX_ELEMS, MAX_GROUPS, Min, StateForm};
use gguf_core::numeric::{f16_to_f32, f32_to_f16};
use gguf_core::simd::{SimdLevel, VectorLoop};

use crate::Metric;
use crate::lanes::{NearestCodes, add_product, add_scaled, errors, limit, round, take_product, times};
use crate::panel::{LANES, Lane, Panel, ZERO, product, product_added};

/// Sums of `H_r` over the groups of a type, needed by the steps of minima.
pub(crate) struct GroupSums {
    /// Sum of each column over the rows of its group.
    columns: Vec<f32>,
    /// Sum over each pair of groups of a block: `[n_groups, n_groups]` per block.
    pairs: Vec<f32>,
}

impl GroupSums {
    pub(crate) fn new(form: &StateForm, metric: &Metric) -> Self {
        let (n_cols, group) = (metric.n_cols(), form.group);
        if form.min == Min::None {
            return Self { columns: Vec::new(), pairs: Vec::new() };
        }
        let sum = |row: usize, columns: Range<usize>| metric.row(row, columns).iter().sum::<f32>();
        let columns = (0..n_cols)
            .map(|column| {
                let first = column / group * group;
                sum(column, first..first + group)
            })
            .collect();
        let mut pairs = Vec::with_capacity(n_cols / form.n_elems() * form.n_groups() * form.n_groups());
        for a in 0..n_cols / group {
            let first = a * group / form.n_elems() * form.n_elems();
            for b in (first..first + form.n_elems()).step_by(group) {
                pairs.push((a * group..(a + 1) * group).map(|row| sum(row, b..b + group)).sum());
            }
        }
        Self { columns, pairs }
    }
}

/// Buffers of a descent.
pub(crate) struct Descent {
    codes: NearestCodes,
    /// Gradients `e H_r` of the columns of a stretch.
    gradients: Vec<Lane>,
    /// Gradients of one group, or of one block, while it changes.
    local: Vec<Lane>,
    /// Products with a part of `H_r`.
    products: Vec<Lane>,
    /// Right operand of a product, then the change of the errors.
    factors: Vec<Lane>,
}

/// Inputs of a descent that all its steps share.
struct DescentInputs<'a> {
    form: &'a StateForm,
    metric: &'a Metric,
    sums: &'a GroupSums,
    level: SimdLevel,
}

impl Descent {
    pub(crate) fn new(form: &StateForm) -> Self {
        let lanes = || vec![ZERO; MAX_ELEMS];
        Self {
            codes: NearestCodes::new(form),
            gradients: lanes(),
            local: lanes(),
            products: lanes(),
            factors: lanes(),
        }
    }

    /// Runs one pass over all columns of a panel.
    pub(crate) fn pass(
        &mut self,
        form: &StateForm,
        level: SimdLevel,
        metric: &Metric,
        sums: &GroupSums,
        panel: &mut Panel,
    ) {
        let inputs = DescentInputs { form, metric, sums, level };
        let n_cols = metric.n_cols();
        for first in (0..n_cols).step_by(MAX_ELEMS) {
            let stretch = first..n_cols.min(first + MAX_ELEMS);
            product(&mut self.gradients[..stretch.len()], metric.rows(stretch.clone()), &panel.e);
            for start in stretch.clone().step_by(form.group) {
                self.group(&inputs, &stretch, start..start + form.group, panel);
            }
            if form.scales.is_some() {
                // A stretch is a block.
                for (local, gradient) in self.local.iter_mut().zip(&self.gradients) {
                    *local = *gradient;
                }
                self.fit_block(&inputs, stretch, panel);
            }
        }
    }

    /// Runs all steps within a group, and updates the gradients of the stretch.
    fn group(
        &mut self,
        inputs: &DescentInputs<'_>,
        stretch: &Range<usize>,
        columns: Range<usize>,
        panel: &mut Panel,
    ) {
        let (form, n) = (inputs.form, columns.len());
        let at = columns.start - stretch.start;
        self.local[..n].copy_from_slice(&self.gradients[at..at + n]);
        let mut before = [ZERO; 32];
        before[..n].copy_from_slice(&panel.e[columns.clone()]);
        if form.scales.is_none() {
            self.fit_block(inputs, columns.clone(), panel);
        } else {
            let own = inputs.metric.rows(columns.clone()).columns(columns.clone());
            product(&mut self.products[..n], own, &panel.v[columns.clone()]);
        }
        inputs.level.vectorize(GroupSteps {
            inputs,
            codes: &self.codes,
            columns: columns.clone(),
            panel,
            gradients: &mut self.local[..n],
            products: &self.products[..n],
        });
        // If a block is one group, only the gradients of later columns are needed.
        let from = if form.scales.is_some() { 0 } else { at + n };
        if from < stretch.len() {
            for ((change, before), after) in
                self.factors.iter_mut().zip(&before[..n]).zip(&panel.e[columns.clone()])
            {
                for r in 0..LANES {
                    change[r] = after[r] - before[r];
                }
            }
            let part = inputs.metric.rows(stretch.start + from..stretch.end).columns(columns);
            product_added(&mut self.gradients[from..stretch.len()], part, &self.factors[..n]);
        }
    }

    /// Solves the exact least squares for the scale of a block, and that of its minima, with the gradients in `local`.
    fn fit_block(&mut self, inputs: &DescentInputs<'_>, columns: Range<usize>, panel: &mut Panel) {
        let (n, group) = (columns.len(), inputs.form.group);
        for (index, factor) in self.factors[..n].iter_mut().enumerate() {
            let column = columns.start + index;
            *factor = times(&panel.v[column], &panel.scales[column / group]);
        }
        let own = inputs.metric.rows(columns.clone()).columns(columns.clone());
        product(&mut self.products[..n], own, &self.factors[..n]);
        inputs.level.vectorize(FitBlock {
            inputs,
            columns,
            panel,
            gradients: &mut self.local[..n],
            products: &self.products[..n],
            directions: &self.factors[..n],
        });
    }
}

/// Steps for scale, minimum and codes of one group.
struct GroupSteps<'a> {
    inputs: &'a DescentInputs<'a>,
    codes: &'a NearestCodes,
    columns: Range<usize>,
    panel: &'a mut Panel,
    gradients: &'a mut [Lane],
    /// `H_gg v`, for types with scales of groups.
    products: &'a [Lane],
}

impl VectorLoop for GroupSteps<'_> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        if let Some((lowest, highest)) = self.inputs.form.scales {
            self.step_scale(f32::from(lowest), f32::from(highest));
        }
        if let Min::Groups { highest } = self.inputs.form.min {
            self.step_min(f32::from(highest));
        }
        self.step_codes();
    }
}

impl GroupSteps<'_> {
    /// Steps the scale by `δ = v·G / (d · v·H_gg·v)`, rounded: the parabola is lowest at the integer nearest to its
    /// apex.
    #[inline(always)]
    fn step_scale(&mut self, lowest: f32, highest: f32) {
        let form = self.inputs.form;
        let (block, group) = (self.columns.start / form.n_elems(), self.columns.start / form.group);
        let values = &self.panel.v[self.columns.clone()];
        let (mut slope, mut bend) = (ZERO, ZERO);
        for ((value, gradient), product) in values.iter().zip(&*self.gradients).zip(self.products) {
            add_product(&mut slope, value, gradient);
            add_product(&mut bend, value, product);
        }
        let d = &self.panel.d[block];
        let mut change = ZERO;
        for r in 0..LANES {
            let bend = d[r] * bend[r];
            // Bend and scale have the same sign if the step makes sense; 0 and NaN have none.
            let is_sound = bend * d[r] > 0.0;
            let apex = if is_sound { slope[r] / bend } else { 0.0 };
            let old = self.panel.scales[group][r];
            let new = limit(round(limit(old + apex, -1024.0, 1024.0)), lowest, highest);
            let new = if is_sound { new } else { old };
            self.panel.scales[group][r] = new;
            change[r] = (new - old) * d[r];
        }
        for index in 0..self.gradients.len() {
            let column = self.columns.start + index;
            take_product(&mut self.panel.e[column], &change, &self.panel.v[column]);
            take_product(&mut self.gradients[index], &change, &self.products[index]);
        }
    }

    /// Steps the minimum, whose direction is minus one in all columns.
    #[inline(always)]
    fn step_min(&mut self, highest: f32) {
        let form = self.inputs.form;
        let (block, group) = (self.columns.start / form.n_elems(), self.columns.start / form.group);
        let sums = &self.inputs.sums.columns[self.columns.clone()];
        let total: f32 = sums.iter().sum();
        let mut slope = ZERO;
        for gradient in &*self.gradients {
            add_scaled(&mut slope, gradient, 1.0);
        }
        let d_min = &self.panel.d_min[block];
        let mut change = ZERO;
        for r in 0..LANES {
            let bend = d_min[r] * total;
            let is_sound = bend * d_min[r] > 0.0;
            let apex = if is_sound { -slope[r] / bend } else { 0.0 };
            let old = self.panel.mins[group][r];
            let new = limit(round(limit(old + apex, -1024.0, 1024.0)), 0.0, highest);
            let new = if is_sound { new } else { old };
            self.panel.mins[group][r] = new;
            change[r] = (new - old) * d_min[r];
        }
        for (index, sum) in sums.iter().enumerate() {
            add_scaled(&mut self.panel.e[self.columns.start + index], &change, 1.0);
            add_scaled(&mut self.gradients[index], &change, *sum);
        }
    }

    /// Sets each code to the lowest point of its element's parabola.
    #[inline(always)]
    fn step_codes(&mut self) {
        let (form, n) = (self.inputs.form, self.columns.len());
        let (block, group) = (self.columns.start / form.n_elems(), self.columns.start / form.group);
        let step = times(&self.panel.d[block], &self.panel.scales[group]);
        let off = times(&self.panel.d_min[block], &self.panel.mins[group]);
        for index in 0..n {
            let column = self.columns.start + index;
            let row = self.inputs.metric.row(column, self.columns.clone());
            let inverse = 1.0 / row[index];
            let (w, error) = (&self.panel.w[column], &mut self.panel.e[column]);
            let (own, later) = self.gradients[index..].split_at_mut(1);
            let mut target = *w;
            for r in 0..LANES {
                target[r] = (w[r] - error[r]) + own[0][r] * inverse;
            }
            let value = self.codes.nearest_values(&target, &step, &off);
            let new = errors(w, &value, &step, &off);
            let mut change = new;
            for r in 0..LANES {
                change[r] -= error[r];
            }
            *error = new;
            self.panel.v[column] = value;
            for (gradient, factor) in later.iter_mut().zip(&row[index + 1..]) {
                add_scaled(gradient, &change, *factor);
            }
        }
    }
}

/// Least squares fit of a block's scales.
struct FitBlock<'a> {
    inputs: &'a DescentInputs<'a>,
    columns: Range<usize>,
    panel: &'a mut Panel,
    gradients: &'a mut [Lane],
    /// Product of `H_bb` with the directions.
    products: &'a [Lane],
    /// Derivative of the elements with respect to `d`: scale times value.
    directions: &'a [Lane],
}

/// Terms of a parabola in two unknowns: `xᵀ A x - 2 bᵀ x`.
struct Parabola {
    a11: Lane,
    a12: Lane,
    a22: Lane,
    b1: Lane,
    b2: Lane,
}

impl VectorLoop for FitBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let form = self.inputs.form;
        let block = self.columns.start / form.n_elems();
        let parabola = self.parabola(block);
        let has_min = form.min != Min::None;
        let (mut d_change, mut min_change) = (ZERO, ZERO);
        for r in 0..LANES {
            let (d, d_min) = (self.panel.d[block][r], self.panel.d_min[block][r]);
            let (new, new_min) = if d == 0.0 { (d, d_min) } else { parabola.best(r, has_min, d, d_min) };
            (d_change[r], min_change[r]) = (new - d, new_min - d_min);
            (self.panel.d[block][r], self.panel.d_min[block][r]) = (new, new_min);
        }
        for (index, direction) in self.directions.iter().enumerate() {
            let column = self.columns.start + index;
            take_product(&mut self.panel.e[column], &d_change, direction);
            if has_min {
                add_product(&mut self.panel.e[column], &min_change, &self.panel.mins[column / form.group]);
            }
            if form.scales.is_none() {
                // Codes of this block follow later. Its one minimum is 1.
                take_product(&mut self.gradients[index], &d_change, &self.products[index]);
                if has_min {
                    add_scaled(&mut self.gradients[index], &min_change, self.inputs.sums.columns[column]);
                }
            }
        }
    }
}

impl FitBlock<'_> {
    #[inline(always)]
    fn parabola(&self, block: usize) -> Parabola {
        let form = self.inputs.form;
        let mut p = Parabola { a11: ZERO, a12: ZERO, a22: ZERO, b1: ZERO, b2: ZERO };
        for ((direction, gradient), product) in
            self.directions.iter().zip(&*self.gradients).zip(self.products)
        {
            add_product(&mut p.b1, direction, gradient);
            add_product(&mut p.a11, direction, product);
        }
        if form.min == Min::None {
            return p;
        }
        let n_groups = form.n_groups();
        let mins = &self.panel.mins[block * n_groups..][..n_groups];
        let parts = self.gradients.chunks(form.group).zip(self.products.chunks(form.group));
        for ((gradients, products), min) in parts.zip(mins) {
            let (mut gradient, mut product) = (ZERO, ZERO);
            for (a, b) in gradients.iter().zip(products) {
                add_scaled(&mut gradient, a, 1.0);
                add_scaled(&mut product, b, 1.0);
            }
            take_product(&mut p.b2, min, &gradient);
            take_product(&mut p.a12, min, &product);
        }
        let pairs = &self.inputs.sums.pairs[block * n_groups * n_groups..][..n_groups * n_groups];
        let mut sums = [ZERO; MAX_GROUPS];
        for ((min, sum), factors) in mins.iter().zip(&mut sums).zip(pairs.chunks(n_groups)) {
            for (other, factor) in mins.iter().zip(factors) {
                add_scaled(sum, other, *factor);
            }
            add_product(&mut p.a22, min, sum);
        }
        p
    }
}

impl Parabola {
    /// Returns the pair of F16 numbers near the apex with the lowest value: both changed, only the first, or none.
    fn best(&self, r: usize, has_min: bool, d: f32, d_min: f32) -> (f32, f32) {
        let terms = [self.a11[r], self.a12[r], self.a22[r], self.b1[r], self.b2[r]].map(f64::from);
        let [a11, a12, a22, b1, b2] = terms;
        let mut best = (d, d_min);
        let mut most = 0.0;
        let mut consider = |x: f64, y: f64| {
            let (new, new_min) = (rounded(f64::from(d) + x), rounded(f64::from(d_min) + y));
            let (x, y) = (f64::from(new) - f64::from(d), f64::from(new_min) - f64::from(d_min));
            let gain = 2.0 * (b1 * x + b2 * y) - (a11 * x * x + 2.0 * a12 * x * y + a22 * y * y);
            if gain > most && new.is_finite() && new_min.is_finite() {
                (most, best) = (gain, (new, new_min));
            }
        };
        if a11 > 0.0 {
            consider(b1 / a11, 0.0);
        }
        let det = a11 * a22 - a12 * a12;
        // Below this limit the terms, which are sums in F32, do not determine the direction.
        if has_min && det > 1e-5 * a11 * a22 {
            consider((b1 * a22 - b2 * a12) / det, (b2 * a11 - b1 * a12) / det);
        }
        best
    }
}

/// Rounds to the nearest F16 number.
pub(crate) fn rounded(x: f64) -> f32 {
    f16_to_f32(f32_to_f16(x as f32))
}
