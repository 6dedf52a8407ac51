//! Search for the rows of a damaged tensor in the baseline.

use rayon::prelude::*;

use crate::weights::cause::Cause;
use crate::weights::diagnosis::DamagedTensor;
use crate::weights::tensor_reader::TensorReader;
use gguf_engine::EngineError;

/// Largest number of rows that are searched for, and of values in them.
const ROWS: u64 = 24;
const ELEMS: u64 = 4 << 20;
/// Number of the baseline's values that are decoded at a time.
const CHUNK_ELEMS: u64 = 64 << 10;
/// Share of the rows that must agree on a cause.
const AGREE: f64 = 0.8;
/// Number of the baseline's columns that are compared with rows.
const TRIED: usize = 4;
/// Largest shift in elements that is searched for.
const REACH: usize = 2048;

/// Sample of rows of the damaged tensor, normalized.
pub(super) struct RowSample {
    rows: Vec<u64>,
    n_cols: usize,
    values: Vec<f32>,
    /// Cosine from which two rows count as equal.
    same: f32,
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (a, rest_a) = a.as_chunks::<8>();
    let (b, rest_b) = b.as_chunks::<8>();
    for (x, y) in a.iter().zip(b) {
        for (lane, (x, y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane += x * y;
        }
    }
    lanes.iter().sum::<f32>() + rest_a.iter().zip(rest_b).map(|(x, y)| x * y).sum::<f32>()
}

/// Scales rows to length 1; rows of zeros stay zeros.
fn normalize(values: &mut [f32], n_cols: usize) {
    for row in values.chunks_mut(n_cols.max(1)) {
        let norm = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        if norm > 0.0 && norm.is_finite() {
            for x in row.iter_mut() {
                *x = (f64::from(*x) / norm) as f32;
            }
        } else {
            row.fill(0.0);
        }
    }
}

impl RowSample {
    /// Reads the bad rows, or evenly spaced ones if no row is bad or more than a quarter are.
    pub(super) fn read(damaged: &DamagedTensor<'_>) -> Result<Self, EngineError> {
        let coded = &damaged.comparison.coded;
        let (n_rows, n_cols) = (coded.n_rows(), coded.n_cols()?);
        let bad = &damaged.tally.bad_rows;
        let limit = ROWS.min(ELEMS / (n_cols as u64).max(1)).max(1);
        let mut rows: Vec<u64> = if bad.count > 0 && bad.count * 4 <= n_rows {
            bad.first.iter().map(|row| row.row).collect()
        } else {
            // An odd step, so that no period of a layout is hidden.
            let step = (n_rows / limit).max(1) | 1;
            (0..limit).map(|at| at * step + at % 3).filter(|&row| row < n_rows).collect()
        };
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let mut values = Vec::new();
        let (mut bytes, mut row) = (Vec::new(), Vec::new());
        for &at in &rows {
            coded.floats(at, 1, &mut bytes, &mut row)?;
            values.extend_from_slice(&row);
        }
        normalize(&mut values, n_cols);
        let explained = 1.0 - 4.0 * damaged.own_error().powi(2);
        // Short rows are alike by chance.
        let floor = if n_cols < 64 { 0.95 } else { 0.5 };
        Ok(Self { rows, n_cols, values, same: explained.clamp(floor, 0.995) as f32 })
    }

    fn row(&self, at: usize) -> &[f32] {
        self.values.get(at * self.n_cols..(at + 1) * self.n_cols).unwrap_or_default()
    }

    /// Searches for the values in another tensor, in other rows, in columns, or shifted by some elements.
    pub(super) fn elsewhere(&self, damaged: &DamagedTensor<'_>) -> Result<Option<Cause>, EngineError> {
        let reference = &damaged.comparison.reference;
        let own = self.mean_cosine(reference)?;
        let mut best: Option<(f32, &TensorReader<'_>)> = None;
        for other in &damaged.others {
            let cosine = self.mean_cosine(other)?;
            // Norms of neighbouring layers are much alike: the remaining distance must halve at least.
            if cosine > best.map_or(own + ((1.0 - own) / 2.0).min(0.01), |(best, _)| best) {
                best = Some((cosine, other));
            }
        }
        if let Some((cosine, other)) = best
            && cosine >= self.same
            && self.rows.len() as u64 >= damaged.comparison.coded.n_rows().min(4)
        {
            return Ok(Some(Cause::Holds { tensor: other.meta().name.clone() }));
        }
        if let Some(cause) = self.moved(reference, damaged)? {
            return Ok(Some(cause));
        }
        if own >= self.same {
            return Ok(None);
        }
        if self.is_transposed(reference)? {
            return Ok(Some(Cause::Transposed));
        }
        Ok(self.shifted(reference)?.map(|by| Cause::ElementsShifted { by }))
    }

    /// Computes the mean cosine with the rows of the same indices.
    fn mean_cosine(&self, reader: &TensorReader<'_>) -> Result<f32, EngineError> {
        let (mut bytes, mut row) = (Vec::new(), Vec::new());
        let mut sum = 0.0;
        for (at, &number) in self.rows.iter().enumerate() {
            reader.floats(number, 1, &mut bytes, &mut row)?;
            normalize(&mut row, self.n_cols);
            sum += dot(self.row(at), &row);
        }
        Ok(sum / self.rows.len().max(1) as f32)
    }

    /// Finds for each row the most similar row of the baseline, with the cosine.
    fn nearest(&self, reader: &TensorReader<'_>) -> Result<Vec<(f32, u64)>, EngineError> {
        let n_rows = reader.n_rows();
        let step = (CHUNK_ELEMS / (self.n_cols as u64).max(1)).max(1);
        let nothing = || vec![(f32::NEG_INFINITY, u64::MAX); self.rows.len()];
        let better = |a: Vec<(f32, u64)>, b: Vec<(f32, u64)>| {
            // The first of equal ones, so that the result does not depend on threads.
            let pick =
                |(a, b): ((f32, u64), (f32, u64))| if b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) { b } else { a };
            a.into_iter().zip(b).map(pick).collect()
        };
        (0..n_rows.div_ceil(step))
            .into_par_iter()
            .map_init(
                || (Vec::new(), Vec::new()),
                |(bytes, floats), chunk| {
                    let first = chunk * step;
                    reader.floats(first, step.min(n_rows - first), bytes, floats)?;
                    normalize(floats, self.n_cols);
                    let mut best = nothing();
                    for (row, values) in (first..).zip(floats.chunks(self.n_cols.max(1))) {
                        for (at, best) in best.iter_mut().enumerate() {
                            let cosine = dot(self.row(at), values);
                            if cosine > best.0 {
                                *best = (cosine, row);
                            }
                        }
                    }
                    Ok(best)
                },
            )
            .try_reduce(nothing, |a, b| Ok(better(a, b)))
    }

    /// Finds the baseline rows that the sampled rows hold, if they are at other positions.
    fn moved(
        &self,
        reader: &TensorReader<'_>,
        damaged: &DamagedTensor<'_>,
    ) -> Result<Option<Cause>, EngineError> {
        if reader.n_rows() < 2 {
            return Ok(None);
        }
        let nearest = self.nearest(reader)?;
        let found: Vec<(u64, u64)> = self
            .rows
            .iter()
            .zip(&nearest)
            .filter(|(_, (cosine, _))| *cosine >= self.same)
            .map(|(&at, &(_, from))| (at, from))
            .collect();
        let moved: Vec<(u64, u64)> = found.iter().copied().filter(|(at, from)| at != from).collect();
        if (found.len() as f64) < AGREE * self.rows.len() as f64 || moved.is_empty() {
            return Ok(None);
        }
        if moved.len() >= 3
            && let Some(cause) = rotary(&found, reader.n_rows(), damaged.n_heads)
        {
            return Ok(Some(cause));
        }
        let by = |&(at, from): &(u64, u64)| at as i64 - from as i64;
        // The middle one, not the first: rows at the ends may come from the other end.
        let shift = moved.get(moved.len() / 2).map_or(0, by);
        let n_alike = found.iter().filter(|pair| by(pair) == shift).count();
        if moved.len() >= 3 && n_alike as f64 >= AGREE * found.len() as f64 {
            return Ok(Some(Cause::RowsShifted { by: shift }));
        }
        Ok(Some(Cause::RowsMoved { moved }))
    }

    /// Returns true if the rows are columns of the baseline.
    fn is_transposed(&self, reader: &TensorReader<'_>) -> Result<bool, EngineError> {
        let n = reader.n_rows();
        if n != self.n_cols as u64 || !(2..=CHUNK_ELEMS).contains(&n) {
            return Ok(false);
        }
        let tried: Vec<(usize, usize)> =
            self.rows.iter().take(TRIED).enumerate().map(|(at, &r)| (at, r as usize)).collect();
        let mut columns = vec![Vec::with_capacity(self.n_cols); tried.len()];
        let (mut bytes, mut row) = (Vec::new(), Vec::new());
        for at in 0..n {
            reader.floats(at, 1, &mut bytes, &mut row)?;
            for (column, (_, number)) in columns.iter_mut().zip(&tried) {
                column.push(row.get(*number).copied().unwrap_or(0.0));
            }
        }
        Ok(tried.iter().zip(&mut columns).all(|((at, _), column)| {
            normalize(column, self.n_cols);
            dot(self.row(*at), column) >= self.same
        }))
    }

    /// Finds the number of elements by which a sampled row is shifted.
    fn shifted(&self, reader: &TensorReader<'_>) -> Result<Option<i64>, EngineError> {
        // A stretch long enough to be distinctive, and short enough to stay inside the window.
        let Some(&number) = self.rows.iter().find(|&&row| row > 0).or(self.rows.first()) else {
            return Ok(None);
        };
        let at = self.rows.iter().position(|&row| row == number).unwrap_or(0);
        let around = (REACH / self.n_cols.max(1)) as u64 + 1;
        let first = number.saturating_sub(around);
        let n = (2 * around + 1).min(reader.n_rows() - first);
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        reader.floats(first, n, &mut bytes, &mut values)?;
        let len = self.n_cols.min(1024);
        let mut stretch = self.row(at).get(..len).unwrap_or_default().to_vec();
        normalize(&mut stretch, len);
        let home = usize::try_from(number - first).unwrap_or(0) * self.n_cols;
        let mut best = (f32::NEG_INFINITY, 0i64);
        for start in home.saturating_sub(REACH)..=(home + REACH).min(values.len().saturating_sub(len)) {
            let Some(window) = values.get(start..start + len) else { break };
            let norm = dot(window, window).sqrt();
            let cosine = if norm > 0.0 { dot(&stretch, window) / norm } else { 0.0 };
            if cosine > best.0 {
                best = (cosine, home as i64 - start as i64);
            }
        }
        Ok((len >= 32 && best.0 >= self.same && best.1 != 0).then_some(best.1))
    }
}

/// Detects rows in the other order of rotary positions: within each head, the first halves of all pairs before the
/// second halves, or pair by pair.
fn rotary(found: &[(u64, u64)], n_rows: u64, n_heads: Option<u64>) -> Option<Cause> {
    let told = n_heads.filter(|&n| n > 0 && n_rows.is_multiple_of(n)).map(|n| n_rows / n);
    let tried =
        [64, 128, 32, 96, 80, 256, 16, 8, 192].into_iter().filter(|size| n_rows.is_multiple_of(*size));
    for size in told.into_iter().chain(tried).filter(|size| size.is_multiple_of(2) && *size > 2) {
        let half = size / 2;
        let to_pairs = |row: u64| row / size * size + row % size % half * 2 + row % size / half;
        let to_halves = |row: u64| row / size * size + row % size % 2 * half + row % size / 2;
        let share = |order: &dyn Fn(u64) -> u64| {
            found.iter().filter(|(at, from)| order(*at) == *from).count() as f64 / found.len() as f64
        };
        if share(&to_pairs) >= AGREE {
            return Some(Cause::RotaryOrder { head_rows: size, halves: true });
        }
        if share(&to_halves) >= AGREE {
            return Some(Cause::RotaryOrder { head_rows: size, halves: false });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_of_rotary_positions_are_told_apart() {
        let halves: Vec<(u64, u64)> =
            (0..64).map(|row| (row, row / 16 * 16 + row % 16 % 8 * 2 + row % 16 / 8)).collect();
        assert_eq!(rotary(&halves, 64, Some(4)), Some(Cause::RotaryOrder { head_rows: 16, halves: true }));
        let pairs: Vec<(u64, u64)> = halves.iter().map(|&(a, b)| (b, a)).collect();
        assert_eq!(rotary(&pairs, 64, Some(4)), Some(Cause::RotaryOrder { head_rows: 16, halves: false }));
        let same: Vec<(u64, u64)> = (0..64).map(|row| (row, (row + 1) % 64)).collect();
        assert_eq!(rotary(&same, 64, Some(4)), None);
    }
}
