//! Form of block types whose elements are integers times scales.

/// Form of a block type whose elements are `scale · integer`, or `scale · integer - min_scale · minimum`.
///
/// A scale and the scale of its minima belong to [`IntegerForm::scaled`] consecutive elements. Scales of parts of a
/// block are contained in the integers, so that a super-block has a single scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerForm {
    /// Number of elements that share a scale; a divisor of 256.
    pub scaled: usize,
    /// Largest magnitude of an integer.
    pub largest: u16,
    /// Minima, for types that have them.
    pub minima: Option<IntegerMinima>,
}

/// Minima that are subtracted from the elements of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerMinima {
    /// Number of elements that share a minimum: 16 or 32.
    pub shared: usize,
    /// Largest minimum; the smallest is 0.
    pub largest: u16,
}

impl IntegerForm {
    /// Returns the form of a type without minima.
    #[must_use]
    pub const fn plain(scaled: usize, largest: u16) -> Self {
        Self { scaled, largest, minima: None }
    }

    /// Returns the form of a type with minima, each shared by some elements.
    #[must_use]
    pub const fn with_minima(scaled: usize, largest: u16, minima: IntegerMinima) -> Self {
        Self { scaled, largest, minima: Some(minima) }
    }

    /// Returns the number of minima that share a scale.
    #[must_use]
    pub const fn n_minima(&self) -> usize {
        match self.minima {
            Some(minima) => self.scaled / minima.shared,
            None => 0,
        }
    }
}
