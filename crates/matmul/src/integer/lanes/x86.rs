//! AVX2 and AVX-512, each with and without the fused instruction of VNNI.
#![allow(unsafe_code, reason = "vector instructions; each call is justified by the token it goes through")]
#![allow(clippy::wildcard_imports, reason = "intrinsics carry their prefix")]

use std::arch::x86_64::*;

use gguf_core::simd::{Avx2, Avx512, VectorLoop};

use super::{Lanes, STRIP};

/// Defines a token: a value proves that the machine has the instructions.
macro_rules! token {
    ($(#[$doc:meta])* $name:ident($base:ident): $feature:tt, $features:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(in crate::integer) struct $name($base);

        impl $name {
            /// Returns the token if the machine has the instructions.
            pub(in crate::integer) fn new() -> Option<Self> {
                $base::new().filter(|_| is_x86_feature_detected!($feature)).map(Self)
            }

            /// Runs code in a function that is compiled with these instructions.
            pub(in crate::integer) fn run<W: VectorLoop>(self, work: W) -> W::Output {
                #[target_feature(enable = $features)]
                fn entry<W: VectorLoop>(work: W) -> W::Output {
                    work.run()
                }
                // SAFETY: the token exists, so the machine has the instructions.
                unsafe { entry(work) }
            }
        }
    };
}

token! {
    /// Proof that the machine has AVX-VNNI and all of [`Avx2`].
    AvxVnni(Avx2): "avxvnni", "avx2,fma,f16c,avxvnni"
}
token! {
    /// Proof that the machine has AVX-512 VNNI and all of [`Avx512`].
    Avx512Vnni(Avx512): "avx512vnni", "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
}

/// Defines the expression that adds the products of pairs to a vector of sums. A closure would be a function without
/// the instructions.
macro_rules! dots {
    ($($name:ident($sum:ident, $pairs:ident, $x:ident) = $body:expr;)*) => {
        $(dots!(@ ($) $name $sum $pairs $x $body);)*
    };
    (@ ($d:tt) $name:ident $sum:ident $pairs:ident $x:ident $body:expr) => {
        macro_rules! $name {
            ($d a:expr, $d b:expr, $d c:expr) => {{
                let ($sum, $pairs, $x) = ($d a, $d b, $d c);
                $body
            }};
        }
    };
}

dots! {
    two_instructions_8(sum, pairs, x) = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, x));
    one_instruction_8(sum, pairs, x) = _mm256_dpwssd_avx_epi32(sum, pairs, x);
    two_instructions_16(sum, pairs, x) = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, x));
    one_instruction_16(sum, pairs, x) = _mm512_dpwssd_epi32(sum, pairs, x);
}

/// Implements the operations with two vectors of 8 rows; `$dot` adds the products of pairs.
macro_rules! two_vectors {
    ($name:ident, $dot:ident) => {
        impl Lanes for $name {
            type I = [__m256i; 2];
            type F = [__m256; 2];
            type Pairs = [__m256i; 2];

            #[inline(always)]
            fn zero_i(self) -> Self::I {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { [_mm256_setzero_si256(); 2] }
            }

            #[inline(always)]
            fn zero_f(self) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { [_mm256_setzero_ps(); 2] }
            }

            #[inline(always)]
            fn load_pairs(self, pairs: &[i16; 2 * STRIP]) -> Self::Pairs {
                let start = pairs.as_ptr();
                // SAFETY: the token proves the instruction; both loads are inside the array.
                unsafe { [_mm256_loadu_si256(start.cast()), _mm256_loadu_si256(start.add(STRIP).cast())] }
            }

            #[inline(always)]
            fn dot(self, sum: Self::I, pairs: Self::Pairs, x: i32) -> Self::I {
                // SAFETY: the token proves the instructions; nothing here touches memory.
                unsafe {
                    let x = _mm256_set1_epi32(x);
                    [$dot!(sum[0], pairs[0], x), $dot!(sum[1], pairs[1], x)]
                }
            }

            #[inline(always)]
            fn to_f(self, value: Self::I) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { [_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])] }
            }

            #[inline(always)]
            fn load(self, values: &[f32; STRIP]) -> Self::F {
                let start = values.as_ptr();
                // SAFETY: the token proves the instruction; both loads are inside the array.
                unsafe { [_mm256_loadu_ps(start), _mm256_loadu_ps(start.add(STRIP / 2))] }
            }

            #[inline(always)]
            fn store(self, values: Self::F, out: &mut [f32; STRIP]) {
                let start = out.as_mut_ptr();
                // SAFETY: the token proves the instruction; both stores are inside the array.
                unsafe {
                    _mm256_storeu_ps(start, values[0]);
                    _mm256_storeu_ps(start.add(STRIP / 2), values[1]);
                }
            }

            #[inline(always)]
            fn splat(self, value: f32) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { [_mm256_set1_ps(value); 2] }
            }

            #[inline(always)]
            fn add(self, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
            }

            #[inline(always)]
            fn sub(self, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
            }

            #[inline(always)]
            fn mul(self, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
            }
        }
    };
}

two_vectors!(Avx2, two_instructions_8);
two_vectors!(AvxVnni, one_instruction_8);

/// Implements the operations with one vector of 16 rows; `$dot` adds the products of pairs.
macro_rules! one_vector {
    ($name:ident, $dot:ident) => {
        impl Lanes for $name {
            type I = __m512i;
            type F = __m512;
            type Pairs = __m512i;

            #[inline(always)]
            fn zero_i(self) -> Self::I {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { _mm512_setzero_si512() }
            }

            #[inline(always)]
            fn zero_f(self) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { _mm512_setzero_ps() }
            }

            #[inline(always)]
            fn load_pairs(self, pairs: &[i16; 2 * STRIP]) -> Self::Pairs {
                // SAFETY: the token proves the instruction; the load is the array.
                unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
            }

            #[inline(always)]
            fn dot(self, sum: Self::I, pairs: Self::Pairs, x: i32) -> Self::I {
                // SAFETY: the token proves the instructions; nothing here touches memory.
                unsafe { $dot!(sum, pairs, _mm512_set1_epi32(x)) }
            }

            #[inline(always)]
            fn to_f(self, value: Self::I) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { _mm512_cvtepi32_ps(value) }
            }

            #[inline(always)]
            fn load(self, values: &[f32; STRIP]) -> Self::F {
                // SAFETY: the token proves the instruction; the load is the array.
                unsafe { _mm512_loadu_ps(values.as_ptr()) }
            }

            #[inline(always)]
            fn store(self, values: Self::F, out: &mut [f32; STRIP]) {
                // SAFETY: the token proves the instruction; the store is the array.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr(), values) }
            }

            #[inline(always)]
            fn splat(self, value: f32) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { _mm512_set1_ps(value) }
            }

            #[inline(always)]
            fn add(self, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { _mm512_add_ps(a, b) }
            }

            #[inline(always)]
            fn sub(self, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { _mm512_sub_ps(a, b) }
            }

            #[inline(always)]
            fn mul(self, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the token proves the instruction; nothing here touches memory.
                unsafe { _mm512_mul_ps(a, b) }
            }
        }
    };
}

one_vector!(Avx512, two_instructions_16);
one_vector!(Avx512Vnni, one_instruction_16);
