//! Code books: the packed points on the grid, and the nearest grid points of every other point.

use std::sync::OnceLock;

use super::grids;

/// A grid of points with `D` levels each, and the neighbour lists of the points off the grid.
///
/// Points are packed: `16 / D` bits per level (2 for 8 levels, 3 for 4: see [`CodeBook::BITS`]), first lowest.
pub(super) struct CodeBook<const D: usize> {
    /// Packed points in the order of the format.
    pub points: &'static [u16],
    /// Entry of each packed point: its neighbour list, see [`CLASS_BITS`]. A grid point has class 0, and its index
    /// instead of the start of a list.
    map: Vec<u32>,
    /// Packed points of all lists. Each list is ordered by distance, then index, and filled with copies of its first
    /// point to a multiple of [`LIST_TILE`].
    neighbours: Vec<[u16; LIST_TILE]>,
}

/// Number of points in a tile; neighbour lists are whole tiles.
pub(super) const LIST_TILE: usize = 16;

/// A neighbour list: the nearest grid points, packed, ordered by distance, then index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbours<'a> {
    /// The points, followed by copies of the first.
    tiles: &'a [[u16; LIST_TILE]],
    n_points: usize,
}

impl<'a> Neighbours<'a> {
    const NONE: Self = Self { tiles: &[], n_points: 0 };

    /// Returns the points without the copies.
    pub(super) fn points(self) -> &'a [u16] {
        &self.tiles.as_flattened()[..self.n_points]
    }

    #[inline(always)]
    pub(super) fn at(self, position: Option<usize>) -> Option<u16> {
        self.tiles.as_flattened().get(position?).copied()
    }

    #[inline(always)]
    pub(super) fn n_points(self) -> usize {
        self.n_points
    }

    /// Returns the points in whole tiles, filled with copies of the first.
    #[inline(always)]
    pub(super) fn tiles(self) -> &'a [[u16; LIST_TILE]] {
        self.tiles
    }
}

/// Position of a packed point relative to the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GridPosition<'a> {
    /// On the grid, with its index.
    On(u16),
    /// Off the grid, with its neighbours.
    Near(Neighbours<'a>),
}

/// Layout of a map entry: the class in the lowest bits, then the number of points, then the start of the list.
const CLASS_BITS: u32 = 2;
const CLASS_MASK: u32 = (1 << CLASS_BITS) - 1;
const LENGTH_BITS: u32 = 10;
const LENGTH_MASK: u32 = (1 << LENGTH_BITS) - 1;
const START: u32 = CLASS_BITS + LENGTH_BITS;
/// Entry whose list starts far beyond the last one.
const NOWHERE: u32 = u32::MAX;

/// Reference to the neighbour list of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListRef(u32);

impl ListRef {
    /// Number of values of [`ListRef::class`].
    pub(super) const CLASSES: usize = 1 << CLASS_BITS;

    #[inline(always)]
    pub(super) fn number(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(super) fn of_number(number: u32) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(super) fn n_points(self) -> usize {
        (self.0 >> CLASS_BITS & LENGTH_MASK) as usize
    }

    /// Returns the number of tiles that the neighbours fill, at most 3; 0 for a point on the grid.
    #[inline(always)]
    pub(super) fn class(self) -> usize {
        (self.0 & CLASS_MASK) as usize
    }
}

impl<const D: usize> CodeBook<D> {
    /// Bits per level.
    pub(super) const BITS: u32 = if D == 8 { 2 } else { 3 };
    /// Levels per dimension: 3 for 8 dimensions (the fourth pattern of bits is not used), 8 for 4.
    pub(super) const LEVELS: usize = if D == 8 { 3 } else { 8 };

    /// Finds the neighbours of all points off the grid: all grid points at the `n_nearest` smallest distances.
    ///
    /// # Exactness
    /// The lists of ggml's `iq2xs_init_impl` and `iq3xs_init_impl` for all points that levels can form.
    fn new(points: &'static [u16], n_nearest: u32) -> Self {
        let n_points = Self::LEVELS.pow(D as u32);
        let packed = |mut number: usize| {
            (0..D).fold(0u16, |packed, i| {
                let level = (number % Self::LEVELS) as u16;
                number /= Self::LEVELS;
                packed | level << (Self::BITS * i as u32)
            })
        };
        let mut map = vec![NOWHERE; 1 << (Self::BITS * D as u32)];
        for (index, point) in points.iter().enumerate() {
            map[usize::from(*point)] = (index as u32) << START;
        }
        // Squared distances of the first and second half of the levels, for every pair of halves.
        let half_bits = Self::BITS * D as u32 / 2;
        let half = 1usize << half_bits;
        let mut squares = vec![0u8; half * half];
        for a in 0..half {
            for b in 0..half {
                squares[a * half + b] = (0..D as u32 / 2)
                    .map(|i| {
                        let level = |packed: usize| (packed >> (Self::BITS * i)) as u8 & Self::MASK as u8;
                        let diff = level(a).abs_diff(level(b));
                        diff * diff
                    })
                    .sum();
            }
        }
        let mut distances = vec![0u8; points.len()];
        let mut neighbours = Vec::new();
        for number in 0..n_points {
            let here = usize::from(packed(number));
            if map[here] != NOWHERE {
                continue;
            }
            let low = &squares[here % half * half..][..half];
            let high = &squares[here / half * half..][..half];
            let mut present = [false; 256];
            for (distance, point) in distances.iter_mut().zip(points) {
                let point = usize::from(*point);
                *distance = low[point % half] + high[point / half];
                present[usize::from(*distance)] = true;
            }
            let mut list = Vec::new();
            let nearest = (0u8..=255).filter(|distance| present[usize::from(*distance)]);
            for wanted in nearest.take(n_nearest as usize) {
                let at = distances.iter().zip(points).filter(|(distance, _)| **distance == wanted);
                list.extend(at.map(|(_, point)| *point));
            }
            map[here] = Self::entry_of(neighbours.len(), list.len());
            list.resize(list.len().next_multiple_of(LIST_TILE), list[0]);
            neighbours.extend_from_slice(list.as_chunks().0);
        }
        Self { points, map, neighbours }
    }

    /// Builds the map entry of a list.
    fn entry_of(start: usize, n_points: usize) -> u32 {
        assert!(
            start < NOWHERE as usize >> START && n_points <= LENGTH_MASK as usize,
            "entries hold all lists"
        );
        let class = n_points.div_ceil(LIST_TILE).min(3);
        (start as u32) << START | (n_points as u32) << CLASS_BITS | class as u32
    }

    const MASK: u16 = (1 << Self::BITS) - 1;

    #[inline(always)]
    pub(super) fn pack(levels: [i32; D]) -> u16 {
        let mut packed = 0;
        for i in 0..D {
            packed |= (levels[i] as u16) << (Self::BITS * i as u32);
        }
        packed
    }

    #[inline(always)]
    pub(super) fn unpack(packed: u16) -> [i32; D] {
        std::array::from_fn(|i| i32::from(packed >> (Self::BITS * i as u32) & Self::MASK))
    }

    #[inline(always)]
    fn entry(&self, packed: u16) -> u32 {
        self.map.get(usize::from(packed)).copied().unwrap_or(NOWHERE)
    }

    /// Returns the position of a packed point. Bit patterns that are not levels have an empty list.
    #[inline(always)]
    pub(super) fn position(&self, packed: u16) -> GridPosition<'_> {
        match self.entry(packed) {
            entry if entry & CLASS_MASK == 0 => GridPosition::On((entry >> START) as u16),
            _ => GridPosition::Near(self.neighbours(packed)),
        }
    }

    #[inline(always)]
    pub(super) fn is_on_grid(&self, packed: u16) -> bool {
        self.entry(packed) & CLASS_MASK == 0
    }

    /// Returns the neighbour list of a packed point; empty on the grid.
    #[inline(always)]
    pub(super) fn list(&self, packed: u16) -> ListRef {
        ListRef(self.entry(packed))
    }

    /// Returns the neighbours of a packed point that is not on the grid.
    #[inline(always)]
    pub(super) fn neighbours(&self, packed: u16) -> Neighbours<'_> {
        self.neighbours_of(self.list(packed))
    }

    #[inline(always)]
    pub(super) fn neighbours_of(&self, list: ListRef) -> Neighbours<'_> {
        let (start, n_points) = ((list.0 >> START) as usize, list.n_points());
        match self.neighbours.get(start..start + n_points.div_ceil(LIST_TILE)) {
            Some(tiles) => Neighbours { tiles, n_points },
            None => Neighbours::NONE,
        }
    }

    /// Returns the first `T` tiles of a list that has at least as many.
    #[inline(always)]
    pub(super) fn tiles_of<const T: usize>(&self, list: ListRef) -> Option<&[[u16; LIST_TILE]; T]> {
        self.neighbours.get((list.0 >> START) as usize..)?.first_chunk()
    }

    /// Returns the index of a grid point; `None` off the grid.
    #[inline(always)]
    pub(super) fn index(&self, packed: u16) -> Option<u16> {
        match self.position(packed) {
            GridPosition::On(index) => Some(index),
            GridPosition::Near(_) => None,
        }
    }
}

macro_rules! books {
    ($( $(#[$doc:meta])* $name:ident: $dims:literal = $points:ident, $n_nearest:literal; )*) => {
        $(
            $(#[$doc])*
            pub(super) fn $name() -> &'static CodeBook<$dims> {
                static BOOK: OnceLock<CodeBook<$dims>> = OnceLock::new();
                BOOK.get_or_init(|| CodeBook::new(&grids::$points, $n_nearest))
            }
        )*
    };
}

books! {
    /// The grid of IQ2_XXS.
    iq2_xxs: 8 = IQ2_XXS, 2;
    /// The grid of IQ2_XS.
    iq2_xs: 8 = IQ2_XS, 2;
    /// The grid of IQ2_S.
    iq2_s: 8 = IQ2_S, 1;
    /// The grid of IQ1_S and IQ1_M.
    iq1: 8 = IQ1, 3;
    /// The grid of IQ3_XXS.
    iq3_xxs: 4 = IQ3_XXS, 2;
    /// The grid of IQ3_S.
    iq3_s: 4 = IQ3_S, 3;
}

/// Returns the sign bits of 8 elements from the 7 that are stored: the eighth makes their number even.
#[inline(always)]
pub(super) fn even_signs(stored: u8) -> u8 {
    stored & 127 | ((stored & 127).count_ones() as u8 & 1) << 7
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_tables_are_those_of_the_script() {
        let books: [&[u16]; 6] =
            [&grids::IQ2_XXS, &grids::IQ2_XS, &grids::IQ2_S, &grids::IQ1, &grids::IQ3_XXS, &grids::IQ3_S];
        let mut digest = Sha256::new();
        for point in books.iter().copied().flatten() {
            digest.update(point.to_le_bytes());
        }
        assert_eq!(gguf_core::text::hex(&digest.finalize()), grids::SHA256);
    }

    /// Computes a list by sorting all grid points.
    fn naive<const D: usize>(book: &CodeBook<D>, packed: u16, n_nearest: usize) -> Vec<u16> {
        let here = CodeBook::<D>::unpack(packed);
        let mut all: Vec<(i32, usize)> = book
            .points
            .iter()
            .enumerate()
            .map(|(index, point)| {
                let there = CodeBook::<D>::unpack(*point);
                ((0..D).map(|i| (here[i] - there[i]).pow(2)).sum(), index)
            })
            .collect();
        all.sort_unstable();
        let mut distances: Vec<i32> = all.iter().map(|(distance, _)| *distance).collect();
        distances.dedup();
        let limit = distances[n_nearest.min(distances.len()) - 1];
        all.iter().filter(|(distance, _)| *distance <= limit).map(|(_, index)| book.points[*index]).collect()
    }

    fn check<const D: usize>(book: &CodeBook<D>, n_nearest: usize, step: usize) {
        for number in (0..CodeBook::<D>::LEVELS.pow(D as u32)).step_by(step) {
            let levels = std::array::from_fn(|i| {
                (number / CodeBook::<D>::LEVELS.pow(i as u32) % CodeBook::<D>::LEVELS) as i32
            });
            let packed = CodeBook::<D>::pack(levels);
            assert_eq!(CodeBook::<D>::unpack(packed), levels);
            let on = book.points.iter().position(|point| *point == packed);
            match (book.position(packed), on) {
                (GridPosition::On(index), Some(on)) => assert_eq!(usize::from(index), on),
                (GridPosition::Near(list), None) => assert_eq!(list.points(), naive(book, packed, n_nearest)),
                (position, on) => panic!("{packed:#x}: {position:?}, {on:?}"),
            }
        }
    }

    #[test]
    fn neighbours_are_ordered_by_distance_then_index() {
        check(iq2_xxs(), 2, 7);
        check(iq2_xs(), 2, 7);
        check(iq2_s(), 1, 7);
        check(iq1(), 3, 7);
        check(iq3_xxs(), 2, 1);
        check(iq3_s(), 3, 1);
        assert_eq!(iq2_xs().position(0xffff), GridPosition::Near(Neighbours::NONE));
    }

    #[test]
    fn signs_are_even() {
        assert_eq!(even_signs(0), 0);
        assert_eq!(even_signs(1), 0x81);
        assert!((0..128).all(|stored| even_signs(stored).count_ones().is_multiple_of(2)));
    }
}
