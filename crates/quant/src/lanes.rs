//! Vectors in which one lane is one block: the operations that searches need, and the way to run them.
//!
//! An algorithm is written once over [`Lanes`]; `lanes_x86` and `lanes_neon` fill in instructions, in tests
//! `portable` plain arrays. Every operation rounds like its scalar counterpart and none fuses or reorders, so a lane
//! computes bit for bit what the scalar code computes for its block.

use std::ops::{Add, BitAnd, BitOr, Div, Mul, Not, Sub};

use gguf_core::simd::{SimdLevel, VectorLoop};

#[cfg(any(test, target_arch = "aarch64"))]
pub(crate) mod entries;
#[cfg(test)]
mod portable;
mod twice;

pub(crate) use twice::Twice;

/// A quantizer in both its forms, which give the same bytes.
pub(crate) trait Kernel: Sized {
    /// The specification, block by block.
    fn scalar(self);

    /// In a level's lanes. Must be `#[inline(always)]`, as must be all it calls on vectors, except through
    /// [`Lanes::call`].
    fn lanes<L: Lanes>(self, lanes: L);
}

/// Runs a quantizer at a level: the scalar form where the machine lacks the level.
///
/// In tests a level that the machine lacks stands for portable lanes.
pub(crate) fn dispatch<K: Kernel>(level: SimdLevel, kernel: K) {
    match level {
        SimdLevel::Scalar => return kernel.scalar(),
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => {
            if let Some(lanes) = gguf_core::simd::Avx512::new() {
                return lanes.call(OnLanes { kernel, lanes });
            }
        }
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => {
            if let Some(lanes) = gguf_core::simd::Avx2::new() {
                return lanes.call(OnLanes { kernel, lanes });
            }
        }
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon => {
            let lanes = super::lanes_neon::Neon;
            return lanes.call(OnLanes { kernel, lanes });
        }
        _ => {}
    }
    #[cfg(test)]
    portable::Portable.call(OnLanes { kernel, lanes: portable::Portable });
    #[cfg(not(test))]
    kernel.scalar();
}

/// A kernel with the lanes that it runs in.
struct OnLanes<K, L> {
    kernel: K,
    lanes: L,
}

impl<K: Kernel, L: Lanes> VectorLoop for OnLanes<K, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.kernel.lanes(self.lanes);
    }
}

/// More lanes than any level has, also when doubled twice.
pub(crate) const MAX_WIDTH: usize = 64;

/// 1.5 * 2^23: adding it rounds to an integer, half to even, and leaves that integer in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// A level's vectors; a value proves that the machine has the instructions.
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
    /// Truth values.
    type M: Copy + BitAnd<Output = Self::M> + BitOr<Output = Self::M> + Not<Output = Self::M>;
    /// Eight floats to look up.
    type T: Copy + Sub<Output = Self::T> + Mul<Output = Self::T>;

    /// Runs code as a function of its own that is compiled for this level: once, however many kernels share it.
    fn call<W: VectorLoop>(self, work: W) -> W::Output;

    /// The same float in all lanes.
    fn splat(self, value: f32) -> Self::F;
    /// The same integer in all lanes.
    fn splat_i(self, value: i32) -> Self::I;
    /// The first `WIDTH` floats.
    fn load(self, src: &[f32]) -> Self::F;
    /// To the first `WIDTH` floats.
    fn store(self, value: Self::F, dst: &mut [f32]);
    /// To the first `WIDTH` integers.
    fn store_i(self, value: Self::I, dst: &mut [i32]);
    /// The low byte of each lane to the first `WIDTH` bytes.
    fn store_low_bytes(self, value: Self::I, dst: &mut [u8]);
    /// The first 16 columns of rows: lane `r` of column `c` is `src[r * stride + c]`. For what takes them up at once.
    fn tile(self, src: &[f32], stride: usize) -> [Self::F; 16];
    /// Columns of rows, as [`Lanes::tile`] has them; `out` has a multiple of 16. Goes through memory.
    fn columns(self, src: &[f32], stride: usize, out: &mut [Self::F]);

    /// Magnitude.
    fn abs(self, value: Self::F) -> Self::F;
    /// Square root, correctly rounded.
    fn sqrt(self, value: Self::F) -> Self::F;
    /// C's `a > b ? a : b`.
    fn c_max(self, a: Self::F, b: Self::F) -> Self::F;
    /// C's `a < b ? a : b`.
    fn c_min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The nearest integer as a float, half to even; what is no number stays so.
    fn round_even(self, value: Self::F) -> Self::F;
    /// The bits of floats.
    fn bits(self, value: Self::F) -> Self::I;
    /// The floats of bits.
    fn float_of(self, value: Self::I) -> Self::F;
    /// Integers as floats, nearest.
    fn to_f(self, value: Self::I) -> Self::F;
    /// C's `(int)x` as on x86: out of range and NaN give `i32::MIN`.
    fn trunc(self, value: Self::F) -> Self::I;
    /// The larger integer.
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// The smaller integer.
    fn min_i(self, a: Self::I, b: Self::I) -> Self::I;

    /// `a > b`, false for NaN.
    fn gt(self, a: Self::F, b: Self::F) -> Self::M;
    /// `a == b`, false for NaN.
    fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    /// `a == b`.
    fn eq_i(self, a: Self::I, b: Self::I) -> Self::M;
    /// `a` where the mask is set, else `b`.
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// `a` where the mask is set, else `b`.
    fn select_i(self, mask: Self::M, a: Self::I, b: Self::I) -> Self::I;
    /// One bit per lane, lane 0 lowest.
    fn mask_bits(self, mask: Self::M) -> u64;

    /// The first `WIDTH` numbers.
    fn load_u16(self, src: &[u16]) -> Self::I;
    /// Bits moved down, zeros from above; `n` below 32.
    fn shr(self, value: Self::I, n: u32) -> Self::I;
    /// The smallest lane; no lane is NaN.
    fn least(self, value: Self::F) -> f32;
    /// The smallest lane of each vector, in all its lanes; no lane is NaN.
    #[inline(always)]
    fn spread_least<const S: usize>(self, values: &mut [Self::F; S]) {
        for value in values {
            *value = self.splat(self.least(*value));
        }
    }
    /// A table of eight floats.
    fn table(self, entries: &[f32; 8]) -> Self::T;
    /// A table of one float.
    fn splat_table(self, entry: f32) -> Self::T;
    /// Per lane the entry that the lowest three bits choose.
    fn lookup(self, table: Self::T, index: Self::I) -> Self::F;
    /// Per lane the entry that the lowest four bits choose.
    fn lookup_16(self, table: &[f32; 16], index: Self::I) -> Self::F;

    /// True if the mask is set anywhere.
    #[inline(always)]
    fn any(self, mask: Self::M) -> bool {
        self.mask_bits(mask) != 0
    }

    /// [`gguf_core::numeric::nearest_int`], wrapping included.
    #[inline(always)]
    fn nearest_int(self, value: Self::F) -> Self::I {
        (self.bits(value + self.splat(MAGIC)) & self.splat_i(0x007f_ffff)) - self.splat_i(0x0040_0000)
    }

    /// `nearest_int` limited to `low..=high`, as floats.
    #[inline(always)]
    fn nearest_level(self, low: i32, high: i32, value: Self::F) -> Self::F {
        let level = self.max_i(self.nearest_int(value), self.splat_i(low));
        self.to_f(self.min_i(level, self.splat_i(high)))
    }

    /// The nearest integer, half to even, at most `high`, which is not negative.
    #[inline(always)]
    fn round_up_to(self, high: i32, value: Self::F) -> Self::F {
        // Where both are not negative bits order like the floats, and those of a negative float lie below.
        self.float_of(self.min_i(self.bits(self.round_even(value)), self.bits(self.splat(high as f32))))
    }

    /// [`Lanes::nearest_level`] for values that are known to be within ±4194303, in fewer instructions. As floats: a
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

    /// [`Lanes::small_nearest_level`] from 0 on, times `unit`, of `value / unit`; `unit` is a power of two up to 2^14 and the
    /// value not below `-unit / 2`, which is rounded to zero.
    #[inline(always)]
    fn nearest_multiple(self, unit: f32, high: i32, value: Self::F) -> Self::F {
        let magic = MAGIC * unit;
        let bits = self.bits(value + self.splat(magic));
        self.float_of(self.min_i(bits, self.splat_i(magic.to_bits() as i32 + high))) - self.splat(magic)
    }

    /// C's `(int)roundf(x)`: half away from zero, out of range and NaN give `i32::MIN`.
    #[inline(always)]
    fn round_away(self, value: Self::F) -> Self::I {
        // The float below 0.5: with 0.5 itself, the one below 0.5 would round up.
        let below_half = self.splat_i(0x3eff_ffff);
        let half = (self.bits(value) & self.splat_i(i32::MIN)) | below_half;
        self.trunc(value + self.float_of(half))
    }
}
