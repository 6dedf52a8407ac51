//! Rows of the types that search on a code book, in both forms of the search.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::codec::SourceRows;
use super::grid_lanes::LaneSearch;
use super::grid_search::{OffGrid, ScalarSearch, Search};
use super::grid_trials::SearchScratch;
use super::kernel::RowsKernel;
use super::lanes::Lanes;
use super::superblock::SUPER;

/// A type whose super-blocks are quantized by a [`Search`] into `B` bytes.
pub(super) trait GridType<const B: usize> {
    fn quantize<S: Search>(
        search: S,
        x: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        out: &mut [u8; B],
    ) -> Result<(), OffGrid>;
}

/// Kernel of all super-blocks of a grid type.
pub(super) struct QuantizeGrid<Q, const B: usize>(PhantomData<Q>);

impl<Q: GridType<B>, const B: usize> RowsKernel for QuantizeGrid<Q, B> {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        blocks::<_, Q, B>(ScalarSearch, rows, dst);
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        let scratch = RefCell::new(SearchScratch::EMPTY);
        blocks::<_, Q, B>(LaneSearch::new(l, &scratch), rows, dst);
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
