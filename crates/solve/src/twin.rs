//! The formulas as they stand on paper, in F64 and one number at a time; and random data to compare with.

/// A small generator, so that a failing case is its seed.
pub(crate) struct Noise(pub u64);

impl Noise {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// About a standard normal.
    pub(crate) fn bell(&mut self) -> f32 {
        let z = self.bits();
        let sum = (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
        (sum as f32 - 131_070.0) / 37_837.0
    }
}

/// Second moments of `n_tokens` inputs that share a few directions, with columns of unlike sizes.
pub(crate) fn correlated(n: usize, n_tokens: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise(seed);
    let n_shared = (n / 8).max(1);
    let mix: Vec<f32> = (0..n * n_shared).map(|_| noise.bell()).collect();
    let size: Vec<f32> = (0..n).map(|_| (0.7 * noise.bell()).exp()).collect();
    let mut sums = vec![0f64; n * n];
    for _ in 0..n_tokens {
        let shared: Vec<f32> = (0..n_shared).map(|_| noise.bell()).collect();
        let x: Vec<f64> = (0..n)
            .map(|i| {
                let common: f32 =
                    mix[i * n_shared..][..n_shared].iter().zip(&shared).map(|(a, b)| a * b).sum();
                f64::from(size[i] * (common / (n_shared as f32).sqrt() + 0.5 * noise.bell()))
            })
            .collect();
        for (row, out) in sums.chunks_mut(n).enumerate() {
            for (out, other) in out.iter_mut().zip(&x) {
                *out += x[row] * other;
            }
        }
    }
    sums.iter().map(|sum| (sum / n_tokens as f64) as f32).collect()
}
