//! Search for values that are not finite, or that a type cannot hold.

use gguf_core::GgmlType;

/// Returns the index of the first NaN or infinity.
pub fn first_non_finite(values: &[f32]) -> Option<usize> {
    const CHUNK: usize = 4096;
    for (index, chunk) in values.chunks(CHUNK).enumerate() {
        // A fold without exits is a vector loop.
        if chunk.iter().fold(false, |bad, value| bad | !value.is_finite()) {
            let within = chunk.iter().position(|value| !value.is_finite());
            return within.map(|within| index * CHUNK + within);
        }
    }
    None
}

/// Returns the first element whose exponent bits are all ones, in plain float bytes.
pub fn first_non_finite_bits(ty: GgmlType, bytes: &[u8]) -> Option<usize> {
    fn first<const N: usize>(bytes: &[u8], is_bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
        let elems = bytes.as_chunks::<N>().0;
        // A fold without exits is a vector loop; the search follows only where it hit.
        elems.iter().fold(false, |bad, &elem| bad | is_bad(elem)).then_some(())?;
        elems.iter().position(|&elem| is_bad(elem))
    }
    match ty {
        GgmlType::F32 => first::<4>(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        GgmlType::F16 => first::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        GgmlType::Bf16 => first::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        GgmlType::F64 => first::<8>(bytes, |b| !f64::from_le_bytes(b).is_finite()),
        _ => None,
    }
}

/// Returns the first value that is not finite or that rounds to infinity in `ty`.
pub fn first_unfit(ty: GgmlType, values: &[f32]) -> Option<usize> {
    // Magnitudes from here on are infinite in the type: half a unit above its largest number.
    let limit = match ty {
        GgmlType::F16 => 0x477f_f000, // 65520
        GgmlType::Bf16 => 0x7f7f_8000,
        _ => 0x7f80_0000u32,
    };
    let is_unfit = |value: &f32| value.to_bits() & 0x7fff_ffff >= limit;
    values.iter().fold(false, |bad, value| bad | is_unfit(value)).then_some(())?;
    values.iter().position(is_unfit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_non_finite_value_is_found_past_the_first_chunk() {
        let mut values = vec![1.0; 10_000];
        assert_eq!(first_non_finite(&values), None);
        values[9_000] = f32::NAN;
        values[5_000] = f32::NEG_INFINITY;
        assert_eq!(first_non_finite(&values), Some(5_000));
    }
}
