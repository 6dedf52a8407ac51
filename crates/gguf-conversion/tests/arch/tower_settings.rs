//! Towers as transformers 5 saves them, and settings that change what a tower computes.

use gguf_arch::{
    ArchError, CardKind, Inputs, Mapping, Registry, ResolveOptions, resolve, settle_preprocessor,
};
use gguf_conversion::{Conversion, ConvertOptions};
use gguf_core::{ElementType, Hint, Shape, WeightMeta};
use gguf_format::Value;
use gguf_testkit::goldens::Goldens;
use serde_json::{Map, Value as Json, json};

fn object(json: &Json) -> Map<String, Json> {
    json.as_object().cloned().unwrap()
}

/// Resolves the towers of a class from a configuration, over one that all towers share.
fn resolved(
    class: &str,
    config: &Json,
    preprocessor: &Json,
    options: &ResolveOptions,
    weights: &[WeightMeta],
) -> Result<Mapping, ArchError> {
    let mut all = object(
        &json!({"architectures": [class], "text_config": {"hidden_size": 8}, "downsample_ratio": 0.5}),
    );
    all.extend(object(config));
    let mut images = object(&json!({"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}));
    images.extend(object(preprocessor));
    settle_preprocessor(&mut images)?;
    let inputs = Inputs { preprocessor: Some(&images), ..Inputs::of_headers(&all, weights) };
    resolve(&Registry::embedded_of(CardKind::Mmproj).unwrap(), &inputs, options)
}

fn keys(class: &str, config: &Json, preprocessor: &Json) -> Result<Mapping, ArchError> {
    let options = ResolveOptions { metadata_only: true, ..ResolveOptions::default() };
    resolved(class, config, preprocessor, &options, &[])
}

fn vision() -> Json {
    json!({
        "depth": 4, "num_hidden_layers": 4, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "num_attention_heads": 2,
        "patch_size": 14, "image_size": 56, "spatial_merge_size": 2, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5,
        "hidden_act": "gelu", "fullatt_block_indexes": [1, 3], "model_type": "pixtral",
    })
}

fn audio() -> Json {
    json!({
        "d_model": 8, "encoder_ffn_dim": 8, "encoder_attention_heads": 2, "encoder_layers": 3, "num_hidden_layers": 3,
        "num_mel_bins": 128,
    })
}

#[test]
fn settings_are_carried() {
    let size = json!({"size": {"shortest_edge": 3136, "longest_edge": 50176}});
    let both =
        json!({"min_pixels": 784, "max_pixels": 3136, "size": {"shortest_edge": 1, "longest_edge": 2}});
    let mut cases = Vec::new();
    for class in [
        "DotsOCRForCausalLM",
        "Exaone4_5_ForConditionalGeneration",
        "HunYuanVLForConditionalGeneration",
        "PaddleOCRVLForConditionalGeneration",
    ] {
        for (images, fewest, most) in [(&size, 3136, 50176), (&both, 784, 3136)] {
            cases.push((class, json!({}), images.clone(), "vision.image_min_pixels", fewest));
            cases.push((class, json!({}), images.clone(), "vision.image_max_pixels", most));
        }
    }
    let (lighton, internvl) = ("LightOnOcrForConditionalGeneration", "InternVLForConditionalGeneration");
    let (layer, none) = ("vision_feature_layer", json!({}));
    for (class, config, n_blocks) in [
        (lighton, json!({}), 4),
        (lighton, json!({layer: -1}), 4),
        (lighton, json!({layer: -2}), 3),
        (lighton, json!({layer: [-2]}), 3),
        (lighton, json!({layer: 2}), 2),
        (internvl, json!({layer: -2}), 3),
        ("InternVLChatModel", json!({"select_layer": -2}), 3),
        ("Lfm2VlForConditionalGeneration", json!({layer: -2}), 4),
    ] {
        cases.push((class, config, none.clone(), "vision.block_count", n_blocks));
    }
    let gemma = "Gemma3ForConditionalGeneration";
    let factor = "vision.projector.scale_factor";
    cases.push((gemma, json!({"mm_tokens_per_image": 4}), json!({"image_seq_length": 256}), factor, 2));
    cases.push((gemma, json!({}), json!({"image_seq_length": 4}), factor, 2));
    let tiles = json!({"min_patches": 2, "max_patches": 6});
    cases.push((internvl, json!({}), tiles.clone(), "vision.preproc_min_tiles", 2));
    cases.push((internvl, json!({}), tiles.clone(), "vision.preproc_max_tiles", 6));
    cases.push((internvl, json!({"max_dynamic_patch": 4}), tiles, "vision.preproc_max_tiles", 4));
    let gemma = "Gemma4ForConditionalGeneration";
    for (key, value, written) in [
        ("pooling_kernel_size", 2, factor),
        ("num_key_value_heads", 1, "vision.attention.head_count_kv"),
        ("head_dim", 8, "vision.attention.head_dim"),
    ] {
        let vision = json!({"hidden_act": "gelu_pytorch_tanh", key: value});
        cases.push((gemma, json!({"vision_config": vision}), none.clone(), written, value));
    }
    let exaone = "Exaone4_5_ForConditionalGeneration";
    let windows_alone = json!({"vision_config": {"fullatt_block_indexes": []}});
    cases.push((exaone, windows_alone, size, "vision.n_wa_pattern", 5));
    let by_four = json!({"downsample_mode": "4x", "insert_layer_id": 1});
    cases.push(("MiniCPMV4_6ForConditionalGeneration", by_four, none.clone(), factor, 2));
    let mut heard = audio();
    heard["encoder_ffn_dim"] = 16.into();
    let stacked = json!({"audio_config": heard});
    cases.push(("VoxtralForConditionalGeneration", stacked, none.clone(), "audio.projector.stack_factor", 2));
    for (class, config, images, key, expected) in cases {
        let mut all = json!({"vision_config": vision()});
        for (key, value) in object(&config) {
            match (value.as_object(), all[&key].as_object_mut()) {
                (Some(more), Some(part)) => part.extend(more.clone()),
                _ => all[&key] = value,
            }
        }
        let mapping = keys(class, &all, &images).unwrap_or_else(|error| panic!("{class}: {error}"));
        let found = mapping.metadata.get(&format!("clip.{key}")).and_then(Value::as_u64);
        assert_eq!(found, Some(expected), "{class} {config} {images}: {key}");
    }
}

#[test]
fn what_no_key_has_is_refused_or_named() {
    for class in ["InternVLForConditionalGeneration", "LightOnOcrForConditionalGeneration"] {
        let config = json!({"vision_config": vision(), "vision_feature_layer": [-2, -1]});
        let error = keys(class, &config, &json!({})).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("`vision_feature_layer` names several"), "{class}: {error}");
    }
    let mut turned = vision();
    turned["rope_parameters"] = json!({"rope_theta": 500.0});
    let mapping =
        keys("LightOnOcrForConditionalGeneration", &json!({"vision_config": turned}), &json!({})).unwrap();
    let warnings: Vec<String> = mapping.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.iter().any(|warning| warning.contains("computes with 10000")), "{warnings:?}");
    let refusal = keys("GlmAsrForConditionalGeneration", &json!({"audio_config": audio()}), &json!({}));
    let refusal = refusal.map(|_| ()).unwrap_err();
    assert!(refusal.hints()[0].contains("whose config.json names `GlmasrModel`"), "{:?}", refusal.hints());
}

/// A tower's configuration with some members of its own.
fn with(members: &Json) -> Json {
    let mut vision = vision();
    vision.as_object_mut().unwrap().extend(object(members));
    json!({"vision_config": vision})
}

#[test]
fn the_activation_and_the_epsilon_are_those_of_the_tower() {
    for (class, key, value, gelu, silu) in [
        ("Gemma4ForConditionalGeneration", "hidden_activation", json!(null), true, false),
        ("Gemma4ForConditionalGeneration", "hidden_activation", json!("silu"), false, true),
        ("CogVLMForCausalLM", "hidden_act", json!("gelu"), true, false),
        ("Glm4vForConditionalGeneration", "hidden_act", json!("gelu_pytorch_tanh"), true, false),
        ("GlmOcrForConditionalGeneration", "hidden_act", json!(null), false, true),
        ("CogVLMForCausalLM", "hidden_act", json!("silu"), false, true),
    ] {
        let mut config = with(&json!({"rms_norm_eps": 0.5}));
        match value {
            Json::Null => drop(config["vision_config"].as_object_mut().unwrap().remove(key)),
            value => config["vision_config"][key] = value,
        }
        let written = keys(class, &config, &json!({})).unwrap().metadata;
        assert_eq!(written.contains("clip.use_gelu"), gelu, "{class} {config}");
        assert_eq!(written.contains("clip.use_silu"), silu, "{class} {config}");
        if key == "hidden_activation" {
            assert_eq!(written.get("clip.vision.attention.layer_norm_epsilon"), Some(&Value::F32(0.5)));
        }
    }
    let own = with(&json!({"rms_norm_eps": 0.5, "layer_norm_eps": 0.25}));
    let size = json!({"min_pixels": 784, "max_pixels": 3136});
    let written = keys("PaddleOCRVLForConditionalGeneration", &own, &size).unwrap().metadata;
    assert_eq!(written.get("clip.vision.attention.layer_norm_epsilon"), Some(&Value::F32(0.25)));
    let other = with(&json!({"hidden_activation": "relu"}));
    assert!(keys("Gemma4ForConditionalGeneration", &other, &json!({})).is_err());
}

/// What the runtime's tower has one number for.
#[test]
fn fixed_numbers_of_towers_are_refused_by_name() {
    let qwen = "Qwen2_5_VLForConditionalGeneration";
    for (class, members, key) in [
        ("Qwen2VLForConditionalGeneration", json!({"spatial_merge_size": 4}), "spatial_merge_size"),
        ("Glm4vForConditionalGeneration", json!({"spatial_merge_size": 1}), "spatial_merge_size"),
        ("Qwen3VLForConditionalGeneration", json!({"spatial_merge_size": 4}), "spatial_merge_size"),
        ("PaddleOCRVLForConditionalGeneration", json!({"spatial_merge_size": 4}), "spatial_merge_size"),
        ("KimiK25ForConditionalGeneration", json!({"merge_kernel_size": [1, 1]}), "merge_kernel_size"),
        ("Glm4vForConditionalGeneration", json!({"hidden_act": "relu"}), "hidden_act"),
        ("MiniMaxM3SparseForConditionalGeneration", json!({"temporal_patch_size": 1}), "temporal_patch_size"),
        (qwen, json!({"temporal_patch_size": 1}), "temporal_patch_size"),
        (qwen, json!({"fullatt_block_indexes": [1]}), "fullatt_block_indexes"),
        (qwen, json!({"depth": 6}), "fullatt_block_indexes"),
        ("InternVLForConditionalGeneration", json!({"norm_type": "rms_norm"}), "norm_type"),
        ("JanusForConditionalGeneration", json!({"depth": 3}), "depth"),
    ] {
        let mut config = with(&members);
        let model_type = if class.starts_with("Qwen2V") { "qwen2_vl" } else { "qwen2_5_vl" };
        config["model_type"] = model_type.into();
        let refused = keys(class, &config, &json!({})).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains(&format!("`vision_config.{key}`")), "{class}: {refused}");
        // The hint names the member, not the whole part.
        let hints = refused.hints().join("\n");
        assert!(
            hints.contains(&format!("`vision_config.{key}` = {}", config["vision_config"][key])),
            "{hints}"
        );
    }
    // Fewer blocks than the list counts.
    let mut shallow = with(&json!({"depth": 2, "fullatt_block_indexes": [7, 15, 23, 31]}));
    shallow["model_type"] = "qwen2_5_vl".into();
    keys(qwen, &shallow, &json!({})).unwrap();
    let named = json!({"vision_config": "Qwen/Qwen2.5-VL-3B-Instruct"});
    let refused = keys(qwen, &named, &json!({})).map(|_| ()).unwrap_err().to_string();
    assert!(
        refused.contains("`vision_config` is \"Qwen/Qwen2.5-VL-3B-Instruct\", expected an object"),
        "{refused}"
    );
    let absent = json!({"model_type": "qwen2_5_vl"});
    let refused = keys(qwen, &absent, &json!({})).map(|_| ()).unwrap_err();
    assert!(refused.hints()[0].starts_with("add it to config.json"), "{:?}", refused.hints());
}

/// The thinker of an Omni model is a model of its own, without the part of `config.json` around it.
#[test]
fn thinkers_are_read_alone_and_inside() {
    let parts =
        json!({"vision_config": vision(), "audio_config": audio(), "text_config": {"hidden_size": 8}});
    let inside = json!({"thinker_config": parts});
    for (class, config, n_vision) in [
        ("Qwen2_5OmniModel", &inside, Some(4)),
        ("Qwen2_5OmniForConditionalGeneration", &inside, Some(4)),
        ("Qwen2_5OmniThinkerForConditionalGeneration", &parts, Some(4)),
        ("Qwen3OmniMoeForConditionalGeneration", &inside, Some(4)),
        ("Qwen3OmniMoeThinkerForConditionalGeneration", &parts, Some(4)),
        ("Qwen3ASRForConditionalGeneration", &inside, None),
        ("Qwen3ASRForConditionalGeneration", &parts, None),
    ] {
        let mapping = keys(class, config, &json!({})).unwrap_or_else(|error| panic!("{class}: {error}"));
        let blocks =
            |part: &str| mapping.metadata.get(&format!("clip.{part}.block_count")).and_then(Value::as_u64);
        assert_eq!((blocks("vision"), blocks("audio")), (n_vision, Some(3)), "{class}");
    }
}

fn meta(name: &str) -> WeightMeta {
    let (name, shape) = (name.to_owned(), Shape::new(vec![8, 8]).unwrap());
    WeightMeta { name, shape, ty: ElementType::Bf16 }
}

#[test]
fn positions_and_missing_biases_are_written() {
    let options = ResolveOptions { is_part: true, ..ResolveOptions::default() };
    let muse = with(&json!({"pos_emb_height": 2, "merge_size": 2, "patch_temporal": 2}));
    let own = [meta("model.vision_tower.patch_embedder.position_embedding_table.weight")];
    let made = resolved("MuseGlimmerForConditionalGeneration", &muse, &json!({}), &options, &own).unwrap();
    assert_eq!(made.outputs[0].name, "v.position_embd.weight");
    let mut heard = audio();
    for (key, n) in [("encoder_layers", 1), ("num_hidden_layers", 1), ("max_source_positions", 8)] {
        heard[key] = n.into();
    }
    let flamingo = json!({"audio_config": heard, "projector_bias": false});
    let block = "fc1 fc2 final_layer_norm self_attn_layer_norm self_attn.k_proj self_attn.out_proj self_attn.q_proj \
                 self_attn.v_proj";
    let mut modules: Vec<String> =
        block.split(' ').map(|name| format!("audio_tower.layers.0.{name}")).collect();
    modules.extend(["conv1", "conv2", "layer_norm"].map(|name| format!("audio_tower.{name}")));
    let mut own: Vec<WeightMeta> = modules
        .iter()
        .flat_map(|name| ["weight", "bias"].map(|end| meta(&format!("{name}.{end}"))))
        .collect();
    own.retain(|weight| !weight.name.ends_with("k_proj.bias"));
    own.push(meta("audio_tower.embed_positions.weight"));
    own.extend([1, 2].map(|at| meta(&format!("multi_modal_projector.linear_{at}.weight"))));
    let (class, options) = ("AudioFlamingo3ForConditionalGeneration", ResolveOptions::default());
    let made = resolved(class, &flamingo, &json!({}), &options, &own).unwrap();
    for name in ["mm.a.mlp.1.bias", "mm.a.mlp.2.bias"] {
        assert!(made.outputs.iter().any(|output| output.name == name), "{name}");
    }
}

/// Numbers of config.json that no tensor of an audio tower has.
#[test]
fn a_tower_for_sounds_has_the_sizes_of_its_tensors() {
    let options = ConvertOptions { kind: CardKind::Mmproj, tokenizer: false, ..ConvertOptions::default() };
    let from = Goldens::selection().find("mmproj/qwen2_audio/hf").unwrap();
    for (key, value, words) in [
        ("num_mel_bins", 16, ""),
        ("num_mel_bins", 20, "num_mel_bins"),
        ("encoder_ffn_dim", 99, "encoder_ffn_dim"),
        ("encoder_attention_heads", 3, "do not share its width evenly"),
        ("max_source_positions", 1000, "is not the number of positions"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        for file in gguf_testkit::files::entries(&from) {
            fs_err::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
        }
        let path = dir.path().join("config.json");
        let mut config: Json = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
        config["audio_config"][key] = value.into();
        fs_err::write(&path, config.to_string()).unwrap();
        let refused = Conversion::plan(dir.path(), &options).err().map(|error| error.to_string());
        assert_eq!(refused.is_none(), words.is_empty(), "{key} {value}: {refused:?}");
        assert!(refused.unwrap_or_default().contains(words), "{key} {value}");
    }
    let weights = [meta("model.audio_tower.output_proj.weight")];
    let options = ResolveOptions { is_part: true, ..ResolveOptions::default() };
    let gemma = "Gemma4ForConditionalGeneration";
    let made = resolved(gemma, &with(&json!({})), &json!({}), &options, &weights);
    let refused = made.map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("`audio_config` is null"), "{refused}");
}

#[test]
fn the_projector_of_transformers_5_has_the_names_of_the_runtime() {
    let options = ResolveOptions { is_part: true, ..ResolveOptions::default() };
    let config = json!({"audio_config": audio()});
    for (own, runtime) in [
        ("thinker.audio_tower.proj1.weight", "mm.a.mlp.1.weight"),
        ("model.multi_modal_projector.linear_1.weight", "mm.a.mlp.1.weight"),
        ("model.multi_modal_projector.linear_2.weight", "mm.a.mlp.2.weight"),
        ("model.audio_tower.layers.1.fc1.weight", "a.blk.1.ffn_up.weight"),
    ] {
        let weights = [meta(own)];
        let mapping =
            resolved("Qwen3ASRForConditionalGeneration", &config, &json!({}), &options, &weights).unwrap();
        let names: Vec<&str> = mapping.outputs.iter().map(|output| output.name.as_str()).collect();
        assert_eq!(names, [runtime], "{own}");
    }
}

/// Dimensions of the tensor are no keys of config.json.
#[test]
fn a_wrong_patch_size_names_the_part_of_the_configuration() {
    let options = ResolveOptions { is_part: true, ..ResolveOptions::default() };
    let weights = [WeightMeta {
        name: "model.vision_tower.embeddings.patch_embedding.weight".to_owned(),
        shape: Shape::new(vec![8, 3 * 16 * 16]).unwrap(),
        ty: ElementType::Bf16,
    }];
    let config = json!({"vision_config": vision()});
    let made = resolved("Lfm2VlForConditionalGeneration", &config, &json!({}), &options, &weights);
    let hints = made.map(|_| ()).unwrap_err().hints().join("\n");
    assert!(
        hints.contains("config.json has `vision_config.patch_size` = ") && !hints.contains("`d0`"),
        "{hints}"
    );
}
