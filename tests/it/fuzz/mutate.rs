//! Mutation of inputs similar to libFuzzer's, from a seed that a run prints.

use crate::testkit::noise::Noise;

/// Sizes and counts at their limits.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
    1 << 40,
    1 << 31,
    0x7ff0_0000_0000_0000,
];

/// Damaged copy of an input.
pub fn damaged(seed: &[u8], words: &[Vec<u8>], noise: &mut Noise) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=noise.index(5) {
        let at = noise.index(bytes.len());
        let end = (at + 1 + noise.index(16)).min(bytes.len());
        match noise.index(10) {
            0..=2 if !bytes.is_empty() => bytes[at] = noise.bits() as u8,
            3 if !bytes.is_empty() => bytes[at] ^= 1 << noise.index(8),
            4 => bytes.truncate(at),
            5 => {
                let part = bytes[at..end].to_vec();
                let to = noise.index(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            6 => drop(bytes.drain(at..end)),
            7 => {
                let number = NUMBERS[noise.index(NUMBERS.len())].to_le_bytes();
                let width = [1, 2, 4, 8][noise.index(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            _ if !words.is_empty() => {
                let word = &words[noise.index(words.len())];
                let end = if noise.index(2) == 0 { (at + word.len()).min(bytes.len()) } else { at };
                bytes.splice(at..end, word.iter().copied());
            }
            _ => bytes.push(noise.bits() as u8),
        }
    }
    bytes
}
