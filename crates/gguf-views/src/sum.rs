//! Sums as torch computes them.

/// Lanes of a vector; `ROUND` is four vectors, which are added side by side.
const LANES: usize = 8;
const ROUND: usize = 4 * LANES;
const LEVELS: usize = 4;

/// Number of elements from which torch shares the work among threads, and the minimum size of their parts.
const SHARED: u64 = 1 << 15;

/// Sum of a known number of elements that arrive in order.
///
/// # Exactness
/// Equals `torch.sum` of an F32 tensor on the CPU with two threads, whatever vector instructions torch was built for.
/// Up to 65536 elements the sum is the same with any number of threads except one; for more elements, torch's last bits
/// depend on the number.
#[derive(Debug)]
pub(super) struct TorchSum {
    /// Sums of the two halves, or of the whole.
    parts: Vec<CascadeSum>,
    part_len: u64,
    done: u64,
}

impl TorchSum {
    pub(super) fn new(n: u64) -> Self {
        let n_parts = if n > SHARED { 2 } else { 1 };
        let part_len = n.div_ceil(n_parts).max(1);
        let parts = (0..n_parts).map(|part| CascadeSum::new(part_len.min(n - part * part_len)));
        Self { parts: parts.collect(), part_len, done: 0 }
    }

    /// Adds the next elements.
    pub(super) fn add(&mut self, mut values: &[f32]) {
        while !values.is_empty() {
            let (part, within) = (self.done / self.part_len, self.done % self.part_len);
            let n = values.len().min((self.part_len - within) as usize);
            let (head, rest) = values.split_at(n);
            if let Some(part) = self.parts.get_mut(part as usize) {
                part.add(head);
            }
            self.done += n as u64;
            values = rest;
        }
    }

    pub(super) fn finish(self) -> f32 {
        self.parts.into_iter().map(CascadeSum::finish).sum()
    }
}

/// Sum of one thread: four vectors of eight lanes are added in turn. After a fixed number of rounds the sums move up a
/// level, so that no lane adds small numbers to a large one for long.
#[derive(Debug)]
struct CascadeSum {
    levels: [[f32; ROUND]; LEVELS],
    /// Binary logarithm of the number of rounds until the sums move up.
    power: u32,
    /// Number of rounds so far.
    done: u64,
    /// Elements of an incomplete round.
    rest: Vec<f32>,
}

impl CascadeSum {
    fn new(n: u64) -> Self {
        let n_rounds = n / ROUND as u64;
        // Binary logarithm, rounded up; torch takes 1 for an argument of 1.
        let log = if n_rounds <= 2 { 1 } else { u64::BITS - (n_rounds - 1).leading_zeros() };
        let power = (log / LEVELS as u32).max(4);
        Self { levels: [[0.0; ROUND]; LEVELS], power, done: 0, rest: Vec::new() }
    }

    fn add(&mut self, mut values: &[f32]) {
        if !self.rest.is_empty() {
            let (head, rest) = values.split_at(values.len().min(ROUND - self.rest.len()));
            self.rest.extend_from_slice(head);
            values = rest;
            if let Ok(round) = <&[f32; ROUND]>::try_from(self.rest.as_slice()) {
                let round = *round;
                self.rest.clear();
                self.add_round(&round);
            }
        }
        let (rounds, rest) = values.as_chunks::<ROUND>();
        for round in rounds {
            self.add_round(round);
        }
        self.rest.extend_from_slice(rest);
    }

    fn add_round(&mut self, round: &[f32; ROUND]) {
        for (sum, value) in self.levels[0].iter_mut().zip(round) {
            *sum += value;
        }
        self.done += 1;
        self.move_up();
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

    fn finish(self) -> f32 {
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
