//! Vectors in which one lane is one block: the operations that searches need.
//!
//! An algorithm is written once over [`Lanes`]. `lanes_x86` and `lanes_neon` provide the instructions, `portable`
//! provides plain arrays for tests. Every operation rounds like its scalar counterpart and none fuses or reorders, so a
//! lane computes bit for bit what the scalar code computes for its block.

use std::ops::{Add, BitAnd, BitOr, Div, Mul, Not, Sub};

use gguf_core::simd::VectorLoop;

#[cfg(any(all(test, feature = "portable"), target_arch = "aarch64"))]
pub(crate) mod entries;
#[cfg(all(test, feature = "portable"))]
pub(crate) mod portable;
mod twice;

pub(crate) use twice::Twice;

/// Upper bound of the lanes of any level, also when doubled twice.
pub(crate) const MAX_WIDTH: usize = 64;

/// 1.5 * 2^23: adding it rounds to an integer, half to even, and leaves that integer in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// Vectors of a level; a value proves that the machine has the instructions.
pub(crate) trait Lanes: Copy {
    /// Lanes per vector.
    const WIDTH: usize;
    /// Floats.
    type F: Copy
        + Add<Output = Self::F>
        + Sub<Output = Self::F>
        + Mul<Output = Self::F>
        + Div<Output = Self::F>;
    /// 32-bit integers; sums wrap.
    type I: Copy
        + Add<Output = Self::I>
        + Sub<Output = Self::I>
        + BitAnd<Output = Self::I>
        + BitOr<Output = Self::I>;
    /// Truth values, one per lane.
    type M: Copy + BitAnd<Output = Self::M> + BitOr<Output = Self::M> + Not<Output = Self::M>;
    /// Table of eight floats.
    type T: Copy + Sub<Output = Self::T> + Mul<Output = Self::T>;

    /// Runs code as a separate function that is compiled for this level once, however many kernels share it.
    fn call<W: VectorLoop>(self, work: W) -> W::Output;

    /// Returns a vector with the same float in all lanes.
    fn splat(self, value: f32) -> Self::F;
    /// Returns a vector with the same integer in all lanes.
    fn splat_i(self, value: i32) -> Self::I;
    /// Loads the first `WIDTH` floats.
    fn load(self, src: &[f32]) -> Self::F;
    /// Stores to the first `WIDTH` floats.
    fn store(self, value: Self::F, dst: &mut [f32]);
    /// Stores to the first `WIDTH` integers.
    fn store_i(self, value: Self::I, dst: &mut [i32]);
    /// Stores the low byte of each lane to the first `WIDTH` bytes.
    fn store_low_bytes(self, value: Self::I, dst: &mut [u8]);
    /// Loads the first 16 columns of rows: lane `r` of column `c` is `src[r * stride + c]`. For callers that use them
    /// at once.
    fn tile(self, src: &[f32], stride: usize) -> [Self::F; 16];
    /// Loads columns of rows like [`Lanes::tile`]; the length of `out` is a multiple of 16. Goes through memory.
    fn columns(self, src: &[f32], stride: usize, out: &mut [Self::F]);

    fn abs(self, value: Self::F) -> Self::F;
    /// Returns the square root, correctly rounded.
    fn sqrt(self, value: Self::F) -> Self::F;
    fn c_max(self, a: Self::F, b: Self::F) -> Self::F;
    fn c_min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Rounds to the nearest integer as a float, half to even; NaN and infinities are kept.
    fn round_even(self, value: Self::F) -> Self::F;
    fn bits(self, value: Self::F) -> Self::I;
    /// Returns the floats with these bits.
    fn float_of(self, value: Self::I) -> Self::F;
    /// Converts integers to the nearest floats.
    fn to_f(self, value: Self::I) -> Self::F;
    /// Computes C's `(int)x` as on x86: out of range and NaN give `i32::MIN`.
    fn trunc(self, value: Self::F) -> Self::I;
    /// Returns the larger integer.
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Returns the smaller integer.
    fn min_i(self, a: Self::I, b: Self::I) -> Self::I;

    /// Compares `a > b`, false for NaN.
    fn gt(self, a: Self::F, b: Self::F) -> Self::M;
    /// Compares `a == b`, false for NaN.
    fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    /// Compares `a == b`.
    fn eq_i(self, a: Self::I, b: Self::I) -> Self::M;
    /// Selects `a` where the mask is set, else `b`.
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// Selects `a` where the mask is set, else `b`.
    fn select_i(self, mask: Self::M, a: Self::I, b: Self::I) -> Self::I;
    /// Returns one bit per lane, lane 0 lowest.
    fn mask_bits(self, mask: Self::M) -> u64;

    /// Loads the first `WIDTH` numbers.
    fn load_u16(self, src: &[u16]) -> Self::I;
    /// Shifts bits down, with zeros from above; `n` is below 32.
    fn shr(self, value: Self::I, n: u32) -> Self::I;
    /// Returns the smallest lane; no lane may be NaN.
    fn least(self, value: Self::F) -> f32;
    /// Spreads the smallest lane of each vector to all its lanes; no lane may be NaN.
    #[inline(always)]
    fn spread_least<const S: usize>(self, values: &mut [Self::F; S]) {
        for value in values {
            *value = self.splat(self.least(*value));
        }
    }
    /// Creates a table of eight floats.
    fn table(self, entries: &[f32; 8]) -> Self::T;
    /// Creates a table of one repeated float.
    fn splat_table(self, entry: f32) -> Self::T;
    /// Looks up per lane the entry with the index in the lowest three bits.
    fn lookup(self, table: Self::T, index: Self::I) -> Self::F;
    /// Looks up per lane the entry with the index in the lowest four bits.
    fn lookup_16(self, table: &[f32; 16], index: Self::I) -> Self::F;

    /// Returns true if the mask is set in any lane.
    #[inline(always)]
    fn any(self, mask: Self::M) -> bool {
        self.mask_bits(mask) != 0
    }

    /// Computes [`gguf_core::numeric::nearest_int`], including its wrapping.
    #[inline(always)]
    fn nearest_int(self, value: Self::F) -> Self::I {
        (self.bits(value + self.splat(MAGIC)) & self.splat_i(0x007f_ffff)) - self.splat_i(0x0040_0000)
    }

    /// Computes `nearest_int` limited to `low..=high`, as floats.
    #[inline(always)]
    fn nearest_level(self, low: i32, high: i32, value: Self::F) -> Self::F {
        let level = self.max_i(self.nearest_int(value), self.splat_i(low));
        self.to_f(self.min_i(level, self.splat_i(high)))
    }

    /// Rounds to the nearest integer, half to even, at most `high`, which is not negative.
    #[inline(always)]
    fn round_up_to(self, high: i32, value: Self::F) -> Self::F {
        // If neither is negative, bits are ordered like the floats; the bits of a negative float are below.
        self.float_of(self.min_i(self.bits(self.round_even(value)), self.bits(self.splat(high as f32))))
    }

    /// Computes [`Lanes::nearest_level`] for values known to be within ±4194303, with fewer instructions. As floats: a
    /// level of zero may be -0.0 if `low` is negative; `high` is not.
    #[inline(always)]
    fn small_nearest_level(self, low: i32, high: i32, value: Self::F) -> Self::F {
        let level = self.round_up_to(high, value);
        if low == 0 {
            self.float_of(self.max_i(self.bits(level), self.splat_i(0)))
        } else {
            self.c_max(level, self.splat(low as f32))
        }
    }

    /// Computes [`Lanes::small_nearest_level`] from 0 on, times `unit`, of `value / unit`. `unit` is a power of two up
    /// to 2^14; the value is at least `-unit / 2`, which is rounded to zero.
    #[inline(always)]
    fn nearest_multiple(self, unit: f32, high: i32, value: Self::F) -> Self::F {
        let magic = MAGIC * unit;
        let bits = self.bits(value + self.splat(magic));
        self.float_of(self.min_i(bits, self.splat_i(magic.to_bits() as i32 + high))) - self.splat(magic)
    }

    /// Computes C's `(int)roundf(x)`: half away from zero, out of range and NaN give `i32::MIN`.
    #[inline(always)]
    fn round_away(self, value: Self::F) -> Self::I {
        // The float just below 0.5: with 0.5 itself, the value just below 0.5 would round up.
        let below_half = self.splat_i(0x3eff_ffff);
        let half = (self.bits(value) & self.splat_i(i32::MIN)) | below_half;
        self.trunc(value + self.float_of(half))
    }
}
