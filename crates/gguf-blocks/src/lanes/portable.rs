//! Lanes without vector instructions, used by tests.

use std::ops::{Add, BitAnd, BitOr, Div, Mul, Not, Sub};

use super::Lanes;
use super::entries::Entries;
use gguf_core::numeric::{c_max, c_trunc_i32};
use gguf_core::simd::VectorLoop;

/// Four lanes as plain arrays: stands in for a level that the machine lacks, in tests.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const PORTABLE_WIDTH: usize = 4;

/// A vector of [`Portable`].
#[derive(Clone, Copy)]
pub(crate) struct LaneArray<T>([T; PORTABLE_WIDTH]);

impl<T: Copy> LaneArray<T> {
    #[inline(always)]
    fn with<U: Copy, V: Copy + Default>(self, other: LaneArray<U>, f: impl Fn(T, U) -> V) -> LaneArray<V> {
        let mut out = [V::default(); PORTABLE_WIDTH];
        for i in 0..PORTABLE_WIDTH {
            out[i] = f(self.0[i], other.0[i]);
        }
        LaneArray(out)
    }

    #[inline(always)]
    fn select(self, mask: LaneArray<bool>, other: Self) -> Self {
        let mut out = other;
        for i in 0..PORTABLE_WIDTH {
            if mask.0[i] {
                out.0[i] = self.0[i];
            }
        }
        out
    }
}

macro_rules! array_operators {
    ($( $element:ty: $operator:ident $method:ident $f:expr; )*) => {
        $( impl $operator for LaneArray<$element> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.with(other, $f)
            }
        } )*
    };
}

array_operators! {
    f32: Add add |a, b| a + b;
    f32: Sub sub |a, b| a - b;
    f32: Mul mul |a, b| a * b;
    f32: Div div |a, b| a / b;
    i32: Add add i32::wrapping_add;
    i32: Sub sub i32::wrapping_sub;
    i32: BitAnd bitand |a, b| a & b;
    i32: BitOr bitor |a, b| a | b;
    bool: BitAnd bitand |a, b| a & b;
    bool: BitOr bitor |a, b| a | b;
}

impl Not for LaneArray<bool> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Self(self.0.map(|set| !set))
    }
}

impl Lanes for Portable {
    const WIDTH: usize = PORTABLE_WIDTH;
    type F = LaneArray<f32>;
    type I = LaneArray<i32>;
    type M = LaneArray<bool>;
    type T = Entries;

    #[inline(always)]
    fn call<W: VectorLoop>(self, work: W) -> W::Output {
        work.run()
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        LaneArray([value; PORTABLE_WIDTH])
    }
    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        LaneArray([value; PORTABLE_WIDTH])
    }
    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::F {
        let mut out = [0.0; PORTABLE_WIDTH];
        out.copy_from_slice(&src[..PORTABLE_WIDTH]);
        LaneArray(out)
    }
    #[inline(always)]
    fn store(self, value: Self::F, dst: &mut [f32]) {
        dst[..PORTABLE_WIDTH].copy_from_slice(&value.0);
    }
    #[inline(always)]
    fn store_i(self, value: Self::I, dst: &mut [i32]) {
        dst[..PORTABLE_WIDTH].copy_from_slice(&value.0);
    }
    #[inline(always)]
    fn store_low_bytes(self, value: Self::I, dst: &mut [u8]) {
        for (dst, value) in dst[..PORTABLE_WIDTH].iter_mut().zip(value.0) {
            *dst = value as u8;
        }
    }
    #[inline(always)]
    fn tile(self, src: &[f32], stride: usize) -> [Self::F; 16] {
        let mut tile = [self.splat(0.0); 16];
        self.columns(src, stride, &mut tile);
        tile
    }
    #[inline(always)]
    fn columns(self, src: &[f32], stride: usize, out: &mut [Self::F]) {
        for (c, out) in out.iter_mut().enumerate() {
            for r in 0..PORTABLE_WIDTH {
                out.0[r] = src[r * stride + c];
            }
        }
    }
    #[inline(always)]
    fn abs(self, value: Self::F) -> Self::F {
        LaneArray(value.0.map(f32::abs))
    }
    #[inline(always)]
    fn sqrt(self, value: Self::F) -> Self::F {
        LaneArray(value.0.map(f32::sqrt))
    }
    #[inline(always)]
    fn c_max(self, a: Self::F, b: Self::F) -> Self::F {
        a.with(b, c_max)
    }
    #[inline(always)]
    fn c_min(self, a: Self::F, b: Self::F) -> Self::F {
        a.with(b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round_even(self, value: Self::F) -> Self::F {
        LaneArray(value.0.map(f32::round_ties_even))
    }
    #[inline(always)]
    fn bits(self, value: Self::F) -> Self::I {
        LaneArray(value.0.map(|value| value.to_bits() as i32))
    }
    #[inline(always)]
    fn float_of(self, value: Self::I) -> Self::F {
        LaneArray(value.0.map(|value| f32::from_bits(value as u32)))
    }
    #[inline(always)]
    fn to_f(self, value: Self::I) -> Self::F {
        LaneArray(value.0.map(|value| value as f32))
    }
    #[inline(always)]
    fn trunc(self, value: Self::F) -> Self::I {
        LaneArray(value.0.map(c_trunc_i32))
    }
    #[inline(always)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        a.with(b, i32::max)
    }
    #[inline(always)]
    fn min_i(self, a: Self::I, b: Self::I) -> Self::I {
        a.with(b, i32::min)
    }
    #[inline(always)]
    fn gt(self, a: Self::F, b: Self::F) -> Self::M {
        a.with(b, |a, b| a > b)
    }
    #[inline(always)]
    fn eq(self, a: Self::F, b: Self::F) -> Self::M {
        a.with(b, |a, b| a == b)
    }
    #[inline(always)]
    fn eq_i(self, a: Self::I, b: Self::I) -> Self::M {
        a.with(b, |a, b| a == b)
    }
    #[inline(always)]
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F {
        a.select(mask, b)
    }
    #[inline(always)]
    fn select_i(self, mask: Self::M, a: Self::I, b: Self::I) -> Self::I {
        a.select(mask, b)
    }
    #[inline(always)]
    fn mask_bits(self, mask: Self::M) -> u64 {
        mask.0.iter().rev().fold(0, |bits, set| bits << 1 | u64::from(*set))
    }
    #[inline(always)]
    fn load_u16(self, src: &[u16]) -> Self::I {
        let mut out = [0; PORTABLE_WIDTH];
        for (out, src) in out.iter_mut().zip(&src[..PORTABLE_WIDTH]) {
            *out = i32::from(*src);
        }
        LaneArray(out)
    }
    #[inline(always)]
    fn shr(self, value: Self::I, n: u32) -> Self::I {
        LaneArray(value.0.map(|value| (value as u32 >> n) as i32))
    }
    #[inline(always)]
    fn least(self, value: Self::F) -> f32 {
        value.0.into_iter().fold(f32::INFINITY, |least, value| if value < least { value } else { least })
    }
    #[inline(always)]
    fn table(self, entries: &[f32; 8]) -> Self::T {
        Entries::new(*entries)
    }
    #[inline(always)]
    fn splat_table(self, entry: f32) -> Self::T {
        Entries::new([entry; 8])
    }
    #[inline(always)]
    fn lookup(self, table: Self::T, index: Self::I) -> Self::F {
        LaneArray(index.0.map(|index| table.get(index)))
    }
    #[inline(always)]
    fn lookup_16(self, table: &[f32; 16], index: Self::I) -> Self::F {
        LaneArray(index.0.map(|index| table[(index & 15) as usize]))
    }
}
