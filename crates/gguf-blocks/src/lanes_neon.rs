//! NEON (4 lanes). No algorithm here: one instruction, or a few, per operation.
#![allow(unsafe_code, reason = "vector instructions; every AArch64 machine has them")]
#![allow(clippy::wildcard_imports, reason = "intrinsics carry their prefix")]

use std::arch::aarch64::*;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Not, Sub};

use super::lanes::Lanes;
use super::lanes::entries::Entries;
use gguf_core::simd::VectorLoop;

/// NEON, which every AArch64 machine has.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

macro_rules! vector_types {
    ($( $name:ident($raw:ty): $( $operator:ident $method:ident $intrinsic:ident ),*; )*) => {
        $(
            #[doc = "A vector."]
            #[derive(Clone, Copy)]
            pub(crate) struct $name($raw);
            $( impl $operator for $name {
                type Output = Self;
                #[inline(always)]
                fn $method(self, other: Self) -> Self {
                    // SAFETY: every AArch64 machine has the instruction; nothing here touches memory.
                    Self(unsafe { $intrinsic(self.0, other.0) })
                }
            } )*
        )*
    };
}

vector_types! {
    F4(float32x4_t): Add add vaddq_f32, Sub sub vsubq_f32, Mul mul vmulq_f32, Div div vdivq_f32;
    I4(int32x4_t): Add add vaddq_s32, Sub sub vsubq_s32, BitAnd bitand vandq_s32, BitOr bitor vorrq_s32;
    M4(uint32x4_t): BitAnd bitand vandq_u32, BitOr bitor vorrq_u32;
}

impl Not for M4 {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        // SAFETY: every AArch64 machine has the instruction; nothing here touches memory.
        Self(unsafe { vmvnq_u32(self.0) })
    }
}

/// Defines methods whose body is one expression of intrinsics.
macro_rules! intrinsics {
    ($( fn $name:ident($( $arg:ident: $ty:ty ),*) -> $out:ty = $body:expr; )*) => {
        $(
            #[inline(always)]
            fn $name(self, $( $arg: $ty ),*) -> $out {
                // SAFETY: every AArch64 machine has the instructions; nothing here touches memory.
                unsafe { $body }
            }
        )*
    };
}

impl Lanes for Neon {
    const WIDTH: usize = 4;
    type F = F4;
    type I = I4;
    type M = M4;
    type T = Entries;

    intrinsics! {
        fn splat(value: f32) -> F4 = F4(vdupq_n_f32(value));
        fn splat_i(value: i32) -> I4 = I4(vdupq_n_s32(value));
        fn abs(value: F4) -> F4 = F4(vabsq_f32(value.0));
        fn sqrt(value: F4) -> F4 = F4(vsqrtq_f32(value.0));
        // The maximum instruction propagates NaN; C's conditional does not.
        fn c_max(a: F4, b: F4) -> F4 = F4(vbslq_f32(vcgtq_f32(a.0, b.0), a.0, b.0));
        fn c_min(a: F4, b: F4) -> F4 = F4(vbslq_f32(vcltq_f32(a.0, b.0), a.0, b.0));
        fn round_even(value: F4) -> F4 = F4(vrndnq_f32(value.0));
        fn bits(value: F4) -> I4 = I4(vreinterpretq_s32_f32(value.0));
        fn float_of(value: I4) -> F4 = F4(vreinterpretq_f32_s32(value.0));
        fn to_f(value: I4) -> F4 = F4(vcvtq_f32_s32(value.0));
        fn max_i(a: I4, b: I4) -> I4 = I4(vmaxq_s32(a.0, b.0));
        fn min_i(a: I4, b: I4) -> I4 = I4(vminq_s32(a.0, b.0));
        fn gt(a: F4, b: F4) -> M4 = M4(vcgtq_f32(a.0, b.0));
        fn eq(a: F4, b: F4) -> M4 = M4(vceqq_f32(a.0, b.0));
        fn eq_i(a: I4, b: I4) -> M4 = M4(vceqq_s32(a.0, b.0));
        fn select(mask: M4, a: F4, b: F4) -> F4 = F4(vbslq_f32(mask.0, a.0, b.0));
        fn select_i(mask: M4, a: I4, b: I4) -> I4 = I4(vbslq_s32(mask.0, a.0, b.0));
        fn shr(value: I4, n: u32) -> I4 = I4(vreinterpretq_s32_u32(vshlq_u32(
            vreinterpretq_u32_s32(value.0),
            vdupq_n_s32(-(n as i32))
        )));
        fn least(value: F4) -> f32 = vminvq_f32(value.0);
    }

    #[inline(always)]
    fn trunc(self, value: F4) -> I4 {
        // The instruction saturates and makes NaN zero; x86 gives i32::MIN for both.
        // SAFETY: every AArch64 machine has the instructions; nothing here touches memory.
        unsafe {
            let limit = vdupq_n_f32(2_147_483_648.0);
            let above = vcgeq_f32(value.0, limit);
            let ordered = vceqq_f32(value.0, value.0);
            let bad = vorrq_u32(above, vmvnq_u32(ordered));
            I4(vbslq_s32(bad, vdupq_n_s32(i32::MIN), vcvtq_s32_f32(value.0)))
        }
    }

    #[inline(always)]
    fn mask_bits(self, mask: M4) -> u64 {
        let weights = [1u32, 2, 4, 8];
        // SAFETY: four integers are readable; every AArch64 machine has the instructions.
        u64::from(unsafe { vaddvq_u32(vandq_u32(mask.0, vld1q_u32(weights.as_ptr()))) })
    }

    #[inline(always)]
    fn load_u16(self, src: &[u16]) -> I4 {
        let src: &[u16; 4] = src.first_chunk().expect("callers pass a whole vector");
        // SAFETY: 8 bytes are readable; every AArch64 machine has the instructions.
        I4(unsafe { vreinterpretq_s32_u32(vmovl_u16(vld1_u16(src.as_ptr()))) })
    }

    /// Calls the function directly: the instructions are part of the baseline.
    #[inline(always)]
    fn call<W: VectorLoop>(self, work: W) -> W::Output {
        baseline(work)
    }

    #[inline(always)]
    fn table(self, entries: &[f32; 8]) -> Entries {
        Entries::new(*entries)
    }

    #[inline(always)]
    fn splat_table(self, entry: f32) -> Entries {
        Entries::new([entry; 8])
    }

    #[inline(always)]
    fn lookup(self, table: Entries, index: I4) -> F4 {
        let mut indices = [0; 4];
        self.store_i(index, &mut indices);
        self.load(&indices.map(|index| table.get(index)))
    }

    #[inline(always)]
    fn lookup_16(self, table: &[f32; 16], index: I4) -> F4 {
        let mut indices = [0; 4];
        self.store_i(index, &mut indices);
        self.load(&indices.map(|index| table[(index & 15) as usize]))
    }

    #[inline(always)]
    fn load(self, src: &[f32]) -> F4 {
        let src: &[f32; 4] = src.first_chunk().expect("callers pass a whole vector");
        // SAFETY: 4 floats are readable.
        F4(unsafe { vld1q_f32(src.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, value: F4, dst: &mut [f32]) {
        let dst: &mut [f32; 4] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: 4 floats are writable.
        unsafe { vst1q_f32(dst.as_mut_ptr(), value.0) }
    }

    #[inline(always)]
    fn store_i(self, value: I4, dst: &mut [i32]) {
        let dst: &mut [i32; 4] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: 4 integers are writable.
        unsafe { vst1q_s32(dst.as_mut_ptr(), value.0) }
    }

    #[inline(always)]
    fn store_low_bytes(self, value: I4, dst: &mut [u8]) {
        let dst: &mut [u8; 4] = dst.first_chunk_mut().expect("callers pass a whole vector");
        // SAFETY: every AArch64 machine has the instructions; nothing here touches memory.
        let low = unsafe {
            let halves = vmovn_s32(value.0);
            vget_lane_u32::<0>(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(halves, halves))))
        };
        *dst = low.to_le_bytes();
    }

    #[inline(always)]
    fn tile(self, src: &[f32], stride: usize) -> [F4; 16] {
        let mut tile = [self.splat(0.0); 16];
        self.columns(src, stride, &mut tile);
        tile
    }

    #[inline(always)]
    fn columns(self, src: &[f32], stride: usize, out: &mut [F4]) {
        for (index, out) in out.chunks_exact_mut(4).enumerate() {
            let row = |r: usize| self.load(&src[r * stride + index * 4..]).0;
            let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
            // SAFETY: every AArch64 machine has the instructions; nothing here touches memory.
            unsafe {
                let (ab, cd) = (vtrnq_f32(a, b), vtrnq_f32(c, d));
                out[0] = F4(vcombine_f32(vget_low_f32(ab.0), vget_low_f32(cd.0)));
                out[1] = F4(vcombine_f32(vget_low_f32(ab.1), vget_low_f32(cd.1)));
                out[2] = F4(vcombine_f32(vget_high_f32(ab.0), vget_high_f32(cd.0)));
                out[3] = F4(vcombine_f32(vget_high_f32(ab.1), vget_high_f32(cd.1)));
            }
        }
    }
}

/// Runs code as a separate function.
#[inline(never)]
fn baseline<W: VectorLoop>(work: W) -> W::Output {
    work.run()
}
