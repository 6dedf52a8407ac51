//! Integer codes in words: dense little-endian bit streams, padded words, and AWQ's nibble order.

use std::ops::Range;

use crate::core::WeightSource;
use crate::transform::dequant::DequantError;
use crate::transform::dequant::values::with_bytes;

/// Bits of a word.
const WORD: u64 = 32;

/// Column of a group of eight that each nibble of an AWQ word holds, as the nibble that each column lies in.
const AWQ_NIBBLE: [u64; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// How codes of a few bits lie in a stream of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Code `k` occupies bits `k · bits ..` of the words taken as one little-endian number.
    Dense,
    /// Each word holds as many whole codes as fit, the lowest bits first.
    Padded,
    /// Eight nibbles a word in AWQ's order.
    Awq,
}

/// A stream of codes: which codes lie in which words of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// The tensor, of 32-bit words.
    pub(super) index: usize,
    /// Bits of a code.
    pub(super) bits: u32,
    /// How they lie in the words.
    pub(super) packing: Packing,
    /// Distance of two neighbouring words of a stream, in words.
    pub(super) step: u64,
    /// Distance of two neighbouring streams, in words.
    pub(super) stride: u64,
}

impl Stream {
    /// Words that a stream of `n` codes takes.
    pub(super) fn words(bits: u32, packing: Packing, n: u64) -> u64 {
        match packing {
            Packing::Dense => (n * u64::from(bits)).div_ceil(WORD),
            Packing::Padded | Packing::Awq => n.div_ceil(WORD / u64::from(bits)),
        }
    }

    /// Reads codes `range` of stream `number` into `out`.
    ///
    /// # Errors
    /// The source failed.
    ///
    /// # Panics
    /// If the range lies outside the tensor: shapes are checked while planning.
    pub(super) fn read(
        &self,
        source: &dyn WeightSource,
        number: u64,
        range: Range<u64>,
        out: &mut [i32],
    ) -> Result<(), DequantError> {
        if range.is_empty() {
            return Ok(());
        }
        let (first, last) = (self.word_of(range.start).0, self.last_word_of(range.end - 1));
        let base = number * self.stride;
        if self.step == 1 {
            return with_bytes(source, self.index, 4, base + first..base + last + 1, |bytes| {
                self.unpack(|word| word_at(bytes, word - first), range, out);
                Ok(())
            });
        }
        // Words of one stream lie far apart; what lies between belongs to its neighbours.
        let from = base + first * self.step;
        with_bytes(source, self.index, 4, from..base + last * self.step + 1, |bytes| {
            self.unpack(|word| word_at(bytes, (word - first) * self.step), range, out);
            Ok(())
        })
    }

    /// Word and bit at which a code starts.
    fn word_of(&self, code: u64) -> (u64, u32) {
        let bits = u64::from(self.bits);
        match self.packing {
            Packing::Dense => (code * bits / WORD, (code * bits % WORD) as u32),
            Packing::Padded => {
                let per_word = WORD / bits;
                (code / per_word, (code % per_word * bits) as u32)
            }
            Packing::Awq => (code / 8, (4 * AWQ_NIBBLE[(code % 8) as usize]) as u32),
        }
    }

    fn last_word_of(&self, code: u64) -> u64 {
        let (word, bit) = self.word_of(code);
        word + u64::from(self.packing == Packing::Dense && bit + self.bits > 32)
    }

    fn unpack(&self, word: impl Fn(u64) -> u32, range: Range<u64>, out: &mut [i32]) {
        let mask = ((1u64 << self.bits) - 1) as u32;
        // Codes that do not straddle words are taken a word at a time.
        if self.packing == Packing::Dense && 32 % self.bits == 0 {
            let per_word = u64::from(32 / self.bits);
            let mut code = range.start;
            let mut out = out.iter_mut();
            while code < range.end {
                let value = word(code / per_word);
                let end = range.end.min((code / per_word + 1) * per_word);
                for (at, out) in (code..end).zip(out.by_ref().take((end - code) as usize)) {
                    *out = (value >> ((at % per_word) as u32 * self.bits) & mask).cast_signed();
                }
                code = end;
            }
            return;
        }
        for (code, out) in range.zip(out) {
            let (at, bit) = self.word_of(code);
            let mut value = word(at) >> bit;
            if self.packing == Packing::Dense && bit + self.bits > 32 {
                value |= word(at + 1) << (32 - bit);
            }
            *out = (value & mask).cast_signed();
        }
    }
}

fn word_at(bytes: &[u8], word: u64) -> u32 {
    let at = word as usize * 4;
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}
