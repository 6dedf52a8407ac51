//! Resizing of position embeddings on a square grid: a tower trained for one image size is used for another.

/// Bilinear resize of a grid from one side length to another, corners aligned.
///
/// # Exactness
/// Equals torch's `interpolate(mode="bilinear", align_corners=True)` on a processor with fused multiply-add, with the
/// channels innermost and a multiple of the vector's length: weights in F32, sums in its order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resize {
    from: u64,
    to: u64,
}

/// Two neighbours of a position along one side, and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GridNeighbours {
    low: u64,
    high: u64,
    of_low: f32,
    of_high: f32,
}

impl Resize {
    /// Creates a resize from one side length to another, neither of them zero.
    pub(super) fn new(from: u64, to: u64) -> Self {
        Self { from, to }
    }

    /// Returns the rows of the old grid that are the neighbours of each row of the result: above left, above right,
    /// below left, below right.
    pub(super) fn corners(self) -> [Vec<u64>; 4] {
        let corner = |pick: fn(GridNeighbours, GridNeighbours) -> (u64, u64)| {
            let rows = (0..self.to * self.to).map(|row| {
                let (y, x) = pick(self.between(row / self.to), self.between(row % self.to));
                y * self.from + x
            });
            rows.collect()
        };
        [
            corner(|y, x| (y.low, x.low)),
            corner(|y, x| (y.low, x.high)),
            corner(|y, x| (y.high, x.low)),
            corner(|y, x| (y.high, x.high)),
        ]
    }

    /// Returns the neighbours of a position of the new grid.
    fn between(self, place: u64) -> GridNeighbours {
        // Sides are short: every number here except the quotient is exact in F32.
        let step = if self.to > 1 { (self.from - 1) as f32 / (self.to - 1) as f32 } else { 0.0 };
        let at = step * place as f32;
        let low = (at as u64).min(self.from - 1);
        let of_high = (at - low as f32).clamp(0.0, 1.0);
        GridNeighbours { low, high: (low + 1).min(self.from - 1), of_low: 1.0 - of_high, of_high }
    }

    /// Returns the weights of the four neighbours of a row of the result: above left, above right, below left, below
    /// right.
    pub(super) fn weights(self, row: u64) -> [f32; 4] {
        let (y, x) = (self.between(row / self.to), self.between(row % self.to));
        [y.of_low * x.of_low, y.of_low * x.of_high, y.of_high * x.of_low, y.of_high * x.of_high]
    }

    /// Returns the weighted sum of four numbers.
    pub(super) fn blend([a, b, c, d]: [f32; 4], weights: [f32; 4]) -> f32 {
        let below = d.mul_add(weights[3], c * weights[2]);
        a.mul_add(weights[0], b.mul_add(weights[1], below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_stay_and_weights_add_up() {
        let resize = Resize { from: 8, to: 6 };
        assert_eq!(resize.between(0), GridNeighbours { low: 0, high: 1, of_low: 1.0, of_high: 0.0 });
        assert_eq!(resize.between(5), GridNeighbours { low: 7, high: 7, of_low: 1.0, of_high: 0.0 });
        for row in 0..36 {
            let sum: f32 = resize.weights(row).iter().sum();
            assert!((sum - 1.0).abs() < 1e-6, "{row}: {sum}");
        }
        assert_eq!(Resize { from: 3, to: 1 }.weights(0), [1.0, 0.0, 0.0, 0.0]);
    }
}
