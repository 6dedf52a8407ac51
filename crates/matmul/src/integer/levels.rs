//! Levels of the product: the algorithm with the operations of each.
#![allow(
    clippy::inline_always,
    reason = "code that is compiled once per vector level must be inlined into its entry"
)]

use gguf_core::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use gguf_core::simd::VectorLoop;

use super::kernel::Multiply;
use super::lanes::Portable;
#[cfg(target_arch = "aarch64")]
use super::lanes::neon;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Lanes, x86};

/// Instructions of the product.
#[derive(Clone, Copy, Debug)]
pub struct IntegerKernel(Kernel);

#[derive(Clone, Copy, Debug)]
enum Kernel {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon,
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
        #[cfg(target_arch = "aarch64")]
        let kernels = portable.chain([Kernel::Neon]);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let kernels = portable;
        kernels.map(Self)
    }

    /// Name of the instructions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Kernel::Portable => "scalar",
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => "neon",
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
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => SimdLevel::Neon,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(_) | Kernel::AvxVnni(_) => SimdLevel::Avx2,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(_) | Kernel::Avx512Vnni(_) => SimdLevel::Avx512,
        }
    }

    /// Adds the products. The sums of the tokens of a tile are in registers; with six of AVX2's, the compiler spills some.
    pub(super) fn run(self, work: Multiply<'_>) {
        match self.0 {
            Kernel::Portable => work.run::<_, 2>(Portable),
            // The sums of two tokens take 16 of 32 registers, the pairs of a strip 4; with three tokens the compiler spills.
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => work.run::<_, 2>(neon::Neon),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(token) => token.run(Run::<_, 5>(token, work)),
            #[cfg(target_arch = "x86_64")]
            Kernel::AvxVnni(token) => token.run(Run::<_, 5>(token, work)),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(token) => token.run(Run::<_, 12>(token, work)),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512Vnni(token) => token.run(Run::<_, 12>(token, work)),
        }
    }
}

/// Work of a token, with tiles of `T` tokens.
#[cfg(target_arch = "x86_64")]
struct Run<'a, L, const T: usize>(L, Multiply<'a>);

#[cfg(target_arch = "x86_64")]
impl<L: Lanes, const T: usize> VectorLoop for Run<'_, L, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.1.run::<L, T>(self.0);
    }
}
