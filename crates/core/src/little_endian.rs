//! Rows of numbers as little-endian bytes, the order that every container promises. A last number that is cut is left
//! out.

/// Numbers of 32 bits.
pub fn u32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes))
}

/// Numbers of 32 bits with a sign.
pub fn i32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = i32> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes))
}

/// Numbers of 64 bits.
pub fn u64s(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes))
}

/// Numbers of 64 bits with a sign.
pub fn i64s(bytes: &[u8]) -> impl ExactSizeIterator<Item = i64> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes))
}

/// Floats of 32 bits.
pub fn f32s(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))
}

/// Writes floats; of two slices that differ in length, as many as the shorter holds.
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
