//! Mutation of inputs similar to libFuzzer's, from a seed that a run prints.

/// Pseudo-random numbers.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % (n as u64).max(1)) as usize
    }
}

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
    for _ in 0..=noise.below(5) {
        let at = noise.below(bytes.len());
        let end = (at + 1 + noise.below(16)).min(bytes.len());
        match noise.below(10) {
            0..=2 if !bytes.is_empty() => bytes[at] = noise.next() as u8,
            3 if !bytes.is_empty() => bytes[at] ^= 1 << noise.below(8),
            4 => bytes.truncate(at),
            5 => {
                let part = bytes[at..end].to_vec();
                let to = noise.below(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            6 => drop(bytes.drain(at..end)),
            7 => {
                let number = NUMBERS[noise.below(NUMBERS.len())].to_le_bytes();
                let width = [1, 2, 4, 8][noise.below(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            _ if !words.is_empty() => {
                let word = &words[noise.below(words.len())];
                let end = if noise.below(2) == 0 { (at + word.len()).min(bytes.len()) } else { at };
                bytes.splice(at..end, word.iter().copied());
            }
            _ => bytes.push(noise.next() as u8),
        }
    }
    bytes
}

/// Words of a dictionary in libFuzzer's format: `name="text"`, with `\\`, `\"` and `\xNN`.
pub fn words(dictionary: &str) -> Vec<Vec<u8>> {
    let lines = dictionary.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| word(line).unwrap_or_else(|| panic!("not a word of a dictionary: {line}"))).collect()
}

fn word(line: &str) -> Option<Vec<u8>> {
    let (name, text) = line.split_once('"')?;
    let name_is_fine =
        name.is_empty() || name.strip_suffix('=')?.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let text = text.strip_suffix('"').filter(|text| name_is_fine && !text.is_empty())?;
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte == b'"' {
            return None;
        }
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (&kind, behind) = rest.split_first()?;
        rest = behind;
        if kind == b'x' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else if kind == b'\\' || kind == b'"' {
            bytes.push(kind);
        } else {
            return None;
        }
    }
    Some(bytes)
}
