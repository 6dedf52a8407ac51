//! Tensor shapes, outermost dimension first, with checked arithmetic.

use std::fmt;

use serde::{Serialize, Serializer};

/// A shape whose dimensions are listed outermost first (`[n_rows, n_cols]`, as checkpoints write them). The element
/// count is checked once, when the shape is created.
///
/// GGUF files list dimensions the other way round; only the GGUF reader and writer reverse them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: Vec<u64>,
    n_elems: u64,
}

/// Writes the dimensions, outermost first.
impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.dims.serialize(serializer)
    }
}

impl Shape {
    /// Creates a shape; `None` if the element count overflows 63 bits.
    ///
    /// A shape without dimensions is a scalar of one element. Zero dimensions are allowed here; formats that forbid
    /// them check that themselves.
    pub fn new(dims: Vec<u64>) -> Option<Self> {
        // Partial products are checked without the zeros, so that `[0, 2^63, 4]` is refused like `[2^63, 4]`.
        let mut partial = 1u64;
        for &dim in dims.iter().filter(|&&dim| dim != 0) {
            partial = partial.checked_mul(dim).filter(|&n| i64::try_from(n).is_ok())?;
        }
        let n_elems = if dims.contains(&0) { 0 } else { partial };
        Some(Self { dims, n_elems })
    }

    /// Dimensions, outermost first.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements.
    pub fn n_elems(&self) -> u64 {
        self.n_elems
    }

    /// The shape without outer dimensions of length one, with at least one dimension: what ggml keeps of a tensor.
    ///
    /// # Exactness
    /// ref: `ggml_n_dims`.
    #[must_use]
    pub fn of_ggml(&self) -> Self {
        let n_outer = self.dims.iter().take_while(|&&dim| dim == 1).count();
        let dims = match self.dims.get(n_outer..) {
            Some([]) | None => vec![1],
            Some(dims) => dims.to_vec(),
        };
        Self { dims, n_elems: self.n_elems }
    }

    /// Length of a row: the innermost dimension (1 for a scalar).
    pub fn n_cols(&self) -> u64 {
        self.dims.last().copied().unwrap_or(1)
    }

    /// Number of rows: the product of all dimensions but the innermost.
    pub fn n_rows(&self) -> u64 {
        match self.dims.split_last() {
            None => 1,
            Some((_, outer)) if outer.contains(&0) => 0,
            Some((_, outer)) => outer.iter().product(),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for (i, dim) in self.dims.iter().enumerate() {
            write!(f, "{}{dim}", if i == 0 { "" } else { ", " })?;
        }
        write!(f, "]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_refused_even_next_to_a_zero() {
        assert!(Shape::new(vec![1 << 62, 2]).is_none());
        assert!(Shape::new(vec![0, 1 << 62, 4]).is_none());
        assert_eq!(Shape::new(vec![0, 3]).map(|s| s.n_elems()), Some(0));
    }

    #[test]
    fn rows_and_columns() {
        let shape = Shape::new(vec![8, 5, 3]).unwrap();
        assert_eq!((shape.n_rows(), shape.n_cols(), shape.n_elems()), (40, 3, 120));
        let scalar = Shape::new(vec![]).unwrap();
        assert_eq!((scalar.n_rows(), scalar.n_cols(), scalar.n_elems()), (1, 1, 1));
        assert_eq!(shape.to_string(), "[8, 5, 3]");
        for (dims, of_ggml) in [
            (vec![], vec![1]),
            (vec![1, 1], vec![1]),
            (vec![1, 1, 5, 1], vec![5, 1]),
            (vec![2, 1, 3], vec![2, 1, 3]),
        ] {
            let shape = Shape::new(dims).unwrap().of_ggml();
            assert_eq!((shape.dims(), shape.n_elems()), (of_ggml.as_slice(), of_ggml.iter().product()));
        }
    }
}
