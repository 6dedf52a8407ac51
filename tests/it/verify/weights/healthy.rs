//! Files without damage: of every type, made of 16 bits, or compared with a quantized baseline.

use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, TensorMeta, TensorSource};
use gguf_foundry::gguf::{ColumnSums, Imatrix, ImatrixSums};
use gguf_foundry::quant::{can_quantize, dequantize};
use gguf_foundry::verify::{Cause, Severity, TensorWeights, VerifyOptions, WeightOutcome, verify};

use super::super::{corpus, llama, model, options};
use super::{K, OUT, Q, TYPES, compare, found, quantized, randomize, small, tensor};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::testkit::memory::f32_bytes;
use crate::testkit::noise::Noise;
use crate::testkit::tiny::Tiny;

two_tiers!(healthy_files_of_every_type_pass_and_plain_ones_are_reproduced);

fn healthy_files_of_every_type_pass_and_plain_ones_are_reproduced(tier: Tier) {
    let base = small();
    let types = tier.some(5, GgmlType::all().filter(|ty| can_quantize(*ty)));
    for &ty in &types {
        for weighted in [false, true] {
            let report = compare(&quantized(&base, ty, weighted), &base);
            assert!(report.findings.is_empty(), "{ty} {weighted}: {:?}", report.findings);
            let outcomes: Vec<_> = report.tensors.iter().map(|tensor| tensor.outcome).collect();
            if !weighted {
                assert!(outcomes.iter().all(|o| *o == WeightOutcome::Reproduced), "{ty}: {outcomes:?}");
                assert!(report.summary().starts_with("10 of 10 identical to "), "{}", report.summary());
            }
            let worst = report.worst(1).first().map_or(1.0, |tensor| tensor.ratio);
            println!("{ty} {weighted}: worst {worst:.3}");
        }
    }
    assert!(types.len() >= tier.of(6, 27), "{types:?}");
}

/// F32 model with values that no checkpoint of 16 bits holds, and with near ties: the two largest values of a block
/// have different signs and differ by less than F16 resolves.
fn fine() -> Tiny {
    let mut base = small();
    let mut noise = Noise::new(7);
    for name in [K, Q, OUT] {
        base.edit(name, |values| {
            for (at, block) in values.chunks_mut(32).enumerate() {
                for x in block.iter_mut() {
                    *x *= 1.0 + noise.below(4096) as f32 * 1e-6;
                }
                let largest = block.iter().fold(0f32, |m, x| m.max(x.abs())) * 1.01;
                if at % 5 == 0 && largest > 0.0 {
                    block[3] = -largest;
                    block[20] = largest * (1.0 + 1e-5);
                    for x in block.iter_mut().skip(5).step_by(4) {
                        *x = largest * 0.98;
                    }
                }
            }
        });
    }
    base
}

two_tiers!(a_file_of_16_bits_on_the_way_is_no_damage_and_hides_none);

/// Every day in one type of each family, and with damage in some of them.
fn a_file_of_16_bits_on_the_way_is_no_damage_and_hides_none(tier: Tier) {
    let base = fine();
    let types = tier.some(11, GgmlType::all().filter(|ty| can_quantize(*ty) && ty.is_quantized()));
    let mut n_ties = 0;
    for through in [GgmlType::F16, GgmlType::Bf16] {
        let between = decoded(&floats(&base, through));
        for &ty in &types {
            for weighted in [false, true] {
                let made = quantized(&between, ty, weighted);
                let report = compare(&made, &base);
                assert!(report.findings.is_empty(), "{ty} by {through}, {weighted}: {:?}", report.findings);
                let is_same = |tensor: &TensorWeights| tensor.outcome == WeightOutcome::Reproduced;
                let matrices = report.tensors.iter().filter(|tensor| tensor.ty.is_quantized());
                assert!(weighted || matrices.clone().all(is_same), "{ty} by {through}");
            }
            let direct = quantized(&base, ty, false);
            let made = quantized(&between, ty, false);
            let codes = |tiny: &Tiny| tiny.tensors.bytes(tiny.tensors.index(K)).to_vec();
            n_ties += usize::from(codes(&direct) != codes(&made));
        }
        for ty in tier.some(3, TYPES) {
            let mut broken = quantized(&between, ty, false);
            randomize(&mut broken, K, std::iter::once(7));
            found("a block behind a detour", &broken, &base, &[K], &|_| true);
        }
    }
    assert!(n_ties > tier.of(3, 20), "the detour changed {n_ties} tensors only: this proves nothing");
}

deep_test!(importance_that_cares_for_few_columns_is_no_scale);

fn importance_that_cares_for_few_columns_is_no_scale() {
    let base = small();
    for ty in GgmlType::all().filter(|ty| can_quantize(*ty) && ty.is_quantized()) {
        let mut noise = Noise::new(8);
        let normal = |noise: &mut Noise| (0..12).map(|_| noise.unit()).sum::<f32>() - 6.0;
        let mut made = base.clone();
        for name in [K, Q, OUT] {
            let weights: Vec<f32> = (0..256).map(|_| (3.0 * normal(&mut noise)).exp()).collect();
            made.tensors.replace(name, ty, base.weighted_tensor(name, ty, Some(&weights)));
        }
        let report = compare(&made, &base);
        let scaled = |tensor: &&TensorWeights| matches!(tensor.cause, Some(Cause::RowsScaled { .. }));
        assert_eq!(report.tensors.iter().filter(scaled).count(), 0, "{ty}: {:?}", report.findings);
    }
}

/// Converts all tensors to floats of a type.
fn floats(tiny: &Tiny, ty: GgmlType) -> Tiny {
    let mut model = tiny.clone();
    for TensorMeta { name, .. } in tiny.tensors.tensors() {
        model.tensors.replace(name, ty, tiny.quantized_tensor(name, ty));
    }
    model
}

fn decoded(tiny: &Tiny) -> Tiny {
    let mut model = tiny.clone();
    for (at, meta) in tiny.tensors.tensors().iter().enumerate() {
        let mut values = vec![0.0; meta.shape.n_elems() as usize];
        dequantize(meta.ty, SimdLevel::detect(), tiny.tensors.bytes(at), &mut values).unwrap();
        model.tensors.replace(&meta.name, GgmlType::F32, f32_bytes(&values));
    }
    model
}

#[test]
fn floats_are_equal_after_rounding() {
    let mut base = small();
    // Values that neither 16-bit type holds, and a NaN.
    for name in [K, Q] {
        base.edit(name, |values| values.iter_mut().for_each(|x| *x *= 1.001_3));
    }
    base.edit("blk.1.attn_norm.weight", |values| values[3] = f32::NAN);
    for (file, baseline) in [
        (GgmlType::F16, GgmlType::F32),
        (GgmlType::Bf16, GgmlType::F32),
        (GgmlType::F32, GgmlType::F16),
        (GgmlType::F32, GgmlType::F32),
    ] {
        let report = compare(&floats(&base, file), &floats(&base, baseline));
        let rounded = if file == baseline { "" } else { " after rounding" };
        assert_eq!(
            report.summary(),
            format!("10 of 10 identical to the baseline{rounded}"),
            "{file} {baseline}: {:?}",
            report.findings
        );
    }
    let report = compare(&floats(&base, GgmlType::F16), &floats(&base, GgmlType::Bf16));
    assert!(report.findings.is_empty(), "both are rounded: {:?}", report.findings);

    // Rounded to BF16 before F16: a loss that is reported, but not damage.
    let narrow = decoded(&floats(&base, GgmlType::Bf16));
    let report = compare(&floats(&narrow, GgmlType::F16), &base);
    assert!(
        report.findings.iter().all(|finding| finding.severity == Severity::Warning),
        "{:?}",
        report.findings
    );
    assert!(report.findings[0].message.ends_with("values were rounded to BF16 on their way"));

    let mut broken = floats(&base, GgmlType::F16);
    broken.tensors.bytes_mut(Q)[2 * (256 * 7 + 5) + 1] ^= 0x80;
    let report = compare(&broken, &base);
    let message = &report.findings[0].message;
    assert!(message.contains("1 of 65536 values differ, the first in row 7, column 5: "), "{message}");
    assert_eq!(tensor(&report, K).outcome, WeightOutcome::Reproduced);
}

#[test]
fn quantized_baselines_are_no_false_alarm() {
    let base = small();
    for (file, baseline) in [
        (GgmlType::Q8_0, GgmlType::Q8_0),
        (GgmlType::Q4K, GgmlType::Q8_0),
        (GgmlType::Q4K, GgmlType::Q5K),
        (GgmlType::Q8_0, GgmlType::Q4_0),
    ] {
        let report = compare(&quantized(&base, file, true), &quantized(&base, baseline, false));
        assert!(report.findings.is_empty(), "{file} {baseline}: {:?}", report.findings);
    }
    // Decoded, and the reverse.
    let coded = quantized(&base, GgmlType::Q4_0, false);
    assert!(compare(&decoded(&coded), &coded).findings.is_empty());
    assert!(compare(&coded, &decoded(&coded)).findings.is_empty());
    let mut broken = quantized(&base, GgmlType::Q4K, false);
    randomize(&mut broken, K, std::iter::once(3));
    let report = compare(&broken, &quantized(&base, GgmlType::Q5K, false));
    assert_eq!(tensor(&report, K).bad_blocks.first[0].row, 3);
}

#[test]
fn a_file_that_its_importance_matrix_makes_is_its_own_reference_copy() {
    let base = Tiny::new().with_layers(1);
    let (mut file, mut noise) = (base.clone(), Noise::new(5));
    let mut sums = ImatrixSums {
        tensors: std::collections::BTreeMap::default(),
        datasets: Vec::new(),
        n_chunks: 1,
        chunk_size: 1,
    };
    let is_matrix = |meta: &&TensorMeta| meta.shape.rank() > 1;
    for TensorMeta { name, shape, .. } in base.tensors.tensors().iter().filter(is_matrix) {
        let weights: Vec<f32> = (0..shape.n_cols()).map(|_| 10f32.powf(noise.unit())).collect();
        file.tensors.replace(name, GgmlType::Q3K, base.weighted_tensor(name, GgmlType::Q3K, Some(&weights)));
        let weights = weights.into_iter().map(f64::from).collect();
        let own = ColumnSums { n_cols: shape.n_cols() as usize, sums: weights, counts: vec![1] };
        sums.tensors.insert(name.clone(), own);
    }
    let matrix = Imatrix::of_sums(&sums).unwrap();
    let features = llama();
    let judged = |file: &Tiny, importance| {
        let options = VerifyOptions { importance, ..options(Some(2)) };
        let (file, base) = (model(file, &features), model(&base, &features));
        verify(&file, Some(&base), &corpus(), &options, &Silent, None).unwrap().report
    };
    let (own, plain) = (judged(&file, Some(&matrix)), judged(&file, None));
    let cost = |report: &gguf_foundry::verify::Report| report.healthy.unwrap().cost.kld;
    let kld = own.divergence.as_ref().unwrap().kld.mean;
    assert_eq!((cost(&own), plain.divergence.as_ref().unwrap().kld.mean), (kld, kld));
    assert!(cost(&plain) != kld && own.verdict == plain.verdict);
    let outcomes = |report: &gguf_foundry::verify::Report| {
        let weights = report.weights.as_ref().unwrap();
        weights.with(WeightOutcome::Reproduced).count() == weights.tensors.len()
    };
    assert!(outcomes(&own) && !outcomes(&plain));
    // One scale of one block that the matrix does not make: the copy is run.
    file.tensors.bytes_mut("blk.0.ffn_down.weight")[5] ^= 1;
    let changed = judged(&file, Some(&matrix));
    assert!(cost(&changed) == cost(&plain) && !outcomes(&changed));
}
