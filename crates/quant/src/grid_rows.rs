//! Rows of the types that search on a code book, in both forms of the search.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::codec::SourceRows;
use super::grid_lanes::LaneSearch;
use super::grid_search::{OffGrid, ScalarSearch, Search};
use super::grid_trials::SearchScratch;
use super::kernel::{Kernel, dispatch};
use super::lanes::Lanes;
use super::superblock::SUPER;
use gguf_core::simd::SimdLevel;

/// A type whose super-blocks are quantized by a [`Search`] into `B` bytes.
pub(super) trait GridType<const B: usize> {
    /// Quantizes one super-block.
    ///
    /// # Errors
    /// [`OffGrid`] where the reference aborts.
    fn quantize<S: Search>(
        search: S,
        x: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        out: &mut [u8; B],
    ) -> Result<(), OffGrid>;
}

/// Quantizes rows to a grid type.
pub(super) fn quantize_rows<Q: GridType<B>, const B: usize>(
    level: SimdLevel,
    rows: &SourceRows<'_>,
    dst: &mut [u8],
) {
    dispatch(level, QuantizeGrid::<Q, B> { rows, dst, ty: PhantomData });
}

struct QuantizeGrid<'a, Q, const B: usize> {
    rows: &'a SourceRows<'a>,
    dst: &'a mut [u8],
    ty: PhantomData<Q>,
}

impl<Q: GridType<B>, const B: usize> Kernel for QuantizeGrid<'_, Q, B> {
    fn scalar(self) {
        blocks::<_, Q, B>(ScalarSearch, self.rows, self.dst);
    }

    #[inline(always)]
    fn lanes<L: Lanes>(self, l: L) {
        let scratch = RefCell::new(SearchScratch::EMPTY);
        blocks::<_, Q, B>(LaneSearch::new(l, &scratch), self.rows, self.dst);
    }
}

#[inline(always)]
fn blocks<S: Search, Q: GridType<B>, const B: usize>(search: S, rows: &SourceRows<'_>, dst: &mut [u8]) {
    for (index, ((x, importance), out)) in rows.blocks().zip(dst.as_chunks_mut().0).enumerate() {
        if Q::quantize(search, x, importance, out).is_err() {
            rows.refused.set(Some(index));
            return;
        }
    }
}
