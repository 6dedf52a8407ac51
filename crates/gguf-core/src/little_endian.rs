//! Slices of numbers as little-endian bytes, the byte order of every container. An incomplete last number is left out.

/// Reads unsigned 32-bit integers.
pub fn u32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes))
}

/// Reads signed 32-bit integers.
pub fn i32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = i32> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes))
}

/// Reads unsigned 64-bit integers.
pub fn u64s(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes))
}

/// Reads signed 64-bit integers.
pub fn i64s(bytes: &[u8]) -> impl ExactSizeIterator<Item = i64> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes))
}

/// Reads 32-bit floats.
pub fn f32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))
}

/// Writes 32-bit floats; if the slices differ in length, as many as the shorter holds.
pub fn store_f32s(values: &[f32], out: &mut [u8]) {
    for (bytes, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_with_their_lowest_byte() {
        let bytes = [1, 0, 0, 0, 0, 0, 0, 0x80, 7];
        assert_eq!(u32s(&bytes).collect::<Vec<_>>(), [1, 0x8000_0000]);
        assert_eq!(i32s(&bytes).collect::<Vec<_>>(), [1, i32::MIN]);
        assert_eq!(u64s(&bytes).collect::<Vec<_>>(), [0x8000_0000_0000_0001]);
        assert_eq!(i64s(&bytes).collect::<Vec<_>>(), [i64::MIN + 1]);
        let mut stored = [0; 9];
        store_f32s(&[1.0, -0.0, 3.0], &mut stored);
        assert_eq!(stored, [0, 0, 0x80, 0x3f, 0, 0, 0, 0x80, 0]);
        assert_eq!(f32s(&stored).map(f32::to_bits).collect::<Vec<_>>(), [1f32.to_bits(), (-0f32).to_bits()]);
    }
}
