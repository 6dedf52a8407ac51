//! Image and video models: what a folder says beside its weights, and weights that are none.

use std::path::Path;

use gguf_arch::diffusion::{DiffusionCards, header_flaws};
use gguf_conversion::{ConvertError, ConvertOptions, DiffusionConversion};
use gguf_core::progress::Silent;
use gguf_core::{Hint, TensorSource};
use gguf_format::{GgufFile, TensorLimits, WriteOptions, write_gguf};
use gguf_testkit::checkpoints::Safetensors;
use serde_json::json;

const WEIGHT: &str = "transformer_blocks.1.attn.to_q.weight";
const FILE: &str = "transformer/diffusion_pytorch_model.safetensors";

fn plan(path: &Path) -> Result<DiffusionConversion, ConvertError> {
    DiffusionConversion::find(path, &ConvertOptions::default()).map(Option::unwrap)
}

/// Names that show the architecture.
fn names(gguf: &str, set: usize) -> Vec<String> {
    let card = DiffusionCards::embedded().unwrap().by_gguf(gguf).unwrap();
    [card.recognize[set].clone(), card.needs.last().unwrap().clone()].concat()
}

fn floats(names: &[String]) -> Safetensors {
    let mut file = Safetensors::default();
    for name in names {
        file.add_f32(name, [4, 4], &[1.0; 16]);
    }
    file
}

/// Qwen-Image of three blocks without the weight [`WEIGHT`].
fn qwen() -> Safetensors {
    let blocks = (0..3).flat_map(|block| {
        let own = ["attn.norm_added_q", "img_mlp.net.0.proj", "attn.to_q"];
        own.map(|layer| format!("transformer_blocks.{block}.{layer}.weight"))
    });
    let mut all: Vec<String> = names("qwen_image", 0);
    all.extend(blocks.filter(|name| name != WEIGHT));
    all.sort();
    all.dedup();
    let mut file = floats(&all);
    file.add_f32("txt_norm.bias", [4], &[1.0; 4]);
    file
}

/// Writes a pipeline of diffusers.
fn pipeline(dir: &Path, file: &Safetensors, config: &serde_json::Value, scheduler: &serde_json::Value) {
    for folder in ["transformer", "scheduler"] {
        fs_err::create_dir_all(dir.join(folder)).unwrap();
    }
    fs_err::write(dir.join("model_index.json"), "{}").unwrap();
    fs_err::write(dir.join("transformer/config.json"), config.to_string()).unwrap();
    fs_err::write(dir.join("scheduler/scheduler_config.json"), scheduler.to_string()).unwrap();
    file.write(&dir.join(FILE));
}

fn refused(dir: &Path, file: &Safetensors, config: &serde_json::Value) -> String {
    pipeline(dir, file, config, &json!({}));
    let error = plan(dir).unwrap_err();
    assert!(!error.hints().is_empty(), "{error}");
    error.to_string()
}

#[test]
fn weights_of_integers_are_codes() {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, shape, n) in [("U8", vec![8], 8), ("I16", vec![4, 4], 32), ("BOOL", vec![4, 4], 16)] {
        let mut file = qwen();
        file.add(WEIGHT, dtype, shape, &vec![1; n]);
        let class = json!({"_class_name": "QwenImageTransformer2DModel"});
        let found = refused(dir.path(), &file, &class);
        assert!(found.contains(&format!("tensor `{WEIGHT}`: a weight of {dtype}")), "{found}");
        let config = json!({"_class_name": "X", "quantization_config": {"quant_method": "sdnq"}});
        let found = refused(dir.path(), &file, &config);
        assert!(found.contains("config.json says that `sdnq` quantized it"), "{found}");
    }
    // Buffers are no weights.
    let mut file = qwen();
    file.add_f32(WEIGHT, [4, 4], &[1.0; 16]);
    file.add("position_ids", "I64", [1, 2], &[0; 16]);
    file.add("num_batches_tracked", "I64", json!([]), &[0; 8]);
    file.write(&dir.path().join("x.safetensors"));
    plan(&dir.path().join("x.safetensors")).unwrap();
}

#[test]
fn a_part_of_a_joined_tensor_is_a_code_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let names = [
        "x_embedder.weight",
        "time_caption_embed.caption_embedder.0.weight",
        "time_caption_embed.caption_embedder.1.weight",
        "time_caption_embed.timestep_embedder.linear_1.weight",
        "time_caption_embed.timestep_embedder.linear_2.weight",
        "norm_out.linear_1.weight",
        "norm_out.linear_2.weight",
        "context_refiner.0.attn.to_q.weight",
        "context_refiner.0.attn.to_v.weight",
    ];
    let mut file = floats(&names.map(str::to_owned));
    file.add("context_refiner.0.attn.to_k.weight", "I8", [4, 4], &[1; 16]);
    let found = refused(dir.path(), &file, &json!({"_class_name": "Lumina2Transformer2DModel"}));
    assert!(found.contains("a weight of I8"), "{found}");
}

#[test]
fn weights_without_elements_and_of_another_shape_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let class = json!({"_class_name": "QwenImageTransformer2DModel"});
    let mut file = qwen();
    file.add(WEIGHT, "F32", [0], &[]);
    let found = refused(dir.path(), &file, &class);
    assert!(found.contains(&format!("as ZeRO stage 3 saves what other ranks have: `{WEIGHT}`")), "{found}");
    let mut file = qwen();
    file.add_f32(WEIGHT, [4, 2], &[1.0; 8]);
    let found = refused(dir.path(), &file, &class);
    let expected = "shape [4, 2], expected [4, 4], that of `transformer_blocks.0.attn.to_q.weight`";
    assert!(found.contains(&format!("`{WEIGHT}`: {expected}")), "{found}");
}

#[test]
fn a_class_without_a_card_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = floats(&["caption_norm.weight".to_owned()]);
    let found = refused(dir.path(), &file, &json!({"_class_name": "SanaTransformer2DModel"}));
    assert!(found.contains("of class `SanaTransformer2DModel`"), "{found}");
}

#[test]
fn settings_of_a_folder_become_markers_or_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = qwen();
    file.add_f32(WEIGHT, [4, 4], &[1.0; 16]);
    let marker = |config: serde_json::Value| {
        pipeline(dir.path(), &file, &config, &json!({}));
        let found = plan(dir.path()).unwrap();
        let own = found.tensors().iter().find(|tensor| tensor.name == "__index_timestep_zero__");
        let at = found.tensors().len() - 1;
        assert!(own.is_none() || found.sources(at).next().is_none(), "nothing of a weight is in it");
        let path = dir.path().join("out.gguf");
        let write = WriteOptions { sync: false, ..WriteOptions::default() };
        write_gguf(&path, found.metadata(), &found, &write, &Silent).unwrap();
        let written = GgufFile::open(&path).unwrap();
        assert_eq!(written.tolerated().count(), usize::from(own.is_some()));
        assert!(header_flaws(&written).is_empty(), "a marker is no flaw");
        (own.map(|tensor| format!("{} {}", tensor.ty, tensor.shape)), found.account())
    };
    let (tensor, account) = marker(json!({"_class_name": "X", "zero_cond_t": true}));
    assert_eq!(tensor.as_deref(), Some("F32 [0]"));
    assert!(account.iter().any(|piece| piece.name == "zero_cond_t" && !piece.to.is_empty()));
    assert_eq!(marker(json!({"_class_name": "X", "zero_cond_t": false})).0, None);

    let file = floats(&names("sdxl", 2));
    let warned = |scheduler: serde_json::Value| {
        pipeline(dir.path(), &file, &json!({"_class_name": "X"}), &scheduler);
        let warnings = plan(dir.path()).unwrap().warnings().join("\n");
        ["`prediction_type`", "`rescale_betas_zero_snr`", "`_class_name`"].map(|key| warnings.contains(key))
    };
    assert_eq!(
        warned(json!({"_class_name": "EulerDiscreteScheduler", "prediction_type": "epsilon"})),
        [false; 3]
    );
    let zero = json!({"prediction_type": "v_prediction", "rescale_betas_zero_snr": true});
    assert_eq!(warned(zero), [true, true, false]);
    assert_eq!(warned(json!({"_class_name": "EDMDPMSolverMultistepScheduler"})), [false, false, true]);
    assert_eq!(warned(json!({"_class_name": "FlowMatchEulerDiscreteScheduler"})), [false, false, true]);
    assert_eq!(warned(json!({"prediction_type": "flow_prediction"})), [true, false, false]);

    // Runtimes find out by themselves what Stable Diffusion 2 predicts; models of flow have no other way.
    let said = |gguf: &str, set: usize, config: serde_json::Value, scheduler: serde_json::Value| {
        pipeline(dir.path(), &floats(&names(gguf, set)), &config, &scheduler);
        plan(dir.path()).unwrap().warnings().join("\n").contains("runtimes do not find this setting")
    };
    let velocity = json!({"prediction_type": "v_prediction"});
    assert!(said("sd1", 1, json!({"_class_name": "X", "cross_attention_dim": 768}), velocity.clone()));
    assert!(!said("sd1", 1, json!({"_class_name": "X", "cross_attention_dim": 1024}), velocity));
    let flow =
        json!({"_class_name": "FlowMatchEulerDiscreteScheduler", "prediction_type": "flow_prediction"});
    assert!(!said("wan", 0, json!({"_class_name": "X"}), flow));
}

#[test]
fn what_a_folder_or_a_pickle_holds_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let found = || DiffusionConversion::find(dir.path(), &ConvertOptions::default());
    let style = dir.path().join("style.safetensors");
    floats(&["lora_unet_x.lora_down.weight".to_owned()]).write(&style);
    fs_err::write(dir.path().join("style-Q8_0.gguf"), "").unwrap();
    let error = found().err().unwrap();
    assert!(
        error.to_string().ends_with("style.safetensors: this is a LoRA, which is no model of its own"),
        "{error}"
    );
    // A folder inside may be the model that is meant, and a model of the usual name a language model.
    fs_err::create_dir(dir.path().join("inner")).unwrap();
    fs_err::write(dir.path().join("inner/config.json"), "{}").unwrap();
    assert!(found().unwrap().is_none());
    fs_err::remove_dir_all(dir.path().join("inner")).unwrap();
    fs_err::rename(&style, dir.path().join("model.safetensors")).unwrap();
    assert!(found().unwrap().is_none());
    let pickle = dir.path().join("any.pt");
    fs_err::copy(gguf_testkit::fixture("torch/zip/pytorch_model.bin"), &pickle).unwrap();
    let error = DiffusionConversion::find(&pickle, &ConvertOptions::default()).err().unwrap().to_string();
    assert!(error.contains("any.pt: this is a language model"), "{error}");
}

#[test]
fn words_of_wrappers_and_options_without_effect() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let own = names("flux", 0);
    floats(&own.iter().map(|name| name.replacen('.', "._fsdp_wrapped_module.", 1)).collect::<Vec<_>>())
        .write(&path);
    let mut options = ConvertOptions::default();
    options.drop.push(regex::Regex::new("^nothing").unwrap());
    options.set.push(("general.architecture".to_owned(), "pig".into()));
    let found = DiffusionConversion::find(&path, &options).unwrap().unwrap();
    let mut written: Vec<&str> = found.tensors().iter().map(|tensor| &*tensor.name).collect();
    let mut expected: Vec<&str> = own.iter().map(String::as_str).collect();
    written.sort_unstable();
    expected.sort_unstable();
    assert_eq!(written, expected);
    let said = found.warnings().join("\n");
    for words in [
        "`--drop ^nothing` matches no tensor",
        "`general.architecture` is `pig`",
        "`_fsdp_wrapped_module` of wrappers",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn numbers_in_the_header_of_wan_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let bytes = floats(&names("wan", 0)).bytes();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    header["__metadata__"] = json!({"config": "{\"transformer\": {}}"});
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs_err::write(&path, [&length, header.as_bytes(), &bytes[8 + n..]].concat()).unwrap();
    let found = plan(&path).unwrap();
    assert!(found.metadata().contains("config"));
}

/// A file of an image model has the wider limits, whatever keys it has.
#[test]
fn every_card_has_the_limits_of_images() {
    for card in DiffusionCards::embedded().unwrap().iter() {
        let mut metadata = gguf_format::Metadata::new();
        metadata.set("general.architecture", card.gguf.as_str());
        metadata.set(format!("{}.fps", card.gguf), 16u32);
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::IMAGE, "{}", card.gguf);
    }
}

/// The text encoder of Wan: positions in every layer, under a class that llama.cpp's converter does not know.
#[test]
fn the_encoder_of_umt5_is_that_of_t5() {
    let dir = tempfile::tempdir().unwrap();
    let class = |content: &mut serde_json::Value| {
        content["config"]["architectures"] = json!(["UMT5EncoderModel"]);
        content["config"]["model_type"] = json!("umt5");
    };
    let mut case = crate::fixture::case("t5encoder/t5_encoder.json").edited(class);
    for block in 1..3 {
        let name = format!("encoder.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight");
        case = case.with(&name, &[32, 4]);
    }
    case.write(dir.path());
    let found = case.plan(dir.path(), gguf_arch::OutType::F32).unwrap();
    assert_eq!(found.mapping().card.gguf, "t5encoder");
    assert!(found.tensors().iter().any(|tensor| tensor.name == "enc.blk.2.attn_rel_b.weight"));
}

/// The factors that ComfyUI's quantizers put beside the weights of a text encoder, in their older and newer form.
#[test]
fn a_text_encoder_with_factors_of_comfyui_is_converted() {
    let case = crate::fixture::case("t5encoder/t5_encoder.json");
    let description = br#"{"format": "float8_e4m3fn"}"#;
    for is_old in [true, false] {
        let mut file = Safetensors::default();
        for weight in gguf_testkit::checkpoints::weights(case.content()) {
            let n = weight.shape.n_elems() as usize;
            let Some(module) = weight.name.strip_suffix(".q.weight") else {
                file.add_f32(&weight.name, weight.shape.dims(), &vec![1.0; n]);
                continue;
            };
            // Code 0x38 is one.
            file.add(&weight.name, "F8_E4M3", weight.shape.dims(), &vec![0x38; n]);
            if is_old {
                file.add_f32(&format!("{module}.q.scale_weight"), [1], &[0.5]);
            } else {
                file.add_f32(&format!("{module}.q.weight_scale"), [1], &[0.5]);
                file.add(&format!("{module}.q.comfy_quant"), "U8", [description.len()], description);
            }
        }
        if is_old {
            file.add("scaled_fp8", "F8_E4M3", [2], &[0; 2]);
        }
        let dir = tempfile::tempdir().unwrap();
        file.write_checkpoint(dir.path(), &case.content()["config"]);
        let found = case.plan(dir.path(), gguf_arch::OutType::F32).unwrap();
        let at = found.tensors().iter().position(|tensor| tensor.name == "enc.blk.0.attn_q.weight").unwrap();
        let values = gguf_testkit::memory::f32_values(&gguf_testkit::memory::tensor_bytes(&found, at));
        assert!(values.iter().all(|value| *value == 0.5), "{is_old}: {:?}", &values[..4]);
        assert!(
            found.warnings().iter().any(|warning| warning.contains("in FP8 with a scale")),
            "{:?}",
            found.warnings()
        );
    }
}
