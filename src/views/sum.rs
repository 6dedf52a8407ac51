//! Sums as torch computes them.

/// Lanes of a vector, and vectors that are added side by side.
const LANES: usize = 8;
const ROUND: usize = 4 * LANES;
const LEVELS: usize = 4;

/// The sum of a known number of elements that come in order.
///
/// # Exactness
/// Equals `torch.sum` of an F32 tensor on the CPU with one thread, whatever vector instructions torch was built for:
/// four vectors of eight lanes are added in turns; every so many rounds the sums move up a level, so that no lane adds
/// small numbers to a large one for long.
#[derive(Debug)]
pub(super) struct CascadeSum {
    /// Sums of each level.
    levels: [[f32; ROUND]; LEVELS],
    /// Rounds until the sums move up, as a power of two.
    power: u32,
    /// Whole rounds there are, and those that came.
    n_rounds: u64,
    done: u64,
    /// Elements behind the last whole round, in order.
    rest: Vec<f32>,
}

impl CascadeSum {
    pub(super) fn new(n: u64) -> Self {
        let n_rounds = n / ROUND as u64;
        // The binary logarithm, rounded up; of 1 it is 1 there.
        let log = if n_rounds <= 2 { 1 } else { u64::BITS - (n_rounds - 1).leading_zeros() };
        let power = (log / LEVELS as u32).max(4);
        Self { levels: [[0.0; ROUND]; LEVELS], power, n_rounds, done: 0, rest: Vec::new() }
    }

    /// The next elements. All calls but the last bring whole rounds.
    pub(super) fn add(&mut self, values: &[f32]) {
        let (rounds, rest) = values.as_chunks::<ROUND>();
        for round in rounds {
            if self.done == self.n_rounds {
                self.rest.extend_from_slice(round);
                continue;
            }
            for (sum, value) in self.levels[0].iter_mut().zip(round) {
                *sum += value;
            }
            self.done += 1;
            self.move_up();
        }
        self.rest.extend_from_slice(rest);
    }

    fn move_up(&mut self) {
        let mask = (1u64 << self.power) - 1;
        if self.done & mask != 0 {
            return;
        }
        for level in 1..LEVELS {
            let (below, above) = self.levels.split_at_mut(level);
            for (sum, part) in above[0].iter_mut().zip(below[level - 1].iter_mut()) {
                *sum += *part;
                *part = 0.0;
            }
            let shift = self.power * level as u32;
            if shift < u64::BITS && self.done & (mask << shift) != 0 {
                break;
            }
        }
    }

    pub(super) fn finish(self) -> f32 {
        let [mut sums, others @ ..] = self.levels;
        for level in &others {
            sums.iter_mut().zip(level).for_each(|(sum, part)| *sum += part);
        }
        let (vectors, tail) = self.rest.as_chunks::<LANES>();
        let (lanes, more) = sums.split_at_mut(LANES);
        for vector in vectors {
            lanes.iter_mut().zip(vector).for_each(|(sum, value)| *sum += value);
        }
        for vector in more.chunks_exact(LANES) {
            lanes.iter_mut().zip(vector).for_each(|(sum, part)| *sum += part);
        }
        tail.iter().chain(lanes.iter()).fold(0.0, |sum, value| sum + value)
    }
}
