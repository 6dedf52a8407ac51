//! Q8_0, Q8_1 and Q8_K: one byte per element. Matrix products convert activations to Q8_1 and Q8_K.
//!
//! # Layout
//! | type | elements | scale | sums | codes |
//! |---|---|---|---|---|
//! | Q8_0 | 32 | F16 at 0 | | 2..34 |
//! | Q8_1 | 32 | F16 at 0 | F16 at 2: sum of codes times scale | 4..36 |
//! | Q8_K | 256 | F32 at 0 | 16 × I16 at 260: sums of 16 codes | 4..260 |

use super::batch::{BATCH, BlockBatch};
use super::codec::{
    Codec, SourceRows, decoder, put_u16, u16_at, validate_f16, validate_f16_pair, validate_with,
};
use super::error::BlockFlaw;
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::Lanes;
use super::search::{abs_max, signed_max};
use gguf_core::numeric::{c_trunc_i8, f16_to_f32, f32_to_f16, nearest_int, roundf};
use gguf_core::{GgmlType, simd::SimdLevel};

pub(super) static Q8_0: Codec = Codec {
    ty: GgmlType::Q8_0,
    quantize: Some(quantize_with::<QuantizeQ8>),
    dequantize: q8_0_dequantize,
    validate: validate_f16::<34, 0>,
};

pub(super) static Q8_1: Codec = Codec {
    ty: GgmlType::Q8_1,
    quantize: Some(q8_1_quantize),
    dequantize: q8_1_dequantize,
    validate: validate_f16_pair::<36, 0>,
};

pub(super) static Q8_K: Codec = Codec {
    ty: GgmlType::Q8K,
    quantize: Some(q8_k_quantize),
    dequantize: q8_k_dequantize,
    validate: |bytes| {
        validate_with::<292>(bytes, |block| {
            let d = q8_k_scale(block);
            match (d.is_nan(), d.is_infinite()) {
                (true, _) => Some(BlockFlaw::ScaleNan),
                (_, true) => Some(BlockFlaw::ScaleInfinite),
                _ => None,
            }
        })
    },
};

/// Returns the scale and its inverse: the largest magnitude maps to 127.
#[inline(always)]
fn scale_of(amax: f32) -> (f32, f32) {
    let d = amax / 127.0;
    (d, if d == 0.0 { 0.0 } else { 1.0 / d })
}

fn q8_0_block(x: &[f32; 32], out: &mut [u8; 34]) {
    let (d, id) = scale_of(abs_max(x));
    put_u16(out, 0, f32_to_f16(d));
    for i in 0..32 {
        out[2 + i] = c_trunc_i8(roundf(x[i] * id)) as u8;
    }
}

/// Kernel of all Q8_0 blocks: scales with one block per lane, codes along the block.
struct QuantizeQ8;

impl RowsKernel for QuantizeQ8 {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, _), out) in rows.blocks::<32>().zip(dst.as_chunks_mut::<34>().0) {
            q8_0_block(x, out);
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        const BATCH_BLOCKS: usize = BATCH / 32;
        let mut batch = BlockBatch::EMPTY;
        let mut amaxes = [0.0; BATCH_BLOCKS];
        for (index, out) in dst.as_chunks_mut::<34>().0.chunks_mut(BATCH_BLOCKS).enumerate() {
            batch.load(rows, index * BATCH);
            batch.abs_maxes::<L, 32>(l, &mut amaxes);
            for ((x, amax), out) in batch.x.as_chunks::<32>().0.iter().zip(amaxes).zip(out) {
                let (d, id) = scale_of(amax);
                put_u16(out, 0, f32_to_f16(d));
                for at in (0..32).step_by(L::WIDTH) {
                    let code = l.round_away(l.load(&x[at..]) * l.splat(id));
                    l.store_low_bytes(code, &mut out[2 + at..]);
                }
            }
        }
    }
}

decoder!(q8_0_dequantize = q8_0_load);
decoder!(q8_1_dequantize = q8_1_load);
decoder!(q8_k_dequantize = q8_k_load);

#[inline(always)]
fn q8_0_load(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_to_f32(u16_at(block, 0));
    for i in 0..32 {
        out[i] = f32::from(block[2 + i] as i8) * d;
    }
}

fn q8_1_quantize(_level: SimdLevel, rows: &SourceRows<'_>, dst: &mut [u8]) {
    for ((x, _), out) in rows.blocks::<32>().zip(dst.as_chunks_mut::<36>().0) {
        let (d, id) = scale_of(abs_max(x));
        let mut sum = 0;
        for i in 0..32 {
            let code = c_trunc_i8(roundf(x[i] * id));
            out[4 + i] = code as u8;
            sum += i32::from(code);
        }
        put_u16(out, 0, f32_to_f16(d));
        // Uses the scale before its rounding to F16.
        put_u16(out, 2, f32_to_f16(sum as f32 * d));
    }
}

#[inline(always)]
fn q8_1_load(block: &[u8; 36], out: &mut [f32; 32]) {
    let d = f16_to_f32(u16_at(block, 0));
    for i in 0..32 {
        out[i] = f32::from(block[4 + i] as i8) * d;
    }
}

fn q8_k_quantize(_level: SimdLevel, rows: &SourceRows<'_>, dst: &mut [u8]) {
    for ((x, _), out) in rows.blocks::<256>().zip(dst.as_chunks_mut::<292>().0) {
        let (max, amax) = signed_max(x);
        if amax == 0.0 {
            // ref: leaves the sums unwritten; zero is what they mean
            out.fill(0);
            continue;
        }
        let iscale = -127.0 / max;
        for i in 0..256 {
            out[4 + i] = nearest_int(iscale * x[i]).min(127) as u8;
        }
        for j in 0..16 {
            let sum: i32 = out[4 + 16 * j..20 + 16 * j].iter().map(|code| i32::from(*code as i8)).sum();
            put_u16(out, 260 + 2 * j, sum as u16);
        }
        out[..4].copy_from_slice(&(1.0 / iscale).to_le_bytes());
    }
}

fn q8_k_scale(block: &[u8; 292]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

#[inline(always)]
fn q8_k_load(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = q8_k_scale(block);
    for i in 0..256 {
        out[i] = d * f32::from(block[4 + i] as i8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_away_from_zero() {
        let mut x = [0.0; 32];
        (x[0], x[1], x[2]) = (127.0, 2.5, -2.5);
        let mut block = [0; 34];
        q8_0_block(&x, &mut block);
        assert_eq!(block[2..5], [127, 3, 0xfd]);
    }

    #[test]
    fn q8_k_rounds_to_even_and_sums_sixteen() {
        let mut x = [1.0; 256];
        x[0] = -127.0;
        x[17] = 2.5;
        let mut block = [0; 292];
        let rows = SourceRows { n_cols: 256, src: &x, imatrix: None, refused: &std::cell::Cell::default() };
        q8_k_quantize(SimdLevel::Scalar, &rows, &mut block);
        assert_eq!(q8_k_scale(&block), 1.0);
        assert_eq!(block[4 + 17], 2);
        assert_eq!(u16_at(&block, 260) as i16, -127 + 15);
        assert_eq!(u16_at(&block, 262) as i16, 17);
    }
}
