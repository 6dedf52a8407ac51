//! Code shared by the K types: 256 elements in parts of 16 or 32, each with a scale, some with a minimum.

use super::search::{MinSearch, importance_weights, sum, sum_squares, unsigned, with_min};
use gguf_core::numeric::nearest_int;

/// Elements per super-block.
pub(super) const SUPER: usize = 256;

/// Result of the searches in the `P` parts of one super-block.
#[derive(Clone, Copy)]
pub(super) struct PartFits<const P: usize> {
    /// Scale per part.
    pub scales: [f32; P],
    /// Offset (minus the minimum) per part.
    pub mins: [f32; P],
    /// Sum of importance weights per part; unused without importance.
    pub(crate) weight_sums: [f32; P],
    /// Level per element.
    pub levels: [u8; SUPER],
}

impl<const P: usize> PartFits<P> {
    /// Value without scales and levels.
    pub(super) const ZERO: Self =
        Self { scales: [0.0; P], mins: [0.0; P], weight_sums: [0.0; P], levels: [0; SUPER] };
}

/// Scales of scales of a super-block, still as floats, with the levels of its parts.
#[derive(Clone, Copy)]
pub(super) struct SuperScales<const P: usize> {
    /// Scale of the scales.
    pub d: f32,
    /// Scale of the offsets.
    pub d_min: f32,
    /// Level of each scale.
    pub scales: [u8; P],
    /// Level of each offset.
    pub mins: [u8; P],
}

/// Searches each part of `N` elements for scale, offset and levels under importance weights.
///
/// `sigma2_factor` times the mean square of the super-block flattens the weights.
pub(super) fn parts_with_importance<const N: usize, const P: usize>(
    search: &MinSearch,
    sigma2_factor: f32,
    x: &[f32; SUPER],
    importance: &[f32; SUPER],
) -> PartFits<P> {
    let sigma2 = sigma2_factor * sum_squares(x) / SUPER as f32;
    let mut parts = PartFits::ZERO;
    let xs = x.as_chunks::<N>().0.iter();
    let importances = importance.as_chunks::<N>().0.iter();
    let levels = parts.levels.as_chunks_mut::<N>().0.iter_mut();
    for (j, ((x, importance), levels)) in xs.zip(importances).zip(levels).enumerate() {
        let weights = importance_weights(x, importance, sigma2);
        parts.weight_sums[j] = sum(&weights);
        (parts.scales[j], parts.mins[j]) = with_min::<N, false>(search, x, &weights, levels);
    }
    parts
}

/// Quantizes scales and offsets to `0..=n_max` by weighted search.
pub(super) fn scales_with_importance<const P: usize>(n_max: i32, parts: &PartFits<P>) -> SuperScales<P> {
    let (mut scales, mut mins) = ([0; P], [0; P]);
    let d = unsigned(n_max, &parts.scales, &parts.weight_sums, &mut scales);
    let d_min = unsigned(n_max, &parts.mins, &parts.weight_sums, &mut mins);
    SuperScales { d, d_min, scales, mins }
}

/// Returns the largest of the positive values, or zero if there is none.
#[inline(always)]
pub(super) fn positive_max(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, value| if *value > max { *value } else { max })
}

/// Computes levels `0..=n_max` of one part for the scale and offset that the block stores; keeps them if the scale is
/// zero.
pub(super) fn relevel_min<const N: usize>(
    n_max: i32,
    d: f32,
    offset: f32,
    x: &[f32; N],
    levels: &mut [u8; N],
) {
    if d == 0.0 {
        return;
    }
    for i in 0..N {
        levels[i] = nearest_int((x[i] + offset) / d).clamp(0, n_max) as u8;
    }
}

/// Computes levels `0..2 * n_max` (offset `n_max`) of one part for the stored scale; keeps them if it is zero.
pub(super) fn relevel_signed<const N: usize>(n_max: i32, d: f32, x: &[f32; N], levels: &mut [u8; N]) {
    if d == 0.0 {
        return;
    }
    for i in 0..N {
        levels[i] = (nearest_int(x[i] / d).clamp(-n_max, n_max - 1) + n_max) as u8;
    }
}

/// Returns 32 levels as words of eight: shifts and masks then pack eight at once. No level may shift out of its byte.
#[inline(always)]
pub(super) fn words(levels: &[u8; SUPER], group: usize) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(levels.as_chunks::<32>().0[group].as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// Returns a word with the same byte in all eight positions.
pub(super) const fn each_byte(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// Writes the words that `f` makes of each fourth of the groups.
#[inline(always)]
pub(super) fn put_words<const G: usize>(
    out: &mut [u8; 32],
    groups: [[u64; 4]; G],
    f: impl Fn([u64; G]) -> u64,
) {
    for (w, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mut fourth = [0; G];
        for (word, group) in fourth.iter_mut().zip(&groups) {
            *word = group[w];
        }
        *out = f(fourth).to_le_bytes();
    }
}

/// Packs pairs of bits: byte `32 k + l` holds levels `128 k + 32 n + l`, below 4, in bits `2 n`.
#[inline(always)]
pub(super) fn pack_pairs(levels: &[u8; SUPER], out: &mut [u8; 64]) {
    for (k, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let k = 4 * k;
        let groups = [words(levels, k), words(levels, k + 1), words(levels, k + 2), words(levels, k + 3)];
        put_words(out, groups, |[a, b, c, d]| a | b << 2 | c << 4 | d << 6);
    }
}

/// Packs one bit of each level: bit `n` of byte `l` is bit `bit` of level `32 n + l`.
#[inline(always)]
pub(super) fn pack_bits(bit: u32, levels: &[u8; SUPER], out: &mut [u8; 32]) {
    let mut packed = [0; 4];
    for n in 0..8 {
        for (packed, word) in packed.iter_mut().zip(words(levels, n)) {
            *packed |= (word >> bit & each_byte(1)) << n;
        }
    }
    put_words(out, [packed], |[word]| word);
}

/// Returns the fixed-size part of a block at byte `AT`.
#[inline(always)]
pub(super) fn field<const AT: usize, const LEN: usize, const B: usize>(block: &[u8; B]) -> &[u8; LEN] {
    const { assert!(AT + LEN <= B) };
    block[AT..].first_chunk().expect("the block is longer: checked when compiled")
}

/// Returns the fixed-size part of a block at byte `AT`, for writing.
#[inline(always)]
pub(super) fn field_mut<const AT: usize, const LEN: usize, const B: usize>(
    block: &mut [u8; B],
) -> &mut [u8; LEN] {
    const { assert!(AT + LEN <= B) };
    block[AT..].first_chunk_mut().expect("the block is longer: checked when compiled")
}
