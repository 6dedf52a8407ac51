//! `gguf-quantize ladder` for image and video models: files of single runs, and a page that fits them.

use std::path::Path;

use super::{FLUX, add, convert, flux, run, type_of, wan};
use crate::support::tiers::{Tier, two_tiers};
use crate::support::{files, programs::Outcome};
use crate::testkit::checkpoints::Safetensors;
use gguf_foundry::core::GgmlType;

fn ladder(dir: &Path, args: &[&str]) -> Outcome {
    run("gguf-quantize", dir, &[&["ladder"], args].concat())
}

fn text(dir: &Path, name: &str) -> String {
    fs_err::read_to_string(dir.join(name)).unwrap()
}

/// Compares the files of a folder with runs of their own.
fn compare(dir: &Path, folder: &str, source: &str, stem: &str, types: &[&str]) {
    for ty in types {
        run("gguf-quantize", dir, &[source, "single.gguf", "--type", ty]).ok();
        let own = format!("{folder}/{stem}-{}.gguf", ty.to_ascii_uppercase());
        let [own, single] = [&own, "single.gguf"].map(|name| fs_err::read(dir.join(name)).unwrap());
        assert!(own == single, "{source}: {ty} differs from a run of its own");
    }
    let n_models = files::names(dir.join(folder)).iter().filter(|name| name.contains(".gguf")).count();
    assert_eq!(n_models, types.len());
}

const TYPES: [&str; 9] = ["q4_0", "q4_k_s", "q4_k_m", "q3_k_m", "q8_0", "bf16", "iq4_xs", "f16", "f32"];

two_tiers!(every_file_has_the_bytes_of_its_own_run);

fn every_file_has_the_bytes_of_its_own_run(tier: Tier) {
    let types = tier.some(3, TYPES);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    flux("model.diffusion_model.").write(&dir.join("flux-x.safetensors"));
    wan().write(&dir.join("wan-x.safetensors"));
    for stem in ["flux-x", "wan-x"] {
        let source = format!("{stem}.safetensors");
        ladder(dir, &[&source, "-o", stem, "--types", &types.join(",")]).ok();
        compare(dir, stem, &source, stem, &types);
        // From a file that exists. Its floats stay as they are unless they are asked for.
        convert(dir, &source, "auto.gguf", "auto").ok();
        let types = tier.some(2, ["q8_0", "q4_k_s", "q3_k_m", "bf16", "copy"]);
        ladder(dir, &["auto.gguf", "-o", &format!("{stem}-again"), "--types", &types.join(",")]).ok();
        compare(dir, &format!("{stem}-again"), "auto.gguf", "auto", &types);
    }
    // A folder of diffusers, whose single runs have the name of the folder.
    fs_err::create_dir_all(dir.join("pipe/transformer")).unwrap();
    fs_err::write(dir.join("pipe/model_index.json"), "{}").unwrap();
    fs_err::copy(
        dir.join("wan-x.safetensors"),
        dir.join("pipe/transformer/diffusion_pytorch_model.safetensors"),
    )
    .unwrap();
    ladder(dir, &["pipe", "-o", "of-folder", "--types", "q8_0,q5_k_m"]).ok();
    compare(dir, "of-folder", "pipe", "pipe", &["q8_0", "q5_k_m"]);
}

#[test]
fn a_preset_has_the_types_of_image_models() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    flux("").write(&dir.join("in.safetensors"));
    let said = ladder(dir, &["in.safetensors", "-o", "out", "--preset", "full"]).ok().err;
    assert!(said.contains("left out, because image and video models do not have them: Q6_K_L, "), "{said}");
    let names = files::names(dir.join("out"));
    let types: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_prefix("in-").and_then(|name| name.strip_suffix(".gguf")))
        .collect();
    let expected = [
        "IQ3_M", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q4_0", "Q4_1", "Q4_K_M",
        "Q4_K_S", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0",
    ];
    assert_eq!(types, expected);
    ladder(dir, &["in.safetensors", "-o", "new", "--types", "q8_0,iq2_xs"])
        .says(1, "IQ2_XS is no type of image and video models");
    assert!(!dir.join("new").exists());
}

#[test]
fn the_page_is_that_of_an_image_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    flux("").write(&dir.join("flux.safetensors"));
    wan().write(&dir.join("wan.safetensors"));
    let mut sdxl = Safetensors::default();
    add(&mut sdxl, "label_emb.0.0.weight", &[8, 256]);
    add(&mut sdxl, "input_blocks.4.1.transformer_blocks.0.attn1.to_v.weight", &[8, 256]);
    for name in ["input_blocks.0.0.weight", "out.2.weight"] {
        add(&mut sdxl, name, &[8, 4, 3, 3]);
    }
    sdxl.write(&dir.join("sdxl.safetensors"));
    for (name, task, reads) in [
        ("flux", "text-to-image", "ComfyUI-GGUF and stable-diffusion.cpp"),
        ("wan", "text-to-video", "ComfyUI-GGUF and stable-diffusion.cpp"),
        ("sdxl", "text-to-image", "ComfyUI-GGUF."),
    ] {
        let source = format!("{name}.safetensors");
        ladder(dir, &[&source, "-o", name, "--types", "q8_0,q4_k_s"]).ok();
        let page = text(dir, &format!("{name}/README.md"));
        let (front, body) = page.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
        assert!(front.contains(&format!("pipeline_tag: \"{task}\"")), "{front}");
        assert!(body.contains(&format!("for {reads}")), "{body}");
        assert!(body.contains("Unet Loader (GGUF)") && body.contains("Text encoders and VAE"), "{body}");
        assert_eq!(body.contains("--diffusion-model"), name != "sdxl");
        for word in ["llama.cpp", "llama-quantize", "llama-cli", "context", "tokens", "perplexity"] {
            assert!(!body.contains(word), "{name}: `{word}` in {body}");
        }
        let list = files::json(dir.join(name).join("ladder.json"));
        let model = &list["model"];
        assert_eq!((model["image"].as_bool(), model["pipeline"].as_str()), (Some(true), Some(task)));
        assert!(list["files"][0]["memory"].as_array().unwrap().is_empty());
    }
    ladder(dir, &["flux.safetensors", "-o", "flux", "--types", "q8_0,q4_k_s", "--modelfile"])
        .says(0, "no Modelfile is written: Ollama runs language models, this is an image or video model");
    assert!(!dir.join("flux/Modelfile").exists());
    let n_weights: u64 = FLUX.iter().map(|(_, dims)| dims.iter().product::<u64>()).sum();
    assert_eq!(files::json(dir.join("flux/ladder.json"))["model"]["weights"], n_weights);
}

#[test]
fn options_that_run_language_models_are_refused_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    flux("").write(&dir.join("in.safetensors"));
    fs_err::write(dir.join("text.txt"), "a text").unwrap();
    convert(dir, "in.safetensors", "in.gguf", "auto").ok();
    for source in ["in.safetensors", "in.gguf"] {
        for option in ["--verify", "--calibration"] {
            let args = [source, "-o", "out", "--types", "q8_0", option, "text.txt"];
            ladder(dir, &args).says(2, &format!("`{option}` runs language models"));
        }
        let args = [source, "-o", "out", "--types", "q8_0", "--calibrate", "text.txt"];
        ladder(dir, &args).says(2, "`--calibrate` runs language models");
    }
    assert!(!dir.join("out").exists());
    assert_eq!(type_of(&dir.join("in.gguf"), "img_in.weight"), GgmlType::F32);
}
