//! Cholesky factor of a matrix in F64, and solution of systems with it; products of blocks do most of the work.
//!
//! Blocks and bands depend only on the size of the matrix, so the bits do not depend on the number of threads.

use gguf_matmul::{MatrixTile, MatrixView, TileGrid, ordered_multiply, ordered_multiply_add};
use rayon::prelude::*;

use crate::moments::mirror;

/// Number of columns that are factored at a time.
const BLOCK: usize = 128;

/// Number of rows that one task updates.
const BAND: usize = 256;

/// Factorization `A = L Lᵀ`.
pub(crate) struct Cholesky {
    n: usize,
    /// Matrix `[n, n]`: `L` below and on the diagonal, `Lᵀ` above.
    values: Vec<f64>,
    /// Inverses of the blocks of `L` on the diagonal, `[BLOCK, BLOCK]` each; the last may be smaller.
    inverses: Vec<Vec<f64>>,
}

impl Cholesky {
    /// Factors a matrix, of which only the part on and below the diagonal is read.
    pub(crate) fn new(n: usize, mut values: Vec<f64>) -> Result<Self, usize> {
        let mut inverses = Vec::with_capacity(n.div_ceil(BLOCK));
        let mut transposed = Vec::new();
        for first in (0..n).step_by(BLOCK) {
            let last = n.min(first + BLOCK);
            let width = last - first;
            factor_block(n, first..last, &mut values)?;
            let inverse = inverse_of_block(n, first..last, &values);
            let (_, below) = values.split_at_mut(last * n);
            // L21 = A21 L11⁻ᵀ
            let transposed_block = transposed_block(width, &inverse);
            below.par_chunks_mut(BAND * n).for_each(|band| {
                let n_rows = band.len() / n;
                let copy: Vec<f64> = band.chunks(n).flat_map(|row| &row[first..last]).copied().collect();
                let grid = TileGrid::new(band, n, vec![0, n_rows], vec![first, last]);
                let (a, b) = (
                    MatrixView::new(&copy, n_rows, width, width),
                    MatrixView::new(&transposed_block, width, width, width),
                );
                ordered_multiply(&mut grid.take(0, 0), a, b, 1.0);
            });
            // A22 -= L21 L21ᵀ, on and below the diagonal.
            transpose_columns(n, first..last, below, &mut transposed);
            let rest = n - last;
            let columns = MatrixView::new(&transposed, width, rest, rest);
            below.par_chunks_mut(BAND * n).enumerate().for_each(|(index, band)| {
                let n_rows = band.len() / n;
                let end = index * BAND + n_rows;
                let copy: Vec<f64> = band.chunks(n).flat_map(|row| &row[first..last]).copied().collect();
                let rows = MatrixView::new(&copy, n_rows, width, width);
                let grid = TileGrid::new(band, n, vec![0, n_rows], vec![last, last + end]);
                ordered_multiply_add(&mut grid.take(0, 0), rows, columns.columns(0..end), -1.0);
            });
            inverses.push(inverse);
        }
        mirror(n, &mut values);
        Ok(Self { n, values, inverses })
    }

    /// Returns an entry of `L` on or below the diagonal.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.n + column]
    }

    /// Solves `A X = B` in place.
    ///
    /// # Shapes
    /// `b` is `[n, n_right]`, row by row.
    pub(crate) fn solve(&self, n_right: usize, b: &mut [f64]) {
        let n = self.n;
        let matrix = MatrixView::new(&self.values, n, n, n);
        let mut block = vec![0.0; BLOCK * n_right];
        let starts = || (0..n).step_by(BLOCK);
        for (first, inverse) in starts().zip(&self.inverses) {
            let last = n.min(first + BLOCK);
            let (before, rest) = b.split_at_mut(first * n_right);
            let part = &mut rest[..(last - first) * n_right];
            if first > 0 {
                let known = MatrixView::new(before, first, n_right, n_right);
                let factor = matrix.rows(first..last).columns(0..first);
                ordered_multiply_add(
                    &mut MatrixTile::whole(part, last - first, n_right),
                    factor,
                    known,
                    -1.0,
                );
            }
            apply_block(inverse, last - first, n_right, part, &mut block);
        }
        for (first, inverse) in starts().zip(&self.inverses).rev() {
            let last = n.min(first + BLOCK);
            let (rest, after) = b.split_at_mut(last * n_right);
            let part = &mut rest[first * n_right..];
            if last < n {
                let known = MatrixView::new(after, n - last, n_right, n_right);
                let factor = matrix.rows(first..last).columns(last..n);
                ordered_multiply_add(
                    &mut MatrixTile::whole(part, last - first, n_right),
                    factor,
                    known,
                    -1.0,
                );
            }
            apply_block(&transposed_block(last - first, inverse), last - first, n_right, part, &mut block);
        }
    }
}

fn apply_block(inverse: &[f64], width: usize, n_right: usize, part: &mut [f64], copy: &mut [f64]) {
    let copy = &mut copy[..width * n_right];
    copy.copy_from_slice(part);
    let (a, b) =
        (MatrixView::new(inverse, width, width, width), MatrixView::new(copy, width, n_right, n_right));
    ordered_multiply(&mut MatrixTile::whole(part, width, n_right), a, b, 1.0);
}

/// Factors a block on the diagonal.
fn factor_block(n: usize, range: std::ops::Range<usize>, values: &mut [f64]) -> Result<(), usize> {
    for row in range.clone() {
        for column in range.start..=row {
            let (a, b) =
                (&values[row * n..][range.start..column], &values[column * n..][range.start..column]);
            let dot: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            let rest = values[row * n + column] - dot;
            values[row * n + column] = if column < row {
                rest / values[column * n + column]
            } else if rest > 0.0 && rest.is_finite() {
                rest.sqrt()
            } else {
                return Err(row);
            };
        }
    }
    Ok(())
}

/// Returns the inverse of a lower triangle on the diagonal, `[width, width]`.
fn inverse_of_block(n: usize, range: std::ops::Range<usize>, values: &[f64]) -> Vec<f64> {
    let (first, width) = (range.start, range.len());
    let mut inverse = vec![0.0; width * width];
    for row in 0..width {
        let factors = &values[(first + row) * n + first..][..=row];
        let (before, rest) = inverse.split_at_mut(row * width);
        let out = &mut rest[..width];
        for (factor, known) in factors[..row].iter().zip(before.chunks(width)) {
            for (out, known) in out.iter_mut().zip(known) {
                *out -= factor * known;
            }
        }
        out[row] = 1.0;
        for out in &mut *out {
            *out /= factors[row];
        }
    }
    inverse
}

fn transposed_block(width: usize, values: &[f64]) -> Vec<f64> {
    (0..width * width).map(|i| values[i % width * width + i / width]).collect()
}

/// Copies some columns of rows of `n` as rows.
fn transpose_columns(n: usize, range: std::ops::Range<usize>, rows: &[f64], out: &mut Vec<f64>) {
    let n_rows = rows.len() / n;
    out.clear();
    out.resize(range.len() * n_rows, 0.0);
    for (at, row) in rows.chunks(n).enumerate() {
        for (index, value) in row[range.clone()].iter().enumerate() {
            out[index * n_rows + at] = *value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use crate::samples::correlated;

    fn widened(values: &[f32]) -> Vec<f64> {
        values.iter().map(|value| f64::from(*value)).collect()
    }

    #[test]
    fn the_factor_multiplies_to_the_matrix_and_solves_it() {
        for n in [1, 3, 127, 128, 129, 300] {
            let matrix = widened(&correlated(n, 2 * n + 5, 11));
            let factor = Cholesky::new(n, matrix.clone()).unwrap();
            for row in 0..n {
                for column in 0..=row {
                    let product: f64 = (0..=column).map(|k| factor.at(row, k) * factor.at(column, k)).sum();
                    assert!((product - matrix[row * n + column]).abs() < 1e-9, "{n}: {row}, {column}");
                }
            }
            let mut noise = Noise::new(5);
            let want: Vec<f64> = (0..2 * n).map(|_| f64::from(noise.normal())).collect();
            let mut b = vec![0.0; 2 * n];
            for row in 0..n {
                for k in 0..n {
                    for right in 0..2 {
                        b[2 * row + right] += matrix[row * n + k] * want[2 * k + right];
                    }
                }
            }
            factor.solve(2, &mut b);
            assert!(b.iter().zip(&want).all(|(found, want)| (found - want).abs() < 1e-6), "{n}");
        }
    }

    #[test]
    fn what_is_not_positive_definite_is_named_by_its_row() {
        let n = 200;
        let mut matrix = widened(&correlated(n, 3 * n, 3));
        matrix[150 * n + 150] = -1.0;
        assert_eq!(Cholesky::new(n, matrix.clone()).err(), Some(150));
        matrix[150 * n + 150] = f64::NAN;
        assert_eq!(Cholesky::new(n, matrix).err(), Some(150));
        assert_eq!(Cholesky::new(2, vec![0.0; 4]).err(), Some(0));
    }
}
