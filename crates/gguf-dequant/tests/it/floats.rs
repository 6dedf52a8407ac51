//! Floats of 4 and 8 bits, compared with test implementations that read single bits.

use proptest::prelude::*;

use crate::made::check;
use gguf_testkit::codes::floats::{Grid, fp8, mxfp4, mxfp8, nvfp4};
use gguf_testkit::codes::noise;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn fp8_equals_its_twin(
        rows in 1u64..40, cols in 1u64..140, height in 1u64..20, width in 1u64..70, seed: u64,
    ) {
        let noise = &mut noise(seed);
        for (grid, method) in [
            (Grid::Block(height, width), "fp8"),
            (Grid::Row, "fp8"),
            (Grid::Tensor, "fp8"),
            (Grid::Row, "fbgemm_fp8"),
            (Grid::Tensor, "modelopt"),
            (Grid::Block(height, width), "compressed-tensors"),
            (Grid::Row, "compressed-tensors"),
        ] {
            check(&fp8([rows, cols], noise, grid, method), noise);
        }
    }

    #[test]
    fn fp4_equals_its_twin(rows in 1u64..40, cols in 1u64..140, seed: u64) {
        let noise = &mut noise(seed);
        for choice in [true, false] {
            check(&nvfp4([rows, cols], noise, choice), noise);
            check(&mxfp4([rows, cols], noise, choice), noise);
        }
        check(&mxfp8([rows, cols], noise), noise);
    }
}
