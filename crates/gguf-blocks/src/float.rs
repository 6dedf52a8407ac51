//! Plain numbers: F32, F16, BF16 in both directions; F64 and integers only to floats.
//!
//! One element is one block, so these loops vectorize as written; the level only selects the instructions.

use super::codec::{Codec, SourceRows, validate_nothing};
use super::{BlockError, BlockFlaw};
use gguf_core::GgmlType;
use gguf_core::numeric::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use gguf_core::simd::{SimdLevel, VectorLoop};

pub(super) static F32: Codec = Codec {
    ty: GgmlType::F32,
    quantize: Some(|_, rows: &SourceRows<'_>, dst| encode(rows.src, dst, f32::to_le_bytes)),
    dequantize: |_, src, dst| decode(src, dst, f32::from_le_bytes),
    validate: |bytes| validate(bytes, f32::from_le_bytes),
};

pub(super) static F16: Codec = Codec {
    ty: GgmlType::F16,
    quantize: Some(|level, rows: &SourceRows<'_>, dst| f16_encode(level, rows.src, dst)),
    dequantize: |level, src, dst| f16_decode(level, src, dst),
    validate: |bytes| validate_bits(bytes, 0x7c00, f16_to_f32),
};

pub(super) static BF16: Codec = Codec {
    ty: GgmlType::Bf16,
    quantize: Some(|level, rows: &SourceRows<'_>, dst| bf16_encode(level, rows.src, dst)),
    dequantize: |level, src, dst| bf16_decode(level, src, dst),
    validate: |bytes| validate_bits(bytes, 0x7f80, bf16_to_f32),
};

pub(super) static F64: Codec = Codec {
    ty: GgmlType::F64,
    quantize: None,
    dequantize: |_, src, dst| decode(src, dst, |raw| f64::from_le_bytes(raw) as f32),
    validate: |bytes| validate(bytes, |raw| f64::from_le_bytes(raw) as f32),
};

pub(super) static I8: Codec = integer(GgmlType::I8, |_, src, dst| {
    decode(src, dst, |raw| f32::from(i8::from_le_bytes(raw)));
});

pub(super) static I16: Codec = integer(GgmlType::I16, |_, src, dst| {
    decode(src, dst, |raw| f32::from(i16::from_le_bytes(raw)));
});

pub(super) static I32: Codec = integer(GgmlType::I32, |_, src, dst| {
    decode(src, dst, |raw| i32::from_le_bytes(raw) as f32);
});

pub(super) static I64: Codec = integer(GgmlType::I64, |_, src, dst| {
    decode(src, dst, |raw| i64::from_le_bytes(raw) as f32);
});

const fn integer(ty: GgmlType, dequantize: super::codec::DequantizeFn) -> Codec {
    Codec { ty, quantize: None, dequantize, validate: validate_nothing }
}

#[inline(always)]
fn encode<const B: usize>(src: &[f32], dst: &mut [u8], to_bytes: impl Fn(f32) -> [u8; B]) {
    for (value, raw) in src.iter().zip(dst.as_chunks_mut::<B>().0) {
        *raw = to_bytes(*value);
    }
}

#[inline(always)]
fn decode<const B: usize>(src: &[u8], dst: &mut [f32], from_bytes: impl Fn([u8; B]) -> f32) {
    for (raw, value) in src.as_chunks::<B>().0.iter().zip(dst) {
        *value = from_bytes(*raw);
    }
}

/// Checks values like ggml, which rounds an F64 to a float first: one beyond the range of floats counts as infinite.
fn validate<const B: usize>(bytes: &[u8], value: impl Fn([u8; B]) -> f32) -> Result<(), BlockError> {
    const CHUNK: usize = 1024;
    for (chunk_index, chunk) in bytes.as_chunks::<B>().0.chunks(CHUNK).enumerate() {
        // A fold without exits is a vector loop.
        if chunk.iter().fold(true, |finite, raw| finite & value(*raw).is_finite()) {
            continue;
        }
        for (within, raw) in chunk.iter().enumerate() {
            let value = value(*raw);
            if !value.is_finite() {
                let flaw = if value.is_nan() { BlockFlaw::Nan } else { BlockFlaw::Infinite };
                return Err(BlockError { block: chunk_index * CHUNK + within, flaw });
            }
        }
    }
    Ok(())
}

/// Runs [`validate`] on 16-bit floats, but checks only the exponent bits first.
fn validate_bits(bytes: &[u8], exponent: u16, value: impl Fn(u16) -> f32) -> Result<(), BlockError> {
    const CHUNK: usize = 4096;
    let broken = |raw: &[u8; 2]| u16::from_le_bytes(*raw) & exponent == exponent;
    for (index, chunk) in bytes.chunks(2 * CHUNK).enumerate() {
        // A fold without exits is a vector loop.
        if chunk.as_chunks().0.iter().fold(false, |any, raw| any | broken(raw)) {
            let within = |error: BlockError| BlockError { block: index * CHUNK + error.block, ..error };
            validate(chunk, |raw| value(u16::from_le_bytes(raw))).map_err(within)?;
        }
    }
    Ok(())
}

/// Defines loops over single elements, in vectors of the level.
macro_rules! per_element {
    ($( $name:ident($src:ty => $dst:ty) = $body:expr; )*) => {
        $( fn $name(level: SimdLevel, src: &[$src], dst: &mut [$dst]) {
            struct ElementLoop<'a>(&'a [$src], &'a mut [$dst]);
            impl VectorLoop for ElementLoop<'_> {
                type Output = ();

                #[inline(always)]
                fn run(self) {
                    $body(self.0, self.1);
                }
            }
            level.vectorize(ElementLoop(src, dst));
        } )*
    };
}

per_element! {
    f16_encode(f32 => u8) = |src, dst| encode(src, dst, |value| f32_to_f16(value).to_le_bytes());
    f16_decode(u8 => f32) = |src, dst| decode(src, dst, |raw| f16_to_f32(u16::from_le_bytes(raw)));
    bf16_encode(f32 => u8) = |src, dst| encode(src, dst, |value| f32_to_bf16(value).to_le_bytes());
    bf16_decode(u8 => f32) = |src, dst| decode(src, dst, |raw| bf16_to_f32(u16::from_le_bytes(raw)));
}
