//! Integer codes in words: dense little-endian bit streams, padded words, and AWQ's nibble order.
//!
//! Words are gathered first, then unpacked in units: the shortest runs of words that begin and end at a code
//! boundary.

#![expect(clippy::inline_always, reason = "the loops must be compiled inside the level's function")]

use std::array::from_fn;
use std::ops::Range;

use crate::rectangle::Rectangle;
use crate::{InnerSource, Result};
use gguf_core::little_endian::u32s;
use gguf_core::simd::VectorLoop;

const WORD: u64 = 32;

/// Nibble of an AWQ word that holds each column of a group of eight.
const AWQ_NIBBLE: [u64; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Layout of codes in a stream of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordLayout {
    /// Code `k` occupies bits `k · bits ..` of the words taken as one little-endian number.
    Dense,
    /// Each word holds as many whole codes as fit, lowest bits first.
    Padded,
    /// Each word holds eight nibbles in AWQ's order.
    Awq,
}

/// Mapping from streams of codes to the words of a tensor.
///
/// Word `k` of stream `s` is word `s · stride + k · step` of the tensor; one of the two distances is 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeStream {
    /// Index of the tensor, which holds 32-bit words.
    pub(super) index: usize,
    /// Bits per code, at most 8.
    pub(super) bits: u32,
    /// Layout of the codes in the words.
    pub(super) layout: WordLayout,
    /// Distance of two neighbouring words of a stream, in words.
    pub(super) step: u64,
    /// Distance of two neighbouring streams, in words.
    pub(super) stride: u64,
}

impl CodeStream {
    /// Returns the number of words of a stream of `n` codes.
    pub(super) fn words(bits: u32, layout: WordLayout, n: u64) -> u64 {
        match layout {
            WordLayout::Dense => n.saturating_mul(u64::from(bits)).div_ceil(WORD),
            WordLayout::Padded | WordLayout::Awq => n.div_ceil(WORD / u64::from(bits)),
        }
    }

    /// Reads a rectangle whose rows are streams and whose columns are codes: `out` is `[streams, codes]`.
    ///
    /// # Panics
    /// If the rectangle is outside the tensor: shapes are checked while planning.
    pub(super) fn read_along(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        let (streams, codes) = (part.rows.clone(), &part.cols);
        if part.n_elems() == 0 {
            return Ok(());
        }
        let words = self.words_of(codes);
        let (unit_codes, unit_words) = self.unit();
        let stride = (words.end - words.start).next_multiple_of(unit_words) as usize;
        let mut gathered = vec![0; (streams.end - streams.start) as usize * stride];
        self.gather(inner, streams, words, WordPitch { stream: stride, word: 1 }, &mut gathered)?;
        let skip = (codes.start % unit_codes) as usize;
        for (words, out) in gathered.chunks_exact(stride).zip(out.chunks_exact_mut(part.width())) {
            inner.level.vectorize(Unpack { stream: *self, words, skip, out });
        }
        Ok(())
    }

    /// Reads a rectangle whose rows are codes and whose columns are streams: `out` is `[codes, streams]`.
    ///
    /// `add` is added to every word before codes are extracted.
    ///
    /// # Panics
    /// As [`CodeStream::read_along`].
    pub(super) fn read_across(
        &self,
        inner: InnerSource<'_>,
        part: &Rectangle,
        add: u32,
        out: &mut [u8],
    ) -> Result<()> {
        if part.n_elems() == 0 {
            return Ok(());
        }
        let words = self.words_of(&part.rows);
        let (first, n_streams) = (words.start, part.width());
        let mut gathered = vec![0u32; (words.end - first) as usize * n_streams];
        let pitch = WordPitch { stream: 1, word: n_streams };
        self.gather(inner, part.cols.clone(), words, pitch, &mut gathered)?;
        for word in &mut gathered {
            *word = word.wrapping_add(add);
        }
        for (code, out) in part.split_rows(out, n_streams) {
            let (word, bit) = self.word_of(code);
            let line = |word: u64| &gathered[(word - first) as usize * n_streams..][..n_streams];
            let straddles = bit + self.bits > 32;
            let high = if straddles { line(word + 1) } else { line(word) };
            inner.level.vectorize(ExtractField { low: line(word), high, bit, bits: self.bits, out });
        }
        Ok(())
    }

    /// Returns the numbers of codes and words per unit.
    fn unit(&self) -> (u64, u64) {
        match self.layout {
            WordLayout::Dense if 32 % self.bits != 0 => (32, u64::from(self.bits)),
            _ => (WORD / u64::from(self.bits), 1),
        }
    }

    /// Returns the word and bit at which a code starts.
    fn word_of(&self, code: u64) -> (u64, u32) {
        let bits = u64::from(self.bits);
        match self.layout {
            WordLayout::Dense => (code * bits / WORD, (code * bits % WORD) as u32),
            WordLayout::Padded => {
                let per_word = WORD / bits;
                (code / per_word, (code % per_word * bits) as u32)
            }
            WordLayout::Awq => (code / 8, (4 * AWQ_NIBBLE[(code % 8) as usize]) as u32),
        }
    }

    fn last_word_of(&self, code: u64) -> u64 {
        let (word, bit) = self.word_of(code);
        word + u64::from(bit + self.bits > 32)
    }

    /// Returns the words, from the start of a unit on, that hold a range of codes that is not empty.
    fn words_of(&self, codes: &Range<u64>) -> Range<u64> {
        let (unit_codes, unit_words) = self.unit();
        codes.start / unit_codes * unit_words..self.last_word_of(codes.end - 1) + 1
    }

    /// Gathers words of streams, counted from the starts of the ranges.
    ///
    /// Only the requested words are read: in a large tensor, other data may be between the words of a stream.
    fn gather(
        &self,
        inner: InnerSource<'_>,
        streams: Range<u64>,
        words: Range<u64>,
        pitch: WordPitch,
        out: &mut [u32],
    ) -> Result<()> {
        // A line is contiguous: the words of one stream, or one word of all streams.
        let is_along = self.step == 1;
        let (lines, elems, line_stride) =
            if is_along { (streams, words, self.stride) } else { (words, streams, self.step) };
        let (line_pitch, elem_pitch) =
            if is_along { (pitch.stream, pitch.word) } else { (pitch.word, pitch.stream) };
        let (tensor, n_words) = (inner.tensor(self.index), elems.end - elems.start);
        for (line, first) in lines.map(|line| line * line_stride + elems.start).enumerate() {
            let out = &mut out[line * line_pitch..];
            tensor.with_elems(first..first + n_words, |bytes| {
                if elem_pitch == 1 {
                    out.iter_mut().zip(u32s(bytes)).for_each(|(out, word)| *out = word);
                } else {
                    out.iter_mut().step_by(elem_pitch).zip(u32s(bytes)).for_each(|(out, word)| *out = word);
                }
            })?;
        }
        Ok(())
    }
}

/// Distances of gathered words: word `k` of stream `s` goes to `s · stream + k · word`.
#[derive(Clone, Copy)]
struct WordPitch {
    stream: usize,
    word: usize,
}

/// Unpacks a stream of whole units into bytes, without the first `skip` codes.
struct Unpack<'a> {
    stream: CodeStream,
    words: &'a [u32],
    skip: usize,
    out: &'a mut [u8],
}

impl VectorLoop for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { stream, words, skip, out } = self;
        match (stream.layout, stream.bits) {
            (WordLayout::Awq, _) => units(words, skip, out, |&[word]: &[u32; 1]| {
                from_fn::<u8, 8, _>(|k| (word >> (4 * AWQ_NIBBLE[k])) as u8 & 15)
            }),
            (_, 1) => units(words, skip, out, whole::<1, 32>),
            (_, 2) => units(words, skip, out, whole::<2, 16>),
            (_, 4) => units(words, skip, out, whole::<4, 8>),
            (_, 8) => units(words, skip, out, whole::<8, 4>),
            (WordLayout::Dense, 3) => units(words, skip, out, straddling::<3>),
            (WordLayout::Dense, 5) => units(words, skip, out, straddling::<5>),
            (WordLayout::Dense, 6) => units(words, skip, out, straddling::<6>),
            (WordLayout::Dense, _) => units(words, skip, out, straddling::<7>),
            (WordLayout::Padded, 3) => units(words, skip, out, whole::<3, 10>),
            (WordLayout::Padded, 5) => units(words, skip, out, whole::<5, 6>),
            (WordLayout::Padded, 6) => units(words, skip, out, whole::<6, 5>),
            (WordLayout::Padded, _) => units(words, skip, out, whole::<7, 4>),
        }
    }
}

/// Unpacks the codes of a word if codes do not straddle words.
#[inline(always)]
fn whole<const BITS: usize, const CODES: usize>(&[word]: &[u32; 1]) -> [u8; CODES] {
    from_fn(|k| (word >> (k * BITS)) as u8 & (u8::MAX >> (8 - BITS)))
}

/// Unpacks 32 codes from as many words as a code has bits.
#[inline(always)]
fn straddling<const BITS: usize>(words: &[u32; BITS]) -> [u8; 32] {
    from_fn(|k| {
        let (word, bit) = (k * BITS / 32, k * BITS % 32);
        let high = if bit + BITS > 32 { words[word + 1] << (32 - bit) } else { 0 };
        (words[word] >> bit | high) as u8 & (u8::MAX >> (8 - BITS))
    })
}

/// Unpacks consecutive units; the first and the last may be cut.
#[inline(always)]
fn units<const WORDS: usize, const CODES: usize>(
    words: &[u32],
    skip: usize,
    out: &mut [u8],
    codes_of: impl Fn(&[u32; WORDS]) -> [u8; CODES],
) {
    let mut units = words.as_chunks::<WORDS>().0.iter();
    let mut out = out;
    if skip > 0
        && let Some(unit) = units.next()
    {
        let codes = codes_of(unit);
        let n = (CODES - skip).min(out.len());
        let (head, rest) = out.split_at_mut(n);
        head.copy_from_slice(&codes[skip..skip + n]);
        out = rest;
    }
    let (body, tail) = out.as_chunks_mut::<CODES>();
    for (out, unit) in body.iter_mut().zip(units.by_ref()) {
        *out = codes_of(unit);
    }
    if let Some(unit) = units.next() {
        tail.copy_from_slice(&codes_of(unit)[..tail.len()]);
    }
}

/// Extracts one code of many streams: bits `bit ..` of `low`, and for a code that straddles words the low bits of
/// `high`.
struct ExtractField<'a> {
    low: &'a [u32],
    high: &'a [u32],
    bit: u32,
    bits: u32,
    out: &'a mut [u8],
}

impl VectorLoop for ExtractField<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mask = u8::MAX >> (8 - self.bits);
        let (bit, up) = (self.bit, 32 - self.bit);
        if bit + self.bits > 32 {
            for ((out, &low), &high) in self.out.iter_mut().zip(self.low).zip(self.high) {
                *out = (low >> bit | high << up) as u8 & mask;
            }
        } else {
            for (out, &low) in self.out.iter_mut().zip(self.low) {
                *out = (low >> bit) as u8 & mask;
            }
        }
    }
}
