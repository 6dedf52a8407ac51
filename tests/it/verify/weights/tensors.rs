//! Tensors that only one of the files has, or that go with others.

use gguf_foundry::core::GgmlType;
use gguf_foundry::verify::WeightOutcome;

use super::{K, Q, compare, quantized, small, tensor};
use crate::testkit::memory::f32_bytes;

#[test]
fn tensors_without_an_answer_are_named() {
    let base = small();
    let mut broken = base.clone();
    broken.tensors.add_copy(K, "blk.1.attn_extra.weight");
    broken.tensors.remove(K);
    broken.tensors.reshape("blk.1.attn_extra.weight", &[64, 512]);
    broken.tensors.reshape(Q, &[128, 512]);
    broken.tensors.add_copy("blk.1.attn_norm.weight", "blk.2.x");
    let report = compare(&broken, &base);
    let texts: Vec<_> = report.findings.iter().map(|f| (f.tensor.clone(), f.message.clone())).collect();
    let has = |name: Option<&str>, part: &str| {
        texts.iter().any(|(tensor, text)| tensor.as_deref() == name && text.contains(part))
    };
    assert!(has(Some(Q), "shape [128, 512], the baseline's is [256, 256]"), "{texts:?}");
    assert!(has(Some("blk.2.x"), "the baseline has no such tensor"), "{texts:?}");
    // The same number of values under another name: another layout, which is not judged.
    assert!(has(None, "under other names"), "{texts:?}");

    let mut broken = base.clone();
    broken.tensors.remove(K);
    let report = compare(&broken, &base);
    assert_eq!(report.findings[0].tensor.as_deref(), Some(K));
    assert!(report.findings[0].message.starts_with("missing"));
}

#[test]
fn a_head_that_is_the_embedding_and_factors_beside_a_tensor() {
    let mut tied = small();
    tied.tensors.add_copy(Q, "token_embd.weight");
    let mut apart = tied.clone();
    apart.tensors.add_copy(Q, "output.weight");
    for (file, baseline) in [(&tied, &apart), (&apart, &tied)] {
        let report = compare(&quantized(file, GgmlType::Q6K, false), baseline);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(tensor(&report, "output.weight").outcome, WeightOutcome::Reproduced);
    }
    // A separate head that the file has lost.
    apart.edit("output.weight", <[f32]>::reverse);
    let report = compare(&tied, &apart);
    assert_eq!(tensor(&report, "output.weight").outcome, WeightOutcome::Damaged);

    let base = small();
    let mut scaled = base.clone();
    scaled.edit(K, |values| values.iter_mut().for_each(|x| *x *= 8.0));
    let mut scaled = quantized(&scaled, GgmlType::Q4_0, false);
    scaled.tensors.add("blk.1.attn_k.scale", &[1], GgmlType::F32, f32_bytes(&[0.125]));
    let report = compare(&scaled, &base);
    assert_eq!((report.findings.len(), tensor(&report, K).outcome), (0, WeightOutcome::Reproduced));
}
