//! Operations of the product: sums of pairs of products for 16 rows at a time. No algorithm here: one instruction, or a
//! few, per operation.
#![expect(
    clippy::inline_always,
    reason = "code that is compiled once per vector level must be inlined into its entry"
)]

use super::panel::STRIP;

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

/// Operations on the 16 rows of a strip.
pub(super) trait Lanes: Copy {
    /// 32-bit integer of each row.
    type I: Copy;
    /// F32 of each row.
    type F: Copy;
    /// Pair of 16-bit integers of each row.
    type Pairs: Copy;

    fn zero_i(self) -> Self::I;
    fn zero_f(self) -> Self::F;
    fn load_pairs(self, pairs: &[i16; 2 * STRIP]) -> Self::Pairs;
    /// Adds to each row both products of its pair with the pair in the halves of `x`.
    fn dot(self, sum: Self::I, pairs: Self::Pairs, x: i32) -> Self::I;
    fn to_f(self, value: Self::I) -> Self::F;
    fn load(self, values: &[f32; STRIP]) -> Self::F;
    fn store(self, values: Self::F, out: &mut [f32; STRIP]);
    fn splat(self, value: f32) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
}

/// Arrays, for every machine; the specification of the other levels.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Lanes for Portable {
    type I = [i32; STRIP];
    type F = [f32; STRIP];
    type Pairs = [i16; 2 * STRIP];

    #[inline(always)]
    fn zero_i(self) -> Self::I {
        [0; STRIP]
    }

    #[inline(always)]
    fn zero_f(self) -> Self::F {
        [0.0; STRIP]
    }

    #[inline(always)]
    fn load_pairs(self, pairs: &[i16; 2 * STRIP]) -> Self::Pairs {
        *pairs
    }

    #[inline(always)]
    fn dot(self, mut sum: Self::I, pairs: Self::Pairs, x: i32) -> Self::I {
        let (low, high) = (i32::from(x as i16), x >> 16);
        for r in 0..STRIP {
            sum[r] += i32::from(pairs[2 * r]) * low + i32::from(pairs[2 * r + 1]) * high;
        }
        sum
    }

    #[inline(always)]
    fn to_f(self, value: Self::I) -> Self::F {
        value.map(|value| value as f32)
    }

    #[inline(always)]
    fn load(self, values: &[f32; STRIP]) -> Self::F {
        *values
    }

    #[inline(always)]
    fn store(self, values: Self::F, out: &mut [f32; STRIP]) {
        *out = values;
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; STRIP]
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|r| a[r] + b[r])
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|r| a[r] - b[r])
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|r| a[r] * b[r])
    }
}
