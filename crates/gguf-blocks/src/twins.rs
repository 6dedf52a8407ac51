//! Tests of every type at every level against its scalar twin, on random and hostile rows.

use std::cell::Cell;
use std::io::Write;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::noise::Noise;
use gguf_core::Hint;
use gguf_testkit::tiers::{Tier, two_tiers};

/// Columns of every type's test rows: whole super-blocks, but not a power of two.
const N_COLS: usize = 768;

/// Pattern of a run of values; runs do not end where blocks end.
#[derive(Clone, Copy, Debug)]
enum ValuePattern {
    Bell(f32),
    Constant(f32),
    Zeros,
    Alternating(f32),
    /// Multiples of half a step: rounding ties.
    Grid(f32),
    /// A few large values in an otherwise flat run.
    Spikes(f32),
    Negative(f32),
    /// Any finite bit patterns.
    Bits,
    /// Any bit patterns, including infinities and NaN.
    Wild,
}

fn run() -> impl Strategy<Value = ValuePattern> {
    let scale = prop_oneof![
        4 => Just(0.02f32),
        2 => Just(1.0),
        1 => Just(1e-15),
        1 => Just(3e-15),
        1 => Just(1e-20),
        1 => Just(1e-38),
        1 => Just(1e-42),
        1 => Just(6e4),
        1 => Just(1e9),
        1 => Just(1e30),
    ];
    scale.prop_flat_map(|scale| {
        prop_oneof![
            6 => Just(ValuePattern::Bell(scale)),
            1 => Just(ValuePattern::Constant(scale)),
            1 => Just(ValuePattern::Zeros),
            1 => Just(ValuePattern::Alternating(scale)),
            2 => Just(ValuePattern::Grid(scale)),
            2 => Just(ValuePattern::Spikes(scale)),
            1 => Just(ValuePattern::Negative(scale)),
            1 => Just(ValuePattern::Bits),
        ]
    })
}

fn value(noise: &mut Noise, run: ValuePattern, index: usize) -> f32 {
    match run {
        ValuePattern::Bell(scale) => noise.bell() * scale,
        ValuePattern::Constant(value) => value,
        ValuePattern::Zeros => [0.0, -0.0][noise.index(2)],
        ValuePattern::Alternating(scale) => [scale, -scale][index % 2],
        ValuePattern::Grid(scale) => (noise.below(65) as f32 - 32.0) * 0.5 * scale,
        ValuePattern::Spikes(scale) => {
            if noise.below(17) == 0 {
                noise.bell() * scale
            } else {
                0.0
            }
        }
        ValuePattern::Negative(scale) => -noise.bell().abs() * scale - scale,
        ValuePattern::Bits => loop {
            let value = f32::from_bits(noise.bits() as u32);
            if value.is_finite() {
                return value;
            }
        },
        ValuePattern::Wild => {
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, f32::MAX, 1.0, -3e-41, 1e-15][noise.index(8)]
        }
    }
}

/// Returns rows of runs of 1 to 300 values.
fn rows(seed: u64, runs: &[ValuePattern], n_elems: usize) -> Vec<f32> {
    let mut noise = Noise::new(seed);
    let mut values = Vec::with_capacity(n_elems);
    for run in runs.iter().cycle() {
        let left = n_elems - values.len();
        if left == 0 {
            break;
        }
        for index in 0..left.min(1 + noise.index(300)) {
            values.push(value(&mut noise, *run, index));
        }
    }
    values
}

/// Returns importance spread over magnitudes, with zeros; at some seeds the same everywhere, or nothing but zeros in
/// whole groups.
fn importance(seed: u64, n_cols: usize) -> Vec<f32> {
    let mut noise = Noise::new(seed);
    (0..n_cols)
        .map(|column| match (noise.below(8), seed % 5) {
            (_, 0) => 1.0,
            (_, 1) if column / 64 % 2 == 0 => 0.0,
            (0, _) => 0.0,
            _ => noise.bell().abs().powi(8) + 1e-9,
        })
        .collect()
}

/// Returns the levels of this machine; with the feature `portable` also one that it lacks, if any: portable lanes stand in
/// for that.
fn levels() -> Vec<SimdLevel> {
    let is_missing = |level: &SimdLevel| cfg!(feature = "portable") && !level.is_available();
    let missing = SimdLevel::ALL.into_iter().find(is_missing);
    SimdLevel::available().chain(missing).collect()
}

/// Returns the bytes, or the block in which no grid point fits.
fn quantized(
    ty: GgmlType,
    level: SimdLevel,
    n_cols: usize,
    src: &[f32],
    imatrix: Option<&[f32]>,
) -> Result<Vec<u8>, usize> {
    let mut dst = vec![0xa5; src.len() / ty.block_elems() * ty.block_bytes()];
    let refused = Cell::new(None);
    let rows = SourceRows { n_cols, src, imatrix, refused: &refused };
    (codec(ty).unwrap().quantize.unwrap())(level, &rows, &mut dst);
    refused.get().map_or(Ok(dst), Err)
}

/// Compares bytes and floats of every level with the scalar twin.
fn compare(ty: GgmlType, n_cols: usize, src: &[f32], imatrix: Option<&[f32]>) {
    let want = quantized(ty, SimdLevel::Scalar, n_cols, src, imatrix);
    let Ok(want) = want else {
        // Rows beyond the range of floats: every level refuses them, at the same position.
        for level in levels() {
            assert_eq!(quantized(ty, level, n_cols, src, imatrix), want, "{ty} {level}");
        }
        return;
    };
    let mut want_floats = vec![0.0; src.len()];
    dequantize(ty, SimdLevel::Scalar, &want, &mut want_floats).unwrap();
    for level in levels() {
        let found = quantized(ty, level, n_cols, src, imatrix);
        let found = found.unwrap_or_else(|at| panic!("{ty} {level}: refuses block {at}"));
        if let Some(at) = (0..want.len()).find(|at| want[*at] != found[*at]) {
            let block = at / ty.block_bytes();
            let x = &src[block * ty.block_elems()..(block + 1) * ty.block_elems()];
            panic!(
                "{ty} {level}: byte {} of block {block}: {:#x}, scalar {:#x}; {x:?}",
                at % ty.block_bytes(),
                found[at],
                want[at],
            );
        }
        let mut floats = vec![0.0; src.len()];
        (codec(ty).unwrap().dequantize)(level, &want, &mut floats);
        for (at, (found, want)) in floats.iter().zip(&want_floats).enumerate() {
            let same = found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan();
            assert!(same, "{ty} {level}: element {at}: {found:e}, scalar {want:e}");
        }
    }
}

/// Compares with and without importance, as far as the type supports it.
fn compare_all(ty: GgmlType, n_cols: usize, src: &[f32], imatrix: &[f32]) {
    if ty.info().imatrix != ImatrixNeed::Required {
        compare(ty, n_cols, src, None);
    }
    if ty.info().imatrix != ImatrixNeed::Ignored {
        compare(ty, n_cols, src, Some(imatrix));
    }
}

/// Compares rows of many kinds in one type. It is one function for all types: each copy of the property test would take
/// seconds to compile.
fn twins_of(ty: GgmlType, n_cases: u32) {
    let rows_of_runs = (any::<u64>(), prop::collection::vec(run(), 1..12), 1usize..24);
    let compared =
        TestRunner::new(ProptestConfig::with_cases(n_cases)).run(&rows_of_runs, |(seed, runs, n_rows)| {
            let imatrix = importance(seed ^ 1, N_COLS);
            compare_all(ty, N_COLS, &rows(seed, &runs, n_rows * N_COLS), &imatrix);
            Ok(())
        });
    compared.unwrap_or_else(|error| panic!("{ty}: {error}"));
}

macro_rules! twins {
    ($( $name:ident($ty:ident); )*) => {
        $( #[test]
        fn $name() {
            twins_of(GgmlType::$ty, 6);
        } )*

        /// Types that this file tests; must match the list of codecs.
        const TWINS: &[GgmlType] = &[$( GgmlType::$ty ),*];
    };
}

/// Every type with four times as many rows.
#[test]
#[ignore = "of the deep tier"]
fn deep() {
    for ty in TWINS {
        twins_of(*ty, 24);
    }
}

twins! {
    f32_twins(F32);
    f16_twins(F16);
    bf16_twins(Bf16);
    q4_0_twins(Q4_0);
    q4_1_twins(Q4_1);
    q5_0_twins(Q5_0);
    q5_1_twins(Q5_1);
    q8_0_twins(Q8_0);
    q8_1_twins(Q8_1);
    q8_k_twins(Q8K);
    q1_0_twins(Q1_0);
    q2_0_twins(Q2_0);
    tq1_0_twins(Tq1_0);
    tq2_0_twins(Tq2_0);
    mxfp4_twins(Mxfp4);
    nvfp4_twins(Nvfp4);
    q2_k_twins(Q2K);
    q3_k_twins(Q3K);
    q4_k_twins(Q4K);
    q5_k_twins(Q5K);
    q6_k_twins(Q6K);
    iq1_s_twins(Iq1S);
    iq1_m_twins(Iq1M);
    iq2_xxs_twins(Iq2Xxs);
    iq2_xs_twins(Iq2Xs);
    iq2_s_twins(Iq2S);
    iq3_xxs_twins(Iq3Xxs);
    iq3_s_twins(Iq3S);
    iq4_nl_twins(Iq4Nl);
    iq4_xs_twins(Iq4Xs);
}

#[test]
fn every_quantizer_has_its_twins() {
    for codec in CODECS.iter().filter(|codec| codec.quantize.is_some()) {
        assert!(TWINS.contains(&codec.ty), "{} is not tested here", codec.ty);
    }
}

two_tiers!(infinities_and_nan_agree);
/// Checks infinities and NaN, for types without float sums or searches, where the scalar code defines the result.
fn infinities_and_nan_agree(tier: Tier) {
    for seed in 0..tier.of(12, 40) {
        let src = rows(
            seed,
            &[ValuePattern::Bell(0.02), ValuePattern::Wild, ValuePattern::Bell(1e-40), ValuePattern::Wild],
            8 * N_COLS,
        );
        for ty in TWINS.iter().copied() {
            compare_all(ty, N_COLS, &src, &importance(seed, N_COLS));
        }
    }
}

/// Checks rows of one block, so that vectors span rows and rows do not fill vectors.
#[test]
fn rows_of_one_block_agree() {
    for ty in TWINS.iter().copied() {
        let n_cols = ty.block_elems();
        for n_rows in [1, 2, 15, 16, 17, 33] {
            let src = rows(
                7,
                &[ValuePattern::Bell(0.02), ValuePattern::Bell(1.0), ValuePattern::Zeros],
                n_rows * n_cols,
            );
            compare_all(ty, n_cols, &src, &importance(9, n_cols));
        }
    }
}

/// Reports the levels that the twins ran at, and checks that none of this machine is missing.
#[test]
fn every_level_of_this_machine_is_tested() {
    let names: Vec<&str> = SimdLevel::available().map(SimdLevel::name).collect();
    // Bypasses the test harness, which captures the output of passing tests.
    let _ = writeln!(std::io::stderr(), "SIMD levels tested: {}", names.join(", "));
    assert!(SimdLevel::available().all(|level| levels().contains(&level)));
    #[cfg(target_arch = "x86_64")]
    {
        assert_eq!(names.contains(&"avx2"), is_x86_feature_detected!("avx2"), "AVX2 is there and untested");
        // The first machines with AVX-512 had only F, without the extensions that the lanes need.
        let is_wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        assert_eq!(names.contains(&"avx512"), is_wide, "AVX-512 is there and untested");
    }
    #[cfg(target_arch = "aarch64")]
    assert!(names.contains(&"neon"), "NEON is there and untested");
}

#[test]
fn hints_tell_the_way_out() {
    assert!(!QuantError::ImatrixRequired { ty: GgmlType::Iq2Xxs }.hints().is_empty());
    assert!(QuantError::NotATarget { ty: GgmlType::I8 }.hints().is_empty());
}
