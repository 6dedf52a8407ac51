//! Integers packed in words, compared with test implementations that read single bits.

use proptest::prelude::*;

use crate::made::check;
use gguf_testkit::codes::mlx::{FORMS, mlx};
use gguf_testkit::codes::noise;
use gguf_testkit::codes::packed::{awq, gptq, int_quantized, pack_quantized};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn gptq_equals_its_twin(
        bits in prop::sample::select(vec![2u64, 3, 4, 8]), rows in 1u64..70, units in 1u64..9, seed: u64,
    ) {
        let noise = &mut noise(seed);
        // Number of columns that fills whole words.
        let unit = if bits == 3 { 32 } else { 32 / bits };
        check(&gptq(bits, [rows, units * unit], noise, None), noise);
    }

    #[test]
    fn auto_round_equals_its_twin(rows in 1u64..40, units in 1u64..9, seed: u64) {
        let noise = &mut noise(seed);
        let packing = if noise.flip() { "auto_round" } else { "auto_round:auto_gptq" };
        check(&gptq(4, [rows, units * 8], noise, Some(packing)), noise);
    }

    #[test]
    fn awq_equals_its_twin(rows in 1u64..70, cols in 1u64..140, seed: u64) {
        let noise = &mut noise(seed);
        for version in ["gemm", "gemv"] {
            check(&awq([rows, cols], noise, version), noise);
        }
    }

    #[test]
    fn pack_quantized_equals_its_twin(bits in 1u64..=8, rows in 1u64..70, cols in 1u64..140, seed: u64) {
        let noise = &mut noise(seed);
        if let Some(made) = pack_quantized(bits, [rows, cols], noise) {
            check(&made, noise);
        }
    }

    #[test]
    fn int_quantized_equals_its_twin(rows in 1u64..40, cols in 1u64..140, seed: u64) {
        let noise = &mut noise(seed);
        check(&int_quantized([rows, cols], noise), noise);
    }
}

/// Every form of MLX, in few columns and in rows of more than one tile.
#[test]
fn words_of_mlx_equal_their_twin() {
    let noise = &mut noise(11);
    for (mode, bits, groups) in FORMS {
        for (&bits, &group) in bits.iter().flat_map(|bits| groups.iter().map(move |group| (bits, group))) {
            for shape in [[1, 1], [6, 200], [34, 65]] {
                check(&mlx(shape, noise, (mode, bits, group)), noise);
            }
        }
    }
    check(&mlx([67, 4096], noise, ("affine", 3, 64)), noise);
}

/// Columns in multiples of 32, so that blocks keep the integers; tiles with many and with few rows.
#[test]
fn blocks_keep_the_integers() {
    let noise = &mut noise(7);
    for seed in 0..12 {
        let shape = [1 + seed * 11, 32 * (1 + seed % 5)];
        check(&gptq([2, 3, 4, 8][seed as usize % 4], shape, noise, None), noise);
        check(&awq(shape, noise, "gemm"), noise);
        check(&int_quantized(shape, noise), noise);
    }
    // Longer than one tile.
    check(&gptq(4, [67, 4096], noise, None), noise);
}
