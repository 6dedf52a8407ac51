//! States of linear attention and delta rules, some columns at a time. Every rule here treats each column of a state
//! separately. Some columns therefore process many tokens while they are in the L1 cache, and sums over the rows stay
//! in registers.

#![expect(clippy::inline_always, reason = "the loops must be compiled inside the level's function")]

use std::ops::Range;

use crate::exec::matmul::{MatrixTile, MatrixView};
use gguf_core::simd::{SimdLevel, VectorLoop};

/// Number of columns that are processed together: two of the widest vectors.
const WIDTH: usize = 32;
/// Number of tokens that some columns process before the next columns.
pub(crate) const TOKENS: usize = 32;

/// One row of some columns.
pub(crate) type Columns = [f32; WIDTH];

/// Update of some columns of a state by tokens, and the values that the tokens read from them.
pub(crate) trait StateRule {
    /// Processes the values of tokens, one after another; `state` has a row per key. Must be inlined.
    fn run(&self, state: &mut [Columns], values: &[Columns], outs: &mut [Columns]);
}

/// Rule applied to some columns.
struct RuleLoop<'a, R> {
    rule: &'a R,
    state: &'a mut [Columns],
    values: &'a [Columns],
    outs: &'a mut [Columns],
}

impl<R: StateRule> VectorLoop for RuleLoop<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.rule.run(self.state, self.values, self.outs);
    }
}

/// State of a head, `[n_rows, n_columns]`.
pub(crate) struct HeadState<'a> {
    /// Groups of columns, one after another.
    groups: &'a mut [Columns],
    n_rows: usize,
    n_columns: usize,
}

pub(crate) fn state_floats(n_rows: usize, n_columns: usize) -> usize {
    n_columns.next_multiple_of(WIDTH) * n_rows
}

/// Iterates over ranges of tokens that are processed together.
pub(crate) fn token_blocks(tokens: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = tokens.end;
    tokens.step_by(TOKENS).map(move |first| first..(first + TOKENS).min(end))
}

/// Returns some columns of some rows of `[n_tokens, stride]`.
pub(crate) fn column_view<'a>(
    x: &'a [f32],
    rows: &Range<usize>,
    columns: Range<usize>,
    stride: usize,
) -> MatrixView<'a> {
    MatrixView::new(&x[rows.start * stride + columns.start..], rows.len(), columns.len(), stride)
}

impl<'a> HeadState<'a> {
    /// Returns the state in a buffer of [`state_floats`].
    pub(crate) fn new(buffer: &'a mut [f32], n_rows: usize, n_columns: usize) -> Self {
        Self { groups: buffer.as_chunks_mut().0, n_rows, n_columns }
    }

    /// Processes at most [`TOKENS`] tokens: their values and the outputs are `[n, n_columns]`.
    pub(crate) fn take_in(
        &mut self,
        level: SimdLevel,
        rule: &impl StateRule,
        values: MatrixView<'_>,
        out: &mut MatrixTile<'_>,
    ) {
        let n = values.n_rows();
        let (mut own, mut read) = ([[0.0; WIDTH]; TOKENS], [[0.0; WIDTH]; TOKENS]);
        for (group, state) in self.groups.chunks_exact_mut(self.n_rows.max(1)).enumerate() {
            let columns = group * WIDTH..((group + 1) * WIDTH).min(self.n_columns);
            for (t, own) in own[..n].iter_mut().enumerate() {
                own[..columns.len()].copy_from_slice(&values.row(t)[columns.clone()]);
            }
            level.vectorize(RuleLoop { rule, state, values: &own[..n], outs: &mut read[..n] });
            for (t, read) in read[..n].iter().enumerate() {
                out.row_mut(t)[columns.clone()].copy_from_slice(&read[..columns.len()]);
            }
        }
    }
}

/// Linear attention with decay: `S ← diag(w) S + k vᵀ`, `o = Sᵀ q`. All inputs are `[n_tokens, n_rows]`.
pub(crate) struct LinearRule<'a> {
    pub(crate) decay: MatrixView<'a>,
    pub(crate) key: MatrixView<'a>,
    pub(crate) query: MatrixView<'a>,
}

impl StateRule for LinearRule<'_> {
    #[inline(always)]
    fn run(&self, state: &mut [Columns], values: &[Columns], outs: &mut [Columns]) {
        for (t, (v, out)) in values.iter().zip(outs).enumerate() {
            let mut y = [0.0; WIDTH];
            let rows = state.iter_mut().zip(self.decay.row(t)).zip(self.key.row(t)).zip(self.query.row(t));
            for (((s, &w), &k), &q) in rows {
                for c in 0..WIDTH {
                    let new = s[c] * w + k * v[c];
                    y[c] += q * new;
                    s[c] = new;
                }
            }
            *out = y;
        }
    }
}

/// RWKV 6: `o = Sᵀ r + (u · k · r) v`, then `S ← diag(w) S + k vᵀ`. All inputs but `first` are `[n_tokens, n_rows]`.
pub(crate) struct ReadFirstRule<'a> {
    pub(crate) decay: MatrixView<'a>,
    /// Factor `u` of the token's own product.
    pub(crate) first: &'a [f32],
    pub(crate) key: MatrixView<'a>,
    pub(crate) receptance: MatrixView<'a>,
}

impl StateRule for ReadFirstRule<'_> {
    #[inline(always)]
    fn run(&self, state: &mut [Columns], values: &[Columns], outs: &mut [Columns]) {
        for (t, (v, out)) in values.iter().zip(outs).enumerate() {
            let mut y = [0.0; WIDTH];
            let rows = state.iter_mut().zip(self.decay.row(t)).zip(self.first).zip(self.key.row(t));
            for ((((s, &w), &u), &k), &r) in rows.zip(self.receptance.row(t)) {
                for c in 0..WIDTH {
                    let kv = k * v[c];
                    y[c] += r * (u * kv + s[c]);
                    s[c] = s[c] * w + kv;
                }
            }
            *out = y;
        }
    }
}

/// Gated delta rule: `S ← diag(w) S`, `d = β (v - Sᵀ k)`, `S ← S + k dᵀ`, `o = Sᵀ q`. All inputs but `beta` are
/// `[n_tokens, n_rows]`.
pub(crate) struct DeltaRule<'a> {
    pub(crate) decay: MatrixView<'a>,
    pub(crate) beta: &'a [f32],
    pub(crate) key: MatrixView<'a>,
    pub(crate) query: MatrixView<'a>,
}

impl StateRule for DeltaRule<'_> {
    #[inline(always)]
    fn run(&self, state: &mut [Columns], values: &[Columns], outs: &mut [Columns]) {
        let n = values.len();
        let mut recalled = [0.0; WIDTH];
        for ((s, &w), &k) in state.iter_mut().zip(self.decay.row(0)).zip(self.key.row(0)) {
            for c in 0..WIDTH {
                s[c] *= w;
                recalled[c] += s[c] * k;
            }
        }
        for (t, (v, out)) in values.iter().zip(outs).enumerate() {
            let mut d = [0.0; WIDTH];
            for c in 0..WIDTH {
                d[c] = self.beta[t] * (v[c] - recalled[c]);
            }
            let mut y = [0.0; WIDTH];
            let rows = state.iter_mut().zip(self.key.row(t)).zip(self.query.row(t));
            if t + 1 < n {
                // One pass over the state writes this token and recalls for the next.
                let ahead = self.decay.row(t + 1).iter().zip(self.key.row(t + 1));
                let mut next = [0.0; WIDTH];
                for (((s, &k), &q), (&w, &next_k)) in rows.zip(ahead) {
                    for c in 0..WIDTH {
                        let new = s[c] + k * d[c];
                        y[c] += q * new;
                        let new = new * w;
                        next[c] += new * next_k;
                        s[c] = new;
                    }
                }
                recalled = next;
            } else {
                for ((s, &k), &q) in rows {
                    for c in 0..WIDTH {
                        s[c] += k * d[c];
                        y[c] += q * s[c];
                    }
                }
            }
            *out = y;
        }
    }
}

/// RWKV 7: `o = Sᵀ r` after `S ← diag(w) S + k vᵀ - l (Sᵀ κ)ᵀ`. All inputs are `[n_tokens, n_rows]`.
pub(crate) struct ReplaceRule<'a> {
    pub(crate) decay: MatrixView<'a>,
    pub(crate) key: MatrixView<'a>,
    /// Direction `κ` that is recalled and removed.
    pub(crate) removed: MatrixView<'a>,
    /// Factors `l` of the removed values.
    pub(crate) lost: MatrixView<'a>,
    pub(crate) receptance: MatrixView<'a>,
}

impl StateRule for ReplaceRule<'_> {
    #[inline(always)]
    fn run(&self, state: &mut [Columns], values: &[Columns], outs: &mut [Columns]) {
        let n = values.len();
        let mut recalled = [0.0; WIDTH];
        for (s, &kappa) in state.iter().zip(self.removed.row(0)) {
            for c in 0..WIDTH {
                recalled[c] += s[c] * kappa;
            }
        }
        for (t, (v, out)) in values.iter().zip(outs).enumerate() {
            let (mut y, mut next) = ([0.0; WIDTH], [0.0; WIDTH]);
            let rows = state.iter_mut().zip(self.decay.row(t)).zip(self.key.row(t)).zip(self.lost.row(t));
            // The values that the last token recalls for a next one are ignored.
            let ahead = self.removed.row((t + 1).min(n - 1));
            for ((((s, &w), &k), &l), (&r, &kappa)) in rows.zip(self.receptance.row(t).iter().zip(ahead)) {
                for c in 0..WIDTH {
                    let new = s[c] * w + k * v[c] - recalled[c] * l;
                    y[c] += r * new;
                    next[c] += new * kappa;
                    s[c] = new;
                }
            }
            recalled = next;
            *out = y;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::noise::Noise;

    const ROWS: usize = 5;
    const COLUMNS: usize = 45;
    const N: usize = 40;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        Noise::new(seed as u64).floats(n).into_iter().map(|x| 0.1 + 0.5 * x).collect()
    }

    /// Checks a rule over all tokens against a formula from the state of a column, a value and a token to the output.
    fn check<'a, R: StateRule>(
        inputs: &'a [Vec<f32>],
        rule: impl Fn(&[MatrixView<'a>], usize) -> R,
        formula: impl Fn(&mut [f64], f64, usize) -> f64,
    ) {
        let v = values(N * COLUMNS, 99);
        let run = |level| {
            let mut buffer = vec![0.0; state_floats(ROWS, COLUMNS)];
            let mut state = HeadState::new(&mut buffer, ROWS, COLUMNS);
            let mut out = vec![9.0; N * COLUMNS];
            let mut tile = MatrixTile::whole(&mut out, N, COLUMNS);
            for part in token_blocks(0..N) {
                let views: Vec<MatrixView<'a>> = inputs
                    .iter()
                    .map(|x| MatrixView::new(&x[part.start * ROWS..], part.len(), ROWS, ROWS))
                    .collect();
                let values = MatrixView::new(&v[part.start * COLUMNS..], part.len(), COLUMNS, COLUMNS);
                state.take_in(level, &rule(&views, part.start), values, &mut tile.rows_mut(part));
            }
            out
        };
        let out = run(SimdLevel::Scalar);
        for column in 0..COLUMNS {
            let mut state = vec![0.0; ROWS];
            for t in 0..N {
                let expected = formula(&mut state, f64::from(v[t * COLUMNS + column]), t);
                let found = f64::from(out[t * COLUMNS + column]);
                assert!((found - expected).abs() < 1e-5, "{t} {column}: {found} {expected}");
            }
        }
        for level in SimdLevel::available() {
            assert_eq!(run(level), out, "{level}");
        }
    }

    fn inputs<const K: usize>() -> [Vec<f32>; K] {
        std::array::from_fn(|seed| values(N * ROWS, seed))
    }

    #[test]
    fn a_linear_state_equals_the_formula() {
        let x = inputs::<3>();
        let at = |i: usize, t: usize, row: usize| f64::from(x[i][t * ROWS + row]);
        check(
            &x,
            |v, _| LinearRule { decay: v[0], key: v[1], query: v[2] },
            |state, v, t| {
                (0..ROWS)
                    .map(|row| {
                        state[row] = state[row] * at(0, t, row) + at(1, t, row) * v;
                        state[row] * at(2, t, row)
                    })
                    .sum()
            },
        );
    }

    #[test]
    fn a_state_that_is_read_first_equals_the_formula() {
        let (x, u) = (inputs::<3>(), values(ROWS, 7));
        let at = |i: usize, t: usize, row: usize| f64::from(x[i][t * ROWS + row]);
        check(
            &x,
            |v, _| ReadFirstRule { decay: v[0], first: &u, key: v[1], receptance: v[2] },
            |state, v, t| {
                (0..ROWS)
                    .map(|row| {
                        let kv = at(1, t, row) * v;
                        let y = at(2, t, row) * (f64::from(u[row]) * kv + state[row]);
                        state[row] = state[row] * at(0, t, row) + kv;
                        y
                    })
                    .sum()
            },
        );
    }

    #[test]
    fn a_delta_state_equals_the_formula() {
        let (x, beta) = (inputs::<3>(), values(N, 5));
        let at = |i: usize, t: usize, row: usize| f64::from(x[i][t * ROWS + row]);
        check(
            &x,
            |v, first| DeltaRule { decay: v[0], beta: &beta[first..], key: v[1], query: v[2] },
            |state, v, t| {
                let decayed: Vec<f64> = (0..ROWS).map(|row| state[row] * at(0, t, row)).collect();
                let recalled: f64 = (0..ROWS).map(|row| decayed[row] * at(1, t, row)).sum();
                let d = f64::from(beta[t]) * (v - recalled);
                for row in 0..ROWS {
                    state[row] = decayed[row] + at(1, t, row) * d;
                }
                (0..ROWS).map(|row| state[row] * at(2, t, row)).sum()
            },
        );
    }

    #[test]
    fn a_state_whose_keys_are_replaced_equals_the_formula() {
        let x = inputs::<5>();
        let at = |i: usize, t: usize, row: usize| f64::from(x[i][t * ROWS + row]);
        check(
            &x,
            |v, _| ReplaceRule { decay: v[0], key: v[1], removed: v[2], lost: v[3], receptance: v[4] },
            |state, v, t| {
                let recalled: f64 = (0..ROWS).map(|row| state[row] * at(2, t, row)).sum();
                for (row, s) in state.iter_mut().enumerate() {
                    *s = *s * at(0, t, row) + at(1, t, row) * v - at(3, t, row) * recalled;
                }
                (0..ROWS).map(|row| state[row] * at(4, t, row)).sum()
            },
        );
    }
}
