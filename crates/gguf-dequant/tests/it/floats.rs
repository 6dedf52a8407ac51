//! Floats of 4 and 8 bits, compared with test implementations that read single bits.

use proptest::prelude::*;

use crate::made::{check, layer, read};
use gguf_core::ElementType;

use gguf_testkit::codes::floats::{Grid, fp8, mxfp4, mxfp8, nvfp4};
use gguf_testkit::codes::noise;
use gguf_testkit::codes::packed::{int_quantized, pack_quantized};

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

/// Older programs wrote the status of the calibration beside codes (nm-testing/Meta-Llama-3.1-8B-Instruct-FP8-hf).
#[test]
fn codes_are_decoded_whatever_the_status_says() {
    let noise = &mut noise(5);
    let shape = [24, 64];
    let mut all = vec![int_quantized(shape, noise), nvfp4(shape, noise, false)];
    all.extend([Grid::Row, Grid::Block(8, 16)].map(|grid| fp8(shape, noise, grid, "compressed-tensors")));
    all.extend([3, 4, 8].iter().filter_map(|bits| pack_quantized(*bits, shape, noise)));
    for mut made in all {
        for status in ["frozen", "calibration", "initialized"] {
            made.config["quantization_config"]["quantization_status"] = status.into();
            check(&made, noise);
        }
    }
    let mut floats = int_quantized(shape, noise);
    floats.config["quantization_config"]["quantization_status"] = "frozen".into();
    let values: Vec<f32> = (0..24 * 64).map(|at| at as f32).collect();
    let weight = floats.parts.iter_mut().find(|part| part.name == floats.name).unwrap();
    (weight.ty, weight.bytes) =
        (ElementType::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect());
    let source = layer(&floats, false).unwrap();
    assert_eq!(source.weights().len(), 1, "the scales are of no use");
    assert_eq!(read(&*source, 0, 0, 24 * 64).unwrap(), values);
}
