//! Vectors in which one lane is one block: the operations that searches need, and the way to run them.
//!
//! An algorithm is written once over [`Lanes`]; `lanes_x86` and `lanes_neon` fill in instructions, [`Portable`]
//! plain arrays. Every operation rounds like its scalar counterpart and none fuses or reorders, so a lane computes
//! bit for bit what the scalar code computes for its block.

use std::ops::{Add, BitAnd, BitOr, Div, Mul, Not, Sub};

use gguf_core::numeric::{c_max, c_trunc_i32};
use gguf_core::simd::SimdLevel;

/// Code that is compiled for each level.
pub(crate) trait Kernel {
    /// Runs on this level's lanes. Must be `#[inline(always)]`, as must be all it calls on vectors.
    fn run<L: Lanes>(self, lanes: L);
}

/// Runs a kernel at a level; at `Scalar`, and where the machine lacks the level, on [`Portable`] lanes.
pub(crate) fn dispatch<K: Kernel>(level: SimdLevel, kernel: K) {
    match level {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => {
            if let Some(lanes) = super::lanes_x86::Avx512::new() {
                return lanes.run(kernel);
            }
        }
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => {
            if let Some(lanes) = super::lanes_x86::Avx2::new() {
                return lanes.run(kernel);
            }
        }
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon => return super::lanes_neon::Neon.run(kernel),
        _ => {}
    }
    kernel.run(Portable);
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
    /// Columns of rows: lane `r` of `out[c]` is `src[r * stride + c]`; `out` has a multiple of 16.
    fn columns(self, src: &[f32], stride: usize, out: &mut [Self::F]);

    /// Magnitude.
    fn abs(self, value: Self::F) -> Self::F;
    /// Square root, correctly rounded.
    fn sqrt(self, value: Self::F) -> Self::F;
    /// C's `a > b ? a : b`.
    fn c_max(self, a: Self::F, b: Self::F) -> Self::F;
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

    /// [`Lanes::nearest_level`] for values that are known to be within ±4194303, in fewer instructions.
    ///
    /// In that range the sum with `MAGIC` keeps its exponent, so its bits order like the integers they end in and
    /// taking `MAGIC` away again is exact.
    #[inline(always)]
    fn small_nearest_level(self, low: i32, high: i32, value: Self::F) -> Self::F {
        let magic = MAGIC.to_bits() as i32;
        let bits = self.max_i(self.bits(value + self.splat(MAGIC)), self.splat_i(magic + low));
        self.float_of(self.min_i(bits, self.splat_i(magic + high))) - self.splat(MAGIC)
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

/// Two vectors side by side: independent work for the gaps in which one waits for its own results.
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
    fn columns(self, src: &[f32], stride: usize, out: &mut [Self::F]) {
        // Every level's width divides 16.
        const TILE: usize = 16;
        let zero = self.0.splat(0.0);
        for (index, out) in out.chunks_exact_mut(TILE).enumerate() {
            let src = &src[index * TILE..];
            let (mut low, mut high) = ([zero; TILE], [zero; TILE]);
            self.0.columns(src, stride, &mut low);
            self.0.columns(&src[L::WIDTH * stride..], stride, &mut high);
            for (out, (low, high)) in out.iter_mut().zip(low.into_iter().zip(high)) {
                *out = Two(low, high);
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

/// Four lanes as plain arrays: for machines without vectors, and the twin of the others in tests.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const PORTABLE_WIDTH: usize = 4;

/// A vector of [`Portable`].
#[derive(Clone, Copy)]
pub(crate) struct Array<T>([T; PORTABLE_WIDTH]);

impl<T: Copy> Array<T> {
    #[inline(always)]
    fn with<U: Copy, V: Copy + Default>(self, other: Array<U>, f: impl Fn(T, U) -> V) -> Array<V> {
        let mut out = [V::default(); PORTABLE_WIDTH];
        for i in 0..PORTABLE_WIDTH {
            out[i] = f(self.0[i], other.0[i]);
        }
        Array(out)
    }
}

macro_rules! array_operators {
    ($( $element:ty: $operator:ident $method:ident $f:expr; )*) => {
        $( impl $operator for Array<$element> {
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

impl Not for Array<bool> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Self(self.0.map(|set| !set))
    }
}

/// Eight floats as a plain array.
#[derive(Clone, Copy)]
pub(crate) struct Entries([f32; 8]);

macro_rules! entries_operators {
    ($( $operator:ident $method:ident; )*) => {
        $( impl $operator for Entries {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let mut out = self.0;
                for i in 0..8 {
                    out[i] = self.0[i].$method(other.0[i]);
                }
                Self(out)
            }
        } )*
    };
}

entries_operators! { Sub sub; Mul mul; }

impl Entries {
    /// The entries.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub(crate) fn new(entries: [f32; 8]) -> Self {
        Self(entries)
    }

    /// The entry that the lowest three bits choose.
    #[inline(always)]
    pub(crate) fn get(self, index: i32) -> f32 {
        self.0[(index & 7) as usize]
    }
}

impl Lanes for Portable {
    const WIDTH: usize = PORTABLE_WIDTH;
    type F = Array<f32>;
    type I = Array<i32>;
    type M = Array<bool>;
    type T = Entries;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        Array([value; PORTABLE_WIDTH])
    }
    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        Array([value; PORTABLE_WIDTH])
    }
    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::F {
        let mut out = [0.0; PORTABLE_WIDTH];
        out.copy_from_slice(&src[..PORTABLE_WIDTH]);
        Array(out)
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
    fn columns(self, src: &[f32], stride: usize, out: &mut [Self::F]) {
        for (c, out) in out.iter_mut().enumerate() {
            for r in 0..PORTABLE_WIDTH {
                out.0[r] = src[r * stride + c];
            }
        }
    }
    #[inline(always)]
    fn abs(self, value: Self::F) -> Self::F {
        Array(value.0.map(f32::abs))
    }
    #[inline(always)]
    fn sqrt(self, value: Self::F) -> Self::F {
        Array(value.0.map(f32::sqrt))
    }
    #[inline(always)]
    fn c_max(self, a: Self::F, b: Self::F) -> Self::F {
        a.with(b, c_max)
    }
    #[inline(always)]
    fn bits(self, value: Self::F) -> Self::I {
        Array(value.0.map(|value| value.to_bits() as i32))
    }
    #[inline(always)]
    fn float_of(self, value: Self::I) -> Self::F {
        Array(value.0.map(|value| f32::from_bits(value as u32)))
    }
    #[inline(always)]
    fn to_f(self, value: Self::I) -> Self::F {
        Array(value.0.map(|value| value as f32))
    }
    #[inline(always)]
    fn trunc(self, value: Self::F) -> Self::I {
        Array(value.0.map(c_trunc_i32))
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
        let mut out = b;
        for i in 0..PORTABLE_WIDTH {
            if mask.0[i] {
                out.0[i] = a.0[i];
            }
        }
        out
    }
    #[inline(always)]
    fn select_i(self, mask: Self::M, a: Self::I, b: Self::I) -> Self::I {
        let mut out = b;
        for i in 0..PORTABLE_WIDTH {
            if mask.0[i] {
                out.0[i] = a.0[i];
            }
        }
        out
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
        Array(out)
    }
    #[inline(always)]
    fn shr(self, value: Self::I, n: u32) -> Self::I {
        Array(value.0.map(|value| (value as u32 >> n) as i32))
    }
    #[inline(always)]
    fn least(self, value: Self::F) -> f32 {
        value.0.into_iter().fold(f32::INFINITY, |least, value| if value < least { value } else { least })
    }
    #[inline(always)]
    fn table(self, entries: &[f32; 8]) -> Self::T {
        Entries(*entries)
    }
    #[inline(always)]
    fn splat_table(self, entry: f32) -> Self::T {
        Entries([entry; 8])
    }
    #[inline(always)]
    fn lookup(self, table: Self::T, index: Self::I) -> Self::F {
        Array(index.0.map(|index| table.get(index)))
    }
    #[inline(always)]
    fn lookup_16(self, table: &[f32; 16], index: Self::I) -> Self::F {
        Array(index.0.map(|index| table[(index & 15) as usize]))
    }
}
