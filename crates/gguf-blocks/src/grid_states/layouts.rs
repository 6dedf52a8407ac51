//! Bit layouts of the types on grids: see the layouts in `iq1`, `iq2`, `iq3`. Blocks have their full length.

use super::GridState;
use crate::codebook::even_signs;

pub(super) fn word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

pub(super) fn put_word(block: &mut [u8], at: usize, value: u16) {
    block[at..][..2].copy_from_slice(&value.to_le_bytes());
}

/// Unpacks nibbles, the low one of a byte first.
fn unpack_nibbles(bytes: &[u8], levels: &mut [u8]) {
    for (pair, byte) in levels.chunks_mut(2).zip(bytes) {
        pair[0] = byte & 15;
        pair[1] = byte >> 4;
    }
}

fn pack_nibbles(levels: &[u8], bytes: &mut [u8]) {
    for (pair, byte) in levels.chunks(2).zip(bytes) {
        *byte = pair[0] | pair[1] << 4;
    }
}

/// Unpacks four times seven sign bits and a nibble on top.
fn unpack_signed_parts(bytes: &[u8], stride: usize, state: &mut GridState) {
    for part in 0..8 {
        let at = part * stride;
        let packed = u32::from(word(bytes, at)) | u32::from(word(bytes, at + 2)) << 16;
        state.levels[part] = (packed >> 28) as u8;
        for (k, signs) in state.signs[4 * part..][..4].iter_mut().enumerate() {
            *signs = even_signs((packed >> (7 * k)) as u8);
        }
    }
}

fn pack_signed_parts(state: &GridState, stride: usize, bytes: &mut [u8]) {
    for part in 0..8 {
        let signs = state.signs[4 * part..][..4].iter().enumerate();
        let packed = signs.fold(u32::from(state.levels[part]) << 28, |packed, (k, signs)| {
            packed | u32::from(signs & 127) << (7 * k)
        });
        bytes[part * stride..][..4].copy_from_slice(&packed.to_le_bytes());
    }
}

pub(super) fn unpack_iq3_s(block: &[u8], state: &mut GridState) {
    for (at, point) in state.points.iter_mut().enumerate() {
        *point = u16::from(block[2 + at]) | u16::from(block[66 + at / 8] >> (at % 8) & 1) << 8;
    }
    state.signs.copy_from_slice(&block[74..106]);
    unpack_nibbles(&block[106..], &mut state.levels[..8]);
}

pub(super) fn pack_iq3_s(state: &GridState, block: &mut [u8]) {
    for (at, point) in state.points.iter().enumerate() {
        block[2 + at] = *point as u8;
        block[66 + at / 8] |= ((point >> 8) as u8) << (at % 8);
    }
    block[74..106].copy_from_slice(&state.signs);
    pack_nibbles(&state.levels[..8], &mut block[106..]);
}

pub(super) fn unpack_iq3_xxs(block: &[u8], state: &mut GridState) {
    for (point, byte) in state.points.iter_mut().zip(&block[2..66]) {
        *point = u16::from(*byte);
    }
    unpack_signed_parts(&block[66..], 4, state);
}

pub(super) fn pack_iq3_xxs(state: &GridState, block: &mut [u8]) {
    for (point, byte) in state.points.iter().zip(&mut block[2..66]) {
        *byte = *point as u8;
    }
    pack_signed_parts(state, 4, &mut block[66..]);
}

pub(super) fn unpack_iq2_s(block: &[u8], state: &mut GridState) {
    for (at, point) in state.points[..32].iter_mut().enumerate() {
        *point = u16::from(block[2 + at]) | u16::from(block[66 + at / 4] >> (2 * (at % 4)) & 3) << 8;
    }
    state.signs.copy_from_slice(&block[34..66]);
    unpack_nibbles(&block[74..], &mut state.levels);
}

pub(super) fn pack_iq2_s(state: &GridState, block: &mut [u8]) {
    for (at, point) in state.points[..32].iter().enumerate() {
        block[2 + at] = *point as u8;
        block[66 + at / 4] |= ((point >> 8) as u8) << (2 * (at % 4));
    }
    block[34..66].copy_from_slice(&state.signs);
    pack_nibbles(&state.levels, &mut block[74..]);
}

pub(super) fn unpack_iq2_xs(block: &[u8], state: &mut GridState) {
    for at in 0..32 {
        let packed = word(block, 2 + 2 * at);
        state.points[at] = packed & 511;
        state.signs[at] = even_signs((packed >> 9) as u8);
    }
    unpack_nibbles(&block[66..], &mut state.levels);
}

pub(super) fn pack_iq2_xs(state: &GridState, block: &mut [u8]) {
    for at in 0..32 {
        put_word(block, 2 + 2 * at, state.points[at] | u16::from(state.signs[at] & 127) << 9);
    }
    pack_nibbles(&state.levels, &mut block[66..]);
}

pub(super) fn unpack_iq2_xxs(block: &[u8], state: &mut GridState) {
    for at in 0..32 {
        state.points[at] = u16::from(block[2 + at / 4 * 8 + at % 4]);
    }
    unpack_signed_parts(&block[6..], 8, state);
}

pub(super) fn pack_iq2_xxs(state: &GridState, block: &mut [u8]) {
    for at in 0..32 {
        block[2 + at / 4 * 8 + at % 4] = state.points[at] as u8;
    }
    pack_signed_parts(state, 8, &mut block[6..]);
}

pub(super) fn unpack_iq1_m(block: &[u8], state: &mut GridState) {
    state.d = (0..4).fold(0, |bits, k| bits | (word(block, 48 + 2 * k) >> 12) << (4 * k));
    for (part, level) in state.levels.iter_mut().enumerate() {
        *level = (word(block, 48 + part / 4 * 2) >> (3 * (part % 4)) & 7) as u8;
    }
    for at in 0..32 {
        let nibble = block[32 + at / 2] >> (4 * (at % 2)) & 15;
        state.points[at] = u16::from(block[at]) | u16::from(nibble & 7) << 8;
        state.signs[at] = nibble >> 3;
    }
}

pub(super) fn pack_iq1_m(state: &GridState, block: &mut [u8]) {
    for k in 0..4 {
        let levels = state.levels[4 * k..][..4].iter().enumerate();
        let packed = levels.fold((state.d >> (4 * k) & 15) << 12, |packed, (i, level)| {
            packed | u16::from(*level) << (3 * i)
        });
        put_word(block, 48 + 2 * k, packed);
    }
    for at in 0..32 {
        block[at] = state.points[at] as u8;
        let nibble = (state.points[at] >> 8) as u8 | state.signs[at] << 3;
        block[32 + at / 2] |= nibble << (4 * (at % 2));
    }
}

pub(super) fn unpack_iq1_s(block: &[u8], state: &mut GridState) {
    for at in 0..32 {
        let high = word(block, 34 + at / 4 * 2);
        state.points[at] = u16::from(block[2 + at]) | (high >> (3 * (at % 4)) & 7) << 8;
        state.signs[at] = (high >> 15) as u8;
        state.levels[at / 4] = (high >> 12 & 7) as u8;
    }
}

pub(super) fn pack_iq1_s(state: &GridState, block: &mut [u8]) {
    for part in 0..8 {
        let shift = u16::from(state.signs[4 * part]) << 15;
        let mut high = shift | u16::from(state.levels[part]) << 12;
        for k in 0..4 {
            let point = state.points[4 * part + k];
            block[2 + 4 * part + k] = point as u8;
            high |= (point >> 8) << (3 * k);
        }
        put_word(block, 34 + 2 * part, high);
    }
}
