//! Levels of the product: sums of pairs of products for 16 rows at a time. No algorithm here: one instruction, or a
//! few, per operation.

use gguf_core::simd::SimdLevel;

use super::kernel::{Multiply, STRIP};

#[cfg(target_arch = "x86_64")]
mod x86;

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

/// Instructions of the product.
#[derive(Clone, Copy, Debug)]
pub struct IntegerKernel(Kernel);

#[derive(Clone, Copy, Debug)]
enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(gguf_core::simd::Avx2),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(x86::AvxVnni),
    #[cfg(target_arch = "x86_64")]
    Avx512(gguf_core::simd::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(x86::Avx512Vnni),
}

impl IntegerKernel {
    /// Returns the fastest kernel of this machine with vectors of at most the width of a level.
    #[must_use]
    pub fn of(level: SimdLevel) -> Self {
        Self::available().filter(|kernel| kernel.level() <= level).last().unwrap_or(Self(Kernel::Portable))
    }

    /// Returns the kernels of this machine, the fastest of each level last.
    pub fn available() -> impl Iterator<Item = Self> {
        let portable = std::iter::once(Kernel::Portable);
        #[cfg(target_arch = "x86_64")]
        let kernels = {
            use gguf_core::simd::{Avx2, Avx512};
            let own = [
                Avx2::new().map(Kernel::Avx2),
                x86::AvxVnni::new().map(Kernel::AvxVnni),
                Avx512::new().map(Kernel::Avx512),
                x86::Avx512Vnni::new().map(Kernel::Avx512Vnni),
            ];
            portable.chain(own.into_iter().flatten())
        };
        #[cfg(not(target_arch = "x86_64"))]
        let kernels = portable;
        kernels.map(Self)
    }

    /// Name of the instructions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Kernel::Portable => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kernel::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512Vnni(_) => "avx512-vnni",
        }
    }

    fn level(self) -> SimdLevel {
        match self.0 {
            Kernel::Portable => SimdLevel::Scalar,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(_) | Kernel::AvxVnni(_) => SimdLevel::Avx2,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(_) | Kernel::Avx512Vnni(_) => SimdLevel::Avx512,
        }
    }

    /// Adds the products. The tokens of a tile fill the registers of each level.
    pub(super) fn run(self, work: Multiply<'_>) {
        match self.0 {
            Kernel::Portable => work.run::<_, 2>(Portable),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(token) => token.run(x86::Run::<_, 6>(token, work)),
            #[cfg(target_arch = "x86_64")]
            Kernel::AvxVnni(token) => token.run(x86::Run::<_, 6>(token, work)),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(token) => token.run(x86::Run::<_, 12>(token, work)),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512Vnni(token) => token.run(x86::Run::<_, 12>(token, work)),
        }
    }
}

/// Arrays, for every machine; the specification of the other levels.
#[derive(Clone, Copy)]
struct Portable;

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
