//! Modules of bitsandbytes, HQQ, quanto, BitNet and sparse checkpoints, compared with test implementations.

use proptest::prelude::*;

use crate::made::check;
use gguf_testkit::codes::tools::{bitnet, eight_bits, four_bits, hqq, quanto_bytes, quanto_packed, sparse};
use gguf_testkit::codes::{MODULE, noise};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn bitsandbytes_equals_its_twin(rows in 1u64..40, cols in 1u64..140, seed: u64) {
        let noise = &mut noise(seed);
        check(&four_bits([rows, cols], noise), noise);
        check(&eight_bits([rows, cols], noise), noise);
    }

    #[test]
    fn hqq_equals_its_twin(
        bits in prop::sample::select(vec![1u64, 2, 3, 4, 8]), rows in 1u64..40, cols in 1u64..140, seed: u64,
    ) {
        let noise = &mut noise(seed);
        check(&hqq(bits, [rows, cols], noise), noise);
    }

    #[test]
    fn quanto_equals_its_twin(
        bits in prop::sample::select(vec![2u64, 4]), rows in 1u64..40, cols in 1u64..140, seed: u64,
    ) {
        let noise = &mut noise(seed);
        check(&quanto_packed(bits, [rows, cols], noise), noise);
        check(&quanto_bytes([rows, cols], noise), noise);
    }

    #[test]
    fn bitnet_equals_its_twin(packed in 1u64..20, cols in 1u64..300, seed: u64) {
        let noise = &mut noise(seed);
        check(&bitnet(packed, cols, noise), noise);
        check(&bitnet(packed, 256, noise), noise);
    }

    #[test]
    fn bit_masks_equal_their_twin(rows in 1u64..40, cols in 1u64..140, seed: u64) {
        let noise = &mut noise(seed);
        for is_even in [true, false] {
            let made = sparse([rows, cols], noise, is_even);
            assert!(made.name.starts_with(MODULE));
            check(&made, noise);
        }
    }
}
