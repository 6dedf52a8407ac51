//! Quantizers in both their forms, scalar and in lanes, and the dispatch to the form that runs.

use std::marker::PhantomData;

use super::codec::SourceRows;
use super::lanes::Lanes;
#[cfg(all(test, feature = "portable"))]
use super::lanes::portable::Portable;
use gguf_core::simd::{SimdLevel, VectorLoop};

/// A quantizer in both its forms, which give the same bytes.
pub(crate) trait Kernel: Sized {
    /// Runs the specification, block by block.
    fn scalar(self);

    /// Runs in a level's lanes. Must be `#[inline(always)]`, as must everything it calls on vectors, except through
    /// [`Lanes::call`].
    fn lanes<L: Lanes>(self, lanes: L);
}

/// Quantizer of rows to the blocks of a type.
pub(crate) trait RowsKernel {
    /// Runs the specification, as [`Kernel::scalar`].
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]);

    /// Runs in a level's lanes, as [`Kernel::lanes`].
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]);
}

/// Quantizes rows of checked lengths at a level that the machine has.
pub(crate) fn quantize_with<K: RowsKernel>(level: SimdLevel, rows: &SourceRows<'_>, dst: &mut [u8]) {
    dispatch(level, OnRows::<K> { rows, dst, kernel: PhantomData });
}

/// A kernel with the rows that it quantizes.
struct OnRows<'a, K> {
    rows: &'a SourceRows<'a>,
    dst: &'a mut [u8],
    kernel: PhantomData<K>,
}

impl<K: RowsKernel> Kernel for OnRows<'_, K> {
    fn scalar(self) {
        K::scalar(self.rows, self.dst);
    }

    #[inline(always)]
    fn lanes<L: Lanes>(self, l: L) {
        K::lanes(l, self.rows, self.dst);
    }
}

/// Runs a quantizer at a level, or in the scalar form if the machine lacks the level.
///
/// In tests with the feature `portable` a level that the machine lacks runs on portable lanes.
pub(crate) fn dispatch<K: Kernel>(level: SimdLevel, kernel: K) {
    match level {
        SimdLevel::Scalar => return kernel.scalar(),
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => {
            if let Some(lanes) = gguf_core::simd::Avx512::new() {
                return lanes.call(OnLanes { kernel, lanes });
            }
        }
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => {
            if let Some(lanes) = gguf_core::simd::Avx2::new() {
                return lanes.call(OnLanes { kernel, lanes });
            }
        }
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon => {
            let lanes = super::lanes_neon::Neon;
            return lanes.call(OnLanes { kernel, lanes });
        }
        _ => {}
    }
    #[cfg(all(test, feature = "portable"))]
    Portable.call(OnLanes { kernel, lanes: Portable });
    #[cfg(not(all(test, feature = "portable")))]
    kernel.scalar();
}

/// A kernel with the lanes that it runs in.
struct OnLanes<K, L> {
    kernel: K,
    lanes: L,
}

impl<K: Kernel, L: Lanes> VectorLoop for OnLanes<K, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.kernel.lanes(self.lanes);
    }
}
