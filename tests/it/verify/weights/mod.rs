//! Weights compared with the baseline: valid files of every type pass, damage is found and named.

mod damaged;
mod healthy;
mod tensors;

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::progress::{CancelFlag, Silent};
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, ImatrixNeed, TensorSource};
use gguf_foundry::verify::{
    Cause, Severity, TensorWeights, WeightOptions, WeightOutcome, WeightReport, compare_weights,
};

use super::{gguf_verify, model};
use crate::testkit::noise::Noise;
use crate::testkit::tiny::Tiny;

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

/// Attention of two layers: enough for the comparison.
fn small() -> Tiny {
    let mut tiny = Tiny::new();
    tiny.tensors
        .retain(|meta| ["blk.1.attn", "blk.2.attn"].iter().any(|prefix| meta.name.starts_with(prefix)));
    tiny
}

fn compare(file: &Tiny, baseline: &Tiny) -> WeightReport {
    let none = GraphFeatures::default();
    let options = WeightOptions { level: SimdLevel::detect(), memory_bytes: 1 << 20, importance: None };
    compare_weights(&model(file, &none), &model(baseline, &none), &options, &Silent).unwrap()
}

/// Quantizes like `Tiny::quantized`, with importance weights that differ thirtyfold if the type uses them.
fn quantized(tiny: &Tiny, ty: GgmlType, weighted: bool) -> Tiny {
    let mut model = tiny.clone();
    let mut noise = Noise::new(5);
    let needs = ty.info().imatrix == ImatrixNeed::Required;
    for meta in tiny.tensors.tensors().iter().filter(|meta| meta.shape.rank() > 1) {
        let weight = |_| if weighted { 10f32.powf(1.5 * noise.unit() - 0.75) } else { 1.0 };
        let weights: Vec<f32> = (0..meta.shape.n_cols()).map(weight).collect();
        let weights = (weighted || needs).then_some(weights.as_slice());
        model.tensors.replace(&meta.name, ty, tiny.weighted_tensor(&meta.name, ty, weights));
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
    let ty = tiny.tensors.meta(name).ty;
    let bytes = tiny.tensors.bytes_mut(name);
    let mut noise = Noise::new(6);
    for block in blocks {
        for byte in layout(ty).0 {
            bytes[block * ty.block_bytes() + byte] = noise.bits() as u8;
        }
    }
}

fn n_blocks(tiny: &Tiny, name: &str) -> usize {
    let meta = tiny.tensors.meta(name);
    meta.n_bytes().unwrap() as usize / meta.ty.block_bytes()
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
fn results_do_not_depend_on_memory_and_a_run_can_be_stopped() {
    let base = small();
    let file = quantized(&base, GgmlType::Q4K, true);
    let none = GraphFeatures::default();
    let (file, base) = (model(&file, &none), model(&base, &none));
    let with = |memory_bytes| WeightOptions { level: SimdLevel::detect(), memory_bytes, importance: None };
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
    let base = Tiny::new().with_layers(2);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q4K).write(dir.path(), "q4_k.gguf");
    let args = ["q4_k.gguf", "--baseline", "base.gguf", "--weights-only"];
    let (code, out, err) = gguf_verify(&args, dir.path()).parts();
    assert_eq!(code, 0, "text says no more than identical weights: {out}{err}");
    assert!(out.starts_with("Intact: every weight is what Q4_K"), "{out}");
    assert!(out.ends_with("verdict       pass\n"), "{out}");
    assert!(out.contains("weights       20 of 20 identical to a fresh quantization\n"), "{out}");
    let report = gguf_verify(&[&args[..], &["--json"]].concat(), dir.path()).model();
    assert_eq!(report["weights"]["reproduced"], 20);
    let k =
        report["weights"]["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == K).unwrap();
    assert_eq!((k["layer"].as_u64(), k["role"].as_str()), (Some(1), Some("attn_k.weight")));
    assert!(k["error"].as_f64().unwrap() > 0.05 && k["error"] == k["own_error"], "{k}");

    // With `-v`, a row for each tensor with an error, the largest first.
    let (_, out, _) = gguf_verify(&[&args[..], &["-v"]].concat(), dir.path()).parts();
    let error = |line: &str| line.split_whitespace().nth(2)?.parse::<f64>().ok();
    let rows: Vec<&str> = out.lines().skip_while(|line| !line.starts_with("tensor ")).skip(1).collect();
    let errors: Vec<f64> =
        rows.iter().take_while(|line| line.contains(".weight")).filter_map(|row| error(row)).collect();
    assert!(
        errors.len() > 10 && errors.is_sorted_by(|a, b| a >= b) && errors[0] > errors[errors.len() - 1],
        "{out}"
    );

    // An architecture that cannot be run.
    let mut unknown = base.quantized(GgmlType::Q4K);
    unknown.metadata.set("general.architecture", "unheard-of");
    randomize(&mut unknown, K, 0..64);
    unknown.write(dir.path(), "unknown.gguf");
    gguf_verify(&["unknown.gguf", "--baseline", "base.gguf", "--weights-only"], dir.path())
        .prints(3, "error     weights: `blk.1.attn_k.weight`")
        .prints(3, "19 of 20 identical to a fresh quantization, 1 damaged");

    for more in [
        &["--structure-only"][..],
        &["--trace", "0"],
        &["--ctx", "64"],
        &["--max-kld", "1"],
        &["--per-token", "x"],
    ] {
        gguf_verify(&[&args[..], more].concat(), dir.path()).exits_with(2);
    }
    gguf_verify(&["q4_k.gguf", "--weights-only"], dir.path()).exits_with(2);
}
