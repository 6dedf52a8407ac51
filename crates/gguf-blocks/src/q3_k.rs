//! Q3_K: 16 parts of 16 elements around zero, 6-bit signed scales, 3-bit levels.
//!
//! # Layout
//! 110 bytes: third bits 0..32 (byte `m`, bit `n` for element `32 n + m`), low pairs of bits 32..96 (see
//! [`pack_pairs`]), scales 96..108, F16 scale of scales 108. Scale `j`, offset by 32, has its low four bits in the
//! nibbles of bytes 0..8 (part `j % 8`, high nibble from part 8) and its high two in byte `8 + j % 4`, bits
//! `2 * (j / 4)`.

use super::batch::{BATCH, BlockBatch};
use super::codec::{Codec, SourceRows, decoder, put_u16, u16_at, validate_f16};
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::{Lanes, MAX_WIDTH, Twice};
use super::refine_lanes::{FirstFitBuffers, RefineBuffers, first_fit, refine};
use super::search::{
    REFINE_ROUNDS, importance_weights, signed, signed_max, signed_refined, sum, sum_squares,
};
use super::search_lanes::{
    signed as signed_lanes, signed_levels, signed_levels_lanes, signed_max as signed_max_lanes,
};
use super::superblock::{SUPER, each_byte, field, field_mut, pack_bits, pack_pairs, relevel_signed};
use super::superblock_lanes::{BATCH_SUPERS, relevel_signed as relevel_signed_lanes};
use gguf_core::GgmlType;
use gguf_core::numeric::{f16_to_f32, f32_to_f16, nearest_int};

const BLOCK_BYTES: usize = 110;
const PART: usize = 16;
const PARTS: usize = SUPER / PART;

pub(super) static Q3_K: Codec = Codec {
    ty: GgmlType::Q3K,
    quantize: Some(quantize_with::<QuantizeQ3K>),
    dequantize,
    validate: validate_f16::<BLOCK_BYTES, 108>,
};

/// Scale of the scales as a float, and the stored scales `0..64`, which mean `-32..32`.
#[derive(Clone, Copy)]
struct Scales {
    d: f32,
    codes: [u8; PARTS],
}

fn plain(x: &[f32; SUPER], levels: &mut [u8; SUPER]) -> Scales {
    let mut scales = [0.0; PARTS];
    let parts = x.as_chunks::<PART>().0.iter().zip(levels.as_chunks_mut::<PART>().0);
    for (j, (x, levels)) in parts.enumerate() {
        scales[j] = signed_refined(4, x, levels);
    }
    scales_plain(&scales)
}

/// Quantizes the scales: the first scale of largest magnitude gets code -32.
#[inline(always)]
fn scales_plain(scales: &[f32; PARTS]) -> Scales {
    let (max, _) = signed_max(scales);
    if max == 0.0 {
        // ref: the bytes of the scales are zero, which means -32
        return Scales { d: 0.0, codes: [0; PARTS] };
    }
    let iscale = -32.0 / max;
    let mut codes = [0; PARTS];
    for j in 0..PARTS {
        // ref: narrowed before it is clamped
        codes[j] = (i32::from(nearest_int(iscale * scales[j]) as i8).clamp(-32, 31) + 32) as u8;
    }
    Scales { d: 1.0 / iscale, codes }
}

fn with_importance(x: &[f32; SUPER], importance: &[f32; SUPER], levels: &mut [u8; SUPER]) -> Scales {
    let sigma2 = 2.0 * sum_squares(x) / SUPER as f32;
    let (mut scales, mut weight_sums) = ([0.0; PARTS], [0.0; PARTS]);
    let parts = x.as_chunks::<PART>().0.iter().zip(importance.as_chunks::<PART>().0);
    for (j, ((x, importance), levels)) in parts.zip(levels.as_chunks_mut::<PART>().0).enumerate() {
        let weights = importance_weights(x, importance, sigma2);
        weight_sums[j] = sum(&weights);
        scales[j] = signed(4, x, &weights, levels);
    }
    let mut codes = [0; PARTS];
    let d = signed(32, &scales, &weight_sums, &mut codes);
    Scales { d, codes }
}

/// Writes scale of scales and scales; returns the step of each part's levels.
#[inline(always)]
fn store_scales(scales: &Scales, out: &mut [u8; BLOCK_BYTES]) -> [f32; PARTS] {
    let d = f32_to_f16(scales.d);
    put_u16(out, 108, d);
    let packed = field_mut::<96, 12, _>(out);
    let codes = u128::from_le_bytes(scales.codes);
    let (low, high) = (codes as u64, (codes >> 64) as u64);
    packed[..8].copy_from_slice(&(low & each_byte(15) | (high & each_byte(15)) << 4).to_le_bytes());
    let [low, high] = [low >> 4 & each_byte(3), high >> 4 & each_byte(3)];
    let quarters = low | low >> 32 << 2 | high << 4 | high >> 32 << 6;
    packed[8..].copy_from_slice(&(quarters as u32).to_le_bytes());
    let d = f16_to_f32(d);
    let mut ds = [0.0; PARTS];
    for j in 0..PARTS {
        ds[j] = d * f32::from(scales.codes[j] as i8 - 32);
    }
    ds
}

/// Writes the levels, which are below 8.
#[inline(always)]
fn pack(levels: &[u8; SUPER], out: &mut [u8; BLOCK_BYTES]) {
    pack_bits(2, levels, field_mut::<0, 32, _>(out));
    let mut low = *levels;
    for level in &mut low {
        *level &= 3;
    }
    pack_pairs(&low, field_mut::<32, 64, _>(out));
}

/// Kernel of all super-blocks, one part per lane.
struct QuantizeQ3K;

impl RowsKernel for QuantizeQ3K {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, importance), out) in rows.blocks().zip(dst.as_chunks_mut().0) {
            let mut levels = [0; SUPER];
            let scales = match importance {
                None => plain(x, &mut levels),
                Some(importance) => with_importance(x, importance, &mut levels),
            };
            let ds = store_scales(&scales, out);
            for ((x, d), levels) in x.as_chunks::<PART>().0.iter().zip(ds).zip(levels.as_chunks_mut().0) {
                relevel_signed(4, d, x, levels);
            }
            pack(&levels, out);
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        match rows.imatrix {
            None => quantize_plain(l, rows, dst),
            Some(importance) => quantize_with_importance(l, rows, importance, dst),
        }
    }
}

/// Number of super-blocks whose parts are searched together without importance: enough to fill vectors with the parts
/// that need more rounds than others.
const RUN: usize = 64;

#[inline(always)]
fn quantize_plain<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
    let mut search = PlainSearch::new(l);
    let supers = rows.src.as_chunks::<SUPER>().0;
    for (supers, out) in supers.chunks(RUN).zip(dst.as_chunks_mut().0.chunks_mut(RUN)) {
        search.run(l, supers.as_flattened().as_chunks().0);
        let iscales = search.super_iscales(l, supers.len());
        for (b, (x, out)) in supers.iter().zip(out).enumerate() {
            let scales = if iscales[b] == 0.0 {
                scales_plain(&search.scales[b])
            } else {
                let codes = signed_levels_lanes(l, 32, iscales[b], &search.scales[b]);
                Scales { d: 1.0 / iscales[b], codes }
            };
            let ds = store_scales(&scales, out);
            let kept = |_: usize, x: &_| {
                let mut levels = [0; PART];
                signed_refined(4, x, &mut levels);
                levels
            };
            pack(&relevel_signed_lanes::<L, PART, PARTS>(l, 4, x, &ds, kept), out);
        }
    }
}

/// The search without importance, for a run of super-blocks.
struct PlainSearch<L: Lanes> {
    scales: [[f32; PARTS]; RUN],
    rows: [[f32; PART]; MAX_WIDTH],
    vector: FirstFitBuffers<L, PART>,
    /// Two vectors, because each waits long for its divisions.
    moving: RefineBuffers<Twice<L>, PART>,
    /// Parts that are not final: after the first fit, and after one round.
    open: [[u16; RUN * PARTS]; 2],
}

impl<L: Lanes> PlainSearch<L> {
    #[inline(always)]
    fn new(l: L) -> Self {
        Self {
            scales: [[0.0; PARTS]; RUN],
            rows: [[0.0; PART]; MAX_WIDTH],
            vector: FirstFitBuffers::zero(l),
            moving: RefineBuffers::zero(Twice(l)),
            open: [[0; RUN * PARTS]; 2],
        }
    }

    /// Finds the scales of all parts.
    #[inline(always)]
    fn run(&mut self, l: L, parts: &[[f32; PART]]) {
        const { assert!(PARTS.is_multiple_of(L::WIDTH)) };
        let Self { scales, rows, vector, moving, open: [open, still_open] } = self;
        let mut n_open = 0;
        for at in (0..parts.len()).step_by(L::WIDTH) {
            l.columns(parts[at..].as_flattened(), PART, &mut vector.x);
            let fit = first_fit(l, 4, vector);
            l.store(fit.scale, &mut scales.as_flattened_mut()[at..]);
            let mut lanes = l.mask_bits(fit.open);
            while lanes != 0 {
                open[n_open] = at as u16 + lanes.trailing_zeros() as u16;
                n_open += 1;
                lanes &= lanes - 1;
            }
        }
        let l = Twice(l);
        let mut rounds = Rounds { l, parts, rows, moving, scales: scales.as_flattened_mut() };
        let n_still_open = rounds.run(1, &open[..n_open], still_open);
        rounds.run(REFINE_ROUNDS, &still_open[..n_still_open], open);
    }

    /// Returns the inverse scales of the scales, or 0 where `scales_plain` must compute them.
    #[inline(always)]
    fn super_iscales(&self, l: L, n_supers: usize) -> [f32; RUN] {
        let mut iscales = [0.0; RUN];
        let mut x = [l.splat(0.0); PARTS];
        for at in (0..n_supers).step_by(L::WIDTH) {
            l.columns(self.scales[at..].as_flattened(), PARTS, &mut x);
            let (max, amax) = signed_max_lanes(l, &x);
            // Ordinary magnitudes without NaN: nothing wraps or overflows.
            let mut plain = l.gt(amax, l.splat(1e-30)) & l.gt(l.splat(1e30), amax);
            for &value in &x {
                plain = plain & l.eq(value, value);
            }
            l.store(l.select(plain, l.splat(-32.0) / max, l.splat(0.0)), &mut iscales[at..]);
        }
        iscales
    }
}

/// Rounds of [`PlainSearch`] for parts that are not final.
struct Rounds<'a, L: Lanes> {
    l: L,
    parts: &'a [[f32; PART]],
    rows: &'a mut [[f32; PART]; MAX_WIDTH],
    moving: &'a mut RefineBuffers<L, PART>,
    scales: &'a mut [f32],
}

impl<L: Lanes> Rounds<'_, L> {
    /// Runs rounds on the chosen parts; returns the number of those that are still not final.
    #[inline(always)]
    fn run(&mut self, n_rounds: usize, chosen: &[u16], open: &mut [u16; RUN * PARTS]) -> usize {
        let l = self.l;
        let mut found = [0.0; MAX_WIDTH];
        let mut n_open = 0;
        for chosen in chosen.chunks(L::WIDTH) {
            for (row, part) in self.rows.iter_mut().zip(chosen) {
                *row = self.parts[usize::from(*part)];
            }
            l.columns(self.rows.as_flattened(), PART, &mut self.moving.x);
            let fit = refine(l, 4, n_rounds, self.moving);
            l.store(fit.scale, &mut found);
            let bits = l.mask_bits(fit.open);
            for (lane, (part, scale)) in chosen.iter().zip(&found).enumerate() {
                self.scales[usize::from(*part)] = *scale;
                open[n_open] = *part;
                n_open += (bits >> lane & 1) as usize;
            }
        }
        n_open
    }
}

#[inline(always)]
fn quantize_with_importance<L: Lanes>(l: L, rows: &SourceRows<'_>, importance: &[f32], dst: &mut [u8]) {
    let mut batch = BlockBatch::EMPTY;
    for (index, out) in dst.as_chunks_mut().0.chunks_mut(BATCH_SUPERS).enumerate() {
        batch.load(rows, index * BATCH);
        batch.weigh_supers(l, 2.0, rows, importance);
        let fits = search_importance(l, &batch);
        for (b, (x, out)) in batch.x.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
            let ds = store_scales(&fits.supers[b], out);
            let kept = |j: usize, x: &_| signed_levels(4, fits.iscales[b][j], x);
            pack(&relevel_signed_lanes::<L, PART, PARTS>(l, 4, x, &ds, kept), out);
        }
    }
}

/// Result of the search under importance weights.
struct ImportanceFits {
    iscales: [[f32; PARTS]; BATCH_SUPERS],
    supers: [Scales; BATCH_SUPERS],
}

#[inline(always)]
fn search_importance<L: Lanes>(l: L, batch: &BlockBatch) -> ImportanceFits {
    let mut scales = [[0.0; PARTS]; BATCH_SUPERS];
    let mut weight_sums = [[0.0; PARTS]; BATCH_SUPERS];
    let mut fits = ImportanceFits {
        iscales: [[0.0; PARTS]; BATCH_SUPERS],
        supers: [Scales { d: 0.0, codes: [0; PARTS] }; BATCH_SUPERS],
    };
    let zero = l.splat(0.0);
    let (mut x, mut weights) = ([zero; PART], [zero; PART]);
    for at in (0..batch.n_elems / PART).step_by(L::WIDTH) {
        l.columns(&batch.x[at * PART..], PART, &mut x);
        l.columns(&batch.weights[at * PART..], PART, &mut weights);
        let mut weight_sum = zero;
        for &weight in &weights {
            weight_sum = weight_sum + weight;
        }
        let (scale, iscale) = signed_lanes(l, 4, &x, &weights);
        l.store(scale, &mut scales.as_flattened_mut()[at..]);
        l.store(iscale, &mut fits.iscales.as_flattened_mut()[at..]);
        l.store(weight_sum, &mut weight_sums.as_flattened_mut()[at..]);
    }
    // One super-block per lane.
    for at in (0..batch.n_elems / SUPER).step_by(L::WIDTH) {
        l.columns(&scales.as_flattened()[at * PARTS..], PARTS, &mut x);
        l.columns(&weight_sums.as_flattened()[at * PARTS..], PARTS, &mut weights);
        let (d, iscale) = signed_lanes(l, 32, &x, &weights);
        let (mut ds, mut iscales) = ([0.0; MAX_WIDTH], [0.0; MAX_WIDTH]);
        l.store(d, &mut ds);
        l.store(iscale, &mut iscales);
        for lane in 0..L::WIDTH {
            let codes = signed_levels(32, iscales[lane], &scales[at + lane]);
            fits.supers[at + lane] = Scales { d: ds[lane], codes };
        }
    }
    fits
}

decoder!(dequantize = load);

#[inline(always)]
fn load(block: &[u8; BLOCK_BYTES], out: &mut [f32; SUPER]) {
    let d = f16_to_f32(u16_at(block, 108));
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let scale = d * f32::from(part_scale(block, j));
        let level = levels(block, j);
        for i in 0..PART {
            out[i] = scale * f32::from(level(i));
        }
    }
}

/// Returns the scale of part `j`, `-32..32`.
#[inline(always)]
fn part_scale(block: &[u8; BLOCK_BYTES], j: usize) -> i8 {
    let packed = field::<96, 12, _>(block);
    let code = packed[j % 8] >> (j / 8 * 4) & 15 | (packed[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
    code as i8 - 32
}

/// Returns the level of each element of part `j`, `-4..4`.
#[inline(always)]
fn levels(block: &[u8; BLOCK_BYTES], j: usize) -> impl Fn(usize) -> i8 {
    let pairs = &field::<32, 64, _>(block)[j / 8 * 32 + j % 2 * 16..][..PART];
    let high = &field::<0, 32, _>(block)[j % 2 * 16..][..PART];
    let (shift, bit) = (j / 2 % 4 * 2, j / 2);
    move |i| {
        let level = pairs[i] >> shift & 3 | (high[i] >> bit & 1) << 2;
        level as i8 - 4
    }
}
