//! Conversion without quantization: recognition, keys, types, order.

use gguf_foundry::core::GgmlType::{Bf16, F16, F32};
use gguf_foundry::gguf::{Array, GgufFile, Value};
use serde_json::json;

use super::{FLUX, add, convert, flux, run, tensors, type_of, wan};
use crate::testkit::checkpoints::Safetensors;

#[test]
fn a_model_is_recognized_with_any_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut files = Vec::new();
    for (n, prefix) in ["", "model.", "model.diffusion_model.", "net."].iter().enumerate() {
        let (input, output) = (format!("{n}.safetensors"), format!("{n}.gguf"));
        flux(prefix).write(&at(&input));
        convert(dir.path(), &input, &output, "auto").ok();
        files.push(fs_err::read(at(&output)).unwrap());
    }
    assert!(files.iter().all(|file| *file == files[0]));
    let file = GgufFile::open(&at("0.gguf")).unwrap();
    let keys: Vec<_> = file.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let expected = [
        ("general.architecture".to_owned(), Value::from("flux")),
        ("general.quantization_version".to_owned(), Value::U32(2)),
        ("general.file_type".to_owned(), Value::U32(32)),
    ];
    assert_eq!(keys, expected);
    let found = tensors(&at("0.gguf"));
    let names: Vec<&str> = found.iter().map(|tensor| tensor.0.as_str()).collect();
    assert_eq!(names, FLUX.map(|tensor| tensor.0), "the order of the file");
    let types: Vec<_> = found.iter().map(|tensor| tensor.2).collect();
    assert_eq!(types, [F32, Bf16, Bf16, F32, Bf16, Bf16, F32, Bf16]);
}

#[test]
fn types_can_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    flux("").write(&dir.path().join("in.safetensors"));
    for (ty, expected) in [("f16", F16), ("bf16", Bf16), ("f32", F32)] {
        let out = format!("{ty}.gguf");
        convert(dir.path(), "in.safetensors", &out, ty).ok();
        let path = dir.path().join(&out);
        assert_eq!(type_of(&path, "double_blocks.0.img_mlp.0.weight"), expected);
        assert_eq!(type_of(&path, "img_in.weight"), F32);
    }
    convert(dir.path(), "in.safetensors", "n.gguf", "native")
        .says(2, "`native` keeps the integers of language models");
    assert!(!dir.path().join("n.gguf").exists());
}

#[test]
fn a_bare_parameter_in_bf16_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Safetensors::default();
    add(&mut file, "joint_blocks.0.x_block.attn.qkv.weight", &[12, 256]);
    add(&mut file, "pos_embed", &[1, 9, 256]);
    add(&mut file, "x_embedder.proj.weight", &[8, 4, 2, 2]);
    add(&mut file, "final_layer.linear.weight", &[8, 256]);
    file.write(&dir.path().join("in.safetensors"));
    for ty in ["auto", "q8_0"] {
        let said = convert(dir.path(), "in.safetensors", "out.gguf", ty).ok().err;
        assert!(said.contains("`pos_embed`: a parameter in BF16") && said.contains("`--type f16`"), "{said}");
        assert_eq!(type_of(&dir.path().join("out.gguf"), "pos_embed"), Bf16);
    }
    // The way out.
    assert!(!convert(dir.path(), "in.safetensors", "f16.gguf", "f16").ok().err.contains("pos_embed"));
    run("gguf-quantize", dir.path(), &["f16.gguf", "out.gguf", "q8_0"]).ok();
    assert_eq!(type_of(&dir.path().join("out.gguf"), "pos_embed"), F16);
    flux("").write(&dir.path().join("in.safetensors"));
    assert!(!convert(dir.path(), "in.safetensors", "out.gguf", "auto").ok().err.contains("no layer"));
}

#[test]
fn five_dimensions_are_written_read_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    wan().write(&at("in.safetensors"));
    convert(dir.path(), "in.safetensors", "auto.gguf", "auto").ok();
    let found = tensors(&at("auto.gguf"));
    let place = found.iter().position(|tensor| tensor.0 == "patch_embedding.bias").unwrap();
    assert_eq!(found[place + 1], ("patch_embedding.weight".to_owned(), vec![6, 4, 1, 2, 2], F32));
    assert_eq!(type_of(&at("auto.gguf"), "blocks.0.modulation"), F32);
    run("gguf-inspect", dir.path(), &["auto.gguf"]).prints(0, "[6, 4, 1, 2, 2]");
    run("gguf-inspect", dir.path(), &["diff", "auto.gguf", "auto.gguf"]).ok();
    run("gguf-inspect", dir.path(), &["set", "auto.gguf", "general.name=str:x"]).ok();
    assert_eq!(tensors(&at("auto.gguf")), found);
    let json = run("gguf-inspect", dir.path(), &["auto.gguf", "--json"]).ok().json();
    assert!(json.to_string().contains("[6,4,1,2,2]"));
    // What runs text says that none runs through it, not that it lacks a vocabulary.
    fs_err::write(at("p.txt"), "some text").unwrap();
    run("gguf-verify", dir.path(), &["imatrix", "auto.gguf", "-f", "p.txt", "-o", "i.gguf"])
        .says(1, "this is an image or video model, not a language model");
    run("gguf-inspect", dir.path(), &["memory", "auto.gguf"])
        .says(1, "an image or video model: its tensors take");
}

#[test]
fn other_models_of_a_checkpoint_are_left_out_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = flux("model.diffusion_model.");
    add(&mut file, "first_stage_model.decoder.conv_in.weight", &[8, 8]);
    add(&mut file, "alphas_cumprod", &[8]);
    file.write(&dir.path().join("in.safetensors"));
    let said = convert(dir.path(), "in.safetensors", "out.gguf", "auto").ok().err;
    assert!(
        said.contains("2 tensors of other models are left out: `alphas_cumprod`, `first_stage_model`"),
        "{said}"
    );
    assert_eq!(tensors(&dir.path().join("out.gguf")).len(), FLUX.len());
}

#[test]
fn short_rows_are_written_in_rows_of_256() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Safetensors::default();
    for name in ["down_blocks.0.downsamplers.0.conv.weight", "mid_block.resnets.0.conv1.weight"] {
        add(&mut file, name, &[64, 4, 3, 3]);
    }
    add(&mut file, "mid_block.attentions.0.proj_in.weight", &[8, 256]);
    for name in ["conv_in.weight", "conv_out.weight"] {
        add(&mut file, name, &[8, 4, 3, 3]);
    }
    file.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "out.gguf", "auto").ok();
    let path = dir.path().join("out.gguf");
    assert_eq!(tensors(&path)[0].1, [9, 256]);
    let file = GgufFile::open(&path).unwrap();
    let key = "comfy.gguf.orig_shape.down_blocks.0.downsamplers.0.conv.weight";
    assert_eq!(file.metadata().get(key), Some(&Value::Array(Array::I32(vec![64, 4, 3, 3]))));
    assert_eq!(file.metadata().len(), 5);
    assert_eq!(tensors(&path)[2].1, [8, 256]);
}

#[test]
fn an_entry_of_the_header_becomes_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Safetensors::parse(&{
        let header = json!({ "__metadata__": { "config": "{\"a\": 1}", "format": "pt" } }).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    });
    for name in ["adaln_single.emb.timestep_embedder.linear_2.weight", "audio_adaln_single.linear.weight"] {
        add(&mut file, name, &[8, 256]);
    }
    for name in ["patchify_proj.weight", "proj_out.weight"] {
        add(&mut file, name, &[8, 256]);
    }
    add(&mut file, "transformer_blocks.27.scale_shift_table", &[6, 256]);
    file.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "out.gguf", "q4_0").ok();
    let file = GgufFile::open(&dir.path().join("out.gguf")).unwrap();
    assert_eq!(file.metadata().get("config"), Some(&Value::from("{\"a\": 1}")));
    assert_eq!(file.metadata().len(), 4);
    assert_eq!(type_of(&dir.path().join("out.gguf"), "transformer_blocks.27.scale_shift_table"), F32);
    // Without the entry, which merges and trainers lose.
    let mut bare = Safetensors::default();
    let all = tensors(&dir.path().join("out.gguf"));
    for (name, dims, _) in &all {
        add(&mut bare, name, dims);
    }
    bare.write(&dir.path().join("bare.safetensors"));
    let said = convert(dir.path(), "bare.safetensors", "bare.gguf", "q4_0").ok().err;
    assert!(said.contains("warning: `config` is missing in the header"), "{said}");
}

#[test]
fn odd_tensors_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = flux("");
    file.add("__index_timestep_zero__", "BF16", [0], &[]);
    file.add_bf16("scalar", json!([]), &[1.5]);
    add(&mut file, "double_blocks.0.row.weight", &[1, 2048]);
    add(&mut file, "double_blocks.0.column.weight", &[2048, 1]);
    add(&mut file, "double_blocks.0.odd.weight", &[40, 48]);
    let long = format!("double_blocks.0.{}.weight", "x".repeat(100));
    add(&mut file, &long, &[8, 256]);
    file.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "auto.gguf", "auto").ok();
    convert(dir.path(), "in.safetensors", "out.gguf", "q8_0").ok();
    run("gguf-quantize", dir.path(), &["auto.gguf", "two.gguf", "q8_0"]).ok();
    let [one, two] = ["out.gguf", "two.gguf"].map(|name| fs_err::read(dir.path().join(name)).unwrap());
    assert!(one == two);
    let out = dir.path().join("out.gguf");
    for (name, ty) in [
        ("__index_timestep_zero__", F32),
        ("scalar", F32),
        ("double_blocks.0.row.weight", Bf16),
        ("double_blocks.0.column.weight", F16),
        ("double_blocks.0.odd.weight", F16),
    ] {
        assert_eq!(type_of(&out, name), ty, "{name}");
    }
    assert_eq!(type_of(&out, &long).name(), "Q8_0");
    run("gguf-inspect", dir.path(), &["out.gguf"]).prints(0, &long);
}

#[test]
fn a_card_of_a_user_adds_an_architecture() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Safetensors::default();
    add(&mut file, "stem.weight", &[8, 256]);
    add(&mut file, "layers.0.mix.weight", &[8, 256]);
    file.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "out.gguf", "auto")
        .says(1, "no image or video model that is known");
    let card = "schema = 1\nkind = \"diffusion\"\ngguf = \"mine\"\norder = 1\nexamples = []\n\
                recognize = [[\"stem.weight\"]]\nkeep = [\"stem.\"]\n";
    fs_err::write(dir.path().join("mine.toml"), card).unwrap();
    let with = ["hf2gguf", "in.safetensors", "-o", "out.gguf", "--card", "mine.toml", "--type", "q4_0"];
    run("gguf-convert", dir.path(), &with).ok();
    let out = dir.path().join("out.gguf");
    assert_eq!((type_of(&out, "stem.weight"), type_of(&out, "layers.0.mix.weight").name()), (Bf16, "Q4_0"));
    fs_err::write(dir.path().join("mine.toml"), format!("{card}keeps = []\n")).unwrap();
    run("gguf-convert", dir.path(), &with).says(1, "unknown field `keeps`");
}

#[test]
fn the_family_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    run("gguf-convert", dir.path(), &["archs"]).prints(0, "qwen_image");
    run("gguf-convert", dir.path(), &["archs", "hyvid"]).prints(0, "byt5_in.");
    let json = run("gguf-convert", dir.path(), &["archs", "wan", "--json"]).ok().json();
    assert_eq!(json["diffusion"]["architecture"], "wan");
}

#[test]
fn parts_of_models_are_refused_by_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |file: &Safetensors, words: &[&str]| {
        file.write(&dir.path().join("in.safetensors"));
        let said = convert(dir.path(), "in.safetensors", "out.gguf", "q8_0").exits_with(1).err;
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert!(!dir.path().join("out.gguf").exists());
    };
    for name in ["controlnet_blocks.0.weight", "input_hint_block.0.weight", "zero_convs.0.0.weight"] {
        let mut file = flux("");
        add(&mut file, name, &[8, 256]);
        refused(&file, &["a ControlNet", "stays a safetensors file"]);
    }
    let mut quanto = flux("");
    add(&mut quanto, "img_in.weight._scale", &[8, 1]);
    refused(&quanto, &["Quanto", "original checkpoint"]);
    let mut connectors = Safetensors::default();
    add(&mut connectors, "video_embeddings_connector.learnable_registers", &[8, 256]);
    refused(&connectors, &["LTX-2", "stay a safetensors file"]);
    for (name, _) in
        super::FLUX.into_iter().filter(|(name, _)| name.contains("in.weight") || name.contains("final"))
    {
        let mut file = Safetensors::default();
        super::FLUX.iter().filter(|(own, _)| *own != name).for_each(|(own, dims)| add(&mut file, own, dims));
        refused(&file, &["`flux` lacks", name]);
    }
    // A file of other tools without its last layer.
    flux("").write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "whole.gguf", "f16").ok();
    run("gguf-inspect", dir.path(), &["drop", "whole.gguf", "^final_layer", "-o", "short.gguf"]).ok();
    let judged = run("gguf-verify", dir.path(), &["short.gguf", "--structure-only"]).exits_with(3).out;
    assert!(judged.contains("`final_layer.linear.weight`: missing"), "{judged}");
}

#[test]
fn what_a_runtime_reads_beside_a_whole_model_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = flux("model.diffusion_model.");
    file.add_f32("v_pred", [0], &[]);
    file.add_f32("edm_vpred.sigma_max", [1], &[80.0]);
    file.add_f32("first_stage_model.x", [1], &[1.0]);
    file.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "out.gguf", "q8_0").ok();
    let names: Vec<String> = tensors(&dir.path().join("out.gguf")).into_iter().map(|row| row.0).collect();
    assert!(
        names.iter().any(|name| name == "v_pred") && names.iter().any(|name| name == "edm_vpred.sigma_max")
    );
    assert!(!names.iter().any(|name| name == "first_stage_model.x"), "{names:?}");
}

#[test]
fn layers_that_are_not_decoded_stay_floats() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = wan();
    let whole =
        ["motion_encoder.enc.fc.0.weight", "face_encoder.conv2.conv.weight", "face_encoder.padding_tokens"];
    for (name, dims) in whole.iter().zip([&[16, 256][..], &[32, 32, 3], &[1, 1, 1, 1280]]) {
        add(&mut file, name, dims);
    }
    file.write(&dir.path().join("in.safetensors"));
    for ty in ["auto", "bf16", "q8_0", "q4_k_s"] {
        convert(dir.path(), "in.safetensors", "out.gguf", ty).ok();
        let types = whole.map(|name| type_of(&dir.path().join("out.gguf"), name));
        assert_eq!(types, [F32; 3], "{ty}");
        let judged = run("gguf-verify", dir.path(), &["out.gguf", "--structure-only"]).exits_with(4).out;
        assert!(!judged.contains("does not load"), "{judged}");
    }
}
