//! Quantization: one pass and two steps, rules of the cards, files that no card knows, verification.

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::{GgufFile, Metadata};

use super::{add, convert, flux, run, tensors, type_of, wan};
use crate::support::tiers::{Tier, two_tiers};
use crate::testkit::checkpoints::Safetensors;
use crate::testkit::memory::{MemoryTensors, f32_bytes, write_source};

two_tiers!(one_pass_equals_two_steps);

fn one_pass_equals_two_steps(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    wan().write(&at("in.safetensors"));
    convert(dir.path(), "in.safetensors", "auto.gguf", "auto").ok();
    let types =
        ["q8_0", "q6_k", "q5_k_m", "q4_k_s", "q4_0", "q3_k_m", "q2_k", "iq4_nl", "iq4_xs", "iq3_s", "iq3_m"];
    for ty in tier.some(3, types) {
        convert(dir.path(), "in.safetensors", "one.gguf", ty).ok();
        run("gguf-quantize", dir.path(), &["auto.gguf", "two.gguf", "--type", ty]).ok();
        run("gguf-quantize", dir.path(), &["in.safetensors", "three.gguf", "--type", ty]).ok();
        let [one, two, three] =
            ["one", "two", "three"].map(|name| fs_err::read(at(&format!("{name}.gguf"))).unwrap());
        assert!(one == two && one == three, "{ty}");
    }
}

#[test]
fn the_rules_of_the_card_apply() {
    let dir = tempfile::tempdir().unwrap();
    flux("").write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "auto.gguf", "auto").ok();
    let out = dir.path().join("out.gguf");
    run("gguf-quantize", dir.path(), &["auto.gguf", "out.gguf", "q4_k_m"]).ok();
    assert_eq!(type_of(&out, "double_blocks.0.img_attn.qkv.weight"), GgmlType::Q5K);
    assert_eq!(type_of(&out, "double_blocks.0.img_attn.proj.weight"), GgmlType::Q4K);
    assert_eq!(type_of(&out, "final_layer.linear.weight"), GgmlType::Bf16);
    let names = |path: &std::path::Path| tensors(path).into_iter().map(|tensor| tensor.0).collect::<Vec<_>>();
    assert_eq!(names(&out), names(&dir.path().join("auto.gguf")), "the order is kept");
    let rule = ["--tensor-type", "single_blocks=q6_k", "auto.gguf", "out.gguf", "q4_0"];
    run("gguf-quantize", dir.path(), &rule).ok();
    assert_eq!(type_of(&out, "single_blocks.0.linear2.weight"), GgmlType::Q6K);
    run("gguf-quantize", dir.path(), &["auto.gguf", "no.gguf", "iq2_xs"])
        .says(1, "IQ2_XS is no type of image and video models");
    assert!(!dir.path().join("no.gguf").exists());
    run("gguf-quantize", dir.path(), &["auto.gguf", "out.gguf", "copy"]).ok();
    assert!(fs_err::read(&out).unwrap() == fs_err::read(dir.path().join("auto.gguf")).unwrap());
}

/// Writes a file of an architecture with these matrices of F16.
fn file(path: &std::path::Path, arch: &str, names: &[&str]) {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", arch);
    let mut tensors = MemoryTensors::default();
    for name in names {
        tensors.add(name, &[8, 256], GgmlType::F32, f32_bytes(&super::values(8 * 256, 5)));
    }
    write_source(path, &metadata, &tensors);
}

#[test]
fn a_model_that_no_card_knows_is_treated_with_care() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let names = ["proj_out.weight", "x_blocks.0.mix.weight", "x_blocks.0.norm1.weight", "time_in.weight"];
    file(&at("in.gguf"), "brand_new", &names);
    run("gguf-quantize", dir.path(), &["in.gguf", "out.gguf", "q4_k_m"])
        .says(0, "only matrices inside of numbered blocks are quantized");
    let types: Vec<_> = tensors(&at("out.gguf")).into_iter().map(|tensor| tensor.2.name()).collect();
    assert_eq!(types, ["F32", "Q4_K", "F32", "F32"]);
    file(&at("in.gguf"), "pig", &["double_blocks.0.img_attn.proj.weight", "img_in.weight"]);
    run("gguf-quantize", dir.path(), &["in.gguf", "out.gguf", "q4_k_m"]).says(0, "whose rules are used");
    assert_eq!(type_of(&at("out.gguf"), "img_in.weight"), GgmlType::F32);
}

#[test]
fn every_tensor_is_judged_by_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut source = Safetensors::default();
    wan().header().iter().for_each(|(name, entry)| {
        let dims: Vec<u64> = serde_json::from_value(entry["shape"].clone()).unwrap();
        source.add_f32(name, &dims, &super::values(dims.iter().product(), name.len() as u64));
    });
    source.write(&at("in.safetensors"));
    let verify = |file: &str| {
        run("gguf-verify", dir.path(), &[file, "--weights-only", "--baseline", "in.safetensors"])
    };
    for ty in ["auto", "f32", "q8_0", "q4_k_m", "iq4_nl"] {
        convert(dir.path(), "in.safetensors", "out.gguf", ty).ok();
        let judged = verify("out.gguf").exits_with_one_of(&[0, 4]);
        assert!(judged.out.contains("9 of 9 identical"), "{ty}: {}", judged.out);
    }
    let mut bytes = fs_err::read(at("out.gguf")).unwrap();
    let file = GgufFile::open(&at("out.gguf")).unwrap();
    let damaged =
        file.tensors().iter().position(|tensor| tensor.name == "blocks.0.self_attn.v.weight").unwrap();
    // A scale of a block.
    bytes[file.place(damaged).offset as usize + 1] ^= 0x10;
    drop(file);
    fs_err::write(at("bad.gguf"), bytes).unwrap();
    verify("bad.gguf").exits_with(3);
    let mut other = Safetensors::default();
    add(&mut other, "x.weight", &[8, 256]);
    other.write(&at("other.safetensors"));
    run("gguf-verify", dir.path(), &["out.gguf", "--weights-only", "--baseline", "other.safetensors"])
        .exits_with(1);
}
