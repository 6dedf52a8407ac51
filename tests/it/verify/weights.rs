//! Weights compared with the baseline: valid files of every type pass, damage is found and named.

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::progress::{CancelFlag, Silent};
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, Shape, TensorMeta};
use gguf_foundry::quant::{can_quantize, dequantize, quantize_rows};
use gguf_foundry::verify::{
    Cause, Severity, TensorWeights, WeightOptions, WeightOutcome, WeightReport, compare_weights,
};
use serde_json::Value;

use super::tiny::Tiny;
use super::{gguf_verify, model};

const K: &str = "blk.1.attn_k.weight";
const Q: &str = "blk.1.attn_q.weight";
const OUT: &str = "blk.1.attn_output.weight";
/// Types of every family, coarse and fine.
const TYPES: [GgmlType; 8] = [
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q6K,
    GgmlType::Q4K,
    GgmlType::Q3K,
    GgmlType::Q2K,
    GgmlType::Iq4Xs,
    GgmlType::Iq2S,
];

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Attention of two layers: enough for the comparison.
fn small() -> Tiny {
    let mut tiny = Tiny::new();
    for at in (0..tiny.metas.len()).rev() {
        let name = &tiny.metas[at].name;
        if !["blk.1.attn", "blk.2.attn"].iter().any(|prefix| name.starts_with(prefix)) {
            tiny.metas.remove(at);
            tiny.bytes.remove(at);
        }
    }
    tiny
}

fn compare(file: &Tiny, baseline: &Tiny) -> WeightReport {
    let none = GraphFeatures::default();
    let options = WeightOptions { level: SimdLevel::detect(), memory_bytes: 1 << 20 };
    compare_weights(&model(file, &none), &model(baseline, &none), &options, &Silent).unwrap()
}

/// Quantizes like `Tiny::quantized`, with importance weights that differ thirtyfold if the type uses them.
fn quantized(tiny: &Tiny, ty: GgmlType, weighted: bool) -> Tiny {
    let mut model = tiny.clone();
    let mut random = Random(88172645463325252);
    for at in 0..model.metas.len() {
        if model.metas[at].shape.rank() < 2 {
            continue;
        }
        let values = tiny.values(&model.metas[at].name);
        let n_cols = model.metas[at].shape.n_cols() as usize;
        let weight = |_| 10f32.powf((random.next() % 1500) as f32 / 1000.0 - 0.75);
        let weights: Vec<f32> = if weighted { (0..n_cols).map(weight).collect() } else { vec![1.0; n_cols] };
        let needs = ty.info().imatrix == gguf_foundry::core::ImatrixNeed::Required;
        let weights = (weighted || needs).then_some(weights.as_slice());
        model.metas[at].ty = ty;
        let mut bytes = vec![0; model.metas[at].n_bytes().unwrap() as usize];
        quantize_rows(ty, SimdLevel::detect(), n_cols, &values, weights, &mut bytes).unwrap();
        model.bytes[at] = bytes;
    }
    model
}

fn tensor<'r>(report: &'r WeightReport, name: &str) -> &'r TensorWeights {
    report.tensors.iter().find(|tensor| tensor.name == name).unwrap()
}

/// Range of a block's bytes that holds codes, and the offset of an F16 scale.
fn layout(ty: GgmlType) -> (std::ops::Range<usize>, usize) {
    match ty {
        GgmlType::Q8_0 => (2..34, 0),
        GgmlType::Q4_0 => (2..18, 0),
        GgmlType::Q6K => (0..192, 208),
        GgmlType::Q4K => (16..144, 0),
        GgmlType::Q3K => (0..96, 108),
        GgmlType::Q2K => (16..80, 80),
        GgmlType::Iq4Xs => (8..136, 0),
        GgmlType::Iq2S => (2..74, 0),
        other => panic!("{other}"),
    }
}

/// Makes the codes of some blocks of a tensor random.
fn randomize(tiny: &mut Tiny, name: &str, blocks: impl Iterator<Item = usize>) {
    let at = tiny.index(name);
    let ty = tiny.metas[at].ty;
    let mut random = Random(0x1234_5678_9abc_def1);
    for block in blocks {
        for byte in layout(ty).0 {
            tiny.bytes[at][block * ty.block_bytes() + byte] = random.next() as u8;
        }
    }
}

fn n_blocks(tiny: &Tiny, name: &str) -> usize {
    let at = tiny.index(name);
    tiny.bytes[at].len() / tiny.metas[at].ty.block_bytes()
}

/// Checks that the listed tensors are damaged with this cause, and that all others are not.
fn found(what: &str, file: &Tiny, baseline: &Tiny, damaged: &[&str], cause: &dyn Fn(&Cause) -> bool) {
    let report = compare(file, baseline);
    for tensor in &report.tensors {
        let is_damaged = tensor.outcome == WeightOutcome::Damaged;
        let expected = damaged.contains(&tensor.name.as_str());
        assert_eq!(is_damaged, expected, "{what}: {} {tensor:?}", tensor.ty);
        if expected {
            let text = tensor.cause.as_ref().map(ToString::to_string);
            assert!(
                tensor.cause.as_ref().is_some_and(cause),
                "{what}: {} {} {text:?}",
                tensor.ty,
                tensor.name
            );
        }
    }
    assert!(report.findings.iter().any(|finding| finding.severity == Severity::Error), "{what}");
}

#[test]
fn healthy_files_of_every_type_pass_and_plain_ones_are_reproduced() {
    let base = small();
    let mut n_types = 0;
    for ty in GgmlType::all().filter(|ty| can_quantize(*ty)) {
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
        n_types += 1;
    }
    assert!(n_types >= 27, "{n_types}");
}

/// F32 model with values that no checkpoint of 16 bits holds, and with near ties: the two largest values of a block
/// have different signs and differ by less than F16 resolves.
fn fine() -> Tiny {
    let mut base = small();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for name in [K, Q, OUT] {
        let mut values = base.values(name);
        for (at, block) in values.chunks_mut(32).enumerate() {
            for x in block.iter_mut() {
                *x *= 1.0 + (random.next() % 4096) as f32 * 1e-6;
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
        base.set_values(name, &values);
    }
    base
}

#[test]
fn a_file_of_16_bits_on_the_way_is_no_damage_and_hides_none() {
    let base = fine();
    let mut n_ties = 0;
    for through in [GgmlType::F16, GgmlType::Bf16] {
        let between = decoded(&floats(&base, through));
        for ty in GgmlType::all().filter(|ty| can_quantize(*ty) && ty.is_quantized()) {
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
            n_ties += usize::from(direct.bytes[direct.index(K)] != made.bytes[made.index(K)]);
        }
        for ty in TYPES {
            let mut broken = quantized(&between, ty, false);
            randomize(&mut broken, K, std::iter::once(7));
            found("a block behind a detour", &broken, &base, &[K], &|_| true);
        }
    }
    assert!(n_ties > 20, "the detour changed {n_ties} tensors only: this proves nothing");
}

#[test]
fn importance_that_cares_for_few_columns_is_no_scale() {
    let base = small();
    for ty in GgmlType::all().filter(|ty| can_quantize(*ty) && ty.is_quantized()) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut made = base.clone();
        for name in [K, Q, OUT] {
            let at = made.index(name);
            let n_cols = made.metas[at].shape.n_cols() as usize;
            let values = base.values(name);
            let normal = |random: &mut Random| {
                (0..12).map(|_| (random.next() >> 40) as f32 / (1u32 << 24) as f32).sum::<f32>() - 6.0
            };
            let weights: Vec<f32> = (0..n_cols).map(|_| (3.0 * normal(&mut random)).exp()).collect();
            made.metas[at].ty = ty;
            made.bytes[at] = vec![0; made.metas[at].n_bytes().unwrap() as usize];
            let bytes = &mut made.bytes[at];
            quantize_rows(ty, SimdLevel::detect(), n_cols, &values, Some(&weights), bytes).unwrap();
        }
        let report = compare(&made, &base);
        let scaled = |tensor: &&TensorWeights| matches!(tensor.cause, Some(Cause::RowsScaled { .. }));
        assert_eq!(report.tensors.iter().filter(scaled).count(), 0, "{ty}: {:?}", report.findings);
    }
}

#[test]
fn damaged_codes_are_found_in_every_type_with_and_without_importance() {
    let base = small();
    for ty in TYPES {
        for weighted in [false, true] {
            let healthy = quantized(&base, ty, weighted);
            let n = n_blocks(&healthy, K);
            let what = |text: &str| format!("{text}, weighted {weighted}");

            let mut broken = healthy.clone();
            randomize(&mut broken, K, 0..n);
            let unrelated = |cause: &Cause| matches!(cause, Cause::Unrelated | Cause::Blocks { .. });
            found(&what("all codes random"), &broken, &base, &[K], &unrelated);

            let mut broken = healthy.clone();
            randomize(&mut broken, K, (0..n).step_by(10));
            let tenth = |cause: &Cause| matches!(cause, Cause::Blocks { count, .. } if *count == n.div_ceil(10) as u64);
            found(&what("every tenth block random"), &broken, &base, &[K], &tenth);

            let mut broken = healthy.clone();
            let bad = n / 2 + 1;
            randomize(&mut broken, K, std::iter::once(bad));
            let per_row = 256 / ty.block_elems();
            let place = ((bad / per_row) as u64, (bad % per_row) as u64);
            let one = |cause: &Cause| match cause {
                Cause::Blocks { count: 1, first } => (first[0].0, first[0].1) == place,
                _ => false,
            };
            found(&what("one block random"), &broken, &base, &[K], &one);

            let scale = layout(ty).1;
            for bit in [7, 6] {
                let mut broken = healthy.clone();
                let at = broken.index(K);
                broken.bytes[at][bad * ty.block_bytes() + scale + 1] ^= 1 << bit;
                let one = |cause: &Cause| match cause {
                    Cause::Blocks { count: 1, first } => (first[0].0, first[0].1) == place,
                    // If blocks are as long as the rows, the row is scaled.
                    Cause::RowsScaled { count: 1, first } => first[0].0 == place.0 && per_row == 1,
                    _ => false,
                };
                found(&what(&format!("bit {bit} of a scale")), &broken, &base, &[K], &one);
            }
        }
    }
}

#[test]
fn a_halved_scale_shows_in_a_file_that_is_reproduced_otherwise() {
    let base = small();
    for ty in TYPES {
        let mut broken = quantized(&base, ty, false);
        let at = broken.index(K);
        let scale = 5 * ty.block_bytes() + layout(ty).1;
        let half = u16::from_le_bytes([broken.bytes[at][scale], broken.bytes[at][scale + 1]]) - (1 << 10);
        broken.bytes[at][scale..scale + 2].copy_from_slice(&half.to_le_bytes());
        found("a halved scale", &broken, &base, &[K], &|_| true);
    }
}

/// Quantizes after a change of the values.
fn changed(base: &Tiny, ty: GgmlType, weighted: bool, change: impl Fn(&mut Tiny)) -> Tiny {
    let mut model = base.clone();
    change(&mut model);
    quantized(&model, ty, weighted)
}

fn edit(tiny: &mut Tiny, name: &str, change: impl FnOnce(&mut Vec<f32>)) {
    let mut values = tiny.values(name);
    change(&mut values);
    tiny.set_values(name, &values);
}

fn swap(tiny: &mut Tiny, a: &str, b: &str) {
    let (a, b) = (tiny.index(a), tiny.index(b));
    tiny.bytes.swap(a, b);
}

#[test]
fn values_in_the_wrong_place_are_found_and_named() {
    let base = small();
    for ty in TYPES {
        for weighted in [false, true] {
            let broken = changed(&base, ty, weighted, |tiny| {
                edit(tiny, Q, |values| {
                    (0..256).for_each(|column| values.swap(3 * 256 + column, 70 * 256 + column));
                });
            });
            let rows = |cause: &Cause| cause.to_string() == "rows 3 and 70 are swapped";
            found("two rows", &broken, &base, &[Q], &rows);

            let other = "blk.1.attn_v.weight";
            let broken = changed(&base, ty, weighted, |tiny| swap(tiny, K, other));
            let holds =
                |cause: &Cause| matches!(cause, Cause::Holds { tensor } if tensor == K || tensor == other);
            found("two tensors", &broken, &base, &[K, other], &holds);

            let unpermuted = |tiny: &mut Tiny| {
                for (name, n_heads) in [(Q, 4), (K, 2)] {
                    edit(tiny, name, |values| {
                        let old = values.clone();
                        let per_head = values.len() / 256 / n_heads;
                        for row in 0..n_heads * per_head {
                            let (head, at) = (row / per_head, row % per_head);
                            let from = head * per_head + at % (per_head / 2) * 2 + at / (per_head / 2);
                            values[row * 256..][..256].copy_from_slice(&old[from * 256..][..256]);
                        }
                    });
                }
            };
            let broken = changed(&base, ty, weighted, unpermuted);
            let order = |cause: &Cause| matches!(cause, Cause::RotaryOrder { head_rows: 64, halves: true });
            found("no permutation", &broken, &base, &[Q, K], &order);

            let broken =
                changed(&base, ty, weighted, |tiny| edit(tiny, OUT, |values| values.rotate_right(5 * 256)));
            let shift = |cause: &Cause| matches!(cause, Cause::RowsShifted { by: 5 });
            found("rows shifted", &broken, &base, &[OUT], &shift);

            let broken = changed(&base, ty, weighted, |tiny| {
                edit(tiny, OUT, |values| {
                    let old = values.clone();
                    (0..256 * 256).for_each(|at| values[at] = old[at % 256 * 256 + at / 256]);
                });
            });
            found("transposed", &broken, &base, &[OUT], &|cause| *cause == Cause::Transposed);

            let broken =
                changed(&base, ty, weighted, |tiny| edit(tiny, OUT, |values| values.rotate_right(32)));
            let shift = |cause: &Cause| matches!(cause, Cause::ElementsShifted { by: 32 });
            found("elements shifted", &broken, &base, &[OUT], &shift);
        }
    }
}

#[test]
fn swapped_layers_are_one_finding() {
    let base = small();
    for ty in [GgmlType::F16, GgmlType::Q4K, GgmlType::Iq2S] {
        let broken = changed(&base, ty, false, |tiny| {
            for role in ["attn_q", "attn_k", "attn_v", "attn_output", "attn_norm"] {
                swap(tiny, &format!("blk.1.{role}.weight"), &format!("blk.2.{role}.weight"));
            }
        });
        let report = compare(&broken, &base);
        let texts: Vec<_> = report.findings.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(texts, ["layers 1 and 2 are swapped: 5 tensors of each hold the other's values"], "{ty}");
    }
}

#[test]
fn scaled_values_are_found_and_named() {
    let base = small();
    for ty in TYPES {
        for weighted in [false, true] {
            let row =
                |tiny: &mut Tiny| edit(tiny, K, |v| v[17 * 256..18 * 256].iter_mut().for_each(|x| *x *= 1.5));
            let broken = changed(&base, ty, weighted, row);
            let scaled = |cause: &Cause| match cause {
                Cause::RowsScaled { count: 1, first } => first[0].0 == 17 && (first[0].1 - 1.5).abs() < 0.2,
                _ => false,
            };
            found("a row", &broken, &base, &[K], &scaled);

            // A tenth more or less is within the effect of importance on codes of two bits.
            if !matches!(ty, GgmlType::Iq2S | GgmlType::Q2K) {
                let broken = changed(&base, ty, weighted, |tiny| {
                    edit(tiny, K, |values| values.iter_mut().for_each(|x| *x *= 0.9));
                });
                let scaled =
                    |cause: &Cause| matches!(cause, Cause::Scaled { factor } if (factor - 0.9).abs() < 0.06);
                found("the tensor", &broken, &base, &[K], &scaled);
            }
        }
        if !matches!(ty, GgmlType::Iq2S | GgmlType::Q2K) {
            let broken = changed(&base, ty, false, |tiny| {
                edit(tiny, K, |values| values.iter_mut().skip(9).step_by(256).for_each(|x| *x *= 1.6));
            });
            let scaled =
                |cause: &Cause| matches!(cause, Cause::ColumnsScaled { count: 1, first } if first[0].0 == 9);
            found("a column", &broken, &base, &[K], &scaled);
        }
    }
}

/// Converts all tensors to floats of a type.
fn floats(tiny: &Tiny, ty: GgmlType) -> Tiny {
    let mut model = tiny.clone();
    for at in 0..model.metas.len() {
        let values = tiny.values(&tiny.metas[at].name);
        model.metas[at].ty = ty;
        let mut bytes = vec![0; model.metas[at].n_bytes().unwrap() as usize];
        let n_cols = model.metas[at].shape.n_cols() as usize;
        quantize_rows(ty, SimdLevel::detect(), n_cols, &values, None, &mut bytes).unwrap();
        model.bytes[at] = bytes;
    }
    model
}

/// Decodes all tensors.
fn decoded(tiny: &Tiny) -> Tiny {
    let mut model = tiny.clone();
    for (meta, bytes) in model.metas.iter_mut().zip(&mut model.bytes) {
        let mut values = vec![0.0; meta.shape.n_elems() as usize];
        dequantize(meta.ty, SimdLevel::detect(), bytes, &mut values).unwrap();
        meta.ty = GgmlType::F32;
        *bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    }
    model
}

#[test]
fn floats_are_equal_after_rounding() {
    let mut base = small();
    // Values that neither 16-bit type holds, and a NaN.
    for name in [K, Q] {
        edit(&mut base, name, |values| values.iter_mut().for_each(|x| *x *= 1.001_3));
    }
    edit(&mut base, "blk.1.attn_norm.weight", |values| values[3] = f32::NAN);
    for (file, baseline) in [
        (GgmlType::F16, GgmlType::F32),
        (GgmlType::Bf16, GgmlType::F32),
        (GgmlType::F32, GgmlType::F16),
        (GgmlType::F32, GgmlType::F32),
    ] {
        let report = compare(&floats(&base, file), &floats(&base, baseline));
        assert_eq!(
            report.summary(),
            "10 of 10 identical to the baseline",
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
    let at = broken.index(Q);
    broken.bytes[at][2 * (256 * 7 + 5) + 1] ^= 0x80;
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
fn tensors_without_an_answer_are_named() {
    let base = small();
    let mut broken = base.clone();
    let at = broken.index(K);
    broken.metas[at].name = "blk.1.attn_extra.weight".to_owned();
    broken.metas[at].shape = Shape::new(vec![64, 512]).unwrap();
    let at = broken.index(Q);
    broken.metas[at].shape = Shape::new(vec![128, 512]).unwrap();
    let mut more = broken.clone();
    more.metas.push(TensorMeta { name: "blk.2.x".to_owned(), ..base.metas[0].clone() });
    more.bytes.push(base.bytes[0].clone());
    let report = compare(&more, &base);
    let texts: Vec<_> = report.findings.iter().map(|f| (f.tensor.clone(), f.message.clone())).collect();
    let has = |name: Option<&str>, part: &str| {
        texts.iter().any(|(tensor, text)| tensor.as_deref() == name && text.contains(part))
    };
    assert!(has(Some(Q), "shape [128, 512], the baseline's is [256, 256]"), "{texts:?}");
    assert!(has(Some("blk.2.x"), "the baseline has no such tensor"), "{texts:?}");
    // The same number of values under another name: another layout, which is not judged.
    assert!(has(None, "under other names"), "{texts:?}");

    let mut broken = base.clone();
    let at = broken.index(K);
    broken.metas.remove(at);
    broken.bytes.remove(at);
    let report = compare(&broken, &base);
    assert_eq!(report.findings[0].tensor.as_deref(), Some(K));
    assert!(report.findings[0].message.starts_with("missing"));
}

#[test]
fn a_head_that_is_the_embedding_and_factors_beside_a_tensor() {
    let mut tied = small();
    let named = |tiny: &Tiny, from: &str, name: &str| {
        let at = tiny.index(from);
        (TensorMeta { name: name.to_owned(), ..tiny.metas[at].clone() }, tiny.bytes[at].clone())
    };
    let push = |tiny: &mut Tiny, (meta, bytes): (TensorMeta, Vec<u8>)| {
        tiny.metas.push(meta);
        tiny.bytes.push(bytes);
    };
    let embedding = named(&tied, Q, "token_embd.weight");
    push(&mut tied, embedding);
    let mut apart = tied.clone();
    let head = named(&tied, Q, "output.weight");
    push(&mut apart, head);
    for (file, baseline) in [(&tied, &apart), (&apart, &tied)] {
        let report = compare(&quantized(file, GgmlType::Q6K, false), baseline);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(tensor(&report, "output.weight").outcome, WeightOutcome::Reproduced);
    }
    // A separate head that the file has lost.
    edit(&mut apart, "output.weight", |values| values.reverse());
    let report = compare(&tied, &apart);
    assert_eq!(tensor(&report, "output.weight").outcome, WeightOutcome::Damaged);

    let base = small();
    let mut scaled = base.clone();
    edit(&mut scaled, K, |values| values.iter_mut().for_each(|x| *x *= 8.0));
    let mut scaled = quantized(&scaled, GgmlType::Q4_0, false);
    let (shape, ty) = (Shape::new(vec![1]).unwrap(), GgmlType::F32);
    let beside = TensorMeta { name: "blk.1.attn_k.scale".to_owned(), shape, ty };
    push(&mut scaled, (beside, 0.125f32.to_le_bytes().to_vec()));
    let report = compare(&scaled, &base);
    assert_eq!((report.findings.len(), tensor(&report, K).outcome), (0, WeightOutcome::Reproduced));
}

#[test]
fn results_do_not_depend_on_memory_and_a_run_can_be_stopped() {
    let base = small();
    let file = quantized(&base, GgmlType::Q4K, true);
    let none = GraphFeatures::default();
    let (file, base) = (model(&file, &none), model(&base, &none));
    let with = |memory_bytes| WeightOptions { level: SimdLevel::detect(), memory_bytes };
    let report = compare_weights(&file, &base, &with(0), &Silent).unwrap();
    let more = compare_weights(&file, &base, &with(1 << 30), &Silent).unwrap();
    for (a, b) in report.tensors.iter().zip(&more.tensors) {
        assert!((a.error / b.error - 1.0).abs() < 1e-9 || a.error == b.error);
        assert_eq!((a.outcome, &a.histogram), (b.outcome, &b.histogram));
    }
    let stop = CancelFlag::default();
    stop.cancel();
    let error = compare_weights(&file, &base, &with(0), &stop).unwrap_err();
    assert_eq!(error.to_string(), "interrupted");
}

#[test]
fn the_program_compares_weights_alone() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new();
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q4K).write(dir.path(), "q4_k.gguf");
    let args = ["q4_k.gguf", "--baseline", "base.gguf", "--weights-only"];
    let (code, out, err) = gguf_verify(&args, dir.path());
    assert_eq!(code, 0, "text says no more than identical weights: {out}{err}");
    assert!(out.starts_with("Intact: every weight is what Q4_K"), "{out}");
    assert!(out.ends_with("verdict       pass\n"), "{out}");
    assert!(out.contains("weights       38 of 38 identical to a fresh quantization\n"), "{out}");
    let (_, out, _) = gguf_verify(&[&args[..], &["--json"]].concat(), dir.path());
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["weights"]["reproduced"], 38);
    let k =
        report["weights"]["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == K).unwrap();
    assert_eq!((k["layer"].as_u64(), k["role"].as_str()), (Some(1), Some("attn_k.weight")));
    assert!(k["error"].as_f64().unwrap() > 0.05 && k["error"] == k["own_error"], "{k}");

    // An architecture that cannot be run.
    let mut unknown = base.quantized(GgmlType::Q4K);
    unknown.metadata.set("general.architecture", "unheard-of");
    randomize(&mut unknown, K, 0..64);
    unknown.write(dir.path(), "unknown.gguf");
    let (code, out, _) =
        gguf_verify(&["unknown.gguf", "--baseline", "base.gguf", "--weights-only"], dir.path());
    assert_eq!(code, 3, "{out}");
    assert!(out.contains("error     weights: `blk.1.attn_k.weight`"), "{out}");
    assert!(out.contains("37 of 38 identical to a fresh quantization, 1 damaged"), "{out}");

    for more in [
        &["--structure-only"][..],
        &["--trace", "0"],
        &["--ctx", "64"],
        &["--max-kld", "1"],
        &["--per-token", "x"],
    ] {
        let (code, _, err) = gguf_verify(&[&args[..], more].concat(), dir.path());
        assert_eq!(code, 2, "{more:?}: {err}");
    }
    let (code, _, err) = gguf_verify(&["q4_k.gguf", "--weights-only"], dir.path());
    assert_eq!(code, 2, "{err}");
}
