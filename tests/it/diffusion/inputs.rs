//! Inputs: FP8 with factors, folders, and what is refused.

use gguf_foundry::core::GgmlType::F16;
use serde_json::json;

use super::{FLUX, add, convert, flux, type_of, values, wan};
use crate::support::programs;
use crate::testkit::checkpoints::Safetensors;

const WEIGHT: &str = "double_blocks.0.img_mlp.0.weight";

/// Model whose weight `WEIGHT` is FP8, with its factor and description, and the model of the same values in BF16.
fn scaled(factor_name: &str, description: Option<&str>) -> [Safetensors; 2] {
    let codes: Vec<u8> = (0..8 * 256).map(|at| (at % 120) as u8).collect();
    let factor = 0.37f32;
    let floats: Vec<f32> =
        codes.iter().map(|&code| gguf_foundry::core::small_float::E4M3[usize::from(code)] * factor).collect();
    let rounded: Vec<u8> = floats
        .iter()
        .flat_map(|&value| gguf_foundry::core::numeric::f32_to_bf16(value).to_le_bytes())
        .collect();
    let module = WEIGHT.strip_suffix(".weight").unwrap();
    let (mut coded, mut plain) = (Safetensors::default(), Safetensors::default());
    for (name, dims) in FLUX {
        let seed = dims.iter().product::<u64>();
        if name == WEIGHT {
            coded.add(name, "F8_E4M3", dims, &codes);
            plain.add(name, "BF16", dims, &rounded);
        } else {
            coded.add_bf16(name, dims, &values(seed, 3));
            plain.add_bf16(name, dims, &values(seed, 3));
        }
    }
    coded.add_f32(&format!("{module}{factor_name}"), json!([]), &[factor]);
    match description {
        Some(text) => coded.add(&format!("{module}.comfy_quant"), "U8", [text.len()], text.as_bytes()),
        None => coded.add("scaled_fp8", "F8_E4M3", [0], &[]),
    }
    [coded, plain]
}

#[test]
fn factors_are_applied() {
    for (factor, description) in [
        (".scale_weight", None),
        (".weight_scale", Some(r#"{"format": "float8_e4m3fn", "full_precision_matrix_mult": true}"#)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [coded, plain] = scaled(factor, description);
        coded.write(&dir.path().join("coded.safetensors"));
        plain.write(&dir.path().join("plain.safetensors"));
        for ty in ["auto", "q4_k_m"] {
            convert(dir.path(), "coded.safetensors", "coded.gguf", ty).ok();
            convert(dir.path(), "plain.safetensors", "plain.gguf", ty).ok();
            let [one, other] =
                ["coded.gguf", "plain.gguf"].map(|name| fs_err::read(dir.path().join(name)).unwrap());
            assert!(one == other, "{factor} {ty}");
        }
    }
}

#[test]
fn other_storage_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let [coded, _] = scaled(".weight_scale", Some(r#"{"format": "int4"}"#));
    coded.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "out.gguf", "auto").says(1, "unsupported variant `int4`");
    let mut file = flux("");
    file.add("img_in.weight.absmax", "F32", [1], &[0; 4]);
    file.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "out.gguf", "auto")
        .says(1, "a checkpoint quantized by bitsandbytes");
    assert!(!dir.path().join("out.gguf").exists());
}

#[test]
fn plain_fp8_becomes_f16() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Safetensors::default();
    for (name, dims) in FLUX {
        file.add(name, "F8_E5M2", dims, &vec![0x3c; dims.iter().product::<u64>() as usize]);
    }
    file.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "out.gguf", "auto").ok();
    assert!(FLUX.iter().all(|(name, _)| type_of(&dir.path().join("out.gguf"), name) == F16));
}

#[test]
fn what_is_no_model_is_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    for (name, what, way_out) in [
        ("lora_unet_double_blocks_0.lora_down.weight", "a LoRA", "the runtime applies it"),
        (
            "condition_embedder.image_embedder.pos_embed",
            "`wan` in the layout of diffusers",
            "the single file of Wan-AI",
        ),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", "a text encoder (T5)", "hf2gguf DIR"),
        ("model.layers.0.self_attn.q_proj.weight", "a language model", "config.json"),
        ("text_model.encoder.layers.0.mlp.fc1.weight", "a text encoder (CLIP)", "safetensors"),
        ("nothing.weight", "no image or video model that is known", "gguf-convert archs"),
    ] {
        let mut file = Safetensors::default();
        add(&mut file, name, &[8, 256]);
        file.write(&dir.path().join("in.safetensors"));
        for ty in ["auto", "q4_k_m"] {
            let err = convert(dir.path(), "in.safetensors", "out.gguf", ty).exits_with(1).err;
            assert!(err.contains(what) && err.contains(way_out), "{name}: {err}");
        }
    }
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1, "no output");
}

#[test]
fn what_no_file_can_hold_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |file: &Safetensors, words: &str| {
        file.write(&dir.path().join("in.safetensors"));
        for ty in ["auto", "q8_0"] {
            convert(dir.path(), "in.safetensors", "out.gguf", ty).says(1, words);
        }
    };
    let mut file = flux("");
    add(&mut file, &"x".repeat(128), &[8]);
    refused(&file, "name of 128 bytes, 1 to 127 allowed");
    let mut file = flux("");
    add(&mut file, "a.weight", &[1, 1, 1, 1, 1, 8]);
    refused(&file, "at most 5 dimensions can be written");
    let mut file = flux("model.");
    add(&mut file, "model.a.model.b", &[8]);
    add(&mut file, "model.a.b", &[8]);
    refused(&file, "two tensors are named `a.b`");
    let mut file = flux("");
    file.add_f32("a.weight", [1, 2048], &vec![1e6; 2048]);
    refused(&file, "a.weight");
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1, "no output");
}

#[test]
fn folders_are_read_by_their_index_or_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let whole = wan();
    whole.write(&at("whole.safetensors"));
    convert(dir.path(), "whole.safetensors", "whole.gguf", "q4_k_m").ok();
    let expected = fs_err::read(at("whole.gguf")).unwrap();
    fs_err::create_dir_all(at("pipeline/transformer")).unwrap();
    fs_err::write(at("pipeline/model_index.json"), "{}").unwrap();
    fs_err::write(at("pipeline/transformer/config.json"), r#"{"_class_name": "WanModel"}"#).unwrap();
    whole.write(&at("pipeline/transformer/diffusion_pytorch_model.safetensors"));
    // A folder with other models next to it, as of a whole repository.
    let mut vae = Safetensors::default();
    add(&mut vae, "decoder.conv_in.weight", &[8, 8]);
    add(&mut vae, "encoder.conv_in.weight", &[8, 8]);
    fs_err::create_dir_all(at("repository")).unwrap();
    vae.write(&at("repository/ae.safetensors"));
    whole.write(&at("repository/wan.safetensors"));
    for input in ["pipeline", "pipeline/transformer", "repository"] {
        convert(dir.path(), input, "out.gguf", "q4_k_m").ok();
        assert!(fs_err::read(at("out.gguf")).unwrap() == expected, "{input}");
    }
    // Two files with an index, in the order of the files.
    fs_err::create_dir(at("set")).unwrap();
    let mut parts = [Safetensors::default(), Safetensors::default()];
    let mut map = serde_json::Map::new();
    for (at, (name, entry)) in whole.header().iter().enumerate() {
        let file = format!("m-0000{}-of-00002.safetensors", at / 5 + 1);
        map.insert(name.clone(), file.into());
        let dims: Vec<u64> = serde_json::from_value(entry["shape"].clone()).unwrap();
        add(&mut parts[at / 5], name, &dims);
    }
    for (n, part) in parts.iter().enumerate() {
        part.write(&at(&format!("set/m-0000{}-of-00002.safetensors", n + 1)));
    }
    fs_err::write(at("set/m.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    for input in ["set", "set/m-00001-of-00002.safetensors"] {
        convert(dir.path(), input, "out.gguf", "q4_k_m").ok();
        assert!(fs_err::read(at("out.gguf")).unwrap() == expected, "{input}");
    }
    whole.write(&at("repository/again.safetensors"));
    convert(dir.path(), "repository", "two.gguf", "q4_k_m").says(1, "are both image or video models");
    // The default name is that of the file, in its folder.
    programs::run("gguf-convert", dir.path(), &["whole.safetensors"]).ok();
    assert!(at("whole-BF16.gguf").is_file());
}
