//! Conversion of scalar blocks to the numbers that they store, and back: for callers that choose scales and codes
//! themselves.
//!
//! An element of the eleven types in [`FORMS`] is `d · scale · value[code] - d_min · min`, with one `scale` and `min`
//! per group of elements, and one `d` and `d_min` per block. A type is one row of the table: the allowed numbers, and
//! the positions of their bits. Every bit of a block belongs to exactly one number, so unpacking and packing are
//! inverses for all bytes.

use gguf_core::numeric::f16_to_f32;
use gguf_core::{GgmlType, Hint};

use crate::iq4::LEVELS;

/// Maximum number of elements of a block.
pub const MAX_ELEMS: usize = 256;

/// Maximum number of groups of a block.
pub const MAX_GROUPS: usize = 16;

/// Stored numbers of one block. Entries past the elements and groups of the type are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockState {
    /// Scale of the block, F16 bits.
    pub d: u16,
    /// Scale of the minima, F16 bits; the minimum itself for [`Min::Added`], 0 for [`Min::None`].
    pub d_min: u16,
    /// Scale of each group; 1 for types without such scales.
    pub scales: [i8; MAX_GROUPS],
    /// Minimum of each group; 1 for [`Min::Added`], 0 for [`Min::None`].
    pub mins: [u8; MAX_GROUPS],
    /// Code of each element, an index into [`StateForm::values`].
    pub codes: [u8; MAX_ELEMS],
}

impl BlockState {
    /// The all-zero state.
    pub const ZERO: Self =
        Self { d: 0, d_min: 0, scales: [0; MAX_GROUPS], mins: [0; MAX_GROUPS], codes: [0; MAX_ELEMS] };
}

/// Form of the minimum that a type subtracts from its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Min {
    /// The type has no minimum.
    None,
    /// Each group subtracts `d_min` times a number up to `highest`.
    Groups {
        /// Largest such number.
        highest: u8,
    },
    /// The block's `d_min` is added to every element.
    Added,
}

/// Error for a number that a block cannot hold, or bytes of another length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum StateError {
    #[error("a block of {ty} has {expected} bytes, found {found}")]
    Length { ty: GgmlType, expected: usize, found: usize },
    #[error("element {element}: code {code} is none of {ty}")]
    Code { ty: GgmlType, element: usize, code: u8 },
    #[error("group {group}: scale {scale} is none of {ty}")]
    Scale { ty: GgmlType, group: usize, scale: i8 },
    #[error("group {group}: minimum {min} is none of {ty}")]
    Min { ty: GgmlType, group: usize, min: u8 },
}

impl Hint for StateError {}

/// Some bits of some items of a block: a code, a scale or a minimum may be split into several planes.
///
/// For the items from `first` on, byte `at + run · c + l` holds the items `run · fields · c + run · n + l`, for `n`
/// below `fields`, in the bits from `bit + bits · n` on.
#[derive(Clone, Copy, Debug)]
struct Plane {
    first: usize,
    n_items: usize,
    at: usize,
    run: usize,
    fields: usize,
    bit: usize,
    bits: usize,
    /// Bit position of these bits in the item.
    shift: usize,
}

/// Returns a plane of codes whose fields fill their bytes.
const fn codes(n_items: usize, at: usize, run: usize, bits: usize, shift: usize) -> Plane {
    Plane { first: 0, n_items, at, run, fields: 8 / bits, bit: 0, bits, shift }
}

/// Returns a plane of `bits` bits of each byte from `bit` on, one item per byte.
const fn bytewise(first: usize, n_items: usize, at: usize, bit: usize, bits: usize, shift: usize) -> Plane {
    Plane { first, n_items, at, run: 1, fields: 1, bit, bits, shift }
}

impl Plane {
    /// Calls `f` with the first byte, the bit position in it, and the first item of every run.
    #[inline(always)]
    fn runs(&self, mut f: impl FnMut(usize, usize, usize)) {
        for index in 0..self.n_items / self.run {
            let (chunk, field) = (index / self.fields, index % self.fields);
            f(self.at + chunk * self.run, self.bit + field * self.bits, self.first + index * self.run);
        }
    }

    fn mask(&self) -> u8 {
        (0xffu16 >> (8 - self.bits)) as u8
    }

    fn read(&self, block: &[u8], items: &mut [u8]) {
        let mask = self.mask();
        self.runs(|byte, bit, item| {
            for (item, byte) in items[item..][..self.run].iter_mut().zip(&block[byte..]) {
                *item |= (byte >> bit & mask) << self.shift;
            }
        });
    }

    fn write(&self, items: &[u8], block: &mut [u8]) {
        let mask = self.mask();
        self.runs(|byte, bit, item| {
            for (byte, item) in block[byte..][..self.run].iter_mut().zip(&items[item..]) {
                *byte |= (item >> self.shift & mask) << bit;
            }
        });
    }
}

/// Block form of one scalar type: its numbers and their positions.
#[derive(Debug)]
pub struct StateForm {
    /// The type.
    pub ty: GgmlType,
    /// Number of elements that share a scale and a minimum.
    pub group: usize,
    /// Value of each code, in ascending order.
    pub values: &'static [i8],
    /// Smallest and largest scale of a group; `None` if there is only the block's scale.
    pub scales: Option<(i8, i8)>,
    /// Form of the minimum.
    pub min: Min,
    /// Byte offset of `d`.
    d_at: usize,
    /// Byte offset of `d_min`, for types that have one.
    d_min_at: usize,
    code_planes: &'static [Plane],
    scale_planes: &'static [Plane],
    /// Stored minus actual scale; scales of eight bits are stored unchanged.
    scale_offset: i8,
    min_planes: &'static [Plane],
}

/// The integers from -32 on; linear types take a part of them.
static INTEGERS: [i8; 64] = {
    let mut integers = [0; 64];
    let mut i = 0;
    while i < 64 {
        integers[i] = i as i8 - 32;
        i += 1;
    }
    integers
};

const fn integers(first: i8, n: usize) -> &'static [i8] {
    let at = (first + 32) as usize;
    INTEGERS.split_at(at).1.split_at(n).0
}

/// Returns the planes of six-bit scales or minima. Q4_K and Q5_K store those of the last four parts in the remaining
/// bits.
const fn six_bits(at: usize, nibble: usize) -> [Plane; 3] {
    [bytewise(0, 4, at, 0, 6, 0), bytewise(4, 4, 12, nibble, 4, 0), bytewise(4, 4, at, 6, 2, 4)]
}

const SCALES_45: [Plane; 3] = six_bits(4, 0);
const MINS_45: [Plane; 3] = six_bits(8, 4);

/// Returns the form of a block of 32 with only a scale.
const fn plain(ty: GgmlType, values: &'static [i8], code_planes: &'static [Plane]) -> StateForm {
    StateForm {
        ty,
        group: 32,
        values,
        scales: None,
        min: Min::None,
        d_at: 0,
        d_min_at: 0,
        code_planes,
        scale_planes: &[],
        scale_offset: 0,
        min_planes: &[],
    }
}

/// Returns the form of a block of 32 with a scale and a minimum.
const fn with_min(ty: GgmlType, values: &'static [i8], code_planes: &'static [Plane]) -> StateForm {
    StateForm { min: Min::Added, d_min_at: 2, ..plain(ty, values, code_planes) }
}

/// Forms of all types that have a state.
pub static FORMS: &[StateForm] = &[
    plain(GgmlType::Q4_0, integers(-8, 16), &[codes(32, 2, 16, 4, 0)]),
    with_min(GgmlType::Q4_1, integers(0, 16), &[codes(32, 4, 16, 4, 0)]),
    plain(GgmlType::Q5_0, integers(-16, 32), &[codes(32, 6, 16, 4, 0), codes(32, 2, 1, 1, 4)]),
    with_min(GgmlType::Q5_1, integers(0, 32), &[codes(32, 8, 16, 4, 0), codes(32, 4, 1, 1, 4)]),
    plain(GgmlType::Iq4Nl, &LEVELS, &[codes(32, 2, 16, 4, 0)]),
    StateForm {
        scales: Some((-32, 31)),
        scale_planes: &[codes(8, 4, 1, 4, 0), codes(8, 2, 1, 2, 4)],
        scale_offset: 32,
        ..plain(GgmlType::Iq4Xs, &LEVELS, &[codes(256, 8, 16, 4, 0)])
    },
    StateForm {
        group: 16,
        scales: Some((0, 15)),
        min: Min::Groups { highest: 15 },
        d_at: 80,
        d_min_at: 82,
        scale_planes: &[bytewise(0, 16, 0, 0, 4, 0)],
        min_planes: &[bytewise(0, 16, 0, 4, 4, 0)],
        ..plain(GgmlType::Q2K, integers(0, 4), &[codes(256, 16, 32, 2, 0)])
    },
    StateForm {
        group: 16,
        scales: Some((-32, 31)),
        d_at: 108,
        scale_planes: &[codes(16, 96, 8, 4, 0), codes(16, 104, 4, 2, 4)],
        scale_offset: 32,
        ..plain(GgmlType::Q3K, integers(-4, 8), &[codes(256, 32, 32, 2, 0), codes(256, 0, 32, 1, 2)])
    },
    StateForm {
        scales: Some((0, 63)),
        min: Min::Groups { highest: 63 },
        d_min_at: 2,
        scale_planes: &SCALES_45,
        min_planes: &MINS_45,
        ..plain(GgmlType::Q4K, integers(0, 16), &[codes(256, 16, 32, 4, 0)])
    },
    StateForm {
        scales: Some((0, 63)),
        min: Min::Groups { highest: 63 },
        d_min_at: 2,
        scale_planes: &SCALES_45,
        min_planes: &MINS_45,
        ..plain(GgmlType::Q5K, integers(0, 32), &[codes(256, 48, 32, 4, 0), codes(256, 16, 32, 1, 4)])
    },
    StateForm {
        group: 16,
        scales: Some((i8::MIN, i8::MAX)),
        d_at: 208,
        scale_planes: &[bytewise(0, 16, 192, 0, 8, 0)],
        ..plain(GgmlType::Q6K, integers(-32, 64), &[codes(256, 0, 64, 4, 0), codes(256, 128, 32, 2, 4)])
    },
];

/// Returns the form of a type's blocks; `None` for types whose elements do not have a code each.
pub fn form(ty: GgmlType) -> Option<&'static StateForm> {
    FORMS.iter().find(|form| form.ty == ty)
}

impl StateForm {
    /// Returns the number of elements of a block.
    pub fn n_elems(&self) -> usize {
        self.ty.block_elems()
    }

    /// Returns the number of groups of a block.
    pub fn n_groups(&self) -> usize {
        self.n_elems() / self.group
    }

    /// Reads one block; any bytes are valid.
    pub fn unpack(&self, block: &[u8], state: &mut BlockState) -> Result<(), StateError> {
        self.check_length(block.len())?;
        state.d = word(block, self.d_at);
        state.d_min = if self.min == Min::None { 0 } else { word(block, self.d_min_at) };
        state.codes = [0; MAX_ELEMS];
        for plane in self.code_planes {
            plane.read(block, &mut state.codes);
        }
        let mut scales = [0; MAX_GROUPS];
        for plane in self.scale_planes {
            plane.read(block, &mut scales);
        }
        state.scales = match self.scales {
            None => [1; MAX_GROUPS],
            Some(_) => scales.map(|scale| (scale as i8).wrapping_sub(self.scale_offset)),
        };
        state.mins = [u8::from(self.min == Min::Added); MAX_GROUPS];
        for plane in self.min_planes {
            plane.read(block, &mut state.mins);
        }
        Ok(())
    }

    /// Writes one block.
    ///
    /// # Errors
    /// [`StateError`]: bytes of another length, or a number out of its range.
    pub fn pack(&self, state: &BlockState, block: &mut [u8]) -> Result<(), StateError> {
        self.check_length(block.len())?;
        self.check_ranges(state)?;
        block.fill(0);
        for plane in self.code_planes {
            plane.write(&state.codes, block);
        }
        if self.scales.is_some() {
            let stored = state.scales.map(|scale| scale.wrapping_add(self.scale_offset).cast_unsigned());
            for plane in self.scale_planes {
                plane.write(&stored, block);
            }
        }
        for plane in self.min_planes {
            plane.write(&state.mins, block);
        }
        if self.min != Min::None {
            block[self.d_min_at..][..2].copy_from_slice(&state.d_min.to_le_bytes());
        }
        block[self.d_at..][..2].copy_from_slice(&state.d.to_le_bytes());
        Ok(())
    }

    /// Computes the elements of a state; codes out of range mean 0.
    ///
    /// # Shapes
    /// `out` takes [`StateForm::n_elems`] floats; a shorter one gets only the first elements.
    ///
    /// # Exactness
    /// Equals [`crate::dequantize`] of the packed block bit for bit.
    pub fn decode(&self, state: &BlockState, out: &mut [f32]) {
        let (d, d_min) = (f16_to_f32(state.d), f16_to_f32(state.d_min));
        let groups = out.chunks_mut(self.group).zip(state.codes.chunks(self.group));
        for (group, (out, codes)) in groups.take(self.n_groups()).enumerate() {
            let scale = d * f32::from(state.scales[group]);
            let off = match self.min {
                Min::None => 0.0,
                Min::Groups { .. } => d_min * f32::from(state.mins[group]),
                Min::Added => -d_min,
            };
            for (out, code) in out.iter_mut().zip(codes) {
                let value = self.values.get(usize::from(*code)).copied().unwrap_or(0);
                *out = scale * f32::from(value) - off;
            }
        }
    }

    fn check_length(&self, found: usize) -> Result<(), StateError> {
        let expected = self.ty.block_bytes();
        if found == expected { Ok(()) } else { Err(StateError::Length { ty: self.ty, expected, found }) }
    }

    fn check_ranges(&self, state: &BlockState) -> Result<(), StateError> {
        let ty = self.ty;
        let codes = &state.codes[..self.n_elems()];
        // A fold without exits is a vector loop.
        let largest = codes.iter().fold(0, |largest, code| largest.max(*code));
        if usize::from(largest) >= self.values.len() {
            let element = codes.iter().position(|code| *code == largest).unwrap_or(0);
            return Err(StateError::Code { ty, element, code: largest });
        }
        for group in 0..self.n_groups() {
            let (scale, min) = (state.scales[group], state.mins[group]);
            let (lowest, highest) = self.scales.unwrap_or((1, 1));
            if !(lowest..=highest).contains(&scale) {
                return Err(StateError::Scale { ty, group, scale });
            }
            let is_held = match self.min {
                Min::None => min == 0,
                Min::Groups { highest } => min <= highest,
                Min::Added => min == 1,
            };
            if !is_held {
                return Err(StateError::Min { ty, group, min });
            }
        }
        Ok(())
    }
}

fn word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dequantize, quantize_rows};
    use gguf_core::simd::SimdLevel;
    use proptest::prelude::*;

    /// Packs what was unpacked, and decodes it in both ways.
    fn check(form: &StateForm, block: &[u8]) {
        let (mut state, mut back) = (BlockState::ZERO, vec![0xa5; block.len()]);
        form.unpack(block, &mut state).unwrap();
        form.pack(&state, &mut back).unwrap();
        assert_eq!(back, block, "{}", form.ty);
        let (mut found, mut want) = (vec![0.0; form.n_elems()], vec![0.0; form.n_elems()]);
        form.decode(&state, &mut found);
        dequantize(form.ty, SimdLevel::Scalar, block, &mut want).unwrap();
        for (at, (found, want)) in found.iter().zip(&want).enumerate() {
            let same = found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan();
            assert!(same, "{}, element {at}: {found:e}, decoder {want:e}", form.ty);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_state(bytes in prop::collection::vec(any::<u8>(), 256)) {
            for form in FORMS {
                check(form, &bytes[..form.ty.block_bytes()]);
            }
        }

        #[test]
        fn what_quantizers_write_is_a_state(
            x in prop::collection::vec(-1f32..1.0, 256),
            weights in prop::collection::vec(0f32..1.0, 256),
            exponent in -30i32..5,
        ) {
            let x: Vec<f32> = x.iter().map(|x| x * 2f32.powi(exponent)).collect();
            for form in FORMS {
                let mut blocks = vec![0; 256 / form.n_elems() * form.ty.block_bytes()];
                for weights in [None, Some(&weights[..])] {
                    quantize_rows(form.ty, SimdLevel::Scalar, 256, &x, weights, &mut blocks).unwrap();
                    for block in blocks.chunks(form.ty.block_bytes()) {
                        check(form, block);
                    }
                }
            }
        }
    }

    #[test]
    fn every_bit_of_a_block_is_one_number() {
        for form in FORMS {
            let n_bytes = form.ty.block_bytes();
            let mut n_set = vec![0; 8 * n_bytes];
            let mut count = |plane: &Plane| {
                plane.runs(|byte, bit, _| {
                    for i in 0..plane.run * plane.bits {
                        n_set[8 * (byte + i / plane.bits) + bit + i % plane.bits] += 1;
                    }
                });
            };
            let planes = [form.code_planes, form.scale_planes, form.min_planes].concat();
            planes.iter().for_each(&mut count);
            count(&bytewise(0, 2, form.d_at, 0, 8, 0));
            if form.min != Min::None {
                count(&bytewise(0, 2, form.d_min_at, 0, 8, 0));
            }
            assert!(n_set.iter().all(|n| *n == 1), "{}: {n_set:?}", form.ty);
        }
    }

    #[test]
    fn values_ascend_and_groups_fill_blocks() {
        for form in FORMS {
            assert!(form.values.is_sorted_by(|a, b| a < b), "{}", form.ty);
            assert_eq!(form.n_groups() * form.group, form.n_elems(), "{}", form.ty);
            assert!(form.n_groups() <= MAX_GROUPS && form.n_elems() <= MAX_ELEMS);
        }
        assert!(form(GgmlType::Q8_0).is_none());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let form = form(GgmlType::Q4K).unwrap();
        let mut block = [0; 144];
        let mut state = BlockState { codes: [15; MAX_ELEMS], ..BlockState::ZERO };
        assert_eq!(form.pack(&state, &mut block), Ok(()));
        state.codes[37] = 16;
        let ty = GgmlType::Q4K;
        assert_eq!(form.pack(&state, &mut block), Err(StateError::Code { ty, element: 37, code: 16 }));
        state.codes[37] = 0;
        state.scales[3] = -1;
        assert_eq!(form.pack(&state, &mut block), Err(StateError::Scale { ty, group: 3, scale: -1 }));
        state.scales[3] = 0;
        state.mins[7] = 64;
        assert_eq!(form.pack(&state, &mut block), Err(StateError::Min { ty, group: 7, min: 64 }));
        let short = StateError::Length { ty, expected: 144, found: 143 };
        assert_eq!(form.unpack(&block[..143], &mut state), Err(short));
    }
}
