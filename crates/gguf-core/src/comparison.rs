//! Sums that compare values with the reference that they were made from. They stand here because this crate is optimized in
//! every build.

/// Sums over the elements of some values and of their reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ComparisonSums {
    /// Sum of the squares of the reference.
    pub reference: f64,
    /// Sum of the squares of the values.
    pub values: f64,
    /// Sum of the products of both.
    pub products: f64,
    /// Sum of the squares of the differences. (Computed from the other three it would suffer cancellation.)
    pub errors: f64,
}

/// Number of parallel partial sums, which the compiler turns into a vector loop.
const LANES: usize = 8;

impl ComparisonSums {
    /// Computes the sums over slices of equal length.
    pub fn of(values: &[f32], reference: &[f32]) -> Self {
        let mut lanes = [[0f64; LANES]; 4];
        let (values, rest) = values.as_chunks::<LANES>();
        let (reference, other) = reference.as_chunks::<LANES>();
        let mut step = |x: &[f32], y: &[f32]| {
            for (at, (&x, &y)) in x.iter().zip(y).enumerate() {
                let (x, y) = (f64::from(x), f64::from(y));
                lanes[0][at] += y * y;
                lanes[1][at] += x * x;
                lanes[2][at] += x * y;
                lanes[3][at] += (x - y) * (x - y);
            }
        };
        for (x, y) in values.iter().zip(reference) {
            step(x, y);
        }
        step(rest, other);
        let [reference, values, products, errors] = lanes.map(|lane| lane.iter().sum());
        Self { reference, values, products, errors }
    }

    /// Adds the sums over other elements.
    pub fn add(&mut self, other: &Self) {
        self.reference += other.reference;
        self.values += other.values;
        self.products += other.products;
        self.errors += other.errors;
    }

    /// Root mean square of the error over that of the reference; infinite if only the reference is zero.
    pub fn relative_error(&self) -> f64 {
        match (self.errors > 0.0, self.reference > 0.0) {
            _ if self.errors.is_nan() || self.reference.is_nan() => f64::NAN,
            (false, _) => 0.0,
            (true, false) => f64::INFINITY,
            (true, true) => (self.errors / self.reference).sqrt(),
        }
    }

    /// Factor that brings the values nearest to the reference; 1 without values. It is 1 for codes that were rounded
    /// with the best scale, however coarse they are.
    pub fn slope(&self) -> f64 {
        if self.values > 0.0 { self.products / self.values } else { 1.0 }
    }

    /// Cosine of the angle between values and reference; 0 if one of them is zero.
    pub fn correlation(&self) -> f64 {
        let norm = (self.values * self.reference).sqrt();
        if norm > 0.0 { self.products / norm } else { 0.0 }
    }

    /// Relative error that remains once the values have the best scale.
    pub fn shape_error(&self) -> f64 {
        (1.0 - self.correlation().powi(2)).max(0.0).sqrt()
    }
}

/// Sums over the rows of a matrix for each of its columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnSums {
    /// Sums of the products of values and reference, `[n_cols]`.
    pub products: Vec<f64>,
    /// Sums of the squares of the values, `[n_cols]`.
    pub values: Vec<f64>,
}

impl ColumnSums {
    /// Adds a row of values and of their reference; the first row gives the number of columns.
    pub fn add_row(&mut self, values: &[f32], reference: &[f32]) {
        add_products(&mut self.products, values, reference);
        add_products(&mut self.values, values, values);
    }

    /// Adds the sums over other rows.
    pub fn append(&mut self, later: &Self) {
        append(&mut self.products, &later.products);
        append(&mut self.values, &later.values);
    }
}

/// Adds the products of two rows to the sums of their columns, `[n_cols]`; the first row gives their number.
pub fn add_products(sums: &mut Vec<f64>, a: &[f32], b: &[f32]) {
    sums.resize(a.len(), 0.0);
    for (sum, (&a, &b)) in sums.iter_mut().zip(a.iter().zip(b)) {
        *sum += f64::from(a) * f64::from(b);
    }
}

/// Adds sums of columns over other rows.
pub fn append(sums: &mut Vec<f64>, later: &[f64]) {
    sums.resize(later.len(), 0.0);
    sums.iter_mut().zip(later).for_each(|(sum, more)| *sum += more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_and_slope() {
        let reference: Vec<f32> = (0..37).map(|at| (at as f32 * 0.7).sin()).collect();
        let half: Vec<f32> = reference.iter().map(|x| x * 0.5).collect();
        let sums = ComparisonSums::of(&half, &reference);
        assert!((sums.relative_error() - 0.5).abs() < 1e-6);
        assert!((sums.slope() - 2.0).abs() < 1e-6);
        assert!((sums.correlation() - 1.0).abs() < 1e-6);
        assert!(sums.shape_error() < 1e-3);
        assert_eq!(ComparisonSums::of(&[1.0], &[0.0]).relative_error(), f64::INFINITY);
        assert_eq!(ComparisonSums::of(&[0.0; 3], &[0.0; 3]).relative_error(), 0.0);
        assert!(ComparisonSums::of(&[f32::NAN], &[1.0]).relative_error().is_nan());
    }
}
