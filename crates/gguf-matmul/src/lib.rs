//! Matrix products through the `gemm` crates, which are used only here: views of matrices whose bounds are checked
//! once, tiles of an output that threads write side by side, and their product, in F32 or F64.
//!
//! # Exactness
//! [`multiply`] and [`multiply_add`] sum over blocks of the inner dimension, which the `gemm` crate chooses by the
//! caches of the machine. [`ordered_multiply`] and [`ordered_multiply_add`] choose the blocks themselves, so that every
//! machine with fused multiply-add computes the same bits.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// A number type whose matrices can be multiplied: `f32` and `f64`.
pub trait Scalar: sealed::Kernel {}

impl Scalar for f32 {}
impl Scalar for f64 {}

mod sealed {
    /// Kernel signature of the `gemm` crates: sizes, output pointer and its two strides, and so on.
    pub(crate) type Gemm<T> = unsafe fn(
        usize,
        usize,
        usize,
        *mut T,
        isize,
        isize,
        bool,
        *const T,
        isize,
        isize,
        *const T,
        isize,
        isize,
        T,
        T,
        bool,
        bool,
        bool,
        gemm_common::Parallelism,
    );

    #[allow(unreachable_pub, private_interfaces, reason = "sealed: named in a bound, and nowhere else")]
    pub trait Kernel: Copy + 'static {
        const ONE: Self;

        /// Returns the kernel for this machine.
        fn kernel() -> Gemm<Self>;
    }

    impl Kernel for f32 {
        const ONE: Self = 1.0;

        fn kernel() -> Gemm<Self> {
            gemm_f32::gemm::f32::get_gemm_fn()
        }
    }

    impl Kernel for f64 {
        const ONE: Self = 1.0;

        fn kernel() -> Gemm<Self> {
            gemm_f64::gemm::f64::get_gemm_fn()
        }
    }
}

/// A read-only matrix inside a slice.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a, T = f32> {
    data: &'a [T],
    n_rows: usize,
    n_cols: usize,
    row_stride: usize,
}

impl<'a, T: Scalar> MatrixView<'a, T> {
    /// Creates a view of a row-major matrix whose rows start `row_stride` apart.
    ///
    /// # Panics
    /// If the slice is too short.
    pub fn new(data: &'a [T], n_rows: usize, n_cols: usize, row_stride: usize) -> Self {
        let end = if n_rows == 0 || n_cols == 0 { 0 } else { (n_rows - 1) * row_stride + n_cols };
        assert!(end <= data.len() && (n_cols <= row_stride || n_rows <= 1), "view of {n_rows} x {n_cols}");
        Self { data, n_rows, n_cols, row_stride }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of columns.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns a view of some of the rows.
    ///
    /// # Panics
    /// If the range is not inside the matrix.
    pub fn rows(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.n_rows);
        let start = if range.is_empty() { 0 } else { range.start * self.row_stride };
        Self::new(&self.data[start..], range.len(), self.n_cols, self.row_stride)
    }

    /// Returns a view of some of the columns.
    ///
    /// # Panics
    /// If the range is not inside the matrix.
    pub fn columns(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.n_cols);
        let start = if self.n_rows == 0 || range.is_empty() { 0 } else { range.start };
        Self::new(&self.data[start..], self.n_rows, range.len(), self.row_stride)
    }

    /// Returns one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &'a [T] {
        assert!(row < self.n_rows);
        &self.data[row * self.row_stride..][..self.n_cols]
    }
}

/// A tile of a matrix that one thread writes.
#[derive(Debug)]
pub struct MatrixTile<'a, T = f32> {
    start: *mut T,
    n_rows: usize,
    n_cols: usize,
    row_stride: usize,
    owner: PhantomData<&'a mut [T]>,
}

impl<'a, T: Scalar> MatrixTile<'a, T> {
    /// Makes a whole row-major matrix one tile.
    ///
    /// # Panics
    /// If the slice is too short.
    pub fn whole(data: &'a mut [T], n_rows: usize, n_cols: usize) -> Self {
        assert!(n_rows * n_cols <= data.len(), "tile of {n_rows} x {n_cols}");
        Self { start: data.as_mut_ptr(), n_rows, n_cols, row_stride: n_cols, owner: PhantomData }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns one row for writing.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.n_rows);
        // SAFETY: the tile lies inside the slice it was made from (checked in `whole` and `TileGrid::new`), nobody else
        // may touch it while it lives (it borrows the slice, and a grid hands out each tile once), and the row is
        // inside the tile.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.row_stride), self.n_cols) }
    }

    /// Returns the rows `range` of the tile, borrowed from it.
    ///
    /// # Panics
    /// If the range is not inside the tile.
    pub fn rows_mut(&mut self, range: Range<usize>) -> MatrixTile<'_, T> {
        assert!(range.start <= range.end && range.end <= self.n_rows);
        let offset = if range.start == range.end { 0 } else { range.start * self.row_stride };
        // SAFETY: the offset of an existing row is inside the slice.
        let start = unsafe { self.start.add(offset) };
        MatrixTile { start, n_rows: range.len(), ..*self }
    }
}

// SAFETY: a tile is an exclusive borrow of plain numbers.
unsafe impl<T: Scalar + Send> Send for MatrixTile<'_, T> {}

/// A matrix split into tiles by rows and columns; every tile is handed out at most once, to any thread.
#[derive(Debug)]
pub struct TileGrid<'a, T = f32> {
    start: *mut T,
    row_stride: usize,
    row_cuts: Vec<usize>,
    col_cuts: Vec<usize>,
    taken: Vec<AtomicBool>,
    owner: PhantomData<&'a mut [T]>,
}

impl<'a, T: Scalar> TileGrid<'a, T> {
    /// Splits a row-major matrix with rows of `n_cols`. Cuts are ascending; tile `(r, c)` is between cuts `r`, `r + 1`
    /// of the rows and `c`, `c + 1` of the columns.
    ///
    /// # Panics
    /// If cuts are not ascending or are outside the matrix.
    pub fn new(data: &'a mut [T], n_cols: usize, row_cuts: Vec<usize>, col_cuts: Vec<usize>) -> Self {
        assert!(row_cuts.is_sorted() && col_cuts.is_sorted(), "cuts ascend");
        let last = |cuts: &[usize]| cuts.last().copied().unwrap_or(0);
        assert!(last(&col_cuts) <= n_cols && last(&row_cuts).saturating_mul(n_cols) <= data.len());
        let n_tiles = row_cuts.len().saturating_sub(1) * col_cuts.len().saturating_sub(1);
        let taken = (0..n_tiles).map(|_| AtomicBool::new(false)).collect();
        Self { start: data.as_mut_ptr(), row_stride: n_cols, row_cuts, col_cuts, taken, owner: PhantomData }
    }

    /// Hands out tile `(row, col)`.
    ///
    /// # Panics
    /// If there is no such tile or it was handed out before.
    pub fn take(&self, row: usize, col: usize) -> MatrixTile<'_, T> {
        let n_across = self.col_cuts.len() - 1;
        assert!(col < n_across && row + 1 < self.row_cuts.len());
        let again = self.taken[row * n_across + col].swap(true, Ordering::Relaxed);
        assert!(!again, "tile {row}, {col} given out twice");
        let (rows, cols) = (&self.row_cuts[row..row + 2], &self.col_cuts[col..col + 2]);
        let (n_rows, n_cols) = (rows[1] - rows[0], cols[1] - cols[0]);
        let offset = if n_rows == 0 || n_cols == 0 { 0 } else { rows[0] * self.row_stride + cols[0] };
        // SAFETY: cuts lie inside the matrix, which lies inside the slice (checked in `new`).
        let start = unsafe { self.start.add(offset) };
        MatrixTile { start, n_rows, n_cols, row_stride: self.row_stride, owner: PhantomData }
    }
}

// SAFETY: tiles of a grid do not overlap (cuts are ascending) and each is handed out once, guarded by an atomic flag;
// the grid itself never reads or writes the numbers.
unsafe impl<T: Scalar + Send> Sync for TileGrid<'_, T> {}
// SAFETY: as above; the grid holds an exclusive borrow of plain numbers.
unsafe impl<T: Scalar + Send> Send for TileGrid<'_, T> {}

/// Configures the `gemm` crate for the engine: the right operands already have the layout that its kernels read, so it
/// need not copy them before each product. The setting applies to the whole process and changes only the speed.
pub fn prepare() {
    gemm_common::gemm::set_lhs_packing_threshold_single_thread(256);
}

/// Computes `out = factor * a b`.
///
/// The sums run over blocks of the inner dimension in an order that depends only on the three sizes. The kernels choose
/// their instructions by the machine.
///
/// # Panics
/// If the sizes do not fit together.
pub fn multiply<T: Scalar>(
    out: &mut MatrixTile<'_, T>,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    factor: T,
) {
    product(out, LeftOperand::plain(a), b, factor, false);
}

/// Computes `out += a b` like [`multiply`].
///
/// # Panics
/// If the sizes do not fit together.
pub fn multiply_add<T: Scalar>(out: &mut MatrixTile<'_, T>, a: MatrixView<'_, T>, b: MatrixView<'_, T>) {
    product(out, LeftOperand::plain(a), b, T::ONE, true);
}

/// Computes `out += aᵀ b` like [`multiply`].
///
/// # Panics
/// If the sizes do not fit together.
pub fn multiply_transposed_add<T: Scalar>(
    out: &mut MatrixTile<'_, T>,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
) {
    product(out, LeftOperand::transposed(a), b, T::ONE, true);
}

/// Largest block of the inner dimension that the kernels never split, whatever the caches of the machine.
const UNCUT: usize = 512;

/// Computes `out = factor * a b` with sums in a fixed order.
///
/// # Exactness
/// Each number is the sum of its blocks of 512 products, times `factor`. A block is summed from its first product on,
/// with one fused multiply-add each. All machines with fused multiply-add give the same bits if `out` has more than one
/// row and more than one column, and each block has three or more products. The other rows and columns do not matter.
///
/// # Panics
/// If the sizes do not fit together.
pub fn ordered_multiply<T: Scalar>(
    out: &mut MatrixTile<'_, T>,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    factor: T,
) {
    ordered(out, a, b, factor, false);
}

/// Computes `out += factor * a b` like [`ordered_multiply`].
///
/// # Panics
/// If the sizes do not fit together.
pub fn ordered_multiply_add<T: Scalar>(
    out: &mut MatrixTile<'_, T>,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    factor: T,
) {
    ordered(out, a, b, factor, true);
}

fn ordered<T: Scalar>(
    out: &mut MatrixTile<'_, T>,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    factor: T,
    adds: bool,
) {
    stretches(out, a, b, factor, UNCUT, adds);
}

fn stretches<T: Scalar>(
    out: &mut MatrixTile<'_, T>,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    factor: T,
    step: usize,
    mut adds: bool,
) {
    assert!(a.n_cols == b.n_rows, "sizes of a product");
    if a.n_cols == 0 {
        product(out, LeftOperand::plain(a), b, factor, adds);
    }
    for first in (0..a.n_cols).step_by(step.max(1)) {
        let stretch = first..a.n_cols.min(first + step);
        product(out, LeftOperand::plain(a.columns(stretch.clone())), b.rows(stretch), factor, adds);
        adds = true;
    }
}

/// Number of rows and columns up to which the kernels split the inner dimension differently than in larger products.
const SMALL: usize = 64;

/// Computes `out = factor * a b`, where a row of `out` has the same bits whatever the number of other rows.
///
/// # Exactness
/// As [`multiply`]: large products split the inner dimension evenly into blocks of at most 512 (unless the caches of
/// the machine allow more), small ones into blocks of 512 and a rest. Here small products are split like large ones,
/// and a single row, which has its own kernels, is computed as one of two.
///
/// # Panics
/// If the sizes do not fit together.
pub fn multiply_rows<T: Scalar>(
    out: &mut MatrixTile<'_, T>,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    factor: T,
) {
    if a.n_rows == 1 && out.n_rows == 1 {
        let (twice, n_cols) = ([a.row(0), a.row(0)].concat(), b.n_cols);
        let mut both = vec![T::ONE; 2 * n_cols];
        let rows = MatrixView::new(&twice, 2, a.n_cols, a.n_cols);
        multiply_rows(&mut MatrixTile::whole(&mut both, 2, n_cols), rows, b, factor);
        out.row_mut(0).copy_from_slice(&both[..n_cols]);
    } else if a.n_cols > UNCUT && out.n_rows <= SMALL && out.n_cols <= SMALL {
        let step = a.n_cols.div_ceil(a.n_cols.div_ceil(UNCUT));
        stretches(out, a, b, factor, step, false);
    } else {
        multiply(out, a, b, factor);
    }
}

/// Left operand of a product: a view, read by rows or by columns.
#[derive(Clone, Copy)]
struct LeftOperand<'a, T> {
    view: MatrixView<'a, T>,
    n_rows: usize,
    n_cols: usize,
    /// Strides from row to row, and from column to column.
    strides: (usize, usize),
}

impl<'a, T: Scalar> LeftOperand<'a, T> {
    fn plain(view: MatrixView<'a, T>) -> Self {
        Self { view, n_rows: view.n_rows, n_cols: view.n_cols, strides: (view.row_stride, 1) }
    }

    fn transposed(view: MatrixView<'a, T>) -> Self {
        Self { view, n_rows: view.n_cols, n_cols: view.n_rows, strides: (1, view.row_stride) }
    }
}

/// Computes `out = factor * a b`, added to the content of `out` or replacing it.
fn product<T: Scalar>(
    out: &mut MatrixTile<'_, T>,
    a: LeftOperand<'_, T>,
    b: MatrixView<'_, T>,
    factor: T,
    adds: bool,
) {
    assert!(a.n_cols == b.n_rows && out.n_rows == a.n_rows && out.n_cols == b.n_cols, "sizes of a product");
    let [out_stride, a_row, a_col, b_stride] = [out.row_stride, a.strides.0, a.strides.1, b.row_stride]
        .map(|stride| isize::try_from(stride).expect("a stride inside a slice"));
    let kernel = T::kernel();
    let (a_start, b_start) = (a.view.data.as_ptr(), b.data.as_ptr());
    // The kernels write contiguous columns. Contiguous rows are the columns of `bᵀ aᵀ`; an output of single numbers is
    // already a column.
    let ((m, n), out_strides, (left, left_strides), (right, right_strides)) = if out.row_stride > 1 {
        ((out.n_cols, out.n_rows), (out_stride, 1), (b_start, (b_stride, 1)), (a_start, (a_row, a_col)))
    } else {
        ((out.n_rows, out.n_cols), (1, out_stride), (a_start, (a_col, a_row)), (b_start, (1, b_stride)))
    };
    // SAFETY: all three matrices lie inside their slices (checked when view and tile were made), sizes fit (asserted
    // above), and `out` is an exclusive borrow, so it overlaps neither operand. Strides are given as (from column to
    // column, from row to row).
    unsafe {
        kernel(
            m,
            n,
            a.n_cols,
            out.start,
            out_strides.0,
            out_strides.1,
            adds,
            left,
            left_strides.0,
            left_strides.1,
            right,
            right_strides.0,
            right_strides.1,
            T::ONE,
            factor,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_views_into_tiles_equals_the_triple_loop() {
        let (m, n, k) = (13, 9, 21);
        let a: Vec<f32> = (0..m * 24).map(|i| ((i * 7919) % 101) as f32 / 50.0 - 1.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| ((i * 104_729) % 97) as f32 / 48.0 - 1.0).collect();
        let mut out = vec![1.0f32; m * n];
        let grid = TileGrid::new(&mut out, n, vec![0, 5, m], vec![0, 4, n]);
        for (r, rows) in [(0, 0..5), (1, 5..m)] {
            for (c, cols) in [(0, 0..4), (1, 4..n)] {
                let left = MatrixView::new(&a[rows.start * 24..], rows.len(), k, 24);
                let right = MatrixView::new(&b[cols.start..], k, cols.len(), n);
                multiply(&mut grid.take(r, c), left, right, 0.5);
            }
        }
        drop(grid);
        for i in 0..m {
            for j in 0..n {
                let dot: f64 = (0..k).map(|x| f64::from(a[i * 24 + x]) * f64::from(b[x * n + j])).sum();
                assert!((f64::from(out[i * n + j]) - 0.5 * dot).abs() < 1e-5, "{i} {j}");
            }
        }
        let half = out.clone();
        let (a, b) = (MatrixView::new(&a, m, k, 24), MatrixView::new(&b, k, n, n));
        multiply_add(&mut MatrixTile::whole(&mut out, m, n), a, b);
        assert!(out.iter().zip(&half).all(|(sum, half)| (sum - 3.0 * half).abs() < 1e-5));
    }

    #[test]
    fn a_transposed_product_is_added_to_any_shape_of_tile() {
        let (k, m, n) = (11, 7, 5);
        let a: Vec<f32> = (0..k * 9).map(|i| ((i * 7919) % 101) as f32 / 50.0 - 1.0).collect();
        let b: Vec<f32> = (0..k * 6).map(|i| ((i * 104_729) % 97) as f32 / 48.0 - 1.0).collect();
        for (m, n) in [(m, n), (m, 1), (1, n), (1, 1)] {
            let mut out = vec![2.0f32; m * n];
            let (left, right) = (MatrixView::new(&a[1..], k, m, 9), MatrixView::new(&b, k, n, 6));
            multiply_transposed_add(&mut MatrixTile::whole(&mut out, m, n), left, right);
            for i in 0..m {
                for j in 0..n {
                    let dot: f64 =
                        (0..k).map(|x| f64::from(a[1 + x * 9 + i]) * f64::from(b[x * 6 + j])).sum();
                    assert!((f64::from(out[i * n + j]) - 2.0 - dot).abs() < 1e-5, "{m} {n}: {i} {j}");
                }
            }
        }
    }

    /// Checks the guarantee of `ordered_multiply`, on a machine with fused multiply-add.
    #[test]
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        ignore = "the kernels may not fuse"
    )]
    fn ordered_sums_run_from_the_first_product_to_the_last() {
        #[cfg(target_arch = "x86_64")]
        if !is_x86_feature_detected!("fma") {
            return;
        }
        for (m, n, k) in [(96, 16, 1300), (2, 3, 700), (64, 64, 64), (7, 192, 513 + 3), (256, 96, 40)] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| ((i * 104_729) % 997) as f32 / 480.0 - 1.0).collect();
            let mut out = vec![0.25f32; m * n];
            let views = (MatrixView::new(&a, m, k, k), MatrixView::new(&b, k, n, n));
            ordered_multiply_add(&mut MatrixTile::whole(&mut out, m, n), views.0, views.1, -1.0);
            for i in 0..m {
                for j in 0..n {
                    let mut want = 0.25f32;
                    for first in (0..k).step_by(512) {
                        let last = k.min(first + 512);
                        let dot = (first..last).fold(0.0, |sum, x| a[i * k + x].mul_add(b[x * n + j], sum));
                        want -= dot;
                    }
                    assert_eq!(out[i * n + j].to_bits(), want.to_bits(), "{m} x {n} x {k}: {i} {j}");
                }
            }
        }
    }

    /// Checks the guarantee of `multiply_rows` on machines whose caches split large products as expected (32 or 48
    /// KiB).
    #[test]
    fn a_row_does_not_depend_on_other_rows() {
        let mut n_rows_compared = 0;
        for (n, k) in [(32, 40), (64, 768), (32, 1300), (48, 2816), (192, 700), (2, 513)] {
            let m = 130;
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| ((i * 104_729) % 997) as f32 / 480.0 - 1.0).collect();
            let right = MatrixView::new(&b, k, n, n);
            let whole = MatrixView::new(&a, m, k, k);
            let (mut large, mut cut) = (vec![0.0f32; m * n], vec![0.0f32; m * n]);
            multiply_rows(&mut MatrixTile::whole(&mut large, m, n), whole, right, 0.5);
            let step = k.div_ceil(k.div_ceil(UNCUT));
            stretches(&mut MatrixTile::whole(&mut cut, m, n), whole, right, 0.5, step, false);
            if large != cut {
                continue;
            }
            for (first, n_rows) in [(0, 1), (129, 1), (3, 2), (5, 17), (60, 64), (0, 65)] {
                let mut out = vec![0.0f32; n_rows * n];
                let rows = whole.rows(first..first + n_rows);
                multiply_rows(&mut MatrixTile::whole(&mut out, n_rows, n), rows, right, 0.5);
                assert!(out == large[first * n..(first + n_rows) * n], "{n_rows} of {n} x {k}");
                n_rows_compared += n_rows;
            }
        }
        // A single block is the same on every machine.
        assert!(n_rows_compared >= 149, "{n_rows_compared}");
        println!("{n_rows_compared} rows");
    }

    #[test]
    #[should_panic(expected = "given out twice")]
    fn a_tile_is_given_out_once() {
        let mut data = [0.0; 4];
        let grid = TileGrid::new(&mut data, 2, vec![0, 2], vec![0, 1, 2]);
        let _first = grid.take(0, 1);
        let _again = grid.take(0, 1);
    }

    #[test]
    #[should_panic(expected = "view of")]
    fn a_view_stays_inside_its_slice() {
        let _ = MatrixView::new(&[0.0; 7], 2, 4, 4);
    }
}
