//! Descriptions that leave something out, contradict themselves or another file, or name modules otherwise than the
//! tensors: read as the writer meant them, with a warning where that is a guess.

use gguf_core::ElementType;
use gguf_core::simd::SimdLevel;
use gguf_dequant::msmodelslim::OffsetSign;
use gguf_dequant::{Configurations, DequantOptions, Opened, open};
use gguf_testkit::codes::packed::{awq, gptq, int_quantized};
use gguf_testkit::codes::tools::four_bits;
use gguf_testkit::codes::{MODULE, Made, i32s, noise};
use gguf_testkit::memory::MemoryWeights;
use serde_json::{Value as Json, json};

use crate::made::read;

/// Opens the parts, their module under another name, with another configuration and other files.
fn opened(made: &Made, module: &str, config: Json, files: Configurations) -> Result<Opened, String> {
    let Json::Object(config) = config else { panic!("an object") };
    let parts = made.parts.iter().fold(MemoryWeights::default(), |all, part| {
        all.with(&part.name.replace(MODULE, module), &part.dims, part.ty, part.bytes.clone())
    });
    let options = DequantOptions { offset_sign: OffsetSign::Auto, level: SimdLevel::detect() };
    let files = Configurations { config, ..files };
    open(&files, Box::new(parts), options).map_err(|error| error.to_string())
}

/// Values of the only weight.
fn values(opened: &Opened) -> Vec<f32> {
    let n = opened.source.weights()[0].shape.n_elems();
    read(&*opened.source, 0, 0, n).unwrap()
}

/// Values of a module as it is, after its zero points were set to `zero` in every field of four bits.
fn gptq_with_zeros(version: &str, zero: u32) -> Made {
    let made = (0..1000).map(|seed| gptq(4, [8, 64], &mut noise(seed), None)).find(|made| {
        let settings = &made.config["quantization_config"];
        settings["checkpoint_format"] == version && settings["desc_act"] == false && made.parts[1].dims[0] > 1
    });
    let mut made = made.unwrap();
    let bytes = made.parts[1].bytes.len();
    made.parts[1].bytes = vec![(zero | zero << 4) as u8; bytes];
    made
}

#[test]
fn a_symmetric_module_has_the_middle_as_its_zero_point_in_either_version() {
    let none = Configurations::default;
    let with = |made: &Made, symmetric: bool| {
        let mut config = made.config.clone();
        config["quantization_config"]["sym"] = json!(symmetric);
        opened(made, MODULE, config, none()).unwrap()
    };
    for (version, right, wrong) in [("gptq", 7, 8), ("gptq_v2", 8, 7)] {
        let (right, wrong) = (gptq_with_zeros(version, right), gptq_with_zeros(version, wrong));
        let (expected, found) = (with(&right, true), with(&wrong, true));
        assert_eq!(values(&expected), values(&found), "{version}");
        assert!(expected.warnings.is_empty(), "{:?}", expected.warnings);
        assert!(found.warnings[0].contains("the format's other version"), "{:?}", found.warnings);
        // Without the word, the version decides.
        assert_ne!(values(&expected), values(&with(&wrong, false)), "{version}");
    }
}

#[test]
fn formats_are_found_under_every_name_they_have() {
    let made = gptq_with_zeros("gptq_v2", 3);
    let expected = values(&opened(&made, MODULE, made.config.clone(), Configurations::default()).unwrap());
    for (key, value) in [("format", "gptq_v2"), ("checkpoint_format", "GPTQ_V2"), ("format", "GPTQ_V2")] {
        let mut config = made.config.clone();
        config["quantization_config"]["checkpoint_format"] = Json::Null;
        config["quantization_config"][key] = json!(value);
        let found = opened(&made, MODULE, config, Configurations::default()).unwrap();
        assert_eq!(values(&found), expected, "{key} {value}");
    }
    let made = awq([16, 64], &mut noise(1), "gemv");
    let expected = values(&opened(&made, MODULE, made.config.clone(), Configurations::default()).unwrap());
    for key in ["format", "checkpoint_format"] {
        let mut config = made.config.clone();
        config["quantization_config"]["version"] = Json::Null;
        config["quantization_config"][key] = json!("gemv");
        let found = opened(&made, MODULE, config, Configurations::default()).unwrap();
        assert_eq!(values(&found), expected, "{key}");
    }
}

#[test]
fn an_order_of_columns_that_is_lost_or_unset_is_told() {
    let mut made = gptq_with_zeros("gptq", 7);
    let plain = opened(&made, MODULE, made.config.clone(), Configurations::default()).unwrap();
    assert!(plain.warnings.is_empty());
    made.config["quantization_config"]["desc_act"] = json!(true);
    let lost = opened(&made, MODULE, made.config.clone(), Configurations::default()).unwrap();
    assert!(lost.warnings[0].contains("`desc_act` is true without `g_idx`"), "{:?}", lost.warnings);
    let unset = made.part(".g_idx", ElementType::I32, &[64], &i32s(&[0; 64]));
    let unset = opened(&unset, MODULE, unset.config.clone(), Configurations::default()).unwrap();
    assert!(unset.warnings[0].contains("`g_idx` that is all 0"), "{:?}", unset.warnings);
    assert_eq!([values(&lost), values(&unset)], [values(&plain), values(&plain)]);
}

#[test]
fn files_that_contradict_each_other_are_told() {
    let made = gptq_with_zeros("gptq", 7);
    let Json::Object(own) = made.config["quantization_config"].clone() else { panic!("an object") };
    let other = |key: &str, value: Json| {
        let mut map = own.clone();
        map.insert(key.to_owned(), value);
        Some(map)
    };
    let open = |files| opened(&made, MODULE, made.config.clone(), files).unwrap().warnings;
    let same =
        Configurations { quantize_config: other("damp_percent", json!(0.1)), ..Configurations::default() };
    assert_eq!(open(same), [""; 0]);
    for (key, value) in [("checkpoint_format", json!("gptq_v2")), ("bits", json!(8)), ("sym", json!(true))] {
        let mut config = made.config.clone();
        config["quantization_config"]["sym"] = json!(false);
        let files =
            Configurations { quantize_config: other(key, value.clone()), ..Configurations::default() };
        let warnings = opened(&made, MODULE, config, files).unwrap().warnings;
        assert!(
            warnings[0].contains(&format!("config.json and quantize_config.json differ in `{key}`")),
            "{warnings:?}"
        );
    }
    let files =
        Configurations { quant_config: other("quant_method", json!("awq")), ..Configurations::default() };
    assert!(open(files)[0].contains("quant_config.json differ in `quant_method`"));
    // A part that repeats the settings, with others; and settings of a part alone.
    let mut config = made.config.clone();
    config["text_config"] = json!({ "quantization_config": own });
    config["text_config"]["quantization_config"]["meta"] = json!({ "by": "x" });
    assert_eq!(opened(&made, MODULE, config.clone(), Configurations::default()).unwrap().warnings, [""; 0]);
    config["text_config"]["quantization_config"]["bits"] = json!(8);
    let warnings = opened(&made, MODULE, config.clone(), Configurations::default()).unwrap().warnings;
    assert!(warnings[0].contains("differs from `text_config.quantization_config`"), "{warnings:?}");
    let alone = json!({ "llm_config": { "quantization_config": own } });
    opened(&made, MODULE, alone, Configurations::default()).unwrap();
    let optimum = Configurations { quantization_config: Some(own), ..Configurations::default() };
    opened(&made, MODULE, json!({}), optimum).unwrap();
}

#[test]
fn modules_are_meant_by_their_names_in_memory_and_by_their_class() {
    let stored = "language_model.model.layers.0.self_attn.q_proj";
    let made = int_quantized([8, 32], &mut noise(2));
    let with_targets = |targets: Json| {
        let mut config = made.config.clone();
        let groups = config["quantization_config"]["config_groups"].as_object_mut().unwrap();
        groups.values_mut().for_each(|group| group["targets"] = targets.clone());
        config
    };
    for targets in [
        json!(["model.language_model.layers.0.self_attn.q_proj"]),
        json!(["re:model[.]language_model[.]layers[.].*"]),
        json!(["Linear"]),
    ] {
        opened(&made, stored, with_targets(targets.clone()), Configurations::default())
            .unwrap_or_else(|error| panic!("{targets}: {error}"));
    }
    opened(&made, "model.embed_tokens", with_targets(json!(["Embedding"])), Configurations::default())
        .unwrap();
    let error = opened(&made, stored, with_targets(json!(["Embedding"])), Configurations::default());
    assert!(error.err().unwrap().contains("without a group"));
}

#[test]
fn lists_of_modules_to_skip_are_those_of_transformers() {
    let made = awq([16, 64], &mut noise(3), "gemm");
    let with = |name: &str| {
        let mut config = made.config.clone();
        config["quantization_config"]["modules_to_not_convert"] = json!([name]);
        opened(&made, "model.layers.0.self_attn.q_proj", config, Configurations::default()).map(|_| ())
    };
    // The end of a module's name, or one that contains it; not a part of a name inside of it.
    for (name, is_skipped) in [
        ("attn", false),
        ("self_attn", false),
        ("model.layers.0.self_attn", true),
        ("model.layers.0.self", false),
        ("q_proj", true),
        ("model.layers.1", false),
        ("model.", true),
        ("", false),
    ] {
        assert_eq!(with(name).is_err(), is_skipped, "{name}");
    }
}

#[test]
fn linear_layers_in_place_of_transposed_ones_are_turned_back() {
    let made = gptq_with_zeros("gptq", 7);
    let plain = opened(&made, "transformer.h.0.attn.c_proj", made.config.clone(), Configurations::default());
    let mut config = made.config.clone();
    config["model_type"] = json!("gpt2");
    let turned = opened(&made, "transformer.h.0.attn.c_proj", config, Configurations::default());
    let (plain, turned) = (plain.unwrap(), turned.unwrap());
    let [rows, cols] = *plain.source.weights()[0].shape.dims() else { panic!("a matrix") };
    assert_eq!(turned.source.weights()[0].shape.dims(), [cols, rows]);
    let (plain, all) = (values(&plain), values(&turned));
    for row in 0..rows {
        for col in 0..cols {
            assert_eq!(all[(col * rows + row) as usize], plain[(row * cols + col) as usize]);
        }
    }
    // In pieces that begin and end inside of rows.
    let piece = read(&*turned.source, 0, 3, 2 * rows).unwrap();
    assert_eq!(piece, all[3..3 + 2 * rows as usize]);
}

#[test]
fn settings_that_stayed_behind_are_passed_over_where_all_weights_are_floats() {
    let parts =
        || Box::new(MemoryWeights::default().with("a.weight", &[2, 2], ElementType::F32, vec![0; 16]));
    let options = DequantOptions { offset_sign: OffsetSign::Auto, level: SimdLevel::detect() };
    for method in ["torchao", "eetq", "quark", "of somebody's own"] {
        let Json::Object(config) = json!({ "quantization_config": { "quant_method": method } }) else {
            panic!()
        };
        let files = Configurations { config, ..Configurations::default() };
        let opened = open(&files, parts(), options).unwrap();
        assert!(opened.warnings[0].contains(&format!("the quantization `{method}` is passed over")));
        let codes = MemoryWeights::default().with("a.weight", &[2, 2], ElementType::I8, vec![0; 4]);
        assert!(open(&files, Box::new(codes), options).is_err(), "{method}");
    }
}

#[test]
fn nested_scales_without_their_offset_are_refused() {
    let mut all = (0..1000).map(|seed| four_bits([8, 64], &mut noise(seed)));
    let mut nested = all.find(|made| made.parts.iter().any(|part| part.name.contains("nested"))).unwrap();
    let state = nested.parts.iter_mut().find(|part| part.name.contains("quant_state")).unwrap();
    let text = String::from_utf8(state.bytes.clone()).unwrap().replace("nested_offset", "other");
    (state.dims, state.bytes) = (vec![text.len() as u64], text.into_bytes());
    let error = opened(&nested, MODULE, nested.config.clone(), Configurations::default()).err().unwrap();
    assert!(error.contains("`nested_offset` must be"), "{error}");
}
