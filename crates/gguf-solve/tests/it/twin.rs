//! The formulas as published, in F64 and one number at a time.

use std::ops::Range;

use gguf_blocks::states::{BlockState, Min, StateForm};
use gguf_core::numeric::{f16_to_f32, f32_to_f16};

use crate::noise::Noise;
use crate::samples::{correlated, invert};

/// One row, solved by the formulas; every number in F64.
pub(crate) struct RowTwin<'a> {
    form: &'a StateForm,
    /// Matrix `H_r`, `[n, n]`.
    h: &'a [f64],
    w: &'a [f32],
    /// Numbers of the blocks; codes as values.
    d: Vec<f64>,
    d_min: Vec<f64>,
    scales: Vec<f64>,
    mins: Vec<f64>,
    values: Vec<f64>,
}

impl<'a> RowTwin<'a> {
    /// Loads scales and minima of the blocks.
    pub(crate) fn new(form: &'a StateForm, h: &'a [f64], w: &'a [f32], blocks: &[u8]) -> Self {
        let (mut d, mut d_min, mut scales, mut mins) = (vec![], vec![], vec![], vec![]);
        let sign = if form.min == Min::Added { -1.0 } else { 1.0 };
        for block in blocks.chunks(form.ty.block_bytes()) {
            let mut state = BlockState::ZERO;
            form.unpack(block, &mut state).unwrap();
            d.push(f64::from(f16_to_f32(state.d)));
            d_min.push(sign * f64::from(f16_to_f32(state.d_min)));
            scales.extend(state.scales[..form.n_groups()].iter().map(|scale| f64::from(*scale)));
            mins.extend(state.mins[..form.n_groups()].iter().map(|min| f64::from(*min)));
        }
        Self { form, h, w, d, d_min, scales, mins, values: vec![0.0; w.len()] }
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Computes `e H_r eᵀ`.
    pub(crate) fn objective(&self) -> f64 {
        (0..self.w.len()).map(|column| self.error(column) * self.gradient(column)).sum()
    }

    fn step(&self, column: usize) -> f64 {
        self.d[column / self.form.n_elems()] * self.scales[column / self.form.group]
    }

    fn off(&self, column: usize) -> f64 {
        self.d_min[column / self.form.n_elems()] * self.mins[column / self.form.group]
    }

    fn element(&self, column: usize) -> f64 {
        self.step(column) * self.values[column] - self.off(column)
    }

    fn error(&self, column: usize) -> f64 {
        f64::from(self.w[column]) - self.element(column)
    }

    fn gradient(&self, column: usize) -> f64 {
        let n = self.w.len();
        self.h[column * n..][..n].iter().enumerate().map(|(k, h)| h * self.error(k)).sum()
    }

    /// Computes `x H xᵀ` over some columns.
    fn bend(&self, columns: Range<usize>, x: impl Fn(usize) -> f64) -> f64 {
        let n = self.w.len();
        let row = |a: usize| columns.clone().map(|b| x(b) * self.h[a * n + b]).sum::<f64>();
        columns.clone().map(|a| x(a) * row(a)).sum()
    }

    fn nearest(&self, column: usize, target: f64) -> f64 {
        let value = |value: &i8| f64::from(*value);
        let distance = |value: f64| (self.step(column) * value - self.off(column) - target).abs();
        let values = self.form.values.iter().map(value);
        values.min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap()
    }

    pub(crate) fn round(&mut self, gptq: &GptqTwin) {
        let n = self.w.len();
        let order = &gptq.order;
        let mut current: Vec<f64> = order.iter().map(|column| f64::from(self.w[*column])).collect();
        for j in 0..n {
            self.values[order[j]] = self.nearest(order[j], current[j]);
            let error = (current[j] - self.element(order[j])) / gptq.upper[j * n + j];
            for k in j + 1..n {
                current[k] -= error * gptq.upper[j * n + k];
            }
        }
    }

    /// Runs one pass of descent.
    pub(crate) fn descend(&mut self) {
        let n = self.w.len();
        for block in 0..self.d.len() {
            let columns = block * self.form.n_elems()..(block + 1) * self.form.n_elems();
            if self.form.scales.is_none() {
                self.fit(block);
            }
            for first in columns.step_by(self.form.group) {
                let group = first..first + self.form.group;
                let at = first / self.form.group;
                let ones = |_: usize| 1.0;
                if let Some((lowest, highest)) = self.form.scales {
                    let slope: f64 = group.clone().map(|c| self.values[c] * self.gradient(c)).sum();
                    let bend = self.bend(group.clone(), |c| self.values[c]);
                    if self.d[block] != 0.0 && bend > 0.0 {
                        let moved = self.scales[at] + slope / (self.d[block] * bend);
                        self.scales[at] =
                            moved.round_ties_even().clamp(f64::from(lowest), f64::from(highest));
                    }
                }
                if let Min::Groups { highest } = self.form.min {
                    let slope: f64 = group.clone().map(|c| self.gradient(c)).sum();
                    let bend = self.bend(group.clone(), ones);
                    if self.d_min[block] != 0.0 {
                        let moved = self.mins[at] - slope / (self.d_min[block] * bend);
                        self.mins[at] = moved.round_ties_even().clamp(0.0, f64::from(highest));
                    }
                }
                for column in group {
                    let target = self.element(column) + self.gradient(column) / self.h[column * n + column];
                    self.values[column] = self.nearest(column, target);
                }
            }
            if self.form.scales.is_some() {
                self.fit(block);
            }
        }
    }

    /// Tries the candidates near the apex for `d` alone and for both scales, and takes the best.
    fn fit(&mut self, block: usize) {
        let (n, n_elems) = (self.w.len(), self.form.n_elems());
        let columns = block * n_elems..(block + 1) * n_elems;
        let x = |c: usize| self.scales[c / self.form.group] * self.values[c];
        let y = |c: usize| -self.mins[c / self.form.group];
        let (mut a11, mut a12, mut a22) = (0.0, 0.0, 0.0);
        for a in columns.clone() {
            for b in columns.clone() {
                let h = self.h[a * n + b];
                a11 += x(a) * x(b) * h;
                a12 += x(a) * y(b) * h;
                a22 += y(a) * y(b) * h;
            }
        }
        let b1: f64 = columns.clone().map(|c| x(c) * self.gradient(c)).sum();
        let b2: f64 = columns.map(|c| y(c) * self.gradient(c)).sum();
        let det = a11 * a22 - a12 * a12;
        let (d, d_min) = (self.d[block], self.d_min[block]);
        if d == 0.0 || a11 <= 0.0 {
            return;
        }
        let mut moves = vec![(0.0, 0.0), (b1 / a11, 0.0)];
        if self.form.min != Min::None && det > 1e-5 * a11 * a22 {
            moves.push(((b1 * a22 - b2 * a12) / det, (b2 * a11 - b1 * a12) / det));
        }
        let rounded = |x: f64| f64::from(f16_to_f32(f32_to_f16(x as f32)));
        let mut best = (f64::INFINITY, d, d_min);
        for (x, y) in moves {
            (self.d[block], self.d_min[block]) = (rounded(d + x), rounded(d_min + y));
            let objective = self.objective();
            if objective < best.0 {
                best = (objective, self.d[block], self.d_min[block]);
            }
        }
        (_, self.d[block], self.d_min[block]) = best;
    }
}

/// Upper Cholesky factor of the inverse of `H_r` in the order of rounding.
pub(crate) struct GptqTwin {
    order: Vec<usize>,
    upper: Vec<f64>,
}

impl GptqTwin {
    pub(crate) fn new(order: &[usize], h: &[f64]) -> Self {
        let n = order.len();
        let mut permuted: Vec<f64> = (0..n * n).map(|i| h[order[i / n] * n + order[i % n]]).collect();
        invert(n, &mut permuted);
        Self { order: order.to_vec(), upper: upper_factor(n, &permuted) }
    }
}

/// Computes the upper triangular `U` with `UᵀU` equal to the matrix.
fn upper_factor(n: usize, matrix: &[f64]) -> Vec<f64> {
    let mut upper = vec![0.0; n * n];
    for row in 0..n {
        for column in row..n {
            let dot: f64 = (0..row).map(|k| upper[k * n + row] * upper[k * n + column]).sum();
            let rest = matrix[row * n + column] - dot;
            upper[row * n + column] = if row == column { rest.sqrt() } else { rest / upper[row * n + row] };
        }
    }
    upper
}

/// Returns moments that are hard to solve with: equal columns, columns without input, magnitudes near the limits of
/// f32.
pub(crate) fn odd_moments(n: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut with_gaps = correlated(n, 400, 3);
    for i in 0..n * n {
        if i / n < 64 || i % n < 64 {
            with_gaps[i] = 0.0;
        }
    }
    let times = |factor: f32| correlated(n, 400, 3).iter().map(|value| value * factor).collect();
    let rank_1 = (0..n * n).map(|i| ((i / n % 7) * (i % n % 7)) as f32).collect();
    vec![
        ("constant", vec![1.0; n * n]),
        ("rank 1", rank_1),
        ("gaps", with_gaps),
        ("tiny", times(1e-20)),
        ("large", times(1e15)),
    ]
}

/// Returns rows that are hard to solve: zeros, one number, a part of zeros, one far-off weight, tiny ones, none
/// positive.
pub(crate) fn odd_rows(n: usize) -> Vec<f32> {
    let mut noise = Noise::new(4);
    let mut rows: Vec<f32> = (0..6 * n).map(|_| 0.02 * noise.normal()).collect();
    rows[..n].fill(0.0);
    rows[n..2 * n].fill(0.3);
    rows[2 * n..][..100].fill(0.0);
    rows[3 * n] = 1000.0;
    for (at, value) in rows.iter_mut().enumerate().skip(4 * n) {
        *value = if at < 5 * n { *value * 1e-7 } else { -value.abs() };
    }
    rows
}
