//! A rectangle of a matrix: the part of a weight that is decoded or packed at once.

use std::ops::Range;

/// Rows and columns of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rectangle {
    pub(super) rows: Range<u64>,
    pub(super) cols: Range<u64>,
}

impl Rectangle {
    pub(super) fn width(&self) -> usize {
        (self.cols.end - self.cols.start) as usize
    }

    pub(super) fn n_elems(&self) -> u64 {
        (self.rows.end - self.rows.start) * (self.cols.end - self.cols.start)
    }

    /// Pairs every row with its part of `out`, which has `per_row` items for each row.
    pub(super) fn split_rows<'o, T>(
        &self,
        out: &'o mut [T],
        per_row: usize,
    ) -> impl Iterator<Item = (u64, &'o mut [T])> + use<'o, T> {
        self.rows.clone().zip(out.chunks_exact_mut(per_row.max(1)))
    }

    /// Returns the columns of a row as elements of a matrix that is stored row after row, `n_cols` elements each.
    pub(super) fn elems(&self, row: u64, n_cols: u64) -> Range<u64> {
        let first = row * n_cols;
        first + self.cols.start..first + self.cols.end
    }
}
