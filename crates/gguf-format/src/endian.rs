//! Byte order of tensor data: the multi-byte fields of each type's blocks.
//!
//! A big-endian file holds the memory contents of a big-endian machine. A field is anything that ggml's decoder reads
//! as one number. This includes members of 16, 32 and 64 bits, and byte arrays that it copies into an integer before it
//! shifts and masks (the fifth bits of Q5_0 and Q5_1, scales and signs of IQ2_XXS and IQ3_XXS, scales of IQ1_M). Byte
//! arrays that it reads by single bytes are not reversed, even if it processes four at once (the scales of Q3_K). Types
//! without such fields have no row.

use gguf_core::GgmlType;

/// A run of equal fields inside a block.
struct FieldRun {
    offset: usize,
    width: usize,
    count: usize,
}

const fn fields(offset: usize, width: usize, count: usize) -> FieldRun {
    FieldRun { offset, width, count }
}

/// Fields of each type's block.
static FIELDS: &[(GgmlType, &[FieldRun])] = &[
    (GgmlType::F32, &[fields(0, 4, 1)]),
    (GgmlType::F16, &[fields(0, 2, 1)]),
    (GgmlType::Bf16, &[fields(0, 2, 1)]),
    (GgmlType::F64, &[fields(0, 8, 1)]),
    (GgmlType::I16, &[fields(0, 2, 1)]),
    (GgmlType::I32, &[fields(0, 4, 1)]),
    (GgmlType::I64, &[fields(0, 8, 1)]),
    (GgmlType::Q4_0, &[fields(0, 2, 1)]),
    (GgmlType::Q4_1, &[fields(0, 2, 2)]),
    (GgmlType::Q5_0, &[fields(0, 2, 1), fields(2, 4, 1)]),
    (GgmlType::Q5_1, &[fields(0, 2, 2), fields(4, 4, 1)]),
    (GgmlType::Q8_0, &[fields(0, 2, 1)]),
    (GgmlType::Q8_1, &[fields(0, 2, 2)]),
    (GgmlType::Q2K, &[fields(80, 2, 2)]),
    (GgmlType::Q3K, &[fields(108, 2, 1)]),
    (GgmlType::Q4K, &[fields(0, 2, 2)]),
    (GgmlType::Q5K, &[fields(0, 2, 2)]),
    (GgmlType::Q6K, &[fields(208, 2, 1)]),
    (GgmlType::Q8K, &[fields(0, 4, 1), fields(260, 2, 16)]),
    // Eight bytes each: four indices, then signs and scale in one number.
    (
        GgmlType::Iq2Xxs,
        &[
            fields(0, 2, 1),
            fields(6, 4, 1),
            fields(14, 4, 1),
            fields(22, 4, 1),
            fields(30, 4, 1),
            fields(38, 4, 1),
            fields(46, 4, 1),
            fields(54, 4, 1),
            fields(62, 4, 1),
        ],
    ),
    (GgmlType::Iq2Xs, &[fields(0, 2, 33)]),
    (GgmlType::Iq2S, &[fields(0, 2, 1)]),
    (GgmlType::Iq3Xxs, &[fields(0, 2, 1), fields(66, 4, 8)]),
    (GgmlType::Iq3S, &[fields(0, 2, 1)]),
    (GgmlType::Iq1S, &[fields(0, 2, 1), fields(34, 2, 8)]),
    (GgmlType::Iq1M, &[fields(48, 2, 4)]),
    (GgmlType::Iq4Nl, &[fields(0, 2, 1)]),
    (GgmlType::Iq4Xs, &[fields(0, 2, 2)]),
    (GgmlType::Tq1_0, &[fields(52, 2, 1)]),
    (GgmlType::Tq2_0, &[fields(64, 2, 1)]),
    (GgmlType::Q1_0, &[fields(0, 2, 1)]),
    (GgmlType::Q2_0, &[fields(0, 2, 1)]),
];

/// Reverses the multi-byte fields of whole blocks in place; this is its own inverse.
pub fn swap_blocks(ty: GgmlType, bytes: &mut [u8]) {
    let Some((_, layout)) = FIELDS.iter().find(|row| row.0 == ty) else { return };
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for run in *layout {
            let end = run.offset + run.width * run.count;
            for field in block[run.offset..end].chunks_exact_mut(run.width) {
                field.reverse();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_inside_their_block_and_apart() {
        for (ty, layout) in FIELDS {
            let mut end = 0;
            for run in *layout {
                assert!(run.offset >= end, "{ty}");
                // A four-byte number may follow a half.
                assert!(run.offset % run.width.min(2) == 0, "{ty}");
                end = run.offset + run.width * run.count;
            }
            assert!(end <= ty.block_bytes(), "{ty}");
        }
    }

    #[test]
    fn only_byte_types_have_no_row() {
        let without: Vec<_> = GgmlType::all().filter(|ty| !FIELDS.iter().any(|row| row.0 == *ty)).collect();
        assert_eq!(without, [GgmlType::I8, GgmlType::Mxfp4, GgmlType::Nvfp4]);
    }

    #[test]
    fn swapping_reverses_the_scale_and_keeps_the_codes() {
        let mut block: Vec<u8> = (0..210).collect();
        swap_blocks(GgmlType::Q6K, &mut block);
        assert_eq!(block[206..], [206, 207, 209, 208]);
        swap_blocks(GgmlType::Q6K, &mut block);
        assert_eq!(block, (0..210).collect::<Vec<u8>>());

        let mut block: Vec<u8> = (0..292).map(|i| i as u8).collect();
        swap_blocks(GgmlType::Q8K, &mut block);
        assert_eq!(block[..5], [3, 2, 1, 0, 4]);
        assert_eq!(block[258..264], [2, 3, 5, 4, 7, 6]);
    }

    /// Checks that a field has the same value on a machine of the other byte order.
    #[test]
    fn numbers_of_four_bytes_are_read_alike() {
        let swapped = |ty: GgmlType| {
            let block: Vec<u8> = (0..ty.block_bytes()).map(|i| (i * 37 + 11) as u8).collect();
            let mut other = block.clone();
            swap_blocks(ty, &mut other);
            (block, other)
        };
        let number = |bytes: &[u8]| -> [u8; 4] { bytes.try_into().unwrap() };
        for (ty, at) in [
            (GgmlType::Q5_0, vec![2]),
            (GgmlType::Q5_1, vec![4]),
            (GgmlType::Iq2Xxs, (0..8).map(|group| 2 + 8 * group + 4).collect()),
            (GgmlType::Iq3Xxs, (0..8).map(|group| 66 + 4 * group).collect()),
        ] {
            let (block, other) = swapped(ty);
            for &at in &at {
                let (own, theirs) = (number(&block[at..at + 4]), number(&other[at..at + 4]));
                assert_eq!(u32::from_le_bytes(own), u32::from_be_bytes(theirs), "{ty} at {at}");
            }
            // Except for the leading halves, the rest of the block is bytes.
            let first = *at.first().unwrap();
            let halves = if ty == GgmlType::Q5_1 { 4 } else { 2 };
            assert_eq!(block[halves..first], other[halves..first], "{ty}");
        }
        let (block, other) = swapped(GgmlType::Iq1M);
        assert_eq!(block[..48], other[..48]);
        for at in (48..56).step_by(2) {
            assert_eq!([block[at], block[at + 1]], [other[at + 1], other[at]], "{at}");
        }
    }
}
