//! Elements of a checkpoint as floats.

use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, GgmlType};

use crate::dequantize;

/// Error for an element type that has no conversion to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotANumber;

/// Widens or narrows stored elements to F32, as numpy's `astype(float32)`.
///
/// # Shapes
/// `bytes` holds whole little-endian elements, `out` one float for each.
///
/// # Errors
/// [`NotANumber`] for types without a value of their own: packed codes, and 8-bit floats.
pub fn decode_elements(
    ty: ElementType,
    level: SimdLevel,
    bytes: &[u8],
    out: &mut [f32],
) -> Result<(), NotANumber> {
    macro_rules! each {
        ($n:literal, $from:expr) => {{
            for (value, &raw) in out.iter_mut().zip(bytes.as_chunks::<$n>().0) {
                *value = $from(raw);
            }
            Ok(())
        }};
    }
    match ty {
        ElementType::F32 => each!(4, f32::from_le_bytes),
        ElementType::F16 => dequantize(GgmlType::F16, level, bytes, out).map_err(|_| NotANumber),
        ElementType::Bf16 => dequantize(GgmlType::Bf16, level, bytes, out).map_err(|_| NotANumber),
        ElementType::F64 => each!(8, |b| f64::from_le_bytes(b) as f32),
        ElementType::I64 => each!(8, |b| i64::from_le_bytes(b) as f32),
        ElementType::U64 => each!(8, |b| u64::from_le_bytes(b) as f32),
        ElementType::I32 => each!(4, |b| i32::from_le_bytes(b) as f32),
        ElementType::U32 => each!(4, |b| u32::from_le_bytes(b) as f32),
        ElementType::I16 => each!(2, |b| f32::from(i16::from_le_bytes(b))),
        ElementType::U16 => each!(2, |b| f32::from(u16::from_le_bytes(b))),
        ElementType::I8 => each!(1, |b| f32::from(i8::from_le_bytes(b))),
        ElementType::U8 => each!(1, |b: [u8; 1]| f32::from(b[0])),
        ElementType::Bool => each!(1, |b: [u8; 1]| f32::from(u8::from(b[0] != 0))),
        _ => Err(NotANumber),
    }
}
