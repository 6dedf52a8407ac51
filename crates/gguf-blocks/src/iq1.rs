//! IQ1_S and IQ1_M: groups of 8 from a code book of -1, 0, 1, all shifted by an eighth up or down.
//!
//! # Layout
//! IQ1_S, 50 bytes, 8 parts of 32: F16 scale 0, low 8 bits of 32 grid indices 2..34, a 16-bit number per part 34..50:
//! four times 3 high bits of the indices, 3-bit scale, shift down.
//! IQ1_M, 56 bytes, 16 parts of 16: low 8 bits of 32 grid indices 0..32, a nibble per group 32..48 of 3 high bits and
//! shift down, four 16-bit numbers 48..56: four 3-bit scales each, and 4 bits of the F16 scale on top.

use super::codec::{Codec, decode_blocks, f16_flaw, u16_at, validate_f16, validate_with};
use super::grids;
use super::iq1_lanes::{QuantizeIq1M, QuantizeIq1S};
use super::iq1_search::{DELTA, M_BYTES, S_BYTES};
use super::kernel::quantize_with;
use super::superblock::{SUPER, field};
use gguf_core::numeric::f16_to_f32;
use gguf_core::{GgmlType, simd::SimdLevel};

pub(super) static IQ1_S: Codec = Codec {
    ty: GgmlType::Iq1S,
    quantize: Some(quantize_with::<QuantizeIq1S>),
    dequantize: dequantize_s,
    validate: validate_f16::<S_BYTES, 0>,
};

pub(super) static IQ1_M: Codec = Codec {
    ty: GgmlType::Iq1M,
    quantize: Some(quantize_with::<QuantizeIq1M>),
    dequantize: dequantize_m,
    validate: |bytes| validate_with(bytes, |block: &[u8; M_BYTES]| f16_flaw(scale_bits_m(block))),
};

#[inline(always)]
fn load_group(scale: f32, point: u16, down: bool, out: &mut [f32; 8]) {
    let delta = if down { -DELTA } else { DELTA };
    for i in 0..8 {
        let level = i32::from(point >> (2 * i) & 3) - 1;
        out[i] = scale * (level as f32 + delta);
    }
}

fn dequantize_s(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block: &[u8; S_BYTES], out: &mut [f32; SUPER]| {
        let d = f16_to_f32(u16_at(block, 0));
        for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (multiple, point, down) = group_s(block, k);
            load_group(d * f32::from(multiple), point, down, out);
        }
    });
}

/// Returns the odd multiple of the scale, the point and the shift of group `k`.
#[inline(always)]
fn group_s(block: &[u8; S_BYTES], k: usize) -> (i16, u16, bool) {
    let high = u16_at(block, 34 + k / 4 * 2);
    let index = u16::from(block[2 + k]) | (high >> (3 * (k % 4)) & 7) << 8;
    ((2 * (high >> 12 & 7) + 1) as i16, grids::IQ1[usize::from(index)], high & 0x8000 != 0)
}

/// Returns the F16 scale that the four numbers hold in their top nibbles.
#[inline(always)]
fn scale_bits_m(block: &[u8; M_BYTES]) -> u16 {
    (0..4).fold(0, |bits, k| bits | (u16_at(block, 48 + 2 * k) >> 12) << (4 * k))
}

fn dequantize_m(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block: &[u8; M_BYTES], out: &mut [f32; SUPER]| {
        let d = f16_to_f32(scale_bits_m(block));
        for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (multiple, point, down) = group_m(block, k);
            load_group(d * f32::from(multiple), point, down, out);
        }
    });
}

/// Returns the odd multiple of the scale, the point and the shift of group `k`.
#[inline(always)]
fn group_m(block: &[u8; M_BYTES], k: usize) -> (i16, u16, bool) {
    let (low, high) = (field::<0, 32, _>(block), field::<32, 16, _>(block));
    let part = k / 2;
    let level = u16_at(block, 48 + part / 4 * 2) >> (3 * (part % 4)) & 7;
    let nibble = high[part] >> (4 * (k % 2)) & 15;
    let index = u16::from(low[k]) | u16::from(nibble & 7) << 8;
    ((2 * level + 1) as i16, grids::IQ1[usize::from(index)], nibble & 8 != 0)
}
