//! NEON: four vectors of 4 rows.
#![allow(unsafe_code, reason = "vector instructions; every AArch64 machine has them")]
#![allow(clippy::wildcard_imports, reason = "intrinsics carry their prefix")]

use std::arch::aarch64::*;

use super::{Lanes, STRIP};

/// Vectors of a strip.
const VECTORS: usize = STRIP / 4;

/// NEON, which every AArch64 machine has.
#[derive(Clone, Copy)]
pub(in crate::integer) struct Neon;

impl Lanes for Neon {
    /// For each vector of rows, sums of the products of its first two rows, then of the last two: those of the first and
    /// of the second integer of a pair are added up at the end.
    type I = [[int32x4_t; 2]; VECTORS];
    type F = [float32x4_t; VECTORS];
    type Pairs = [int16x8_t; VECTORS];

    #[inline(always)]
    fn zero_i(self) -> Self::I {
        // SAFETY: every AArch64 machine has the instruction; nothing here touches memory.
        unsafe { [[vdupq_n_s32(0); 2]; VECTORS] }
    }

    #[inline(always)]
    fn zero_f(self) -> Self::F {
        self.splat(0.0)
    }

    #[inline(always)]
    fn load_pairs(self, pairs: &[i16; 2 * STRIP]) -> Self::Pairs {
        let start = pairs.as_ptr();
        // SAFETY: every AArch64 machine has the instruction; all loads are inside the array.
        unsafe {
            [vld1q_s16(start), vld1q_s16(start.add(8)), vld1q_s16(start.add(16)), vld1q_s16(start.add(24))]
        }
    }

    #[inline(always)]
    fn dot(self, mut sum: Self::I, pairs: Self::Pairs, x: i32) -> Self::I {
        for v in 0..VECTORS {
            // SAFETY: every AArch64 machine has the instructions; nothing here touches memory.
            unsafe {
                let x = vreinterpretq_s16_s32(vdupq_n_s32(x));
                sum[v][0] = vmlal_s16(sum[v][0], vget_low_s16(pairs[v]), vget_low_s16(x));
                sum[v][1] = vmlal_high_s16(sum[v][1], pairs[v], x);
            }
        }
        sum
    }

    #[inline(always)]
    fn to_f(self, value: Self::I) -> Self::F {
        let mut out = self.zero_f();
        for v in 0..VECTORS {
            // SAFETY: every AArch64 machine has the instructions; nothing here touches memory.
            out[v] = unsafe { vcvtq_f32_s32(vpaddq_s32(value[v][0], value[v][1])) };
        }
        out
    }

    #[inline(always)]
    fn load(self, values: &[f32; STRIP]) -> Self::F {
        let start = values.as_ptr();
        // SAFETY: every AArch64 machine has the instruction; all loads are inside the array.
        unsafe {
            [vld1q_f32(start), vld1q_f32(start.add(4)), vld1q_f32(start.add(8)), vld1q_f32(start.add(12))]
        }
    }

    #[inline(always)]
    fn store(self, values: Self::F, out: &mut [f32; STRIP]) {
        for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            // SAFETY: every AArch64 machine has the instruction; the store is the array.
            unsafe { vst1q_f32(out.as_mut_ptr(), value) }
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: every AArch64 machine has the instruction; nothing here touches memory.
        unsafe { [vdupq_n_f32(value); VECTORS] }
    }

    #[inline(always)]
    fn add(self, mut a: Self::F, b: Self::F) -> Self::F {
        for v in 0..VECTORS {
            // SAFETY: every AArch64 machine has the instruction; nothing here touches memory.
            a[v] = unsafe { vaddq_f32(a[v], b[v]) };
        }
        a
    }

    #[inline(always)]
    fn sub(self, mut a: Self::F, b: Self::F) -> Self::F {
        for v in 0..VECTORS {
            // SAFETY: every AArch64 machine has the instruction; nothing here touches memory.
            a[v] = unsafe { vsubq_f32(a[v], b[v]) };
        }
        a
    }

    #[inline(always)]
    fn mul(self, mut a: Self::F, b: Self::F) -> Self::F {
        for v in 0..VECTORS {
            // SAFETY: every AArch64 machine has the instruction; nothing here touches memory.
            a[v] = unsafe { vmulq_f32(a[v], b[v]) };
        }
        a
    }
}
