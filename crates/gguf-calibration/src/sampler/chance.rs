//! Reproducible random numbers: SplitMix64 (Steele, Lea, Flood 2014), with a stream for each sequence.

/// Stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Chance {
    /// Stream `number` of a seed.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        // Counters of streams must not be only a few steps apart, so both numbers are mixed first.
        Self(mixed(mixed(seed.wrapping_add(STEP)) ^ number.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mixed(self.0)
    }

    /// Number from 0 to less than 1, a multiple of 2⁻⁵³.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws one of `things`, uniformly except for an error of 2⁻⁵³ times their number.
    pub(super) fn one_of<T: Copy>(&mut self, things: &[T]) -> Option<T> {
        let at = (self.unit() * things.len() as f64) as usize;
        things.get(at.min(things.len().saturating_sub(1))).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference() {
        // `SplittableRandom(1234567)` by the algorithm's public domain code in C (Vigna 2015).
        let mut chance = Chance(1_234_567);
        let found: Vec<u64> = (0..5).map(|_| chance.bits()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn streams_are_even_and_apart() {
        let mut counts = [0; 7];
        for number in 0..700 {
            let mut chance = Chance::of(5, number);
            (0..10).for_each(|_| counts[chance.one_of(&[0, 1, 2, 3, 4, 5, 6]).unwrap()] += 1);
        }
        // 1000 each, with a standard deviation of 29.
        assert!(counts.iter().all(|&n: &i32| (n - 1000).abs() < 120), "{counts:?}");
        let first = |seed, number| Chance::of(seed, number).bits();
        let all = [first(0, 0), first(0, 1), first(1, 0), first(1, 1)];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert_eq!(Chance::of(1, 1).one_of::<u8>(&[]), None);
    }
}
