//! Lists of vectors, and the search for the vector at which a parabola in 4 or 8 unknowns is lowest.

/// Number of vectors that are compared side by side.
const TILE: usize = 16;

/// One number for each vector of a tile.
pub(crate) type TileValues = [f32; TILE];

/// Vectors of `D` numbers, in tiles.
pub(crate) struct Book<const D: usize> {
    tiles: Vec<[TileValues; D]>,
}

impl<const D: usize> Book<D> {
    /// Creates a book of vectors. The last tile is filled with copies of the last vector, which are never found instead
    /// of it.
    pub(crate) fn new(vectors: impl IntoIterator<Item = [f32; D]>) -> Self {
        let vectors: Vec<[f32; D]> = vectors.into_iter().collect();
        let last = vectors.last().copied().unwrap_or([0.0; D]);
        let tiles = vectors
            .chunks(TILE)
            .map(|vectors| {
                std::array::from_fn(|i| std::array::from_fn(|lane| vectors.get(lane).unwrap_or(&last)[i]))
            })
            .collect();
        Self { tiles }
    }

    #[inline(always)]
    pub(crate) fn vector(&self, index: usize) -> [f32; D] {
        let tile = &self.tiles[index / TILE];
        std::array::from_fn(|i| tile[i][index % TILE])
    }

    /// Returns index and value of the vector `v` with the least `v h vᵀ - 2 v·c`, of equal ones the first by its
    /// position in the tiles. `h` is symmetric.
    #[inline(always)]
    pub(crate) fn lowest(&self, h: &[[f32; D]; D], c: &[f32; D]) -> (usize, f32) {
        let twice = twice_below(h);
        let linear = c.map(|c| -2.0 * c);
        let mut best = LowestCost::new();
        for (index, tile) in self.tiles.iter().enumerate() {
            best.offer(index, &parabola(tile, &twice, &linear));
        }
        best.take()
    }

    /// Computes `v h vᵀ` of all vectors, for [`Book::lowest_of`].
    #[inline(always)]
    pub(crate) fn squares(&self, h: &[[f32; D]; D], out: &mut Vec<TileValues>) {
        let twice = twice_below(h);
        out.clear();
        for tile in &self.tiles {
            out.push(parabola(tile, &twice, &[0.0; D]));
        }
    }

    /// Runs [`Book::lowest`] with known squares.
    #[inline(always)]
    pub(crate) fn lowest_of(&self, squares: &[TileValues], c: &[f32; D]) -> (usize, f32) {
        let linear = c.map(|c| -2.0 * c);
        let mut best = LowestCost::new();
        for (index, (tile, squares)) in self.tiles.iter().zip(squares).enumerate() {
            let mut cost = *squares;
            for i in 0..D {
                for lane in 0..TILE {
                    cost[lane] += linear[i] * tile[i][lane];
                }
            }
            best.offer(index, &cost);
        }
        best.take()
    }
}

/// Returns a matrix whose entries below the diagonal are doubled.
#[inline(always)]
fn twice_below<const D: usize>(h: &[[f32; D]; D]) -> [[f32; D]; D] {
    let mut twice = *h;
    for i in 0..D {
        for j in 0..i {
            twice[i][j] *= 2.0;
        }
    }
    twice
}

/// Computes `v h vᵀ + linear·v` of a tile; reads `h` only on and below the diagonal.
#[inline(always)]
fn parabola<const D: usize>(tile: &[TileValues; D], h: &[[f32; D]; D], linear: &[f32; D]) -> TileValues {
    let mut cost = [0.0; TILE];
    for i in 0..D {
        let mut slope = [linear[i]; TILE];
        for j in 0..=i {
            for lane in 0..TILE {
                slope[lane] += h[i][j] * tile[j][lane];
            }
        }
        for lane in 0..TILE {
            cost[lane] += tile[i][lane] * slope[lane];
        }
    }
    cost
}

/// Lowest value of each lane.
struct LowestCost {
    cost: TileValues,
    tile: [u32; TILE],
}

impl LowestCost {
    #[inline(always)]
    fn new() -> Self {
        Self { cost: [f32::INFINITY; TILE], tile: [0; TILE] }
    }

    #[inline(always)]
    fn offer(&mut self, index: usize, cost: &TileValues) {
        for lane in 0..TILE {
            let is_lower = cost[lane] < self.cost[lane];
            self.cost[lane] = if is_lower { cost[lane] } else { self.cost[lane] };
            self.tile[lane] = if is_lower { index as u32 } else { self.tile[lane] };
        }
    }

    #[inline(always)]
    fn take(&self) -> (usize, f32) {
        let mut at = 0;
        for lane in 1..TILE {
            if self.cost[lane] < self.cost[at] {
                at = lane;
            }
        }
        (self.tile[at] as usize * TILE + at, self.cost[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use gguf_core::simd::{SimdLevel, VectorLoop};

    struct FindLowest<'a>(&'a Book<8>, &'a [[f32; 8]; 8], &'a [f32; 8]);

    impl VectorLoop for FindLowest<'_> {
        type Output = (usize, f32);

        #[inline(always)]
        fn run(self) -> (usize, f32) {
            self.0.lowest(self.1, self.2)
        }
    }

    #[test]
    fn the_lowest_is_that_of_the_formula_at_all_levels() {
        let mut noise = Noise::new(3);
        let vectors: Vec<[f32; 8]> = (0..200).map(|_| std::array::from_fn(|_| noise.normal())).collect();
        let book = Book::new(vectors.iter().copied());
        for _ in 0..50 {
            let mut h = [[0.0; 8]; 8];
            for i in 0..8 {
                for j in 0..=i {
                    h[i][j] = 0.3 * noise.normal();
                    h[j][i] = h[i][j];
                }
                h[i][i] += 2.0;
            }
            let c = std::array::from_fn(|_| 2.0 * noise.normal());
            let cost = |v: &[f32; 8]| -> f64 {
                let product = |i: usize| -> f64 { (0..8).map(|j| f64::from(h[i][j] * v[j])).sum() };
                (0..8).map(|i| f64::from(v[i]) * (product(i) - 2.0 * f64::from(c[i]))).sum()
            };
            let (found, lowest) = book.lowest(&h, &c);
            assert!((cost(&book.vector(found)) - f64::from(lowest)).abs() < 1e-4);
            assert!(vectors.iter().all(|v| f64::from(lowest) < cost(v) + 1e-4));
            let mut squares = Vec::new();
            book.squares(&h, &mut squares);
            let (other, number) = book.lowest_of(&squares, &c);
            assert_eq!(other, found);
            assert!((number - lowest).abs() < 1e-4);
            for level in SimdLevel::available() {
                let (index, number) = level.vectorize(FindLowest(&book, &h, &c));
                assert_eq!((index, number.to_bits()), (found, lowest.to_bits()), "{level}");
            }
        }
    }

    #[test]
    fn nothing_is_found_but_what_is_there() {
        let book = Book::new((0..21).map(|i| [i as f32; 4]));
        let (h, c) = ([[0.0; 4]; 4], [1.0; 4]);
        // The filling equals the last vector.
        assert_eq!(book.vector(book.lowest(&h, &c).0), [20.0; 4]);
        let (index, cost) = book.lowest(&[[f32::NAN; 4]; 4], &c);
        assert_eq!((index, cost), (0, f32::INFINITY));
    }
}
