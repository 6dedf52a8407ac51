//! Conversion of code book blocks to the numbers that they store, and back: [`crate::states`] for IQ1, IQ2 and IQ3.
//!
//! A block has 256 elements. An element is `d · unit · (2 level + 1) · value`, with one level per part of 16 or 32
//! elements. The values of a vector of 4 or 8 elements are one point of the type's grid. Each value has its own sign,
//! or all of them are shifted up or down by an eighth. Every bit of a block belongs to exactly one number, so unpacking
//! and packing are inverses for all bytes.

mod layouts;
#[cfg(test)]
mod tests;

use gguf_core::numeric::f16_to_f32;
use gguf_core::{GgmlType, Hint};

use crate::grids;
use crate::iq1_search::DELTA;

/// Elements of a block.
pub const GRID_ELEMS: usize = 256;

/// Maximum number of parts of a block.
pub const MAX_PARTS: usize = 16;

/// Maximum number of points of a block.
pub(crate) const MAX_POINTS: usize = 64;

/// Number of elements that share a byte of signs, or a shift.
pub const SIGNED: usize = 8;

/// Stored numbers of one block. Entries past the parts and points of the type are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridState {
    /// Scale of the block, F16 bits.
    pub d: u16,
    /// Level of each part's scale.
    pub levels: [u8; MAX_PARTS],
    /// Index of each vector's point on the grid.
    pub points: [u16; MAX_POINTS],
    /// One byte for each eight elements: a bit for each negative one, the first lowest; or 1 if all are shifted down.
    pub signs: [u8; GRID_ELEMS / SIGNED],
}

impl GridState {
    /// The all-zero state.
    pub const ZERO: Self =
        Self { d: 0, levels: [0; MAX_PARTS], points: [0; MAX_POINTS], signs: [0; GRID_ELEMS / SIGNED] };
}

/// Allowed signs of eight elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    /// Any signs.
    Free,
    /// An even number of minus signs.
    Even,
    /// No signs: the grid has negative values. Instead all values are shifted, equally in each group of this many
    /// elements.
    Shift(usize),
}

/// Error for a number that a block cannot hold, or bytes of another length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum GridStateError {
    #[error("a block of {ty} has {expected} bytes, found {found}")]
    Length { ty: GgmlType, expected: usize, found: usize },
    #[error("vector {vector}: point {point} is none of {ty}")]
    Point { ty: GgmlType, vector: usize, point: u16 },
    #[error("part {part}: level {level} is none of {ty}")]
    Level { ty: GgmlType, part: usize, level: u8 },
    #[error("elements {first} to {}: signs {signs:#b} are none of {ty}", first + 7)]
    Signs { ty: GgmlType, first: usize, signs: u8 },
}

impl Hint for GridStateError {}

/// Form of the blocks of one type on a grid.
#[derive(Debug)]
pub struct GridForm {
    /// The type.
    pub ty: GgmlType,
    /// Elements of a vector: 4 or 8.
    pub dims: usize,
    /// Number of elements that share a level.
    pub part: usize,
    /// Number of levels.
    pub n_levels: u8,
    /// Factor on `d · (2 level + 1)`; a power of two.
    pub unit: f32,
    /// Signs or shifts of the elements.
    pub signs: Signs,
    /// Value of each code within a point.
    values: &'static [f32],
    /// Points, the first value in the lowest of `16 / dims` bits.
    points: &'static [u16],
}

const IQ2_VALUES: [f32; 4] = [8.0, 25.0, 43.0, 43.0];
const IQ1_VALUES: [f32; 4] = [-1.0, 0.0, 1.0, 2.0];

/// Forms of all types on grids.
pub static GRID_FORMS: &[GridForm] = &[
    GridForm {
        ty: GgmlType::Iq3S,
        dims: 4,
        part: 32,
        n_levels: 16,
        unit: 1.0,
        signs: Signs::Free,
        values: &[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0],
        points: &grids::IQ3_S,
    },
    GridForm {
        ty: GgmlType::Iq3Xxs,
        dims: 4,
        part: 32,
        n_levels: 16,
        unit: 0.25,
        signs: Signs::Even,
        values: &[4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0],
        points: &grids::IQ3_XXS,
    },
    GridForm {
        ty: GgmlType::Iq2S,
        dims: 8,
        part: 16,
        n_levels: 16,
        unit: 0.125,
        signs: Signs::Free,
        values: &IQ2_VALUES,
        points: &grids::IQ2_S,
    },
    GridForm {
        ty: GgmlType::Iq2Xs,
        dims: 8,
        part: 16,
        n_levels: 16,
        unit: 0.125,
        signs: Signs::Even,
        values: &IQ2_VALUES,
        points: &grids::IQ2_XS,
    },
    GridForm {
        ty: GgmlType::Iq2Xxs,
        dims: 8,
        part: 32,
        n_levels: 16,
        unit: 0.125,
        signs: Signs::Even,
        values: &IQ2_VALUES,
        points: &grids::IQ2_XXS,
    },
    GridForm {
        ty: GgmlType::Iq1M,
        dims: 8,
        part: 16,
        n_levels: 8,
        unit: 1.0,
        signs: Signs::Shift(8),
        values: &IQ1_VALUES,
        points: &grids::IQ1,
    },
    GridForm {
        ty: GgmlType::Iq1S,
        dims: 8,
        part: 32,
        n_levels: 8,
        unit: 1.0,
        signs: Signs::Shift(32),
        values: &IQ1_VALUES,
        points: &grids::IQ1,
    },
];

/// Returns the form of a type's blocks; `None` for types that are not on a grid.
pub fn grid_form(ty: GgmlType) -> Option<&'static GridForm> {
    GRID_FORMS.iter().find(|form| form.ty == ty)
}

impl GridForm {
    pub(crate) fn n_vectors(&self) -> usize {
        GRID_ELEMS / self.dims
    }

    /// Returns the number of parts of a block.
    pub fn n_parts(&self) -> usize {
        GRID_ELEMS / self.part
    }

    /// Returns the number of points of the grid.
    pub fn n_points(&self) -> usize {
        self.points.len()
    }

    /// Returns the values of a point, without sign and shift; 0 past its [`GridForm::dims`], and for an invalid point.
    pub fn point(&self, index: u16) -> [f32; SIGNED] {
        let Some(packed) = self.points.get(usize::from(index)) else { return [0.0; SIGNED] };
        let bits = 16 / self.dims;
        // Two bits per value, or three: the topmost of four bits is never set.
        std::array::from_fn(|i| match self.dims {
            4 if i < 4 => self.values[usize::from(packed >> (3 * i) & 7)],
            8 => self.values[usize::from(packed >> (bits * i) & 3)],
            _ => 0.0,
        })
    }

    /// Returns the value of an element with a sign bit, or with a shift, which is the same bit for all.
    pub fn signed(&self, value: f32, bit: bool) -> f32 {
        match (self.signs, bit) {
            (Signs::Shift(_), false) => value + DELTA,
            (Signs::Shift(_), true) => value - DELTA,
            (_, false) => value,
            (_, true) => -value,
        }
    }

    /// Reads one block; any bytes are valid.
    pub fn unpack(&self, block: &[u8], state: &mut GridState) -> Result<(), GridStateError> {
        self.check_length(block.len())?;
        *state = GridState::ZERO;
        state.d = layouts::word(block, 0);
        match self.ty {
            GgmlType::Iq3S => layouts::unpack_iq3_s(block, state),
            GgmlType::Iq3Xxs => layouts::unpack_iq3_xxs(block, state),
            GgmlType::Iq2S => layouts::unpack_iq2_s(block, state),
            GgmlType::Iq2Xs => layouts::unpack_iq2_xs(block, state),
            GgmlType::Iq2Xxs => layouts::unpack_iq2_xxs(block, state),
            GgmlType::Iq1M => layouts::unpack_iq1_m(block, state),
            _ => layouts::unpack_iq1_s(block, state),
        }
        Ok(())
    }

    /// Writes one block.
    ///
    /// # Errors
    /// [`GridStateError`]: bytes of another length, or a number out of its range.
    pub fn pack(&self, state: &GridState, block: &mut [u8]) -> Result<(), GridStateError> {
        self.check_length(block.len())?;
        self.check_ranges(state)?;
        block.fill(0);
        match self.ty {
            GgmlType::Iq3S => layouts::pack_iq3_s(state, block),
            GgmlType::Iq3Xxs => layouts::pack_iq3_xxs(state, block),
            GgmlType::Iq2S => layouts::pack_iq2_s(state, block),
            GgmlType::Iq2Xs => layouts::pack_iq2_xs(state, block),
            GgmlType::Iq2Xxs => layouts::pack_iq2_xxs(state, block),
            GgmlType::Iq1M => layouts::pack_iq1_m(state, block),
            _ => layouts::pack_iq1_s(state, block),
        }
        if self.ty != GgmlType::Iq1M {
            layouts::put_word(block, 0, state.d);
        }
        Ok(())
    }

    /// Computes the elements of a state.
    ///
    /// # Shapes
    /// `out` takes [`GRID_ELEMS`] floats; a shorter one gets only the first elements.
    ///
    /// # Exactness
    /// Equals [`crate::dequantize`] of the packed block bit for bit.
    pub fn decode(&self, state: &GridState, out: &mut [f32]) {
        let d = f16_to_f32(state.d) * self.unit;
        for (vector, out) in out.chunks_mut(self.dims).take(self.n_vectors()).enumerate() {
            let first = vector * self.dims;
            let scale = d * f32::from(2 * u16::from(state.levels[first / self.part]) + 1);
            let values = self.point(state.points[vector]);
            for (i, out) in out.iter_mut().enumerate() {
                *out = scale * self.signed(values[i], self.bit(state, first + i));
            }
        }
    }

    /// Returns the sign bit, or the shift, of an element.
    fn bit(&self, state: &GridState, element: usize) -> bool {
        let signs = state.signs[element / SIGNED];
        let place = if matches!(self.signs, Signs::Shift(_)) { 0 } else { element % SIGNED };
        signs >> place & 1 != 0
    }

    fn check_length(&self, found: usize) -> Result<(), GridStateError> {
        let expected = self.ty.block_bytes();
        if found == expected { Ok(()) } else { Err(GridStateError::Length { ty: self.ty, expected, found }) }
    }

    fn check_ranges(&self, state: &GridState) -> Result<(), GridStateError> {
        let ty = self.ty;
        for (vector, point) in state.points[..self.n_vectors()].iter().enumerate() {
            if usize::from(*point) >= self.points.len() {
                return Err(GridStateError::Point { ty, vector, point: *point });
            }
        }
        for (part, level) in state.levels[..self.n_parts()].iter().enumerate() {
            if *level >= self.n_levels {
                return Err(GridStateError::Level { ty, part, level: *level });
            }
        }
        for (index, signs) in state.signs.iter().enumerate() {
            let is_held = match self.signs {
                Signs::Free => true,
                Signs::Even => signs.count_ones().is_multiple_of(2),
                Signs::Shift(group) => {
                    let first = index * SIGNED / group * group / SIGNED;
                    *signs <= 1 && *signs == state.signs[first]
                }
            };
            if !is_held {
                return Err(GridStateError::Signs { ty, first: index * SIGNED, signs: *signs });
            }
        }
        Ok(())
    }
}
