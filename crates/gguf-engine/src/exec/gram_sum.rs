//! Sums of [`Gram`]s of many batches of rows, independent of how the batches are split up and in which order added.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::exec::gram::{BLOCK_ROWS, Gram, ROWS};
use crate::exec::matmul::{TileGrid, multiply_transposed_add};
use crate::exec::strips::{STRIP, Strips};
use crate::exec::workers::Tasks;
use gguf_core::exact::{rounded, two_sum};

/// Number of elements that are added before checking for rounding errors.
const LANES: usize = 16;
/// Number of sums per rest, for memory estimates: with some hundred batches, one of thousands of sums has a rest.
const SUMS_PER_REST: u64 = 64;
/// Bytes that a rest takes in a map.
const REST_BYTES: u64 = 32;

/// The upper triangle of `XᵀX` in f64, with the rounding errors of its sums.
///
/// # Layout
/// Tiles of at most 192 × 192, row by row of tiles from the diagonal on. Elements below the diagonal, in the tiles that
/// it crosses, have no meaning.
///
/// # Exactness
/// Up to 2048 rows of a batch are summed in f32, in blocks of 256, as in [`Gram::add_rows`]. These sums are added in
/// f64. Rounding errors of these additions ("rests") are kept for the few elements that have any. A sum is exact if its
/// terms are within 2¹⁰⁰ of one another. It is then the same in every order, and [`GramSum::round`] rounds it once.
#[derive(Clone, Debug)]
pub struct GramSum {
    n_cols: usize,
    /// All tiles, one after another, in one allocation, which is freed as one.
    sums: Vec<f64>,
    tiles: Vec<SumTile>,
}

#[derive(Clone, Debug)]
struct SumTile {
    /// Strips of columns whose products the tile holds.
    left: usize,
    right: usize,
    /// Number of columns of the right strip.
    width: usize,
    /// Index of its first sum; the tile is `[height, width]`.
    start: usize,
    /// Rounding errors other than 0, by index in the tile.
    rests: BTreeMap<usize, f64>,
}

/// Returns the number of columns of a strip.
fn strip_width(n_cols: usize, strip: usize) -> usize {
    STRIP.min(n_cols - strip * STRIP)
}

/// Adds `more` to a sum, and the rounding error to its rest.
fn add_one(sum: &mut f64, rests: &mut BTreeMap<usize, f64>, at: usize, more: f64) {
    let (total, lost) = two_sum(*sum, more);
    *sum = total;
    add_rest(rests, at, lost);
}

/// Adds a rounding error to a rest. NaN and infinity show in the sum already and are not kept.
fn add_rest(rests: &mut BTreeMap<usize, f64>, at: usize, lost: f64) {
    if lost != 0.0 && lost.is_finite() {
        *rests.entry(at).or_default() += lost;
    }
}

impl SumTile {
    /// Adds the products of rows to the tile's sums, with `products` as scratch memory.
    fn add_strips(&mut self, sums: &mut [f64], x: &Strips, products: &mut Vec<f32>) {
        let (left, right) = (x.strip(self.left), x.strip(self.right));
        products.clear();
        products.resize(sums.len(), 0.0);
        let height = sums.len() / self.width;
        let grid = TileGrid::new(products, self.width, vec![0, height], vec![0, self.width]);
        let mut out = grid.take(0, 0);
        for start in (0..x.n_rows()).step_by(BLOCK_ROWS) {
            let rows = start..x.n_rows().min(start + BLOCK_ROWS);
            multiply_transposed_add(&mut out, left.rows(rows.clone()), right.rows(rows));
        }
        self.add_products(sums, products);
    }

    fn add_products(&mut self, sums: &mut [f64], products: &[f32]) {
        for (at, (sums, products)) in sums.chunks_mut(LANES).zip(products.chunks(LANES)).enumerate() {
            let mut lost = [0.0; LANES];
            for ((sum, &x), lost) in sums.iter_mut().zip(products).zip(&mut lost) {
                (*sum, *lost) = two_sum(*sum, f64::from(x));
            }
            if lost != [0.0; LANES] {
                let lost = lost.into_iter().enumerate();
                lost.for_each(|(lane, lost)| add_rest(&mut self.rests, at * LANES + lane, lost));
            }
        }
    }
}

impl GramSum {
    /// Returns the bytes that the sums of `n_cols` columns take; saturates.
    pub fn bytes(n_cols: usize) -> u64 {
        let sums = Gram::bytes(n_cols).saturating_mul(2);
        sums.saturating_add(sums / 8 / SUMS_PER_REST * REST_BYTES)
    }

    /// Returns the sums of no rows.
    ///
    /// # Panics
    /// If the sums of `n_cols` columns do not fit in memory: see [`GramSum::bytes`].
    pub fn zero(n_cols: usize) -> Self {
        assert!(
            usize::try_from(Self::bytes(n_cols)).is_ok_and(|n| isize::try_from(n).is_ok()),
            "sums that fit"
        );
        let n_strips = n_cols.div_ceil(STRIP);
        let places = (0..n_strips).flat_map(|left| (left..n_strips).map(move |right| (left, right)));
        let (mut tiles, mut start) = (Vec::new(), 0);
        for (left, right) in places {
            let width = strip_width(n_cols, right);
            tiles.push(SumTile { left, right, width, start, rests: BTreeMap::new() });
            start += strip_width(n_cols, left) * width;
        }
        Self { n_cols, sums: vec![0.0; start], tiles }
    }

    /// Returns the number of columns of X.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Adds the products of a batch of rows, `x` of `[n, n_cols]`, on the threads of the current rayon pool. The start
    /// of a batch decides which rows are summed together in f32.
    pub fn add_rows(&mut self, x: &[f32]) {
        let mut strips = Strips::default();
        for rows in x.chunks((ROWS * self.n_cols).max(1)) {
            strips.copy(rows, self.n_cols);
            let strips = &strips;
            self.pieces()
                .into_par_iter()
                .run_with_scratch(&|products, (tile, sums)| tile.add_strips(sums, strips, products));
        }
    }

    /// Adds the sums of other batches.
    ///
    /// # Panics
    /// If the numbers of columns differ.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.n_cols, other.n_cols, "columns of sums that are added");
        self.pieces().into_par_iter().zip(&other.tiles).run(&|((tile, sums), other_tile)| {
            for (at, (sum, &more)) in sums.iter_mut().zip(&other.sums[other_tile.start..]).enumerate() {
                add_one(sum, &mut tile.rests, at, more);
            }
            other_tile.rests.iter().for_each(|(&at, &rest)| add_rest(&mut tile.rests, at, rest));
        });
    }

    /// Returns the tiles, each with its sums.
    fn pieces(&mut self) -> Vec<(&mut SumTile, &mut [f64])> {
        let mut rest = &mut self.sums[..];
        let n_cols = self.n_cols;
        let mut pieces = Vec::with_capacity(self.tiles.len());
        for tile in &mut self.tiles {
            let n = strip_width(n_cols, tile.left) * tile.width;
            let (own, later) = std::mem::take(&mut rest).split_at_mut(n);
            rest = later;
            pieces.push((tile, own));
        }
        pieces
    }

    /// Returns row `row` from its diagonal element on: `n_cols - row` sums.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = f64> + '_ {
        self.of_row(row).map(|(tile, at)| self.sums[tile.start + at])
    }

    /// Returns the sums in f32, each rounded once.
    pub fn round(&self) -> Gram {
        let mut gram = Gram::zero(self.n_cols);
        for row in 0..self.n_cols {
            for (out, (tile, at)) in gram.row_mut(row).iter_mut().zip(self.of_row(row)) {
                let sum = self.sums[tile.start + at];
                *out = tile.rests.get(&at).map_or(sum as f32, |&rest| rounded(sum, rest));
            }
        }
        gram
    }

    /// Returns false if a sum is NaN, or infinite in f32.
    pub fn is_finite(&self) -> bool {
        let is_finite = |sum: f64| (sum as f32).is_finite();
        (0..self.n_cols).into_par_iter().all(|row| self.row(row).all(is_finite))
    }

    /// Returns the index of the tile that holds a row's diagonal element.
    fn first_tile(&self, row: usize) -> usize {
        let (n_strips, strip) = (self.n_cols.div_ceil(STRIP), row / STRIP);
        strip * n_strips - strip * strip.saturating_sub(1) / 2
    }

    /// Iterates over the tiles, and indices in them, of a row from its diagonal element on.
    fn of_row(&self, row: usize) -> impl Iterator<Item = (&SumTile, usize)> {
        assert!(row < self.n_cols, "row {row} of {}", self.n_cols);
        let (first, n) = (self.first_tile(row), self.n_cols.div_ceil(STRIP) - row / STRIP);
        self.tiles[first..first + n].iter().flat_map(move |tile| {
            let start = row % STRIP * tile.width;
            let from = if tile.left == tile.right { row % STRIP } else { 0 };
            (start + from..start + tile.width).map(move |at| (tile, at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns rows of which some are so much larger than the others that f64 does not hold both.
    fn rows(n_rows: usize, n_cols: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 + i / 13 + seed * 104_729) % 1009) as f32 / 500.0 - 1.0;
        let scale = |i: usize| if (i / n_cols + seed).is_multiple_of(97) { 1e9 } else { 1e-3 };
        (0..n_rows * n_cols).map(|i| value(i) * scale(i)).collect()
    }

    fn same(a: &Gram, b: &Gram) -> bool {
        (0..a.n_cols()).all(|row| a.row(row).iter().zip(b.row(row)).all(|(a, b)| a.to_bits() == b.to_bits()))
    }

    #[test]
    fn one_batch_is_a_gram() {
        for (n_rows, n) in [(1, 1), (3, 191), (300, 192), (257, 193), (600, 400), (2500, 200)] {
            let x = rows(n_rows, n, 1);
            let mut sum = GramSum::zero(n);
            sum.add_rows(&x);
            let mut gram = Gram::zero(n);
            gram.add_rows(&x);
            // The sums of 2048 rows are in f32; these are added in f64.
            assert!(n_rows > ROWS || same(&sum.round(), &gram), "{n_rows} {n}");
            for row in [0, n / 2, n - 1] {
                assert_eq!(sum.row(row).count(), n - row);
                for (column, found) in (row..n).zip(sum.round().row(row)) {
                    let exact: f64 =
                        (0..n_rows).map(|r| f64::from(x[r * n + row]) * f64::from(x[r * n + column])).sum();
                    let size: f64 = (0..n_rows)
                        .map(|r| (f64::from(x[r * n + row]) * f64::from(x[r * n + column])).abs())
                        .sum();
                    assert!((f64::from(*found) - exact).abs() <= 2e-6 * size, "{n_rows} {n}: {row} {column}");
                }
            }
        }
        assert_eq!(GramSum::zero(0).round().n_cols(), 0);
        assert_eq!(GramSum::bytes(usize::MAX / 2), u64::MAX);
    }

    /// Batches in any order and in parts give the same bits.
    #[test]
    fn sums_do_not_depend_on_how_batches_are_shared_out() {
        let n = 230;
        let mut batches: Vec<Vec<f32>> = (0..7).map(|seed| rows(90 + seed, n, seed)).collect();
        // Two large batches, half of whose products cancel: the sum of the other batches remains.
        let loud: Vec<f32> = batches[1].iter().map(|x| x * 1e6).collect();
        batches[5] = loud.iter().enumerate().map(|(at, &x)| if (at % n) % 2 == 0 { x } else { -x }).collect();
        batches[2] = loud;
        let sum_of = |order: &[usize]| {
            let mut sum = GramSum::zero(n);
            for &at in order {
                sum.add_rows(&batches[at]);
            }
            sum
        };
        let whole = sum_of(&[0, 1, 2, 3, 4, 5, 6]);
        let n_rests: usize = whole.tiles.iter().map(|tile| tile.rests.len()).sum();
        assert!(n_rests > n, "the numbers do not do what they are for");
        let expected = whole.round();
        assert!(same(&sum_of(&[6, 2, 0, 5, 1, 4, 3]).round(), &expected));
        for cut in 1..7 {
            let (first, second): (Vec<usize>, Vec<usize>) = ((0..cut).collect(), (cut..7).collect());
            let (first, second) = (sum_of(&first), sum_of(&second));
            let mut added = second.clone();
            added.add(&first);
            assert!(same(&added.round(), &expected), "{cut}");
        }
        // Without the rests, sums in f64 depend on the order.
        let plain = |order: &[usize]| {
            let mut sum = sum_of(order);
            sum.tiles.iter_mut().for_each(|tile| tile.rests.clear());
            sum.round()
        };
        assert!(!same(&plain(&[0, 1, 2, 3, 4, 5, 6]), &plain(&[6, 2, 0, 5, 1, 4, 3])));
    }

    #[test]
    fn threads_change_no_bit_and_what_is_no_number_shows() {
        let x = rows(600, 390, 3);
        let run = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| {
                let mut sum = GramSum::zero(390);
                sum.add_rows(&x);
                sum.add_rows(&x[390 * 7..]);
                sum
            })
        };
        let whole = run(1);
        assert!(same(&whole.round(), &run(2).round()) && same(&whole.round(), &run(7).round()));
        assert!(whole.is_finite());
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            let mut sum = whole.clone();
            let mut row = vec![0.0; 390];
            row[200] = bad;
            sum.add_rows(&row);
            sum.add_rows(&row);
            assert!(!sum.is_finite(), "{bad}");
        }
    }
}
