//! Second moments of a layer's inputs, as collected.

use crate::SolveError;

/// Second moments `H = XᵀX / N` over the inputs `X` of a layer.
#[derive(Clone, Debug)]
pub struct SecondMoments {
    n_cols: usize,
    n_tokens: u64,
    values: Vec<f32>,
}

impl SecondMoments {
    /// Creates the moments of `n_tokens` inputs.
    ///
    /// # Shapes
    /// `values` is `[n_cols, n_cols]`; the part right of the diagonal is ignored and replaced by the mirror image of
    /// the part below.
    ///
    /// # Errors
    /// [`SolveError`]: another length, a value that is not finite, a negative diagonal entry.
    pub fn new(n_cols: usize, n_tokens: u64, mut values: Vec<f32>) -> Result<Self, SolveError> {
        check_matrix("second moments", n_cols, n_cols, values.len())?;
        for row in 0..n_cols {
            let below = &values[row * n_cols..][..=row];
            if let Some(column) = gguf_blocks::first_non_finite(below) {
                return Err(SolveError::NotFinite { what: "second moments", row, column });
            }
            if below[row] < 0.0 {
                return Err(SolveError::Diagonal { column: row, value: below[row] });
            }
        }
        mirror(n_cols, &mut values);
        Ok(Self { n_cols, n_tokens, values })
    }

    /// Returns the number of columns of the layer.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns the number of inputs.
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// Returns the whole matrix, `[n_cols, n_cols]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the mean square of each column, as in an importance matrix.
    pub fn diagonal(&self) -> Vec<f32> {
        self.values.iter().step_by(self.n_cols + 1).copied().collect()
    }

    /// Blends the moments of an expert with those of all experts of the layer. The expert's own moments have the weight
    /// `n / (n + n_cols)` for `n` tokens. An expert without tokens gets the shared moments unchanged.
    ///
    /// # Errors
    /// [`SolveError::Length`] if the two do not have the same columns.
    pub fn drawn_towards(&self, shared: &Self) -> Result<Self, SolveError> {
        if self.n_cols != shared.n_cols {
            let (expected, found) = (self.n_cols, shared.n_cols);
            return Err(SolveError::Length { what: "columns of the shared moments", expected, found });
        }
        let own = (self.n_tokens as f64 / (self.n_tokens as f64 + self.n_cols as f64)) as f32;
        let pairs = self.values.iter().zip(&shared.values);
        let values = pairs.map(|(a, b)| if own == 0.0 { *b } else { own * a + (1.0 - own) * b }).collect();
        Ok(Self { n_cols: self.n_cols, n_tokens: self.n_tokens, values })
    }

    /// Returns `H + s · diag(H) + damping · mean(diag H) · I`.
    pub fn regularized(&self, shrinkage: f32, damping: f32) -> Vec<f32> {
        let mut values = self.values.clone();
        let mean = self.mean_square() * f64::from(damping);
        for entry in values.iter_mut().step_by(self.n_cols + 1) {
            *entry = (f64::from(*entry) * (1.0 + f64::from(shrinkage)) + mean) as f32;
        }
        values
    }

    fn mean_square(&self) -> f64 {
        let sum: f64 = self.values.iter().step_by(self.n_cols + 1).map(|value| f64::from(*value)).sum();
        sum / self.n_cols.max(1) as f64
    }
}

/// Checks the number of values of a matrix with at least one column.
pub(crate) fn check_matrix(
    what: &'static str,
    n_rows: usize,
    n_cols: usize,
    found: usize,
) -> Result<(), SolveError> {
    let expected = n_rows.checked_mul(n_cols).ok_or(SolveError::TooLarge { n_rows, n_cols })?;
    // Panels of F64 numbers must be addressable, too.
    expected.checked_mul(64).ok_or(SolveError::TooLarge { n_rows, n_cols })?;
    if n_cols == 0 || found != expected {
        return Err(SolveError::Length { what, expected, found });
    }
    Ok(())
}

/// Checks that an option is finite and not negative.
pub(crate) fn check_option(name: &'static str, value: f32) -> Result<(), SolveError> {
    if (0.0..f32::INFINITY).contains(&value) { Ok(()) } else { Err(SolveError::Option { name, value }) }
}

/// Copies the part below the diagonal to above it, tile by tile so that both stay in the cache.
pub(crate) fn mirror<T: Copy>(n: usize, values: &mut [T]) {
    const TILE: usize = 32;
    for top in (0..n).step_by(TILE) {
        for left in (0..=top).step_by(TILE) {
            for row in top..n.min(top + TILE) {
                for column in left..row.min(left + TILE) {
                    values[column * n + row] = values[row * n + column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_part_counts() {
        let n = 70;
        let values: Vec<f32> = (0..n * n).map(|i| if i / n >= i % n { i as f32 } else { f32::NAN }).collect();
        let moments = SecondMoments::new(n, 5, values).unwrap();
        for row in 0..n {
            for column in 0..n {
                let want = row.max(column) * n + row.min(column);
                assert_eq!(moments.values()[row * n + column], want as f32);
            }
        }
        assert_eq!(moments.diagonal()[69], (69 * 71) as f32);
    }

    #[test]
    fn bad_moments_are_refused_by_their_place() {
        let length = SolveError::Length { what: "second moments", expected: 4, found: 3 };
        assert_eq!(SecondMoments::new(2, 1, vec![1.0; 3]).unwrap_err(), length);
        assert!(SecondMoments::new(0, 1, Vec::new()).is_err());
        assert!(matches!(
            SecondMoments::new(usize::MAX / 2, 1, Vec::new()),
            Err(SolveError::TooLarge { .. })
        ));
        let bad = SecondMoments::new(2, 1, vec![1.0, 0.0, f32::NAN, 1.0]).unwrap_err();
        assert_eq!(bad, SolveError::NotFinite { what: "second moments", row: 1, column: 0 });
        let bad = SecondMoments::new(2, 1, vec![1.0, 0.0, 0.0, -1.0]).unwrap_err();
        assert_eq!(bad, SolveError::Diagonal { column: 1, value: -1.0 });
    }

    #[test]
    fn an_expert_without_tokens_has_the_shared_moments() {
        let own = SecondMoments::new(2, 0, vec![f32::MAX, 0.0, 0.0, 0.0]).unwrap();
        let shared = SecondMoments::new(2, 9, vec![3.0, 0.0, 1.0, 2.0]).unwrap();
        assert_eq!(own.drawn_towards(&shared).unwrap().values(), shared.values());
        let some = SecondMoments::new(2, 2, vec![1.0, 0.0, 0.0, 1.0]).unwrap();
        assert_eq!(some.drawn_towards(&shared).unwrap().values(), [2.0, 0.5, 0.5, 1.5]);
    }
}
