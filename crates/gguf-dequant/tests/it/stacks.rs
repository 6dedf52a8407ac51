//! Stacks of experts in one tensor, compared with test implementations that look up one element at a time.

use gguf_testkit::codes::stacks::{Packed, Scales, fp8_stack, nvfp4_stack};
use gguf_testkit::codes::{MODULE, Made, noise};
use proptest::prelude::*;

use crate::made::{check, layer};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn stacks_equal_their_twins(rows in 1u64..40, cols in 1u64..140, seed: u64) {
        let noise = &mut noise(seed);
        for (scales, method) in [
            (Scales::One, "fp8"),
            (Scales::ByMatrix, "fp8"),
            (Scales::ByRow, "fp8"),
            (Scales::ByOutput, "fp8"),
            (Scales::ByOutput, "fbgemm_fp8"),
            (Scales::One, "modelopt"),
            (Scales::ByMatrix, "modelopt"),
            (Scales::ByOutput, "modelopt"),
        ] {
            check(&fp8_stack([rows, cols], noise, scales, method), noise);
        }
        for packed in [Packed::Rows, Packed::Columns, Packed::Modules, Packed::CompressedTensors] {
            check(&nvfp4_stack([rows, cols], noise, packed), noise);
        }
    }
}

/// Changes the shape of a part and expects an error.
fn refused(mut made: Made, suffix: &str, dims: &[u64], expected: &str) {
    let name = format!("{MODULE}{suffix}");
    let part = made.parts.iter_mut().find(|part| part.name == name).unwrap();
    dims.clone_into(&mut part.dims);
    part.bytes.resize(dims.iter().product::<u64>() as usize * part.ty.bytes().unwrap(), 0x38);
    let error = layer(&made, true).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), format!("tensor `{name}`: shape is {dims:?}, expected {expected}"));
}

#[test]
fn scales_of_another_shape_are_named_with_what_was_expected() {
    let noise = &mut noise(5);
    let shape = [32, 64];
    let outputs = "[3, 1, 64] or [3, 64, 1], one for each output";
    for dims in [&[3, 64][..], &[3, 32, 1], &[3, 1, 1], &[3], &[1], &[3, 1, 63]] {
        refused(fp8_stack(shape, noise, Scales::ByOutput, "fbgemm_fp8"), "_scale", dims, outputs);
    }
    for dims in [&[2][..], &[4, 1, 1], &[3, 2], &[3, 1, 63]] {
        refused(fp8_stack(shape, noise, Scales::One, "modelopt"), "_weight_scale", dims, "1 element");
    }
    let groups = "[3, 32, 4] where rows are packed, or [3, 4, 32] where columns are";
    for dims in [&[3, 32, 5][..], &[96, 4], &[3, 32, 32], &[2, 32, 4]] {
        refused(nvfp4_stack(shape, noise, Packed::Rows), "_weight_scale", dims, groups);
    }
    let groups = "[3, 16, 8] where rows are packed, or [3, 2, 64] where columns are";
    for dims in [&[3, 32, 4][..], &[3, 16, 4], &[3, 2, 63], &[6, 64]] {
        refused(nvfp4_stack(shape, noise, Packed::Columns), "_weight_scale", dims, groups);
    }
    for (packed, suffix) in [
        (Packed::Rows, "_weight_scale_2"),
        (Packed::Columns, "_weight_scale_2"),
        (Packed::Modules, ".weight_scale_2"),
        (Packed::CompressedTensors, ".weight_global_scale"),
    ] {
        // Two factors per expert, for gate and up separately, are not a documented layout.
        for dims in [&[2][..], &[4], &[3, 2], &[1, 3]] {
            let factors = "1 element, or [3], one for each matrix of the stack";
            refused(nvfp4_stack(shape, noise, packed), suffix, dims, factors);
        }
    }
    refused(nvfp4_stack(shape, noise, Packed::Modules), ".weight_scale", &[96, 4], "[3, 32, 4]");
}

#[test]
fn parts_of_stacks_that_are_missing_are_named() {
    let noise = &mut noise(6);
    for (packed, suffix, expected) in [
        (Packed::Rows, "_weight_scale_2", "_weight_scale_2` is missing"),
        (Packed::Columns, "_weight_scale_2", "_weight_scale_2` is missing"),
        (Packed::Rows, "", "_weight_scale`: part of a module quantized by ModelOpt"),
        (Packed::Columns, "_weight_scale", "_weight_scale_2`: part of a module quantized by ModelOpt"),
    ] {
        let mut made = nvfp4_stack([32, 64], noise, packed);
        made.parts.retain(|part| part.name != format!("{MODULE}{suffix}"));
        let error = layer(&made, true).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
