//! Pairs of vectors that act as one.

use std::ops::{Add, BitAnd, BitOr, Div, Mul, Not, Sub};

use super::Lanes;
use gguf_core::simd::VectorLoop;

/// Two vectors side by side: independent work while one waits for its own results.
#[derive(Clone, Copy)]
pub(crate) struct Twice<L>(pub L);

/// A value of [`Twice`]: low lanes, high lanes.
#[derive(Clone, Copy)]
pub(crate) struct Two<T>(pub T, pub T);

macro_rules! two_operators {
    ($( $operator:ident $method:ident; )*) => {
        $( impl<T: $operator<Output = T>> $operator for Two<T> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(self.0.$method(other.0), self.1.$method(other.1))
            }
        } )*
    };
}

two_operators! { Add add; Sub sub; Mul mul; Div div; BitAnd bitand; BitOr bitor; }

impl<T: Not<Output = T>> Not for Two<T> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Self(!self.0, !self.1)
    }
}

impl<L: Lanes> Lanes for Twice<L> {
    const WIDTH: usize = 2 * L::WIDTH;
    type F = Two<L::F>;
    type I = Two<L::I>;
    type M = Two<L::M>;
    type T = L::T;

    #[inline(always)]
    fn call<W: VectorLoop>(self, work: W) -> W::Output {
        self.0.call(work)
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        let half = self.0.splat(value);
        Two(half, half)
    }
    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        let half = self.0.splat_i(value);
        Two(half, half)
    }
    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::F {
        Two(self.0.load(src), self.0.load(&src[L::WIDTH..]))
    }
    #[inline(always)]
    fn store(self, value: Self::F, dst: &mut [f32]) {
        self.0.store(value.0, dst);
        self.0.store(value.1, &mut dst[L::WIDTH..]);
    }
    #[inline(always)]
    fn store_i(self, value: Self::I, dst: &mut [i32]) {
        self.0.store_i(value.0, dst);
        self.0.store_i(value.1, &mut dst[L::WIDTH..]);
    }
    #[inline(always)]
    fn store_low_bytes(self, value: Self::I, dst: &mut [u8]) {
        self.0.store_low_bytes(value.0, dst);
        self.0.store_low_bytes(value.1, &mut dst[L::WIDTH..]);
    }
    #[inline(always)]
    fn tile(self, src: &[f32], stride: usize) -> [Self::F; 16] {
        let zero = self.splat(0.0);
        let mut tile = [zero; 16];
        let (low, high) = (self.0.tile(src, stride), self.0.tile(&src[L::WIDTH * stride..], stride));
        for (out, (low, high)) in tile.iter_mut().zip(low.iter().zip(&high)) {
            *out = Two(*low, *high);
        }
        tile
    }
    #[inline(always)]
    fn columns(self, src: &[f32], stride: usize, out: &mut [Self::F]) {
        let zero = self.0.splat(0.0);
        for (index, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let src = &src[index * 16..];
            let (mut low, mut high) = ([zero; 16], [zero; 16]);
            self.0.columns(src, stride, &mut low);
            self.0.columns(&src[L::WIDTH * stride..], stride, &mut high);
            for (out, (low, high)) in out.iter_mut().zip(low.iter().zip(&high)) {
                *out = Two(*low, *high);
            }
        }
    }
    #[inline(always)]
    fn abs(self, value: Self::F) -> Self::F {
        Two(self.0.abs(value.0), self.0.abs(value.1))
    }
    #[inline(always)]
    fn sqrt(self, value: Self::F) -> Self::F {
        Two(self.0.sqrt(value.0), self.0.sqrt(value.1))
    }
    #[inline(always)]
    fn c_max(self, a: Self::F, b: Self::F) -> Self::F {
        Two(self.0.c_max(a.0, b.0), self.0.c_max(a.1, b.1))
    }
    #[inline(always)]
    fn c_min(self, a: Self::F, b: Self::F) -> Self::F {
        Two(self.0.c_min(a.0, b.0), self.0.c_min(a.1, b.1))
    }
    #[inline(always)]
    fn round_even(self, value: Self::F) -> Self::F {
        Two(self.0.round_even(value.0), self.0.round_even(value.1))
    }
    #[inline(always)]
    fn bits(self, value: Self::F) -> Self::I {
        Two(self.0.bits(value.0), self.0.bits(value.1))
    }
    #[inline(always)]
    fn float_of(self, value: Self::I) -> Self::F {
        Two(self.0.float_of(value.0), self.0.float_of(value.1))
    }
    #[inline(always)]
    fn to_f(self, value: Self::I) -> Self::F {
        Two(self.0.to_f(value.0), self.0.to_f(value.1))
    }
    #[inline(always)]
    fn trunc(self, value: Self::F) -> Self::I {
        Two(self.0.trunc(value.0), self.0.trunc(value.1))
    }
    #[inline(always)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        Two(self.0.max_i(a.0, b.0), self.0.max_i(a.1, b.1))
    }
    #[inline(always)]
    fn min_i(self, a: Self::I, b: Self::I) -> Self::I {
        Two(self.0.min_i(a.0, b.0), self.0.min_i(a.1, b.1))
    }
    #[inline(always)]
    fn gt(self, a: Self::F, b: Self::F) -> Self::M {
        Two(self.0.gt(a.0, b.0), self.0.gt(a.1, b.1))
    }
    #[inline(always)]
    fn eq(self, a: Self::F, b: Self::F) -> Self::M {
        Two(self.0.eq(a.0, b.0), self.0.eq(a.1, b.1))
    }
    #[inline(always)]
    fn eq_i(self, a: Self::I, b: Self::I) -> Self::M {
        Two(self.0.eq_i(a.0, b.0), self.0.eq_i(a.1, b.1))
    }
    #[inline(always)]
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F {
        Two(self.0.select(mask.0, a.0, b.0), self.0.select(mask.1, a.1, b.1))
    }
    #[inline(always)]
    fn select_i(self, mask: Self::M, a: Self::I, b: Self::I) -> Self::I {
        Two(self.0.select_i(mask.0, a.0, b.0), self.0.select_i(mask.1, a.1, b.1))
    }
    #[inline(always)]
    fn mask_bits(self, mask: Self::M) -> u64 {
        self.0.mask_bits(mask.0) | self.0.mask_bits(mask.1) << L::WIDTH
    }
    #[inline(always)]
    fn load_u16(self, src: &[u16]) -> Self::I {
        Two(self.0.load_u16(src), self.0.load_u16(&src[L::WIDTH..]))
    }
    #[inline(always)]
    fn shr(self, value: Self::I, n: u32) -> Self::I {
        Two(self.0.shr(value.0, n), self.0.shr(value.1, n))
    }
    #[inline(always)]
    fn least(self, value: Self::F) -> f32 {
        let (low, high) = (self.0.least(value.0), self.0.least(value.1));
        if low < high { low } else { high }
    }
    #[inline(always)]
    fn table(self, entries: &[f32; 8]) -> Self::T {
        self.0.table(entries)
    }
    #[inline(always)]
    fn splat_table(self, entry: f32) -> Self::T {
        self.0.splat_table(entry)
    }
    #[inline(always)]
    fn lookup(self, table: Self::T, index: Self::I) -> Self::F {
        Two(self.0.lookup(table, index.0), self.0.lookup(table, index.1))
    }
    #[inline(always)]
    fn lookup_16(self, table: &[f32; 16], index: Self::I) -> Self::F {
        Two(self.0.lookup_16(table, index.0), self.0.lookup_16(table, index.1))
    }
}
