//! Seeded noise. Needs nothing but `core`, so that every crate of the workspace includes it by its path.
#![allow(dead_code, unreachable_pub, reason = "each crate that includes this uses a part of it")]

/// Generator of pseudo-random numbers (SplitMix64); equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n.max(1)
    }

    /// Returns an index of a list of `len` items, or 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub fn flip(&mut self) -> bool {
        self.bits() % 2 == 1
    }

    pub fn bytes(&mut self, n: u64) -> Vec<u8> {
        (0..n).map(|_| self.bits() as u8).collect()
    }

    /// Returns a number from 0 up to 1, with 24 random bits.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// Returns a number from -1 up to 1, with 24 random bits.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Returns `n` numbers from -1 up to 1.
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.signed()).collect()
    }

    /// Returns a bell-shaped number between -2 and 2.
    pub fn bell(&mut self) -> f32 {
        self.centred_sum() / 65_536.0
    }

    /// Returns an approximately standard normal number.
    pub fn normal(&mut self) -> f32 {
        self.centred_sum() / 37_837.0
    }

    /// Returns the sum of four numbers of 16 bits, minus its mean.
    fn centred_sum(&mut self) -> f32 {
        let z = self.bits();
        let sum = (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
        sum as f32 - 131_070.0
    }
}
