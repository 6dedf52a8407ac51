//! IQ types beyond golden blocks: rows that the reference refuses, and refusals by name.

use gguf_blocks::{QuantError, quantize_rows};
use gguf_core::GgmlType;
use gguf_core::simd::SimdLevel;

use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::memory::f32_values;
use gguf_testkit::{files, report_cases};

const TYPES: [GgmlType; 9] = [
    GgmlType::Iq1S,
    GgmlType::Iq1M,
    GgmlType::Iq2Xxs,
    GgmlType::Iq2Xs,
    GgmlType::Iq2S,
    GgmlType::Iq3Xxs,
    GgmlType::Iq3S,
    GgmlType::Iq4Nl,
    GgmlType::Iq4Xs,
];

fn needs_imatrix(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::Iq1S | GgmlType::Iq2Xxs | GgmlType::Iq2Xs)
}

fn quantize(
    ty: GgmlType,
    level: SimdLevel,
    n_cols: usize,
    src: &[f32],
    imatrix: Option<&[f32]>,
) -> Result<Vec<u8>, QuantError> {
    let mut dst = vec![0xa5; src.len() / ty.block_elems() * ty.block_bytes()];
    quantize_rows(ty, level, n_cols, src, imatrix, &mut dst).map(|()| dst)
}

#[test]
fn types_that_need_importance_say_so() {
    for ty in TYPES {
        let result = quantize(ty, SimdLevel::Scalar, 256, &[1.0; 256], None);
        if needs_imatrix(ty) {
            let error = result.unwrap_err();
            assert_eq!(error, QuantError::ImatrixRequired { ty });
            assert_eq!(error.to_string(), format!("{ty} needs an importance matrix, none given"));
        } else {
            assert!(result.is_ok(), "{ty}");
        }
    }
}

#[test]
fn a_refused_block_is_named() {
    let mut src = vec![1.0; 1024];
    src[800] = 1e21;
    for level in SimdLevel::available() {
        let error = quantize(GgmlType::Iq3S, level, 512, &src, None).unwrap_err();
        let expected = QuantError::Magnitude { ty: GgmlType::Iq3S, row: 1, column: 256, largest: 1e21 };
        assert_eq!(error, expected);
        let text = "row 1, from column 256 on: values up to 1e21 are too large for IQ3_S";
        assert_eq!(error.to_string(), text);
    }
}

conformance_tests!(rows_that_stop_the_reference_are_refused);

/// Rows on which the reference aborts are errors here, and only those.
fn rows_that_stop_the_reference_are_refused(corpus: &Goldens) {
    let dir = corpus.join("quant");
    let index = files::json(dir.join("index.json"));
    let floats = |table: &str, name: &str| -> Option<Vec<f32>> {
        let file = index[table][name]["file"].as_str()?;
        let bytes = fs_err::read(dir.join(file)).unwrap();
        let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        Some(f32_values(&bytes[header..]))
    };
    let mut n_cases = 0;
    for case in index["cases"].as_array().unwrap() {
        let Some(aborted) = case["aborted_rows"].as_array() else { continue };
        let ty = GgmlType::from_name(case["type"].as_str().unwrap()).unwrap();
        let src = floats("inputs", case["input"].as_str().unwrap()).unwrap();
        let n_cols = usize::try_from(case["cols"].as_u64().unwrap()).unwrap();
        let weights = floats("imatrices", case["imatrix"].as_str().unwrap());
        let weights = weights.as_ref().map(|weights| &weights[..n_cols]);
        for level in SimdLevel::available() {
            for (row, src) in src.chunks_exact(n_cols).enumerate() {
                let refused = aborted.iter().any(|aborted| aborted.as_u64() == Some(row as u64));
                let result = quantize(ty, level, n_cols, src, weights);
                assert_eq!(result.is_err(), refused, "{case} {level} row {row}");
            }
        }
        n_cases += 1;
    }
    report_cases("rows that stop the reference", n_cases);
}
