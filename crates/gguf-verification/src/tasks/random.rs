//! Random choice of tasks: the reference's choice, with its generator and its seed.

struct Mt19937 {
    state: [u32; Self::N],
    next: usize,
}

impl Mt19937 {
    const N: usize = 624;
    const M: usize = 397;

    fn new(seed: u32) -> Self {
        let mut state = [seed; Self::N];
        for at in 1..Self::N {
            let before = state[at - 1];
            state[at] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(at as u32);
        }
        Self { state, next: Self::N }
    }

    fn twist(&mut self) {
        for at in 0..Self::N {
            let joined = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % Self::N] & 0x7fff_ffff);
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[at] = self.state[(at + Self::M) % Self::N] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }

    fn draw(&mut self) -> u32 {
        if self.next == Self::N {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Draws a number below `n` like `std::uniform_int_distribution` of GNU's library (release 11 and later).
    fn below(&mut self, n: u32) -> u32 {
        let mut product = u64::from(self.draw()) * u64::from(n);
        if (product as u32) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u32) < threshold {
                product = u64::from(self.draw()) * u64::from(n);
            }
        }
        (product >> 32) as u32
    }
}

/// Returns the indices of `count` of `n` tasks, in the order in which HellaSwag's are drawn; also drawn if all are
/// taken.
pub(super) fn by_distribution(n: usize, count: usize) -> Vec<usize> {
    let mut random = Mt19937::new(1);
    let mut left: Vec<usize> = (0..n).collect();
    let draw = |_| left.remove(random.below(left.len() as u32) as usize);
    (0..count.min(n)).map(draw).collect()
}

/// Returns the indices of `count` of `n` tasks, as those of the other kinds are drawn: by a float; all are taken in
/// order.
pub(super) fn by_scaling(n: usize, count: usize) -> Vec<usize> {
    if count >= n {
        return (0..n).collect();
    }
    let mut random = Mt19937::new(1);
    let scale = 1.0 / (1.0 + u32::MAX as f32);
    let mut left: Vec<usize> = (0..n).collect();
    let draw = |_| {
        // Rounding may make the product equal to the number of tasks.
        let at = (scale * random.draw() as f32 * left.len() as f32) as usize;
        left.swap_remove(at.min(left.len() - 1))
    };
    (0..count).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_standards() {
        // Value that the C++ standard gives for the default seed: the 10000th number.
        let mut random = Mt19937::new(5489);
        let last = (0..10_000).map(|_| random.draw()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn every_task_is_drawn_once() {
        for n in [1, 2, 7, 1000] {
            for drawn in [by_distribution(n, n), by_scaling(n, n), by_distribution(n, n + 1)] {
                let mut sorted = drawn.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            }
            assert_eq!(by_scaling(n, n / 2).len(), n / 2);
        }
        assert!(by_distribution(0, 5).is_empty());
    }
}
