//! AVX2 (8 lanes) and AVX-512 (16 lanes). No algorithm here: one instruction, or a few, per operation.
#![allow(
    unsafe_code,
    reason = "vector instructions; each call is justified by the token or value it goes through"
)]
#![allow(clippy::wildcard_imports, reason = "intrinsics carry their prefix")]

use std::arch::x86_64::*;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Not, Sub};

use super::lanes::Lanes;
use gguf_core::simd::{Avx2, Avx512, VectorLoop};

/// Rounding to the nearest integer, half to even.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

macro_rules! vector_types {
    ($( $name:ident($raw:ty): $( $operator:ident $method:ident $intrinsic:ident ),*; )*) => {
        $(
            #[doc = "A vector; only the level's token makes one, so a value proves the level."]
            #[derive(Clone, Copy)]
            pub(crate) struct $name($raw);
            $( impl $operator for $name {
                type Output = Self;
                #[inline(always)]
                fn $method(self, other: Self) -> Self {
                    // SAFETY: only the token makes vectors, so the machine has the instruction.
                    Self(unsafe { $intrinsic(self.0, other.0) })
                }
            } )*
        )*
    };
}

vector_types! {
    F8(__m256): Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps;
    I8(__m256i): Add add _mm256_add_epi32, Sub sub _mm256_sub_epi32, BitAnd bitand _mm256_and_si256,
        BitOr bitor _mm256_or_si256;
    M8(__m256): BitAnd bitand _mm256_and_ps, BitOr bitor _mm256_or_ps;
    F16(__m512): Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps;
    I16(__m512i): Add add _mm512_add_epi32, Sub sub _mm512_sub_epi32, BitAnd bitand _mm512_and_si512,
        BitOr bitor _mm512_or_si512;
}

impl Not for M8 {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        // SAFETY: only the token makes vectors, so the machine has the instructions.
        unsafe { Self(_mm256_xor_ps(self.0, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))) }
    }
}

/// A mask register.
#[derive(Clone, Copy)]
pub(crate) struct M16(__mmask16);

impl BitAnd for M16 {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for M16 {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Not for M16 {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Self(!self.0)
    }
}

/// Defines methods whose body is one expression of intrinsics.
macro_rules! intrinsics {
    ($( fn $name:ident($( $arg:ident: $ty:ty ),*) -> $out:ty = $body:expr; )*) => {
        $(
            #[inline(always)]
            fn $name(self, $( $arg: $ty ),*) -> $out {
                // SAFETY: the token exists, so the machine has the instructions; nothing here touches memory.
                unsafe { $body }
            }
        )*
    };
}

/// Defines `spread_least`: two or four vectors are reduced together, other numbers one by one.
macro_rules! spread_least {
    ($two:ident, $four:ident) => {
        #[inline(always)]
        fn spread_least<const S: usize>(self, values: &mut [Self::F; S]) {
            match values.as_mut_slice() {
                [a, b] => {
                    // SAFETY: the token proves the instructions; nothing here touches memory.
                    [a.0, b.0] = unsafe { $two([a.0, b.0]) };
                }
                [a, b, c, d] => {
                    // SAFETY: the token proves the instructions; nothing here touches memory.
                    [a.0, b.0, c.0, d.0] = unsafe { $four([a.0, b.0, c.0, d.0]) };
                }
                values => {
                    for value in values {
                        *value = self.splat(self.least(*value));
                    }
                }
            }
        }
    };
}

impl Lanes for Avx2 {
    const WIDTH: usize = 8;
    type F = F8;
    type I = I8;
    type M = M8;
    type T = F8;

    spread_least!(spread_least_2x8, spread_least_4x8);

    intrinsics! {
        fn splat(value: f32) -> F8 = F8(_mm256_set1_ps(value));
        fn splat_i(value: i32) -> I8 = I8(_mm256_set1_epi32(value));
        fn abs(value: F8) -> F8 = F8(_mm256_andnot_ps(_mm256_set1_ps(-0.0), value.0));
        fn sqrt(value: F8) -> F8 = F8(_mm256_sqrt_ps(value.0));
        fn c_max(a: F8, b: F8) -> F8 = F8(_mm256_max_ps(a.0, b.0));
        fn c_min(a: F8, b: F8) -> F8 = F8(_mm256_min_ps(a.0, b.0));
        fn round_even(value: F8) -> F8 = F8(_mm256_round_ps::<NEAREST>(value.0));
        fn bits(value: F8) -> I8 = I8(_mm256_castps_si256(value.0));
        fn float_of(value: I8) -> F8 = F8(_mm256_castsi256_ps(value.0));
        fn to_f(value: I8) -> F8 = F8(_mm256_cvtepi32_ps(value.0));
        fn trunc(value: F8) -> I8 = I8(_mm256_cvttps_epi32(value.0));
        fn max_i(a: I8, b: I8) -> I8 = I8(_mm256_max_epi32(a.0, b.0));
        fn min_i(a: I8, b: I8) -> I8 = I8(_mm256_min_epi32(a.0, b.0));
        fn gt(a: F8, b: F8) -> M8 = M8(_mm256_cmp_ps::<_CMP_GT_OQ>(a.0, b.0));
        fn eq(a: F8, b: F8) -> M8 = M8(_mm256_cmp_ps::<_CMP_EQ_OQ>(a.0, b.0));
        fn eq_i(a: I8, b: I8) -> M8 = M8(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.0, b.0)));
        fn select(mask: M8, a: F8, b: F8) -> F8 = F8(_mm256_blendv_ps(b.0, a.0, mask.0));
        fn select_i(mask: M8, a: I8, b: I8) -> I8 =
            I8(_mm256_blendv_epi8(b.0, a.0, _mm256_castps_si256(mask.0)));
        fn mask_bits(mask: M8) -> u64 = u64::from(_mm256_movemask_ps(mask.0) as u8);
        fn shr(value: I8, n: u32) -> I8 = I8(_mm256_srl_epi32(value.0, _mm_cvtsi32_si128(n as i32)));
        fn splat_table(entry: f32) -> F8 = F8(_mm256_set1_ps(entry));
        fn lookup(table: F8, index: I8) -> F8 = F8(_mm256_permutevar8x32_ps(table.0, index.0));
        fn least(value: F8) -> f32 = {
            let four = _mm_min_ps(_mm256_castps256_ps128(value.0), _mm256_extractf128_ps::<1>(value.0));
            let two = _mm_min_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_min_ss(two, _mm_shuffle_ps::<1>(two, two)))
        };
    }

    #[inline(always)]
    fn call<W: VectorLoop>(self, work: W) -> W::Output {
        self.run(work)
    }

    #[inline(always)]
    fn load_u16(self, src: &[u16]) -> I8 {
        let src: &[u16; 8] = src.first_chunk().expect("callers pass a whole vector");
        // SAFETY: 16 bytes are readable; the load needs no alignment; the token proves the instructions.
        I8(unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(src.as_ptr().cast())) })
    }

    #[inline(always)]
    fn table(self, entries: &[f32; 8]) -> F8 {
        self.load(entries)
    }

    #[inline(always)]
    fn lookup_16(self, table: &[f32; 16], index: I8) -> F8 {
        let (low, high) = (self.load(table), self.load(&table[8..]));
        // SAFETY: the token proves the instructions; nothing here touches memory.
        F8(unsafe {
            let low = _mm256_permutevar8x32_ps(low.0, index.0);
            let high = _mm256_permutevar8x32_ps(high.0, index.0);
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index.0)))
        })
    }

    #[inline(always)]
    fn load(self, src: &[f32]) -> F8 {
        let src: &[f32; 8] = src.first_chunk().expect("callers pass a whole vector");
        // SAFETY: 8 floats are readable; the load needs no alignment; the token proves the instruction.
        F8(unsafe { _mm256_loadu_ps(src.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, value: F8, dst: &mut [f32]) {
        let dst: &mut [f32; 8] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: 8 floats are writable; the store needs no alignment; the token proves the instruction.
        unsafe { _mm256_storeu_ps(dst.as_mut_ptr(), value.0) }
    }

    #[inline(always)]
    fn store_i(self, value: I8, dst: &mut [i32]) {
        let dst: &mut [i32; 8] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: 32 bytes are writable; the store needs no alignment; the token proves the instruction.
        unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), value.0) }
    }

    #[inline(always)]
    fn store_low_bytes(self, value: I8, dst: &mut [u8]) {
        let dst: &mut [u8; 8] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: the token proves the instructions; nothing here touches memory.
        let low = unsafe {
            let pick = _mm256_setr_epi8(
                0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, //
                0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
            );
            let picked = _mm256_shuffle_epi8(value.0, pick);
            let low = _mm256_castsi256_si128(picked);
            _mm_cvtsi128_si64(_mm_unpacklo_epi32(low, _mm256_extracti128_si256::<1>(picked)))
        };
        *dst = low.to_le_bytes();
    }

    #[inline(always)]
    fn tile(self, src: &[f32], stride: usize) -> [F8; 16] {
        let mut tile = [self.splat(0.0); 16];
        for (index, out) in tile.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let mut rows = [self.splat(0.0).0; 8];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = self.load(&src[r * stride + index * 8..]).0;
            }
            // SAFETY: the token proves the instructions; nothing here touches memory.
            for (out, column) in out.iter_mut().zip(unsafe { transpose_8(rows) }) {
                *out = F8(column);
            }
        }
        tile
    }

    #[inline(always)]
    fn columns(self, src: &[f32], stride: usize, out: &mut [F8]) {
        // SAFETY: the token proves the instructions.
        unsafe { columns_8(self, src, stride, out) }
    }
}

/// Runs [`Lanes::columns`] as one function for all callers: inlined, it would be most of the code of many kernels.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn columns_8(l: Avx2, src: &[f32], stride: usize, out: &mut [F8]) {
    for (index, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        *out = l.tile(&src[index * 16..], stride);
    }
}

/// Transposes 8 × 8 floats: pairs, then fours, then halves.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_8(r: [__m256; 8]) -> [__m256; 8] {
    let pairs = |a, b| (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let (a0, a1) = pairs(r[0], r[1]);
    let (a2, a3) = pairs(r[2], r[3]);
    let (a4, a5) = pairs(r[4], r[5]);
    let (a6, a7) = pairs(r[6], r[7]);
    let fours = |a, b| (_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b));
    let (b0, b1) = fours(a0, a2);
    let (b2, b3) = fours(a1, a3);
    let (b4, b5) = fours(a4, a6);
    let (b6, b7) = fours(a5, a7);
    let low = |a, b| _mm256_permute2f128_ps::<0x20>(a, b);
    let high = |a, b| _mm256_permute2f128_ps::<0x31>(a, b);
    [
        low(b0, b4),
        low(b1, b5),
        low(b2, b6),
        low(b3, b7),
        high(b0, b4),
        high(b1, b5),
        high(b2, b6),
        high(b3, b7),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn spread_least_2x8([a, b]: [__m256; 2]) -> [__m256; 2] {
    let pairs = _mm256_min_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let least = _mm256_min_ps(pairs, _mm256_permute_ps::<0x4e>(pairs));
    let least = _mm256_min_ps(least, _mm256_permute2f128_ps::<1>(least, least));
    [_mm256_permute_ps::<0x00>(least), _mm256_permute_ps::<0x55>(least)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn spread_least_4x8([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    let ab = _mm256_min_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let cd = _mm256_min_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    let least = _mm256_min_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
    let least = _mm256_min_ps(least, _mm256_permute2f128_ps::<1>(least, least));
    [
        _mm256_permute_ps::<0x00>(least),
        _mm256_permute_ps::<0x55>(least),
        _mm256_permute_ps::<0xaa>(least),
        _mm256_permute_ps::<0xff>(least),
    ]
}

/// Spreads the least of each quarter to all lanes of the quarter.
#[inline]
#[target_feature(enable = "avx512f")]
fn least_of_quarters(value: __m512) -> __m512 {
    let least = _mm512_min_ps(value, _mm512_permute_ps::<0x4e>(value));
    _mm512_min_ps(least, _mm512_permute_ps::<0xb1>(least))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn spread_least_2x16([a, b]: [__m512; 2]) -> [__m512; 2] {
    let ab = _mm512_min_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    let least = least_of_quarters(_mm512_min_ps(ab, _mm512_shuffle_f32x4::<0xb1>(ab, ab)));
    [_mm512_shuffle_f32x4::<0x00>(least, least), _mm512_shuffle_f32x4::<0xff>(least, least)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn spread_least_4x16([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let ab = _mm512_min_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    let cd = _mm512_min_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
    let least = _mm512_min_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
    let least = least_of_quarters(least);
    [
        _mm512_shuffle_f32x4::<0x00>(least, least),
        _mm512_shuffle_f32x4::<0x55>(least, least),
        _mm512_shuffle_f32x4::<0xaa>(least, least),
        _mm512_shuffle_f32x4::<0xff>(least, least),
    ]
}

impl Lanes for Avx512 {
    const WIDTH: usize = 16;
    type F = F16;
    type I = I16;
    type M = M16;
    type T = F16;

    spread_least!(spread_least_2x16, spread_least_4x16);

    intrinsics! {
        fn splat(value: f32) -> F16 = F16(_mm512_set1_ps(value));
        fn splat_i(value: i32) -> I16 = I16(_mm512_set1_epi32(value));
        fn abs(value: F16) -> F16 = F16(_mm512_abs_ps(value.0));
        fn sqrt(value: F16) -> F16 = F16(_mm512_sqrt_ps(value.0));
        fn c_max(a: F16, b: F16) -> F16 = F16(_mm512_max_ps(a.0, b.0));
        fn c_min(a: F16, b: F16) -> F16 = F16(_mm512_min_ps(a.0, b.0));
        fn round_even(value: F16) -> F16 = F16(_mm512_roundscale_ps::<NEAREST>(value.0));
        fn bits(value: F16) -> I16 = I16(_mm512_castps_si512(value.0));
        fn float_of(value: I16) -> F16 = F16(_mm512_castsi512_ps(value.0));
        fn to_f(value: I16) -> F16 = F16(_mm512_cvtepi32_ps(value.0));
        fn trunc(value: F16) -> I16 = I16(_mm512_cvttps_epi32(value.0));
        fn max_i(a: I16, b: I16) -> I16 = I16(_mm512_max_epi32(a.0, b.0));
        fn min_i(a: I16, b: I16) -> I16 = I16(_mm512_min_epi32(a.0, b.0));
        fn gt(a: F16, b: F16) -> M16 = M16(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a.0, b.0));
        fn eq(a: F16, b: F16) -> M16 = M16(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a.0, b.0));
        fn eq_i(a: I16, b: I16) -> M16 = M16(_mm512_cmpeq_epi32_mask(a.0, b.0));
        fn select(mask: M16, a: F16, b: F16) -> F16 = F16(_mm512_mask_blend_ps(mask.0, b.0, a.0));
        fn select_i(mask: M16, a: I16, b: I16) -> I16 = I16(_mm512_mask_blend_epi32(mask.0, b.0, a.0));
        fn shr(value: I16, n: u32) -> I16 = I16(_mm512_srl_epi32(value.0, _mm_cvtsi32_si128(n as i32)));
        fn splat_table(entry: f32) -> F16 = F16(_mm512_set1_ps(entry));
        // A table holds its entries twice, so the fourth bit of an index does not matter.
        fn lookup(table: F16, index: I16) -> F16 = F16(_mm512_permutexvar_ps(index.0, table.0));
        fn least(value: F16) -> f32 = _mm512_reduce_min_ps(value.0);
    }

    #[inline(always)]
    fn mask_bits(self, mask: M16) -> u64 {
        u64::from(mask.0)
    }

    #[inline(always)]
    fn call<W: VectorLoop>(self, work: W) -> W::Output {
        self.run(work)
    }

    #[inline(always)]
    fn load_u16(self, src: &[u16]) -> I16 {
        let src: &[u16; 16] = src.first_chunk().expect("callers pass a whole vector");
        // SAFETY: 32 bytes are readable; the load needs no alignment; the token proves the instructions.
        I16(unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(src.as_ptr().cast())) })
    }

    #[inline(always)]
    fn table(self, entries: &[f32; 8]) -> F16 {
        // SAFETY: 32 bytes are readable; the load needs no alignment; the token proves the instructions.
        F16(unsafe { _mm512_broadcast_f32x8(_mm256_loadu_ps(entries.as_ptr())) })
    }

    #[inline(always)]
    fn lookup_16(self, table: &[f32; 16], index: I16) -> F16 {
        let table = self.load(table);
        // SAFETY: the token proves the instruction; nothing here touches memory.
        F16(unsafe { _mm512_permutexvar_ps(index.0, table.0) })
    }

    #[inline(always)]
    fn load(self, src: &[f32]) -> F16 {
        let src: &[f32; 16] = src.first_chunk().expect("callers pass a whole vector");
        // SAFETY: 16 floats are readable; the load needs no alignment; the token proves the instruction.
        F16(unsafe { _mm512_loadu_ps(src.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, value: F16, dst: &mut [f32]) {
        let dst: &mut [f32; 16] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: 16 floats are writable; the store needs no alignment; the token proves the instruction.
        unsafe { _mm512_storeu_ps(dst.as_mut_ptr(), value.0) }
    }

    #[inline(always)]
    fn store_i(self, value: I16, dst: &mut [i32]) {
        let dst: &mut [i32; 16] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: 64 bytes are writable; the store needs no alignment; the token proves the instruction.
        unsafe { _mm512_storeu_si512(dst.as_mut_ptr().cast(), value.0) }
    }

    #[inline(always)]
    fn store_low_bytes(self, value: I16, dst: &mut [u8]) {
        let dst: &mut [u8; 16] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: 16 bytes are writable; the store needs no alignment; the token proves the instructions.
        unsafe { _mm_storeu_si128(dst.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(value.0)) }
    }

    #[inline(always)]
    fn tile(self, src: &[f32], stride: usize) -> [F16; 16] {
        let mut rows = [self.splat(0.0).0; 16];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = self.load(&src[r * stride..]).0;
        }
        // SAFETY: the token proves the instructions; nothing here touches memory.
        let columns = unsafe { transpose_16(&rows) };
        let mut tile = [self.splat(0.0); 16];
        for (out, column) in tile.iter_mut().zip(columns) {
            *out = F16(column);
        }
        tile
    }

    #[inline(always)]
    fn columns(self, src: &[f32], stride: usize, out: &mut [F16]) {
        // SAFETY: the token proves the instructions.
        unsafe { columns_16(self, src, stride, out) }
    }
}

/// Runs [`Lanes::columns`] as one function for all callers: inlined, it would be most of the code of many kernels.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn columns_16(l: Avx512, src: &[f32], stride: usize, out: &mut [F16]) {
    for (index, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        *out = l.tile(&src[index * 16..], stride);
    }
}

/// Transposes 16 × 16 floats: 4 × 4 within each 128-bit quarter, then the quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_16(r: &[__m512; 16]) -> [__m512; 16] {
    let mut fours = [r[0]; 16];
    for g in 0..4 {
        let [a, b, c, d] = [r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]];
        let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        // Quarter q of `fours[4 g + c]` holds column 4 q + c of rows 4 g..4 g + 4.
        fours[4 * g] = _mm512_shuffle_ps::<0x44>(ab_low, cd_low);
        fours[4 * g + 1] = _mm512_shuffle_ps::<0xee>(ab_low, cd_low);
        fours[4 * g + 2] = _mm512_shuffle_ps::<0x44>(ab_high, cd_high);
        fours[4 * g + 3] = _mm512_shuffle_ps::<0xee>(ab_high, cd_high);
    }
    let mut out = [r[0]; 16];
    for c in 0..4 {
        let [g0, g1, g2, g3] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
        let low_01 = _mm512_shuffle_f32x4::<0x88>(g0, g1);
        let low_23 = _mm512_shuffle_f32x4::<0x88>(g2, g3);
        let high_01 = _mm512_shuffle_f32x4::<0xdd>(g0, g1);
        let high_23 = _mm512_shuffle_f32x4::<0xdd>(g2, g3);
        // `low` keeps quarters 0 and 2, `high` 1 and 3.
        out[c] = _mm512_shuffle_f32x4::<0x88>(low_01, low_23);
        out[8 + c] = _mm512_shuffle_f32x4::<0xdd>(low_01, low_23);
        out[4 + c] = _mm512_shuffle_f32x4::<0x88>(high_01, high_23);
        out[12 + c] = _mm512_shuffle_f32x4::<0xdd>(high_01, high_23);
    }
    out
}
