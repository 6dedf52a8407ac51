//! IQ types beyond golden blocks: rows that the reference refuses, extreme rows, vector levels compared with scalar
//! code.

use gguf_blocks::{QuantError, dequantize, quantize_rows};
use gguf_core::GgmlType;
use gguf_core::simd::SimdLevel;

use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::memory::f32_values;
use gguf_testkit::noise::Noise;
use gguf_testkit::tiers::{Tier, two_tiers};
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

/// Super-block with values of a kind; finite unless the kind says otherwise.
fn block(noise: &mut Noise, kind: usize) -> Vec<f32> {
    let scale = 2f32.powi(noise.index(40) as i32 - 30);
    let few = [0.0, -0.0, scale, -scale, 3.0 * scale];
    (0..256)
        .map(|i| match kind {
            0 => noise.bell() * scale,
            1 => few[noise.index(5)],
            2 => scale,
            3 => {
                if i % 2 == 0 {
                    scale
                } else {
                    -scale
                }
            }
            4 => f32::from_bits(noise.bits() as u32 & 0x807f_ffff),
            5 => noise.bell() * 2f32.powi(noise.index(80) as i32 - 60),
            6 => {
                if noise.index(32) == 0 {
                    noise.bell() * 1e3
                } else {
                    noise.bell() * 1e-4
                }
            }
            7 => {
                if i / 32 % 2 == 0 {
                    0.0
                } else {
                    noise.bell()
                }
            }
            8 => (noise.index(17) as f32 - 8.0) * scale,
            9 => noise.bell() * 1e19,
            10 => 1e-15 * noise.bell(),
            11 => 3e38 * noise.bell().signum(),
            12 => {
                if noise.index(64) == 0 {
                    f32::NAN
                } else {
                    noise.bell()
                }
            }
            13 => {
                if noise.index(64) == 0 {
                    f32::INFINITY
                } else {
                    noise.bell()
                }
            }
            _ => f32::from_bits(noise.bits() as u32),
        })
        .collect()
}

const KINDS: usize = 15;

fn importance(noise: &mut Noise, kind: usize) -> Vec<f32> {
    (0..256)
        .map(|_| match kind {
            0 => 1.0,
            1 => noise.bell().abs() + 1e-3,
            2 => noise.bell().powi(4) * 1e4,
            3 => [0.0, 1.0, 1.0, 2.0][noise.index(4)],
            4 => 0.0,
            // Non-finite weights are refused before any work.
            _ => Some(f32::from_bits(noise.bits() as u32 & 0x7fff_ffff))
                .filter(|w| w.is_finite())
                .unwrap_or(0.0),
        })
        .collect()
}

two_tiers!(every_level_gives_the_scalar_bytes_or_error_on_hostile_rows);
fn every_level_gives_the_scalar_bytes_or_error_on_hostile_rows(tier: Tier) {
    let mut noise = Noise::new(7);
    for round in 0..tier.of(2, 20) {
        for kind in 0..KINDS {
            let src = block(&mut noise, kind);
            for weights in (0..6).map(|kind| Some(importance(&mut noise, kind))).chain([None]) {
                for ty in TYPES {
                    if weights.is_none() && needs_imatrix(ty) {
                        continue;
                    }
                    let weights = weights.as_deref();
                    let want = quantize(ty, SimdLevel::Scalar, 256, &src, weights);
                    for level in SimdLevel::available() {
                        let got = quantize(ty, level, 256, &src, weights);
                        assert!(got == want, "{ty} {level} round {round} kind {kind}\n{src:?}\n{weights:?}");
                    }
                    if let Ok(bytes) = want {
                        let mut back = vec![0.0; 256];
                        dequantize(ty, SimdLevel::Scalar, &bytes, &mut back).unwrap();
                    }
                }
            }
        }
    }
}

#[test]
fn any_bytes_decode() {
    let mut noise = Noise::new(8);
    for ty in TYPES {
        let bytes: Vec<u8> = (0..64 * ty.block_bytes()).map(|_| noise.bits() as u8).collect();
        let mut scalar = vec![0.0; 64 * ty.block_elems()];
        dequantize(ty, SimdLevel::Scalar, &bytes, &mut scalar).unwrap();
        for level in SimdLevel::available() {
            let mut values = vec![0.0; scalar.len()];
            dequantize(ty, level, &bytes, &mut values).unwrap();
            let same = values.iter().zip(&scalar).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{ty} {level}");
        }
    }
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
