//! Packing of integer codes from a quantized checkpoint into GGUF blocks without requantizing: the codes are kept, and
//! the scale of each block is rounded to F16.
//!
//! A source splits its rows where the scale changes and packs each segment, whole blocks of 32, with one call. The
//! functions take codes as the block stores them:
//!
//! | source (I = code - zero, s = scale) | block | stored codes | scale, minimum |
//! |---|---|---|---|
//! | int8 symmetric; asymmetric if every I is in -128..=127 | Q8_0 | I | s |
//! | int8 asymmetric beyond that | none: I reaches ±255, and no 8-bit block has a minimum | | |
//! | int5 .. int7 symmetric | Q5_0, Q8_0 | I + 16, I | s |
//! | int4 symmetric, I in -8..=7 | Q4_0 | I + 8 | s |
//! | int2, int3 with any zero (I in -8..=7) | Q4_0 | I + 8 | s |
//! | int4 asymmetric, integer zero (I in -16..=15) | Q5_0 | I + 16 | s |
//! | int4 asymmetric, any zero: code in 0..=15 | Q4_1 | code | s, -zero · s |
//! | code in 0..=31 with a minimum m | Q5_1 | code | s, m |
//! | int4 with two scales (one per row, one per group) | Q4_0 | I + 8 | product of both |
//! | MXFP4 | MXFP4 | the same nibbles | the same exponent byte |
//! | NVFP4 | NVFP4 | the same nibbles | the same four E4M3 bytes; the factor goes into a companion tensor |
//! | ternary | TQ2_0 | value + 1 | s |
//!
//! A scale belongs to whole blocks: groups of columns must be multiples of 32, rows too.
//!
//! # Exactness
//! Codes are kept bit for bit. A scale that F16 cannot hold is rounded to nearest even. [`f16_error`] returns its
//! relative error: at most 2^-11 for magnitudes of 2^-14 and above, more below, 1 for everything under 2^-25. MXFP4
//! rounds nothing.

use gguf_core::numeric::{f16_to_f32, f32_to_f16};

/// Elements per block of the 32-element types that are written here.
pub const BLOCK_ELEMS: usize = 32;

const Q8_0_BYTES: usize = 34;
const Q4_0_BYTES: usize = 18;
const Q4_1_BYTES: usize = 20;
const Q5_0_BYTES: usize = 22;
const Q5_1_BYTES: usize = 24;
const MXFP4_BYTES: usize = 17;

/// Returns the value that a block stores for a scale or minimum; infinite if F16 cannot hold its magnitude.
fn f16_rounded(scale: f32) -> f32 {
    f16_to_f32(f32_to_f16(scale))
}

/// Returns the relative error of a scale or minimum after rounding to F16: 0 if F16 holds it, 1 if it vanishes,
/// infinite if it is too large or not finite.
pub fn f16_error(scale: f32) -> f32 {
    let rounded = f16_rounded(scale);
    if rounded == scale {
        return 0.0;
    }
    if !rounded.is_finite() {
        return f32::INFINITY;
    }
    // In F64 so that the quotient of two close numbers is not itself rounded to nothing.
    ((f64::from(rounded) - f64::from(scale)) / f64::from(scale)).abs() as f32
}

/// Packs codes -128..=127 with one scale: an element is `code * scale`.
///
/// # Panics
/// If `codes` are not whole blocks or `out` does not have their size.
pub fn pack_q8_0(codes: &[i8], scale: f32, out: &mut [u8]) {
    let d = f32_to_f16(scale).to_le_bytes();
    for (codes, out) in blocks::<_, Q8_0_BYTES>(codes, out) {
        let (head, body) = out.split_at_mut(2);
        head.copy_from_slice(&d);
        for (byte, &code) in body.iter_mut().zip(codes) {
            *byte = code.cast_unsigned();
        }
    }
}

/// Packs codes 0..=15 with one scale: an element is `(code - 8) * scale`.
///
/// # Panics
/// If `codes` are not whole blocks or `out` does not have their size.
pub fn pack_q4_0(codes: &[u8], scale: f32, out: &mut [u8]) {
    let d = f32_to_f16(scale).to_le_bytes();
    for (codes, out) in blocks::<_, Q4_0_BYTES>(codes, out) {
        out[..2].copy_from_slice(&d);
        nibbles(codes, &mut out[2..]);
    }
}

/// Packs codes 0..=15 with one scale and one minimum: an element is `code * scale + min`.
///
/// # Panics
/// If `codes` are not whole blocks or `out` does not have their size.
pub fn pack_q4_1(codes: &[u8], scale: f32, min: f32, out: &mut [u8]) {
    let (d, m) = (f32_to_f16(scale).to_le_bytes(), f32_to_f16(min).to_le_bytes());
    for (codes, out) in blocks::<_, Q4_1_BYTES>(codes, out) {
        out[..2].copy_from_slice(&d);
        out[2..4].copy_from_slice(&m);
        nibbles(codes, &mut out[4..]);
    }
}

/// Packs codes 0..=31 with one scale: an element is `(code - 16) * scale`.
///
/// # Panics
/// If `codes` are not whole blocks or `out` does not have their size.
pub fn pack_q5_0(codes: &[u8], scale: f32, out: &mut [u8]) {
    let d = f32_to_f16(scale).to_le_bytes();
    for (codes, out) in blocks::<_, Q5_0_BYTES>(codes, out) {
        out[..2].copy_from_slice(&d);
        fifths(codes, &mut out[2..]);
    }
}

/// Packs codes 0..=31 with one scale and one minimum: an element is `code * scale + min`.
///
/// # Panics
/// If `codes` are not whole blocks or `out` does not have their size.
pub fn pack_q5_1(codes: &[u8], scale: f32, min: f32, out: &mut [u8]) {
    let (d, m) = (f32_to_f16(scale).to_le_bytes(), f32_to_f16(min).to_le_bytes());
    for (codes, out) in blocks::<_, Q5_1_BYTES>(codes, out) {
        out[..2].copy_from_slice(&d);
        out[2..4].copy_from_slice(&m);
        fifths(codes, &mut out[4..]);
    }
}

/// Packs 64 E2M1 codes with four E4M3 scales, one for each 16 codes.
///
/// # Panics
/// If `out` does not have the size of a block.
pub fn pack_nvfp4(codes: &[u8], scales: &[u8], out: &mut [u8]) {
    let (head, body) = out.split_at_mut(4);
    head.copy_from_slice(scales);
    for (codes, out) in codes.as_chunks::<16>().0.iter().zip(body.as_chunks_mut::<8>().0) {
        let (low, high) = codes.split_at(8);
        for ((byte, low), high) in out.iter_mut().zip(low).zip(high) {
            *byte = low & 15 | high << 4;
        }
    }
}

/// Packs 256 ternary codes, value + 1, with one scale, as TQ2_0.
///
/// # Panics
/// If `out` does not have the size of a block.
pub fn pack_tq2_0(codes: &[u8; 256], scale: f32, out: &mut [u8]) {
    let (body, tail) = out.split_at_mut(64);
    tail.copy_from_slice(&f32_to_f16(scale).to_le_bytes());
    for (codes, out) in codes.as_chunks::<128>().0.iter().zip(body.as_chunks_mut::<32>().0) {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = (0..4).fold(0, |byte, field| byte | codes[at + 32 * field] << (2 * field));
        }
    }
}

/// Packs E2M1 codes 0..=15 with one power of two: an element is `e2m1(code) * 2^(exponent - 127)`.
///
/// # Panics
/// If `codes` are not whole blocks or `out` does not have their size.
pub fn pack_mxfp4(codes: &[u8], exponent: u8, out: &mut [u8]) {
    for (codes, out) in blocks::<_, MXFP4_BYTES>(codes, out) {
        out[0] = exponent;
        nibbles(codes, &mut out[1..]);
    }
}

/// Pairs the codes of each block with its bytes.
fn blocks<'a, C, const BYTES: usize>(
    codes: &'a [C],
    out: &'a mut [u8],
) -> impl Iterator<Item = (&'a [C; BLOCK_ELEMS], &'a mut [u8; BYTES])> {
    let (codes, no_codes) = codes.as_chunks::<BLOCK_ELEMS>();
    let (out, no_bytes) = out.as_chunks_mut::<BYTES>();
    assert!(no_codes.is_empty() && no_bytes.is_empty(), "blocks are whole");
    assert_eq!(codes.len(), out.len(), "as many blocks are written as there are codes for");
    codes.iter().zip(out)
}

/// Packs codes of five bits: the fifth bits in a word, then the nibbles.
fn fifths(codes: &[u8; BLOCK_ELEMS], out: &mut [u8]) {
    let fifths = codes.iter().enumerate().fold(0u32, |word, (i, code)| word | u32::from(code >> 4 & 1) << i);
    out[..4].copy_from_slice(&fifths.to_le_bytes());
    nibbles(codes, &mut out[4..]);
}

/// Packs codes into nibbles: byte `j` holds the low four bits of code `j` below those of code `j + 16`.
fn nibbles(codes: &[u8; BLOCK_ELEMS], out: &mut [u8]) {
    let (low, high) = codes.split_at(BLOCK_ELEMS / 2);
    for ((byte, low), high) in out.iter_mut().zip(low).zip(high) {
        *byte = low & 15 | high << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::super as quant;
    use super::*;
    use gguf_core::GgmlType;
    use gguf_core::simd::SimdLevel;

    /// Decodes blocks like the rest of the program.
    fn decoded(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
        let mut floats = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_elems()];
        quant::dequantize(ty, SimdLevel::Scalar, bytes, &mut floats).unwrap();
        floats
    }

    /// Returns every code of `n`, in an order in which no two halves of a block agree, for three blocks.
    fn every_code(n: usize) -> Vec<u8> {
        (0..3 * BLOCK_ELEMS).map(|i| ((i * 7 + i / BLOCK_ELEMS) % n) as u8).collect()
    }

    #[test]
    fn q8_0_holds_every_code() {
        let codes: Vec<i8> = (-128..=127).collect();
        let mut out = vec![0; 8 * Q8_0_BYTES];
        pack_q8_0(&codes, 0.37, &mut out);
        let d = f16_rounded(0.37);
        let expected: Vec<f32> = codes.iter().map(|&code| f32::from(code) * d).collect();
        assert_eq!(decoded(GgmlType::Q8_0, &out), expected);
    }

    #[test]
    fn q4_0_and_q5_0_hold_every_code() {
        let d = f16_rounded(-0.11);
        let (codes, mut out) = (every_code(16), vec![0; 3 * Q4_0_BYTES]);
        pack_q4_0(&codes, -0.11, &mut out);
        let expected: Vec<f32> = codes.iter().map(|&code| (f32::from(code) - 8.0) * d).collect();
        assert_eq!(decoded(GgmlType::Q4_0, &out), expected);

        let (codes, mut out) = (every_code(32), vec![0; 3 * Q5_0_BYTES]);
        pack_q5_0(&codes, -0.11, &mut out);
        let expected: Vec<f32> = codes.iter().map(|&code| (f32::from(code) - 16.0) * d).collect();
        assert_eq!(decoded(GgmlType::Q5_0, &out), expected);
    }

    #[test]
    fn q4_1_holds_every_code_and_the_minimum() {
        let (codes, mut out) = (every_code(16), vec![0; 3 * Q4_1_BYTES]);
        pack_q4_1(&codes, 0.02, -0.13, &mut out);
        let (d, m) = (f16_rounded(0.02), f16_rounded(-0.13));
        let expected: Vec<f32> = codes.iter().map(|&code| f32::from(code) * d + m).collect();
        assert_eq!(decoded(GgmlType::Q4_1, &out), expected);
    }

    #[test]
    fn q5_1_holds_every_code_and_the_minimum() {
        let (codes, mut out) = (every_code(32), vec![0; 3 * Q5_1_BYTES]);
        pack_q5_1(&codes, -0.02, 0.13, &mut out);
        let (d, m) = (f16_rounded(-0.02), f16_rounded(0.13));
        let expected: Vec<f32> = codes.iter().map(|&code| f32::from(code) * d + m).collect();
        assert_eq!(decoded(GgmlType::Q5_1, &out), expected);
    }

    #[test]
    fn mxfp4_holds_every_code_and_exponent() {
        let e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let codes = every_code(16);
        for exponent in [0, 1, 2, 100, 127, 254] {
            let mut out = vec![0; 3 * MXFP4_BYTES];
            pack_mxfp4(&codes, exponent, &mut out);
            let scale = f64::from(2.0f32).powi(i32::from(exponent) - 127);
            let value = |&code: &u8| {
                let magnitude: f64 = e2m1[usize::from(code & 7)];
                (if code & 8 == 0 { magnitude } else { -magnitude } * scale) as f32
            };
            let expected: Vec<f32> = codes.iter().map(value).collect();
            assert_eq!(decoded(GgmlType::Mxfp4, &out), expected, "exponent {exponent}");
        }
    }

    #[test]
    fn nvfp4_and_tq2_0_hold_every_code() {
        let e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let codes: [u8; 64] = std::array::from_fn(|i| ((i * 7 + i / 16) % 16) as u8);
        let mut out = vec![0; GgmlType::Nvfp4.block_bytes()];
        // E4M3: 1, 2, 0.5 and 1.5.
        pack_nvfp4(&codes, &[0x38, 0x40, 0x30, 0x3c], &mut out);
        let scales = [1.0, 2.0, 0.5, 1.5];
        let expected: Vec<f32> = codes
            .iter()
            .enumerate()
            .map(|(i, &code)| {
                let magnitude: f32 = e2m1[usize::from(code & 7)];
                scales[i / 16] * if code & 8 == 0 { magnitude } else { -magnitude }
            })
            .collect();
        assert_eq!(decoded(GgmlType::Nvfp4, &out), expected);

        let codes: [u8; 256] = std::array::from_fn(|i| ((i * 5 + i / 32) % 3) as u8);
        let mut out = vec![0; GgmlType::Tq2_0.block_bytes()];
        pack_tq2_0(&codes, -0.11, &mut out);
        let expected: Vec<f32> =
            codes.iter().map(|&code| (f32::from(code) - 1.0) * f16_rounded(-0.11)).collect();
        assert_eq!(decoded(GgmlType::Tq2_0, &out), expected);
    }

    #[test]
    fn the_error_of_a_scale_is_that_of_its_block() {
        assert_eq!(f16_error(0.0), 0.0);
        assert_eq!(f16_error(-0.25), 0.0);
        assert_eq!(f16_error(1e-9), 1.0);
        assert_eq!(f16_error(1e6), f32::INFINITY);
        assert_eq!(f16_error(f32::NAN), f32::INFINITY);
        for i in 1..2000u16 {
            let scale = f32::from(i) * 1e-5;
            let mut out = [0; Q8_0_BYTES];
            pack_q8_0(&[1; BLOCK_ELEMS], scale, &mut out);
            let seen = decoded(GgmlType::Q8_0, &out)[0];
            let error = ((f64::from(seen) - f64::from(scale)) / f64::from(scale)).abs() as f32;
            assert_eq!(f16_error(scale), error);
            assert!(scale < 6.2e-5 || error <= 1.0 / 2048.0, "{scale}: {error}");
        }
    }

    #[test]
    #[should_panic(expected = "blocks are whole")]
    fn a_cut_block_is_a_bug_of_the_caller() {
        pack_q8_0(&[0; 31], 1.0, &mut [0; Q8_0_BYTES]);
    }
}
