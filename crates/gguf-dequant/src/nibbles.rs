//! Four-bit codes, two per byte, that are indices of a table of values.

/// Looks up codes `first .. first + out.len()`, given bytes that begin with the byte of code `first`.
///
/// The even code of a byte is its low nibble, or the high one if `HIGH_FIRST`.
#[inline]
pub(super) fn look_up<const HIGH_FIRST: bool>(table: &[f32; 16], bytes: &[u8], first: u64, out: &mut [f32]) {
    let values = |byte: u8| {
        let (low, high) = (table[usize::from(byte & 15)], table[usize::from(byte >> 4)]);
        if HIGH_FIRST { [high, low] } else { [low, high] }
    };
    // The first code may be the second one of its byte.
    let n_head = usize::from(first % 2 == 1).min(out.len()).min(bytes.len());
    let (head, out) = out.split_at_mut(n_head);
    let (head_bytes, bytes) = bytes.split_at(n_head);
    for (out, &byte) in head.iter_mut().zip(head_bytes) {
        *out = values(byte)[1];
    }
    let (pairs, last) = out.as_chunks_mut::<2>();
    let mut bytes = bytes.iter();
    for (pair, &byte) in pairs.iter_mut().zip(bytes.by_ref()) {
        *pair = values(byte);
    }
    if let ([last], Some(&byte)) = (last, bytes.next()) {
        *last = values(byte)[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_may_begin_and_end_inside_a_byte() {
        let table = std::array::from_fn(|i| i as f32);
        let bytes = [0x21, 0x43, 0x65];
        for first in 0..2 {
            for n in 0..=6 - first {
                let (mut low, mut high) = (vec![0.0; n], vec![0.0; n]);
                look_up::<false>(&table, &bytes, first as u64, &mut low);
                look_up::<true>(&table, &bytes, first as u64, &mut high);
                assert_eq!(low, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0][first..first + n]);
                assert_eq!(high, [2.0, 1.0, 4.0, 3.0, 6.0, 5.0][first..first + n]);
            }
        }
    }
}
